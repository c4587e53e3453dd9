//! Names of members in the store: of the tables of the pool, and of the list in the store.
//!
//! The list tells of members that have died before this member joined. The list is read with each table: a member
//! whose records are in the store was added before its first record. Until the list is there, nothing is looked up.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use wire::FlowKey;

use super::Moment;
use crate::PoolKey;
use crate::record::{HashName, MemberHash, MemberList, Record, StoreKey};
use crate::store::MembersFound;

/// Pause between two additions of the own name: a part of the period of a list.
const ADDITION_PERIOD: Duration = Duration::from_secs(600);
/// Pause after a failed addition, or a failed look into the list.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Most members of the list.
const LISTED_MAX: usize = 4096;

/// Names in the store.
#[derive(Debug)]
pub(super) struct Names {
    service: SocketAddr,
    pub(super) key: PoolKey,
    pub(super) own: HashName,
    /// Of all members that this member has heard of, by membership.
    pub(super) known: BTreeMap<u64, HashName>,
    /// The memberships of the newest table.
    pub(super) present: BTreeSet<u64>,
    /// Of all members in the list of the store.
    listed: BTreeSet<HashName>,
    list: List,
    /// Looks into the list so far: only the newest is as new as the table.
    looks: u64,
    /// When the own name is added to the list. `None`: an addition is under way, or no membership has begun.
    adds_at: Option<Duration>,
    /// Grows with each change of the names.
    pub(super) version: u64,
}

/// The list in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    /// No membership has begun.
    Unwanted,
    /// Is read then, or is being read (`None`).
    Awaited(Option<Duration>),
    /// A store has not answered. The next try comes then, or is under way (`None`).
    Incomplete(Option<Duration>),
    /// As new as the table.
    Whole,
}

impl Names {
    pub(super) fn new(service: SocketAddr, key: PoolKey, member: &str) -> Self {
        Self {
            service,
            key,
            own: HashName::new(service, MemberHash::of(member, &key)),
            known: BTreeMap::new(),
            present: BTreeSet::new(),
            listed: BTreeSet::new(),
            list: List::Unwanted,
            looks: 0,
            adds_at: None,
            version: 0,
        }
    }

    fn of(&self, member: &str) -> HashName {
        HashName::new(self.service, MemberHash::of(member, &self.key))
    }

    pub(super) fn own(&self, key: FlowKey) -> StoreKey {
        StoreKey::new(self.own, key)
    }

    /// A membership begins: other members may need the own name from now on.
    pub(super) fn begin_membership(&mut self) {
        self.present.clear();
        if self.list == List::Unwanted {
            self.adds_at = Some(Duration::ZERO);
        }
        self.list = List::Awaited(Some(Duration::ZERO));
    }

    /// A store is there again, perhaps without the list.
    pub(super) fn on_connected(&mut self) {
        if self.list != List::Unwanted {
            self.adds_at = Some(Duration::ZERO);
            self.list = List::Awaited(Some(Duration::ZERO));
        }
    }

    /// Notes the members of a table. Returns the names whose records may be orphaned, and this member's now: of members
    /// that are gone, and then of all members that are not in the table. The owner of a connection of a member that was
    /// gone before may be gone, too, before its call. With the first table of a membership, also the own name: at the
    /// end of the membership before, perhaps no other member was there.
    pub(super) fn note<'m>(
        &mut self,
        members: impl Iterator<Item = (u64, &'m str)>,
    ) -> BTreeSet<HashName> {
        let now: BTreeMap<u64, HashName> = members
            .map(|(membership, name)| (membership, self.of(name)))
            .collect();
        let before = core::mem::replace(&mut self.present, now.keys().copied().collect());
        let is_first = before.is_empty();
        let gone = { self.known.iter() }
            .filter(|(membership, _)| before.contains(membership) && !now.contains_key(membership));
        let mut names: BTreeSet<HashName> = gone.map(|(_, name)| *name).collect();
        if is_first || !names.is_empty() {
            let present: BTreeSet<&HashName> = now.values().collect();
            let all = self.known.values().chain(&self.listed);
            names.extend(all.filter(|name| !present.contains(name)));
        }
        if is_first {
            names.insert(self.own);
        }
        self.known.extend(now);
        self.list = List::Awaited(Some(Duration::ZERO));
        self.version += 1;
        names
    }

    /// The list of the store, as the look of this number has found it. Returns the names of which this member has not
    /// heard.
    pub(super) fn note_listed(
        &mut self,
        look: u64,
        found: MembersFound,
        now: Duration,
    ) -> Vec<HashName> {
        let is_newest = look == self.looks && self.reads_at().is_none();
        if is_newest {
            self.list = match found.failure {
                Some(_) => List::Incomplete(Some(now + RETRY_PAUSE)),
                None => List::Whole,
            };
        }
        let known: BTreeSet<HashName> = self.all().into_iter().collect();
        let members = found.members.into_iter().take(LISTED_MAX);
        let names = members.map(|member| HashName::new(self.service, member));
        let new: Vec<HashName> = names.filter(|name| !known.contains(name)).collect();
        if !new.is_empty() {
            self.version += 1;
            self.listed.extend(&new);
        }
        new
    }

    /// Of a record that was read.
    pub(super) fn note_owner(&mut self, name: HashName, record: &Record) {
        self.known.entry(record.owner).or_insert(name);
    }

    /// The own name was added to the list, or not.
    pub(super) fn note_addition(&mut self, is_added: bool, now: Duration) {
        let pause = if is_added {
            ADDITION_PERIOD
        } else {
            RETRY_PAUSE
        };
        self.adds_at.get_or_insert(now + pause);
    }

    /// The list to which the own name is to be added now.
    pub(super) fn due_addition(&mut self, Moment { now, unix }: Moment) -> Option<MemberList> {
        self.adds_at.take_if(|at| *at <= now)?;
        Some(MemberList::at(self.service, &self.key, unix))
    }

    /// The lists that are to be read now, and the number of the look.
    pub(super) fn due_look(
        &mut self,
        Moment { now, unix }: Moment,
    ) -> Option<(u64, [MemberList; 3])> {
        let (List::Awaited(at) | List::Incomplete(at)) = &mut self.list else {
            return None;
        };
        at.take_if(|at| *at <= now)?;
        self.looks += 1;
        Some((
            self.looks,
            MemberList::at(self.service, &self.key, unix).around(),
        ))
    }

    const fn reads_at(&self) -> Option<Duration> {
        match self.list {
            List::Awaited(at) | List::Incomplete(at) => at,
            List::Unwanted | List::Whole => None,
        }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.adds_at.into_iter().chain(self.reads_at()).min()
    }

    /// Whether the list will be there soon.
    pub(super) const fn are_awaited(&self) -> bool {
        matches!(self.list, List::Awaited(_))
    }

    /// Whether no other member can have a record.
    pub(super) const fn are_whole(&self) -> bool {
        matches!(self.list, List::Whole)
    }

    /// Whether no member serves the connection of this record, as far as the table tells.
    pub(super) fn is_orphaned(&self, record: &Record) -> bool {
        !self.present.contains(&record.owner)
    }

    pub(super) fn all(&self) -> Vec<HashName> {
        let mut all: Vec<HashName> = self.known.values().copied().collect();
        all.extend(&self.listed);
        all.push(self.own);
        all.sort_unstable();
        all.dedup();
        all
    }
}
