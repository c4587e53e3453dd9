//! What the decisions ask of the outside.

use south_model::Digest;
use wire::{FlowId, FlowKey, SeqNumber};

use crate::{event::LostReason, replay::Segment};

/// Where a replay begins and how far its output can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplicePoint {
    /// Sequence number of the fabricated SYN; the replay begins one after it.
    pub instream: SeqNumber,
    /// Client-space number of the first byte that the new server will send.
    pub outstream: SeqNumber,
    /// The replayed outstream is compared with the record up to here.
    pub verify_end: SeqNumber,
}

/// Something to be done, in the order given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Shut the gate (it may be shut already).
    Gate,
    /// Kill every process of the service; then report [`crate::Recovery::service_empty`].
    KillService,
    /// Remove the kernel's leftover sockets of earlier incarnations.
    RemoveOrphans,
    /// Ask the logger to say when it has read everything recorded so far; then report
    /// [`crate::Recovery::drained`] with this token.
    Drain {
        /// The token.
        token: u64,
    },
    /// Let a new incarnation of the service begin in the data plane.
    NewIncarnation,
    /// Start the server (after its back-off); then report [`crate::Recovery::started`].
    StartServer,
    /// Read flows and records; then report [`crate::Recovery::connections`].
    ListConnections,
    /// Put the recorded outstream of this connection in place for comparison; and report
    /// [`crate::Recovery::beginnings`], before its splice.
    Expect {
        /// The connection's number.
        flow: FlowId,
    },
    /// Prepare the flow, then deliver the fabricated SYN.
    Splice {
        /// The connection.
        key: FlowKey,
        /// Its number: another connection may have its ends by now.
        flow: FlowId,
        /// Where its replay begins.
        point: SplicePoint,
    },
    /// Let the data plane compare what the server says again with this digest. The first is not asked for like this,
    /// but is [`crate::Recovery::compared_first`].
    Compare {
        /// The connection.
        key: FlowKey,
        /// Its number: another connection may have its ends by now.
        flow: FlowId,
        /// Of what the client had heard before the next request that waits.
        digest: Digest,
    },
    /// Make a socket that goes on with the connection where both sides are, for the server that has replayed it.
    Graft {
        /// The connection.
        key: FlowKey,
        /// Its number: another connection may have its ends by now.
        flow: FlowId,
        /// The next byte of the server's stream that the client lacks, and (plus one) the next of the
        /// client's that the server does.
        point: SplicePoint,
    },
    /// Give the server the sockets that were made, and let it go on.
    HandOver,
    /// Ask the client where it stands: a flow of a host that has died.
    ProbeClient {
        /// The connection.
        key: FlowKey,
        /// Its number: another connection may have its ends by now.
        flow: FlowId,
    },
    /// Deliver the fabricated SYN again.
    RepeatSyn {
        /// The connection.
        key: FlowKey,
        /// Its number: another connection may have its ends by now.
        flow: FlowId,
    },
    /// Deliver a piece of the record.
    Replay {
        /// The connection.
        key: FlowKey,
        /// Its number in the record.
        flow: FlowId,
        /// Which piece.
        segment: Segment,
    },
    /// Read how far the record reaches now; then report [`crate::Recovery::more_record`].
    MoreRecord {
        /// The connection's number.
        flow: FlowId,
        /// What was replayed so far ends here.
        from: SeqNumber,
    },
    /// Tell the server the client's own window; the replay is over.
    OpenWindow {
        /// The connection.
        key: FlowKey,
        /// Its number: another connection may have its ends by now.
        flow: FlowId,
    },
    /// Read the flows; then report [`crate::Recovery::waiting`].
    ListWaiting,
    /// Tell a client that has waited for long that there is no room now.
    ZeroWindow {
        /// The connection.
        key: FlowKey,
        /// Its number: another connection may have its ends by now.
        flow: FlowId,
    },
    /// Tell a client that waits, or was another host's, that all that was acknowledged has arrived, and
    /// that there is room again.
    UpdateWindow {
        /// The connection.
        key: FlowKey,
        /// Its number: another connection may have its ends by now.
        flow: FlowId,
    },
    /// The recorded outstream is not needed any more.
    ForgetExpected {
        /// The connection's number.
        flow: FlowId,
    },
    /// Strangers get their ordinary RST again.
    Recovered,
    /// Forget the flow; the client has gone already.
    Forget {
        /// The connection.
        key: FlowKey,
        /// Its number: another connection may have its ends by now.
        flow: FlowId,
    },
    /// Reset the client's connection and forget the flow.
    ResetClient {
        /// The connection.
        key: FlowKey,
        /// Its number: another connection may have its ends by now.
        flow: FlowId,
        /// Why.
        reason: LostReason,
    },
}

impl Action {
    /// Nothing else would ever do this, and somebody waits for it: the service, or a client that is lost. What is done
    /// on a connection's way back is done again when a timer says so, or the connection is given up.
    #[must_use]
    pub const fn is_indispensable(&self) -> bool {
        matches!(
            self,
            Self::Gate
                | Self::KillService
                | Self::RemoveOrphans
                | Self::Drain { .. }
                | Self::NewIncarnation
                | Self::StartServer
                | Self::ListConnections
                | Self::HandOver
                | Self::Recovered
                | Self::Forget { .. }
                | Self::ResetClient { .. }
        )
    }
}
