//! Living through the notes of earlier lives.

use rand::Rng;

use super::{Deed, Halt, Stage, Stateful, System};
use crate::{
    notes::{Note, Notes, say_into},
    witness::Violation,
};

impl Stateful {
    /// Some of the notes, from this one on. It may come further than the life that made the last of them: up
    /// to what that has not noted.
    pub(super) fn replay(&mut self, mut at: usize, system: &mut System<'_>) -> Result<(), Halt> {
        for _ in 0..system.rng.random_range(1..=system.replay_pace) {
            let Some(next) = self.replay_one(at, system.notes)? else {
                // What its clients lack is said for it when it has said that it waits.
                let length = system.notes.len();
                if !system.waits_for_logger || system.notes.are_stable(length) {
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

    /// The next deed, or the next thing that happens. Answers which note is next then; `None`: it takes one that
    /// there is not.
    fn replay_one(&mut self, at: usize, notes: &Notes) -> Result<Option<usize>, Violation> {
        match self.next_deed() {
            Some(Deed::Closes(number)) => {
                self.connections[number].closed = true;
                Ok(Some(at))
            }
            Some(Deed::Says(number, word)) => self.say_again(at, number, &word, notes),
            None => match notes.get(at) {
                None => Ok(None),
                Some(_) if notes.is_skipped(at) => Ok(Some(at + 1)),
                Some(note) if self.happens(note) => Ok(Some(at + 1)),
                Some(note) if notes.are_compared() => Err(contradiction(at, note)),
                Some(_) => Ok(Some(at + 1)),
            },
        }
    }

    /// What had been said, or had been about to be, is taken; whole, if nothing else is noted: what the client lacks
    /// of it is kept for it.
    fn say_again(
        &mut self,
        at: usize,
        number: usize,
        word: &[u8],
        notes: &Notes,
    ) -> Result<Option<usize>, Violation> {
        let mut said = self.said;
        let hash = say_into(&mut said, number, word);
        let expected = Note::Says {
            connection: number,
            hash,
        };
        let mut next = at + 1;
        match notes.get(at) {
            None => return Ok(None),
            Some(note) if *note == expected => {}
            Some(note) if notes.are_compared() => return Err(contradiction(at, note)),
            Some(Note::Says { .. }) => {}
            Some(_) => next = at,
        }
        self.said = said;
        let mut length = word.len();
        if let Some(Note::Took {
            connection,
            length: taken,
        }) = notes.get(next)
            && *connection == number
        {
            length = length.min(*taken);
            next += 1;
        }
        self.taken(number, word, length);
        Ok(Some(next))
    }
}

fn contradiction(at: usize, note: &Note) -> Violation {
    Violation::new(format!("the replay contradicts note {at}: {note:?}"))
}
