//! Requests to a logger about the determinants of a server with state.

use std::ops::Range;

use protocol::control::{Edition, KeptImage, Request, Response};
use wire::{FlowId, SeqNumber};

use super::{LoggerClient, unexpected};
use crate::error::ServeError;

/// Determinants of a server's processes at a logger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Streams {
    pub(crate) edition: Option<Edition>,
    /// No determinant is missing on which output may depend.
    pub(crate) is_whole: bool,
    /// The image before the first process's stream.
    pub(crate) image: Option<KeptImage>,
    /// Number of the process, and length in bytes.
    pub(crate) streams: Vec<(u32, u64)>,
}

impl Streams {
    /// Bytes of this process's stream.
    pub(crate) fn length(&self, process: u32) -> u64 {
        let mut all = self.streams.iter();
        all.find(|(number, _)| *number == process)
            .map_or(0, |(_, length)| *length)
    }
}

/// Reply of a logger about an image in transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageReply {
    /// Number of the record, and number of the image.
    pub(crate) image: (u64, u64),
    pub(crate) state: ImageState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ImageState {
    /// The logger has this many bytes of the image.
    There(u64),
    /// The record begins with the image.
    Kept,
    /// The logger refuses the image, for this reason.
    Refused(String),
}

/// Positions in each request.
const POSITIONS_PER_REQUEST: usize = 10_000;
/// Bytes of a stream in each request, and bytes of all requests without an answer.
pub(crate) const PIECE_BYTES: u64 = 256 << 10;
pub(crate) const READ_AHEAD_BYTES: u64 = 4 << 20;

impl LoggerClient {
    /// The logger's copy of the record of the server's processes.
    pub(crate) fn determinants(&mut self) -> Result<Streams, ServeError> {
        self.ask_for_streams(None, Vec::new())
    }

    /// The logger's copy of this record; from now on the logger drops all other records. `said` are the bytes that a
    /// logger has had before.
    pub(crate) fn determinants_of(
        &mut self,
        record: u64,
        said: Vec<(u32, u64)>,
    ) -> Result<Streams, ServeError> {
        self.ask_for_streams(Some(record), said)
    }

    fn ask_for_streams(
        &mut self,
        record: Option<u64>,
        said: Vec<(u32, u64)>,
    ) -> Result<Streams, ServeError> {
        match self.ask(&Request::Determinants { record, said })? {
            Response::Determinants {
                edition,
                is_whole,
                image,
                streams,
            } => Ok(Streams {
                edition,
                is_whole,
                image,
                streams,
            }),
            other => Err(unexpected(&other)),
        }
    }

    /// More of that record.
    pub(crate) fn send_determinants(
        &mut self,
        record: u64,
        process: u32,
        from: u64,
        bytes: Vec<u8>,
    ) -> Result<(), ServeError> {
        self.send(&Request::TellDeterminants {
            record,
            process,
            from,
            bytes,
        })
    }

    /// The bytes of a stream of that record from there to there.
    pub(crate) fn read_determinants(
        &mut self,
        process: u32,
        from: u64,
        length: u64,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), ServeError> {
        let piece = |from, max_len| Request::ReadDeterminants {
            process,
            from,
            max_len,
        };
        self.read_pieces(from..length, READ_AHEAD_BYTES, piece, |bytes| {
            take(bytes);
            true
        })?;
        Ok(())
    }

    /// The bytes of an image in this range, until `take` wants no more. At most `ahead` bytes are under way. Returns
    /// the end of the bytes.
    pub(crate) fn read_image(
        &mut self,
        image: u64,
        range: Range<u64>,
        ahead: u64,
        take: impl FnMut(&[u8]) -> bool,
    ) -> Result<u64, ServeError> {
        let piece = |from, max_len| Request::ReadImage {
            image,
            from,
            max_len,
        };
        self.read_pieces(range, ahead, piece, take)
    }

    /// These bytes, by such requests, until `take` wants no more. Returns the end of the taken bytes.
    fn read_pieces(
        &mut self,
        range: Range<u64>,
        ahead: u64,
        piece: impl Fn(u64, u32) -> Request,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<u64, ServeError> {
        let (mut asked, mut taken, mut end) = (range.start, range.start, range.end);
        while taken < end {
            while asked < end && asked - taken < ahead {
                let most = (end - asked).min(PIECE_BYTES);
                self.send(&piece(asked, u32::try_from(most).unwrap_or(u32::MAX)))?;
                asked += most;
            }
            match self.next_answer()? {
                Response::DeterminantBytes { bytes } | Response::ImageBytes { bytes }
                    if !bytes.is_empty() =>
                {
                    taken += bytes.len() as u64;
                    if !take(&bytes) {
                        end = asked; // the answers that are under way
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
        Ok(taken)
    }

    /// Sends requests about an image in transfer; the replies come as [`ImageReply`] messages.
    pub(crate) fn send_image(&mut self, requests: Vec<Request>) -> Result<(), ServeError> {
        self.send_all(requests)
    }

    /// Subscribe to the determinants of this service. Determinants that this host already has are left out.
    pub(crate) fn follow(
        &mut self,
        service: String,
        edition: Option<Edition>,
        streams: Vec<(u32, u64)>,
    ) -> Result<(), ServeError> {
        self.send(&Request::Follow {
            service,
            edition,
            streams,
        })
    }

    /// Drop the instream before these positions, which no replay needs any more.
    pub(crate) fn release(
        &mut self,
        mut places: Vec<(FlowId, SeqNumber)>,
    ) -> Result<(), ServeError> {
        while !places.is_empty() {
            let rest = places.split_off(places.len().min(POSITIONS_PER_REQUEST));
            self.send(&Request::Release { places })?;
            places = rest;
        }
        Ok(())
    }

    /// Cut an incomplete determinant, on which no output depends.
    pub(crate) fn cut_determinants(&mut self, process: u32, length: u64) -> Result<(), ServeError> {
        self.send(&Request::CutDeterminants { process, length })
    }
}

/// The image at the beginning of a service's record, for a standby.
pub(crate) fn stored_image(
    logger: &mut LoggerClient,
    service: &str,
) -> Result<Option<KeptImage>, ServeError> {
    let service = service.to_owned();
    match logger.ask(&Request::StoredImage { service })? {
        Response::StoredImage { image } => Ok(image),
        other => Err(unexpected(&other)),
    }
}

/// At most `max_len` bytes of that image from there on; none if the logger does not have that image any more.
pub(crate) fn read_stored_image(
    logger: &mut LoggerClient,
    service: &str,
    image: u64,
    from: u64,
    max_len: u32,
) -> Result<Vec<u8>, ServeError> {
    let service = service.to_owned();
    let request = Request::ReadStoredImage {
        service,
        image,
        from,
        max_len,
    };
    match logger.ask(&request)? {
        Response::ImageBytes { bytes } => Ok(bytes),
        other => Err(unexpected(&other)),
    }
}
