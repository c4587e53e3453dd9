//! Replay of the determinants of earlier incarnations.

use rand::Rng;

use super::{Interruption, NextOperation, Stage, Stateful, System};
use crate::{
    determinants::{Determinant, DeterminantLog, hash_output},
    invariants::Violation,
};

impl Stateful {
    /// Replays some determinants from this one on. The replay may go further than the last incarnation: up to an
    /// unrecorded event.
    pub(super) fn replay(
        &mut self,
        mut at: usize,
        system: &mut System<'_>,
    ) -> Result<(), Interruption> {
        for _ in 0..system.rng.random_range(1..=system.replay_pace) {
            let Some(next) = self.replay_one(at, system.determinants)? else {
                // The recovery sends the output that clients lack after the server waits.
                let length = system.determinants.len();
                if !system.waits_for_logger || system.determinants.are_stable(length) {
                    self.stage = Stage::Waiting;
                }
                return system.burn();
            };
            at = next;
            self.stage = Stage::Replaying(at);
            system.burn()?;
        }
        Ok(())
    }

    /// Performs the next step or event. Returns the next determinant; `None`: the step needs a determinant that is
    /// missing.
    fn replay_one(
        &mut self,
        at: usize,
        determinants: &DeterminantLog,
    ) -> Result<Option<usize>, Violation> {
        match self.next_deed() {
            Some(NextOperation::Closes(number)) => {
                self.connections[number].closed = true;
                Ok(Some(at))
            }
            Some(NextOperation::Says(number, word)) => self.repeat(at, number, &word, determinants),
            None => match determinants.get(at) {
                None => Ok(None),
                Some(_) if determinants.is_skipped(at) => Ok(Some(at + 1)),
                Some(determinant) if self.happens(determinant) => Ok(Some(at + 1)),
                Some(determinant) if determinants.are_compared() => {
                    Err(contradiction(at, determinant))
                }
                Some(_) => Ok(Some(at + 1)),
            },
        }
    }

    /// Takes recorded output, whole unless the determinants say less. Output that the client lacks is kept.
    fn repeat(
        &mut self,
        at: usize,
        number: usize,
        word: &[u8],
        determinants: &DeterminantLog,
    ) -> Result<Option<usize>, Violation> {
        let mut said = self.said;
        let hash = hash_output(&mut said, number, word);
        let expected = Determinant::Says {
            connection: number,
            hash,
        };
        let mut next = at + 1;
        match determinants.get(at) {
            None => return Ok(None),
            Some(determinant) if *determinant == expected => {}
            Some(determinant) if determinants.are_compared() => {
                return Err(contradiction(at, determinant));
            }
            Some(Determinant::Says { .. }) => {}
            Some(_) => next = at,
        }
        self.said = said;
        let mut length = word.len();
        if let Some(Determinant::Took {
            connection,
            length: taken,
        }) = determinants.get(next)
            && *connection == number
        {
            length = length.min(*taken);
            next += 1;
        }
        self.taken(number, word, length);
        Ok(Some(next))
    }
}

fn contradiction(at: usize, determinant: &Determinant) -> Violation {
    Violation::new(format!(
        "the replay contradicts determinant {at}: {determinant:?}"
    ))
}
