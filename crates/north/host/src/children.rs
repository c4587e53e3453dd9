//! Children of a process, according to its record.

use std::io;

use north_abi::{Call, Record};

use crate::{Memory, framing::each};

/// Of ended children that the parent has not waited for, at most these last ones are started again: a parent may never
/// wait.
const UNREAPED_CHILDREN_MAX: usize = 16;

/// A child that the parent has not waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Child {
    number: u32,
    /// Process id for the parent; `None`: the fork was prepared only.
    pid: Option<i64>,
    /// The parent has sent a signal, which may or may not have arrived.
    is_signalled: bool,
}

/// Children that the parent has not waited for, in fork order.
#[derive(Debug, Default)]
pub(crate) struct Children {
    all: Vec<Child>,
    /// The last record prepares a fork. A second preparation shows that the fork failed.
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

    /// Children that continue after a replay, and whether their forks are recorded.
    pub(crate) fn unheard(
        &self,
        has_ended: impl Fn(u32) -> bool,
    ) -> impl Iterator<Item = (u32, bool)> {
        let ended = self.all.iter().filter(|one| has_ended(one.number)).count();
        let mut passed = ended.saturating_sub(UNREAPED_CHILDREN_MAX);
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
