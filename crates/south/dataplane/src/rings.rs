//! Reading the two rings: events for `serve`, the mirrored instream for the logger.

use std::{os::fd::BorrowedFd, time::Duration};

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use south_model::{Event, EventKind};
use types::UnprotectedReason;
use wire::{FlowId, FlowKey, SeqNumber};

use crate::{
    abi::{self, Abi},
    error::{DataplaneError, MapContext},
    pins::PinDirectory,
};

fn decode(bytes: &[u8]) -> Option<Event> {
    let raw = abi::event::from_bytes(bytes)?;
    let (key, flow) = (FlowKey::from(raw.key), FlowId(raw.flow_id));
    let kind = match abi::event_kind(raw.kind) {
        abi::event_kind::EVENT_DEATH => EventKind::Death {
            pid: raw.pid,
            status: raw.status,
        },
        abi::event_kind::EVENT_LISTENING => EventKind::Listening,
        abi::event_kind::EVENT_UNPROTECTED => EventKind::Unprotected {
            key,
            flow,
            reason: u8::try_from(raw.reason)
                .ok()
                .and_then(UnprotectedReason::from_code)?,
        },
        abi::event_kind::EVENT_DIVERGED => EventKind::Diverged {
            key,
            flow,
            at: SeqNumber(raw.seq),
        },
        abi::event_kind::EVENT_LATE => EventKind::Late { key, flow },
        abi::event_kind::EVENT_REPROTECTED => EventKind::Reprotected {
            key,
            flow,
            instream: SeqNumber(raw.seq),
            outstream: SeqNumber(raw.outstream),
        },
        _ => return None,
    };
    Some(Event {
        at: Duration::from_nanos(raw.timestamp_ns),
        incarnation: raw.incarnation,
        kind,
    })
}

/// A ring whose records go to a closure, in order.
pub struct Ring<'cb>(RingBuffer<'cb>);

impl<'cb> Ring<'cb> {
    /// Read the ring behind `map`.
    fn new(map: &MapHandle, mut each: impl FnMut(&[u8]) + 'cb) -> Result<Self, DataplaneError> {
        let mut builder = RingBufferBuilder::new();
        builder
            .add(map, move |record| {
                each(record);
                0
            })
            .doing("map a ring")?;
        Ok(Self(builder.build().doing("map a ring")?))
    }

    /// The events of a service.
    ///
    /// # Errors
    /// The ring cannot be mapped.
    pub fn events(
        map: &MapHandle,
        mut each: impl FnMut(Event) + 'cb,
    ) -> Result<Self, DataplaneError> {
        Self::new(map, move |record| match decode(record) {
            Some(event) => each(event),
            None => tracing::error!(len = record.len(), "event of an unknown kind"),
        })
    }

    /// The mirror frames of a service, from the pins. The slice is one frame (`protocol::mirror`),
    /// perhaps followed by unused bytes.
    ///
    /// # Errors
    /// There is no such service, or the ring cannot be mapped.
    pub fn mirror(
        pins: &PinDirectory,
        each: impl FnMut(&[u8]) + 'cb,
    ) -> Result<Self, DataplaneError> {
        let map = MapHandle::from_pinned_path(pins.pin("mirror")).doing("open the mirror ring")?;
        Self::new(&map, each)
    }

    /// Reads all records of the ring.
    ///
    /// # Errors
    /// The kernel returns an error.
    pub fn consume(&self) -> Result<(), DataplaneError> {
        self.0.consume().doing("read a ring")
    }

    /// Reads at most `most` records, and returns the number of records. A writer as fast as the
    /// reader would keep [`Ring::consume`] from ever returning.
    ///
    /// # Errors
    /// The kernel returns an error.
    pub fn consume_at_most(&self, most: usize) -> Result<usize, DataplaneError> {
        let read = self.0.consume_raw_n(most);
        usize::try_from(read)
            .map_err(|_| libbpf_rs::Error::from_raw_os_error(-read))
            .doing("read a ring")
    }

    /// A descriptor that becomes readable when the ring has a record and the writer asks for
    /// attention.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the epoll descriptor belongs to the ring, which `self` keeps.
        unsafe { BorrowedFd::borrow_raw(self.0.epoll_fd()) }
    }
}
