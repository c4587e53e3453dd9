//! Start and end of processes, and the sockets that they leave behind.

use std::collections::BTreeSet;

use rand::rngs::SmallRng;
use smoltcp::{iface::SocketHandle, socket::tcp::State};
use south_model::{Exit, Flow, Mode, SocketChange, SocketState};
use wire::FlowKey;

use super::Node;
use crate::{
    host::ends,
    invariants::{InvariantChecker, Violation},
    process::Process,
    stateful::{Interruption, System},
    trace,
};

impl Node {
    /// Runs the server. Returns whether the server dies.
    pub(crate) fn act(
        &mut self,
        checker: &mut InvariantChecker,
        rng: &mut SmallRng,
        now: u64,
    ) -> Result<bool, Violation> {
        let mut dies = false;
        self.note_reads();
        let later = self.later_incarnations();
        if let Some(process) = self
            .process
            .as_mut()
            .filter(|process| now >= process.act_at)
        {
            process.act_at = now + crate::pause(rng, self.setup.pace, process.idle);
            if process.listening && process.stateful.is_some() {
                dies = self.act_with_state(checker, rng)?;
            } else if process.listening {
                let deeds = process.act(&later, &mut self.host, checker, rng, now)?;
                dies = deeds.dies && !process.headless;
                if !process.headless {
                    deeds
                        .closed
                        .iter()
                        .for_each(|key| checker.server_closed(*key));
                }
            } else if !process.headless {
                self.listen(now);
            }
        }
        // A state change by the application is reported before the packet that follows.
        self.report_states(now);
        self.poll(checker, now)?;
        Ok(dies)
    }

    /// Connections of a later incarnation, if the server may half-close early on some.
    fn later_incarnations(&self) -> BTreeSet<FlowKey> {
        if !self.process.as_ref().is_some_and(Process::is_early) {
            return BTreeSet::new();
        }
        let spliced = |flow: &Flow| flow.mode == Mode::Spliced;
        let flows = self.south.flows().filter(|(_, flow)| spliced(flow));
        flows.map(|(key, _)| *key).collect()
    }

    fn listen(&mut self, now: u64) {
        self.process
            .iter_mut()
            .for_each(|process| process.listening = true);
        self.host.listening = true;
        self.keep_backlog();
        let any: std::net::SocketAddr = ([0, 0, 0, 0], 80).into();
        let change = SocketChange {
            key: FlowKey::new(any, any),
            new_state: SocketState::Listen,
        };
        self.south.socket_state(change, now);
    }

    fn act_with_state(
        &mut self,
        checker: &mut InvariantChecker,
        rng: &mut SmallRng,
    ) -> Result<bool, Violation> {
        let (Some(process), Some(north)) = (&mut self.process, &mut self.north) else {
            return Ok(false);
        };
        let Some(stateful) = &mut process.stateful else {
            return Ok(false);
        };
        north.determinants.make_unmade();
        let acted = stateful.act(&mut System {
            host: &mut self.host,
            south: &self.south,
            determinants: &mut north.determinants,
            waits_for_logger: north.setup.waits_for_logger(),
            replay_pace: north.setup.replay_pace,
            fuse: &mut north.fuse,
            checker,
            rng,
        });
        match acted {
            Ok(busy) => {
                process.idle = if busy { 0 } else { process.idle + 1 };
                Ok(false)
            }
            Err(Interruption::Waits) => Ok(false),
            Err(Interruption::Dies) => Ok(true),
            Err(Interruption::Broken(violation)) => Err(violation),
        }
    }

    /// Kills the main process with this status. The sockets are closed, or other processes of the service hold them.
    pub(crate) fn crash(
        &mut self,
        status: u32,
        workers_survive: bool,
        checker: &mut InvariantChecker,
        now: u64,
    ) -> Result<(), Violation> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        trace::note(now, || format!("death of process {}", process.pid));
        process.headless = true;
        if let (Some(stateful), Some(north)) = (&process.stateful, &mut self.north) {
            north.dies(stateful);
        }
        checker.died();
        let exit = Exit {
            in_service: true,
            tgid: process.pid,
            exit_code: status,
            last_thread: true,
            group_exit: true,
        };
        self.south.process_exit(exit, now);
        if workers_survive {
            Ok(())
        } else {
            self.close_all(checker, now)
        }
    }

    /// Ends the last process: the kernel closes its sockets with a FIN, or with an RST if input is unread or the
    /// connection was not accepted.
    pub(crate) fn close_all(
        &mut self,
        checker: &mut InvariantChecker,
        now: u64,
    ) -> Result<(), Violation> {
        self.host.listening = false;
        let Some(process) = self.process.take() else {
            return Ok(());
        };
        let held: BTreeSet<SocketHandle> = process.held().collect();
        let open: Vec<(SocketHandle, State)> = self
            .host
            .tcp()
            .map(|(handle, socket)| (handle, socket.state()))
            .collect();
        for (handle, state) in open {
            match state {
                State::Listen | State::SynReceived => {
                    self.remove(handle);
                }
                State::Established | State::CloseWait if held.contains(&handle) => {
                    let socket = self.host.socket(handle);
                    if socket.recv_queue() > 0 {
                        socket.abort()
                    } else {
                        socket.close()
                    }
                }
                State::Established | State::CloseWait => self.host.socket(handle).abort(),
                _ => {}
            }
        }
        self.report_states(now);
        self.poll(checker, now)
    }

    /// `SOCK_DESTROY` of all sockets but those that the living server closed. Sockets in TIME-WAIT (RFC 9293 3.6.1)
    /// are included although their flows are gone, but no socket that was half-closed in a replay.
    pub(crate) fn remove_orphans(
        &mut self,
        checker: &mut InvariantChecker,
        now: u64,
    ) -> Result<(), Violation> {
        let such = |is_so: fn(&Flow) -> bool| -> BTreeSet<FlowKey> {
            let such = self.south.flows().filter(|(_, flow)| is_so(flow));
            such.map(|(key, _)| *key).collect()
        };
        let finishing = such(|flow| flow.server_closing);
        let unended = such(|flow| flow.half_closed);
        let orphans: Vec<SocketHandle> = self
            .host
            .tcp()
            .filter(|(_, socket)| {
                let waits = matches!(socket.state(), State::FinWait2 | State::TimeWait);
                ends(socket).is_some_and(|(local, remote)| {
                    let key = FlowKey::new(remote, local);
                    !finishing.contains(&key) && (!waits || unended.contains(&key))
                })
            })
            .map(|(handle, _)| handle)
            .collect();
        self.destroy(orphans, checker, now)
    }

    /// `SOCK_DESTROY` of the socket of a connection, if there is one.
    pub(crate) fn destroy_socket(
        &mut self,
        key: FlowKey,
        checker: &mut InvariantChecker,
        now: u64,
    ) -> Result<(), Violation> {
        let found = self.host.tcp().filter(|(_, socket)| {
            ends(socket).is_some_and(|(local, remote)| key == FlowKey::new(remote, local))
        });
        let found = found.map(|(handle, _)| handle).collect();
        self.destroy(found, checker, now)
    }

    fn destroy(
        &mut self,
        sockets: Vec<SocketHandle>,
        checker: &mut InvariantChecker,
        now: u64,
    ) -> Result<(), Violation> {
        for handle in sockets {
            self.host.socket(handle).abort();
        }
        self.report_states(now);
        self.poll(checker, now)
    }
}
