//! A member: the programs and the server on a host, and user space beside them.

mod lease_client;
mod records;
mod user_space;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use objects::{
    PoolKey,
    flaws::Flaws,
    plane::{
        MARK_FROM_SERVER, MARK_SERVER_SPACE, MARK_TO_CLIENT, Packet, Plane, Settings, Verdict,
    },
    revivals::Ended,
    revive::WITHHOLD_MAX,
};
use protocol::pool::{Claim, MemberName};
use rand::{Rng, rngs::SmallRng};
use types::VersionCheck;
use wire::{ChecksumMode, FlowKey, IpPacket, Segment, SegmentMut, SeqNumber};

use self::{lease_client::LeaseClient, user_space::UserSpace};
use super::{
    balancer::Balancer,
    network::Clock,
    scenario::{PoolFlaw, PoolScenario},
    server::{Output, Server},
    site::{Life, Versions},
    store::Message,
    witness::Broken,
};

pub(super) const POOL_KEY: [u8; 16] = [7; 16];
const MARK_BASE: u32 = 0x0f70_0000;

/// Everything around a member.
pub(super) struct Around<'a> {
    pub(super) scenario: &'a PoolScenario,
    pub(super) balancer: &'a mut Balancer,
    pub(super) rng: &'a mut SmallRng,
    pub(super) now: u64,
}

/// Results of a step of a member.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) to_clients: Vec<Vec<u8>>,
    /// To another member.
    pub(super) forwarded: Vec<(IpAddr, Vec<u8>)>,
    pub(super) claims: Vec<(IpAddr, Claim)>,
    pub(super) ended: Vec<Ended>,
    pub(super) unprotected: Vec<FlowKey>,
    /// Requests whose responses go on without protection, or until a record is stored.
    pub(super) bare: Vec<(FlowKey, SeqNumber, bool)>,
    pub(super) to_stores: Vec<Message>,
}

pub(super) struct Member {
    pub(super) number: usize,
    pub(super) name: MemberName,
    /// The host is without power before this time.
    pub(super) boots_at: u64,
    pub(super) is_up: bool,
    pub(super) client_side_cut_until: u64,
    pub(super) control_side_cut_until: u64,
    pub(super) clock: Clock,
    pub(super) plane: Plane,
    pub(super) server: Server,
    pub(super) versions: Versions,
    pub(super) user_space: UserSpace,
    lease_client: Option<LeaseClient>,
}

/// Address of a member, of the family of the service.
pub(super) fn address(number: usize, is_v6: bool) -> IpAddr {
    let number = u8::try_from(number).expect("few");
    match is_v6 {
        true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, u16::from(number)).into(),
        false => Ipv4Addr::new(10, 0, 1, number).into(),
    }
}

/// The member with this address.
pub(super) fn number_of(address: IpAddr) -> usize {
    let last = match address {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    };
    usize::from(last)
}

fn flaws(scenario: &PoolScenario) -> Flaws {
    Flaws {
        releases_equally: scenario.has(PoolFlaw::ReleaseWithoutParity),
        overlooks_holes: scenario.has(PoolFlaw::IdleInSpiteOfHole),
        forgets_first_byte: scenario.has(PoolFlaw::TagWithoutFirstByte),
        takes_missing_for_idle: scenario.has(PoolFlaw::MissingRecordTakenForIdle),
        releases_unconfirmed: scenario.has(PoolFlaw::ReleasedBeforeConfirmation),
        passes_unconfirmed: scenario.has(PoolFlaw::DeferredBytePassed),
        skips_numbers: scenario.has(PoolFlaw::NumbersNotCompared),
        prefers_older: scenario.has(PoolFlaw::OlderGenerationPreferred),
        skips_chunks: scenario.has(PoolFlaw::ChunksSkipped),
        ignores_list: scenario.has(PoolFlaw::ListedMembersIgnored),
    }
}

fn version_check(scenario: &PoolScenario) -> VersionCheck {
    match scenario.has(PoolFlaw::VersionNotCompared) {
        true => VersionCheck::Off,
        false => VersionCheck::Etag,
    }
}

fn plane(scenario: &PoolScenario, service: SocketAddr, clock: &Clock) -> Plane {
    let mut plane = Plane::new(Settings {
        addresses: vec![service],
        keys: vec![PoolKey(POOL_KEY)],
        mark: MARK_BASE,
        version_check: version_check(scenario),
        is_immutable: false,
        withhold: WITHHOLD_MAX,
        takes_inputs: false,
        takes_chunks: scenario.store.is_some(),
        encapsulates: false,
    });
    plane.plant(flaws(scenario));
    plane.set_clock(clock.unix_offset);
    plane
}

fn packet_of(bytes: Vec<u8>, mark: u32) -> Packet {
    Packet {
        bytes,
        mark,
        interface: 1,
        checksum: ChecksumMode::Full,
    }
}

impl Member {
    pub(super) fn new(
        number: usize,
        scenario: &PoolScenario,
        service: SocketAddr,
        rng: &mut SmallRng,
    ) -> Self {
        let boots_at = scenario.joins_at[number];
        let clock = Clock::drawn(rng, scenario.drift_ppm, 0);
        let life = Life {
            number: 0,
            aligns: false,
        };
        Self {
            number,
            name: format!("web{number}").parse().expect("a name"),
            boots_at,
            is_up: false,
            client_side_cut_until: 0,
            control_side_cut_until: 0,
            clock,
            plane: plane(scenario, service, &clock),
            server: Server::new(rng.random(), life),
            versions: scenario.site.objects.iter().map(|_| (1, 0)).collect(),
            user_space: UserSpace::new(number, scenario, service, 0),
            lease_client: None,
        }
    }

    /// The host boots: nothing is left of an earlier life.
    pub(super) fn boot(&mut self, service: SocketAddr, around: &mut Around<'_>) {
        let now = around.now;
        self.is_up = true;
        self.boots_at = u64::MAX;
        self.clock = Clock::drawn(around.rng, around.scenario.drift_ppm, now);
        self.plane = plane(around.scenario, service, &self.clock);
        self.user_space = UserSpace::new(self.number, around.scenario, service, now);
        self.lease_client = None;
    }

    pub(super) fn lose_power(&mut self, until: u64) {
        self.is_up = false;
        self.boots_at = self.boots_at.min(until);
        self.server.listens_at = None;
        let _ = self.server.clear();
    }

    /// The server crashes.
    pub(super) fn crash(&mut self, around: &mut Around<'_>, sent: &mut Sent) -> Result<(), Broken> {
        if !around.scenario.has(PoolFlaw::NoGate) {
            self.plane.on_crash();
        }
        let output = self.server.crash();
        self.leave(output, around, sent)
    }

    pub(super) fn stop(&mut self, until: u64, with_lease: bool) {
        self.user_space.stopped_until = until;
        if let Some(lease_client) = self.lease_client.as_mut().filter(|_| with_lease) {
            lease_client.stopped_until = until;
        }
    }

    pub(super) fn stream(&self) -> Option<pool::StreamId> {
        self.lease_client.as_ref()?.stream
    }

    pub(super) fn due(&self, balancer: &Balancer, now: u64) -> u64 {
        if !self.is_up {
            return self.boots_at;
        }
        let lease_client = self.lease_client.as_ref();
        let lease_client = lease_client.map_or(u64::MAX, |lease_client| {
            lease_client.due(balancer, &self.clock)
        });
        let server = self.server.due();
        let records = self.user_space.records.as_ref();
        let stores = records.map_or(u64::MAX, |records| records.stores_due(now));
        let due = lease_client.min(server).min(stores);
        due.min(self.user_space_due(now))
    }

    /// Everything that is due.
    pub(super) fn on_time(
        &mut self,
        service: SocketAddr,
        around: &mut Around<'_>,
        sent: &mut Sent,
    ) -> Result<(), Broken> {
        if !self.is_up {
            if around.now < self.boots_at {
                return Ok(());
            }
            self.boot(service, around);
        }
        if self.server.due() <= around.now {
            let site = &around.scenario.site;
            let output = self.server.on_time(site, &self.versions, around.now);
            self.leave(output, around, sent)?;
        }
        self.keep(around);
        if self.user_space_due(around.now) <= around.now {
            self.run_once(around, sent)?;
        }
        Ok(())
    }

    fn reading(&self, around: &Around<'_>) -> Duration {
        self.clock.reading(around.now)
    }

    /// A packet of a client.
    pub(super) fn arrive(
        &mut self,
        bytes: Vec<u8>,
        around: &mut Around<'_>,
        sent: &mut Sent,
    ) -> Result<(), Broken> {
        self.ingress(packet_of(bytes, 0), around, sent)
    }

    /// The client's segment takes its way again.
    fn send_on(
        &mut self,
        bytes: Vec<u8>,
        mark: u32,
        around: &mut Around<'_>,
        sent: &mut Sent,
    ) -> Result<(), Broken> {
        let packet = packet_of(bytes, MARK_BASE + mark);
        self.ingress(packet, around, sent)
    }

    /// A packet of user space in the numbers of the server's socket.
    fn say_as_server(&mut self, bytes: Vec<u8>, around: &Around<'_>, sent: &mut Sent) {
        let mut packet = packet_of(bytes, MARK_BASE + MARK_FROM_SERVER);
        if self.plane.egress(&mut packet, self.reading(around)) == Verdict::RedirectNeighbour {
            self.depart(packet.bytes, around, sent);
        }
    }

    fn ingress(
        &mut self,
        mut packet: Packet,
        around: &mut Around<'_>,
        sent: &mut Sent,
    ) -> Result<(), Broken> {
        let verdict = self.plane.ingress(&mut packet, self.reading(around));
        while let Some(made) = self.plane.take_sent() {
            self.depart(made.bytes, around, sent);
        }
        match verdict {
            Verdict::Next => self.reach_server(&packet.bytes, around, sent),
            Verdict::RedirectNeighbour => {
                let key = key_of(&packet.bytes)?;
                let to = self.plane.forwarded_to(&key);
                sent.forwarded.extend(to.map(|to| (to, packet.bytes)));
                Ok(())
            }
            Verdict::Drop | Verdict::Withheld | Verdict::RedirectIngress => Ok(()),
        }
    }

    fn reach_server(
        &mut self,
        bytes: &[u8],
        around: &mut Around<'_>,
        sent: &mut Sent,
    ) -> Result<(), Broken> {
        let site = &around.scenario.site;
        let output = self
            .server
            .on_packet(bytes, site, &self.versions, around.now)?;
        self.leave(output, around, sent)
    }

    /// Packets of the server's TCP. The programs hear of a close before the last packet leaves.
    fn leave(
        &mut self,
        output: Output,
        around: &mut Around<'_>,
        sent: &mut Sent,
    ) -> Result<(), Broken> {
        for key in output.closed {
            self.plane.on_close(&key);
        }
        for bytes in output.packets {
            let mut packet = packet_of(bytes, 0);
            match self.plane.egress(&mut packet, self.reading(around)) {
                Verdict::Next => self.depart(packet.bytes, around, sent),
                Verdict::RedirectIngress => {
                    if packet.mark != MARK_BASE + MARK_SERVER_SPACE {
                        return Err(Broken::new("a packet with another mark is turned round"));
                    }
                    self.ingress(packet, around, sent)?;
                }
                Verdict::Drop | Verdict::Withheld | Verdict::RedirectNeighbour => {}
            }
        }
        Ok(())
    }

    /// A packet leaves for its client.
    fn depart(&self, mut bytes: Vec<u8>, around: &Around<'_>, sent: &mut Sent) {
        if around.scenario.has(PoolFlaw::GuardReleasedEarly)
            && let Ok(key) = key_of(&bytes)
            && let Some(flow) = self.plane.flow(&key)
            && let Ok(packet) = IpPacket::parse(&bytes)
        {
            let start = packet.header_len();
            let segment = SegmentMut::parse(&mut bytes[start..], ChecksumMode::Full);
            if let Ok(mut segment) = segment {
                segment.set_ack(flow.server.received);
            }
        }
        sent.to_clients.push(bytes);
    }

    /// A packet of user space for a client.
    fn send_to_client(&mut self, bytes: Vec<u8>, around: &Around<'_>, sent: &mut Sent) {
        let mut packet = packet_of(bytes, MARK_BASE + MARK_TO_CLIENT);
        if self.plane.egress(&mut packet, self.reading(around)) == Verdict::Next {
            sent.to_clients.push(packet.bytes);
        }
    }

    /// Connections, placeholders and revivals that are left.
    pub(super) fn remains(&self) -> Option<String> {
        let flow = self.plane.flows().next();
        let flow = flow.map(|(key, flow)| format!("{key:?}: {:?}", flow.mode));
        let revivals = self.user_space.revival_count();
        let rest = (revivals > 0).then(|| format!("{revivals} revivals"));
        let records = self.user_space.records.as_ref();
        let is_busy = records.is_some_and(|records| !records.is_idle());
        flow.or(rest).or(is_busy.then(|| "records".to_owned()))
    }
}

/// The connection of a packet, in either direction.
pub(super) fn key_of(bytes: &[u8]) -> Result<FlowKey, Broken> {
    let packet = IpPacket::parse(bytes).map_err(Broken::unreadable)?;
    let segment = Segment::of(&packet).map_err(Broken::unreadable)?;
    let source = SocketAddr::new(packet.source(), segment.source_port());
    let destination = SocketAddr::new(packet.destination(), segment.destination_port());
    Ok(match source.port() {
        super::SERVICE_PORT => FlowKey::new(destination, source),
        _ => FlowKey::new(source, destination),
    })
}
