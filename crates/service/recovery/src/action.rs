//! Actions that the recovery asks its caller to carry out.

use south_model::Digest;
use wire::{FlowId, FlowKey, SeqNumber};

use crate::{event::LostReason, replay::Segment};

/// Where a replay begins and how far its output can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplicePoint {
    /// Sequence number of the fabricated SYN; the replay begins with the next number.
    pub instream: SeqNumber,
    /// Client-space number of the first byte that the new server will send.
    pub outstream: SeqNumber,
    /// The replayed outstream is compared with the record up to here.
    pub verify_end: SeqNumber,
}

/// Something to be done, in the order given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Shut the gate, which may be shut already.
    Gate,
    /// Kill every process of the service; then report [`crate::Recovery::service_empty`].
    KillService,
    /// Remove the kernel's leftover sockets of earlier incarnations.
    RemoveOrphans,
    /// Ask the logger to read everything recorded until now; then report [`crate::Recovery::drained`] with this token.
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
    /// Put the recorded outstream of this connection in place for comparison. Report [`crate::Recovery::beginnings`]
    /// before the splice of the connection.
    Expect {
        /// The connection's number.
        flow: FlowId,
    },
    /// Prepare the flow, then deliver the fabricated SYN.
    Splice {
        /// The connection.
        key: FlowKey,
        /// Number of the connection: by now another connection may have the 4-tuple.
        flow: FlowId,
        /// Begin of the replay.
        point: SplicePoint,
    },
    /// Let the data plane compare repeated output with this digest. The first digest of a connection is not an action:
    /// [`crate::Recovery::compared_first`] returns that digest.
    Compare {
        /// The connection.
        key: FlowKey,
        /// Number of the connection: by now another connection may have the 4-tuple.
        flow: FlowId,
        /// Digest of the output that the client had before the next waiting request.
        digest: Digest,
    },
    /// Make a socket for a server that has replayed the connection. The socket continues at the positions of both
    /// sides.
    Graft {
        /// The connection.
        key: FlowKey,
        /// Number of the connection: by now another connection may have the 4-tuple.
        flow: FlowId,
        /// Next outstream byte that the client lacks, and the number before the next instream byte that the server
        /// lacks.
        point: SplicePoint,
    },
    /// Hand the grafted sockets to the server, and let the server continue.
    HandOver,
    /// Ask the client for its sequence numbers: the flow comes from a host that has died.
    ProbeClient {
        /// The connection.
        key: FlowKey,
        /// Number of the connection: by now another connection may have the 4-tuple.
        flow: FlowId,
    },
    /// Deliver the fabricated SYN again.
    RepeatSyn {
        /// The connection.
        key: FlowKey,
        /// Number of the connection: by now another connection may have the 4-tuple.
        flow: FlowId,
    },
    /// Deliver a piece of the record.
    Replay {
        /// The connection.
        key: FlowKey,
        /// Number of the connection in the record.
        flow: FlowId,
        /// The piece to deliver.
        segment: Segment,
    },
    /// Read how far the record reaches now; then report [`crate::Recovery::more_record`].
    MoreRecord {
        /// The connection's number.
        flow: FlowId,
        /// End of the replayed input.
        from: SeqNumber,
    },
    /// Tell the server the client's own window; the replay is over.
    OpenWindow {
        /// The connection.
        key: FlowKey,
        /// Number of the connection: by now another connection may have the 4-tuple.
        flow: FlowId,
    },
    /// Read the flows; then report [`crate::Recovery::waiting`].
    ListWaiting,
    /// Tell a client that has waited for long that there is no room now.
    ZeroWindow {
        /// The connection.
        key: FlowKey,
        /// Number of the connection: by now another connection may have the 4-tuple.
        flow: FlowId,
    },
    /// Tell a client that waits, or was another host's, that all that was acknowledged has arrived, and
    /// that there is room again.
    UpdateWindow {
        /// The connection.
        key: FlowKey,
        /// Number of the connection: by now another connection may have the 4-tuple.
        flow: FlowId,
    },
    /// The recorded outstream is not needed any more.
    ForgetExpected {
        /// The connection's number.
        flow: FlowId,
    },
    /// Unknown segments are answered with RST again.
    Recovered,
    /// Forget the flow; the client has gone already.
    Forget {
        /// The connection.
        key: FlowKey,
        /// Number of the connection: by now another connection may have the 4-tuple.
        flow: FlowId,
    },
    /// Reset the client's connection and forget the flow.
    ResetClient {
        /// The connection.
        key: FlowKey,
        /// Number of the connection: by now another connection may have the 4-tuple.
        flow: FlowId,
        /// Why.
        reason: LostReason,
    },
}

impl Action {
    /// Without this action the service, or a client whose connection is lost, would wait forever. Other actions need no
    /// repetition here: a timer repeats an action of a splice or a replay, or the connection is given up.
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
