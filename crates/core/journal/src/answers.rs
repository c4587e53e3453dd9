//! Where responses began whose heads may not be recorded yet.
//!
//! The head of a response arrives by another way than the request. On a host that lives on, the head arrives in the
//! end; data in flight is lost when a host dies. A host that takes such a connection over must know whether the client
//! has received a response without a head for comparison. That response may be the last or an earlier response: a
//! quick client has sent several more requests before the first head is here.
//!
//! Heads arrive in order, or name the end of the head before. If any byte behind the newest place is recorded, all
//! heads before that place are recorded. Until then the oldest place and the next place are kept apart, because the
//! head of the oldest response may be recorded in full, and no byte of the next. Places between the next and the
//! newest are not kept: once the next head is recorded, a response may begin wherever the record ends.

/// Positions in the outstream, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answers {
    /// The oldest answer whose head may not be recorded.
    pub(crate) oldest: u64,
    /// Not after the beginning of the response behind the oldest, if there is such a response.
    pub(crate) next: u64,
    pub(crate) newest: u64,
    /// All heads before this position are recorded, at least the first bytes of each.
    pub(crate) end: u64,
}

impl Answers {
    /// All output from `position` on is the first response.
    pub(crate) const fn from(position: u64) -> Self {
        Self {
            oldest: position,
            next: position,
            newest: position,
            end: position,
        }
    }

    /// The client has received all output before `at`, and sends: the next output is another response.
    pub(crate) const fn begins(&mut self, at: u64) {
        if at > self.newest {
            self.next_is(at);
            self.newest = at;
            self.look();
        }
    }

    /// As `begins`, but the server had received the request before, and may have begun the response before `at`,
    /// behind the recorded output.
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

    /// A head that extends to `end` is recorded, at least the first bytes, and so are all heads before. Returns
    /// whether that is new.
    pub(crate) const fn recorded(&mut self, end: u64) -> bool {
        let new = end > self.end;
        if new {
            self.end = end;
            self.look();
        }
        new
    }

    /// As `recorded`, for a head whose predecessor ended at `before`: the predecessor may not be here.
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

    /// Forgets all places before `position`: the requests there are answered, and the responses are recorded.
    pub(crate) fn forget_before(&mut self, position: u64) {
        self.oldest = self.oldest.max(position);
        self.next = self.next.max(position);
        self.newest = self.newest.max(position);
        self.end = self.end.max(position);
    }
}

#[cfg(test)]
mod tests;
