//! One connection, as the data plane knows it: `struct flow` of `intf/flow.h`.

use types::UnprotectedReason;
use wire::{Flags, FlowId, SeqNumber};

use crate::digest::{Comparison, DigestHalf};

/// Whether and how a flow is translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The server socket is the socket that the client opened.
    #[default]
    Observed,
    /// A fabricated SYN is out; the SYN-ACK of the new server is awaited.
    Splicing,
    /// Bound to a later server's socket: everything is translated.
    Spliced,
    /// A replay differed from the outstream that the client has: no segment leaves.
    Diverged,
}

/// State of the client's side, from segments of the client. Changed at ingress only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientHalf {
    /// The client's initial sequence number.
    pub isn: SeqNumber,
    /// End of the highest segment seen (its SND.NXT).
    pub nxt: SeqNumber,
    /// Outstream that the client has acknowledged; client space.
    pub ack: SeqNumber,
    /// The client's newest TSval; 0 if the server has opened the connection and the client has not
    /// sent a TSval since.
    pub tsval: u32,
    /// The client's newest window field, not scaled.
    pub window: u16,
    /// Window scale of the client.
    pub window_scale: u8,
    /// The client sent a RST while no server was there.
    pub reset: bool,
    /// `server.nxt` when the client's newest byte came: the response to that byte begins there.
    pub response_start: SeqNumber,
}

/// State of the server's side, as sent to the client. Changed at egress only; client space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerHalf {
    /// The initial sequence number that the client knows.
    pub isn: SeqNumber,
    /// Sequence numbers sent after the ISN so far: `nxt` without wrapping.
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
    /// The SYN-ACK was seen.
    pub synack_seen: bool,
}

/// The binding to a later server's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpliceHalf {
    /// Sequence number of the fabricated SYN: the replay begins at the next number.
    pub instream: SeqNumber,
    /// Client-space number of the first byte that the new server will send.
    pub outstream: SeqNumber,
    /// Client space = server space + `delta_seq`, modulo 2^32.
    pub delta_seq: u32,
    /// TSval for the client = the server's TSval + `ts_delta`, modulo 2^32.
    pub ts_delta: u32,
    /// TSval of the SYN-ACK, server space: no older value may be echoed.
    pub first_tsval: u32,
    /// The new server's ISN.
    pub isn: SeqNumber,
    /// End of the new server's output; server space.
    pub nxt: SeqNumber,
    /// Newest acknowledgement that the new server has read; server space.
    pub una: SeqNumber,
    /// Instream acknowledged by the new server.
    pub ack: SeqNumber,
    /// Right edge of the new server's receive window.
    pub rcv_wnd_edge: SeqNumber,
    /// The new server's window scale.
    pub window_scale: u8,
    /// An acknowledgement is withheld from the server (`zero_window`).
    pub ack_withheld: bool,
}

/// Comparison of a replayed outstream with the record; client space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerifyHalf {
    /// `server.sent` when this turn began.
    pub head_sent: u64,
    /// Where the record of this turn's output goes on.
    pub head_next: SeqNumber,
    /// Bytes of the head still to be recorded.
    pub head_left: u32,
    /// End of the last bytes that were to be recorded.
    pub heads_to: SeqNumber,
    /// How far the client had sent when this response began.
    pub request_end: SeqNumber,
    /// Compare up to here.
    pub end: SeqNumber,
    /// Bytes compared and equal.
    pub compared: u32,
    /// Pieces with a tolerated difference.
    pub tolerated: u32,
    /// Bytes below `end` for which there was no record.
    pub unverified: u32,
    /// Of the bytes compared, the bytes behind the end of a digest.
    pub behind: u32,
    /// First byte that differed, or the FIN that came too early.
    pub diverged_at: SeqNumber,
    /// The divergence was a FIN.
    pub ended_early: bool,
    /// A digest shows the divergence, which is somewhere before `diverged_at`.
    pub by_digest: bool,
    /// The output since the client's newest byte. With a log link only.
    pub response: Response,
}

/// A server's output since the client's newest byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Response {
    /// No output, or an interim response of HTTP/1.x, or the beginning of such a response: the
    /// request goes on.
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
    /// The number after the last number of the range.
    pub end: SeqNumber,
}

/// Whether a flow was made anew from the record of a host that died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Restored {
    /// This host knows the whole outstream of the client.
    #[default]
    Not,
    /// Two facts are unknown: how far the client has received, and whether the record is whole.
    Unconfirmed,
    /// As [`Restored::Unconfirmed`], but the data that the client has behind a gap is known.
    GapKnown,
    /// The client has shown that the record is whole, but not which data the client has behind a
    /// gap. A client without selective acknowledgements never will.
    GapUnknown,
    /// The client has shown both. Segments that were on the way then come later.
    Confirmed,
}

/// With a log link: the parts of the instream that the logger and the server's TCP have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogHalf {
    /// Of the logger's newest acknowledgement.
    pub counter: u64,
    /// The lowest number that the logger is not known to have: FT-TCP's `stable_seq`.
    pub stable: SeqNumber,
    /// Acknowledgement of the server's TCP; after a splice, of the new server's.
    pub ack: SeqNumber,
    /// Right edge of the server's receive window.
    pub rcv_wnd_edge: SeqNumber,
    /// TSecr for segments to the client: TS.Recent (RFC 7323 4.3) of a receiver that has all input
    /// acknowledged to the client.
    pub tsecr: u32,
    /// The interface by which segments to the client leave.
    pub ifindex: u32,
    /// The client's acknowledgement in the newest copy.
    pub copied_ack: SeqNumber,
    /// End of the newest mirrored segment of the instream.
    pub copied: SeqNumber,
    /// When that left (`CLOCK_MONOTONIC`, ns); 0: there was none.
    pub copied_ns: u64,
    /// When a pure ACK of the server's TCP last acknowledged bytes that the logger lacked (`CLOCK_MONOTONIC`, ns); 0:
    /// never.
    pub early_ack_ns: u64,
    /// The connection has a read cursor ([`crate::SouthSide::advance_read_cursor`]).
    pub has_read_cursor: bool,
    /// The server's newest payload acknowledges all input.
    pub all_acked: bool,
    /// Ranges of the logger beyond `stable`: at most 3.
    pub ranges: Vec<Range>,
    /// Ranges of the server's TCP beyond `ack`: at most 4.
    pub blocks: Vec<Range>,
    /// Pure ACKs that wait for the logger: at most 8, ascending.
    pub deferred: Vec<SeqNumber>,
    /// TTL or hop limit of the server's newest segment.
    pub ttl: u8,
    /// ECE flag of the server's newest ACK.
    pub ece: bool,
    /// A SACK block was kept from the client since the last ACK of the logger.
    pub withheld: bool,
    /// There is no record any more, and no connection to recover.
    pub ended: bool,
    /// State of a flow that was restored from a record.
    pub restored: Restored,
    /// Of a restored flow: the server replays determinants.
    pub stateful: bool,
    /// The client has sent beyond `stable`, and has not retransmitted from there yet.
    pub snd_beyond_stable: bool,
    /// The highest `ack` of all earlier servers: bytes before may have been answered.
    pub former_ack: SeqNumber,
    /// Of a restored flow: end of the client's data from the dead host, also behind a gap.
    pub client_received: SeqNumber,
    /// Of a flow with recorded response heads: the dead host may have answered input from there on,
    /// without a record of the response.
    pub doubt: Option<SeqNumber>,
    /// The output that the client has from there on is not recorded. As far as the programs can
    /// tell, output of a later server there contradicts the client's data. (The last number may be
    /// the end of the dead host's outstream.)
    pub unrecorded_from: Option<SeqNumber>,
    /// Right edge of the client's window then: the dead host may have sent up to here.
    pub client_wnd_edge: SeqNumber,
    /// The kernel missed the existing socket once.
    pub lookup_missed: bool,
}

/// One connection. Also the snapshot that user space reads from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Number of the connection, in the order of the handshakes; 0 while the handshake is under
    /// way.
    pub id: FlowId,
    /// Since when the server's socket is gone (`CLOCK_MONOTONIC`, ns); 0: the socket exists.
    pub closed_ns: u64,
    /// When a server last got the connection: the SYN, or a splice to a later server
    /// (`CLOCK_MONOTONIC`, ns).
    pub given_ns: u64,
    /// The life of the server that owns the socket.
    pub incarnation: u32,
    /// The interface on which the client's packets arrive.
    pub ifindex: u32,
    /// Whether and how the connection is translated.
    pub mode: Mode,
    /// Reason why the connection has no complete record; `None`: the record is complete.
    pub unprotected: Option<UnprotectedReason>,
    /// A living server closed the connection: the kernel finishes, and no gate stops the kernel.
    pub server_closing: bool,
    /// A later life of the server has half-closed, and may read on.
    pub half_closed: bool,
    /// Client or server closed the connection with a RST, without the server's FIN.
    pub was_reset: bool,
    /// The client must not get a segment of which the client has a part: an MPTCP client that fell
    /// back to plain TCP never reads on behind such a segment.
    pub whole_segments: bool,
    /// Flags of the client's SYN (byte 13 of the header). With ACK, the server has opened the
    /// connection.
    pub syn_flags: u8,
    /// Window of the client's SYN.
    pub syn_window: u16,
    /// State of the client's side.
    pub client: ClientHalf,
    /// State of the server's side.
    pub server: ServerHalf,
    /// The binding to a later server.
    pub splice: SpliceHalf,
    /// Comparison of the replay.
    pub verify: VerifyHalf,
    /// The same where there is no record.
    pub digest: DigestHalf,
    /// The record at the other end of a log link.
    pub log: LogHalf,
    /// Options of the client's SYN: at most 40 bytes.
    pub syn_options: Vec<u8>,
}

impl Flow {
    /// The client has not shown yet how far the client has received, or the data behind a gap, and
    /// can show both.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        match self.log.restored {
            Restored::Unconfirmed | Restored::GapKnown => true,
            Restored::GapUnknown => self.server.sack,
            Restored::Not | Restored::Confirmed => false,
        }
    }

    /// The server has opened the connection: the "client" of this flow has answered.
    #[must_use]
    pub fn is_opened_by_server(&self) -> bool {
        Flags::from_bits(self.syn_flags).contains(Flags::ACK)
    }

    /// The connection is of another incarnation of the server, waits for a server's socket, and may
    /// be spliced now. The programs have reported the connection once ([`crate::EventKind::Late`]),
    /// or the connection was there when this incarnation began.
    #[must_use]
    pub fn is_late(&self, incarnation: u32) -> bool {
        let is_heard = self.log.restored != Restored::Unconfirmed || self.client.reset;
        self.incarnation != incarnation && self.closed_ns == 0 && !self.server_closing && is_heard
    }

    /// The output of this incarnation has contradicted the record: no segment reaches the client
    /// any more. The programs have reported the divergence once ([`crate::EventKind::Diverged`]).
    #[must_use]
    pub fn has_diverged(&self, incarnation: u32) -> bool {
        self.incarnation == incarnation && self.mode == Mode::Diverged
    }

    /// A later server has not repeated the whole outstream of the client. A grafted socket has no
    /// output to repeat.
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

    /// The next byte that the present server's TCP expects, or an earlier byte.
    #[must_use]
    pub fn acknowledged_by_server(&self) -> SeqNumber {
        // In a replay, the client already has a higher acknowledgement than the server's TCP gives.
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
