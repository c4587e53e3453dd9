//! The server of the service: deaths, ends, and events of the kernel about the connections.

use std::time::Duration;

use dataplane::{Event as KernelEvent, EventKind};
use protocol::UnprotectedReason;
use recovery::{Cause, Stage};
use south_model::CrashOn;
use supervise::Exit;

use super::{Ending, Service};
use crate::{
    clock,
    config::in_words,
    error::{ServeError, SystemContext},
    events::{Code, Event},
    north::North,
};

/// Time from SIGKILL to the warning that processes have not ended.
const KILL_WARNING_DELAY: Duration = Duration::from_secs(5);

impl Service {
    pub(super) fn kernel_event(&mut self, event: KernelEvent) -> Result<(), ServeError> {
        let now = clock::now();
        match event.kind {
            EventKind::Death { pid, status } if event.incarnation == self.incarnation => {
                self.died(cause_of(pid, status), event.at);
            }
            EventKind::Death { .. } => {}
            EventKind::Listening if event.incarnation != self.incarnation => {}
            EventKind::Listening => {
                if !self.readiness.has_begun() {
                    if let Some(north) = &self.north {
                        if !north.has_record() {
                            return Err(ServeError::NotWrapped);
                        }
                        if !north.has_listener() {
                            return Err(ServeError::NotRecorded);
                        }
                    }
                    self.readiness.begins();
                    self.resources.plane.recovered()?;
                    let addresses = in_words(&self.config.addresses);
                    let awaits = self.awaits();
                    self.emit(Event::Protecting { addresses, awaits });
                }
                self.notify_ready();
                self.recovery.listening(now);
            }
            EventKind::Unprotected { key, flow, reason } => {
                self.recovery.unprotected(flow, reason);
                if reason == UnprotectedReason::TooManyConnections {
                    self.unseen.add_refused(key);
                }
                self.emit(Event::Unprotected {
                    connection: key.to_string(),
                    reason: reason.to_string(),
                });
                let _ = self.ask_logger(|logger| logger.unprotect(flow))?;
            }
            EventKind::Diverged { key, flow, .. } => {
                if let Some(state) = self.resources.plane.flow(key)?.filter(|f| f.id == flow) {
                    self.recovery.diverged(key, &state);
                }
            }
            EventKind::Late { key, flow } => self.late.push((key, flow)),
            EventKind::Reprotected {
                key,
                flow,
                instream,
                outstream,
            } => self.reprotected(key, flow, instream, outstream)?,
        }
        Ok(())
    }

    pub(super) fn died(&mut self, cause: Cause, at: Duration) {
        let now = clock::now();
        let refused = self.north.as_ref().and_then(North::is_not_replayable);
        let cause = match (refused, cause.pid()) {
            (Some(_), Some(pid)) => Cause::NotReplayable { pid },
            _ => self.record_reset.cause(cause),
        };
        if self.recovery.stage() != Stage::Clearing {
            self.pause = match cause {
                Cause::RecordReset | Cause::Restart | Cause::NotReplayable { .. } => Duration::ZERO,
                _ => self.backoff.died(now),
            };
            if let Some(north) = self.north.as_mut().filter(|_| !cause.is_sigkill()) {
                north.crashed(now, cause.pid());
            }
            self.warn_exit_in_replay(cause);
        }
        self.log_truncation.forget();
        self.recovery.on_death(cause, at, now);
    }

    /// The kernel has shut the gate, and the event of the death was lost in a full ring: the gate would never open. An
    /// event that is only late is read before the next call.
    pub(super) fn poll_gate(&mut self) -> Result<(), ServeError> {
        let is_cleared = self.recovery.stage() == Stage::Clearing;
        let is_shut = !is_cleared && self.resources.plane.is_gated_in(self.incarnation)?;
        if std::mem::replace(&mut self.was_gated, is_shut) && is_shut {
            self.died(Cause::NotServing, clock::now());
        }
        Ok(())
    }

    /// Warns of killed processes that wait in the kernel: such processes keep all clients waiting.
    pub(super) fn poll_clearing(&mut self) -> Result<(), ServeError> {
        let now = clock::now();
        if self.recovery.stage() != Stage::Clearing {
            self.kill_warning_at = None;
            return Ok(());
        }
        let say_at = self.kill_warning_at.get_or_insert(now + KILL_WARNING_DELAY);
        if now < *say_at {
            return Ok(());
        }
        *say_at = Duration::MAX; // once
        let left = self.resources.cgroup.procs()?;
        let left: Vec<String> = left.iter().map(ToString::to_string).collect();
        if !left.is_empty() {
            let reason = format!(
                "of the dead server there are still, though they were killed: {}. A process that waits in the kernel for a disk or another file system (state D) ends when that answers; until then the server cannot be started again, and its clients wait",
                left.join(", ")
            );
            self.warn(Code::ServerNotEnded, reason);
        }
        Ok(())
    }

    /// Notice the end of the main process, and the end of all processes.
    pub(super) fn poll_server(&mut self) -> Result<Option<Ending>, ServeError> {
        let exit = match &mut self.server {
            None => None,
            Some(server) => server.try_wait().doing("wait for the server")?,
        };
        if let Some(exit) = exit {
            let pid = self
                .server
                .take()
                .map_or(0, |server| server.pid().as_raw_pid().unsigned_abs());
            self.reap();
            if exit == Exit::Unseen && self.recovery.stage() != Stage::Clearing {
                // The kernel decides whether the server crashed, and has reported the crash by now: the next pass of
                // the loop reads the event.
                self.skips_wait = true;
                return Ok(None);
            }
            if !self.readiness.has_begun()
                && (exit.is_failure() || !self.resources.cgroup.populated()?)
            {
                if let Some(why) = self.north.as_ref().and_then(North::is_not_replayable) {
                    return Err(ServeError::not_replayable(&self.config.command, why));
                }
                let addresses = in_words(&self.config.addresses);
                return Err(ServeError::FirstStart {
                    exit,
                    addresses: addresses.join(", "),
                });
            }
            if self.config.crash_on == CrashOn::Main
                && !exit.is_failure()
                && self.resources.cgroup.populated()?
            {
                let reason = "the main process of the server has ended and left others, whose deaths are no crashes with --crash-on=main: nothing is masked any more. Keep the server in the foreground, or leave that option out";
                self.warn(Code::MainProcessLeft, reason);
            }
            // Usually an event of the kernel has come before.
            if exit.is_failure() && self.recovery.stage() != Stage::Clearing {
                self.died(cause_of_exit(pid, exit), clock::now());
                self.execute()?;
            }
        }
        match self.recovery.stage() {
            Stage::Clearing if !self.resources.cgroup.populated()? => {
                self.reap();
                self.server = None;
                self.unjoin();
                self.recovery.service_empty(clock::now());
                self.incarnation += 1;
            }
            // The main process has left quietly, and all other processes, too.
            Stage::Serving if self.has_ended()? => {
                self.emit(Event::ServerExited);
                self.await_translated_closes()?;
                return Ok(Some(Ending::Ended));
            }
            Stage::Starting | Stage::Listing | Stage::Recovering if self.has_ended()? => {
                self.died(Cause::NotServing, clock::now());
            }
            _ => {}
        }
        Ok(None)
    }

    /// No process of the service is left, and none is to be started.
    fn has_ended(&self) -> Result<bool, ServeError> {
        Ok(self.server.is_none()
            && self.start_at.is_none()
            && !self.resources.cgroup.populated()?)
    }
}

fn cause_of(pid: u32, status: u32) -> Cause {
    match status & 0x7f {
        0 => Cause::Status {
            pid,
            status: (status >> 8) & 0xff,
        },
        signal => Cause::Signal { pid, signal },
    }
}

fn cause_of_exit(pid: u32, exit: Exit) -> Cause {
    match exit {
        Exit::Status(status) => Cause::Status {
            pid,
            status: status.unsigned_abs(),
        },
        Exit::Signal { signal, .. } => Cause::Signal {
            pid,
            signal: signal.unsigned_abs(),
        },
        Exit::Unseen => Cause::NotServing,
    }
}
