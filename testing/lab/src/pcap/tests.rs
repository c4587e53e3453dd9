use proptest::prelude::*;

use super::*;

/// Writes a file the way libpcap does on a machine of either byte order.
fn write(packets: &[(u32, u32, Vec<u8>)], big_endian: bool, nanoseconds: bool) -> Vec<u8> {
    let word = |value: u32| {
        if big_endian {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    };
    let magic = if nanoseconds {
        0xa1b2_3c4d
    } else {
        0xa1b2_c3d4
    };
    let mut out = Vec::new();
    for value in [magic, 0x0002_0004, 0, 0, 262_144, ETHERNET] {
        out.extend(word(value));
    }
    for (seconds, fraction, frame) in packets {
        let length = u32::try_from(frame.len()).unwrap();
        for value in [*seconds, *fraction, length, length + 7] {
            out.extend(word(value));
        }
        out.extend(frame);
    }
    out
}

#[test]
fn foreign_files_are_refused() {
    assert_eq!(read(b""), Err(PcapError::Short(0)));
    let pcapng = [&[0x0a, 0x0d, 0x0d, 0x0a][..], &[0; 40]].concat();
    assert_eq!(read(&pcapng), Err(PcapError::Magic(0x0a0d_0d0a)));
}

#[test]
fn absurd_length_is_an_error() {
    let mut file = write(&[(1, 2, vec![0; 4])], false, false);
    file[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(
        read(&file),
        Err(PcapError::Length { offset: 24, .. })
    ));
}

proptest! {
    #[test]
    fn packets_round_trip(
        packets in prop::collection::vec((any::<u32>(), 0u32..1_000_000, prop::collection::vec(any::<u8>(), 0..99)), 0..9),
        big_endian: bool,
        nanoseconds: bool,
    ) {
        let pcap = read(&write(&packets, big_endian, nanoseconds)).unwrap();
        let unit = if nanoseconds { 1 } else { 1000 };
        let expected: Vec<_> = packets
            .into_iter()
            .map(|(seconds, fraction, frame)| Packet {
                time: Duration::new(seconds.into(), fraction * unit),
                length: frame.len() + 7,
                frame,
            })
            .collect();
        prop_assert_eq!(pcap, Pcap { link_type: ETHERNET, packets: expected, torn: false });
    }

    #[test]
    fn torn_file_yields_complete_packets(cut in 24usize..24 + 3 * 26) {
        let packets = vec![(1, 2, vec![7; 10]); 3];
        let file = write(&packets, false, false);
        let pcap = read(&file[..cut]).unwrap();
        prop_assert_eq!(pcap.packets.len(), (cut - 24) / 26);
        prop_assert_eq!(pcap.torn, (cut - 24) % 26 != 0);
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), known: bool) {
        let mut bytes = bytes;
        if known && bytes.len() >= 4 {
            bytes[..4].copy_from_slice(&0xa1b2_c3d4u32.to_le_bytes());
        }
        if let Ok(pcap) = read(&bytes) {
            prop_assert!(pcap.packets.len() <= bytes.len() / 16);
        }
    }
}
