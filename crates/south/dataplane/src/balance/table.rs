//! The table of members and owners, as the kernel has it.

use std::{
    net::{IpAddr, Ipv6Addr},
    os::raw::c_ulong,
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys};
use types::TableKind;

use super::generated::types::{balance_member, balance_table, outer_route};
use crate::{
    abi::{Abi, mapped},
    error::{DataplaneError, MapContext},
};

/// Members of a table (`BALANCE_MEMBERS` in `bpf/intf`; a test compares the two).
pub const MEMBER_COUNT_MAX: usize = 256;

/// A member of a pool, as the balancer reaches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BalanceMember {
    /// The name, of at most 63 bytes.
    pub name: String,
    /// The number of the membership.
    pub membership: u64,
    /// Address on a link of this host, or behind routers.
    pub address: IpAddr,
    /// The index of the interface of that link, or towards the first router.
    pub interface: u32,
    /// The address of this host in packets to a member behind routers.
    pub source: Option<IpAddr>,
    /// The UDP port for claims.
    pub claim_port: u16,
    /// The member gets no new connections.
    pub draining: bool,
    /// Place of the counter of packets; chosen by [`super::Balance::write_table`].
    pub slot: u16,
}

/// The members and owners of an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BalanceTable {
    /// The epoch.
    pub epoch: u64,
    /// How the owners were made.
    pub kind: TableKind,
    /// At most [`MEMBER_COUNT_MAX`] members.
    pub members: Vec<BalanceMember>,
    /// By the hash of a connection: positions in `members`.
    pub owners: Vec<u16>,
}

// SAFETY: a generated `repr(C)` structure of integers without implicit padding.
unsafe impl Abi for balance_table {}

impl BalanceTable {
    /// Members keep the slots that they have in the table before, by name. Returns the slots of new members.
    pub(super) fn assign_slots(&mut self, before: Option<&Self>) -> Vec<u16> {
        let old = |name: &str| {
            let mut members = before.iter().flat_map(|table| &table.members);
            members
                .find(|member| member.name == name)
                .map(|member| member.slot)
        };
        let kept: Vec<Option<u16>> = self
            .members
            .iter()
            .map(|member| old(&member.name))
            .collect();
        let is_free = |slot: &u16| !kept.contains(&Some(*slot));
        let mut free = (0..u16::MAX).filter(is_free);
        let mut fresh = Vec::new();
        for (member, slot) in self.members.iter_mut().zip(&kept) {
            member.slot = slot.or_else(|| free.next()).unwrap_or_default();
            if slot.is_none() {
                fresh.push(member.slot);
            }
        }
        fresh
    }

    /// The value of the map. Members and owners beyond the room of the map are an error of the caller, and left out.
    fn to_value(&self) -> Box<balance_table> {
        let mut value = Box::<balance_table>::default();
        let members = self.members.iter().take(MEMBER_COUNT_MAX);
        value.epoch = self.epoch;
        value.kind = match self.kind {
            TableKind::Maglev => 0,
            TableKind::Modulo => 1,
        };
        value.member_count = u32::try_from(members.len()).unwrap_or_default();
        let owners = self.owners.len().min(value.owners.len());
        value.owner_count = u32::try_from(owners).unwrap_or_default();
        for (to, member) in value.members.iter_mut().zip(members) {
            *to = member.to_value();
        }
        for (to, owner) in value.owners.iter_mut().zip(&self.owners) {
            *to = *owner;
        }
        value
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != size_of::<balance_table>() {
            return None;
        }
        let value = Box::new(balance_table::from_bytes(bytes)?);
        let count = |count: u32| usize::try_from(count).ok();
        let members = value.members.get(..count(value.member_count)?)?;
        let owners = value.owners.get(..count(value.owner_count)?)?;
        Some(Self {
            epoch: value.epoch,
            kind: match value.kind {
                0 => TableKind::Maglev,
                _ => TableKind::Modulo,
            },
            members: members
                .iter()
                .map(BalanceMember::of_value)
                .collect::<Option<_>>()?,
            owners: owners.to_vec(),
        })
    }
}

impl BalanceMember {
    fn to_value(&self) -> balance_member {
        let mut value = balance_member {
            route: outer_route {
                source: self.source.map_or([0; 16], mapped),
                destination: mapped(self.address),
                ifindex: self.interface,
            },
            slot: self.slot,
            claim_port: self.claim_port,
            membership: self.membership,
            draining: self.draining.into(),
            ..balance_member::default()
        };
        // The last byte stays a zero.
        let room = value.name.len() - 1;
        for (to, byte) in value.name[..room].iter_mut().zip(self.name.bytes()) {
            *to = byte;
        }
        value
    }

    fn of_value(value: &balance_member) -> Option<Self> {
        let name: Vec<u8> = value
            .name
            .iter()
            .copied()
            .take_while(|byte| *byte != 0)
            .collect();
        let source = Ipv6Addr::from(value.route.source);
        Some(Self {
            name: String::from_utf8(name).ok()?,
            membership: value.membership,
            address: IpAddr::V6(Ipv6Addr::from(value.route.destination)).to_canonical(),
            interface: value.route.ifindex,
            source: (!source.is_unspecified()).then(|| source.to_canonical()),
            claim_port: value.claim_port,
            draining: value.draining != 0,
            slot: value.slot,
        })
    }
}

/// A map with the table, to be put into the map of tables.
pub(super) fn create_map(table: &BalanceTable) -> Result<MapHandle, DataplaneError> {
    let doing = "make a table of the balancer";
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as c_ulong,
        ..Default::default()
    };
    let value = table.to_value();
    let len = u32::try_from(value.as_bytes().len()).unwrap_or(u32::MAX);
    let map = MapHandle::create(MapType::Array, Some("balance_table"), 4, len, 1, &options);
    let map = map.doing(doing)?;
    map.update(&0u32.to_ne_bytes(), value.as_bytes(), MapFlags::ANY)
        .doing(doing)?;
    Ok(map)
}
