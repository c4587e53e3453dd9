//! A socket that continues another socket's connection: `TCP_REPAIR`, which Linux has and smoltcp 0.12 lacks.
//!
//! A hidden handshake makes the socket: on a separate interface, on which only two made-up segments arrive, and from
//! which no segment leaves. The number that smoltcp draws for the socket's end is the wanted number, because the
//! generator starts where the next draw gives this number.

use smoltcp::{
    iface::{Config, Interface, SocketHandle, SocketSet},
    socket::tcp::State,
    time::Instant,
    wire::HardwareAddress,
};
use wire::{IpPacket, Segment, SeqNumber};

use crate::host::{Host, Queue, SocketSetup, make_room_for_options, neighbours, new_socket};

/// The parameters of a socket.
#[derive(Debug)]
pub(crate) struct Blueprint {
    /// The client's SYN, whose number is the expected number minus 1.
    pub(crate) syn: Vec<u8>,
    /// The client's acknowledgement of all output that the client has, with the window.
    pub(crate) ack: Vec<u8>,
    /// The number of the next byte that is written.
    pub(crate) next: SeqNumber,
    pub(crate) socket: SocketSetup,
}

impl Host {
    /// The connected socket. The client gets no packet. `None`: smoltcp has not made the wanted socket.
    pub(crate) fn repaired(&mut self, mut blueprint: Blueprint, now: u64) -> Option<SocketHandle> {
        let mut device = Queue::new(self.mtu());
        let instant = Instant::from_micros(i64::try_from(now / 1000).ok()?);
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed_for(blueprint.next - 1);
        let mut interface = Interface::new(config, &mut device, instant);
        neighbours(&mut interface, &self.addresses);
        let mut sockets = SocketSet::new(Vec::new());
        let mut socket = new_socket(blueprint.socket);
        socket.listen(80).ok()?;
        let handle = sockets.add(socket);

        self.probes.inspect(&blueprint.syn, &self.sockets, now)?;
        make_room_for_options(&mut blueprint.syn, self.mtu());
        device.arrived.push_back(blueprint.syn);
        interface.poll(instant, &mut device, &mut sockets);
        let answer = device.sent.pop()?;
        if seq_of(&answer)? != blueprint.next - 1 {
            return None;
        }
        device.arrived.push_back(blueprint.ack.clone());
        interface.poll(instant, &mut device, &mut sockets);

        let smoltcp::socket::Socket::Tcp(socket) = sockets.remove(handle);
        if socket.state() != State::Established || !device.sent.is_empty() {
            return None;
        }
        let handle = self.sockets.add(socket);
        self.probes.inspect(&blueprint.ack, &self.sockets, now)?;
        Some(handle)
    }
}

fn seq_of(packet: &[u8]) -> Option<SeqNumber> {
    let packet = IpPacket::parse(packet).ok()?;
    Some(Segment::of(&packet).ok()?.seq())
}

/// The seed with which an interface of smoltcp 0.12 draws this number for the first socket: the generator run
/// backwards. The first draw is the number of the interface's packets, which must not be 0.
fn seed_for(number: SeqNumber) -> u64 {
    // With three zeros at the top the generator gives the 32 bits behind; the low bits are free.
    let states = (0..64).map(|low| step_back(u64::from(number.0) << 29 | low));
    let mut usable = states.filter(|state| {
        let packets = drawn(*state);
        (packets ^ (packets >> 16)) & 0xffff != 0
    });
    usable.next().map_or(0, step_back)
}

/// Factor of `smoltcp::rand::Rand`.
const RAND_FACTOR: u64 = 0xbb2e_fcec_3c39_611d;
/// Summand of `smoltcp::rand::Rand`.
const RAND_SUMMAND: u64 = 0x7590_ef39;

fn step_back(state: u64) -> u64 {
    // Newton's way to the inverse of an odd number: each step doubles the bits that are right.
    let inverse = (0..6).fold(RAND_FACTOR, |inverse, _| {
        inverse.wrapping_mul(2u64.wrapping_sub(RAND_FACTOR.wrapping_mul(inverse)))
    });
    state.wrapping_sub(RAND_SUMMAND).wrapping_mul(inverse)
}

fn drawn(state: u64) -> u64 {
    (state >> (29 - (state >> 61))) & 0xffff_ffff
}
