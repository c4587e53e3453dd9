//! The children of a process, as its record has them.

use std::io;

use north_abi::{Call, Record};

use crate::{Memory, framing::each};

/// Of children that have ended, and of which the parent has not heard, so many are begun again, the last ones: it may
/// be one that never asks.
const ENDED: usize = 16;

/// One of whose end the parent has not heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Child {
    number: u32,
    /// As the parent knows it; `None`: it was only about to be begun.
    pid: Option<i64>,
    /// The parent has sent it a signal, of which nobody knows whether it had arrived.
    is_signalled: bool,
}

/// Those of whose end the parent has not heard, in the order of their beginnings.
#[derive(Debug, Default)]
pub(crate) struct Children {
    all: Vec<Child>,
    /// The last record says that one is to be begun. If the next one does, too, it was not.
    is_fork_prepared: bool,
}

impl Children {
    pub(crate) fn of(memory: &Memory, parent: u32) -> io::Result<Self> {
        let mut children = Self::default();
        each(memory, parent, memory.base(parent), |_, record| {
            children.take(record);
        })?;
        Ok(children)
    }

    fn take(&mut self, record: &Record<'_>) {
        let is_fork_prepared = record.call == Call::Fork && record.fd == 0;
        match record.call {
            Call::Fork if is_fork_prepared => {
                if self.is_fork_prepared {
                    self.all.pop();
                }
                self.all
                    .extend(u32::try_from(record.outcome).map(|number| Child {
                        number,
                        pid: None,
                        is_signalled: false,
                    }));
            }
            Call::Fork if record.outcome > 0 => {
                let mut its = self.all.iter_mut().filter(|one| one.number == record.fd);
                if let Some(child) = its.next() {
                    child.pid = Some(record.outcome);
                }
            }
            Call::Fork => self.all.retain(|one| one.number != record.fd),
            Call::Wait => self.all.retain(|one| one.pid != Some(record.outcome)),
            Call::Kill => {
                let pid = i64::from(record.fd.cast_signed());
                for child in &mut self.all {
                    child.is_signalled |= pid < 0 || child.pid == Some(pid);
                }
            }
            _ => {}
        }
        self.is_fork_prepared = is_fork_prepared;
    }

    /// Those that go on where they were. Beside them: is it known that they were begun?
    pub(crate) fn unheard(
        &self,
        has_ended: impl Fn(u32) -> bool,
    ) -> impl Iterator<Item = (u32, bool)> {
        let ended = self.all.iter().filter(|one| has_ended(one.number)).count();
        let mut passed = ended.saturating_sub(ENDED);
        self.all.iter().filter_map(move |child| {
            let goes_on = match has_ended(child.number) {
                true if passed > 0 => {
                    passed -= 1;
                    false
                }
                true => true,
                false => !child.is_signalled,
            };
            goes_on.then_some((child.number, child.pid.is_some()))
        })
    }
}
