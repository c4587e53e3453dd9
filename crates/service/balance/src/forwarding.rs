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

const ROUTE_LOOKUP: &str = "ask the kernel for the route to a member";

/// The way of packets to a member. The default: none.
#[derive(Debug, Clone, Copy, Default)]
struct MemberRoute {
    interface: u32,
    /// With encapsulation.
    source: Option<IpAddr>,
}

/// The data plane of the balancer.
pub(crate) struct Forwarding {
    /// `None`: another load balancer forwards packets.
    plane: Option<Balance>,
    host: Addresses,
    /// Packets go to members in UDP, through routers.
    encapsulates: bool,
    /// Gives the table to another load balancer.
    script: Option<ChangeScript>,
}

impl Forwarding {
    /// No program is loaded.
    pub(crate) fn elsewhere(
        encapsulates: bool,
        script: Option<ChangeScript>,
    ) -> Result<Self, BalanceError> {
        Ok(Self {
            plane: None,
            encapsulates,
            script,
            host: Addresses::open().doing("ask the kernel for routes")?,
        })
    }

    /// Loads the programs; the table of a former balancer is in use again. XDP is on these devices, and on no others.
    pub(crate) fn start(
        settings: &BalanceSettings,
        xdp_devices: &[String],
        pins: PinDirectory,
        script: Option<ChangeScript>,
    ) -> Result<Self, BalanceError> {
        let is_first = !pins.exists();
        let mut plane = Balance::start(settings, pins)?;
        if let Err(error) = attach_xdp(&mut plane, xdp_devices) {
            // Nothing is left of a balancer that never ran.
            if is_first {
                plane.remove()?;
            }
            return Err(error);
        }
        Ok(Self {
            script,
            encapsulates: settings.encapsulates,
            plane: Some(plane),
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

    /// Attaches the program to all interfaces but the loopback, and XDP to these devices. Returns the failures.
    pub(crate) fn attach(
        &mut self,
        xdp_devices: &[String],
    ) -> Result<Vec<(String, DataplaneError)>, BalanceError> {
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
            let mut attached = plane.attach_interface(&interface, AttachMode::Auto);
            if xdp_devices.contains(&interface.name) {
                attached = attached.and_then(|()| plane.attach_xdp(&interface));
            }
            if let Err(error) = attached {
                failures.push((interface.name, error));
            }
        }
        Ok(failures)
    }

    /// Whether the member is on a link of this host; with encapsulation, whether a route leads to the member.
    pub(crate) fn is_reachable(&mut self, address: IpAddr) -> io::Result<bool> {
        Ok(self.route_to_member(address)?.is_some())
    }

    fn route_to_member(&mut self, address: IpAddr) -> io::Result<Option<MemberRoute>> {
        if self.encapsulates {
            let found = self.host.route_to(address)?;
            return Ok(found.map(|route| MemberRoute {
                interface: route.device,
                source: Some(route.source),
            }));
        }
        let device = self.host.device_of_neighbour(address)?;
        Ok(device.map(|interface| MemberRoute {
            interface,
            source: None,
        }))
    }

    /// Whether packets go to members in UDP.
    pub(crate) const fn encapsulates(&self) -> bool {
        self.encapsulates
    }

    /// Looks for the routes to the members again. Routes of neighbours do not change.
    pub(crate) fn refresh_routes(&mut self) -> Result<(), BalanceError> {
        let table = self.plane.as_ref().and_then(Balance::table);
        let Some(mut table) = table.filter(|_| self.encapsulates).cloned() else {
            return Ok(());
        };
        let mut has_changed = false;
        for member in &mut table.members {
            let route = self.route_to_member(member.address).doing(ROUTE_LOOKUP)?;
            let route = route.unwrap_or_default();
            has_changed |= (member.interface, member.source) != (route.interface, route.source);
            (member.interface, member.source) = (route.interface, route.source);
        }
        if let Some(plane) = self.plane.as_mut().filter(|_| has_changed) {
            plane.write_table(table)?;
        }
        Ok(())
    }

    /// Puts the table into the kernel, which keeps the table for the next life. Returns the members that cannot be
    /// reached.
    pub(crate) fn write(&mut self, table: &Table) -> Result<Vec<MemberName>, BalanceError> {
        self.run_script(table);
        if self.plane.is_none() {
            return Ok(Vec::new());
        }
        let mut unreachable = Vec::new();
        let mut members = Vec::new();
        for entry in &table.members {
            let route = self
                .route_to_member(entry.address.ip())
                .doing(ROUTE_LOOKUP)?;
            if route.is_none() {
                unreachable.push(entry.name.clone());
            }
            let MemberRoute { interface, source } = route.unwrap_or_default();
            members.push(BalanceMember {
                name: entry.name.to_string(),
                membership: entry.membership,
                address: entry.address.ip(),
                interface,
                source,
                claim_port: entry.claim_port.get(),
                draining: entry.draining,
                slot: 0,
            });
        }
        let written = BalanceTable {
            epoch: table.epoch,
            kind: table.kind,
            members,
            owners: owners(table).doing("make the table of owners")?,
        };
        if let Some(plane) = &mut self.plane {
            plane.write_table(written)?;
        }
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

    /// The devices with XDP.
    pub(crate) fn xdp_devices(&self) -> Vec<String> {
        let plane = self.plane.as_ref();
        plane.map(Balance::xdp_interfaces).unwrap_or_default()
    }

    /// Whether packets are forwarded here.
    pub(crate) const fn is_here(&self) -> bool {
        self.plane.is_some()
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

/// Puts XDP on these devices, and takes it off all others.
fn attach_xdp(plane: &mut Balance, devices: &[String]) -> Result<(), BalanceError> {
    let mut interfaces = ethernet_interfaces()?;
    interfaces.retain(|interface| devices.contains(&interface.name));
    let is_found = |device: &&String| interfaces.iter().any(|found| found.name == **device);
    if let Some(device) = devices.iter().find(|device| !is_found(device)) {
        return Err(BalanceError::NotEthernet(device.clone()));
    }
    plane.retain_xdp(&interfaces)?;
    for interface in &interfaces {
        plane.attach_xdp(interface)?;
    }
    Ok(())
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
