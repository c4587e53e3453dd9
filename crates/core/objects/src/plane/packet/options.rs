//! The TCP options that matter to the programs, by offset in the header.

use alloc::vec::Vec;
use core::ops::Range;

use wire::{MAX_WINDOW_SCALE, MIN_TCP_HEADER, kind};

use super::{read32, write32};

const KIND_MD5: u8 = 19;
const KIND_AUTHENTICATION: u8 = 29;

/// Results of [`find_options`]. Places are offsets in the TCP header.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// Where the timestamps option begins.
    timestamps: Option<usize>,
    /// Where the SACK option begins and ends.
    pub(crate) sack: Option<Range<usize>>,
    pub(crate) sack_permitted: bool,
    pub(crate) segment_size: Option<u16>,
    /// Where the segment size stands.
    pub(crate) segment_size_at: Option<usize>,
    /// At most 14 (RFC 7323, 2.3).
    pub(crate) window_scale: Option<u8>,
    /// Where the shift of the window stands.
    pub(crate) window_scale_at: Option<usize>,
    /// MD5 or AO.
    pub(crate) is_authenticated: bool,
    /// Options that would bind the connection to state which only the first server has: another path's keys (MPTCP), a
    /// cookie and data in the SYN (Fast Open).
    pub(crate) unsupported: Vec<Range<usize>>,
}

/// Finds the options of `header`. A malformed option ends the walk: earlier options count.
pub(crate) fn find_options(header: &[u8]) -> Options {
    let mut found = Options::default();
    let mut at = MIN_TCP_HEADER;
    while let Some(&kind) = header.get(at) {
        if kind == kind::END_OF_LIST {
            break;
        }
        if kind == kind::NO_OPERATION {
            at += 1;
            continue;
        }
        let Some(&len) = header.get(at + 1) else {
            break;
        };
        let end = at + usize::from(len);
        if len < 2 || end > header.len() {
            break;
        }
        found.note(kind, at..end, header);
        at = end;
    }
    found
}

impl Options {
    fn note(&mut self, kind: u8, place: Range<usize>, header: &[u8]) {
        match (kind, place.len()) {
            (kind::TIMESTAMPS, 10) => self.timestamps = Some(place.start),
            (kind::MAX_SEGMENT_SIZE, 4) => {
                let size = super::array(header, place.start + 2).map(u16::from_be_bytes);
                self.segment_size = size;
                self.segment_size_at = Some(place.start + 2);
            }
            (kind::SACK_PERMITTED, 2) => self.sack_permitted = true,
            (kind::WINDOW_SCALE, 3) => {
                let scale = header.get(place.start + 2).copied();
                self.window_scale = scale.map(|scale| scale.min(MAX_WINDOW_SCALE));
                self.window_scale_at = Some(place.start + 2);
            }
            (kind::SACK, len) if (len - 2) % 8 == 0 => self.sack = Some(place),
            (KIND_MD5 | KIND_AUTHENTICATION, _) => self.is_authenticated = true,
            (kind::MULTIPATH | kind::FAST_OPEN | kind::EXPERIMENT, _) => {
                self.unsupported.push(place);
            }
            _ => {}
        }
    }

    pub(crate) const fn has_timestamps(&self) -> bool {
        self.timestamps.is_some()
    }

    pub(crate) fn tsval(&self, header: &[u8]) -> Option<u32> {
        Some(read32(header, self.timestamps? + 2))
    }

    pub(crate) fn tsecr(&self, header: &[u8]) -> Option<u32> {
        Some(read32(header, self.timestamps? + 6))
    }

    pub(crate) fn set_tsval(&self, header: &mut [u8], value: u32) {
        if let Some(at) = self.timestamps {
            write32(header, at + 2, value);
        }
    }

    pub(crate) fn set_tsecr(&self, header: &mut [u8], echo: u32) {
        if let Some(at) = self.timestamps {
            write32(header, at + 6, echo);
        }
    }

    /// Offsets of the edges of the SACK blocks.
    pub(crate) fn sack_edges(&self) -> impl Iterator<Item = usize> + use<> {
        let place = self.sack.clone();
        place
            .into_iter()
            .flat_map(|place| (place.start + 2..place.end).step_by(4))
    }
}
