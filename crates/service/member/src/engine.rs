//! The event loop's work.

mod config;
mod requests;
mod seen;
mod status;

use std::{
    cell::RefCell,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::BorrowedFd,
    rc::Rc,
    time::Duration,
};

use dataplane::{
    Injector, MemberPlane, MemberSettings, ObjectEvent, ObjectEventKind, ObjectRing, PinDirectory,
    ethernet_interfaces, netns_cookie,
};
use objects::{
    PoolKey,
    budget::Budget,
    flow::Phase,
    judge::{JudgeRules, Refusal},
    plane::{CopyKind, SegmentCopy},
    queue::RequestQueues,
    records::LookedUp,
    revivals::Ended,
    revive::{PositionError, Rules, SETTLE_TIME},
};
use protocol::pool::{Config, Encapsulation};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use south_model::CrashOn;
use supervise::{Addresses, Cgroup, Exit, TcpState, connection_states, destroy_sockets};
use wire::FlowKey;

pub(crate) use self::config::MemberConfig;
use self::requests::Queued;
use self::seen::Seen;
pub(crate) use self::status::UNGUARDED;
use crate::{
    claiming::{Claiming, Decided},
    clock,
    encapsulation_port::EncapsulationPort,
    error::{MemberError, SystemContext},
    event::Event,
    operator::Operator,
    pool_client::{Admission, PoolClient},
    records::Records,
    revivals::{Revivals, owned},
    server::ServerProcess,
};

/// Pause between two looks at the state that the kernel does not report.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// Pause after a failed try to join the pool again.
const REJOIN_PAUSE: Duration = Duration::from_millis(200);
/// Pause between two renewals of settings that expire, or that another program may have changed.
const UPKEEP_PERIOD: Duration = Duration::from_secs(5);
/// How long an address stays on the host without this process.
const ADDRESS_LIFETIME: Duration = Duration::from_secs(600);

const ROUTE_LOOKUP: &str = "ask the kernel for the route to another member";

/// A member.
pub(crate) struct Member {
    config: MemberConfig,
    service: Service,
    membership: Membership,
    plane: MemberPlane,
    server: ServerProcess,
    revivals: Revivals,
    /// `None`: the pool has no store.
    records: Option<Records>,
    claiming: Claiming,
    budget: Budget,
    queues: RequestQueues,
    rings: Rings,
    /// Connections may begin here.
    accepts: bool,
    next_look: Duration,
    next_upkeep: Duration,
    addresses: Addresses,
}

/// Settings from the balancer.
struct Service {
    addresses: Vec<SocketAddr>,
    rules: Rules,
    pool_key: protocol::pool::PoolKey,
    /// `None`: packets between hosts of the pool are frames.
    encapsulation_port: Option<EncapsulationPort>,
}

/// Whether the member belongs to the pool.
enum Membership {
    /// The server has to listen first.
    Waits,
    /// The lease is kept.
    Kept(PoolClient, Seen),
    /// The next try comes then.
    Out(Duration),
}

/// Sockets that were found readable.
#[derive(Debug, Clone, Copy)]
struct Ready {
    /// The view of the pool has changed.
    view: bool,
    /// Datagrams of other members.
    claims: bool,
}

struct Rings {
    copies: ObjectRing<'static>,
    copied: Rc<RefCell<Vec<SegmentCopy>>>,
    queued: Queued,
    events: ObjectRing<'static>,
    seen: Rc<RefCell<Vec<ObjectEvent>>>,
}

impl Service {
    fn of(pool: &Config, config: &MemberConfig) -> Result<Self, MemberError> {
        let address = config.pool.hello.address.ip();
        let encapsulation = pool.encapsulation.map(|Encapsulation::Udp| address);
        let rules = Rules {
            key: PoolKey(pool.key.0),
            judge: JudgeRules {
                check: pool.version_check,
                discard_limit: config.discard_limit,
                takes_chunks: config.takes_chunks,
            },
            incarnation: 1,
            unix_now: Duration::ZERO,
            withhold: config.withhold,
            settled_at: Duration::ZERO,
        };
        Ok(Self {
            addresses: pool.addresses.clone(),
            rules,
            pool_key: pool.key,
            encapsulation_port: encapsulation.map(EncapsulationPort::hold).transpose()?,
        })
    }
}

impl Membership {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Kept(client, _) => Some(client.as_fd()),
            Self::Waits | Self::Out(_) => None,
        }
    }

    fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Out(at) => Some(*at),
            Self::Waits | Self::Kept(..) => None,
        }
    }
}

impl Rings {
    fn of(plane: &MemberPlane) -> Result<Self, MemberError> {
        let (copied, seen) = (Rc::default(), Rc::default());
        let (into_copied, into_seen) = (Rc::clone(&copied), Rc::clone(&seen));
        let into_copied: Rc<RefCell<Vec<SegmentCopy>>> = into_copied;
        let into_seen: Rc<RefCell<Vec<ObjectEvent>>> = into_seen;
        Ok(Self {
            copies: plane.copies(move |copy| into_copied.borrow_mut().push(owned(copy)))?,
            copied,
            queued: Queued::of(plane)?,
            events: plane.events(move |event| into_seen.borrow_mut().push(event))?,
            seen,
        })
    }
}

impl Member {
    /// Loads the programs, and brings the addresses up. The server is started by the first [`Member::run_once`]; the
    /// member joins the pool when the server listens.
    ///
    /// # Errors
    /// The kernel refuses the programs, an address or a cgroup.
    pub(crate) fn new(
        config: MemberConfig,
        claims: UdpSocket,
        settings: &Config,
        cgroup: Cgroup,
        pins: PinDirectory,
    ) -> Result<Self, MemberError> {
        let service = Service::of(settings, &config)?;
        let plane_settings = MemberSettings {
            addresses: service.addresses.clone(),
            cgroup_id: cgroup.id(),
            cgroup_level: cgroup.level(),
            netns_cookie: netns_cookie()?,
            crash_on: CrashOn::Signal,
            mark: config.mark,
            keys: vec![service.rules.key],
            version_check: service.rules.judge.check,
            is_immutable: config.is_immutable,
            withhold: config.withhold,
            takes_inputs: config.takes_inputs,
            takes_chunks: config.takes_chunks,
            encapsulated_at: service.encapsulation_port.as_ref().map(|it| it.address),
        };
        let plane = MemberPlane::load(&plane_settings, pins)?;
        plane.attach_latch()?;
        let records = match (&settings.store, service.addresses.first()) {
            (Some(store), Some(first)) => {
                let (key, name) = (service.rules.key, config.pool.hello.name.as_str());
                Some(Records::open(store, key, *first, name, &plane)?)
            }
            _ => None,
        };
        let mut member = Self {
            rings: Rings::of(&plane)?,
            server: ServerProcess::new(config.command.clone(), cgroup),
            revivals: Revivals::new(Injector::new(config.mark)?),
            addresses: Addresses::open().doing("open a socket for addresses")?,
            claiming: Claiming::new(claims, settings.key, config.pool.hello.membership)?,
            budget: Budget::default(),
            queues: RequestQueues::new(config.takes_inputs),
            membership: Membership::Waits,
            records,
            service,
            config,
            plane,
            accepts: false,
            next_look: Duration::ZERO,
            next_upkeep: Duration::ZERO,
        };
        member.keep_up()?;
        Ok(member)
    }

    /// Programs on new interfaces, the clock, and the addresses, which expire by themselves.
    fn keep_up(&mut self) -> Result<(), MemberError> {
        self.next_upkeep = clock::now() + UPKEEP_PERIOD;
        self.server.reap();
        for interface in ethernet_interfaces()? {
            self.plane.attach_interface(&interface)?;
        }
        self.plane.set_clock(clock::unix_offset())?;
        self.name_interfaces()?;
        // The programs come before the address: no neighbour hears of the address.
        self.hold_addresses()
    }

    /// Each interface looks for its neighbours in the name of an address of its own.
    fn name_interfaces(&mut self) -> Result<(), MemberError> {
        let all = self
            .addresses
            .list()
            .doing("list the addresses of this host")?;
        for address in all {
            let is_of_pool = self
                .service
                .addresses
                .iter()
                .any(|of| of.ip() == address.ip);
            if let (IpAddr::V4(own), false) = (address.ip, is_of_pool) {
                self.plane.set_own_address(address.device, own)?;
            }
        }
        Ok(())
    }

    fn hold_addresses(&mut self) -> Result<(), MemberError> {
        let doing = "bring an address of the pool up on lo";
        let device = Addresses::device("lo").doing(doing)?.unwrap_or(1);
        self.addresses.switch_on(device).doing(doing)?;
        for ip in self.temporary_addresses(device)? {
            self.addresses
                .hold(ip, device, ADDRESS_LIFETIME)
                .doing(doing)?;
        }
        Ok(())
    }

    /// Addresses of the pool that come and go with the member. An address that does not expire is the operator's.
    fn temporary_addresses(&mut self, device: u32) -> Result<Vec<IpAddr>, MemberError> {
        let all = { self.addresses.list() }.doing("list the addresses of this host")?;
        let is_operators = |ip: &IpAddr| {
            let mut all = all.iter();
            all.any(|it| it.ip == *ip && it.device == device && it.permanent)
        };
        let ours = self.service.addresses.iter().map(SocketAddr::ip);
        Ok(ours.filter(|ip| !is_operators(ip)).collect())
    }

    /// Waits for at most `timeout` or for a question of the operator, and carries everything out that is due.
    ///
    /// # Errors
    /// A call of the kernel fails.
    pub(crate) fn run_once(
        &mut self,
        timeout: Duration,
        operator: &Operator,
    ) -> Result<Vec<Event>, MemberError> {
        let ready = self.wait(timeout, operator)?;
        let mut events = Vec::new();
        self.kernel_events(&mut events)?;
        self.poll_server(&mut events)?;
        self.poll_pool(ready.view, &mut events)?;
        self.receive_claims(ready.claims, &mut events)?;
        self.copies(&mut events)?;
        self.pass_requests()?;
        self.keep_records(&mut events)?;
        for ended in self.revivals.poll(&self.plane)? {
            self.end(ended, &mut events);
        }
        Ok(events)
    }

    /// Nothing is read that is not readable: with a store, there is a round for each few responses.
    fn wait(&self, timeout: Duration, operator: &Operator) -> Result<Ready, MemberError> {
        let now = clock::now();
        let deadlines = [
            Some(now + timeout),
            self.revivals.deadline(),
            self.server.start_at(),
            Some(self.next_look.min(self.next_upkeep)),
            self.membership.deadline(),
            self.claiming.deadline(),
            self.queues.deadline(),
            self.records.as_ref().map(Records::deadline),
        ];
        let first = deadlines.into_iter().flatten().min().unwrap_or(now);
        let timeout = Timespec::try_from(first.saturating_sub(now)).unwrap_or_default();
        let (copies, events) = (self.rings.copies.as_fd(), self.rings.events.as_fd());
        let queued = self.rings.queued.as_fd();
        let records = self.records.iter().flat_map(Records::fds);
        // The first is of the claims, and the second of the membership, if there is one.
        let mut fds: Vec<PollFd<'_>> = [self.claiming.as_fd()]
            .into_iter()
            .chain(self.membership.as_fd())
            .chain([copies, events, queued])
            .chain(records)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        operator.watch(&mut fds);
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()).doing("wait"),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let has_membership = self.membership.as_fd().is_some();
        Ok(Ready {
            claims: is_ready(&fds[0]),
            view: has_membership && is_ready(&fds[1]),
        })
    }

    fn kernel_events(&mut self, events: &mut Vec<Event>) -> Result<(), MemberError> {
        self.rings.events.consume()?;
        let seen: Vec<ObjectEvent> = self.rings.seen.borrow_mut().drain(..).collect();
        for event in seen {
            match event.kind {
                ObjectEventKind::Death { pid, status }
                    if event.incarnation == self.service.rules.incarnation =>
                {
                    let exit = Exit::of_wait_status(status);
                    self.server_died(format!("process {pid} {exit}"), events)?;
                }
                ObjectEventKind::Death { .. } => {}
                ObjectEventKind::Listening => self.next_look = Duration::ZERO,
                ObjectEventKind::Unprotected { key, reason } => {
                    self.queues.wake(&key);
                    events.push(Event::Unprotected {
                        client: key.client(),
                        code: reason.label(),
                        reason: reason.to_string(),
                    });
                }
                ObjectEventKind::Repeated { key, seq } => {
                    self.revivals.on_repetition(&self.plane, key, seq);
                }
                ObjectEventKind::TurnOver { key } => self.queues.wake(&key),
                ObjectEventKind::Answered { key } => self.hasten(key)?,
                ObjectEventKind::Diverged { key } => {
                    let ended = self
                        .revivals
                        .refuse(&self.plane, key, Refusal::Part.into())?;
                    events.extend(ended.map(event_of));
                }
            }
        }
        Ok(())
    }

    fn poll_server(&mut self, events: &mut Vec<Event>) -> Result<(), MemberError> {
        let now = clock::now();
        // The programs tell of a crash at once.
        if now >= self.next_look
            && let Some(exit) = self.server.poll()?
        {
            self.server_died(exit.to_string(), events)?;
        }
        self.server.start_if_due(now)?;
        if now >= self.next_upkeep {
            let dropped = self.budget.take_dropped();
            if dropped > 0 {
                events.push(Event::OverBudget { dropped });
            }
            self.keep_up()?;
        }
        if now >= self.next_look {
            self.next_look = now + LOOK_PERIOD;
            self.plane.next_stray_round()?;
            if self.server.listens_anew(&self.service.addresses, now)? {
                // Not before: the kernel would refuse new clients.
                let incarnation = self.service.rules.incarnation;
                self.plane.new_incarnation(incarnation)?;
                self.plane.main_process(self.server.main_pid())?;
                events.push(Event::Serving { incarnation });
                if let Some(records) = self.records.as_mut().filter(|_| incarnation > 1) {
                    records.call_own();
                }
            }
            self.watch_server(now, events)?;
        }
        Ok(())
    }

    /// The member is in the pool while its server listens, and out of the pool when the server does not come back.
    fn watch_server(&mut self, now: Duration, events: &mut Vec<Event>) -> Result<(), MemberError> {
        let missing = self
            .server
            .missing_listeners(&self.service.addresses, now)?;
        if !missing.is_empty() {
            events.push(Event::NotListening { addresses: missing });
        }
        let is_steady = self.server.is_steady(now);
        match &self.membership {
            Membership::Waits if is_steady => self.membership = Membership::Out(now),
            Membership::Out(_) if !self.server.listens() => self.membership = Membership::Waits,
            // Without others, clients would find nobody at all.
            Membership::Kept(client, _)
                if self.server.is_absent(now) && client.peek().table.members.len() > 1 =>
            {
                self.withdraw(events)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Other members go on with the connections of a server that does not come back.
    fn withdraw(&mut self, events: &mut Vec<Event>) -> Result<(), MemberError> {
        self.revivals.leave(&self.plane)?;
        let kept = std::mem::replace(&mut self.membership, Membership::Waits);
        if let Membership::Kept(client, _) = kept {
            client.leave();
        }
        events.push(Event::Withdrawn);
        self.drop_connections(events)
    }

    fn poll_pool(&mut self, has_news: bool, events: &mut Vec<Event>) -> Result<(), MemberError> {
        match &mut self.membership {
            Membership::Kept(..) if !has_news => {}
            Membership::Kept(client, seen) => {
                let view = client.view();
                let epoch = seen.epoch;
                events.extend(seen.news(&view));
                if seen.epoch != epoch {
                    self.service.rules.settled_at = clock::now() + SETTLE_TIME;
                    self.plane.clear_forwards()?;
                    let decided = self.claiming.set_table(&view.table);
                    if let Some(records) = &mut self.records {
                        records.set_table(&view.table, self.service.pool_key);
                    }
                    self.carry_out(decided, events)?;
                }
                if let Some(reason) = view.refused {
                    events.push(Event::Expelled {
                        reason: reason.to_string(),
                    });
                    self.drop_connections(events)?;
                    self.membership = Membership::Out(clock::now());
                }
            }
            Membership::Out(at) if clock::now() >= *at => self.join(events)?,
            Membership::Waits | Membership::Out(_) => {}
        }
        Ok(())
    }

    /// Other members have the connections. The member is silent: no client hears of the end.
    fn drop_connections(&mut self, events: &mut Vec<Event>) -> Result<(), MemberError> {
        // Before the sockets end: a tombstone would answer with a RST if the pool gave the connection back.
        let ended = self.revivals.drop_connections(&self.plane)?;
        self.queues.clear();
        events.extend(ended.into_iter().map(event_of));
        if let Some(records) = &mut self.records {
            records.forget();
        }
        destroy_sockets(&self.service.addresses, |_, _, _| true)?;
        Ok(())
    }

    /// Joins the pool: the server listens.
    fn join(&mut self, events: &mut Vec<Event>) -> Result<(), MemberError> {
        let membership = rand::random();
        self.config.pool.hello.membership = membership;
        self.claiming.begin_membership(membership);
        if let Some(records) = &mut self.records {
            records.begin_membership(membership);
        }
        self.accepts = false;
        self.plane.accept(false)?;
        self.membership = match Admission::join(self.config.pool.clone()) {
            Ok(admission) => {
                let client = admission.keep(self.plane.fence()?)?;
                Membership::Kept(client, Seen::default())
            }
            Err(error) => {
                let reason = error.to_string();
                events.push(Event::NotAdmitted { reason });
                Membership::Out(clock::now() + REJOIN_PAUSE)
            }
        };
        Ok(())
    }

    fn server_died(&mut self, exit: String, events: &mut Vec<Event>) -> Result<(), MemberError> {
        self.plane.gate()?;
        self.queues.clear();
        self.server.clear(&self.service.addresses, clock::now())?;
        let incarnation = self.service.rules.incarnation;
        let died = self.revivals.server_died(&self.plane, incarnation)?;
        if let Some(records) = &mut self.records {
            records.server_died(died.interrupted);
        }
        self.service.rules.incarnation += 1;
        self.service.rules.settled_at = clock::now() + SETTLE_TIME;
        events.push(Event::Died { exit });
        events.extend(died.ended.into_iter().map(event_of));
        Ok(())
    }

    fn copies(&mut self, events: &mut Vec<Event>) -> Result<(), MemberError> {
        self.rings.copies.consume()?;
        let copied: Vec<SegmentCopy> = self.rings.copied.borrow_mut().drain(..).collect();
        let now = clock::now();
        for copy in copied {
            if copy.kind == CopyKind::Deferred {
                let records = self.records.iter_mut();
                records.for_each(|it| it.defer(copy.clone()));
                continue;
            }
            let is_claimed = copy.kind != CopyKind::Unknown || self.revivals.knows(&copy.key);
            if is_claimed {
                self.revive(copy, events)?;
            } else if !self.budget.allows(now, &copy) {
                continue;
            } else if let Some(decided) = self.claiming.begin(copy) {
                self.carry_out(vec![decided], events)?;
            }
        }
        self.claiming.ask();
        self.queue_copies(now)
    }

    fn receive_claims(
        &mut self,
        has_datagrams: bool,
        events: &mut Vec<Event>,
    ) -> Result<(), MemberError> {
        let mut decided = Vec::new();
        if has_datagrams {
            let speaks = match &self.membership {
                Membership::Kept(client, _) => client.peek().speech.at(clock::boot()),
                Membership::Waits | Membership::Out(_) => false,
            };
            let plane = &self.plane;
            decided = self.claiming.receive(speaks, |key| Ok(plane.knows(key)?))?;
        }
        if self.claiming.is_known() && !self.accepts {
            self.accepts = true;
            self.plane.accept(true)?;
        }
        self.carry_out(decided, events)
    }

    fn carry_out(
        &mut self,
        decided: Vec<Decided>,
        events: &mut Vec<Event>,
    ) -> Result<(), MemberError> {
        for Decided { copy, other } in decided {
            match other {
                None => self.revive(copy, events)?,
                Some(other) => {
                    let route = match &self.service.encapsulation_port {
                        Some(_) => self.addresses.route_to(other).doing(ROUTE_LOOKUP)?,
                        None => None,
                    };
                    self.plane.forward(copy.key, other, route)?;
                    if let Some(records) = &mut self.records {
                        records.on_answer(&copy.key);
                    }
                    self.revivals.send_on(&self.plane, &copy);
                    events.push(Event::Forwarded {
                        client: copy.key.client(),
                        to: other,
                    });
                }
            }
        }
        Ok(())
    }

    fn revive(&mut self, copy: SegmentCopy, events: &mut Vec<Event>) -> Result<(), MemberError> {
        let revivals = &self.revivals;
        let looked_up = match &mut self.records {
            Some(records) if records.is_needed_for(&copy, revivals) => records.look_up(copy),
            _ => {
                let record = Err(PositionError::NoStore);
                Some(LookedUp { copy, record })
            }
        };
        match looked_up {
            Some(looked_up) => self.revive_with(looked_up, events),
            None => Ok(()),
        }
    }

    fn revive_with(
        &mut self,
        LookedUp { copy, record }: LookedUp,
        events: &mut Vec<Event>,
    ) -> Result<(), MemberError> {
        let rules = Rules {
            unix_now: clock::unix_offset() + clock::boot(),
            ..self.service.rules
        };
        let ended = self.revivals.take(&self.plane, &rules, &copy, record)?;
        // A client without timestamps may have to answer once more.
        let is_over = ended.is_some() || copy.segment().is_some_and(|it| it.timestamps().is_some());
        if let Some(records) = self.records.as_mut().filter(|_| is_over) {
            records.on_answer(&copy.key);
        }
        if let Some(ended) = ended {
            self.end(ended, events);
        }
        Ok(())
    }

    /// A revival has ended.
    fn end(&mut self, ended: Ended, events: &mut Vec<Event>) {
        if let (Some(records), Some(record), None) =
            (&mut self.records, &ended.record, &ended.refused)
        {
            records.on_revived(ended.key, record, ended.is_stored);
            if let Some(asked) = ended.asked.clone() {
                records.on_asked(ended.key, asked);
            }
        }
        events.push(event_of(ended));
    }

    /// Writes records, calls clients, and goes on with revivals whose records are there.
    fn keep_records(&mut self, events: &mut Vec<Event>) -> Result<(), MemberError> {
        let incarnation = self.service.rules.incarnation;
        let Some(records) = &mut self.records else {
            return Ok(());
        };
        let found = records.poll(&self.plane, incarnation, events)?;
        for packet in records.due_calls(&self.plane, incarnation)? {
            self.revivals.call(&self.plane, &packet);
        }
        for released in records.released(&self.plane)? {
            if released.given_up.is_some_and(|turn| turn.must_reset) {
                let reason = PositionError::StoreLost.into();
                let ended = self.revivals.refuse(&self.plane, released.key, reason)?;
                events.extend(ended.map(event_of));
            } else {
                self.revivals.release(&self.plane, &released);
            }
        }
        for looked_up in found {
            self.revive_with(looked_up, events)?;
        }
        Ok(())
    }

    /// Wants no new connections. Returns the number of connections.
    ///
    /// # Errors
    /// The kernel does not list the connections.
    pub(crate) fn drain(&mut self) -> Result<usize, MemberError> {
        if let Membership::Kept(client, _) = &self.membership {
            client.drain();
        }
        self.connections()
    }

    /// The number of connections that would notice the end of the member. Idle connections go on elsewhere, and their
    /// clients send a request first.
    ///
    /// # Errors
    /// As [`Member::drain`].
    pub(crate) fn connections(&self) -> Result<usize, MemberError> {
        let mut count = 0;
        for (local, remote, state) in connection_states(&self.service.addresses)? {
            let notices = match state {
                TcpState::Listen | TcpState::SynSent | TcpState::TimeWait => false,
                TcpState::Established => {
                    let flow = self.plane.flow(FlowKey::new(remote, local))?;
                    flow.is_some_and(|it| it.turn.phase != Phase::Idle || it.unprotected.is_some())
                }
                // A FIN is still to come or to be acknowledged.
                _ => true,
            };
            count += usize::from(notices);
        }
        Ok(count)
    }

    /// Whether new connections go to other members.
    pub(crate) fn is_draining(&self) -> bool {
        let Membership::Kept(client, _) = &self.membership else {
            return false;
        };
        let own = self.config.pool.hello.membership;
        let table = client.peek().table;
        let mut members = table.members.iter();
        members.any(|member| member.membership == own && member.draining)
    }

    /// Ends the server, and removes all that the member has made.
    ///
    /// # Errors
    /// Something is left behind.
    pub(crate) fn stop(mut self) -> Result<(), MemberError> {
        self.revivals.leave(&self.plane)?;
        if let Membership::Kept(client, _) =
            std::mem::replace(&mut self.membership, Membership::Out(Duration::MAX))
        {
            client.leave();
        }
        self.plane.stopping(true)?;
        if let Err(error) = self.server.stop() {
            tracing::warn!(%error, "the server did not end in time");
        }
        let doing = "take an address of the pool down";
        let device = Addresses::device("lo").doing(doing)?.unwrap_or(1);
        for ip in self.temporary_addresses(device)? {
            self.addresses.remove(ip, device).doing(doing)?;
        }
        self.server.remove()?;
        Ok(self.plane.remove()?)
    }
}

fn event_of(ended: Ended) -> Event {
    let client = ended.key.client();
    match ended.refused {
        None => Event::Revived {
            client,
            object: ended.target,
            offset: ended.offset,
            after_us: u64::try_from(ended.after.as_micros()).unwrap_or(u64::MAX),
        },
        Some(reason) => Event::Refused {
            client,
            code: reason.label(),
            reason: reason.to_string(),
        },
    }
}
