//! A host: a TCP without knowledge of outlive, and the queues to the network.

use std::{collections::VecDeque, net::SocketAddr};

use smoltcp::{
    iface::{Config, Interface, SocketHandle, SocketSet},
    phy::{self, Device, DeviceCapabilities, Medium},
    socket::tcp::{CongestionControl, RecvError, Socket, SocketBuffer, State},
    time::Instant,
    wire::{HardwareAddress, IpAddress, IpCidr, IpEndpoint, TcpTimestampGenerator},
};

use wire::{
    ChecksumMode, Flags, IpPacket, MAX_OPTIONS, MIN_TCP_HEADER, Segment, SegmentMut, SegmentSpec,
    kind,
};

use crate::linux_tcp::{LinuxTcp, ReceivedSegment};

/// The parameters of a socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SocketSetup {
    pub(crate) receive_buffer: usize,
    pub(crate) send_buffer: usize,
    pub(crate) timestamps: Option<TcpTimestampGenerator>,
    pub(crate) nagle: bool,
}

/// A host.
pub(crate) struct Host {
    interface: Interface,
    device: Queue,
    pub(crate) addresses: Vec<std::net::IpAddr>,
    pub(crate) sockets: SocketSet<'static>,
    pub(crate) probes: LinuxTcp,
    /// A SYN for which no listening socket is free is dropped (the queue is full), not reset.
    pub(crate) listening: bool,
}

impl Host {
    pub(crate) fn new(addresses: &[std::net::IpAddr], mtu: usize, seed: u64) -> Self {
        let mut device = Queue::new(mtu);
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut device, Instant::ZERO);
        neighbours(&mut interface, addresses);
        Self {
            interface,
            device,
            addresses: addresses.to_vec(),
            sockets: SocketSet::new(Vec::new()),
            probes: LinuxTcp::default(),
            listening: false,
        }
    }

    pub(crate) fn open(&mut self, setup: SocketSetup) -> SocketHandle {
        self.sockets.add(new_socket(setup))
    }

    pub(crate) fn mtu(&self) -> usize {
        self.device.mtu
    }

    /// Begins a connection. False: the stack refuses, without a valid reason.
    pub(crate) fn connect(&mut self, handle: SocketHandle, to: SocketAddr, port: u16) -> bool {
        let socket = self.sockets.get_mut::<Socket<'_>>(handle);
        socket
            .connect(self.interface.context(), endpoint(to), port)
            .is_ok()
    }

    pub(crate) fn socket(&mut self, handle: SocketHandle) -> &mut Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Read at most `max` bytes; `Ok(None)` at the end of the stream.
    pub(crate) fn read(
        &mut self,
        handle: SocketHandle,
        max: usize,
    ) -> Result<Option<Vec<u8>>, RecvError> {
        let mut bytes = vec![0; max];
        let socket = self.sockets.get_mut::<Socket<'_>>(handle);
        match socket.recv_slice(&mut bytes) {
            Ok(length) => {
                bytes.truncate(length);
                Ok(Some(bytes))
            }
            Err(RecvError::Finished) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Hands an arrived packet to the stack; returns the stack's packets.
    pub(crate) fn receive(&mut self, mut packet: Vec<u8>, now: u64) -> Vec<Vec<u8>> {
        let Some(heard) = self.probes.inspect(&packet, &self.sockets, now) else {
            return Vec::new();
        };
        if heard.syn && self.refuses_syn(heard.known) {
            return Vec::new();
        }
        if heard.stale > 0 || heard.excess > 0 || heard.beyond > 0 {
            packet = cut(&packet, &heard);
        }
        make_room_for_options(&mut packet, self.device.mtu);
        self.device.arrived.push_back(packet);
        self.poll(now)
    }

    /// smoltcp gives a SYN to the first listening socket, even if another socket has the connection already, and
    /// resets the connection when no socket listens.
    fn refuses_syn(&self, known: bool) -> bool {
        let mut sockets = self.tcp();
        known || (self.listening && !sockets.any(|(_, socket)| socket.state() == State::Listen))
    }

    /// Runs the stack after time has passed or an application has acted; returns the stack's packets.
    pub(crate) fn poll(&mut self, now: u64) -> Vec<Vec<u8>> {
        let instant = Instant::from_micros(i64::try_from(now / 1000).unwrap_or(i64::MAX));
        let due = self.probes.send(&self.sockets, now);
        self.device.arrived.extend(due.back);
        loop {
            let before = self.device.sent.len();
            let _ = self
                .interface
                .poll(instant, &mut self.device, &mut self.sockets);
            if self.device.sent.len() == before {
                break;
            }
        }
        let mut sent = std::mem::take(&mut self.device.sent);
        for packet in &mut sent {
            self.probes.note_sent(packet, now);
        }
        sent.extend(due.out);
        sent
    }

    /// When [`Host::poll`] is due.
    pub(crate) fn due(&mut self, now: u64) -> Option<u64> {
        let instant = Instant::from_micros(i64::try_from(now / 1000).unwrap_or(i64::MAX));
        let timer = self.interface.poll_at(instant, &self.sockets);
        let timer = timer.map(|at| u64::try_from(at.total_micros()).unwrap_or(0) * 1000);
        [timer, self.probes.due()].into_iter().flatten().min()
    }

    /// For people: the connections of the host, with the bytes in the queues.
    pub(crate) fn describe(&self) -> Vec<String> {
        let sockets = self
            .tcp()
            .filter(|(_, socket)| socket.state() != State::Listen);
        let describe = |socket: &Socket<'_>| {
            let remote = socket
                .remote_endpoint()
                .map_or_else(String::new, |end| end.to_string());
            let (sending, received) = (socket.send_queue(), socket.recv_queue());
            format!(
                "{} {remote} {sending} to be sent, {received} to be read",
                socket.state()
            )
        };
        sockets.map(|(_, socket)| describe(socket)).collect()
    }

    pub(crate) fn tcp(&self) -> impl Iterator<Item = (SocketHandle, &Socket<'static>)> {
        self.sockets.iter().map(|(handle, socket)| {
            let smoltcp::socket::Socket::Tcp(socket) = socket;
            (handle, socket)
        })
    }
}

pub(crate) fn new_socket(setup: SocketSetup) -> Socket<'static> {
    let buffer = |size| SocketBuffer::new(vec![0; size]);
    let mut socket = Socket::new(buffer(setup.receive_buffer), buffer(setup.send_buffer));
    socket.set_tsval_generator(setup.timestamps);
    socket.set_nagle_enabled(setup.nagle);
    socket.set_congestion_control(CongestionControl::Reno);
    socket
}

/// All hosts are neighbours; an interface has room for two addresses.
pub(crate) fn neighbours(interface: &mut Interface, addresses: &[std::net::IpAddr]) {
    interface.update_ip_addrs(|list| {
        for address in addresses {
            let length = if address.is_ipv4() { 8 } else { 64 };
            let _ = list.push(IpCidr::new(IpAddress::from(*address), length));
        }
    });
}

/// Local and remote end of a socket that has a connection.
pub(crate) fn ends(socket: &Socket<'_>) -> Option<(SocketAddr, SocketAddr)> {
    let (local, remote) = (socket.local_endpoint()?, socket.remote_endpoint()?);
    Some((address(local), address(remote)))
}

fn address(end: IpEndpoint) -> SocketAddr {
    SocketAddr::new(end.addr.into(), end.port)
}

fn endpoint(address: SocketAddr) -> IpEndpoint {
    IpEndpoint::new(address.ip().into(), address.port())
}

/// The segment without the sequence numbers at both ends that the stack must not see.
fn cut(packet: &[u8], heard: &ReceivedSegment) -> Vec<u8> {
    let ReceivedSegment {
        stale,
        excess,
        beyond,
        ..
    } = *heard;
    let mut out = Vec::new();
    let Ok(view) = IpPacket::parse(packet) else {
        return out;
    };
    let Ok(segment) = Segment::of(&view) else {
        return out;
    };
    let (source, destination) = (segment.source_port(), segment.destination_port());
    let mut flags = segment.flags();
    let mut last = 0;
    if excess > 0 {
        last = crate::index(excess - u32::from(flags.contains(Flags::FIN)));
        flags = Flags::from_bits(flags.bits() & !Flags::FIN.bits());
    }
    let left = segment.payload_len().saturating_sub(last);
    let first = crate::index(stale).min(left);
    let cut = SegmentSpec {
        source: SocketAddr::new(view.source(), source),
        destination: SocketAddr::new(view.destination(), destination),
        seq: segment.seq() + stale - beyond,
        ack: segment.ack(),
        flags,
        window: segment.window(),
        options: segment.option_bytes(),
        payload: &segment.payload()[first..left],
    };
    // The result is shorter than the original packet.
    let _ = cut.emit(&mut out, ChecksumMode::Full);
    out
}

/// smoltcp ignores the options when filling a packet up to the MTU, and then drops the too long packet: a peer that
/// announces a smaller MSS leaves room for the options (RFC 6691).
pub(crate) fn make_room_for_options(packet: &mut [u8], mtu: usize) {
    let Ok(view) = IpPacket::parse(packet) else {
        return;
    };
    let header = view.header_len();
    let syn = Segment::of(&view).is_ok_and(|segment| segment.flags().contains(Flags::SYN));
    if let (true, Ok(mut segment)) = (
        syn,
        SegmentMut::parse(&mut packet[header..], ChecksumMode::Full),
    ) {
        let most = u16::try_from(mtu - header - MIN_TCP_HEADER - MAX_OPTIONS).unwrap_or(u16::MAX);
        segment.edit_options(|options| {
            // The MSS is the first option of all SYNs here.
            if let [kind::MAX_SEGMENT_SIZE, 4, high, low, ..] = options {
                [*high, *low] = u16::from_be_bytes([*high, *low]).min(most).to_be_bytes();
            }
        });
    }
}

/// A device that is two queues.
pub(crate) struct Queue {
    pub(crate) arrived: VecDeque<Vec<u8>>,
    pub(crate) sent: Vec<Vec<u8>>,
    mtu: usize,
}

impl Queue {
    pub(crate) fn new(mtu: usize) -> Self {
        Self {
            arrived: VecDeque::new(),
            sent: Vec::new(),
            mtu,
        }
    }
}

impl Device for Queue {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Sent<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Sent<'_>)> {
        let packet = self.arrived.pop_front()?;
        Some((Arrived(packet), Sent(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sent<'_>> {
        Some(Sent(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

pub(crate) struct Arrived(Vec<u8>);

impl phy::RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

pub(crate) struct Sent<'a>(&'a mut Vec<Vec<u8>>);

impl phy::TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut packet = vec![0; length];
        let result = write(&mut packet);
        self.0.push(packet);
        result
    }
}
