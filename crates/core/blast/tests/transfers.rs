//! Transfers over a network that loses, doubles, delays and reorders: every byte arrives, once, at its position.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use blast::{
    BlastRanges, Layout, Policy, Receiver, Reception, Sender, SenderEvent, Settings, Transmission,
};
use proptest::prelude::*;
use protocol::blast::{Acknowledgement, PacketHeader};

const TRANSFER_NUMBER: u32 = 5;
const DELAY_UNIT: Duration = Duration::from_millis(1);

#[derive(Debug, Clone)]
struct Network {
    /// Lost datagrams, of 256.
    lost: u8,
    /// Doubled datagrams, of 256.
    doubled: u8,
    delay: Duration,
    /// Most additional delay.
    jitter: Duration,
    /// Nothing passes for so long, from 20 ms on.
    cut: Duration,
    seed: u64,
}

impl Network {
    /// Three random numbers for a datagram (splitmix64).
    fn fate(&self, number: u64) -> (u8, u8, u8) {
        let mut mixed = self
            .seed
            .wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let [a, b, c, ..] = (mixed ^ mixed >> 31).to_le_bytes();
        (a, b, c)
    }
}

#[derive(Debug, Clone)]
struct Scenario {
    packet_bytes: u32,
    packets: u32,
    size: u64,
    is_size_known: bool,
    receivers: usize,
    /// Blasts that a receiver takes beyond the whole blasts.
    ahead: u32,
    policy: Policy,
    network: Network,
}

fn network() -> impl Strategy<Value = Network> {
    let quality = (0..100_u8, 0..60_u8, 0..40_u32, 0..20_u32, 0..900_u32);
    (quality, any::<u64>()).prop_map(|((lost, doubled, delay, jitter, cut), seed)| Network {
        lost,
        doubled,
        delay: DELAY_UNIT * delay / 4,
        jitter: DELAY_UNIT * jitter / 4,
        cut: if cut > 600 {
            DELAY_UNIT * cut
        } else {
            Duration::ZERO
        },
        seed,
    })
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::Full),
        Just(Policy::Background),
        (50_000..20_000_000_u64).prop_map(Policy::Fixed),
    ]
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let sizes = (1..40_u32, 1..90_u32, 0..9000_u64);
    (
        sizes,
        any::<bool>(),
        1..4_usize,
        1..20_u32,
        policy(),
        network(),
    )
        .prop_map(
            |(sizes, is_size_known, receivers, ahead, policy, network)| Scenario {
                packet_bytes: sizes.0,
                packets: sizes.1,
                size: sizes.2,
                is_size_known,
                receivers,
                ahead,
                policy,
                network,
            },
        )
}

/// Datagrams on their way, by time of arrival.
struct Link {
    network: Network,
    on_the_way: BTreeMap<(Duration, u64), (usize, Datagram)>,
    sent: u64,
}

#[derive(Debug, Clone)]
enum Datagram {
    Packet(PacketHeader, Vec<u8>),
    Acknowledgement(Acknowledgement),
}

impl Link {
    fn send(&mut self, peer: usize, datagram: &Datagram, now: Duration) {
        let network = &self.network;
        let (lost, doubled, late) = network.fate(self.sent);
        self.sent += 1;
        let is_cut = (DELAY_UNIT * 20..DELAY_UNIT * 20 + network.cut).contains(&now);
        if lost < network.lost || is_cut {
            return;
        }
        for copy in 0..=u32::from(doubled < network.doubled) {
            let delay = network.delay + network.jitter * (u32::from(late) + copy) / 256;
            self.sent += 1;
            let key = (now + delay, self.sent);
            self.on_the_way.insert(key, (peer, datagram.clone()));
        }
    }
}

struct Transfer {
    scenario: Scenario,
    data: Vec<u8>,
    sender: Sender,
    receivers: Vec<(Receiver, Vec<Option<u8>>)>,
    link: Link,
    nonces: HashSet<[u8; 12]>,
    complete: HashSet<usize>,
    transmissions: u64,
}

impl Transfer {
    fn new(scenario: Scenario) -> Self {
        let layout = Layout::new(scenario.packet_bytes, scenario.packets).unwrap();
        let settings = Settings {
            layout,
            transfer: TRANSFER_NUMBER,
            policy: scenario.policy,
            rate_max: None,
            round_trip: DELAY_UNIT,
            // Where a third of the datagrams is lost, 20 s may pass without an answer.
            peer_timeout: Duration::from_secs(300),
        };
        let peers = vec![(scenario.ahead, BlastRanges::new()); scenario.receivers];
        let size = scenario.is_size_known.then_some(scenario.size);
        let len = usize::try_from(scenario.size).unwrap();
        let receiver = |_| {
            let receiver = Receiver::new(
                layout,
                TRANSFER_NUMBER,
                size,
                scenario.ahead,
                BlastRanges::new(),
            );
            (receiver.unwrap(), vec![None; len])
        };
        Self {
            data: (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect(),
            sender: Sender::new(settings, peers),
            receivers: (0..scenario.receivers).map(receiver).collect(),
            link: Link {
                network: scenario.network.clone(),
                on_the_way: BTreeMap::new(),
                sent: 0,
            },
            scenario,
            nonces: HashSet::new(),
            complete: HashSet::new(),
            transmissions: 0,
        }
    }

    fn layout(&self) -> Layout {
        Layout::new(self.scenario.packet_bytes, self.scenario.packets).unwrap()
    }

    fn transmit(&mut self, transmission: Transmission, now: Duration) {
        let layout = self.layout();
        let sent_us = blast::timestamp_us(now);
        let (headers, to): (Vec<PacketHeader>, _) = match transmission {
            Transmission::Probe { blast, round, to } => {
                let header = PacketHeader {
                    transfer: TRANSFER_NUMBER,
                    blast,
                    packet: 0,
                    count: 0,
                    round,
                    asks: true,
                    sent_us,
                };
                (vec![header], to)
            }
            Transmission::Run(run) => {
                let header = |packet| PacketHeader {
                    transfer: TRANSFER_NUMBER,
                    blast: run.blast,
                    packet,
                    count: run.count,
                    round: run.round,
                    asks: run.asks && packet + 1 == run.first + run.packets,
                    sent_us,
                };
                let headers = (run.first..run.first + run.packets).map(header);
                (headers.collect(), run.to)
            }
        };
        assert!(!to.is_empty(), "{transmission:?}");
        for header in headers {
            assert!(
                self.nonces.insert(header.nonce()),
                "nonce used before: {header:?}"
            );
            let payload = if header.is_probe() {
                Vec::new()
            } else {
                let id = blast::PacketId {
                    blast: header.blast,
                    packet: header.packet,
                };
                let start = usize::try_from(layout.position(id)).unwrap();
                let end = (start + layout.packet_bytes() as usize).min(self.data.len());
                self.data[start..end].to_vec()
            };
            for peer in to.iter() {
                self.transmissions += 1;
                self.link
                    .send(peer, &Datagram::Packet(header, payload.clone()), now);
            }
        }
    }

    fn deliver(&mut self, peer: usize, datagram: Datagram, now: Duration) {
        match datagram {
            Datagram::Acknowledgement(acknowledgement) => {
                let result = self.sender.on_acknowledgement(peer, &acknowledgement, now);
                result.expect("a correct receiver");
            }
            Datagram::Packet(header, payload) => {
                let layout = self.layout();
                let (receiver, memory) = &mut self.receivers[peer];
                let arrival = receiver.on_packet(&header, payload.len(), false);
                if let Reception::Fresh(id) = arrival.expect("a correct sender") {
                    let start = usize::try_from(layout.position(id)).unwrap();
                    for (spot, byte) in memory[start..].iter_mut().zip(payload) {
                        assert_eq!(spot.replace(byte), None, "a byte arrives once");
                    }
                }
                receiver.grant(receiver.whole_below() + self.scenario.ahead);
                while let Some(acknowledgement) = receiver.poll_acknowledgement() {
                    let datagram = Datagram::Acknowledgement(acknowledgement);
                    self.link.send(peer, &datagram, now);
                }
            }
        }
    }

    fn run(mut self) -> Self {
        let mut now = DELAY_UNIT;
        self.sender.finish(self.scenario.size).unwrap();
        while !self.sender.is_over() {
            while let Some(transmission) = self.sender.poll_transmit(now, 20) {
                self.transmit(transmission, now);
            }
            let arrives = self.link.on_the_way.keys().next().map(|key| key.0);
            let due = self.sender.timeout().map(|due| due.max(now));
            let next = arrives.into_iter().chain(due).min();
            now = next.expect("the transfer goes on");
            assert!(now < Duration::from_secs(100_000));
            while let Some(entry) = self.link.on_the_way.first_entry() {
                if entry.key().0 > now {
                    break;
                }
                let (peer, datagram) = entry.remove();
                self.deliver(peer, datagram, now);
            }
            if due.is_some_and(|due| due <= now) {
                self.sender.on_timeout(now);
            }
            self.take_events();
        }
        // Of no bytes every receiver has all at once.
        self.take_events();
        self
    }

    fn take_events(&mut self) {
        while let Some(event) = self.sender.poll_event() {
            match event {
                SenderEvent::PeerComplete(peer) => assert!(self.complete.insert(peer)),
                SenderEvent::PeerLost(peer) => panic!("receiver {peer} is alive"),
            }
        }
    }

    fn check(mut self) {
        assert_eq!(self.complete.len(), self.scenario.receivers);
        for (receiver, memory) in &mut self.receivers {
            if !self.scenario.is_size_known {
                receiver.finish(self.scenario.size).unwrap();
            }
            assert!(receiver.is_whole());
            let received: Option<Vec<u8>> = memory.iter().copied().collect();
            assert_eq!(received.as_ref(), Some(&self.data));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_byte_arrives_at_every_receiver(scenario in scenario()) {
        Transfer::new(scenario).run().check();
    }
}

/// A doubled question is answered twice. The first answer arrives last, and is the only one of its round.
#[test]
fn overtaken_answer_ends_a_silence() {
    let scenario = Scenario {
        packet_bytes: 15,
        packets: 63,
        size: 8086,
        is_size_known: false,
        receivers: 2,
        ahead: 7,
        policy: Policy::Full,
        network: Network {
            lost: 94,
            doubled: 28,
            delay: Duration::from_micros(4750),
            jitter: Duration::from_micros(3500),
            cut: Duration::ZERO,
            seed: 756_994_055_207_926_973,
        },
    };
    Transfer::new(scenario).run().check();
}
