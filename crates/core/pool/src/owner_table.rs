//! The table from the hash of a connection to the member that owns the connection.

use alloc::vec;
use alloc::vec::Vec;

use protocol::pool::Table;
use siphasher::sip::SipHasher24;

pub use types::TableKind;

/// Entries of a table of [`TableKind::Maglev`]: a prime, much larger than the number of members.
pub const MAGLEV_ENTRY_COUNT: usize = 65_537;
/// Keys of the two hashes of a member's name. Other keys make other tables: these belong to the protocol.
const OFFSET_KEY: [u8; 16] = *b"outlive maglev 1";
const STRIDE_KEY: [u8; 16] = *b"outlive maglev 2";

/// Position of a member in the sorted list of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemberIndex(
    /// 0 for the first name.
    pub u16,
);

/// Why there is no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableError {
    /// Two members have the same name.
    EqualNames,
    /// More members than a [`MemberIndex`] can number.
    TooManyMembers,
}

/// The owners of all connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerTable {
    owners: Vec<MemberIndex>,
}

impl OwnerTable {
    /// The table of these members. The order of the names does not matter: a [`MemberIndex`] counts the names in their
    /// byte order.
    ///
    /// # Errors
    /// Two names are equal, or the members are too many.
    pub fn new(kind: TableKind, names: &[&str]) -> Result<Self, TableError> {
        let mut sorted = names.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(TableError::EqualNames);
        }
        let indexes: Option<Vec<MemberIndex>> = (0..sorted.len())
            .map(|index| u16::try_from(index).ok().map(MemberIndex))
            .collect();
        let indexes = indexes.ok_or(TableError::TooManyMembers)?;
        let owners = match kind {
            TableKind::Modulo => indexes,
            TableKind::Maglev => maglev(&sorted, &indexes),
        };
        Ok(Self { owners })
    }

    /// The owners by a table of members. A [`MemberIndex`] is a position in [`Table::members`]. Members that drain own
    /// no connections.
    ///
    /// # Errors
    /// Two names are equal, or the members are too many.
    pub fn of(table: &Table) -> Result<Self, TableError> {
        let members = table.members.iter().enumerate();
        let mut owning: Vec<(&str, usize)> = members
            .filter(|(_, member)| !member.draining)
            .map(|(position, member)| (member.name.as_str(), position))
            .collect();
        owning.sort_unstable();
        let names: Vec<&str> = owning.iter().map(|(name, _)| *name).collect();
        let mut owners = Self::new(table.kind, &names)?;
        let positions: Option<Vec<MemberIndex>> = owning
            .iter()
            .map(|(_, position)| u16::try_from(*position).ok().map(MemberIndex))
            .collect();
        let positions = positions.ok_or(TableError::TooManyMembers)?;
        for owner in &mut owners.owners {
            *owner = positions[usize::from(owner.0)];
        }
        Ok(owners)
    }

    /// The owner of a connection with this hash. `None` without members.
    #[must_use]
    pub fn owner(&self, flow_hash: u32) -> Option<MemberIndex> {
        let count = u32::try_from(self.owners.len()).ok()?;
        let entry = flow_hash.checked_rem(count)?;
        self.owners.get(usize::try_from(entry).ok()?).copied()
    }

    /// Owners by entry, for the programs in the kernel.
    #[must_use]
    pub fn entries(&self) -> &[MemberIndex] {
        &self.owners
    }
}

/// Each member takes the next free entry of its own permutation in turn, until no entry is free.
fn maglev(names: &[&str], indexes: &[MemberIndex]) -> Vec<MemberIndex> {
    if names.is_empty() {
        return Vec::new();
    }
    let mut cursors: Vec<Cursor> = names.iter().map(|name| Cursor::of(name)).collect();
    let mut owners = vec![None; MAGLEV_ENTRY_COUNT];
    let mut free = MAGLEV_ENTRY_COUNT;
    let turns = cursors.iter_mut().zip(indexes);
    let mut turns: Vec<(&mut Cursor, &MemberIndex)> = turns.collect();
    while free > 0 {
        for (cursor, index) in &mut turns {
            if free == 0 {
                break;
            }
            let entry = cursor.next_free(&owners);
            owners[entry] = Some(**index);
            free -= 1;
        }
    }
    owners.into_iter().flatten().collect()
}

/// Position in the permutation of a member.
struct Cursor {
    entry: usize,
    stride: usize,
}

impl Cursor {
    fn of(name: &str) -> Self {
        Self {
            entry: below(name, OFFSET_KEY, MAGLEV_ENTRY_COUNT),
            stride: below(name, STRIDE_KEY, MAGLEV_ENTRY_COUNT - 1) + 1,
        }
    }

    /// The number of entries is prime: every stride leads to every entry.
    fn next_free(&mut self, owners: &[Option<MemberIndex>]) -> usize {
        loop {
            let entry = self.entry;
            self.entry = (entry + self.stride) % MAGLEV_ENTRY_COUNT;
            if owners[entry].is_none() {
                return entry;
            }
        }
    }
}

/// A hash of the name below `limit`.
fn below(name: &str, key: [u8; 16], limit: usize) -> usize {
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    let hash = SipHasher24::new_with_key(&key).hash(name.as_bytes());
    usize::try_from(hash % limit).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::string::String;

    use super::*;

    fn table(kind: TableKind, names: &[&str]) -> OwnerTable {
        OwnerTable::new(kind, names).expect("different names")
    }

    /// Owners by name, so that tables with other members can be compared.
    fn owners<'a>(names: &[&'a str]) -> Vec<&'a str> {
        let mut sorted = names.to_vec();
        sorted.sort_unstable();
        let table = table(TableKind::Maglev, names);
        let names = table.entries().iter();
        names.map(|index| sorted[usize::from(index.0)]).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Entries are spread evenly, and a new member takes its own share alone.
        #[test]
        fn new_member_moves_little_more_than_its_share(
            names in prop::collection::btree_set("[a-z0-9.]{1,12}", 2..24),
        ) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let (before, after) = (owners(&names[1..]), owners(&names));
            let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
            let share = MAGLEV_ENTRY_COUNT / names.len();
            prop_assert!(moved <= share + MAGLEV_ENTRY_COUNT / 50, "{moved} moved, the share is {share}");
            for name in &names {
                let owned = after.iter().filter(|owner| owner == &name).count();
                prop_assert!(owned.abs_diff(share) <= share / 20 + 2, "{name} owns {owned} of {share}");
            }
        }

        #[test]
        fn equal_members_in_any_order_make_equal_tables(
            names in prop::collection::btree_set("[a-z]{1,4}", 1..8).prop_map(Vec::from_iter).prop_shuffle(),
        ) {
            let sorted: BTreeSet<&str> = names.iter().map(String::as_str).collect();
            let sorted: Vec<&str> = sorted.into_iter().collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            for kind in [TableKind::Maglev, TableKind::Modulo] {
                prop_assert_eq!(table(kind, &names), table(kind, &sorted));
            }
        }
    }

    #[test]
    fn table_of_this_version_stays_as_it_is() {
        let table = table(TableKind::Maglev, &["web1", "web2", "web3"]);
        let bytes: Vec<u8> = table
            .entries()
            .iter()
            .flat_map(|index| index.0.to_le_bytes())
            .collect();
        let hash = SipHasher24::new_with_key(&[0; 16]).hash(&bytes);
        assert_eq!(
            hash, 994_469_728_850_684_202,
            "another table is another version of the protocol"
        );
    }

    #[test]
    fn modulo_counts_the_members() {
        let table = table(TableKind::Modulo, &["b", "a", "c"]);
        let owners: Vec<Option<MemberIndex>> = (0..4).map(|hash| table.owner(hash)).collect();
        assert_eq!(owners, [0, 1, 2, 0].map(|index| Some(MemberIndex(index))));
    }

    #[test]
    fn draining_member_has_no_connections() {
        let member = |name: &str, draining| protocol::pool::TableMember {
            name: name.parse().unwrap(),
            membership: 1,
            address: protocol::pool::MemberAddress::new([10, 0, 0, 1].into()).unwrap(),
            claim_port: core::num::NonZeroU16::MAX,
            draining,
        };
        for kind in [TableKind::Maglev, TableKind::Modulo] {
            let members = vec![member("c", false), member("b", true), member("a", false)];
            let table = Table {
                epoch: 1,
                kind,
                members,
                granters: vec![],
            };
            let owners = OwnerTable::of(&table).unwrap();
            let others = OwnerTable::new(kind, &["a", "c"]).unwrap();
            for (owner, other) in owners.entries().iter().zip(others.entries()) {
                assert_eq!(owner.0, [2, 0][usize::from(other.0)]);
            }
            assert_eq!(owners.entries().len(), others.entries().len());
        }
    }

    #[test]
    fn pool_without_members_has_no_owner() {
        for kind in [TableKind::Maglev, TableKind::Modulo] {
            assert_eq!(table(kind, &[]).owner(7), None);
        }
        assert_eq!(
            OwnerTable::new(TableKind::Maglev, &["a", "a"]),
            Err(TableError::EqualNames)
        );
    }
}
