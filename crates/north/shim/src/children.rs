//! Child processes. Those that a replay does not begin again have done what they did, and what they told their parent
//! is in the parent's record. One of them that was still at work has died with the earlier life.

use core::mem::MaybeUninit;

use libc::{pid_t, siginfo_t};

use crate::sys::sys;

/// Children at once.
const CHILDREN_MAX: usize = 4096;

/// One whose end the program has not heard of.
#[derive(Clone, Copy, Default)]
struct Child {
    /// Its process id, as the program knows it; 0: none.
    known: pid_t,
    /// The one that it has; 0: it has died with an earlier life.
    real: pid_t,
    /// The number of its stream.
    number: u32,
    /// Its signal is in the record; its own, in a replay, is none.
    is_heard: bool,
}

impl Child {
    /// What the kernel says, if it has ended and the program has not waited for it.
    fn end(&self) -> Option<End> {
        if self.real <= 0 {
            return None;
        }
        let mut about = MaybeUninit::<siginfo_t>::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        let (kind, at) = (libc::P_PID, about.as_mut_ptr());
        // SAFETY: room on our stack, which is a structure in any case.
        unsafe {
            let outcome = sys!(SYS_waitid, kind, self.real, at, flags, 0);
            let about = about.assume_init();
            (outcome == 0 && about.si_pid() != 0).then_some(End(about))
        }
    }
}

/// How a child has ended.
#[derive(Clone, Copy)]
pub(crate) struct End(pub(crate) siginfo_t);

impl End {
    /// Has a signal ended it?
    pub(crate) fn is_kill(&self) -> bool {
        matches!(self.0.si_code, libc::CLD_KILLED | libc::CLD_DUMPED)
    }

    /// Has it died of its client's going away?
    pub(crate) fn is_broken(&self) -> bool {
        // SAFETY: of a child's end this field is filled in.
        self.is_kill() && unsafe { self.0.si_status() } == libc::SIGPIPE
    }
}

/// Those whose end the program has not heard of.
pub(crate) struct Children([Child; CHILDREN_MAX]);

impl Default for Children {
    fn default() -> Self {
        Self([Child::default(); CHILDREN_MAX])
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
            is_heard: false,
        };
        place.map(|place| *place = child).is_some()
    }

    fn get(&self, known: pid_t) -> Option<&Child> {
        self.0
            .iter()
            .find(|child| known > 0 && child.known == known)
    }

    /// The program has heard of this one's end. Was it told by a signal of the record, so that its own is no news?
    pub(crate) fn remove(&mut self, known: pid_t) -> bool {
        let mut was_heard = false;
        for place in self.0.iter_mut().filter(|child| child.known == known) {
            was_heard |= place.is_heard;
            *place = Child::default();
        }
        was_heard
    }

    /// One that has died with the earlier life, and is the one that the program waits for (-1: any).
    pub(crate) fn lost(&self, wanted: pid_t) -> Option<pid_t> {
        let lost = |child: &&Child| child.known != 0 && child.real == 0;
        let mut lost = self.0.iter().filter(lost).map(|child| child.known);
        lost.find(|known| wanted <= 0 || wanted == *known)
    }

    /// Is one of them known by this number?
    pub(crate) fn has(&self, known: pid_t) -> bool {
        self.get(known).is_some()
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

    /// The record has the signal that tells of this one's end.
    pub(crate) fn hear(&mut self, known: pid_t) {
        let mut all = self.0.iter_mut();
        if let Some(child) = all.find(|child| known > 0 && child.known == known) {
            child.is_heard = child.real > 0;
        }
    }

    /// What the kernel says of one that has ended, and that the program has not waited for.
    pub(crate) fn ended(&self) -> Option<siginfo_t> {
        self.ends().next().map(|(_, end)| end.0)
    }

    /// How those have ended that the program has not waited for, and how it knows them.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (pid_t, End)> {
        let all = self.0.iter();
        all.filter_map(|child| Some((child.known, child.end()?)))
    }

    /// The number of its stream.
    pub(crate) fn number(&self, known: pid_t) -> Option<u32> {
        self.get(known).map(|child| child.number)
    }
}
