//! Properties of every byte string. The property tests of this crate and the fuzz targets run the same functions; each
//! function panics if the property does not hold.

use alloc::vec::Vec;

use crate::{
    ChecksumMode, ChecksumState, IpPacket, MAX_OPTIONS, Options, OptionsBuffer, Segment,
    SegmentMut, SegmentSpec, SeqNumber, SynOptions, TcpOption, checksum, kind, neighbour,
    replace_timestamps, strip,
};
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Options, stripped in the tests, that a splice cannot carry.
const STRIPPED: [u8; 3] = [kind::MULTIPATH, kind::FAST_OPEN, kind::EXPERIMENT];

/// Views of any bytes as a packet stay inside the bytes. A packet that was read can be written and read again. A
/// change in place keeps a valid checksum valid.
///
/// # Panics
///
/// If the property does not hold.
pub fn packet(bytes: &[u8]) {
    for ip in [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()] {
        let _ = neighbour::holder(bytes, ip);
    }
    let Ok(packet) = IpPacket::parse(bytes) else {
        return;
    };
    assert!(packet.header_len() <= packet.total_len());
    assert!(packet.total_len() <= bytes.len());
    assert_eq!(
        packet.payload(),
        &bytes[packet.header_len()..packet.total_len()]
    );
    captured(bytes, &packet);
    let Ok(segment) = Segment::of(&packet) else {
        return;
    };
    assert_eq!(segment.payload_len(), segment.payload().len());
    assert_eq!(
        segment.header_len() + segment.payload_len(),
        packet.payload_len()
    );
    assert_eq!(segment.end_seq(), segment.seq() + segment.sequence_len());
    options(segment.option_bytes());
    emitted(&packet, &segment);
    changed(&packet);
}

/// A capture of any length of the packet reads as the packet, or as cut short.
fn captured(bytes: &[u8], whole: &IpPacket<'_>) {
    for len in [
        0,
        19,
        39,
        whole.header_len(),
        whole.total_len() - 1,
        bytes.len(),
    ] {
        let part = &bytes[..len.min(bytes.len())];
        if let Ok(packet) = IpPacket::parse_captured(part, bytes.len()) {
            assert_eq!(packet.total_len(), whole.total_len());
            assert!(whole.payload().starts_with(packet.payload()));
        } else {
            assert!(len < whole.header_len());
        }
    }
}

/// A packet written from the fields of a segment reads as the same fields.
fn emitted(packet: &IpPacket<'_>, segment: &Segment<'_>) {
    let spec = SegmentSpec {
        source: SocketAddr::new(packet.source(), segment.source_port()),
        destination: SocketAddr::new(packet.destination(), segment.destination_port()),
        seq: segment.seq(),
        ack: segment.ack(),
        flags: segment.flags(),
        window: segment.window(),
        options: segment.option_bytes(),
        payload: segment.payload(),
    };
    round_trip(&spec);
}

/// A packet emitted from `spec` reads as `spec`, with either kind of checksum. A refused `spec` leaves the buffer
/// unchanged.
///
/// # Panics
///
/// If the property does not hold.
pub fn round_trip(spec: &SegmentSpec<'_>) {
    let modes = [
        (ChecksumMode::Full, ChecksumState::Valid),
        (ChecksumMode::Partial, ChecksumState::Partial),
    ];
    for (mode, state) in modes {
        let mut out = Vec::from(*b"before");
        if spec.emit(&mut out, mode).is_err() {
            assert_eq!(out, b"before");
            return;
        }
        let packet = IpPacket::parse(&out[6..]).expect("an emitted packet is a packet");
        let segment = Segment::of(&packet).expect("an emitted segment is a segment");
        let (source, destination) = (packet.source(), packet.destination());
        assert_eq!(packet.total_len(), out.len() - 6);
        assert_eq!(source, spec.source.ip().to_canonical());
        assert_eq!(destination, spec.destination.ip().to_canonical());
        assert_eq!(segment.source_port(), spec.source.port());
        assert_eq!(segment.destination_port(), spec.destination.port());
        assert_eq!((segment.seq(), segment.ack()), (spec.seq, spec.ack));
        assert_eq!(
            (segment.flags(), segment.window()),
            (spec.flags, spec.window)
        );
        assert_eq!(segment.payload(), spec.payload);
        let (options, padding) = segment.option_bytes().split_at(spec.options.len());
        assert_eq!(options, spec.options);
        assert!(padding.len() < 4 && padding.iter().all(|byte| *byte == 0));
        let actual = ChecksumState::of(source, destination, packet.payload());
        // By chance, 1 of 65,536 partial checksums is valid.
        assert!(actual == state || actual == ChecksumState::Valid);
    }
}

/// After changes of every field, the checksum equals a full computation, or is untouched.
fn changed(packet: &IpPacket<'_>) {
    let full =
        |segment: &[u8]| checksum::tcp_checksum(packet.source(), packet.destination(), segment);
    for mode in [ChecksumMode::Full, ChecksumMode::Partial] {
        let mut bytes = Vec::from(packet.payload());
        let right = full(&bytes);
        bytes[16..18].copy_from_slice(&right.to_be_bytes());
        let mut segment = SegmentMut::parse(&mut bytes, mode).expect("it was one before");
        let old_flags = segment.view().flags();
        segment.set_seq(SeqNumber(0));
        segment.set_ack(SeqNumber(u32::MAX));
        segment.set_window(0x1234);
        segment.set_flags(old_flags | crate::Flags::PSH);
        segment.edit_options(|options| {
            replace_timestamps(options, 1, u32::MAX);
            strip(options, &STRIPPED);
        });
        let view = segment.view();
        assert_eq!(
            (view.seq(), view.ack()),
            (SeqNumber(0), SeqNumber(u32::MAX))
        );
        assert_eq!(
            (view.window(), view.flags()),
            (0x1234, old_flags | crate::Flags::PSH)
        );
        let field = view.checksum();
        match mode {
            ChecksumMode::Full => assert_eq!(field, full(&bytes)),
            ChecksumMode::Partial => assert_eq!(field, right),
        }
    }
}

/// The walk over any bytes ends. Options from the walk can be written again without a difference. Changes in place
/// change the named options and no other byte.
///
/// # Panics
///
/// If the property does not hold.
pub fn options(bytes: &[u8]) {
    let read: Vec<_> = Options::new(bytes).collect();
    assert!(read.len() <= bytes.len());
    let good = read.iter().take_while(|option| option.is_ok()).count();
    assert!(good + 1 >= read.len(), "an error is the last item");
    if bytes.len() <= MAX_OPTIONS {
        assert_reencoded(bytes, &read[..good]);
    }
    let syn = SynOptions::parse(bytes);
    assert_eq!(SynOptions::parse(syn.emit().as_slice()), syn);
    assert_eq!(syn.emit().as_slice().len() % 4, 0);
    timestamps_replaced(bytes);
    stripped(bytes);
}

fn assert_reencoded(bytes: &[u8], read: &[Result<TcpOption<'_>, crate::OptionError>]) {
    let mut buffer = OptionsBuffer::new();
    for option in read.iter().flatten() {
        let start = buffer.as_slice().len();
        buffer.push(option).expect("the options came from a header");
        let written = &buffer.as_slice()[start..];
        let original = &bytes[start..start + written.len()];
        // A window scale above the maximum is read as the maximum.
        let capped = matches!(option, TcpOption::WindowScale(_)) && written[..2] == original[..2];
        assert!(written == original || capped);
    }
}

fn timestamps_replaced(bytes: &[u8]) {
    let is_timestamps = |option: &Result<_, _>| matches!(option, Ok(TcpOption::Timestamps { .. }));
    let mut copy = Vec::from(bytes);
    let replaced = replace_timestamps(&mut copy, 7, 9);
    assert_eq!(
        replaced,
        Options::new(bytes).any(|option| is_timestamps(&option))
    );
    for (before, after) in Options::new(bytes).zip(Options::new(&copy)) {
        if is_timestamps(&before) {
            assert_eq!(after, Ok(TcpOption::Timestamps { value: 7, echo: 9 }));
        } else {
            assert_eq!(after, before);
        }
    }
}

fn stripped(bytes: &[u8]) {
    let is_listed = |option: &TcpOption<'_>| matches!(option, TcpOption::Unknown { kind, .. } if STRIPPED.contains(kind));
    let kept = |bytes| -> Vec<_> {
        let walk: Options<'_> = Options::new(bytes);
        walk.filter_map(Result::ok)
            .filter(|option| *option != TcpOption::NoOperation && !is_listed(option))
            .collect()
    };
    let count = |bytes| Options::new(bytes).flatten().filter(is_listed).count();
    let mut copy = Vec::from(bytes);
    assert_eq!(strip(&mut copy, &STRIPPED), count(bytes));
    assert_eq!(count(&copy), 0);
    assert_eq!(kept(&copy), kept(bytes));
}
