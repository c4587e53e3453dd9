//! The server's host: the kernel's TCP behind the south side wrap, and the processes on top.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::{Rng, rngs::SmallRng};
use smoltcp::{iface::SocketHandle, socket::tcp::State};
use ssw::{Exit, MARK_TO_CLIENT, Packet, Settings, SocketChange, SocketState, SouthSide, Verdict};
use wire::{ChecksumMode, FlowKey, IpPacket, checksum};

use crate::{
    SECOND,
    clock::CLOCKS,
    host::{Host, SocketSetup, ends},
    process::Process,
    scenario::{ServiceSetup, endpoints},
    trace,
    witness::{Violation, Witness},
};

/// The first of our marks.
pub(crate) const MARK: u32 = 0x0f70_0000;
const INTERFACE: u32 = 3;

/// The server's host.
pub(crate) struct Node {
    pub(crate) setup: ServiceSetup,
    pub(crate) host: Host,
    pub(crate) ssw: SouthSide,
    pub(crate) process: Option<Process>,
    /// Connection and last reported state of each socket that ever had one.
    states: BTreeMap<SocketHandle, (FlowKey, State)>,
    /// Packets for the network.
    pub(crate) leaving: Vec<Vec<u8>>,
}

impl Node {
    pub(crate) fn new(setup: ServiceSetup, rng: &mut SmallRng) -> Self {
        let addresses: Vec<_> = endpoints().iter().map(std::net::SocketAddr::ip).collect();
        let settings = Settings {
            heartbeat_timeout_ns: 10 * SECOND,
            crash_on_any_failure: false,
            mark: MARK,
            verify_head: setup.verify_head,
            mirror_capacity: setup.mirror_capacity,
            max_flows: 64,
            max_embryos: 64,
            endpoints: endpoints(),
        };
        Self {
            host: Host::new(&addresses, setup.mtu, rng.random()),
            ssw: SouthSide::new(settings, 0),
            process: None,
            states: BTreeMap::new(),
            leaving: Vec::new(),
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

    pub(crate) fn due(&mut self, now: u64) -> Option<u64> {
        let process = self.process.as_ref().map(|process| process.act_at);
        [self.host.due(now), process].into_iter().flatten().min()
    }

    /// A packet from the network.
    pub(crate) fn receive(
        &mut self,
        bytes: Vec<u8>,
        witness: &mut Witness,
        now: u64,
    ) -> Result<(), Violation> {
        self.up(packet(bytes, 0, ChecksumMode::Full), witness, now)
    }

    /// A packet of our own for the server.
    pub(crate) fn inject(
        &mut self,
        bytes: Vec<u8>,
        mark: u32,
        witness: &mut Witness,
        now: u64,
    ) -> Result<(), Violation> {
        self.up(
            packet(bytes, MARK + mark, ChecksumMode::Partial),
            witness,
            now,
        )
    }

    /// A packet of our own for a client.
    pub(crate) fn send_to_client(
        &mut self,
        bytes: Vec<u8>,
        witness: &mut Witness,
        now: u64,
    ) -> Result<(), Violation> {
        let mut packet = packet(bytes, MARK + MARK_TO_CLIENT, ChecksumMode::Full);
        if self.ssw.egress(&mut packet, now) == Verdict::Next {
            witness.leaves(&packet.bytes, true)?;
            self.leaving.push(packet.bytes);
        }
        Ok(())
    }

    fn up(&mut self, packet: Packet, witness: &mut Witness, now: u64) -> Result<(), Violation> {
        let mut queue = VecDeque::from([packet]);
        while let Some(mut packet) = queue.pop_front() {
            if packet.mark != 0 {
                trace::packet(now, "injected or turned", &packet.bytes);
            }
            match self.ssw.ingress(&mut packet, now) {
                Verdict::Next => {
                    let said = self.host.receive(finished(packet), now);
                    queue.extend(self.down(said, witness, now)?);
                }
                Verdict::Drop | Verdict::RedirectIngress => {}
            }
        }
        Ok(())
    }

    /// What the stack has said; returns what is turned round.
    fn down(
        &mut self,
        said: Vec<Vec<u8>>,
        witness: &mut Witness,
        now: u64,
    ) -> Result<Vec<Packet>, Violation> {
        self.report_states(now);
        let mut turned = Vec::new();
        for bytes in said {
            let mut packet = packet(bytes, 0, ChecksumMode::Full);
            trace::packet(now, "the server says", &packet.bytes);
            match self.ssw.egress(&mut packet, now) {
                Verdict::Next => {
                    witness.leaves(&packet.bytes, false)?;
                    self.leaving.push(packet.bytes);
                }
                Verdict::RedirectIngress => turned.push(packet),
                Verdict::Drop => {}
            }
        }
        Ok(turned)
    }

    /// Let the stack say what it has to say.
    pub(crate) fn poll(&mut self, witness: &mut Witness, now: u64) -> Result<(), Violation> {
        let said = self.host.poll(now);
        for packet in self.down(said, witness, now)? {
            self.up(packet, witness, now)?;
        }
        self.forget_closed();
        self.keep_backlog();
        Ok(())
    }

    /// The kernel tells which sockets change their state (`inet_sock_set_state`). As in Linux, a
    /// socket that is left with nothing but waiting becomes a TIME-WAIT entry, and counts as closed.
    fn report_states(&mut self, now: u64) {
        let mut changes = Vec::new();
        for (handle, socket) in self.host.tcp() {
            let key = match (self.states.get(&handle), ends(socket)) {
                (_, Some((local, remote))) => FlowKey::new(remote, local),
                (Some((key, _)), None) => *key,
                (None, None) => continue,
            };
            let state = socket.state();
            if self
                .states
                .get(&handle)
                .is_none_or(|(_, before)| *before != state)
            {
                changes.push((handle, key, state));
            }
        }
        for (handle, key, state) in changes {
            if state == State::Listen {
                // A handshake was given up: to Linux it was no socket yet.
                self.states.remove(&handle);
                continue;
            }
            self.states.insert(handle, (key, state));
            let new_state = match state {
                State::FinWait1 => SocketState::FinWait1,
                State::LastAck => SocketState::LastAck,
                State::Closing => SocketState::Closing,
                State::FinWait2 | State::TimeWait | State::Closed => SocketState::Close,
                _ => SocketState::Other,
            };
            self.ssw.socket_state(SocketChange { key, new_state }, now);
        }
    }

    /// The kernel forgets a socket that is closed, once no process holds it.
    fn forget_closed(&mut self) {
        let held: BTreeSet<SocketHandle> = self.process.iter().flat_map(Process::held).collect();
        let closed: Vec<SocketHandle> = self
            .host
            .tcp()
            .filter(|(handle, socket)| socket.state() == State::Closed && !held.contains(handle))
            .map(|(handle, _)| handle)
            .collect();
        for handle in closed {
            self.remove(handle);
        }
    }

    fn remove(&mut self, handle: SocketHandle) {
        self.states.remove(&handle);
        self.host.sockets.remove(handle);
    }

    /// A listening server has a queue of sockets that wait for connections.
    fn keep_backlog(&mut self) {
        let Some(process) = self.process.as_ref().filter(|process| process.listening) else {
            return;
        };
        let clock = crate::index(process.life) % CLOCKS.len();
        let held: BTreeSet<SocketHandle> = process.held().collect();
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

/// Life and death of processes.
impl Node {
    pub(crate) fn act(
        &mut self,
        witness: &mut Witness,
        rng: &mut SmallRng,
        now: u64,
    ) -> Result<bool, Violation> {
        let mut poisoned = false;
        if let Some(process) = self
            .process
            .as_mut()
            .filter(|process| now >= process.act_at)
        {
            process.act_at = now + crate::pause(rng, self.setup.pace, process.idle);
            if process.listening {
                let deeds = process.act(&mut self.host, witness, rng)?;
                poisoned = deeds.poisoned && !process.headless;
                if !process.headless {
                    deeds
                        .closed
                        .iter()
                        .for_each(|key| witness.server_closed(*key));
                }
            } else if !process.headless {
                process.listening = true;
                self.host.listening = true;
                self.keep_backlog();
                let any: std::net::SocketAddr = ([0, 0, 0, 0], 80).into();
                let change = SocketChange {
                    key: FlowKey::new(any, any),
                    new_state: SocketState::Listen,
                };
                self.ssw.socket_state(change, now);
            }
        }
        // A state that an application changes is told before the packet that follows from it.
        self.report_states(now);
        self.poll(witness, now)?;
        Ok(poisoned)
    }

    /// The main process dies of `status`. Its sockets are closed, or held by others of the service.
    pub(crate) fn crash(
        &mut self,
        status: u32,
        workers_live_on: bool,
        witness: &mut Witness,
        now: u64,
    ) -> Result<(), Violation> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        trace::note(now, || format!("death of process {}", process.pid));
        process.headless = true;
        witness.died();
        let exit = Exit {
            in_service: true,
            tgid: process.pid,
            exit_code: status,
            last_thread: true,
            group_exit: true,
        };
        self.ssw.process_exit(exit, now);
        if workers_live_on {
            Ok(())
        } else {
            self.close_all(witness, now)
        }
    }

    /// No process is left: the kernel closes what they held, with a FIN, or with a RST where
    /// something was unread or not accepted.
    pub(crate) fn close_all(&mut self, witness: &mut Witness, now: u64) -> Result<(), Violation> {
        self.host.listening = false;
        let Some(process) = self.process.take() else {
            return Ok(());
        };
        let held: BTreeSet<SocketHandle> = process.held().collect();
        let open: Vec<(SocketHandle, State)> = self
            .host
            .tcp()
            .map(|(handle, socket)| (handle, socket.state()))
            .collect();
        for (handle, state) in open {
            match state {
                State::Listen | State::SynReceived => {
                    self.remove(handle);
                }
                State::Established | State::CloseWait if held.contains(&handle) => {
                    let socket = self.host.socket(handle);
                    if socket.recv_queue() > 0 {
                        socket.abort()
                    } else {
                        socket.close()
                    }
                }
                State::Established | State::CloseWait => self.host.socket(handle).abort(),
                _ => {}
            }
        }
        self.report_states(now);
        self.poll(witness, now)
    }

    /// `SOCK_DESTROY` of all sockets but those that the living server closed itself. Those that
    /// only wait (RFC 9293 3.6.1) are among them, though their flows are forgotten by then.
    pub(crate) fn remove_orphans(
        &mut self,
        witness: &mut Witness,
        now: u64,
    ) -> Result<(), Violation> {
        let finishing: BTreeSet<FlowKey> = self
            .ssw
            .flows()
            .filter(|(_, flow)| flow.server_closing)
            .map(|(key, _)| *key)
            .collect();
        let orphans: Vec<SocketHandle> = self
            .host
            .tcp()
            .filter(|(_, socket)| {
                let waits = matches!(socket.state(), State::FinWait2 | State::TimeWait);
                !waits
                    && ends(socket).is_some_and(|(local, remote)| {
                        !finishing.contains(&FlowKey::new(remote, local))
                    })
            })
            .map(|(handle, _)| handle)
            .collect();
        self.destroy(orphans, witness, now)
    }

    /// `SOCK_DESTROY` of the socket of one connection, if there is one.
    pub(crate) fn destroy_socket(
        &mut self,
        key: FlowKey,
        witness: &mut Witness,
        now: u64,
    ) -> Result<(), Violation> {
        let found = self.host.tcp().filter(|(_, socket)| {
            ends(socket).is_some_and(|(local, remote)| key == FlowKey::new(remote, local))
        });
        let found = found.map(|(handle, _)| handle).collect();
        self.destroy(found, witness, now)
    }

    fn destroy(
        &mut self,
        sockets: Vec<SocketHandle>,
        witness: &mut Witness,
        now: u64,
    ) -> Result<(), Violation> {
        for handle in sockets {
            self.host.socket(handle).abort();
        }
        self.report_states(now);
        self.poll(witness, now)
    }
}

fn packet(bytes: Vec<u8>, mark: u32, checksum: ChecksumMode) -> Packet {
    Packet {
        bytes,
        mark,
        ifindex: INTERFACE,
        checksum,
    }
}

/// The kernel takes an unfinished checksum for a right one; our stack wants to see it.
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
