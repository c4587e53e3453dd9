//! How much a connection's socket takes of what is held of it ([`crate::DeferredOutput`]): what is taken for written has to fit
//! when it leaves.
//!
//! To ask the kernel before each word would cost as much as to write it. What is free only grows while nobody else
//! writes, so an answer is good until what it said is used up.

/// No more is held of a connection, or is in its socket when more is held, bytes.
pub const SOCKET_BUDGET_BYTES: u32 = 256 << 10;
/// What a write may take up in a socket besides its bytes.
const WRITE_OVERHEAD_BYTES: u32 = 4 << 10;

/// Of one connection, in bytes by the kernel's count, which has more for a write than what is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketBudget {
    /// What is held takes up so much.
    held: u32,
    /// So much is free besides, as was known when the program had written up to `at`.
    free: u32,
    at: u64,
}

impl SocketBudget {
    /// Nothing is held, and nothing is known.
    pub const NONE: Self = Self {
        held: 0,
        free: 0,
        at: 0,
    };

    /// Is something held?
    #[must_use]
    pub fn has_reserved(&self) -> bool {
        self.held > 0
    }

    /// Is there room for `length` more of a program that has `written` so much? `ask` says what is free in the socket,
    /// of [`SOCKET_BUDGET_BYTES`] at most; `others_write`: it has to be asked each time.
    pub fn fits(
        &mut self,
        length: usize,
        written: u64,
        others_write: bool,
        ask: impl FnOnce() -> u32,
    ) -> bool {
        let wanted = taken_up_by(length);
        if others_write || self.at != written || self.free < wanted {
            self.free = ask().saturating_sub(self.held);
            self.at = written;
        }
        self.free >= wanted
    }

    /// So much is held, for which there is room: it is taken for written.
    pub fn reserve(&mut self, length: usize) {
        self.held += taken_up_by(length);
        self.free -= taken_up_by(length);
        self.at += length as u64;
    }

    /// So much of it leaves.
    pub fn release(&mut self, length: usize) {
        self.held -= taken_up_by(length);
    }

    /// The program changes how much its socket takes.
    pub fn forget(&mut self) {
        self.free = 0;
    }
}

/// What is larger than all that is held of a connection takes up more than that.
fn taken_up_by(length: usize) -> u32 {
    let bytes = u32::try_from(length).unwrap_or(u32::MAX);
    2 * bytes.min(SOCKET_BUDGET_BYTES) + WRITE_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        /// The program says so much.
        Says(usize),
        /// The oldest that is held leaves.
        Leaves,
        /// The client acknowledges the oldest that is in the socket.
        Acknowledged,
        /// The program changes how much the socket takes.
        Resized(u32),
        /// Another process writes so much.
        OtherSays(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..20_000usize).prop_map(Step::Says),
            1 => (0..600_000usize).prop_map(Step::Says),
            6 => Just(Step::Leaves),
            5 => Just(Step::Acknowledged),
            1 => (0..1_000_000u32).prop_map(Step::Resized),
            1 => (0..20_000usize).prop_map(Step::OtherSays),
        ]
    }

    proptest! {
        /// Whatever is taken for written fits when it leaves, but where the socket was made smaller meanwhile; and no
        /// more is held than may be.
        #[test]
        fn what_is_taken_for_written_fits(
            sharing in any::<bool>(),
            mut size in 0..1_000_000u32,
            steps in prop::collection::vec(step(), 1..400),
        ) {
            let (mut room, mut written) = (SocketBudget::NONE, 0);
            let (mut held, mut queue) = (VecDeque::new(), VecDeque::new());
            let sum = |parts: &VecDeque<usize>| parts.iter().map(|length| taken_up_by(*length)).sum::<u32>();
            for step in steps {
                match step {
                    Step::Says(length) => {
                        let queued = sum(&queue);
                        let ask = || size.min(SOCKET_BUDGET_BYTES).saturating_sub(queued);
                        if room.fits(length, written, sharing, ask) {
                            room.reserve(length);
                            held.push_back(length);
                        } else {
                            // It is written at once, behind all that is held, as far as there is room.
                            for length in held.drain(..) {
                                room.release(length);
                                queue.push_back(length);
                            }
                            queue.push_back(length);
                        }
                        written += length as u64;
                        prop_assert!(sum(&held) <= SOCKET_BUDGET_BYTES);
                    }
                    Step::Leaves => {
                        if let Some(length) = held.pop_front() {
                            room.release(length);
                            queue.push_back(length);
                            prop_assert!(sum(&queue) <= size, "{} of {size}", sum(&queue));
                        }
                    }
                    Step::Acknowledged => drop(queue.pop_front()),
                    Step::Resized(to) => {
                        // What is held was taken by what it was.
                        size = to.max(sum(&held) + sum(&queue));
                        room.forget();
                    }
                    Step::OtherSays(length) if sharing && held.is_empty() => queue.push_back(length),
                    Step::OtherSays(_) => {}
                }
                prop_assert_eq!(room.has_reserved(), !held.is_empty());
            }
        }
    }
}
