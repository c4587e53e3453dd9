//! The hosts that can serve: one does, and the other one, if there is one, stands by.

use std::path::Path;
use std::sync::mpsc::Sender;

use anyhow::Result;
use lab::{Host, Pid};

use crate::demo::director::Message;
use crate::demo::service::{Service, Teller};
use crate::demo::stage::Stage;

/// All of them. Dropping it stops them, who stands by first: else it would serve.
pub(crate) struct Servers {
    /// Who serves is the last.
    services: Vec<Service>,
}

impl Servers {
    /// Starts nginx under `outlive serve` on the first host of the stage.
    pub(crate) fn start(
        stage: &Stage,
        outlive: &Path,
        flags: &[String],
        director: &Sender<Message>,
    ) -> Result<Self> {
        let hosts = (0..stage.servers.len()).rev();
        let services =
            hosts.map(|host| Service::prepare(stage, host, outlive, flags, director.clone()));
        let mut this = Self {
            services: services.collect::<Result<_>>()?,
        };
        this.serving_mut().start("serve")?;
        Ok(this)
    }

    /// The host that serves.
    pub(crate) fn serving(&self) -> &Host {
        self.services[self.services.len() - 1].host()
    }

    fn serving_mut(&mut self) -> &mut Service {
        let last = self.services.len() - 1;
        &mut self.services[last]
    }

    /// Whether it is the host that serves that tells this, in its present life; `None`: what it told is of
    /// an earlier one.
    pub(crate) fn serves(&self, teller: Teller) -> Option<bool> {
        let position = self.services.iter().position(|one| one.teller() == teller);
        Some(position? + 1 == self.services.len())
    }

    /// The other host, if there is one, stands by from now on; its power is given back if it is off.
    pub(crate) fn stand_by(&mut self) -> Result<()> {
        let [other, _] = &mut self.services[..] else {
            return Ok(());
        };
        if !other.host().is_on() {
            other.power_on()?;
        }
        other.start("standby")
    }

    /// Takes the power from the host that serves: the other one is to serve.
    pub(crate) fn power_off(&mut self) -> Result<()> {
        let off = self.serving_mut().power_off();
        self.services.rotate_left(1);
        off
    }

    /// SIGKILL to a process of the host that serves.
    pub(crate) fn kill(&self, pid: Pid) -> Result<()> {
        Ok(self.serving().kill(&[pid])?)
    }

    /// Stops them, and sees to it that nothing is left. Each is tried; the first failure is told.
    pub(crate) fn stop(self) -> Result<()> {
        let stopped: Vec<_> = self.services.into_iter().map(Service::stop).collect();
        stopped.into_iter().collect()
    }
}
