//! Child processes. In a replay none is begun: what a child did, it has done, and what it told its parent is in
//! the parent's record. One that was still at work has died with the earlier life.

use libc::pid_t;

/// Children at once that are remembered.
const MOST: usize = 256;

/// Those whose end the program has not heard of.
pub(crate) struct Children {
    all: [pid_t; MOST],
    /// They were begun by an earlier life, which has ended.
    pub(crate) are_gone: bool,
}

impl Default for Children {
    fn default() -> Self {
        Self {
            all: [0; MOST],
            are_gone: false,
        }
    }
}

impl Children {
    /// One was begun. `false`: there are too many.
    pub(crate) fn add(&mut self, pid: pid_t) -> bool {
        let place = self.all.iter_mut().find(|place| **place == 0);
        place.map(|place| *place = pid).is_some()
    }

    /// The program has heard of this one's end.
    pub(crate) fn remove(&mut self, pid: pid_t) {
        for place in self.all.iter_mut().filter(|place| **place == pid) {
            *place = 0;
        }
    }

    /// One that has died with the earlier life, and is the one that the program waits for (-1: any).
    pub(crate) fn lost(&self, wanted: pid_t) -> Option<pid_t> {
        let mut all = self.all.iter().copied().filter(|pid| *pid != 0);
        all.find(|pid| self.are_gone && (wanted <= 0 || wanted == *pid))
    }
}
