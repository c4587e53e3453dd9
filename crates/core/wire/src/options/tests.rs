use super::*;
use crate::{IpPacket, Segment, packets, properties};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// A DSS option of multipath TCP, a Fast Open cookie and an experimental option, with padding.
const UNCARRIED: [u8; 20] = [
    30, 4, 0x20, 0x01, 1, 34, 6, 0xa, 0xb, 0xc, 0xd, 254, 4, 0xf9, 0x89, 3, 3, 7, 0, 0,
];

fn read(bytes: &[u8]) -> Vec<Result<TcpOption<'_>, OptionError>> {
    Options::new(bytes).collect()
}

fn options_of(packet: &[u8]) -> &[u8] {
    Segment::of(&IpPacket::parse(packet).unwrap())
        .unwrap()
        .option_bytes()
}

fn block(left: u32, right: u32) -> SackBlock {
    SackBlock {
        left: SeqNumber(left),
        right: SeqNumber(right),
    }
}

#[test]
fn captured_syn_options() {
    let expected = [
        Ok(TcpOption::MaxSegmentSize(1460)),
        Ok(TcpOption::SackPermitted),
        Ok(TcpOption::Timestamps {
            value: 0x4cad_a494,
            echo: 0,
        }),
        Ok(TcpOption::NoOperation),
        Ok(TcpOption::WindowScale(10)),
    ];
    assert_eq!(read(options_of(packets::V4_SYN)), expected);
}

#[test]
fn syn_options_have_linux_layout() {
    for packet in [
        packets::V4_SYN,
        packets::V4_SYN_ACK,
        packets::V6_SYN,
        packets::V4_SYN_PARTIAL,
    ] {
        let syn = SynOptions::parse(options_of(packet));
        assert!(syn.mss.is_some() && syn.window_scale == Some(10) && syn.sack_permitted);
        assert_eq!(syn.emit().as_slice(), options_of(packet));
    }
    let plain_ack = SynOptions::parse(options_of(packets::V4_FIN));
    assert_eq!(plain_ack.emit().as_slice(), options_of(packets::V4_FIN));
    assert!(SynOptions::default().emit().as_slice().is_empty());
}

#[test]
fn window_scale_above_14_is_14() {
    assert_eq!(read(&[3, 3, 15]), [Ok(TcpOption::WindowScale(14))]);
    assert_eq!(SynOptions::parse(&[3, 3, 255]).window_scale, Some(14));
    let mut buffer = OptionsBuffer::new();
    buffer.push(&TcpOption::WindowScale(200)).unwrap();
    assert_eq!(buffer.as_slice(), [3, 3, 14]);
}

#[test]
fn end_of_list_ends_walk() {
    let options = read(&[1, 0, 2, 4, 5, 0xb4]);
    assert_eq!(
        options,
        [Ok(TcpOption::NoOperation), Ok(TcpOption::EndOfList)]
    );
    assert_eq!(SynOptions::parse(&[1, 0, 2, 4, 5, 0xb4]).mss, None);
}

#[test]
fn malformed_length_ends_walk() {
    for malformed in [&[5, 0, 4, 2][..], &[5, 1, 4, 2], &[5, 5, 4, 2], &[5]] {
        let bytes = [&[2, 4, 5, 0xb4][..], malformed].concat();
        let error = OptionError { kind: 5, offset: 4 };
        assert_eq!(
            read(&bytes),
            [Ok(TcpOption::MaxSegmentSize(1460)), Err(error)]
        );
        let syn = SynOptions::parse(&bytes);
        assert_eq!((syn.mss, syn.sack_permitted), (Some(1460), false));
    }
}

#[test]
fn known_kind_with_foreign_length_is_ignored() {
    let data = [5, 0xb4, 0];
    let unknown = TcpOption::Unknown {
        kind: 2,
        data: &data,
    };
    assert_eq!(
        read(&[2, 5, 5, 0xb4, 0, 4, 2]),
        [Ok(unknown), Ok(TcpOption::SackPermitted)]
    );
    let eleven = [0; 9];
    let mut sack = vec![5, 11];
    sack.extend_from_slice(&eleven);
    assert_eq!(
        read(&sack),
        [Ok(TcpOption::Unknown {
            kind: 5,
            data: &eleven
        })]
    );
}

#[test]
fn zero_mss_is_ignored_and_last_duplicate_counts() {
    assert_eq!(SynOptions::parse(&[2, 4, 0, 0]).mss, None);
    assert_eq!(SynOptions::parse(&[2, 4, 0, 1, 2, 4, 0, 2]).mss, Some(2));
}

#[test]
fn sack_blocks_are_one_to_four() {
    let blocks = [
        block(1, 2),
        block(u32::MAX, 0),
        block(5, 6),
        block(7, 8),
        block(9, 10),
    ];
    assert_eq!(SackBlocks::new(&[]), None);
    assert_eq!(SackBlocks::new(&blocks), None);
    for count in 1..=SackBlocks::MAX {
        let sack = SackBlocks::new(&blocks[..count]).unwrap();
        assert_eq!(sack.as_slice(), &blocks[..count]);
        let mut buffer = OptionsBuffer::new();
        buffer.push(&TcpOption::Sack(sack)).unwrap();
        assert_eq!(buffer.as_slice().len(), 2 + 8 * count);
        let Some(Ok(TcpOption::Sack(again))) = Options::new(buffer.as_slice()).next() else {
            panic!("not read as a SACK");
        };
        assert_eq!(again.as_slice(), &blocks[..count]);
    }
}

#[test]
fn timestamps_are_replaced_at_any_offset() {
    let mut options = options_of(packets::V4_SYN).to_vec();
    assert!(replace_timestamps(&mut options, 1, 2));
    assert_eq!(options[6..16], [8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    assert!(!replace_timestamps(&mut [1, 1, 4, 2], 1, 2));
    assert!(!replace_timestamps(
        &mut [0, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0],
        1,
        2
    ));
    assert!(!replace_timestamps(&mut [8, 3, 0], 1, 2));
}

#[test]
fn uncarried_options_become_no_operations() {
    let mut options = UNCARRIED;
    let kinds = [kind::MULTIPATH, kind::FAST_OPEN, kind::EXPERIMENT];
    assert_eq!(strip(&mut options, &kinds), 3);
    assert_eq!(
        options,
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 7, 0, 0]
    );
    let mut options = UNCARRIED;
    assert_eq!(strip(&mut options, &[0, 1]), 0);
    assert_eq!(options, UNCARRIED);
}

#[test]
fn full_buffer_refuses_option() {
    let mut buffer = OptionsBuffer::new();
    let fits = TcpOption::Unknown {
        kind: 99,
        data: &[7; 37],
    };
    buffer.push(&fits).unwrap();
    assert_eq!(buffer.push(&TcpOption::SackPermitted), Err(OptionsFull));
    assert_eq!(buffer.as_slice().len(), 39);
    buffer.push(&TcpOption::NoOperation).unwrap();
    assert_eq!(buffer.push(&TcpOption::NoOperation), Err(OptionsFull));
    let long = TcpOption::Unknown {
        kind: 99,
        data: &[7; 254],
    };
    assert_eq!(OptionsBuffer::new().push(&long), Err(OptionsFull));
    assert_eq!(
        read(buffer.as_slice()),
        [Ok(fits), Ok(TcpOption::NoOperation)]
    );
}

/// Bytes that are often nearly options: well-formed ones of common kinds, cut anywhere.
fn nearly_options() -> impl Strategy<Value = Vec<u8>> {
    let kinds = vec![0u8, 1, 1, 2, 3, 4, 5, 8, 30, 34, 254, 77];
    let option = (
        prop::sample::select(kinds),
        0u8..20,
        any::<[u8; 20]>(),
        any::<bool>(),
    );
    let encode = |(kind, len, data, right): (u8, u8, [u8; 20], bool)| {
        let usual = match kind {
            kind::MAX_SEGMENT_SIZE => 2,
            kind::WINDOW_SCALE => 1,
            kind::SACK_PERMITTED => 0,
            kind::SACK => (1 + len % 2) * 8,
            kind::TIMESTAMPS => 8,
            _ => len,
        };
        let len = if right { usual } else { len };
        if kind <= kind::NO_OPERATION {
            return vec![kind];
        }
        [&[kind, len + 2], &data[..usize::from(len)]].concat()
    };
    (
        prop::collection::vec(option.prop_map(encode), 0..6),
        0usize..64,
    )
        .prop_map(|(options, cut)| {
            let mut bytes = options.concat();
            bytes.truncate(cut);
            bytes
        })
}

proptest! {
    #[test]
    fn arbitrary_bytes(bytes: Vec<u8>) {
        properties::options(&bytes);
    }

    #[test]
    fn damaged_options(bytes in nearly_options()) {
        properties::options(&bytes);
    }

    #[test]
    fn arbitrary_syn_options(
        mss in prop::option::of(1u16..),
        window_scale in prop::option::of(0..=MAX_WINDOW_SCALE),
        sack_permitted: bool,
        timestamps in prop::option::of(any::<(u32, u32)>()),
    ) {
        let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
        let syn = SynOptions { mss, window_scale, sack_permitted, timestamps };
        prop_assert_eq!(SynOptions::parse(syn.emit().as_slice()), syn);
    }
}
