//! The determinants of a stateful server, in memory that outlives its process. Determinants at a logger on another
//! machine outlive the host, too.

use rand::{Rng, rngs::SmallRng};
use wire::{FlowKey, SeqNumber};

use crate::{conversation::Digest, scenario::Flaw};

/// An event of the server, or output that is about to leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Determinant {
    /// Accept of a connection: addresses, and sequence number of the SYN.
    Accepted { key: FlowKey, isn: SeqNumber },
    /// Read of these bytes of a connection.
    Read { connection: usize, bytes: Vec<u8> },
    /// Read of the end of the input.
    Ended { connection: usize },
    /// The socket can be written again.
    Room { connection: usize },
    /// Reset of the connection.
    Failed { connection: usize },
    /// Output: a hash of this output and all earlier output.
    Says { connection: usize, hash: u64 },
    /// The socket took only this many bytes.
    Took { connection: usize, length: usize },
}

/// All determinants of a server, of all incarnations.
#[derive(Debug)]
pub(crate) struct DeterminantLog {
    made: Vec<Determinant>,
    /// With a flaw: determinants that are late.
    unmade: Vec<Determinant>,
    /// The connections in the order of accepts, and the bytes read of each.
    accepted: Vec<(FlowKey, usize)>,
    /// Number of determinants at the logger.
    stable: usize,
    /// Stable reads of the accepted connections: addresses, sequence number of the SYN, bytes.
    read_cursors: Vec<(FlowKey, SeqNumber, usize)>,
    /// Time of the next commit, and the number of stable determinants then.
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
            read_cursors: Vec::new(),
            on_the_way: None,
            flaw,
            reads: 0,
        }
    }

    pub(crate) fn make(&mut self, determinant: Determinant) {
        self.reads += u32::from(matches!(determinant, Determinant::Read { .. }));
        let forgotten = match (self.flaw, &determinant) {
            (Flaw::ForgetsRead(which), Determinant::Read { .. }) => which == self.reads,
            _ => false,
        };
        match self.flaw {
            _ if forgotten => {}
            Flaw::DeterminantsLate => self.unmade.push(determinant),
            _ => self.keep(determinant),
        }
    }

    /// With a flaw: adds the late determinants, which a death would lose.
    pub(crate) fn make_unmade(&mut self) {
        for determinant in std::mem::take(&mut self.unmade) {
            self.keep(determinant);
        }
    }

    fn keep(&mut self, determinant: Determinant) {
        self.count(&determinant);
        self.made.push(determinant);
    }

    pub(crate) fn lose_unmade(&mut self) {
        self.unmade.clear();
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Determinant> {
        self.made.get(at)
    }

    /// Sends new determinants to the logger, which answers within `lag`. Without a logger on another machine they are
    /// stable at once.
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
        for determinant in self.made.get(self.stable..length).unwrap_or_default() {
            match determinant {
                Determinant::Accepted { key, isn } => self.read_cursors.push((*key, *isn, 0)),
                Determinant::Read { connection, bytes } => {
                    let known = self.read_cursors.get_mut(*connection);
                    known.into_iter().for_each(|one| one.2 += bytes.len());
                }
                _ => {}
            }
        }
        self.stable = length;
    }

    /// The stable reads, by connection.
    pub(crate) fn read_cursors(&self) -> &[(FlowKey, SeqNumber, usize)] {
        &self.read_cursors
    }

    pub(crate) fn len(&self) -> usize {
        self.made.len()
    }

    /// Whether the first `length` determinants are stable.
    pub(crate) fn are_stable(&self, length: usize) -> bool {
        length <= self.stable
    }

    /// Loses the power of the host: the determinants at the logger stay, even those without an acknowledgement.
    pub(crate) fn lose_power(&mut self, rng: &mut SmallRng) {
        self.lose_unmade();
        let left = rng.random_range(self.stable..=self.made.len());
        let made = std::mem::take(&mut self.made);
        self.accepted.clear();
        for determinant in made.into_iter().take(left) {
            self.keep(determinant);
        }
        (self.stable, self.on_the_way) = (0, None);
        self.read_cursors.clear();
        self.are_now_stable(left);
    }

    /// With a flaw: whether the replay skips this determinant.
    pub(crate) fn is_skipped(&self, at: usize) -> bool {
        let Flaw::SkipsRead(which) = self.flaw else {
            return false;
        };
        let determinants = self.made.iter().enumerate();
        let mut reads =
            determinants.filter(|(_, determinant)| matches!(determinant, Determinant::Read { .. }));
        let before = crate::index(which.saturating_sub(1));
        reads.nth(before).is_some_and(|(place, _)| place == at)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.made.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Determinant> {
        self.made.iter()
    }

    /// Whether a replay compares its output with the determinants. A comparison finds most flaws before the
    /// invariants can.
    pub(crate) fn are_compared(&self) -> bool {
        self.flaw == Flaw::None
    }

    /// Recorded bytes of this connection's instream; `None`: no such connection was accepted.
    pub(crate) fn read_of(&self, wanted: FlowKey) -> Option<usize> {
        let same = self.accepted.iter().rev().find(|(key, _)| *key == wanted);
        same.map(|(_, read)| *read)
    }

    fn count(&mut self, determinant: &Determinant) {
        match determinant {
            Determinant::Accepted { key, .. } => self.accepted.push((*key, 0)),
            Determinant::Read { connection, bytes } => {
                let known = self.accepted.get_mut(*connection);
                known.into_iter().for_each(|(_, read)| *read += bytes.len());
            }
            _ => {}
        }
    }
}

/// Adds output to the hash of all output.
pub(crate) fn hash_output(said: &mut Digest, connection: usize, piece: &[u8]) -> u64 {
    said.add_all(&connection.to_be_bytes());
    said.add_all(piece);
    said.hash()
}
