//! Child processes. Those that a replay does not begin again have done what they did, and what they told their parent is in
//! the parent's record. One of them that was still at work has died with the earlier life.

use libc::pid_t;

/// Children at once that are remembered.
const MOST: usize = 4096;

/// One whose end the program has not heard of.
#[derive(Clone, Copy, Default)]
struct Child {
    /// Its process id, as the program knows it; 0: none.
    known: pid_t,
    /// The one that it has; 0: it has died with an earlier life.
    real: pid_t,
    /// The number of its stream.
    number: u32,
}

/// Those whose end the program has not heard of.
pub(crate) struct Children([Child; MOST]);

impl Default for Children {
    fn default() -> Self {
        Self([Child::default(); MOST])
    }
}

impl Children {
    /// One was begun, or was once. `false`: there are too many.
    pub(crate) fn add(&mut self, known: pid_t, real: pid_t, number: u32) -> bool {
        let place = self.0.iter_mut().find(|place| place.known == 0);
        let child = Child {
            known,
            real,
            number,
        };
        place.map(|place| *place = child).is_some()
    }

    fn get(&self, known: pid_t) -> Option<&Child> {
        self.0
            .iter()
            .find(|child| known > 0 && child.known == known)
    }

    /// The program has heard of this one's end.
    pub(crate) fn remove(&mut self, known: pid_t) {
        for place in self.0.iter_mut().filter(|child| child.known == known) {
            *place = Child::default();
        }
    }

    /// One that has died with the earlier life, and is the one that the program waits for (-1: any).
    pub(crate) fn lost(&self, wanted: pid_t) -> Option<pid_t> {
        let lost = |child: &&Child| child.known != 0 && child.real == 0;
        let mut lost = self.0.iter().filter(lost).map(|child| child.known);
        lost.find(|known| wanted <= 0 || wanted == *known)
    }

    /// The process that the program means.
    pub(crate) fn real(&self, known: pid_t) -> pid_t {
        self.get(known).map_or(known, |child| child.real)
    }

    /// How the program knows this process.
    pub(crate) fn known(&self, real: pid_t) -> pid_t {
        let child = self.0.iter().find(|child| real > 0 && child.real == real);
        child.map_or(real, |child| child.known)
    }

    /// The number of its stream.
    pub(crate) fn number(&self, known: pid_t) -> Option<u32> {
        self.get(known).map(|child| child.number)
    }
}
