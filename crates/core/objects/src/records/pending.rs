//! Operations under way.

use alloc::collections::BTreeMap;

use wire::FlowKey;

use crate::record::{HashName, Record};
use crate::store::StoresTicket;

/// An operation under way.
#[derive(Debug)]
pub(super) enum Pending {
    Put {
        key: FlowKey,
        record: Record,
        tries: u32,
    },
    LookUp(FlowKey),
    Scan(HashName),
    /// The own name.
    AddMember,
    /// With the number of the look.
    Members(u64),
    Other,
}

/// All operations under way. A question about a connection must not take longer when there are many.
#[derive(Debug, Default)]
pub(super) struct Operations {
    pending: BTreeMap<StoresTicket, Pending>,
    /// Records on the way to the store, by connection.
    puts: BTreeMap<FlowKey, usize>,
}

impl Operations {
    pub(super) fn insert(&mut self, ticket: StoresTicket, pending: Pending) {
        if let Pending::Put { key, .. } = &pending {
            *self.puts.entry(*key).or_default() += 1;
        }
        self.pending.insert(ticket, pending);
    }

    /// The operation is over.
    pub(super) fn remove(&mut self, ticket: &StoresTicket) -> Option<Pending> {
        let pending = self.pending.remove(ticket)?;
        if let Pending::Put { key, .. } = &pending
            && let Some(puts) = self.puts.get_mut(key)
        {
            *puts -= 1;
            if *puts == 0 {
                self.puts.remove(key);
            }
        }
        Some(pending)
    }

    /// Whether a record of the connection is on the way to the store.
    pub(super) fn is_writing(&self, key: &FlowKey) -> bool {
        self.puts.contains_key(key)
    }

    /// Whether an operation of any connection is under way.
    pub(super) fn has_connection(&self) -> bool {
        let mut pending = self.pending.values();
        !self.puts.is_empty() || pending.any(|it| matches!(it, Pending::LookUp(_)))
    }

    /// The outcomes of puts are of no interest any more.
    pub(super) fn forget_puts(&mut self) {
        self.puts.clear();
        for pending in self.pending.values_mut() {
            if matches!(pending, Pending::Put { .. }) {
                *pending = Pending::Other;
            }
        }
    }

    /// Only the names of members are of interest.
    pub(super) fn retain_names(&mut self) {
        self.puts.clear();
        let is_of_names = |it: &Pending| matches!(it, Pending::AddMember | Pending::Members(_));
        self.pending.retain(|_, it| is_of_names(it));
    }
}
