//! The place of the newest table: the memory of the only balancer, or etcd.

use std::{os::fd::BorrowedFd, time::Duration};

use pool::{MemoryRegister, Register, Written};
use protocol::pool::Table;

use crate::etcd::EtcdRegister;

/// The register of a balancer.
pub(crate) enum PoolRegister {
    Memory(MemoryRegister),
    Etcd(EtcdRegister),
}

/// A change of the register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RegisterNews {
    Lost(String),
    Back,
}

impl PoolRegister {
    /// Takes replies, and sends the next request. Returns whether the register was lost, or is back.
    pub(crate) fn poll(&mut self, now: Duration) -> Option<RegisterNews> {
        match self {
            Self::Memory(_) => None,
            Self::Etcd(etcd) => etcd.poll(now),
        }
    }

    pub(crate) fn due_at(&self) -> Option<Duration> {
        match self {
            Self::Memory(_) => None,
            Self::Etcd(etcd) => etcd.due_at(),
        }
    }

    /// Readable when a reply has come.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Memory(_) => None,
            Self::Etcd(etcd) => Some(etcd.as_fd()),
        }
    }

    /// The servers. `None` for the memory.
    pub(crate) fn name(&self) -> Option<String> {
        match self {
            Self::Memory(_) => None,
            Self::Etcd(etcd) => Some(etcd.name()),
        }
    }

    /// Why the register does not answer.
    pub(crate) fn failure(&self) -> Option<String> {
        match self {
            Self::Memory(_) => None,
            Self::Etcd(etcd) => etcd.failure(),
        }
    }
}

impl Register for PoolRegister {
    fn propose(&mut self, before: u64, table: Table) {
        match self {
            Self::Memory(memory) => memory.propose(before, table),
            Self::Etcd(etcd) => etcd.cas().propose(before, table),
        }
    }

    fn outcome(&mut self) -> Option<Written> {
        match self {
            Self::Memory(memory) => memory.outcome(),
            Self::Etcd(etcd) => etcd.cas().outcome(),
        }
    }

    fn refresh(&mut self) {
        match self {
            Self::Memory(memory) => memory.refresh(),
            Self::Etcd(etcd) => etcd.cas().refresh(),
        }
    }

    fn is_available(&self) -> bool {
        match self {
            Self::Memory(memory) => memory.is_available(),
            Self::Etcd(etcd) => etcd.is_available(),
        }
    }
}
