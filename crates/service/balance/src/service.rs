//! The event loop of a balancer.
//!
//! One thread. Messages of members come before the clock: a member whose request waits in a socket is not dead. The
//! effects of the monitor's decisions follow in their order, the table in the kernel first: a table that a member has
//! heard of outlives this process.

mod effects;
mod streams;

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant, UNIX_EPOCH},
};

use channel::KeyRing;
use dataplane::{BalanceSettings, balance_pins};
use operator_socket::{EventRecord, OperatorSocket, Source};
use pool::{MemoryRegister, Monitor, Settings, StreamId};
use protocol::pool::{PoolKey, Table};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    time::{ClockId, clock_gettime},
};
use service_addresses::VirtualAddresses;
use socket2::{Domain, Protocol, Socket, Type};
use supervise::{host_name, mounts};

use crate::{
    config::BalanceConfig,
    error::{BalanceError, SystemContext},
    event::{Code, Event, Refusals},
    forwarding::Forwarding,
    member_stream::MemberStream,
    metrics::Shown,
    run_directory::{self, RunDirectory},
};

/// Interval of reading keys again, looking for new interfaces, and the metrics.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);
/// Limit of control streams that wait for accept.
const ACCEPT_BACKLOG: i32 = 128;

/// Receives the events.
pub(crate) type Tell<'a> = &'a mut dyn FnMut(&EventRecord<'_, Event>);

/// A balancer that listens.
pub struct Balancer {
    config: BalanceConfig,
    keys: Arc<KeyRing>,
    directory: RunDirectory,
    listeners: Vec<TcpListener>,
    streams: BTreeMap<StreamId, MemberStream>,
    newest_stream: u64,
    monitor: Monitor<MemoryRegister>,
    forwarding: Forwarding,
    addresses: Option<VirtualAddresses>,
    refusals: Refusals,
    operator: OperatorSocket,
    shown: Option<Shown>,
    tidied: Instant,
    /// Number of members of the table of a former balancer.
    adopted: usize,
}

/// Since the boot, also while the host sleeps: as the clocks of members.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

impl Balancer {
    /// Checks the settings, binds the sockets, adopts or loads the programs, and brings the addresses up.
    ///
    /// # Errors
    /// [`BalanceError`].
    pub fn start(config: BalanceConfig) -> Result<Self, BalanceError> {
        let terms = config.terms()?;
        let members_config = config.of_members(&terms)?;
        let directory = RunDirectory::lock(&config.run_dir, &config.name)?;
        config.check_addresses()?;
        let listeners = config.listen.iter().map(|address| listen(*address));
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        let shown = Shown::at(config.metrics)?;
        let socket = run_directory::socket(&config.run_dir, &config.name);
        let operator = OperatorSocket::bind(socket).doing("make the socket for status")?;
        let PoolKey(key) = members_config.key;
        let mut forwarding = start_forwarding(&config, &directory, key)?;
        let former = forwarding.former_table();
        let adopted = former.as_ref().map_or(0, |table| table.members.len());
        let table = former.unwrap_or_else(|| first_table(&config));
        if adopted == 0 {
            // Also empty: packets are dropped and counted before the first member.
            forwarding.write(&table)?;
        }
        let settings = Settings {
            kind: config.kind,
            terms,
            config: members_config,
        };
        let monitor = Monitor::new(settings, MemoryRegister::new(table.clone()), table, now());
        let keys = Arc::new(config.keys.clone());
        let mut balancer = Self {
            config,
            keys,
            directory,
            listeners,
            streams: BTreeMap::new(),
            newest_stream: 0,
            monitor,
            forwarding,
            addresses: None,
            refusals: Refusals::default(),
            operator,
            shown,
            tidied: Instant::now(),
            adopted,
        };
        balancer.bring_addresses_up()?;
        Ok(balancer)
    }

    fn bring_addresses_up(&mut self) -> Result<(), BalanceError> {
        if let Some(device) = &self.config.address_device {
            let (directory, addresses) = (self.directory.path(), &self.config.addresses);
            self.addresses = VirtualAddresses::bring_up(directory, device, addresses, now())?;
        }
        Ok(())
    }

    /// The addresses on which the balancer listens for members.
    #[must_use]
    pub fn listens_on(&self) -> Vec<SocketAddr> {
        let local = self.listeners.iter().map(TcpListener::local_addr);
        local.filter_map(Result::ok).collect()
    }

    /// Balances until `stop` can be read.
    ///
    /// # Errors
    /// The kernel does not take a table, or waiting fails.
    pub fn run(mut self, stop: BorrowedFd<'_>, tell: Tell<'_>) -> Result<(), BalanceError> {
        let listening = Event::Listening {
            addresses: self.listens_on(),
            service: self.config.addresses.clone(),
            epoch: self.monitor.table().epoch,
            members: self.adopted,
        };
        self.emit(&listening, tell);
        self.attach(tell)?;
        // Without NOTIFY_SOCKET no service manager waits.
        let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
        self.show();
        loop {
            let ready = self.wait(stop)?;
            if ready.stop {
                let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
                self.emit(&Event::Stopping, tell);
                return Ok(());
            }
            if ready.listener {
                self.accept(tell);
            }
            self.receive(&ready.streams, tell);
            self.monitor.on_time(now());
            self.act(tell)?;
            self.flush(tell);
            self.hold_addresses(tell);
            self.answer_operator();
            if self.tidied.elapsed() >= TIDY_INTERVAL {
                self.tidied = Instant::now();
                self.tidy(tell)?;
            }
        }
    }

    /// Tells an event, and counts the event.
    fn emit(&mut self, event: &Event, tell: Tell<'_>) {
        if let Some(shown) = &mut self.shown {
            shown.count(event);
        }
        let record = EventRecord::now(Source::Pool(&self.config.name), event);
        self.operator.push_event(record.line(), false);
        tell(&record);
    }

    fn warn(&mut self, code: Code, reason: String, tell: Tell<'_>) {
        self.emit(&Event::Warning { code, reason }, tell);
    }

    fn tidy(&mut self, tell: Tell<'_>) -> Result<(), BalanceError> {
        self.reload_keys(tell);
        self.check_streams(tell);
        self.attach(tell)?;
        if let Some(more) = self.refusals.rest(Instant::now()) {
            self.emit(&more, tell);
        }
        self.show();
        if sd_notify::watchdog_enabled(false, &mut 0) {
            let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Watchdog]);
        }
        Ok(())
    }

    /// Time until the next work without new input.
    fn pause(&self) -> Duration {
        let tidy = TIDY_INTERVAL.saturating_sub(self.tidied.elapsed());
        let addresses = self.addresses.iter().map(VirtualAddresses::due);
        let due = self.monitor.due_at().into_iter().chain(addresses);
        let now = now();
        due.map(|due| due.saturating_sub(now))
            .fold(tidy, Duration::min)
    }

    fn wait(&self, stop: BorrowedFd<'_>) -> Result<Ready, BalanceError> {
        let doing = "wait for members";
        let mut fds = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        for listener in &self.listeners {
            fds.push(PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN));
        }
        let first_stream = fds.len();
        for stream in self.streams.values() {
            let mut interest = PollFlags::IN;
            interest.set(PollFlags::OUT, stream.wants_write());
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), interest));
        }
        let end = fds.len();
        self.operator.watch(&mut fds);
        let timeout = Timespec::try_from(self.pause()).map_err(io::Error::other);
        match poll(&mut fds, Some(&timeout.doing(doing)?)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error)).doing(doing),
        }
        let has = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let streams = self.streams.keys().zip(&fds[first_stream..end]);
        Ok(Ready {
            stop: has(&fds[0]),
            listener: fds[1..first_stream].iter().any(has),
            streams: streams
                .filter(|(_, fd)| has(fd))
                .map(|(id, _)| *id)
                .collect(),
        })
    }
}

/// The ready descriptors.
struct Ready {
    stop: bool,
    /// A member connects.
    listener: bool,
    streams: Vec<StreamId>,
}

fn listen(address: SocketAddr) -> Result<TcpListener, BalanceError> {
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

fn start_forwarding(
    config: &BalanceConfig,
    directory: &RunDirectory,
    key: [u8; 16],
) -> Result<Forwarding, BalanceError> {
    let bpffs = mounts::bpffs(directory.path())?;
    let host_name = host_name(&config.run_dir, &config.name);
    let settings = BalanceSettings {
        addresses: config.addresses.clone(),
        key,
    };
    let started = Forwarding::start(&settings, balance_pins(bpffs.path(), &host_name));
    // For the next balancer, and for `outlive clean`.
    bpffs.leave();
    started
}

/// A table without members. Its epoch, the time, is higher than the epochs of former balancers of this pool: no pool
/// changes once in a microsecond.
fn first_table(config: &BalanceConfig) -> Table {
    let time = UNIX_EPOCH.elapsed().unwrap_or_default();
    Table {
        epoch: u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 2),
        kind: config.kind,
        members: Vec::new(),
    }
}
