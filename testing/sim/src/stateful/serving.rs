//! Events and steps of a serving server.

use rand::{Rng, rngs::SmallRng, seq::SliceRandom};
use smoltcp::{iface::SocketHandle, socket::tcp::State};
use south_model::SouthSide;
use wire::FlowKey;

use super::{NextOperation, Stage, Stateful};
use crate::{
    determinants::{Determinant, DeterminantLog, hash_output},
    host::{Host, ends},
    invariants::{InvariantChecker, Violation},
};

/// The view of a process on its host.
pub(crate) struct System<'a> {
    pub(crate) host: &'a mut Host,
    pub(crate) south: &'a SouthSide,
    pub(crate) determinants: &'a mut DeterminantLog,
    /// Determinants go to a logger on another machine, and output waits for that.
    pub(crate) waits_for_logger: bool,
    /// Most determinants that are replayed at a time.
    pub(crate) replay_pace: usize,
    /// Steps until the death.
    pub(crate) fuse: &'a mut Option<u32>,
    pub(crate) checker: &'a mut InvariantChecker,
    pub(crate) rng: &'a mut SmallRng,
}

/// Reason to stop within a step.
#[derive(Debug)]
pub(crate) enum Interruption {
    Dies,
    /// The output has to wait.
    Waits,
    Broken(Violation),
}

impl From<Violation> for Interruption {
    fn from(violation: Violation) -> Self {
        Self::Broken(violation)
    }
}

impl System<'_> {
    /// Counts a step, which may be the last.
    pub(super) fn burn(&mut self) -> Result<(), Interruption> {
        match self.fuse {
            None => Ok(()),
            Some(0) => {
                *self.fuse = None;
                Err(Interruption::Dies)
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

impl Stateful {
    /// Runs the server. Returns whether there was work.
    pub(crate) fn act(&mut self, system: &mut System<'_>) -> Result<bool, Interruption> {
        system.burn()?;
        match self.stage {
            Stage::Replaying(at) => {
                self.replay(at, system)?;
                Ok(true)
            }
            Stage::Waiting => Ok(false),
            Stage::Serving => self.serve(system),
        }
    }

    fn serve(&mut self, system: &mut System<'_>) -> Result<bool, Interruption> {
        if let Some((number, word)) = self.held.take() {
            self.say_if_safe(number, word, system)?;
        }
        self.go_on(system)?;
        let mut busy = self.accept(system)?;
        let mut all: Vec<usize> = (0..self.connections.len()).collect();
        all.shuffle(system.rng);
        for number in all {
            if self.connections[number].closed || system.rng.random_bool(0.2) {
                continue; // other connections come first
            }
            let Some(event) = self.look(number, system)? else {
                continue;
            };
            busy = true;
            self.notes_that(event, system)?;
            self.go_on(system)?;
        }
        Ok(busy)
    }

    /// Applies an event after recording it.
    fn notes_that(
        &mut self,
        event: Determinant,
        system: &mut System<'_>,
    ) -> Result<(), Interruption> {
        system.burn()?;
        system.determinants.make(event.clone());
        system.burn()?;
        self.happens(&event);
        Ok(())
    }

    fn accept(&mut self, system: &mut System<'_>) -> Result<bool, Interruption> {
        let held: Vec<SocketHandle> = self.held().collect();
        let mut new = Vec::new();
        for (handle, socket) in system.host.tcp() {
            let open = matches!(socket.state(), State::Established | State::CloseWait);
            if let Some((local, remote)) = ends(socket)
                && open
                && !held.contains(&handle)
            {
                new.push((handle, FlowKey::new(remote, local)));
            }
        }
        let mut busy = false;
        for (handle, key) in new {
            // The kernel keeps the SYN for accept.
            let Some(isn) = system.south.flow(&key).map(|flow| flow.client.isn) else {
                continue;
            };
            if system.rng.random_bool(0.8) {
                busy = true;
                self.notes_that(Determinant::Accepted { key, isn }, system)?;
                let connection = self.connections.last_mut();
                connection
                    .into_iter()
                    .for_each(|one| one.socket = Some(handle));
            }
        }
        Ok(busy)
    }

    /// The next event of this connection.
    fn look(
        &self,
        connection: usize,
        system: &mut System<'_>,
    ) -> Result<Option<Determinant>, Interruption> {
        let one = &self.connections[connection];
        let Some(handle) = one.socket else {
            return Ok(Some(Determinant::Failed { connection }));
        };
        if one.blocked && system.host.socket(handle).can_send() {
            return Ok(Some(Determinant::Room { connection }));
        }
        if one.ended {
            let over = system.host.socket(handle).state() == State::Closed;
            return Ok(over.then_some(Determinant::Failed { connection }));
        }
        if !one.session.wants_input() {
            return Ok(None);
        }
        let max = [1, 100, 4000, 40_000][system.rng.random_range(0..4)];
        match system.host.read(handle, max) {
            Ok(Some(bytes)) if bytes.is_empty() => Ok(None),
            Ok(Some(bytes)) => {
                system.checker.server_read(one.key, one.read, &bytes)?;
                Ok(Some(Determinant::Read { connection, bytes }))
            }
            Ok(None) => Ok(Some(Determinant::Ended { connection })),
            Err(_) => Ok(Some(Determinant::Failed { connection })),
        }
    }

    /// Writes and closes where possible.
    fn go_on(&mut self, system: &mut System<'_>) -> Result<(), Interruption> {
        while let Some(deed) = self.next_deed() {
            match deed {
                NextOperation::Says(number, word) => self.say(number, word, system)?,
                NextOperation::Closes(number) => {
                    let one = &mut self.connections[number];
                    one.closed = true;
                    if let Some(handle) = one.socket {
                        system.host.socket(handle).close();
                        system.checker.server_closed(one.key);
                    }
                }
            }
            system.burn()?;
        }
        Ok(())
    }

    /// Records the output first.
    fn say(
        &mut self,
        number: usize,
        word: Vec<u8>,
        system: &mut System<'_>,
    ) -> Result<(), Interruption> {
        let hash = hash_output(&mut self.said, number, &word);
        system.determinants.make(Determinant::Says {
            connection: number,
            hash,
        });
        system.burn()?;
        self.say_if_safe(number, word, system)
    }

    /// Writes if the determinant is stable. A partial write is recorded, too.
    fn say_if_safe(
        &mut self,
        number: usize,
        word: Vec<u8>,
        system: &mut System<'_>,
    ) -> Result<(), Interruption> {
        if system.waits_for_logger && !system.determinants.are_stable(system.determinants.len()) {
            self.held = Some((number, word));
            return Err(Interruption::Waits);
        }
        let socket = self.connections[number].socket;
        let sent = socket.map(|handle| system.host.socket(handle).send_slice(&word));
        let length = sent.and_then(Result::ok).unwrap_or(0);
        system.burn()?;
        self.taken(number, &word, length);
        if length < word.len() {
            system.determinants.make(Determinant::Took {
                connection: number,
                length,
            });
        }
        Ok(())
    }
}
