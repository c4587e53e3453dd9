//! The server's host: the kernel's TCP behind the south side wrap, and the processes on top.

mod north;
mod processes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::{Rng, SeedableRng, rngs::SmallRng};
use smoltcp::{iface::SocketHandle, socket::tcp::State};
use south_model::{
    CrashOn, DigestKey, Digests, Flow, LinkSettings, MARK_TO_CLIENT, Packet, Settings,
    SocketChange, SocketState, SouthSide, Verdict,
};
use wire::{ChecksumMode, FlowId, FlowKey, IpPacket, checksum};

use crate::{
    SECOND,
    clock::CLOCKS,
    host::{Host, SocketSetup, ends},
    invariants::{InvariantChecker, Violation},
    link,
    process::Process,
    scenario::{LinkSetup, ServiceSetup, endpoints},
    trace,
};

pub(crate) use north::North;
pub use north::NorthCounters;

/// The first of our marks.
pub(crate) const FIRST_MARK: u32 = 0x0f70_0000;
const INTERFACE_INDEX: u32 = 3;
/// How long the kernel keeps a socket that has closed, and that no process holds, for the other side's end, ns
/// (`net.ipv4.tcp_fin_timeout`). A flow is kept longer.
const FIN_TIMEOUT: u64 = 60 * SECOND;

/// With a separate key.
fn digests(rate: u32, rng: &mut SmallRng) -> Digests {
    let mut rng = SmallRng::seed_from_u64(rng.random());
    Digests {
        key: DigestKey::of(|| rng.random()),
        rate,
    }
}

/// The server's host.
pub(crate) struct Node {
    pub(crate) setup: ServiceSetup,
    pub(crate) host: Host,
    pub(crate) south: SouthSide,
    pub(crate) process: Option<Process>,
    /// Set for a server with state.
    pub(crate) north: Option<North>,
    /// Connection and last reported state of each socket that ever had a connection.
    states: BTreeMap<SocketHandle, (FlowKey, State)>,
    /// Connections that the server has half-closed and still reads.
    half_closed: BTreeSet<SocketHandle>,
    /// Since when sockets without a process wait for the other side's end.
    waiting: BTreeMap<SocketHandle, u64>,
    /// Packets for the network.
    pub(crate) leaving: Vec<Vec<u8>>,
    /// Packets for a logger on another machine.
    pub(crate) to_logger: Vec<Vec<u8>>,
}

impl Node {
    /// A host that was just switched on, for the `life`-th time (from 0).
    pub(crate) fn new(
        setup: ServiceSetup,
        link: Option<&LinkSetup>,
        instance: u8,
        rng: &mut SmallRng,
        now: u64,
    ) -> Self {
        let addresses: Vec<_> = endpoints().iter().map(std::net::SocketAddr::ip).collect();
        let settings = Settings {
            heartbeat_timeout_ns: 10 * SECOND,
            crash_on: CrashOn::Signal,
            mark: FIRST_MARK,
            verify_head: setup.verify_head,
            digests: setup.digests.map(|rate| digests(rate, rng)),
            mirror_capacity: setup.mirror_capacity,
            max_flows: 64,
            max_half_open: 64,
            endpoints: endpoints(),
            link: link.is_some(),
            read_cursors: setup.north.and_then(|north| north.spare_copies),
        };
        Self {
            host: Host::new(&addresses, setup.mtu, rng.random()),
            south: south_side(
                settings,
                link.map(|link| link::settings(link, instance)),
                instance,
                now,
            ),
            process: None,
            north: setup.north.map(North::new),
            states: BTreeMap::new(),
            half_closed: BTreeSet::new(),
            waiting: BTreeMap::new(),
            leaving: Vec::new(),
            to_logger: Vec::new(),
            setup,
        }
    }

    /// Some process of the service lives.
    pub(crate) fn populated(&self) -> bool {
        self.process.is_some()
    }

    /// The main process lives.
    pub(crate) fn alive(&self) -> bool {
        self.process
            .as_ref()
            .is_some_and(|process| !process.headless)
    }

    /// The flow of this connection, unless another connection has the same ends by now.
    pub(crate) fn numbered(&self, key: FlowKey, id: FlowId) -> Option<Flow> {
        let flow = self.south.flow(&key).filter(|flow| flow.id == id);
        flow.cloned()
    }

    pub(crate) fn due(&mut self, now: u64) -> Option<u64> {
        let process = self.process.as_ref().map(|process| process.act_at);
        [self.host.due(now), process].into_iter().flatten().min()
    }

    /// A packet from the network.
    pub(crate) fn receive(
        &mut self,
        bytes: Vec<u8>,
        checker: &mut InvariantChecker,
        now: u64,
    ) -> Result<(), Violation> {
        self.up(packet(bytes, 0, ChecksumMode::Full), checker, now)
    }

    /// A packet of our own for the server.
    pub(crate) fn inject(
        &mut self,
        bytes: Vec<u8>,
        mark: u32,
        checker: &mut InvariantChecker,
        now: u64,
    ) -> Result<(), Violation> {
        self.up(
            packet(bytes, FIRST_MARK + mark, ChecksumMode::Partial),
            checker,
            now,
        )
    }

    /// A packet of our own for a client.
    pub(crate) fn send_to_client(
        &mut self,
        bytes: Vec<u8>,
        checker: &mut InvariantChecker,
        now: u64,
    ) -> Result<(), Violation> {
        let mut packet = packet(bytes, FIRST_MARK + MARK_TO_CLIENT, ChecksumMode::Full);
        if self.south.egress(&mut packet, now) == Verdict::Next {
            checker.leaves(&packet.bytes, true)?;
            self.leaving.push(packet.bytes);
        }
        Ok(())
    }

    fn up(
        &mut self,
        packet: Packet,
        checker: &mut InvariantChecker,
        now: u64,
    ) -> Result<(), Violation> {
        let mut queue = VecDeque::from([packet]);
        while let Some(mut packet) = queue.pop_front() {
            if packet.mark != 0 {
                trace::packet(now, "injected or turned", &packet.bytes);
            }
            let verdict = self.south.ingress(&mut packet, now);
            while let Some(copy) = self.south.take_copy() {
                self.to_logger
                    .extend(self.south.wrap(&copy).map(|packet| packet.bytes));
            }
            while let Some(sent) = self.south.take_sent() {
                checker.leaves(&sent.bytes, false)?;
                self.leaving.push(sent.bytes);
            }
            match verdict {
                Verdict::Next => {
                    let said = self.host.receive(finished(packet), now);
                    queue.extend(self.down(said, checker, now)?);
                }
                // The logger's word has become the client's.
                Verdict::Redirect => {
                    checker.leaves(&packet.bytes, false)?;
                    self.leaving.push(packet.bytes);
                }
                Verdict::Drop | Verdict::Withheld | Verdict::RedirectIngress => {}
            }
        }
        Ok(())
    }

    /// Takes packets of the stack to the network; returns the packets for this host.
    fn down(
        &mut self,
        said: Vec<Vec<u8>>,
        checker: &mut InvariantChecker,
        now: u64,
    ) -> Result<Vec<Packet>, Violation> {
        self.report_states(now);
        // The kernel finishes connections that the client has ended, too.
        let half_closed = self
            .half_closed
            .iter()
            .filter_map(|handle| self.states.get(handle));
        for (key, _) in half_closed.filter(|(_, state)| is_over(*state)) {
            checker.server_closed(*key);
        }
        let mut turned = Vec::new();
        for bytes in said {
            let mut packet = packet(bytes, 0, ChecksumMode::Full);
            trace::packet(now, "the server says", &packet.bytes);
            match self.south.egress(&mut packet, now) {
                Verdict::Next => {
                    checker.leaves(&packet.bytes, false)?;
                    self.leaving.push(packet.bytes);
                }
                Verdict::RedirectIngress => turned.push(packet),
                Verdict::Redirect if packet.mark == FIRST_MARK + MARK_TO_CLIENT => {
                    checker.leaves(&packet.bytes, false)?;
                    self.leaving.push(packet.bytes);
                }
                // A SYN-ACK takes the detour.
                Verdict::Redirect => self.to_logger.push(packet.bytes),
                Verdict::Drop | Verdict::Withheld => {}
            }
        }
        Ok(turned)
    }

    /// Runs the stack, and takes the packets down.
    pub(crate) fn poll(
        &mut self,
        checker: &mut InvariantChecker,
        now: u64,
    ) -> Result<(), Violation> {
        let said = self.host.poll(now);
        for packet in self.down(said, checker, now)? {
            self.up(packet, checker, now)?;
        }
        self.forget_closed(now);
        self.keep_backlog();
        Ok(())
    }

    /// The kernel reports sockets that change state (`inet_sock_set_state`). As in Linux, a socket that only waits
    /// becomes a TIME-WAIT entry, and counts as closed.
    fn report_states(&mut self, now: u64) {
        let mut changes = Vec::new();
        for (handle, socket) in self.host.tcp() {
            let key = match (self.states.get(&handle), ends(socket)) {
                (_, Some((local, remote))) => FlowKey::new(remote, local),
                (Some((key, _)), None) => *key,
                (None, None) => continue,
            };
            let state = socket.state();
            let process = self.process.as_ref();
            let reads_on = process.is_some_and(|process| process.reads_on(handle));
            let changes_state = self
                .states
                .get(&handle)
                .is_none_or(|(_, before)| *before != state);
            if changes_state || reads_on != self.half_closed.contains(&handle) {
                changes.push((handle, key, state, reads_on));
            }
        }
        for (handle, key, state, reads_on) in changes {
            if reads_on {
                self.half_closed.insert(handle);
            } else {
                self.half_closed.remove(&handle);
            }
            let reads_on = reads_on && !self.setup.ends_at_half_close;
            if state == State::Listen {
                // A handshake was given up: in Linux there was no socket yet.
                self.states.remove(&handle);
                continue;
            }
            self.states.insert(handle, (key, state));
            let new_state = match state {
                State::FinWait1 if reads_on => SocketState::HalfClosed,
                State::FinWait2 if reads_on => SocketState::Other,
                State::FinWait1 => SocketState::FinWait1,
                State::LastAck => SocketState::LastAck,
                State::Closing => SocketState::Closing,
                State::FinWait2 | State::TimeWait | State::Closed => SocketState::Close,
                _ => SocketState::Other,
            };
            self.south
                .socket_state(SocketChange { key, new_state }, now);
        }
    }

    /// The kernel forgets a closed socket without a process; after a while also a socket that waits for an end.
    fn forget_closed(&mut self, now: u64) {
        let held = self.held();
        let left = self.host.tcp().filter(|(handle, _)| !held.contains(handle));
        let (mut closed, mut waiting) = (Vec::new(), BTreeMap::new());
        for (handle, socket) in left {
            match socket.state() {
                State::Closed => closed.push(handle),
                State::FinWait2 => {
                    let since = self.waiting.get(&handle).copied().unwrap_or(now);
                    waiting.insert(handle, since);
                    closed.extend((now >= since + FIN_TIMEOUT).then_some(handle));
                }
                _ => {}
            }
        }
        self.waiting = waiting;
        for handle in closed {
            self.remove(handle);
        }
    }

    /// The sockets that a process or a graft holds.
    fn held(&self) -> BTreeSet<SocketHandle> {
        let processes = self.process.iter().flat_map(Process::held);
        let made = self.north.iter().flat_map(North::made);
        processes.chain(made).collect()
    }

    fn remove(&mut self, handle: SocketHandle) {
        self.states.remove(&handle);
        self.half_closed.remove(&handle);
        self.host.sockets.remove(handle);
    }

    /// A listening server has a queue of sockets that wait for connections.
    fn keep_backlog(&mut self) {
        let process = self.process.as_ref();
        let Some(process) = process.filter(|process| process.listening) else {
            return;
        };
        let clock = crate::index(process.incarnation) % CLOCKS.len();
        let held = self.held();
        let pending = self.host.tcp().filter(|(handle, socket)| {
            let new = matches!(socket.state(), State::Established | State::CloseWait);
            socket.state() == State::Listen || (new && !held.contains(handle))
        });
        let missing = self.setup.backlog.saturating_sub(pending.count());
        for _ in 0..missing {
            let handle = self.host.open(SocketSetup {
                receive_buffer: self.setup.receive_buffer,
                send_buffer: self.setup.send_buffer,
                timestamps: Some(CLOCKS[clock]),
                nagle: self.setup.nagle,
            });
            // Port 80 is a port.
            let _ = self.host.socket(handle).listen(80);
        }
    }
}

/// Both sides have ended.
const fn is_over(state: State) -> bool {
    matches!(state, State::Closing | State::TimeWait | State::Closed)
}

fn south_side(settings: Settings, link: Option<LinkSettings>, instance: u8, now: u64) -> SouthSide {
    let mut south = SouthSide::new(settings, now);
    if let Some(link) = link {
        south.set_link(link);
        south.link_up(true);
        south.egress(
            &mut packet(link::probe(instance), 0, ChecksumMode::Full),
            now,
        );
    }
    south
}

fn packet(bytes: Vec<u8>, mark: u32, checksum: ChecksumMode) -> Packet {
    Packet {
        bytes,
        mark,
        ifindex: INTERFACE_INDEX,
        checksum,
    }
}

/// The kernel takes an unfinished checksum for valid; smoltcp checks the checksum.
fn finished(packet: Packet) -> Vec<u8> {
    let mut bytes = packet.bytes;
    if packet.checksum == ChecksumMode::Partial
        && let Ok(view) = IpPacket::parse(&bytes)
    {
        let sum = checksum::tcp_checksum(view.source(), view.destination(), view.payload());
        let at = view.header_len() + 16;
        if let Some(field) = bytes.get_mut(at..at + 2) {
            field.copy_from_slice(&sum.to_be_bytes());
        }
    }
    bytes
}
