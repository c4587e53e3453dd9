//! One connection, as the data plane knows it: `struct flow` of `intf/flow.h`.

use types::UnprotectedReason;
use wire::{Flags, FlowId, SeqNumber};

use crate::digest::{Comparison, DigestHalf};

/// Whether and how a flow is translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Its server socket is the one that the client opened.
    #[default]
    Observed,
    /// A fabricated SYN is out; the SYN-ACK of the new server is awaited.
    Splicing,
    /// Bound to a later server's socket: everything is translated.
    Spliced,
    /// A replay differed from what the client was sent: nothing leaves.
    Diverged,
}

/// What the client told us. Changed at ingress only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientHalf {
    /// Its initial sequence number.
    pub isn: SeqNumber,
    /// End of the highest segment seen (its SND.NXT).
    pub nxt: SeqNumber,
    /// Outstream that it has acknowledged; client space.
    pub ack: SeqNumber,
    /// Its newest TSval; 0 of one that the server has opened, and that has not spoken since.
    pub tsval: u32,
    /// Its newest window field, not scaled.
    pub window: u16,
    /// How far its window fields are to be shifted.
    pub window_scale: u8,
    /// It sent a RST while nobody served it.
    pub reset: bool,
    /// `server.nxt` when its newest byte came: the response to that byte begins there.
    pub response_start: SeqNumber,
}

/// What the client was told. Changed at egress only; client space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerHalf {
    /// The initial sequence number that the client knows.
    pub isn: SeqNumber,
    /// Sequence numbers after the ISN's that were sent so far: `nxt` without its bounds.
    pub sent: u64,
    /// End of the outstream sent so far.
    pub nxt: SeqNumber,
    /// Instream acknowledged so far.
    pub ack: SeqNumber,
    /// Right edge of the window offered.
    pub rcv_wnd_edge: SeqNumber,
    /// Newest TSval.
    pub tsval: u32,
    /// How far the window fields that the client reads are to be shifted.
    pub window_scale: u8,
    /// Timestamps were agreed in the handshake.
    pub timestamps: bool,
    /// SACK was.
    pub sack: bool,
    /// Its SYN-ACK was seen.
    pub synack_seen: bool,
}

/// The binding to a later server's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpliceHalf {
    /// Sequence number of the fabricated SYN: the replay begins one after it.
    pub instream: SeqNumber,
    /// Client-space number of the first byte that the new server will send.
    pub outstream: SeqNumber,
    /// Client space = server space + `delta_seq`, modulo 2^32.
    pub delta_seq: u32,
    /// TSval for the client = the server's TSval + `ts_delta`, modulo 2^32.
    pub ts_delta: u32,
    /// TSval of the SYN-ACK, server space: nothing older may be echoed.
    pub first_tsval: u32,
    /// The new server's ISN.
    pub isn: SeqNumber,
    /// End of what the new server sent; server space.
    pub nxt: SeqNumber,
    /// Newest acknowledgement that the new server has read; server space.
    pub una: SeqNumber,
    /// Instream acknowledged by the new server.
    pub ack: SeqNumber,
    /// Right edge of its window.
    pub rcv_wnd_edge: SeqNumber,
    /// Its window scale.
    pub window_scale: u8,
    /// An acknowledgement is withheld from the server (`zero_window`).
    pub ack_withheld: bool,
}

/// Comparison of a replayed outstream with its record; client space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerifyHalf {
    /// `server.sent` when this turn began.
    pub head_sent: u64,
    /// Where the record of this turn's output goes on.
    pub head_next: SeqNumber,
    /// Bytes of it still to be recorded.
    pub head_left: u32,
    /// Where what was to be recorded last ended.
    pub heads_to: SeqNumber,
    /// How far the client had sent when this response began.
    pub request_end: SeqNumber,
    /// Compare up to here.
    pub end: SeqNumber,
    /// Bytes compared and equal.
    pub compared: u32,
    /// Pieces that differed where they may.
    pub tolerated: u32,
    /// Bytes below `end` for which there was no record.
    pub unverified: u32,
    /// Of the bytes compared, what lies behind what a digest is compared of.
    pub behind: u32,
    /// First byte that differed, or the FIN that came too early.
    pub diverged_at: SeqNumber,
    /// It was a FIN.
    pub ended_early: bool,
    /// It was something before `diverged_at`.
    pub by_digest: bool,
    /// The output since the client's newest byte. With a log link only.
    pub response: Response,
}

/// A server's output since its client's newest byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Response {
    /// No output, or an interim response of HTTP/1.x, or what may become one: the request goes on.
    #[default]
    None,
    /// Other output. (Also before the first byte of a client: there is no request to respond to.)
    Begun,
    /// A change of the protocol: all that follows belongs together.
    OtherProtocol,
}

/// Sequence numbers from `start` up to before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Range {
    /// The first.
    pub start: SeqNumber,
    /// The one after the last.
    pub end: SeqNumber,
}

/// Whether a flow was made anew from the record of a host that died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Restored {
    /// This host knows all that its client was sent.
    #[default]
    Not,
    /// How far its client has received, and that its record is whole, is not known yet.
    Unconfirmed,
    /// The same; but what its client has behind a gap is known.
    GapKnown,
    /// Its client has shown that the record is whole, and not what it has behind a gap. Without selective
    /// acknowledgements it never will.
    GapUnknown,
    /// The client has shown both. (Segments that were on their way then come later.)
    Confirmed,
}

/// With a log link: what the logger has of the instream, and what the server's TCP has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogHalf {
    /// Of the logger's newest acknowledgement.
    pub counter: u64,
    /// The lowest number that the logger is not known to have: FT-TCP's `stable_seq`.
    pub stable: SeqNumber,
    /// What the server's TCP acknowledged; after a splice, the new server's.
    pub ack: SeqNumber,
    /// Right edge of its window.
    pub rcv_wnd_edge: SeqNumber,
    /// What the client's timestamps are echoed with: TS.Recent (RFC 7323 4.3) of one who has received
    /// what the client was told.
    pub tsecr: u32,
    /// The interface by which its segments leave.
    pub ifindex: u32,
    /// The client's acknowledgement in the newest copy.
    pub copied_ack: SeqNumber,
    /// End of the newest copy of its instream.
    pub copied: SeqNumber,
    /// When that left (`CLOCK_MONOTONIC`, ns); 0: there was none.
    pub copied_ns: u64,
    /// When a pure ACK of the server's TCP last acknowledged bytes that the logger lacked (`CLOCK_MONOTONIC`, ns); 0:
    /// never.
    pub early_ack_ns: u64,
    /// It has a read cursor ([`crate::SouthSide::advance_read_cursor`]).
    pub has_read_cursor: bool,
    /// The server's newest payload acknowledges all that its client has sent.
    pub all_acked: bool,
    /// What the logger has beyond `stable`: at most 3.
    pub ranges: Vec<Range>,
    /// What the server has beyond `ack`: at most 4.
    pub blocks: Vec<Range>,
    /// Pure ACKs that wait for the logger: at most 8, ascending.
    pub deferred: Vec<SeqNumber>,
    /// TTL or hop limit of the server's newest segment.
    pub ttl: u8,
    /// Its ECE flag.
    pub ece: bool,
    /// A SACK block was kept from the client since it was last told.
    pub withheld: bool,
    /// There is no record any more, and nothing to be recovered.
    pub ended: bool,
    /// It was made anew from its record.
    pub restored: Restored,
    /// Of a restored flow: its server replays a record of its own.
    pub stateful: bool,
    /// Its client has sent beyond `stable`, and has not retransmitted from there yet.
    pub snd_beyond_stable: bool,
    /// The highest `ack` of its earlier servers: bytes before it may have been answered.
    pub former_ack: SeqNumber,
    /// Of a restored flow: end of what the client has of its dead host, also behind a gap.
    pub client_received: SeqNumber,
    /// Of one of which heads of answers are recorded: from there on what the client says may have been answered by the
    /// dead host, without a record of that.
    pub doubt: Option<SeqNumber>,
    /// Nobody has recorded what the client has received from there on: other output of a later server there contradicts
    /// that, as far as can be told. (The last number may be the end of the dead host's outstream.)
    pub unrecorded_from: Option<SeqNumber>,
    /// Right edge of the client's window then: the dead host may have sent up to here.
    pub client_wnd_edge: SeqNumber,
    /// Its socket was not found once, though it is there.
    pub lookup_missed: bool,
}

/// One connection. Also the snapshot in which the rest of the system reads it from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Its number, in the order of the handshakes; 0 while the handshake is under way.
    pub id: FlowId,
    /// Since when the server's socket is gone (`CLOCK_MONOTONIC`, ns); 0: it lives.
    pub closed_ns: u64,
    /// When it was last given to a server: its SYN, or to a later one, to be spliced (`CLOCK_MONOTONIC`, ns).
    pub given_ns: u64,
    /// The life of the server that owns the socket.
    pub incarnation: u32,
    /// The interface on which the client's packets arrive.
    pub ifindex: u32,
    /// Whether and how it is translated.
    pub mode: Mode,
    /// Why it has no complete record, if so.
    pub unprotected: Option<UnprotectedReason>,
    /// A living server closed it: the kernel finishes, and no gate stops it.
    pub server_closing: bool,
    /// A later life of the server has half-closed, and may read on.
    pub half_closed: bool,
    /// It was closed by a RST of one of the two, without the server's FIN.
    pub was_reset: bool,
    /// It may not be sent what it has in part: an MPTCP client that fell back to plain TCP never
    /// reads on behind such a segment.
    pub whole_segments: bool,
    /// Flags of the client's SYN (byte 13 of the header). With ACK it is the server that has opened the connection.
    pub syn_flags: u8,
    /// Window of the client's SYN.
    pub syn_window: u16,
    /// What the client told us.
    pub client: ClientHalf,
    /// What the client was told.
    pub server: ServerHalf,
    /// The binding to a later server.
    pub splice: SpliceHalf,
    /// The comparison of its replay.
    pub verify: VerifyHalf,
    /// The same where there is no record.
    pub digest: DigestHalf,
    /// Its record at the other end of a log link.
    pub log: LogHalf,
    /// Options of the client's SYN: at most 40 bytes.
    pub syn_options: Vec<u8>,
}

impl Flow {
    /// Its client is still to say where it stands, or what it has behind a hole, and can.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        match self.log.restored {
            Restored::Unconfirmed | Restored::GapKnown => true,
            Restored::GapUnknown => self.server.sack,
            Restored::Not | Restored::Confirmed => false,
        }
    }

    /// It is the server that has opened the connection: what is called its client here has answered.
    #[must_use]
    pub fn is_opened_by_server(&self) -> bool {
        Flags::from_bits(self.syn_flags).contains(Flags::ACK)
    }

    /// It is of another life of the server than this one, waits for a server's socket, and may be given one now. The
    /// programs have said so once ([`crate::EventKind::Late`]), or it was there when that life began.
    #[must_use]
    pub fn is_late(&self, incarnation: u32) -> bool {
        let is_heard = self.log.restored != Restored::Unconfirmed || self.client.reset;
        self.incarnation != incarnation && self.closed_ns == 0 && !self.server_closing && is_heard
    }

    /// Its server of this life has contradicted the record, and nothing reaches its client any more. The programs have
    /// said so once ([`crate::EventKind::Diverged`]).
    #[must_use]
    pub fn has_diverged(&self, incarnation: u32) -> bool {
        self.incarnation == incarnation && self.mode == Mode::Diverged
    }

    /// A later server has not said again all that the client was sent. (A socket that was made at the client's numbers
    /// has nothing to say again.)
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.mode == Mode::Spliced
            && self.splice.delta_seq != 0
            && self.server.nxt.after(self.spliced_snd_nxt())
    }

    /// A FIN that ends before this number repeats the FIN of an earlier life: the digest of all bytes ends before the
    /// FIN.
    pub(crate) fn repeats_fin(&self, end: SeqNumber) -> bool {
        let digest = &self.digest;
        let is_compared = digest.taken && digest.comparison == Comparison::Done;
        is_compared && digest.sent.next == end - 1 && self.server.nxt == end
    }

    /// The next byte that the present server's TCP waits for, or one before it.
    #[must_use]
    pub fn acknowledged_by_server(&self) -> SeqNumber {
        // In a replay the client was told more before than its server has by now.
        if self.mode == Mode::Spliced && self.server.ack.after(self.splice.ack) {
            self.splice.ack
        } else {
            self.server.ack
        }
    }
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            id: FlowId(0),
            closed_ns: 0,
            given_ns: 0,
            incarnation: 0,
            ifindex: 0,
            mode: Mode::default(),
            unprotected: None,
            server_closing: false,
            half_closed: false,
            was_reset: false,
            whole_segments: false,
            syn_flags: 0,
            syn_window: 0,
            client: ClientHalf::default(),
            server: ServerHalf::default(),
            splice: SpliceHalf::default(),
            verify: VerifyHalf::default(),
            digest: DigestHalf::default(),
            log: LogHalf::default(),
            syn_options: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_of_another_life_is_late_if_it_is_open_and_its_client_was_heard() {
        let late = Flow {
            incarnation: 3,
            ..Flow::default()
        };
        assert!(late.is_late(4) && late.is_late(2) && !late.is_late(3));
        let changes: [fn(&mut Flow); 3] = [
            |flow| flow.closed_ns = 1,
            |flow| flow.server_closing = true,
            |flow| flow.log.restored = Restored::Unconfirmed,
        ];
        for change in changes {
            let mut other = late.clone();
            change(&mut other);
            assert!(!other.is_late(4), "{other:?}");
        }
        let mut gone = late;
        gone.log.restored = Restored::Unconfirmed;
        gone.client.reset = true;
        assert!(gone.is_late(4));
        gone.log.restored = Restored::Confirmed;
        assert!(gone.is_late(4));
    }
}
