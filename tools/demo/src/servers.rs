//! The hosts of the servers: one is active, and the other one, if any, is the standby.

use std::path::Path;
use std::sync::mpsc::Sender;

use anyhow::Result;
use lab::{Host, Pid};

use crate::director::Message;
use crate::server::Server;
use crate::service::{Service, Source};
use crate::stage::Stage;

/// All servers. Dropping this value stops them, the standbys first, which would take over otherwise.
pub(crate) struct Servers {
    /// The services of each host, with the active host last.
    hosts: Vec<Vec<Service>>,
}

impl Servers {
    /// Starts all servers under `outlive serve` on the first host of the stage.
    pub(crate) fn start(
        stage: &Stage,
        outlive: &Path,
        flags: &[String],
        director: &Sender<Message>,
    ) -> Result<Self> {
        let on_host = |host| {
            let services = Server::ALL.map(|server| {
                Service::prepare(stage, host, server, outlive, flags, director.clone())
            });
            services.into_iter().collect::<Result<_>>()
        };
        let hosts = (0..stage.servers.len()).rev().map(on_host);
        let mut this = Self {
            hosts: hosts.collect::<Result<_>>()?,
        };
        for service in this.serving_mut() {
            service.start("serve")?;
        }
        Ok(this)
    }

    /// The active host.
    pub(crate) fn serving(&self) -> &Host {
        self.hosts[self.hosts.len() - 1][0].host()
    }

    fn serving_mut(&mut self) -> &mut [Service] {
        let last = self.hosts.len() - 1;
        &mut self.hosts[last]
    }

    /// Whether the source is the active host in its present run; `None`: an earlier run.
    pub(crate) fn serves(&self, source: Source) -> Option<bool> {
        let is_there = |services: &Vec<Service>| services.iter().any(|one| one.source() == source);
        let position = self.hosts.iter().position(is_there);
        Some(position? + 1 == self.hosts.len())
    }

    /// Makes the other host, if any, the standby. A host without power gets power first.
    pub(crate) fn stand_by(&mut self) -> Result<()> {
        let [other, _] = &mut self.hosts[..] else {
            return Ok(());
        };
        if !other[0].host().is_on() {
            other.iter().try_for_each(Service::power_on)?;
        }
        other
            .iter_mut()
            .try_for_each(|service| service.start("standby"))
    }

    /// Takes the power from the active host: the other one takes over.
    pub(crate) fn power_off(&mut self) -> Result<()> {
        let off = self.serving_mut().iter_mut().map(Service::power_off);
        let off: Vec<_> = off.collect();
        self.hosts.rotate_left(1);
        off.into_iter().collect()
    }

    /// Kills a process of the active host.
    pub(crate) fn kill(&self, pid: Pid) -> Result<()> {
        Ok(self.serving().kill(&[pid])?)
    }

    /// Stops all servers and cleans up. Tries each one, and returns the first failure.
    pub(crate) fn stop(self) -> Result<()> {
        let services = self.hosts.into_iter().flatten();
        let stopped: Vec<_> = services.map(Service::stop).collect();
        stopped.into_iter().collect()
    }
}
