//! Budget of a connection's socket: deferred output ([`crate::DeferredOutput`]) must fit into the socket when it
//! leaves.
//!
//! A question to the kernel costs as much as a write. Free space only grows while no other process writes, so an answer
//! is valid until its bytes are used.

/// Most deferred bytes of a connection, and most bytes in its socket while output is deferred.
pub const SOCKET_BUDGET_BYTES: u32 = 256 << 10;
/// Memory of a write in a socket besides its bytes.
const WRITE_OVERHEAD_BYTES: u32 = 4 << 10;

/// Budget of one connection, in bytes as the kernel accounts them, with overhead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketBudget {
    /// Bytes of deferred output.
    held: u32,
    /// Other free bytes, known when the program had written up to `at`.
    free: u32,
    at: u64,
}

impl SocketBudget {
    /// No deferred output, and no known free space.
    pub const NONE: Self = Self {
        held: 0,
        free: 0,
        at: 0,
    };

    /// Whether output is deferred.
    #[must_use]
    pub fn has_reserved(&self) -> bool {
        self.held > 0
    }

    /// Whether `length` more bytes fit, after `written` bytes of the program. `ask` answers the free bytes of the
    /// socket, at most [`SOCKET_BUDGET_BYTES`]. With `others_write` every call asks.
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

    /// Reserves bytes that fit.
    pub fn reserve(&mut self, length: usize) {
        self.held += taken_up_by(length);
        self.free -= taken_up_by(length);
        self.at += length as u64;
    }

    /// Deferred bytes were written.
    pub fn release(&mut self, length: usize) {
        self.held -= taken_up_by(length);
    }

    /// The program changes the size of the socket's buffer.
    pub fn forget(&mut self) {
        self.free = 0;
    }
}

/// Accounted bytes of a write; above the budget for every longer write.
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
        /// The program writes a number of bytes.
        Says(usize),
        /// The oldest deferred write leaves.
        Leaves,
        /// The client acknowledges the oldest write in the socket.
        Acknowledged,
        /// The program changes the size of the socket's buffer.
        Resized(u32),
        /// Another process writes a number of bytes.
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
        /// Deferred output fits into the socket, unless the program made the socket smaller, and stays within the
        /// budget.
        #[test]
        fn deferred_output_fits_socket(
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
                            // The write is not deferred: first all deferred output leaves, then this write.
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
                        // The socket cannot become smaller than the bytes that the budget has promised.
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
