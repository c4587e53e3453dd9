//! Death of the server, and the consequences for the record.

use std::{collections::BTreeSet, io, mem, time::Duration};

use north_host::{Ends, Handover, HandoverError, OtherVersion, Suspect};
use south_model::Flow;
use wire::FlowKey;

use super::{North, RECORD, empty, ends, mount_bytes, new_number, positions};
use crate::error::{ServeError, SystemContext as _};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crash {
    /// The server had lived for a while.
    First,
    /// The server had not: the crash of the incarnation before may have the same cause.
    Again,
}

/// Suspected cause of a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Culprit {
    /// The last input that the first process read, at this position of the record.
    Words(u64),
    /// The crash of this child, whatever the cause.
    Child(u32),
}

/// A crash this long after a replay is not caused by the replayed record.
const REPLAY_SETTLED_AFTER: Duration = Duration::from_secs(1);

impl North {
    /// Is any of these connections open?
    pub(crate) fn has_clients(flows: &[(FlowKey, Flow)]) -> bool {
        flows.iter().any(|(_, flow)| flow.closed_ns == 0)
    }

    /// The server has died. `flows` are the server's connections. `forgets`: the server keeps no state except for
    /// connections. An error inside: the record is complete, and is lost now.
    pub(crate) fn died(
        &mut self,
        flows: &[(FlowKey, Flow)],
        forgets: bool,
    ) -> Result<io::Result<()>, ServeError> {
        // Messages about opened and closed connections are still read; afterwards the dead incarnation's messages are
        // void.
        if let Err(HandoverError::Io(error)) = self.handover.receive_messages() {
            return Err(error).doing(RECORD);
        }
        self.handle_messages();
        self.handover = match self.last_image() {
            Some(last) => Handover::of(&last.kept),
            None => Handover::new(),
        }
        .doing(RECORD)?;
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.stop();
        }
        self.passed.clear();
        self.made.clear();
        self.upstream.died();
        self.rejoined = 0;
        self.replayed_at = None;
        // A replica may have diverged where a replay from the beginning does not diverge.
        let is_sound = self.memory.divergence().is_none() || mem::take(&mut self.follows);
        let is_whole = self.memory.is_recording() && is_sound;
        if self.is_lost || !is_whole {
            return self.lose().map(Ok);
        }
        if forgets && !Self::has_clients(flows) {
            self.lose()?;
            self.is_lost = false; // no client can miss any state
            return Ok(Ok(()));
        }
        self.replays = true;
        let ready = self.memory.to_be_replayed(&mut positions(flows));
        if ready.is_err() {
            self.lose()?;
        }
        Ok(ready)
    }

    /// The next incarnation starts without state.
    fn lose(&mut self) -> Result<(), ServeError> {
        (self.is_lost, self.replays) = (true, false);
        self.threads_not_awaited = false;
        self.deaths.clear();
        self.upstream.let_go();
        self.files.let_go();
        self.logger_copy.other_version = None;
        OtherVersion::remove(self.memory_mount.path()).doing(RECORD)?;
        self.memory.release().doing(RECORD)?; // the next record needs memory
        // A record of another version may have been in the same memory until now.
        if let Err(error) = self.memory_mount.resize(mount_bytes(self.bytes)) {
            tracing::warn!(%error, "the room for the record keeps its size");
        }
        self.memory = empty(&self.memory_mount)?;
        self.handover = Handover::new().doing(RECORD)?;
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.forget()?;
        }
        Ok(())
    }

    /// The server has crashed by itself now, with this process of the server.
    pub(crate) fn crashed(&mut self, now: Duration, pid: Option<u32>) {
        let lived = self.replayed_at.map(|at| now.saturating_sub(at));
        let at_once = self.replays || lived.is_some_and(|lived| lived < REPLAY_SETTLED_AFTER);
        let crash = if at_once { Crash::Again } else { Crash::First };
        let child = self.memory.crashed_child(pid.unwrap_or(0));
        self.crash = Some((crash, child));
    }

    /// The death of the incarnation was not caused by any input.
    pub(crate) fn has_not_crashed(&mut self) {
        self.crash = None;
    }

    /// After `most` further crashes, each at once and after the same last input, this input is not replayed again: no
    /// client has received an answer to the input. After the same crashes of a child, the child is not started again.
    /// Returns the clients of the input or the child. If the input cannot be left out, the record is lost.
    pub(crate) fn quarantine(&mut self, most: u32) -> Result<Option<Quarantined>, ServeError> {
        let Some((crash, child)) = self.crash.take().filter(|_| !self.is_lost) else {
            return Ok(None);
        };
        let open = self.last_image().map_or(&[][..], |last| &last.kept.open);
        let suspect = Suspect::of(&self.memory, open).doing(RECORD)?;
        let words = suspect.map(|one| Culprit::Words(one.at));
        let culprit = child.map(Culprit::Child).or(words);
        // Several children may die in turn: crashes are counted for each child.
        let is_childs = |one: &Option<Culprit>| matches!(one, Some(Culprit::Child(_)));
        if crash == Crash::First {
            self.deaths.clear();
        } else if !is_childs(&culprit) {
            self.deaths
                .retain(|one, _| *one == culprit || is_childs(one));
        }
        let deaths = self.deaths.entry(culprit).or_default();
        let before = *deaths;
        if before < most {
            *deaths += 1;
            return Ok(None);
        }
        let deaths = before;
        self.deaths.remove(&culprit);
        if let Some(child) = child {
            let clients = self.memory.give_up_session(child).doing(RECORD)?;
            let child = Some(child);
            return Ok(Some(Quarantined {
                clients,
                child,
                deaths,
            }));
        }
        let unanswered = suspect.filter(|one| !one.is_answered);
        let Some((at, ends)) = unanswered.and_then(|one| Some((one.at, one.ends?))) else {
            self.is_lost = true;
            return Ok(None);
        };
        self.memory.cut(at, new_number());
        self.logger_copy.begin(self.memory.record(), &[(0, at)]);
        Ok(Some(Quarantined {
            clients: BTreeSet::from([ends]),
            child: None,
            deaths,
        }))
    }
}

/// A client whose last input has crashed the server repeatedly, or the clients of a child that crashed repeatedly.
pub(crate) struct Quarantined {
    clients: BTreeSet<Ends>,
    /// That child, which is not begun again.
    pub(crate) child: Option<u32>,
    /// Number of crashes.
    pub(crate) deaths: u32,
}

impl Quarantined {
    /// Is the client of this connection quarantined?
    pub(crate) fn is(&self, key: FlowKey) -> bool {
        self.clients.contains(&ends(key))
    }
}
