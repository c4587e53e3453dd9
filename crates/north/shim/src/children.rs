//! Child processes. A child that a replay does not start again has done its work, and the parent's record has the
//! child's output to the parent. A child that was at work has died with the earlier incarnation.

use core::mem::MaybeUninit;

use libc::{pid_t, siginfo_t};

use crate::sys::sys;

/// Children at once.
const CHILDREN_MAX: usize = 4096;

/// A child whose end the program has not seen.
#[derive(Clone, Copy, Default)]
struct Child {
    /// Process id as the program knows the child; 0: none.
    known: pid_t,
    /// Present process id; 0: the child died with an earlier incarnation.
    real: pid_t,
    /// Number of the child's stream.
    number: u32,
    /// The record has the SIGCHLD of this child; a second SIGCHLD in a replay is not delivered.
    is_heard: bool,
}

impl Child {
    /// The end of the child according to the kernel, if the program has not waited yet.
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

/// The end of a child.
#[derive(Clone, Copy)]
pub(crate) struct End(pub(crate) siginfo_t);

impl End {
    /// Whether a signal killed the child.
    pub(crate) fn is_kill(&self) -> bool {
        matches!(self.0.si_code, libc::CLD_KILLED | libc::CLD_DUMPED)
    }

    /// Whether the child died of SIGPIPE, because a client had left.
    pub(crate) fn is_broken(&self) -> bool {
        // SAFETY: of a child's end this field is filled in.
        self.is_kill() && unsafe { self.0.si_status() } == libc::SIGPIPE
    }
}

/// The children whose end the program has not seen.
pub(crate) struct Children([Child; CHILDREN_MAX]);

impl Default for Children {
    fn default() -> Self {
        Self([Child::default(); CHILDREN_MAX])
    }
}

impl Children {
    /// Adds a child. `false`: there are too many.
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

    /// The program has seen this child's end. Returns whether the record had the SIGCHLD, which makes a second
    /// SIGCHLD superfluous.
    pub(crate) fn remove(&mut self, known: pid_t) -> bool {
        let mut was_heard = false;
        for place in self.0.iter_mut().filter(|child| child.known == known) {
            was_heard |= place.is_heard;
            *place = Child::default();
        }
        was_heard
    }

    /// A child that died with the earlier incarnation, among the children that the program waits for (-1: any).
    pub(crate) fn lost(&self, wanted: pid_t) -> Option<pid_t> {
        let lost = |child: &&Child| child.known != 0 && child.real == 0;
        let mut lost = self.0.iter().filter(lost).map(|child| child.known);
        lost.find(|known| wanted <= 0 || wanted == *known)
    }

    /// Whether a child is known by this process id.
    pub(crate) fn has(&self, known: pid_t) -> bool {
        self.get(known).is_some()
    }

    /// The process that the program means.
    pub(crate) fn real(&self, known: pid_t) -> pid_t {
        self.get(known).map_or(known, |child| child.real)
    }

    /// The process id that the program knows.
    pub(crate) fn known(&self, real: pid_t) -> pid_t {
        let child = self.0.iter().find(|child| real > 0 && child.real == real);
        child.map_or(real, |child| child.known)
    }

    /// The record has the SIGCHLD of this child.
    pub(crate) fn hear(&mut self, known: pid_t) {
        let mut all = self.0.iter_mut();
        if let Some(child) = all.find(|child| known > 0 && child.known == known) {
            child.is_heard = child.real > 0;
        }
    }

    /// The kernel's information about an ended child for which the program has not waited.
    pub(crate) fn ended(&self) -> Option<siginfo_t> {
        self.ends().next().map(|(_, end)| end.0)
    }

    /// The ends of children for which the program has not waited, with the process ids that the program knows.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (pid_t, End)> {
        let all = self.0.iter();
        all.filter_map(|child| Some((child.known, child.end()?)))
    }

    /// Number of the child's stream.
    pub(crate) fn number(&self, known: pid_t) -> Option<u32> {
        self.get(known).map(|child| child.number)
    }
}
