//! Output leaves when all that it may depend on is with the logger (*output commit*; `ft-tcp-infocom-2001`, IV.D).
//!
//! The process tells the logger by itself ([`crate::determinant_sender`]) when it is about to say something and there is
//! something that the logger does not have. That is so with every word, whose own note is new. It says all that any
//! process of the service has recorded: what it is about to say may depend on that. Here the program waits for the
//! answer. Where it says several words in a turn of its event loop, or the answer takes long, they leave later
//! ([`crate::output_commit::deferred`]).

use core::sync::atomic::Ordering;

use north_abi::layout::{Fate, Hold, Mode, Process};

use crate::{
    clock, determinant_sender::LoggerReply, helpers::for_us, messages::say, sys::sys, wrap::Wrap,
};

/// How long the answer is waited for before it is all said again, microseconds: at first, and at last.
pub(crate) const REPLY_TIMEOUT_MIN_US: i64 = 20_000;
pub(crate) const REPLY_TIMEOUT_MAX_US: i64 = 200_000;

impl Wrap {
    /// Something is about to be said: wait until everything that was recorded is safe. There is nothing to wait for in
    /// a replay.
    #[inline]
    pub(crate) fn commit(&mut self) {
        if self.is_replay {
            return;
        }
        self.stream.record_output();
        self.commit_replayed();
    }

    /// The same for what the supervisor says of what was said in a replay.
    #[inline]
    pub(crate) fn commit_replayed(&mut self) {
        if self.page.hold.load(Ordering::Relaxed) != Hold::Never as u32 || !self.deferred.is_empty()
        {
            self.await_stable();
        }
    }

    /// The same before something is done that is no word to a client.
    #[inline]
    pub(crate) fn commit_effect(&mut self) {
        if self.page.hold.load(Ordering::Relaxed) == Hold::EffectsToo as u32 && !self.is_replay {
            self.await_stable();
        }
    }

    /// What was said before leaves, too.
    pub(crate) fn await_stable(&mut self) {
        loop {
            if !self.may_write() {
                let since = clock::monotonic();
                for_us(|| self.await_answer());
                let took = clock::monotonic().saturating_sub(since);
                self.round_trip.took(took);
                self.page.commits.waited(took);
            }
            self.release_deferred();
            // A logger that has come back without its records has not what the one before had.
            if self.deferred.is_empty() {
                return;
            }
        }
    }

    fn await_answer(&mut self) {
        self.settle_ended();
        let mut patience = REPLY_TIMEOUT_MIN_US;
        while !self.may_write() {
            if !self.connect_logger() {
                pause(patience);
                continue;
            }
            let under_way = self.send_determinants();
            patience = match self.await_acks(under_way, patience) {
                true => REPLY_TIMEOUT_MIN_US,
                false => (patience * 2).min(REPLY_TIMEOUT_MAX_US),
            };
        }
    }

    /// Is what is said to be held at all?
    pub(crate) fn requires_commit(&self) -> bool {
        let held = self.page.hold.load(Ordering::Acquire) != Hold::Never as u32;
        held && self.page.mode.load(Ordering::Acquire) == Mode::Record as u32
    }

    /// Is there nothing that has to be waited for?
    pub(crate) fn may_write(&self) -> bool {
        !self.requires_commit() || self.processes().all(|(_, process)| is_stable(process))
    }

    /// Those that have ended, and whose records are all with the logger, need not be looked at again.
    fn settle_ended(&self) {
        let page = self.page;
        let count = page.next_process.load(Ordering::Acquire);
        let is_settled = |number: &u32| {
            let process = &page.processes.0[*number as usize];
            process.has(Fate::Ends) && is_stable(process)
        };
        page.settled.advance(|known| {
            let first = (known..count).find(|number| !is_settled(number));
            first.unwrap_or(count).max(known)
        });
    }

    /// Those that may have recorded what the logger does not have, with their numbers.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (u32, &'static Process)> + use<> {
        let count = self.page.next_process.load(Ordering::Acquire);
        let settled = self.page.settled.number();
        let all = &self.page.processes.0;
        let own = (1..settled).contains(&self.process);
        let own = own.then_some(self.process); // it has not ended yet
        let numbers = (0..1).chain(own).chain(settled..count);
        numbers.filter_map(|number| Some((number, all.get(number as usize)?)))
    }

    /// Hear of `under_way` bytes. `false`: not of all of them in time.
    fn await_acks(&mut self, under_way: u64, patience: i64) -> bool {
        let before = self.stable_bytes();
        loop {
            match self
                .busy_poll_ack()
                .unwrap_or_else(|| self.receive_within(patience))
            {
                LoggerReply::Full => {
                    self.is_over();
                    return true;
                }
                LoggerReply::Unreachable => {
                    pause(patience); // it says so at once
                    return self.may_write();
                }
                LoggerReply::TimedOut => return self.may_write(),
                LoggerReply::Ignored => {}
                LoggerReply::Progress => {
                    if self.stable_bytes().wrapping_sub(before) >= under_way {
                        return true;
                    }
                }
            }
        }
    }

    /// What comes soon, if that is to be expected.
    fn busy_poll_ack(&mut self) -> Option<LoggerReply> {
        if !self.round_trip.is_short() {
            return None;
        }
        let until = self.round_trip.awake.until(clock::monotonic())?;
        loop {
            match self.receive_now() {
                LoggerReply::TimedOut => {}
                heard => return Some(heard),
            }
            let then = clock::monotonic();
            if then >= until {
                self.round_trip.awake.was_undisturbed();
                return None;
            }
            // SAFETY: no memory is involved.
            unsafe { sys!(SYS_sched_yield) };
            if !self.round_trip.awake.has_offered(then, clock::monotonic()) {
                return None;
            }
        }
    }

    /// The logger has no room for more.
    #[cold]
    pub(crate) fn is_over(&self) {
        say(&[b"the logger has no room for the record: recording has stopped"]);
        let ended = Mode::LoggerFull as u32;
        self.page.mode.store(ended, Ordering::Release);
    }

    fn stable_bytes(&self) -> u64 {
        let stable = self
            .processes()
            .map(|(_, process)| process.stable.load(Ordering::Acquire));
        stable.fold(0, u64::wrapping_add)
    }

    /// The record ends here. Before anything is said that is not in it, the logger is not to take it for whole.
    #[cold]
    pub(crate) fn end_record(&mut self, mode: Mode) {
        let mut patience = REPLY_TIMEOUT_MIN_US;
        while self.requires_commit() {
            if !self.connect_logger() {
                pause(patience);
                continue;
            }
            self.send_end();
            match self.receive_within(patience) {
                LoggerReply::Full => break,
                LoggerReply::Unreachable => pause(patience),
                _ => {}
            }
            patience = (patience * 2).min(REPLY_TIMEOUT_MAX_US);
        }
        self.page.mode.store(mode as u32, Ordering::Release);
    }
}

pub(crate) fn is_stable(process: &Process) -> bool {
    process.stable.load(Ordering::Acquire) >= process.head.load(Ordering::Acquire)
}

fn pause(microseconds: i64) {
    clock::sleep(microseconds * 1000);
}
