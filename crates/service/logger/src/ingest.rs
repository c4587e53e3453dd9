//! From mirror frames to the record.

use std::collections::VecDeque;

use journal::{
    InstreamSegment, Journal, Limits, Mark, OutstreamSegment, Refused, ReplayMode, ServerProgress,
};
use protocol::{
    Digest, UnprotectedReason,
    control::Response,
    mirror::{FrameError, FrameKind, MirrorFrame},
};
use wire::{Flags, FlowId, IpPacket, Segment, SeqNumber, WireError, checksum};

/// A message for `serve` without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Everything before the barrier with this token is in the record.
    Drained(u64),
    /// The connection has no complete record any more.
    Unprotected(FlowId, UnprotectedReason),
    /// Segments of an unknown connection arrive; this is the low half of the connection's number.
    Unknown(u32),
}

/// The result for the record of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The record is as before.
    Nothing,
    /// The record has grown.
    Recorded,
    /// The record was given up, because a limit was reached.
    GivenUp,
}

impl From<Notice> for Response {
    fn from(notice: Notice) -> Self {
        match notice {
            Notice::Drained(token) => Self::Drained { token },
            Notice::Unprotected(flow, reason) => Self::Unprotected { flow, reason },
            Notice::Unknown(flow_low) => Self::Unknown { flow_low },
        }
    }
}

/// Takes frames in the order of the ring.
#[derive(Debug)]
pub struct Ingest {
    /// The record.
    pub journal: Journal,
    /// Messages to the service, oldest first.
    pub notices: VecDeque<Notice>,
    /// Frames taken.
    pub frames: u64,
    /// Frames that could not be decoded, or without a whole and undamaged TCP segment.
    pub malformed: u64,
    /// Frames of connections that are unknown or have ended.
    pub unknown: u64,
    /// Why the last unreadable frame could not be decoded: the frame may have been a barrier.
    pub unreadable: Option<FrameError>,
}

impl Ingest {
    /// An empty record.
    #[must_use]
    pub fn new(limits: Limits, mode: ReplayMode) -> Self {
        Self::with(Journal::new(limits, mode))
    }

    /// An empty record at the end of a log link: output of the server arrives later than the client's input.
    #[must_use]
    pub fn of_a_link(limits: Limits, mode: ReplayMode) -> Self {
        Self::with(Journal::with_late_heads(limits, mode))
    }

    const fn with(journal: Journal) -> Self {
        Self {
            journal,
            notices: VecDeque::new(),
            frames: 0,
            malformed: 0,
            unknown: 0,
            unreadable: None,
        }
    }

    /// Takes a frame from the ring. A damaged packet loses no recorded bytes: the bytes of the packet stay missing
    /// in the record, visible as a hole. A damaged frame is noted in [`Self::unreadable`].
    pub fn take(&mut self, bytes: &[u8]) {
        self.frames += 1;
        let frame = match MirrorFrame::decode(bytes) {
            Ok(frame) => frame,
            Err(error) => {
                self.malformed += 1;
                self.unreadable = Some(error);
                return;
            }
        };
        match frame.kind {
            FrameKind::Opened {
                client_isn,
                server_isn,
            } => {
                if self
                    .journal
                    .open(frame.flow_id, client_isn, server_isn)
                    .is_err()
                {
                    self.unprotected(frame.flow_id, UnprotectedReason::TooManyConnections);
                }
            }
            FrameKind::Closed(_) => {
                self.journal.close(frame.flow_id);
            }
            FrameKind::Barrier { token } => self.notices.push_back(Notice::Drained(token)),
            FrameKind::Instream => self.instream(&frame),
            FrameKind::Outstream { from, asked } => match head(&frame, from, asked) {
                Some(head) => {
                    self.outstream(frame.flow_id, &head);
                }
                None => self.malformed += 1,
            },
            FrameKind::Digest => match frame.digest() {
                // The ring has a digest only where the client began to send.
                Some(digest) => {
                    self.digest(frame.flow_id, digest, (digest.next, None));
                }
                None => self.malformed += 1,
            },
        }
    }

    fn instream(&mut self, frame: &MirrorFrame<&[u8]>) {
        let Ok(segment) = undamaged(frame) else {
            self.malformed += 1;
            return;
        };
        let arrival = InstreamSegment {
            seq: segment.seq(),
            payload: segment.payload(),
            fin: segment.flags().contains(Flags::FIN),
            client_ack: segment.ack(),
            heard_all: segment.ack() == frame.server_nxt,
            heads_known: false,
            doubted: None,
            server: Some(ServerProgress {
                nxt: frame.server_nxt,
                ack: frame.server_ack,
            }),
        };
        match self.journal.instream(frame.flow_id, &arrival) {
            Ok(_) | Err(Refused::Unprotected(_) | Refused::Implausible) => {}
            Err(Refused::Unknown) => self.unknown += 1,
            Err(Refused::BecameUnprotected(reason)) => {
                self.unprotected(frame.flow_id, reason.into())
            }
        }
    }

    /// A head of a response.
    pub(crate) fn outstream(&mut self, flow: FlowId, head: &OutstreamSegment<'_>) -> Outcome {
        let recorded = self.journal.outstream(flow, head);
        self.changes(flow, recorded)
    }

    /// The digest of the output so far. The client has received the output before `received`; `speaks` is where the
    /// client goes on sending after all of that output, if known.
    pub(crate) fn digest(
        &mut self,
        flow: FlowId,
        digest: Digest,
        (received, speaks): (SeqNumber, Option<SeqNumber>),
    ) -> Outcome {
        let recorded = self.journal.mark(flow, mark_of(digest), (received, speaks));
        self.changes(flow, recorded)
    }

    /// Counts a refusal, and adds a notice if `serve` must know.
    fn changes(&mut self, flow: FlowId, recorded: Result<bool, Refused>) -> Outcome {
        match recorded {
            Ok(true) => return Outcome::Recorded,
            Ok(false) | Err(Refused::Unprotected(_) | Refused::Implausible) => {}
            Err(Refused::Unknown) => self.unknown += 1,
            Err(Refused::BecameUnprotected(reason)) => {
                self.unprotected(flow, reason.into());
                return Outcome::GivenUp;
            }
        }
        Outcome::Nothing
    }

    fn unprotected(&mut self, flow: FlowId, reason: UnprotectedReason) {
        self.notices.push_back(Notice::Unprotected(flow, reason));
    }
}

/// The mark of a digest, for the journal.
pub(crate) const fn mark_of(digest: Digest) -> Mark {
    Mark {
        base: digest.base,
        next: digest.next,
        digest: [digest.folded, digest.sum],
    }
}

/// The digest of a mark in the journal.
#[must_use]
pub const fn digest_of(mark: Mark) -> Digest {
    let [folded, sum] = mark.digest;
    Digest {
        folded,
        sum,
        base: mark.base,
        next: mark.next,
    }
}

fn packet<'a>(frame: &MirrorFrame<&'a [u8]>) -> Result<IpPacket<'a>, WireError> {
    let wire_len = usize::try_from(frame.packet_len).unwrap_or(usize::MAX);
    IpPacket::parse_captured(frame.packet, wire_len)
}

fn parse<'a>(frame: &MirrorFrame<&'a [u8]>) -> Result<Segment<'a>, WireError> {
    Segment::of(&packet(frame)?)
}

/// The part of the outstream that a frame records. Frames arrive in order.
pub(crate) fn head<'a>(
    frame: &MirrorFrame<&'a [u8]>,
    from: SeqNumber,
    asked: SeqNumber,
) -> Option<OutstreamSegment<'a>> {
    let segment = parse(frame).ok()?;
    let earlier = usize::try_from(from.distance_from(segment.seq())?).ok()?;
    Some(OutstreamSegment {
        asked: Some(asked),
        ..OutstreamSegment::in_order(from, segment.payload().get(earlier..)?)
    })
}

/// The segment, if the server's TCP accepts the segment too: TCP drops segments with a wrong checksum, and the
/// record must hold the same bytes as the server's TCP. An unfinished checksum of the kernel holds only the sum of
/// the pseudo-header, which would be wrong on a wire.
fn undamaged<'a>(frame: &MirrorFrame<&'a [u8]>) -> Result<Segment<'a>, WireError> {
    let packet = packet(frame)?;
    let segment = Segment::of(&packet)?;
    let (source, destination) = (packet.source(), packet.destination());
    let len = u32::try_from(packet.payload_len()).unwrap_or(u32::MAX);
    let pseudo = checksum::pseudo_header(source, destination, packet.protocol(), len);
    let unfinished = frame.unfinished && segment.checksum() == checksum::fold(pseudo);
    if unfinished
        || checksum::tcp_checksum(source, destination, packet.payload()) == segment.checksum()
    {
        Ok(segment)
    } else {
        Err(WireError::Truncated {
            needed: packet.total_len(),
            available: frame.packet.len(),
        })
    }
}

#[cfg(test)]
mod tests;
