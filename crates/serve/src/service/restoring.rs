//! A service whose host has stopped: its connections, from what a logger on another machine knows of
//! them (FT-TCP IV.E), or one of this host that keeps its log on disk (VI.C).
//!
//! Nothing of it is here: no programs, no sockets, no number. What makes it the same service is its name
//! and its host's address, by which the logger knows it. The order matters: the flows are known and the
//! gate is shut before the address is up, or the kernel would reset whoever speaks; the clients are asked
//! where they stand while the server starts. The rest is a recovery like any other.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use protocol::control::{FlowSummary, Recorded};
use recovery::Cause;
use ssw::{Flow, call_to_client, newest_records, restored_flow};
use wire::{EmitError, FlowId, FlowKey};

use super::Service;
use crate::{clock, error::ServeError, events::Happening, link::Link, own_addresses};

/// How long the logger may take to say what it has.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a logger has of an earlier life.
struct Inheritance {
    connections: Vec<Recorded>,
    /// Records of connections whose ends are another one's by now.
    others: Vec<FlowId>,
    summaries: Vec<FlowSummary>,
}

impl Service {
    /// Take up the connections of an earlier life, if there are any. Tells whether there was one.
    pub(super) fn restore(&mut self) -> Result<bool, ServeError> {
        let inherited = self.ground.logger.link().is_some_and(Link::inherited);
        if !inherited {
            return Ok(false);
        }
        // Before anything is known of it: if it listens at once, nobody is let in.
        self.ground.plane.gate()?;
        let Some(inheritance) = self.ask_for_connections()? else {
            self.tell(Happening::Trouble {
                message: "the logger has connections of an earlier life of this service, and does not say which: they are lost".into(),
            });
            return Ok(false);
        };
        // Whatever the logger knows of, no number is used twice.
        let last = inheritance.summaries.iter().map(|one| one.flow.0).max();
        let next = last.map_or(0, |last| last.saturating_add(1));
        self.ground.plane.number_from(FlowId(next))?;
        let known = inheritance.connections.len();
        for flow in &inheritance.others {
            let _ = self.ask_logger(|logger| logger.unprotect(*flow))?;
        }
        let restored = self.insert(&inheritance)?;
        self.tell(Happening::Restored {
            connections: restored.len(),
            lost: known - restored.len(),
        });
        if self.config.address_device.is_none() {
            self.tell(Happening::Trouble {
                message: "the addresses were up before the service was: clients that spoke meanwhile were reset by the kernel (--address-device prevents that)".into(),
            });
        }
        let now = clock::now();
        self.recovery.died(Cause::Host, now, now);
        self.act()?; // the gate
        self.bring_addresses_up()?;
        for (key, flow) in restored {
            self.speak_to(key, flow, call_to_client)?;
        }
        self.has_listened = true; // it did
        Ok(true)
    }

    /// Once the addresses are up, clients reach us.
    pub(super) fn bring_addresses_up(&mut self) -> Result<(), ServeError> {
        match &self.config.address_device {
            Some(device) => own_addresses::bring_up(
                self.ground.lock.directory(),
                device,
                &self.config.addresses,
            ),
            None => Ok(()),
        }
    }

    fn ask_for_connections(&mut self) -> Result<Option<Inheritance>, ServeError> {
        let until = Instant::now() + PATIENCE;
        loop {
            let inheritance = self.ask_logger(|logger| {
                let (connections, others) = newest_records(logger.connections()?);
                Ok(Inheritance {
                    connections,
                    others,
                    summaries: logger.summaries()?,
                })
            })?;
            if inheritance.is_some() || Instant::now() >= until {
                return Ok(inheritance);
            }
            self.look_at_link()?;
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn insert(&mut self, inheritance: &Inheritance) -> Result<Vec<(FlowKey, FlowId)>, ServeError> {
        let summaries = inheritance.summaries.iter();
        let summaries: BTreeMap<FlowId, &FlowSummary> =
            summaries.map(|one| (one.flow, one)).collect();
        let mut restored = Vec::with_capacity(inheritance.connections.len());
        for recorded in &inheritance.connections {
            let (id, key) = (recorded.beginning.flow, recorded.beginning.key);
            let ours = self.config.addresses.contains(&key.server());
            let Some(summary) = summaries.get(&id).filter(|_| ours) else {
                continue;
            };
            let flow = restored_flow(recorded, summary, self.config.verify.head());
            match self.ground.plane.restore(key, &flow) {
                Ok(()) => restored.push((key, id)),
                Err(error) => tracing::warn!(%key, %error, "a connection was not restored"),
            }
        }
        Ok(restored)
    }

    /// A segment of ours to a client, made from its flow.
    pub(crate) fn speak_to(
        &self,
        key: FlowKey,
        id: FlowId,
        make: fn(FlowKey, &Flow) -> Result<Vec<u8>, EmitError>,
    ) -> Result<(), ServeError> {
        let Some(flow) = self.numbered(key, id)? else {
            return Ok(());
        };
        let packet = make(key, &flow)?;
        // A full queue: it is asked again, or asks itself.
        if let Err(error) = self.ground.injector.to_client(&packet) {
            tracing::debug!(%error, %key, "a client was not spoken to");
        }
        Ok(())
    }
}
