//! The first steps with a service that was found running.

use std::sync::mpsc;

use dataplane::{Event as KernelEvent, Ring};
use protocol::UnprotectedReason;
use recovery::{Cause, Stage};
use south_model::{Flow, Restored};

use super::Service;
use crate::{adoption::Adopted, clock, error::ServeError, events::Event};

impl Service {
    pub(super) fn resume_adopted(
        &mut self,
        adopted: Adopted,
        ring: &Ring<'_>,
        kernel_events: &mpsc::Receiver<KernelEvent>,
    ) -> Result<(), ServeError> {
        let Adopted {
            plane_state,
            server,
            record_expired,
            has_new_logger,
            north,
        } = adopted;
        self.north = north;
        self.incarnation = plane_state.incarnation;
        self.server = server;
        self.readiness.begins();
        self.reset_lost_events()?;
        if has_new_logger {
            let connections = self.unprotect_all(UnprotectedReason::LoggerRestarted)?;
            self.emit(Event::LoggerRestarted { connections });
        }
        if record_expired {
            let reason = match self.config.link {
                Some(_) => UnprotectedReason::LoggerLost,
                None => UnprotectedReason::MirrorLost,
            };
            self.unprotect_all(reason)?;
        }
        self.bring_addresses_up()?; // usually still up
        self.reach_logger()?;
        let flows = self.resources.plane.flows()?;
        let open = flows.iter().filter(|(_, flow)| flow.closed_ns == 0);
        let connections = open.count();
        let pid = self
            .server
            .as_ref()
            .map(|server| server.pid().as_raw_pid().unsigned_abs());
        self.emit(Event::Adopted { pid, connections });
        // Events of the time without a `serve`, above all a death.
        ring.consume()?;
        while let Ok(event) = kernel_events.try_recv() {
            self.kernel_event(event)?;
        }
        self.late_connections()?;
        let runs = self.server.is_some() || self.resources.cgroup.populated()?;
        if self.recovery.stage() == Stage::Serving {
            if plane_state.gated || plane_state.recovering || !runs {
                self.died(Cause::NotServing, clock::now());
            } else {
                self.check_adopted_record();
                let is_open = |flow: &Flow| flow.closed_ns == 0 && !flow.server_closing;
                let is_watched = |flow: &Flow| flow.log.snd_beyond_stable || flow.is_behind();
                for (key, flow) in flows.iter().filter(|(_, flow)| is_watched(flow)) {
                    if is_open(flow) && flow.incarnation == plane_state.incarnation {
                        self.recovery.track_unacked(*key, flow, clock::now());
                    }
                }
                // The earlier `serve` cannot tell which clients it awaited: clients without confirmed sequence numbers,
                // too.
                let silent =
                    |flow: &Flow| flow.log.restored == Restored::Unconfirmed && is_open(flow);
                let left = flows.iter().filter(|(_, flow)| {
                    flow.incarnation != plane_state.incarnation && silent(flow)
                });
                self.late.extend(left.map(|(key, flow)| (*key, flow.id)));
                self.reconcile_events()?;
                // The earlier `serve` may have held the requests, and died before the release.
                let _ = self.ask_logger(|logger| logger.hold_turns(false))?;
            }
        }
        self.notify_ready();
        Ok(())
    }
}
