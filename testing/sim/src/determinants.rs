//! What a server with state notes of what it cannot compute by itself: the north side wrap's record, in memory
//! that outlives its process. What is with a logger on another machine outlives its host, too.

use rand::{Rng, rngs::SmallRng};
use wire::{FlowKey, SeqNumber};

use crate::{conversation::Digest, scenario::Flaw};

/// What happened to the server, or what it is about to do that somebody will hear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Determinant {
    /// It has accepted a connection: its ends, and the number of its SYN.
    Accepted { key: FlowKey, isn: SeqNumber },
    /// It has read these bytes of a connection.
    Read { connection: usize, bytes: Vec<u8> },
    /// It has read the end of what the client says.
    Ended { connection: usize },
    /// There is room again for what it has to say.
    Room { connection: usize },
    /// The connection was reset.
    Failed { connection: usize },
    /// It is about to say something: a hash of that, and of all before it.
    Says { connection: usize, hash: u64 },
    /// Of that no more was taken than so many bytes.
    Took { connection: usize, length: usize },
}

/// All notes of a server, of all its lives.
#[derive(Debug)]
pub(crate) struct DeterminantLog {
    made: Vec<Determinant>,
    /// With a flaw: what should have been made by now.
    unmade: Vec<Determinant>,
    /// The connections, in the order in which they were accepted, and how much was read of each.
    accepted: Vec<(FlowKey, usize)>,
    /// The first so many are with the logger.
    stable: usize,
    /// What was read of the connections that were accepted, as far as that is with the logger: ends, number of the
    /// SYN, bytes.
    noted: Vec<(FlowKey, SeqNumber, usize)>,
    /// So many will be, and when.
    on_the_way: Option<(u64, usize)>,
    flaw: Flaw,
    /// Reads so far.
    reads: u32,
}

impl DeterminantLog {
    pub(crate) const fn new(flaw: Flaw) -> Self {
        Self {
            made: Vec::new(),
            unmade: Vec::new(),
            accepted: Vec::new(),
            stable: 0,
            noted: Vec::new(),
            on_the_way: None,
            flaw,
            reads: 0,
        }
    }

    pub(crate) fn make(&mut self, note: Determinant) {
        self.reads += u32::from(matches!(note, Determinant::Read { .. }));
        let forgotten = match (self.flaw, &note) {
            (Flaw::ForgetsRead(which), Determinant::Read { .. }) => which == self.reads,
            _ => false,
        };
        match self.flaw {
            _ if forgotten => {}
            Flaw::NotesLate => self.unmade.push(note),
            _ => self.keep(note),
        }
    }

    /// With a flaw that notes late: now they are made, or lost with the process.
    pub(crate) fn make_unmade(&mut self) {
        for note in std::mem::take(&mut self.unmade) {
            self.keep(note);
        }
    }

    fn keep(&mut self, note: Determinant) {
        self.count(&note);
        self.made.push(note);
    }

    pub(crate) fn lose_unmade(&mut self) {
        self.unmade.clear();
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Determinant> {
        self.made.get(at)
    }

    /// Time has passed. A logger on another machine gets notes that were made, if it is there; it takes `lag` at the
    /// most. Without one they are where they are to be.
    pub(crate) fn commit(&mut self, lag: Option<u64>, is_away: bool, rng: &mut SmallRng, now: u64) {
        let Some(lag) = lag else {
            self.stable = self.made.len();
            return;
        };
        if let Some((_, length)) = self.on_the_way.take_if(|(at, _)| *at <= now && !is_away) {
            self.are_now_stable(length);
        }
        if self.on_the_way.is_none() && self.stable < self.made.len() {
            self.on_the_way = Some((now + rng.random_range(0..=lag), self.made.len()));
        }
    }

    fn are_now_stable(&mut self, length: usize) {
        for note in self.made.get(self.stable..length).unwrap_or_default() {
            match note {
                Determinant::Accepted { key, isn } => self.noted.push((*key, *isn, 0)),
                Determinant::Read { connection, bytes } => {
                    let known = self.noted.get_mut(*connection);
                    known.into_iter().for_each(|one| one.2 += bytes.len());
                }
                _ => {}
            }
        }
        self.stable = length;
    }

    /// Of these connections the logger knows that so much was read, and what.
    pub(crate) fn noted(&self) -> &[(FlowKey, SeqNumber, usize)] {
        &self.noted
    }

    pub(crate) fn len(&self) -> usize {
        self.made.len()
    }

    /// Nobody can lose the first so many.
    pub(crate) fn are_stable(&self, length: usize) -> bool {
        length <= self.stable
    }

    /// Their host has lost its power: what the logger has is left, of which it may not have told.
    pub(crate) fn lose_power(&mut self, rng: &mut SmallRng) {
        self.lose_unmade();
        let left = rng.random_range(self.stable..=self.made.len());
        let made = std::mem::take(&mut self.made);
        self.accepted.clear();
        for note in made.into_iter().take(left) {
            self.keep(note);
        }
        (self.stable, self.on_the_way) = (0, None);
        self.noted.clear();
        self.are_now_stable(left);
    }

    /// With a flaw: the next life does not live through this one.
    pub(crate) fn is_skipped(&self, at: usize) -> bool {
        let Flaw::SkipsRead(which) = self.flaw else {
            return false;
        };
        let determinants = self.made.iter().enumerate();
        let mut reads = determinants.filter(|(_, note)| matches!(note, Determinant::Read { .. }));
        let before = crate::index(which.saturating_sub(1));
        reads.nth(before).is_some_and(|(place, _)| place == at)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.made.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Determinant> {
        self.made.iter()
    }

    /// Does a replay compare what is said with its notes? One that compares finds most flaws before the
    /// witness can.
    pub(crate) fn are_compared(&self) -> bool {
        self.flaw == Flaw::None
    }

    /// How much of this connection's instream was read, as far as that was noted; `None`: it was not accepted.
    pub(crate) fn read_of(&self, wanted: FlowKey) -> Option<usize> {
        let same = self.accepted.iter().rev().find(|(key, _)| *key == wanted);
        same.map(|(_, read)| *read)
    }

    fn count(&mut self, note: &Determinant) {
        match note {
            Determinant::Accepted { key, .. } => self.accepted.push((*key, 0)),
            Determinant::Read { connection, bytes } => {
                let known = self.accepted.get_mut(*connection);
                known.into_iter().for_each(|(_, read)| *read += bytes.len());
            }
            _ => {}
        }
    }
}

/// What is said goes into the hash of all that was said.
pub(crate) fn hash_output(said: &mut Digest, connection: usize, piece: &[u8]) -> u64 {
    said.add_all(&connection.to_be_bytes());
    said.add_all(piece);
    said.hash()
}
