//! The table in the kernel, the interfaces, and the links of the members.

use std::{io, net::IpAddr, num::NonZeroU16, os::fd::BorrowedFd};

use dataplane::{
    AttachMode, Balance, BalanceCounters, BalanceMember, BalanceSettings, BalanceTable,
    DataplaneError, PinDirectory, ethernet_interfaces,
};
use pool::{MemberIndex, OwnerTable, TableError};
use protocol::pool::{MemberAddress, MemberName, Table, TableMember};
use supervise::Addresses;

use crate::{
    change_script::ChangeScript,
    error::{BalanceError, SystemContext},
};

/// The data plane of the balancer.
pub(crate) struct Forwarding {
    /// `None`: another load balancer forwards packets.
    plane: Option<Balance>,
    host: Addresses,
    /// Gives the table to another load balancer.
    script: Option<ChangeScript>,
}

impl Forwarding {
    /// No program is loaded.
    pub(crate) fn elsewhere(script: Option<ChangeScript>) -> Result<Self, BalanceError> {
        Ok(Self {
            plane: None,
            script,
            host: Addresses::open().doing("ask the kernel for routes")?,
        })
    }

    /// Loads the programs; the table of a former balancer is in use again.
    pub(crate) fn start(
        settings: &BalanceSettings,
        pins: PinDirectory,
        script: Option<ChangeScript>,
    ) -> Result<Self, BalanceError> {
        Ok(Self {
            script,
            plane: Some(Balance::start(settings, pins)?),
            host: Addresses::open().doing("ask the kernel for routes")?,
        })
    }

    /// The table of a former balancer.
    pub(crate) fn former_table(&self) -> Option<Table> {
        let table = self.plane.as_ref()?.table()?;
        let members = table.members.iter().map(of_kernel);
        Some(Table {
            epoch: table.epoch,
            kind: table.kind,
            members: members.collect::<Option<_>>()?,
            granters: Vec::new(),
        })
    }

    /// Attaches the program to all interfaces but the loopback. Returns the failures.
    pub(crate) fn attach(&mut self) -> Result<Vec<(String, DataplaneError)>, BalanceError> {
        let Some(plane) = &mut self.plane else {
            return Ok(Vec::new());
        };
        let interfaces = ethernet_interfaces()?;
        plane.retain_interfaces(&interfaces);
        let mut failures = Vec::new();
        for interface in interfaces {
            if interface.mac == [0; 6] {
                continue;
            }
            if let Err(error) = plane.attach_interface(&interface, AttachMode::Auto) {
                failures.push((interface.name, error));
            }
        }
        Ok(failures)
    }

    /// Whether the member is on a link of this host.
    pub(crate) fn is_on_link(&mut self, address: IpAddr) -> io::Result<bool> {
        Ok(self.host.device_of_neighbour(address)?.is_some())
    }

    /// Puts the table into the kernel, which keeps the table for the next life. Returns the members that are on no
    /// link.
    pub(crate) fn write(&mut self, table: &Table) -> Result<Vec<MemberName>, BalanceError> {
        self.run_script(table);
        let Some(plane) = &mut self.plane else {
            return Ok(Vec::new());
        };
        let mut unreachable = Vec::new();
        let mut members = Vec::new();
        for entry in &table.members {
            let device = self.host.device_of_neighbour(entry.address.ip());
            let device = device.doing("ask the kernel for the route to a member")?;
            if device.is_none() {
                unreachable.push(entry.name.clone());
            }
            members.push(BalanceMember {
                name: entry.name.to_string(),
                membership: entry.membership,
                address: entry.address.ip(),
                interface: device.unwrap_or_default(),
                claim_port: entry.claim_port.get(),
                draining: entry.draining,
                slot: 0,
            });
        }
        plane.write_table(BalanceTable {
            epoch: table.epoch,
            kind: table.kind,
            members,
            owners: owners(table).doing("make the table of owners")?,
        })?;
        Ok(unreachable)
    }

    /// Gives the table to the program of the operator.
    pub(crate) fn run_script(&self, table: &Table) {
        if let Some(script) = &self.script {
            script.on_table(table);
        }
    }

    /// Why a run of the program failed.
    pub(crate) fn script_failure(&self) -> Option<String> {
        self.script.as_ref().and_then(ChangeScript::failure)
    }

    /// Readable after a failure.
    pub(crate) fn script_fd(&self) -> Option<BorrowedFd<'_>> {
        self.script.as_ref().map(ChangeScript::as_fd)
    }

    pub(crate) fn counters(&self) -> Result<BalanceCounters, BalanceError> {
        match &self.plane {
            Some(plane) => Ok(plane.counters()?),
            None => Ok(BalanceCounters::default()),
        }
    }

    pub(crate) fn member_packets(&self) -> Result<Vec<(String, u64)>, BalanceError> {
        match &self.plane {
            Some(plane) => Ok(plane.member_packets()?),
            None => Ok(Vec::new()),
        }
    }
}

fn owners(table: &Table) -> io::Result<Vec<u16>> {
    let owners = OwnerTable::of(table).map_err(|error| {
        io::Error::other(match error {
            TableError::EqualNames => "two members have the same name",
            TableError::TooManyMembers => "the members are too many",
        })
    })?;
    Ok(owners.entries().iter().map(|MemberIndex(at)| *at).collect())
}

fn of_kernel(member: &BalanceMember) -> Option<TableMember> {
    Some(TableMember {
        name: member.name.parse().ok()?,
        membership: member.membership,
        address: MemberAddress::new(member.address).ok()?,
        claim_port: NonZeroU16::new(member.claim_port)?,
        draining: member.draining,
    })
}
