//! The two rings of a member: events, and copies of segments.

use std::{os::fd::BorrowedFd, time::Duration};

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use objects::{flow::Unprotected, plane::CopyKind};
use wire::{FlowKey, SeqNumber};

use super::abi;
use crate::{
    abi::Abi,
    error::{DataplaneError, MapContext},
};

/// Something that the programs saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectEvent {
    /// When, `CLOCK_MONOTONIC`.
    pub at: Duration,
    /// Life of the server.
    pub incarnation: u32,
    /// The event.
    pub kind: ObjectEventKind,
}

/// Kinds of [`ObjectEvent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectEventKind {
    /// The server crashed; the gate is shut.
    Death {
        /// The process.
        pid: u32,
        /// As wait(2) gives the status.
        status: u32,
    },
    /// The server listens on a port of the pool.
    Listening,
    /// A connection can no longer be revived.
    Unprotected {
        /// The connection.
        key: FlowKey,
        /// Why.
        reason: Unprotected,
    },
    /// A client has sent a request again whose response is under way.
    Repeated {
        /// The connection.
        key: FlowKey,
        /// Number of the repeated segment.
        seq: SeqNumber,
    },
    /// The response has left, and bytes of the client may wait for their turn.
    Answered {
        /// The connection.
        key: FlowKey,
    },
    /// The turn is over, and bytes of the client may wait for their turn.
    TurnOver {
        /// The connection.
        key: FlowKey,
    },
    /// The response ends before the client's position: the client has a part of another response.
    Diverged {
        /// The connection.
        key: FlowKey,
    },
}

/// A copy of a segment.
#[derive(Debug, Clone, Copy)]
pub struct ObjectCopy<'a> {
    /// When, `CLOCK_MONOTONIC`.
    pub at: Duration,
    /// The connection.
    pub key: FlowKey,
    /// Whose segment.
    pub kind: CopyKind,
    /// Interface on which the segment came or would have left.
    pub interface: u32,
    /// The IP packet, or the beginning of a long packet.
    pub packet: &'a [u8],
    /// Bytes of the whole packet.
    pub packet_len: u32,
}

/// A ring whose records go to a closure, in order.
pub struct ObjectRing<'cb>(RingBuffer<'cb>);

impl<'cb> ObjectRing<'cb> {
    fn new(map: &MapHandle, mut each: impl FnMut(&[u8]) + 'cb) -> Result<Self, DataplaneError> {
        let mut builder = RingBufferBuilder::new();
        let read = move |record: &[u8]| {
            each(record);
            0
        };
        builder.add(map, read).doing("map a ring")?;
        Ok(Self(builder.build().doing("map a ring")?))
    }

    pub(super) fn events(
        map: &MapHandle,
        mut each: impl FnMut(ObjectEvent) + 'cb,
    ) -> Result<Self, DataplaneError> {
        Self::new(map, move |record| match event_of(record) {
            Some(event) => each(event),
            None => tracing::error!(len = record.len(), "event of an unknown kind"),
        })
    }

    pub(super) fn copies(
        map: &MapHandle,
        mut each: impl FnMut(ObjectCopy<'_>) + 'cb,
    ) -> Result<Self, DataplaneError> {
        Self::new(map, move |record| match copy_of(record) {
            Some(copy) => each(copy),
            None => tracing::error!(len = record.len(), "copy of an unknown kind"),
        })
    }

    /// Reads all records of the ring.
    ///
    /// # Errors
    /// The kernel returns an error.
    pub fn consume(&self) -> Result<(), DataplaneError> {
        self.0.consume().doing("read a ring")
    }

    /// A descriptor that becomes readable when the ring has a record.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the epoll descriptor belongs to the ring, which `self` keeps.
        unsafe { BorrowedFd::borrow_raw(self.0.epoll_fd()) }
    }
}

fn event_of(record: &[u8]) -> Option<ObjectEvent> {
    let raw = abi::object_event::from_bytes(record)?;
    let kind = match abi::object_event_kind(raw.kind) {
        abi::object_event_kind::OBJECT_DEATH => ObjectEventKind::Death {
            pid: raw.pid,
            status: raw.status,
        },
        abi::object_event_kind::OBJECT_LISTENING => ObjectEventKind::Listening,
        abi::object_event_kind::OBJECT_UNPROTECTED => ObjectEventKind::Unprotected {
            key: raw.key.into(),
            reason: Unprotected::from_code(u8::try_from(raw.reason).ok()?)?,
        },
        abi::object_event_kind::OBJECT_REPEATED => ObjectEventKind::Repeated {
            key: raw.key.into(),
            seq: SeqNumber(raw.seq),
        },
        abi::object_event_kind::OBJECT_ANSWERED => ObjectEventKind::Answered {
            key: raw.key.into(),
        },
        abi::object_event_kind::OBJECT_TURN_OVER => ObjectEventKind::TurnOver {
            key: raw.key.into(),
        },
        abi::object_event_kind::OBJECT_DIVERGED => ObjectEventKind::Diverged {
            key: raw.key.into(),
        },
        _ => return None,
    };
    Some(ObjectEvent {
        at: Duration::from_nanos(raw.timestamp_ns),
        incarnation: raw.incarnation,
        kind,
    })
}

fn copy_of(record: &[u8]) -> Option<ObjectCopy<'_>> {
    let raw = abi::object_copy::from_bytes(record)?;
    let bytes = record.get(size_of::<abi::object_copy>()..)?;
    Some(ObjectCopy {
        at: Duration::from_nanos(raw.timestamp_ns),
        key: raw.key.into(),
        kind: match abi::object_copy_kind(raw.kind) {
            abi::object_copy_kind::COPY_UNKNOWN => CopyKind::Unknown,
            abi::object_copy_kind::COPY_CLIENT => CopyKind::Client,
            abi::object_copy_kind::COPY_PARKED => CopyKind::Parked,
            abi::object_copy_kind::COPY_REQUEST => CopyKind::Request,
            abi::object_copy_kind::COPY_RESPONSE => CopyKind::Response,
            abi::object_copy_kind::COPY_DEFERRED => CopyKind::Deferred,
            abi::object_copy_kind::COPY_QUEUED => CopyKind::Queued,
            _ => return None,
        },
        interface: raw.ifindex,
        packet: bytes.get(..usize::try_from(raw.copied_len).ok()?)?,
        packet_len: raw.packet_len,
    })
}
