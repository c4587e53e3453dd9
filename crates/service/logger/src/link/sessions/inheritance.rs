//! A new instance of a service inherits the records of an earlier instance.
//!
//! After a reboot a service has a new instance number, and the host knows no connections of the earlier instance.
//! The new instance inherits the earlier records. The records keep their place in the log under the new number; the
//! link keys of the earlier instance are invalid.
//!
//! **Conditions.** The service has the same name and address, and the key of the last attachment: several hosts may
//! share one address. A service whose key is replaced attaches again with the new key. Of several such sessions the
//! last attached session is inherited. The earlier instance must have been silent for [`SILENCE`]: a service that
//! sends is alive, and two instances must not share a record. A host with the granted epoch of the service needs
//! neither the same address nor the silence. All records must be in the log, if there is a log: a record that the
//! heir reports to clients must survive the logger.

use std::{net::IpAddr, time::Duration};

use protocol::control::{Attach, ErrorCode};

use super::{Peer, Sessions};
use crate::{durable::entry::Entry, link::outbox::Outbox};

/// Silence of a service after which another instance may inherit the records. A living service probes the link more
/// often.
pub const SILENCE: Duration = Duration::from_secs(1);

/// The reason why the records cannot be inherited now. A later attempt may succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotYet {
    /// The service gave a sign of life a moment ago.
    #[error(
        "{service} is still served from {from}: instance {instance:016x} was heard {} ms ago",
        .ago.as_millis()
    )]
    StillServed {
        /// The name of the service.
        service: String,
        /// The instance number.
        instance: u64,
        /// The address of the host.
        from: IpAddr,
        /// Time since the last sign of life.
        ago: Duration,
    },
    /// The records are being written to the log.
    #[error("the records of {service} are still being written")]
    StillWritten {
        /// The name of the service.
        service: String,
    },
}

impl NotYet {
    /// The error code for the service.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::StillServed { .. } => ErrorCode::StillServed,
            Self::StillWritten { .. } => ErrorCode::StillWritten,
        }
    }
}

/// The result of an inheritance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inherited {
    /// The earlier instance.
    pub instance: u64,
    /// Number of connections with a record.
    pub connections: usize,
}

impl Sessions {
    /// Moves the records of an earlier instance to the instance that is about to attach with the key of this name,
    /// if [`Attach::inherit`] asks for that. [`Sessions::attach`] finds the records afterwards. `None` without
    /// earlier records, or if the instance has records already. `granted`: the instance has the epoch of the
    /// service, and no other instance can send.
    ///
    /// # Errors
    /// [`NotYet`]; the sessions are unchanged.
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
            // The other sessions of the service belong to hosts that have not served since.
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

    /// Renames the session of instance `from` to `to`, if `from` has a session and `to` has none. Returns whether
    /// the session was renamed.
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
