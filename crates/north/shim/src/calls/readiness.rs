//! Ready descriptors, and their order.

pub(crate) mod epoll;
mod polling;

use libc::c_int;
use north_abi::{Call, Header, Ready, ReadyReader, ReadyWriter};

use crate::{sys::Outcome, wrap::Wrap};

/// Most ready descriptors of one answer. A program that asks for more gets the first of them.
const READY_MAX: usize = 1024;
/// Ready descriptors that need no memory mapping.
const READY_ON_STACK: usize = 32;
/// Size of the kernel's signal set.
pub(super) const SIGNAL_SET_BYTES: usize = 8;

impl Wrap {
    /// A list of ready descriptors: the recorded list, or the list that `perform` finds.
    fn ready(
        &mut self,
        call: Call,
        fd: c_int,
        mut perform: impl FnMut(&mut Self) -> Outcome,
        list: impl FnMut(&mut ReadyWriter<'_>, i64),
        mut take: impl FnMut(Ready),
    ) -> Outcome {
        let replayed = self.replayed(call, fd, |record| {
            if record.outcome < 0 {
                return record.outcome;
            }
            let mut count = 0;
            for ready in ReadyReader::new(record.payload) {
                take(ready);
                count += 1;
            }
            count
        });
        if let Some(outcome) = replayed {
            self.has_slept();
            return outcome;
        }
        self.begin_iteration();
        let outcome = perform(self);
        if outcome > 0 {
            self.poll_sibling_crash();
        }
        self.has_slept();
        let mut room = [0; READY_ON_STACK * ReadyWriter::MAX_EACH];
        if usize::try_from(outcome).is_ok_and(|count| count > READY_ON_STACK) {
            let mut room = [0; READY_MAX * ReadyWriter::MAX_EACH];
            self.record_ready(call, fd, outcome, ReadyWriter::new(&mut room), list);
        } else {
            self.record_ready(call, fd, outcome, ReadyWriter::new(&mut room), list);
        }
        outcome
    }

    fn record_ready(
        &mut self,
        call: Call,
        fd: c_int,
        outcome: Outcome,
        mut writer: ReadyWriter<'_>,
        mut list: impl FnMut(&mut ReadyWriter<'_>, i64),
    ) {
        if outcome > 0 {
            list(&mut writer, outcome);
        }
        let payload = writer.bytes();
        let header = Header {
            call,
            fd: fd.cast_unsigned(),
            outcome: if outcome < 0 {
                outcome
            } else {
                payload.len() as i64
            },
            length: payload.len(),
        };
        self.append(header, |room| room.copy_from_slice(payload));
    }
}
