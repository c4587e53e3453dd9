//! Datagrams that are lost, doubled, reordered, cut, garbled and forged.

use super::*;

/// The faults of a network.
#[derive(Debug, Clone, Copy)]
struct Weather {
    lost: f64,
    doubled: f64,
    reordered: f64,
    garbled: f64,
    /// Segmentation offload cuts datagrams to this payload size, bytes.
    cut: usize,
}

fn weather() -> impl Strategy<Value = Weather> {
    (0.0..0.6, 0.0..0.3, 0.0..1.0, 0.0..0.3, 100usize..2000).prop_map(
        |(lost, doubled, reordered, garbled, cut)| Weather {
            lost,
            doubled,
            reordered,
            garbled,
            cut,
        },
    )
}

/// The datagrams that arrive.
fn blow(link: &mut Link, weather: Weather, sent: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let keys: Vec<_> = link.host.connections.values().map(|c| c.key).collect();
    let random = &mut link.host.random;
    let mut arrived = Vec::new();
    for datagram in sent {
        // Cutting needs the key of the datagram's connection, which is certain only with a single connection.
        let key = &keys[random.random_range(0..keys.len())];
        let pieces = match keys.len() {
            1 => cut(&datagram, key, weather.cut),
            _ => vec![datagram],
        };
        for mut piece in pieces {
            if random.random_bool(weather.lost) {
                continue;
            }
            if random.random_bool(weather.doubled) {
                arrived.push(piece.clone());
            }
            if random.random_bool(weather.garbled) && has_checksum(&piece) {
                let at = random.random_range(0..piece.len());
                piece[at] ^= 1 << random.random_range(0..8);
            }
            arrived.push(piece);
        }
    }
    if random.random_bool(weather.reordered) {
        arrived.shuffle(random);
    }
    arrived
}

/// An unfinished checksum of the kernel does not protect the payload.
fn has_checksum(datagram: &[u8]) -> bool {
    protocol::link::SegmentView::parse(datagram).map_or(true, |view| !view.flags().unfinished)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any faults: all acknowledged bytes are recorded, and with enough retransmissions all input is recorded
    /// byte for byte.
    #[test]
    fn a_record_is_exact_in_any_weather(
        seed: u64,
        weather in weather(),
        lengths in prop::collection::vec(0usize..20_000, 1..5),
        policy in prop::sample::select(vec![AckPolicy::EachFrame, AckPolicy::EachBatch]),
    ) {
        let mut link = Link::new(policy, seed);
        for (flow, length) in (1..).zip(&lengths) {
            // Pairs of connections share the low half of the number.
            link.host.connect((flow / 2) << 32 | (flow % 2), *length);
        }
        let mut rounds = 0;
        while !link.host.is_recorded() {
            rounds += 1;
            prop_assert!(rounds < 5000, "it does not end");
            let sent = (0..4).flat_map(|_| link.host.datagrams(3000, 10_000)).collect();
            for datagram in blow(&mut link, weather, sent) {
                link.take(&datagram);
            }
            // ACKs are lost, too.
            if link.host.random.random_bool(weather.lost) {
                link.sessions.settle(NOW, &mut link.out);
                link.out.clear();
            } else {
                link.settle(NOW);
            }
            if rounds % 8 == 0 {
                link.check();
            }
        }
        for flow in link.host.connections.keys().copied().collect::<Vec<_>>() {
            prop_assert!(link.read(flow) == link.host.connections[&flow].data);
        }
        let statistics = link.session().journal().statistics();
        prop_assert_eq!(statistics.instream.conflicting, 0);
    }

    /// Datagrams of a sender without the keys, however close to valid datagrams.
    #[test]
    fn a_forgery_changes_nothing(
        seed: u64,
        key: [u8; 16],
        forged in prop::collection::vec((0usize..3, any::<u16>(), 1usize..2000), 1..20),
    ) {
        let mut link = Link::new(AckPolicy::EachBatch, seed);
        link.connect(1, 5000);
        link.send(1, 0, 100);
        link.settle(NOW);
        let before = link.ask(&Request::Summaries);
        let forger = Host::new(protocol::link::LinkKeys { version: protocol::link::VERSION,
            slot: KeySlot::Zero,
            up: LinkKey(key),
            down: LinkKey(key),
        }, seed);
        for (kind, number, len) in forged {
            let connection = &link.host.connections[&FlowId(1)];
            let at = usize::from(number) % connection.data.len();
            let mut stranger = Connection::new(
                FlowId(if kind == 1 { u64::from(number) } else { 1 }),
                false, vec![9; 5000], connection.client_isn,
            );
            stranger.key = connection.key;
            let datagram = match kind {
                0 => forger.open(&stranger),
                1 => forger.segment(&stranger, &stranger.packet(at, len, ChecksumMode::Full), false),
                _ => forger.segment(&stranger, &stranger.packet(at, len, ChecksumMode::Partial), true),
            };
            link.take(&datagram);
        }
        prop_assert!(link.settle(NOW).is_empty());
        prop_assert_eq!(link.ask(&Request::Summaries), before);
        prop_assert_eq!(link.session().journal().statistics().instream.duplicate, 0);
    }

    #[test]
    fn any_datagrams(datagrams: Vec<Vec<u8>>) {
        let mut link = Link::new(AckPolicy::EachBatch, 1);
        for datagram in datagrams {
            link.take(&datagram);
        }
        prop_assert!(link.settle(NOW).is_empty());
    }
}
