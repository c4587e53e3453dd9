//! Where answers began whose heads may not be recorded yet.
//!
//! The head of an answer comes by another way than what it answers. On a host that lives on it comes at
//! last; what was on its way when a host died is lost. Who takes such a connection over must know whether
//! its client has heard of an answer that nothing can be compared with, be it the last or one before it:
//! a client that is quick has asked several times more before the first head is here.
//!
//! Heads come in order. So if anything behind the newest place is recorded, all before it is; until then the
//! oldest place and the next one are kept apart, because the head of the oldest may be recorded as far as
//! heads go, and nothing of the next. Of those between the next and the newest nothing is kept: when the
//! next is recorded, an answer may begin wherever the record ends.

/// Positions in the outstream, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answers {
    /// The oldest answer whose head may not be recorded.
    pub(crate) oldest: u64,
    /// The one after it, if there is one: not after its beginning.
    pub(crate) next: u64,
    pub(crate) newest: u64,
}

impl Answers {
    /// What is said from there on is one answer, and there was none before.
    pub(crate) const fn from(position: u64) -> Self {
        Self {
            oldest: position,
            next: position,
            newest: position,
        }
    }

    /// The client has heard everything before `at`, and speaks: what comes is another answer.
    pub(crate) const fn begins(&mut self, at: u64) {
        if at > self.newest {
            self.next_is(at);
            self.newest = at;
        }
    }

    /// The same; but the server had heard this before, and may have answered it before `at`, behind what is
    /// `recorded`.
    pub(crate) fn may_have_begun(&mut self, at: u64, recorded: u64) {
        if at > self.newest {
            self.next_is(recorded.clamp(self.oldest, at));
            self.newest = at;
        }
    }

    const fn next_is(&mut self, at: u64) {
        if self.newest == self.oldest {
            self.next = at;
        }
    }

    /// The outstream is recorded up to `end`, as far as it is to be.
    pub(crate) const fn recorded(&mut self, end: u64) {
        if end > self.newest {
            *self = Self::from(self.newest);
        } else if end > self.next && self.newest > self.next {
            self.oldest = self.next;
            self.next = end;
        }
    }

    /// Nothing before `position` is of interest: it was answered, and that is recorded.
    pub(crate) fn forget_before(&mut self, position: u64) {
        self.oldest = self.oldest.max(position);
        self.next = self.next.max(position);
        self.newest = self.newest.max(position);
    }
}

#[cfg(test)]
mod tests;
