//! Where answers began whose heads may not be recorded yet.
//!
//! The head of an answer comes by another way than what it answers. On a host that lives on it comes at
//! last; what was on its way when a host died is lost. Who takes such a connection over must know whether
//! its client has heard of an answer that nothing can be compared with, be it the last or one before it:
//! a client that is quick has asked several times more before the first head is here.
//!
//! Heads come in order, or say what was before them. So if anything behind the newest place is recorded, all
//! before it is; until then the oldest place and the next one are kept apart, because the head of the
//! oldest may be recorded as far as heads go, and nothing of the next. Of those between the next and the
//! newest nothing is kept: when the next is recorded, an answer may begin wherever the record ends.

/// Positions in the outstream, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answers {
    /// The oldest answer whose head may not be recorded.
    pub(crate) oldest: u64,
    /// The one after it, if there is one: not after its beginning.
    pub(crate) next: u64,
    pub(crate) newest: u64,
    /// All heads before this are recorded, or at least their beginnings.
    pub(crate) end: u64,
}

impl Answers {
    /// What is said from there on is one answer, and there was none before.
    pub(crate) const fn from(position: u64) -> Self {
        Self {
            oldest: position,
            next: position,
            newest: position,
            end: position,
        }
    }

    /// The client has heard everything before `at`, and speaks: what comes is another answer.
    pub(crate) const fn begins(&mut self, at: u64) {
        if at > self.newest {
            self.next_is(at);
            self.newest = at;
            self.look();
        }
    }

    /// The same; but the server had heard this before, and may have answered it before `at`, behind what is
    /// recorded.
    pub(crate) fn may_have_begun(&mut self, at: u64) {
        if at > self.newest {
            self.next_is(self.end.clamp(self.oldest, at));
            self.newest = at;
            self.look();
        }
    }

    const fn next_is(&mut self, at: u64) {
        if self.newest == self.oldest {
            self.next = at;
        }
    }

    /// A part of a head is recorded, or its beginning, that is to go up to `end`, and so are all heads before
    /// it. Tells whether that is new.
    pub(crate) const fn recorded(&mut self, end: u64) -> bool {
        let new = end > self.end;
        if new {
            self.end = end;
            self.look();
        }
        new
    }

    /// The same of a part before which the head before it ended at `before`: that may not be here.
    pub(crate) const fn recorded_after(&mut self, before: u64, end: u64) -> bool {
        before <= self.end && self.recorded(end)
    }

    const fn look(&mut self) {
        if self.end > self.newest {
            self.oldest = self.newest;
            self.next = self.newest;
        } else if self.end > self.next && self.newest > self.next {
            self.oldest = self.next;
            self.next = self.end;
        }
    }

    /// The four.
    pub(crate) const fn places(self) -> [u64; 4] {
        [self.oldest, self.next, self.newest, self.end]
    }

    /// Nothing before `position` is of interest: it was answered, and that is recorded.
    pub(crate) fn forget_before(&mut self, position: u64) {
        self.oldest = self.oldest.max(position);
        self.next = self.next.max(position);
        self.newest = self.newest.max(position);
        self.end = self.end.max(position);
    }
}

#[cfg(test)]
mod tests;
