//! The server of a member: small TCPs that answer requests for objects, and the kernel around them.

mod socket;

use std::collections::BTreeMap;

use wire::{Flags, FlowKey, IpPacket, Segment, SegmentSpec, SeqNumber, SynOptions, Timestamps};

use self::socket::{Socket, State};
use super::{
    segments::emit,
    site::{Life, Site, Versions},
    witness::Broken,
};
use crate::{MS, SECOND};

/// An idle connection is closed after this time.
const IDLE_TIMEOUT: u64 = 25 * SECOND;

/// All that is equal for the sockets of a server at a time.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) site: &'a Site,
    pub(super) versions: &'a Versions,
    pub(super) life: Life,
    pub(super) now: u64,
    clock_offset: u32,
}

/// Packets of the server, and the connections whose sockets are gone.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) packets: Vec<Vec<u8>>,
    pub(super) closed: Vec<FlowKey>,
}

pub(super) struct Server {
    pub(super) life: Life,
    /// When the server listens; `None`: no process runs.
    pub(super) listens_at: Option<u64>,
    clock_offset: u32,
    next_iss: u32,
    sockets: BTreeMap<FlowKey, Socket>,
}

impl Server {
    pub(super) const fn new(seed: u32, life: Life) -> Self {
        Self {
            life,
            listens_at: None,
            clock_offset: seed.rotate_left(13),
            next_iss: seed,
            sockets: BTreeMap::new(),
        }
    }

    pub(super) fn listens(&self, now: u64) -> bool {
        self.listens_at.is_some_and(|at| at <= now)
    }

    /// The process is gone. The kernel tells the clients.
    pub(super) fn crash(&mut self) -> Output {
        self.listens_at = None;
        self.clear()
    }

    /// Ends all sockets.
    pub(super) fn clear(&mut self) -> Output {
        let sockets = std::mem::take(&mut self.sockets);
        let packets = sockets.iter().map(|(key, socket)| {
            let (seq, ack) = socket.ends();
            rst(*key, seq, ack, Flags::RST.union(Flags::ACK))
        });
        Output {
            packets: packets.collect(),
            closed: sockets.keys().copied().collect(),
        }
    }

    /// When [`Server::on_time`] has something to do.
    pub(super) fn due(&self) -> u64 {
        let sockets = self.sockets.values().map(Socket::due);
        sockets.min().unwrap_or(u64::MAX)
    }

    fn context<'a>(&self, site: &'a Site, versions: &'a Versions, now: u64) -> Context<'a> {
        Context {
            site,
            versions,
            life: self.life,
            now,
            clock_offset: self.clock_offset,
        }
    }

    /// A segment arrives.
    pub(super) fn on_packet(
        &mut self,
        packet: &[u8],
        site: &Site,
        versions: &Versions,
        now: u64,
    ) -> Result<Output, Broken> {
        let context = self.context(site, versions, now);
        let packet = IpPacket::parse(packet).map_err(Broken::unreadable)?;
        let segment = Segment::of(&packet).map_err(Broken::unreadable)?;
        let client = (packet.source(), segment.source_port()).into();
        let server = (packet.destination(), segment.destination_port()).into();
        let key = FlowKey::new(client, server);
        let mut output = Output::default();
        if let Some(socket) = self.sockets.get_mut(&key) {
            output.packets = socket.on_segment(key, &segment, context)?;
        } else {
            output.packets = self.on_stray(key, &segment, context);
        }
        self.reap(&mut output);
        Ok(output)
    }

    /// A segment without a socket (RFC 9293, 3.10.7.1).
    fn on_stray(
        &mut self,
        key: FlowKey,
        segment: &Segment<'_>,
        context: Context<'_>,
    ) -> Vec<Vec<u8>> {
        let flags = segment.flags();
        if flags.contains(Flags::RST) {
            return Vec::new();
        }
        if flags.contains(Flags::SYN) && self.listens(context.now) {
            let options = SynOptions::parse(segment.option_bytes());
            let tsval = options.timestamps.map(|stamps| stamps.value);
            let mut socket =
                Socket::new(SeqNumber(self.next_iss), segment.seq() + 1, tsval, context);
            self.next_iss = self.next_iss.wrapping_add(64_123);
            let packets = vec![socket.synack(key, context)];
            self.sockets.insert(key, socket);
            return packets;
        }
        let packet = if flags.contains(Flags::ACK) {
            rst(key, segment.ack(), SeqNumber(0), Flags::RST)
        } else {
            let flags = Flags::RST.union(Flags::ACK);
            rst(key, SeqNumber(0), segment.end_seq(), flags)
        };
        vec![packet]
    }

    /// Sends again what is not acknowledged in time.
    pub(super) fn on_time(&mut self, site: &Site, versions: &Versions, now: u64) -> Output {
        let context = self.context(site, versions, now);
        let mut output = Output::default();
        for (key, socket) in &mut self.sockets {
            if socket.due() <= now {
                output.packets.extend(socket.on_time(*key, context));
            }
        }
        self.reap(&mut output);
        output
    }

    /// The programs hear of each socket that is gone, or waits for late segments.
    fn reap(&mut self, output: &mut Output) {
        for (key, socket) in &mut self.sockets {
            if socket.takes_leave() {
                output.closed.push(*key);
            }
        }
        self.sockets.retain(|_, socket| socket.state != State::Gone);
    }
}

impl Context<'_> {
    fn tsval(&self) -> u32 {
        let ticks = u32::try_from(self.now / MS).expect("a short run");
        self.clock_offset.wrapping_add(ticks)
    }
}

fn rst(key: FlowKey, seq: SeqNumber, ack: SeqNumber, flags: Flags) -> Vec<u8> {
    emit(&SegmentSpec {
        source: key.server(),
        destination: key.client(),
        seq,
        ack,
        flags,
        window: 0,
        options: &[],
        payload: &[],
    })
}

fn syn_options(value: u32, echo: Option<u32>) -> SynOptions {
    SynOptions {
        mss: Some(1460),
        window_scale: Some(5),
        sack_permitted: true,
        timestamps: echo.map(|echo| Timestamps { value, echo }),
    }
}
