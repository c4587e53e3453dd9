//! A member from its start to its end.

use std::{
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    num::NonZeroU16,
    path::PathBuf,
    time::Duration,
};

use operator_socket::EventRecord;
use protocol::pool::{Config, Hello, MemberAddress, MemberName, MembershipState, Refused};
use rand::Rng as _;
use supervise::{Command, become_subreaper, is_listened_on};

use crate::{
    claiming::socket_at,
    clock,
    engine::{Member, MemberConfig},
    error::{MemberError, SystemContext},
    event::Event,
    operator::{Operator, Tell},
    pool_client::{Admission, PoolSettings},
    probe,
    remains::{self, MemberDirectory},
};

/// How long the lease of a former member may last, and the pause between two questions for its end.
const FORMER_LEASE_MAX: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Tries to find a port that is free for UDP and TCP.
const PORT_TRIES_MAX: u32 = 16;
/// Time for the balancer to give new connections to other members. The last member gets connections until it leaves.
const DRAIN_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two looks at the connections.
const DRAIN_LOOK_PERIOD: Duration = Duration::from_millis(100);
/// Longest wait of the loop.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Options of the operator.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of the member in the pool.
    pub name: MemberName,
    /// The balancers, at least one.
    pub balancers: Vec<SocketAddr>,
    /// The file with the keys that balancer and members share.
    pub key_file: PathBuf,
    /// Where packets for the pool reach this host; `None`: the address from which the balancer is reached.
    pub address: Option<IpAddr>,
    /// The server.
    pub command: Command,
    /// Most bytes that are taken from the server and thrown away, because the server ignores ranges.
    pub discard_limit: u64,
    /// Objects never change under a name.
    pub is_immutable: bool,
    /// Longest time for which a request stays unacknowledged.
    pub withhold: Duration,
    /// Responses may have inputs (`X-TRODS`).
    pub takes_inputs: bool,
    /// Every server sends the same chunks of the same response.
    pub takes_chunks: bool,
    /// Address of the metrics.
    pub metrics: Option<SocketAddr>,
    /// How long a member that is asked to stop waits for the end of its connections.
    pub drain: Duration,
    /// Directory for the files of a running member.
    pub run_dir: PathBuf,
}

/// Serves until `is_stopped`.
///
/// # Errors
/// The member cannot start, or the kernel refuses something.
pub fn run(
    options: &Options,
    is_stopped: impl Fn() -> bool,
    mut tell: impl FnMut(&EventRecord<'_, Event>),
) -> Result<(), MemberError> {
    let directory = MemberDirectory::lock(&options.run_dir, options.name.as_str())?;
    let socket = remains::socket(&options.run_dir, options.name.as_str());
    let mut operator = Operator::start(&options.name, socket, options.metrics)?;
    let (pool, claims, probes) = pool_settings(options)?;
    let settings = settings_of(&pool)?;
    if (options.takes_inputs || options.takes_chunks) && settings.store.is_none() {
        return Err(MemberError::NoStore);
    }
    let service = settings.addresses.clone();
    probe::serve(probes, options.key_file.clone(), service)?;
    // The server of a member that was killed is silent, and other members have the connections.
    directory.clear(true)?;
    for address in &settings.addresses {
        if is_listened_on(*address).doing("look for listening sockets")? {
            return Err(MemberError::PortTaken(*address));
        }
    }
    directory.note_addresses(&settings.addresses)?;
    let config = MemberConfig {
        pool,
        command: options.command.clone(),
        discard_limit: options.discard_limit,
        is_immutable: options.is_immutable,
        withhold: options.withhold,
        takes_inputs: options.takes_inputs,
        takes_chunks: options.takes_chunks,
        // Not 0 (unmarked packets), and not a mark that another program is likely to use.
        mark: rand::rng().random_range(0x4000_0000..0xf000_0000),
    };
    let cgroup = directory.create_cgroup()?;
    become_subreaper().doing("become the reaper of the server's orphans")?;
    let mut member = Member::new(config, claims, &settings, cgroup, directory.pins())?;
    let served = serve(&mut member, &mut operator, is_stopped, &mut tell)
        .and_then(|()| drain(&mut member, options.drain, &mut operator, &mut tell));
    let stopped = member.stop();
    if stopped.is_ok() {
        operator.emit(&Event::Left, &mut tell);
    }
    served.and(stopped)
}

/// A member of the same name that was killed may still have a lease.
fn settings_of(pool: &PoolSettings) -> Result<Config, MemberError> {
    let deadline = clock::now() + FORMER_LEASE_MAX;
    loop {
        match Admission::settings(pool.clone()) {
            Err(MemberError::Refused(Refused::NameTaken | Refused::AddressTaken))
                if clock::now() < deadline =>
            {
                std::thread::sleep(RETRY_PAUSE);
            }
            settings => return settings,
        }
    }
}

fn serve(
    member: &mut Member,
    operator: &mut Operator,
    is_stopped: impl Fn() -> bool,
    tell: Tell<'_>,
) -> Result<(), MemberError> {
    while !is_stopped() {
        for event in member.run_once(WAIT_MAX, operator)? {
            operator.emit(&event, tell);
        }
        operator.answer(member);
    }
    Ok(())
}

/// Sockets for claims and for checks, with the same port.
fn sockets_at(address: IpAddr) -> Result<(UdpSocket, TcpListener, u16), MemberError> {
    let mut tries = 0;
    loop {
        let claims = socket_at(address)?;
        let port = claims
            .local_addr()
            .doing("read the port of the socket for claims")?
            .port();
        tries += 1;
        match TcpListener::bind((address, port)) {
            Ok(probes) => return Ok((claims, probes, port)),
            // The port is taken for TCP alone.
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrInUse && tries < PORT_TRIES_MAX => {}
            Err(error) => {
                return Err(error).doing("open a socket for checks at the member's address");
            }
        }
    }
}

/// New connections go to other members, and the connections here end by themselves.
fn drain(
    member: &mut Member,
    limit: Duration,
    operator: &mut Operator,
    tell: Tell<'_>,
) -> Result<(), MemberError> {
    if limit.is_zero() {
        return Ok(());
    }
    let start = clock::now();
    let connections = member.drain()?;
    operator.emit(&Event::Draining { connections }, tell);
    loop {
        let waited = clock::now().saturating_sub(start);
        let is_last = !member.is_draining() && waited > DRAIN_ANSWER_TIMEOUT;
        if waited >= limit || is_last {
            return Ok(());
        }
        if member.is_draining() && member.connections()? == 0 {
            return Ok(());
        }
        for event in member.run_once(DRAIN_LOOK_PERIOD, operator)? {
            operator.emit(&event, tell);
        }
        operator.answer(member);
    }
}

fn pool_settings(options: &Options) -> Result<(PoolSettings, UdpSocket, TcpListener), MemberError> {
    let address = match options.address {
        Some(address) => address,
        None => address_towards(*options.balancers.first().ok_or(MemberError::NoAnswer)?)?,
    };
    let (claims, probes, port) = sockets_at(address)?;
    let settings = PoolSettings {
        balancers: options.balancers.clone(),
        key_file: options.key_file.clone(),
        hello: Hello {
            name: options.name.clone(),
            membership: rand::random(),
            state: MembershipState::New,
            address: MemberAddress::new(address).map_err(MemberError::Address)?,
            claim_port: NonZeroU16::new(port).unwrap_or(NonZeroU16::MAX),
            epoch: 0,
            #[cfg(feature = "next-version")]
            next: 0,
        },
    };
    Ok((settings, claims, probes))
}

/// This host's address on the way to the balancer.
fn address_towards(balancer: SocketAddr) -> Result<IpAddr, MemberError> {
    let doing = "find this host's address on the way to the balancer (--member-address says which)";
    let any: SocketAddr = match balancer {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).doing(doing)?;
    socket.connect(balancer).doing(doing)?;
    Ok(socket.local_addr().doing(doing)?.ip())
}
