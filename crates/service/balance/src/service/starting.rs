//! The parts of a balancer that starts.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    time::{Duration, UNIX_EPOCH},
};

use dataplane::{BalanceSettings, balance_pins};
use pool::MemoryRegister;
use protocol::pool::Table;
use socket2::{Domain, Protocol, Socket, Type};
use supervise::{host_name, mounts};

use crate::{
    change_script::ChangeScript, config::BalanceConfig, error::BalanceError, etcd::EtcdRegister,
    forwarding::Forwarding, register::PoolRegister, run_directory::RunDirectory,
};

/// Limit of control streams that wait for accept.
const ACCEPT_BACKLOG: i32 = 128;
/// Time for the first answer of etcd.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn listen(address: SocketAddr) -> Result<TcpListener, BalanceError> {
    let bind = || -> io::Result<TcpListener> {
        let kind = Some(Protocol::TCP);
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, kind)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(ACCEPT_BACKLOG)?;
        Ok(socket.into())
    };
    bind().map_err(|error| BalanceError::Listen { address, error })
}

/// Loads or adopts the programs.
pub(super) fn forwarding(
    config: &BalanceConfig,
    directory: &RunDirectory,
    key: [u8; 16],
) -> Result<Forwarding, BalanceError> {
    let script = config.delivery.on_change.as_ref();
    let script = script.map(|of| ChangeScript::start(of, &config.name, &config.addresses));
    let script = script.transpose()?;
    let encapsulates = config.delivery.encapsulation.is_some();
    if config.delivery.no_forward {
        return Forwarding::elsewhere(encapsulates, script);
    }
    let devices = config.xdp_devices()?;
    if config.delivery.forward.xdp_mode().is_some() && devices.is_empty() {
        return Err(BalanceError::NoForwardDevice);
    }
    let bpffs = mounts::bpffs(directory.path())?;
    let host_name = host_name(&config.run_dir, &config.name);
    let settings = BalanceSettings {
        addresses: config.addresses.clone(),
        key,
        encapsulates,
        xdp: config.delivery.forward.xdp_mode(),
    };
    let pins = balance_pins(bpffs.path(), &host_name);
    let started = Forwarding::start(&settings, &devices, pins, script);
    // For the next balancer, and for `outlive clean`.
    bpffs.leave();
    started
}

/// The register, and the newest table, which is in the kernel.
pub(super) fn register(
    config: &BalanceConfig,
    forwarding: &mut Forwarding,
) -> Result<(PoolRegister, Table), BalanceError> {
    let former = forwarding.former_table();
    let Some(servers) = &config.register else {
        let is_new = former.as_ref().is_none_or(|table| table.members.is_empty());
        let table = former.unwrap_or_else(|| first_table(config));
        if is_new || config.delivery.encapsulation.is_some() {
            // Also empty: packets are dropped and counted before the first member. A former balancer may have reached
            // the members as neighbours.
            forwarding.write(&table)?;
        } else {
            forwarding.run_script(&table);
        }
        return Ok((
            PoolRegister::Memory(MemoryRegister::new(table.clone())),
            table,
        ));
    };
    let first = first_table(config);
    let etcd = EtcdRegister::open(servers.clone(), &config.name, first, REGISTER_TIMEOUT)?;
    let table = etcd.newest().clone();
    forwarding.write(&table)?;
    Ok((PoolRegister::Etcd(etcd), table))
}

/// A table without members. Its epoch, the time, is higher than the epochs of former balancers of this pool: no pool
/// changes once in a microsecond.
fn first_table(config: &BalanceConfig) -> Table {
    let time = UNIX_EPOCH.elapsed().unwrap_or_default();
    Table {
        epoch: u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 2),
        kind: config.kind,
        members: Vec::new(),
        granters: Vec::new(),
    }
}
