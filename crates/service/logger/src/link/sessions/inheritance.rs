//! A host that begins a new life takes over what an earlier one has left.
//!
//! After a reboot a service comes with the number of a new instance, and its host knows nothing of
//! the connections it had. The records of the instance before become its own: they keep their place in
//! the log, under the new number; the keys of the old life are good for nothing any more.
//!
//! **Who inherits from whom.** The service has the same name, comes from the same address, and has the
//! key with which the one before attached last: behind one address there may be several hosts. A service
//! whose key is replaced while it lives attaches anew, with the new one. If there are several sessions of
//! that kind, it is the one whose service attached last. Nothing may have been
//! heard of it for [`SILENCE`]: a service that speaks is alive, and two must not have one record. And
//! all of it must be in the log, if there is one: what the heir tells clients to be recorded must not
//! be lost with this process.

use std::{net::IpAddr, time::Duration};

use protocol::control::{Attach, ErrorCode};

use super::{Peer, Sessions};
use crate::{durable::entry::Entry, link::outbox::Outbox};

/// Nothing must have been heard of a service for so long before another instance inherits its
/// records. A service that is alive probes its link more often.
pub const SILENCE: Duration = Duration::from_secs(1);

/// Why the records cannot be had now. A moment later they may be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotYet {
    /// They are those of a service that was heard of a moment ago.
    #[error(
        "{service} is still served from {from}: instance {instance:016x} was heard {} ms ago",
        .ago.as_millis()
    )]
    StillServed {
        /// The name of the service.
        service: String,
        /// Its instance.
        instance: u64,
        /// The address of its host.
        from: IpAddr,
        /// Its last sign of life.
        ago: Duration,
    },
    /// They are on their way into the log.
    #[error("the records of {service} are still being written")]
    StillWritten {
        /// The name of the service.
        service: String,
    },
}

impl NotYet {
    /// The message to the service.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::StillServed { .. } => ErrorCode::StillServed,
            Self::StillWritten { .. } => ErrorCode::StillWritten,
        }
    }
}

/// What was inherited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inherited {
    /// The instance whose records they were.
    pub instance: u64,
    /// How many connections have a record.
    pub connections: usize,
}

impl Sessions {
    /// A service with the key of this name is about to attach whose host has begun a new life, if [`Attach::inherit`]
    /// says so: the records of the life before are those of its instance from now on, and
    /// [`Sessions::attach`] will find them. `None` if there are none, or if the instance has records
    /// of its own. `granted`: it was granted the service's epoch, so nobody else can speak.
    ///
    /// # Errors
    /// [`NotYet`]; nothing has changed.
    pub fn inherit(
        &mut self,
        attach: &Attach,
        peer: Peer,
        key: &str,
        granted: bool,
        now: Duration,
        out: &mut Outbox,
    ) -> Result<Option<Inherited>, NotYet> {
        if !attach.inherit || self.by_instance.contains_key(&attach.instance) {
            return Ok(None);
        }
        let from = peer.address.ip();
        let candidates = self.by_instance.iter_mut().filter(|(_, kept)| {
            let attachment = &kept.attachment;
            let of_host = granted || attachment.from == from;
            !kept.over
                && of_host
                && attachment.key == key
                && attachment.attach.service == attach.service
        });
        let Some((instance, kept)) = candidates.max_by_key(|(_, kept)| kept.attachment.number)
        else {
            return Ok(None);
        };
        let instance = *instance;
        let connections = kept.session.protected();
        let heard = kept
            .session
            .active_at()
            .map(|then| now.saturating_sub(then));
        if let Some(ago) = heard.filter(|ago| !granted && *ago < SILENCE) {
            return Err(NotYet::StillServed {
                service: attach.service.clone(),
                instance,
                from,
                ago,
            });
        }
        let recorded = *kept.written_at.get_or_insert_with(|| out.recorded());
        if !out.has_written(recorded) {
            return Err(NotYet::StillWritten {
                service: attach.service.clone(),
            });
        }
        if granted {
            // What else there is of the service is of hosts that have not served it since.
            for (other, kept) in &mut self.by_instance {
                let of_it = kept.attachment.attach.service == attach.service;
                kept.over |= of_it && kept.attachment.key == key && *other != instance;
            }
        }
        self.rename(instance, attach.instance);
        let entry = Entry::Inherited { from: instance };
        out.record(attach.instance, &entry);
        Ok(Some(Inherited {
            instance,
            connections,
        }))
    }

    /// The session of one instance is that of another from now on, if there is the one and not the
    /// other. Answers whether it is so.
    pub(crate) fn rename(&mut self, from: u64, to: u64) -> bool {
        if self.by_instance.contains_key(&to) {
            return false;
        }
        let Some(mut kept) = self.by_instance.remove(&from) else {
            return false;
        };
        kept.attachment.attach.instance = to;
        kept.session.renew(to);
        self.by_instance.insert(to, kept);
        self.by_peer.retain(|_, instance| *instance != from);
        true
    }
}
