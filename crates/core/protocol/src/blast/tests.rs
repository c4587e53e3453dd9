use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn packet() -> impl Strategy<Value = PacketHeader> {
    let numbers = (any::<u32>(), any::<u32>(), 1..=PACKETS_MAX);
    (numbers, any::<(u16, u16, bool, u32)>()).prop_map(|(numbers, others)| PacketHeader {
        transfer: numbers.0,
        blast: numbers.1,
        packet: others.0 % numbers.2,
        count: numbers.2,
        round: others.1,
        asks: others.2,
        sent_us: others.3,
    })
}

fn packet_set(capacity: u16) -> impl Strategy<Value = PacketSet> {
    prop::collection::vec(0..capacity.max(1), 0..40).prop_map(move |packets| {
        let mut set = PacketSet::empty(capacity);
        packets
            .into_iter()
            .take(usize::from(capacity))
            .for_each(|packet| {
                set.insert(packet);
            });
        set
    })
}

fn acknowledgement() -> impl Strategy<Value = Acknowledgement> {
    let missing = (1..=PACKETS_MAX).prop_flat_map(packet_set);
    let numbers = any::<[u32; 8]>();
    (missing, numbers, any::<u16>()).prop_map(|(missing, numbers, round)| Acknowledgement {
        transfer: numbers[0],
        number: numbers[1],
        blast: numbers[2],
        round,
        sent_us: numbers[3],
        whole_below: numbers[4],
        credit: numbers[5],
        congestion: numbers[6],
        duplicates: numbers[7],
        missing: match missing.is_empty() {
            true => PacketSet::default(),
            false => missing,
        },
    })
}

proptest! {
    #[test]
    fn written_packet_header_is_read(header in packet()) {
        prop_assert_eq!(PacketHeader::decode(&header.encode(DATAGRAM_VERSION)), Ok(header));
    }

    #[test]
    fn written_acknowledgement_is_read(acknowledgement in acknowledgement()) {
        let mut bytes = Vec::new();
        acknowledgement.encode(DATAGRAM_VERSION, &mut bytes);
        prop_assert_eq!(Acknowledgement::decode(&bytes), Ok(acknowledgement));
    }

    #[test]
    fn datagram_of_any_bytes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        crate::properties::blast_datagram(&bytes);
    }

    #[test]
    fn nonces_of_different_packets_differ(a in packet(), b in packet()) {
        let of = |it: &PacketHeader| (it.transfer, it.blast, it.packet, it.round);
        prop_assert_eq!(of(&a) == of(&b), a.nonce() == b.nonce());
    }

    #[test]
    fn set_of_packets_is_a_set(
        capacity in 1..300_u16,
        changes in prop::collection::vec(any::<(bool, u16)>(), 0..100),
        from in 0..310_u16,
    ) {
        let (mut set, mut model) = (PacketSet::empty(capacity), BTreeSet::new());
        for (is_added, packet) in changes {
            let packet = packet % capacity;
            match is_added {
                true => prop_assert_eq!(set.insert(packet), model.insert(packet)),
                false => prop_assert_eq!(set.remove(packet), model.remove(&packet)),
            }
        }
        prop_assert!(set.iter().eq(model.iter().copied()));
        prop_assert_eq!(usize::from(set.len()), model.len());
        prop_assert_eq!(set.first_from(from), model.range(from..).next().copied());
        prop_assert_eq!(set.last(), model.last().copied());
        prop_assert_eq!(set.is_full(), model.len() == usize::from(capacity));
    }

    #[test]
    fn union_and_intersection_are_those_of_sets(a in packet_set(200), b in packet_set(200)) {
        let of = |set: &PacketSet| set.iter().collect::<BTreeSet<_>>();
        let (mut both, mut either) = (a.clone(), a.clone());
        let gone = both.intersect(&b);
        either.union(&b);
        prop_assert_eq!(of(&both), &of(&a) & &of(&b));
        prop_assert_eq!(gone, a.len() - both.len());
        prop_assert_eq!(of(&either), &of(&a) | &of(&b));
    }
}

#[test]
fn full_set_has_each_packet() {
    for capacity in [0, 1, 63, 64, 65, 128, PACKETS_MAX] {
        let set = PacketSet::full(capacity);
        assert!(set.iter().eq(0..capacity));
        assert!(set.is_full());
    }
}

#[test]
fn datagram_of_the_other_kind_is_refused() {
    let header = PacketHeader {
        transfer: 1,
        blast: 0,
        packet: 0,
        count: 0,
        round: 3,
        asks: true,
        sent_us: 4,
    };
    let bytes = header.encode(DATAGRAM_VERSION);
    assert!(header.is_probe());
    assert_eq!(PacketHeader::decode(&bytes), Ok(header));
    let mut long = bytes.to_vec();
    long.resize(ACKNOWLEDGEMENT_LEN_MIN, 0);
    assert_eq!(
        Acknowledgement::decode(&long),
        Err(DatagramError::UnknownKind(1))
    );
}
