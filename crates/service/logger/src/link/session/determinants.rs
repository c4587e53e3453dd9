//! The determinants of the processes of a server with state. The processes send determinants themselves, not by the
//! data plane, and defer output until the logger has the determinants.

use std::time::Duration;

use journal::{Image, ImageError, NoRoom};
use protocol::{
    control::{Edition, KeptImage, MAX_DATA, Request, Response},
    link::{Determinants, Stable, StreamPosition},
};

use super::Session;
use crate::link::outbox::{Outbox, Peer};

impl Session {
    /// A datagram with determinants for this session, according to the datagram.
    pub(in crate::link) fn take_determinants(
        &mut self,
        from: Peer,
        datagram: &[u8],
        now: Duration,
    ) {
        self.statistics.datagrams += 1;
        self.statistics.bytes += u64::try_from(datagram.len()).unwrap_or(u64::MAX);
        let Ok(Determinants { at, bytes }) = Determinants::decode(datagram, &self.up) else {
            self.statistics.bad_tags += 1;
            return;
        };
        self.on_keyed_datagram(at.slot, now);
        self.statistics.determinants += 1;
        if at.is_over {
            self.determinants.end(at.record);
        }
        let kept = self.append(at.record, at.process, at.offset, bytes);
        let (offset, is_over) = match kept {
            Ok(Some(length)) => (length, false),
            Ok(None) => return,
            Err(NoRoom) => (0, true),
        };
        let grown = StreamPosition {
            offset,
            is_over,
            ..at
        };
        let same = |(peer, known): &&mut (Peer, StreamPosition)| {
            *peer == from && known.process == at.process
        };
        match self.grown.iter_mut().find(same) {
            Some((_, known)) => *known = grown,
            None => self.grown.push((from, grown)),
        }
    }

    fn append(
        &mut self,
        record: u64,
        process: u32,
        from: u64,
        bytes: &[u8],
    ) -> Result<Option<u64>, NoRoom> {
        let most = self.most();
        self.determinants.append(record, process, from, bytes, most)
    }

    /// Memory limit of determinants and images, bytes.
    fn most(&self) -> u64 {
        let journal = self.ingest.journal.statistics();
        self.limit.saturating_sub(journal.held + journal.idle)
    }

    /// Appends determinants from the service. Without memory, the processes learn that with the next datagram.
    pub(super) fn append_from_service(
        &mut self,
        record: u64,
        process: u32,
        from: u64,
        bytes: &[u8],
    ) {
        let _ = self.append(record, process, from, bytes);
        self.limit_total(self.limit); // the journal gets the remaining memory
    }

    /// Acknowledges each stream that has grown, once.
    pub(super) fn send_stable(&mut self, out: &mut Outbox) {
        if self.grown.is_empty() {
            return;
        }
        self.limit_total(self.limit); // the journal gets the remaining memory
        for (to, grown) in self.grown.drain(..) {
            let slot = self.acks.slot;
            if let Some(key) = self.acks.down.get(slot) {
                let stable = Stable(StreamPosition { slot, ..grown });
                out.stable(to, &stable.encode(key));
            }
        }
    }

    /// The determinants that are held, of this record only if `record` is given.
    pub(super) fn determinants(&mut self, record: Option<u64>, lengths: &[(u32, u64)]) -> Response {
        if let Some(record) = record {
            self.determinants.begin(record);
            self.determinants.was_said(record, lengths);
        }
        Response::Determinants {
            edition: self.edition(),
            is_whole: self.determinants.is_whole(),
            image: self.determinants.image().map(kept),
            streams: self.determinants.streams().collect(),
        }
    }

    /// The edition of the determinants; `None` without any.
    #[must_use]
    pub fn edition(&self) -> Option<Edition> {
        let record = self.determinants.record()?;
        let history = self.first_history.wrapping_add(self.determinants.drops());
        Some(Edition { record, history })
    }

    /// The determinants.
    pub(in crate::link) const fn kept_determinants(&self) -> &journal::Determinants {
        &self.determinants
    }

    /// Cuts a stream off at `length` bytes.
    pub(super) fn cut_determinants(&mut self, process: u32, length: u64) {
        self.determinants.cut(process, length);
    }

    /// Requests about images of the server.
    pub(super) fn image(&mut self, request: &Request) -> Option<Response> {
        let answer = match *request {
            Request::TellImage {
                record,
                image,
                length,
                from,
                ref bytes,
            } => {
                let (of, most) = ((image, length), self.most());
                let taken = self.determinants.take_image(record, of, from, bytes, most);
                let taken = taken.map(|there| Response::ImageTaken {
                    record,
                    image,
                    there,
                });
                taken.unwrap_or_else(|why| refused(record, image, why))
            }
            Request::CommitImage {
                record,
                image,
                base,
                processes,
            } => {
                let committed = self
                    .determinants
                    .commit_image(record, image, base, processes);
                let committed = committed.map(|()| Response::ImageKept { record, image });
                committed.unwrap_or_else(|why| refused(record, image, why))
            }
            Request::ReadImage {
                image,
                from,
                max_len,
            } => {
                return Some(image_bytes(&self.determinants, image, from, max_len));
            }
            _ => {
                self.drop_upload();
                return None;
            }
        };
        self.limit_total(self.limit); // the journal gets the remaining memory
        Some(answer)
    }

    /// Drops the unfinished upload of an image.
    pub(in crate::link) fn drop_upload(&mut self) {
        self.determinants.drop_upload();
        self.limit_total(self.limit);
    }

    /// A part of a stream.
    pub(super) fn determinant_bytes(&self, process: u32, from: u64, most: u32) -> Response {
        let most = usize::try_from(most).unwrap_or(MAX_DATA).min(MAX_DATA);
        Response::DeterminantBytes {
            bytes: self.determinants.read(process, from, most),
        }
    }
}

/// Answers a standby of the session's service.
pub(crate) fn answer_standby(session: Option<&Session>, request: &Request) -> Response {
    let determinants = session.map(Session::kept_determinants);
    match (determinants, request) {
        (
            Some(determinants),
            Request::ReadStoredImage {
                image,
                from,
                max_len,
                ..
            },
        ) => image_bytes(determinants, *image, *from, *max_len),
        (None, Request::ReadStoredImage { .. }) => Response::ImageBytes { bytes: Vec::new() },
        (determinants, _) => Response::StoredImage {
            image: determinants.and_then(|it| it.image().map(kept)),
        },
    }
}

fn image_bytes(
    determinants: &journal::Determinants,
    image: u64,
    from: u64,
    max_len: u32,
) -> Response {
    let most = usize::try_from(max_len).unwrap_or(MAX_DATA).min(MAX_DATA);
    let there = determinants.image();
    let there = there.filter(|there| there.number() == image);
    let bytes = there.map_or_else(Vec::new, |there| there.read(from, most));
    Response::ImageBytes { bytes }
}

fn kept(image: &Image) -> KeptImage {
    KeptImage {
        number: image.number(),
        length: image.length(),
        base: image.base(),
        processes: image.processes(),
    }
}

fn refused(record: u64, image: u64, why: ImageError) -> Response {
    Response::ImageRefused {
        record,
        image,
        why: why.to_string(),
    }
}
