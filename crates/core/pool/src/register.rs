//! The place of the newest table.

mod compare_and_swap;

use protocol::pool::Table;

pub use compare_and_swap::{CasRegister, Reply, Request};

/// Keeps the newest table of a pool. Each write names the epoch before: of two writers with the same knowledge, one
/// succeeds.
///
/// A write may take time. The [`Monitor`](crate::Monitor) has at most one write under way.
pub trait Register {
    /// Begins to write `table`, if the newest table still has the epoch `before`. `table` has a higher epoch.
    fn propose(&mut self, before: u64, table: Table);

    /// The outcome of the write, or a table of another writer; `None`: nothing new.
    fn outcome(&mut self) -> Option<Written>;

    /// A newer table may be there.
    fn refresh(&mut self) {}

    /// Whether a table can be written now.
    fn is_available(&self) -> bool {
        true
    }
}

/// The newest table, as the register tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// The proposal of this writer.
    Own(Table),
    /// The table of another writer; a proposal that was under way is void.
    Other(Table),
    /// The proposal of this writer was not written, and never will be.
    Failed,
}

/// A register in the memory of the only balancer.
#[derive(Debug, Clone)]
pub struct MemoryRegister {
    newest: Table,
    outcome: Option<Written>,
}

impl MemoryRegister {
    /// A register that begins with this table.
    #[must_use]
    pub const fn new(newest: Table) -> Self {
        Self {
            newest,
            outcome: None,
        }
    }

    /// The newest table.
    #[must_use]
    pub const fn newest(&self) -> &Table {
        &self.newest
    }
}

impl Register for MemoryRegister {
    fn propose(&mut self, before: u64, table: Table) {
        let is_newest = before == self.newest.epoch && table.epoch > before;
        self.outcome = Some(match is_newest {
            true => {
                self.newest = table.clone();
                Written::Own(table)
            }
            false => Written::Other(self.newest.clone()),
        });
    }

    fn outcome(&mut self) -> Option<Written> {
        self.outcome.take()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::TableKind;

    fn table(epoch: u64) -> Table {
        Table {
            epoch,
            kind: TableKind::Maglev,
            members: Vec::new(),
            granters: Vec::new(),
        }
    }

    #[test]
    fn second_writer_with_same_knowledge_is_refused() {
        let mut register = MemoryRegister::new(table(1));
        register.propose(1, table(2));
        assert_eq!(register.outcome(), Some(Written::Own(table(2))));
        register.propose(1, table(3));
        assert_eq!(register.outcome(), Some(Written::Other(table(2))));
        assert_eq!(register.outcome(), None);
        register.propose(2, table(2));
        assert_eq!(register.outcome(), Some(Written::Other(table(2))));
    }
}
