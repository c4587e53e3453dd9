//! A client: the host, and an application that follows a script.

use rand::{Rng, rngs::SmallRng};
use smoltcp::{iface::SocketHandle, socket::tcp::State};
use wire::{ChecksumMode, Flags, IpPacket, Segment, SegmentMut};

use crate::{
    clock::CLOCKS,
    host::{Host, SocketSetup},
    invariants::{InvariantChecker, Violation},
    scenario::{ClientEnd, ClientSetup, ScriptStep},
};

/// Progress of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    NotStarted,
    Open,
    /// Everything was said, heard and closed.
    Complete,
    /// The client reset the connection or was switched off, as the script demands.
    Gone,
    /// The connection was reset, which the fault of this run allows.
    Lost,
}

/// A client.
pub(crate) struct Client {
    number: usize,
    pub(crate) setup: ClientSetup,
    host: Host,
    handle: SocketHandle,
    pub(crate) progress: Progress,
    step: usize,
    /// Bytes of the step under way that the socket has taken.
    taken: usize,
    received: usize,
    ended: bool,
    closed: bool,
    act_at: u64,
    /// How often the application had no work.
    idle: u32,
    off: bool,
}

impl Client {
    pub(crate) fn new(number: usize, setup: ClientSetup, rng: &mut SmallRng) -> Self {
        let mut host = Host::new(&[setup.address.ip()], setup.mtu, rng.random());
        let handle = host.open(SocketSetup {
            receive_buffer: setup.receive_buffer,
            send_buffer: setup.send_buffer,
            timestamps: setup.clock.map(|clock| CLOCKS[clock]),
            nagle: setup.nagle,
        });
        Self {
            number,
            host,
            handle,
            progress: Progress::NotStarted,
            step: 0,
            taken: 0,
            received: 0,
            ended: false,
            closed: false,
            act_at: setup.start,
            idle: 0,
            off: false,
            setup,
        }
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        let script = &self.setup.script;
        format!(
            "{} at step {} of {}, {} of {} bytes received: {:?}",
            self.number,
            self.step,
            script.steps.len(),
            self.received,
            script.outstream.len(),
            self.host.describe()
        )
    }

    /// Whether the client has no work left.
    pub(crate) fn done(&self) -> bool {
        !matches!(self.progress, Progress::NotStarted | Progress::Open)
    }

    pub(crate) fn due(&mut self, now: u64) -> Option<u64> {
        if self.off {
            return None;
        }
        let application = (!self.done()).then_some(self.act_at);
        [self.host.due(now), application]
            .into_iter()
            .flatten()
            .min()
    }

    /// A packet has arrived.
    pub(crate) fn receive(
        &mut self,
        packet: Vec<u8>,
        checker: &mut InvariantChecker,
        now: u64,
    ) -> Vec<Vec<u8>> {
        if self.off {
            return Vec::new();
        }
        let last_ack = self.host.socket(self.handle).state() == State::LastAck;
        let reset = is_reset(&packet);
        let said = self.host.receive(packet, now);
        let state = self.host.socket(self.handle).state();
        if last_ack && state == State::Closed && !reset {
            checker.client_state(self.number, State::TimeWait); // as good as that
        }
        checker.client_state(self.number, state);
        self.sent(said)
    }

    /// Time has passed.
    pub(crate) fn act(
        &mut self,
        checker: &mut InvariantChecker,
        rng: &mut SmallRng,
        now: u64,
    ) -> Result<Vec<Vec<u8>>, Violation> {
        if self.off {
            return Ok(Vec::new());
        }
        if !self.done() && now >= self.act_at {
            self.act_at = now + crate::pause(rng, self.setup.pace, self.idle);
            let before = (self.step, self.taken, self.received);
            self.application(checker, rng, now)?;
            let busy = before != (self.step, self.taken, self.received);
            self.idle = if busy { 0 } else { self.idle + 1 };
        }
        let said = self.host.poll(now);
        Ok(self.sent(said))
    }

    /// A step of the application: reads, writes, closes.
    fn application(
        &mut self,
        checker: &mut InvariantChecker,
        rng: &mut SmallRng,
        now: u64,
    ) -> Result<(), Violation> {
        if self.progress == Progress::NotStarted {
            self.progress = Progress::Open;
            let (to, port) = (self.setup.server, self.setup.address.port());
            if !self.host.connect(self.handle, to, port) {
                return Err(Violation::new("the stack of a client does not connect"));
            }
        }
        match self.setup.script.fate {
            ClientEnd::Resets(at) if now >= self.setup.start + at => {
                self.host.socket(self.handle).abort();
                self.progress = Progress::Gone;
                checker.gone(self.number);
                return Ok(());
            }
            ClientEnd::Vanishes(at) if now >= self.setup.start + at => {
                self.off = true;
                self.progress = Progress::Gone;
                checker.gone(self.number);
                return Ok(());
            }
            _ => {}
        }
        self.read_response(checker, rng)?;
        self.send_next(checker, rng, now);
        self.check_state(checker)
    }

    fn read_response(
        &mut self,
        checker: &mut InvariantChecker,
        rng: &mut SmallRng,
    ) -> Result<(), Violation> {
        while !self.ended {
            let max = rng.random_range(1..20_000);
            match self.host.read(self.handle, max) {
                Ok(Some(bytes)) if bytes.is_empty() => break,
                Ok(Some(bytes)) => {
                    checker.client_read(self.number, self.received, &bytes)?;
                    self.received += bytes.len();
                    if rng.random_bool(0.3) {
                        break;
                    }
                }
                Ok(None) => {
                    self.ended = true;
                    checker.client_at_end(self.number, self.received)?;
                }
                Err(_) => break, // no connection yet, or no more
            }
        }
        Ok(())
    }

    fn send_next(&mut self, checker: &mut InvariantChecker, rng: &mut SmallRng, now: u64) {
        while let Some(step) = self.setup.script.steps.get(self.step) {
            match step {
                ScriptStep::Send(bytes) => {
                    let socket = self
                        .host
                        .sockets
                        .get_mut::<smoltcp::socket::tcp::Socket<'_>>(self.handle);
                    if !socket.can_send() {
                        return;
                    }
                    let rest = &bytes[self.taken..];
                    let piece = &rest[..rng.random_range(1..=rest.len())];
                    let taken = socket.send_slice(piece).unwrap_or(0);
                    checker.client_wrote(self.number, taken);
                    self.taken += taken;
                    if self.taken < bytes.len() {
                        return;
                    }
                }
                ScriptStep::Await(total) if self.received < *total => return,
                ScriptStep::Await(_) => {}
                ScriptStep::Pause(length) => {
                    self.act_at = now + length;
                    self.step += 1;
                    return;
                }
                ScriptStep::HalfClose => {
                    if !self.host.socket(self.handle).may_send() {
                        return;
                    }
                    self.close(checker);
                }
            }
            self.step += 1;
            self.taken = 0;
        }
        // All requests are sent. The end of the other side is missing, or this client closes first.
        if !self.closed
            && (self.ended || self.received == self.setup.script.outstream.len())
            && self.host.socket(self.handle).may_send()
        {
            self.close(checker);
        }
    }

    fn close(&mut self, checker: &mut InvariantChecker) {
        self.closed = true;
        checker.client_closed(self.number);
        self.host.socket(self.handle).close();
    }

    /// The server has ended, and the client has not.
    fn sends_on(&self) -> bool {
        self.ended && self.step < self.setup.script.steps.len()
    }

    fn check_state(&mut self, checker: &mut InvariantChecker) -> Result<(), Violation> {
        let state = self.host.socket(self.handle).state();
        let over = matches!(state, State::TimeWait | State::Closed);
        if over && self.ended && self.closed {
            self.progress = Progress::Complete;
            checker.gone(self.number);
        } else if state == State::Closed && (self.sends_on() || !checker.is_finished(self.number)) {
            self.progress = Progress::Lost;
            checker.client_lost(self.number)?;
        }
        Ok(())
    }

    /// Changes the client's packets as the middle of the network does.
    fn sent(&self, mut packets: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        for packet in &mut packets {
            self.strip(packet);
        }
        packets
    }

    fn strip(&self, packet: &mut [u8]) {
        let Ok(view) = IpPacket::parse(packet) else {
            return;
        };
        let header = view.header_len();
        let syn = Segment::of(&view).is_ok_and(|segment| segment.flags().contains(Flags::SYN));
        if !syn {
            return;
        }
        if let Ok(mut segment) = SegmentMut::parse(&mut packet[header..], ChecksumMode::Full) {
            segment.edit_options(|options| wire::strip(options, &self.setup.stripped));
        }
    }
}

fn is_reset(packet: &[u8]) -> bool {
    let view = IpPacket::parse(packet);
    view.is_ok_and(|view| {
        Segment::of(&view).is_ok_and(|segment| segment.flags().contains(Flags::RST))
    })
}
