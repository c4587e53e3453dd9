//! The barrier before output: the process sends its determinants and waits for the logger.
//!
//! Before a write the process sends the determinants that the logger does not have ([`crate::determinant_sender`]), of
//! all processes of the service: the output may depend on any of them. Each write has a determinant of its own. The
//! program waits for the logger's answer. After several writes in a loop iteration, or with a far logger, the output is
//! deferred instead ([`crate::output_commit::deferred`]).

use core::sync::atomic::Ordering;

use north_abi::layout::{Fate, Hold, Mode, Process};

use crate::{
    clock, determinant_sender::LoggerReply, helpers::for_us, messages::say, sys::sys, wrap::Wrap,
};

/// Wait for the logger's answer before all determinants are sent again, microseconds: the first wait, and the longest.
pub(crate) const REPLY_TIMEOUT_MIN_US: i64 = 20_000;
pub(crate) const REPLY_TIMEOUT_MAX_US: i64 = 200_000;

impl Wrap {
    /// Before output: waits until the logger has all determinants. A replay does not wait.
    #[inline]
    pub(crate) fn commit(&mut self) {
        if self.is_replay {
            return;
        }
        self.stream.record_output();
        self.commit_replayed();
    }

    /// As [`Self::commit`], for output of a replay that the supervisor sends.
    #[inline]
    pub(crate) fn commit_replayed(&mut self) {
        if self.page.hold.load(Ordering::Relaxed) != Hold::Never as u32 || !self.deferred.is_empty()
        {
            self.await_stable();
        }
    }

    /// As [`Self::commit`], before a write to a file or a pipe (`--output-commit=all`).
    #[inline]
    pub(crate) fn commit_effect(&mut self) {
        if self.page.hold.load(Ordering::Relaxed) == Hold::EffectsToo as u32 && !self.is_replay {
            self.await_stable();
        }
    }

    /// Waits until all determinants are stable, and sends the deferred output.
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
            // A logger that restarted without records does not have the earlier determinants.
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

    /// Whether output must wait for the logger.
    pub(crate) fn requires_commit(&self) -> bool {
        let held = self.page.hold.load(Ordering::Acquire) != Hold::Never as u32;
        held && self.page.mode.load(Ordering::Acquire) == Mode::Record as u32
    }

    /// Whether output may leave now.
    pub(crate) fn may_write(&self) -> bool {
        !self.requires_commit() || self.processes().all(|(_, process)| is_stable(process))
    }

    /// Ended processes whose streams are stable are settled, and are not polled again.
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

    /// Processes that may have unstable determinants, with their numbers.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (u32, &'static Process)> + use<> {
        let count = self.page.next_process.load(Ordering::Acquire);
        let settled = self.page.settled.number();
        let all = &self.page.processes.0;
        let own = (1..settled).contains(&self.process);
        let own = own.then_some(self.process); // this process has not ended yet
        let numbers = (0..1).chain(own).chain(settled..count);
        numbers.filter_map(|number| Some((number, all.get(number as usize)?)))
    }

    /// Waits for acknowledgements of `under_way` bytes. `false`: not all came in time.
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
                    pause(patience); // the kernel reports an unreachable logger at once
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

    /// Busy polling for an answer, if the logger is near.
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

    /// The logger takes no more determinants: recording stops.
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

    /// Recording stops. The logger must know before output leaves whose causes are not recorded.
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
