//! What Linux has and smoltcp 0.12 has not: a socket that goes on where another one stood (`TCP_REPAIR`).
//!
//! A handshake behind closed doors makes it: an interface of its own, on which nothing but two segments
//! of ours ever arrives, and of which nothing leaves. The number that smoltcp draws for its end is the
//! wanted one, because the generator begins where it draws that next.

use smoltcp::{
    iface::{Config, Interface, SocketHandle, SocketSet},
    socket::tcp::State,
    time::Instant,
    wire::HardwareAddress,
};
use wire::{IpPacket, Segment, SeqNumber};

use crate::host::{Host, Queue, SocketSetup, make_room_for_options, neighbours, new_socket};

/// What a socket is to be like.
#[derive(Debug)]
pub(crate) struct Blueprint {
    /// The client's SYN, one before the number that is expected from it next.
    pub(crate) syn: Vec<u8>,
    /// Its acknowledgement of all that it has, with its window.
    pub(crate) ack: Vec<u8>,
    /// The number of the next byte that is written.
    pub(crate) next: SeqNumber,
    pub(crate) socket: SocketSetup,
}

impl Host {
    /// The socket, connected. The client hears nothing of it. `None`: smoltcp has not made it as it was
    /// wanted.
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

/// The seed with which an interface of smoltcp 0.12 draws this number for its first socket: its generator
/// run backwards. The first number that it draws is that of its packets, which must not be 0.
fn seed_for(number: SeqNumber) -> u64 {
    // With three zeros at the top it gives the 32 bits behind them; those at the end are ours to choose.
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
