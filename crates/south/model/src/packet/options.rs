//! The TCP options that matter to the programs, by offset in the header.

use std::ops::Range;

use wire::{MAX_WINDOW_SCALE, MIN_TCP_HEADER, kind};

use super::read32;

const MD5: u8 = 19;
const AUTHENTICATION: u8 = 29;

/// Results of [`find_options`]. Places are offsets in the TCP header.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// Where the timestamps option begins.
    timestamps: Option<usize>,
    /// Where the SACK option begins.
    pub(crate) sack: Option<usize>,
    /// Where the edges of SACK blocks stand.
    pub(crate) sack_edges: Range<usize>,
    pub(crate) sack_permitted: bool,
    /// Where the MSS stands.
    pub(crate) mss_at: Option<usize>,
    pub(crate) window_scale: Option<u8>,
    /// MD5 or AO.
    pub(crate) authenticated: bool,
    /// Options that would bind the connection to state which only the first server has: another
    /// path's keys (MPTCP), a cookie and data in the SYN (Fast Open).
    pub(crate) unsupported: Vec<Range<usize>>,
    /// MPTCP is present.
    pub(crate) multipath: bool,
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
            (kind::MAX_SEGMENT_SIZE, 4) => self.mss_at = Some(place.start + 2),
            (kind::SACK_PERMITTED, 2) => self.sack_permitted = true,
            (kind::WINDOW_SCALE, 3) => self.window_scale = header.get(place.start + 2).copied(),
            (kind::SACK, len) if (len - 2) % 8 == 0 => {
                self.sack = Some(place.start);
                self.sack_edges = place.start + 2..place.end;
            }
            (MD5 | AUTHENTICATION, _) => self.authenticated = true,
            (kind::MULTIPATH | kind::FAST_OPEN | kind::EXPERIMENT, _) => {
                self.multipath |= kind == kind::MULTIPATH;
                self.unsupported.push(place);
            }
            _ => {}
        }
    }

    pub(crate) fn tsval(&self, header: &[u8]) -> Option<u32> {
        Some(read32(header, self.tsval_at()?))
    }

    pub(crate) fn tsecr(&self, header: &[u8]) -> Option<u32> {
        Some(read32(header, self.tsecr_at()?))
    }

    pub(crate) fn tsval_at(&self) -> Option<usize> {
        self.timestamps.map(|at| at + 2)
    }

    pub(crate) fn tsecr_at(&self) -> Option<usize> {
        self.timestamps.map(|at| at + 6)
    }

    /// The window scale, at most 14 (RFC 7323 2.3); 0 if the option is absent.
    pub(crate) fn scale(&self) -> u8 {
        self.window_scale.unwrap_or(0).min(MAX_WINDOW_SCALE)
    }
}
