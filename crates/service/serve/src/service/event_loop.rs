//! A pass of the event loop.

use std::{collections::HashMap, sync::mpsc, time::Duration};

use dataplane::{Event as KernelEvent, Ring};
use recovery::{HEARTBEAT_INTERVAL, SWEEP_AGE, SWEEP_INTERVAL, Stage};
use south_model::Flow;
use wire::{FlowId, FlowKey};

use super::{Next, Service};
use crate::{
    clock,
    error::ServeError,
    events::{Code, Event},
    logger_client::LoggerClient,
    setup::Resources,
    sysctl_backup,
};

/// More flows than this are read in a bulk ...
const BULK_READ_FLOWS: usize = 100;
/// ... if they are at least this share of all flows: a single look-up takes as long as this many flows of a bulk read.
const BULK_READ_SHARE: usize = 8;
/// Wait for the response of a server in a replay, and the longest time in which the loop does only this.
const SERVER_RESPONSE_WAIT: Duration = Duration::from_micros(200);
const REPLAY_SPIN_LIMIT: Duration = Duration::from_millis(5);

impl Service {
    /// A pass: receive, decide, execute.
    pub(super) fn run_once(
        &mut self,
        ring: &Ring<'_>,
        kernel_events: &mpsc::Receiver<KernelEvent>,
    ) -> Result<Next, ServeError> {
        if let Some(link) = self.resources.logger.link() {
            link.fetch()?;
        }
        ring.consume()?;
        while let Ok(event) = kernel_events.try_recv() {
            self.kernel_event(event)?;
        }
        self.late_connections()?;
        if let Some(ending) = self.poll_lease()? {
            return Ok(Next::End(ending));
        }
        if let Some(ending) = self.poll_server()? {
            return Ok(Next::End(ending));
        }
        self.poll_logger()?;
        self.poll_restored_process()?;
        self.poll_north()?;
        self.poll_checkpoints()?;
        self.progress()?;
        let acted = self.step();
        // After any failure, which is tried again: a hung logger must be detected, and the gate stays unchanged only
        // with a heartbeat.
        self.periodic()?;
        self.answer_control();
        self.poll_restart_request()?;
        Ok(Next::Go { acted: acted? })
    }

    /// Executes the due actions.
    fn step(&mut self) -> Result<bool, ServeError> {
        let acted = self.execute()? | self.spin_on_replays()?;
        self.start_if_due()?;
        Ok(acted)
    }

    /// Reads the flows of connections in recovery.
    pub(super) fn progress(&mut self) -> Result<(), ServeError> {
        let watched: Vec<(FlowId, FlowKey)> = self.recovery.watched(clock::now()).collect();
        if watched.len() > BULK_READ_FLOWS && watched.len() * BULK_READ_SHARE > self.flows_listed {
            // A single call for a thousand flows, instead of a call for each.
            let all: HashMap<FlowKey, Flow> = self.resources.plane.flows()?.into_iter().collect();
            for (id, key) in watched {
                self.recovery.observe(id, all.get(&key), clock::now());
            }
        } else {
            for (id, key) in watched {
                let flow = self.resources.plane.flow(key)?;
                self.recovery.observe(id, flow.as_ref(), clock::now());
            }
        }
        self.recovery.poll(clock::now());
        Ok(())
    }

    /// A replay waits for the server after each request of the client, and there may be thousands: a fast server does
    /// not wait for the next pass of the loop.
    fn spin_on_replays(&mut self) -> Result<bool, ServeError> {
        let mut acted = false;
        let begun = clock::now();
        let mut moved = begun;
        while self.recovery.awaits_server(clock::now()) {
            let now = clock::now();
            if now.saturating_sub(moved) > SERVER_RESPONSE_WAIT
                || now.saturating_sub(begun) > REPLAY_SPIN_LIMIT
            {
                break;
            }
            rustix::thread::sched_yield();
            self.progress()?;
            if self.execute()? {
                moved = now;
                acted = true;
            }
        }
        Ok(acted)
    }

    fn periodic(&mut self) -> Result<(), ServeError> {
        self.poll_addresses()?;
        let now = clock::now();
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + HEARTBEAT_INTERVAL;
            self.heartbeat()?;
            // A hung logger process would fill the ring and stop all uploads.
            if self.config.link.is_none() {
                let _ = self.ask_logger(LoggerClient::ping)?;
            }
            self.reap();
            self.poll_gate()?;
            self.poll_clearing()?;
            self.poll_lost_events()?;
            if self.recovery.stage() == Stage::Starting && self.listens()? {
                self.recovery.listening(now); // the kernel's event was lost
            }
            self.check_listeners()?;
            self.show_status();
            if let Some(why) = self.events.not_logged() {
                let reason = format!("events are not written to the history: {why}");
                self.warn(Code::HistoryNotWritten, reason);
            }
            if self.is_replaying() {
                self.extend_start();
            }
            self.attach_new_interfaces()?;
            if self.recovery.stage() == Stage::Serving {
                self.truncate_read_instream()?;
                self.reset_record_if_idle()?;
                self.poll_unseen(now)?;
                let Resources { plane, logger, .. } = &self.resources;
                if logger.is_replaceable(plane)? {
                    self.restart_logger(true)?;
                }
            }
        }
        if now >= self.next_sweep {
            self.next_sweep = now + SWEEP_INTERVAL;
            self.resources.plane.sweep(SWEEP_AGE)?;
        }
        Ok(())
    }

    pub(crate) fn attach_new_interfaces(&mut self) -> Result<(), ServeError> {
        let before = self.resources.plane.interfaces().count();
        let others = sysctl_backup::of_other_services(self.resources.lock.directory());
        self.resources.plane.shares_with(others);
        for interface in dataplane::ethernet_interfaces()? {
            self.resources
                .plane
                .attach_interface(&interface, self.config.attach)?;
        }
        if self.resources.plane.interfaces().count() != before {
            sysctl_backup::keep(self.resources.lock.directory(), &self.resources.plane)?;
        }
        Ok(())
    }

    pub(crate) fn answer_control(&mut self) {
        let status = self.control.receive().map(|list| self.status_of(list));
        if let Some(Err(error)) = &status {
            self.warn(Code::NoStatus, format!("no status: {error}"));
        }
        let status = status.and_then(Result::ok);
        for (request, by) in self.control.asked() {
            self.emit(Event::OperatorRequest { request, by });
        }
        if self.control.wants_move() {
            match self.switchover_obstacle() {
                None => self.switchover_requested = true,
                Some(why) => self.control.refuse_move(why),
            }
        }
        self.refuse_restart();
        self.control.reply(&self.events, status.as_ref());
    }
}
