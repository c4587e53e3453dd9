//! The headers of `bpf/`: each compiles alone, and the headers of `bpf/lib` do on packets as the crate `wire` does.

use std::{
    fs,
    hash::Hasher as _,
    net::{IpAddr, Ipv6Addr},
    path::{Path, PathBuf},
};

use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::{MapCore as _, MapFlags, Object, ObjectBuilder, ProgramInput};
use proptest::prelude::*;
use siphasher::sip::SipHasher24;
use wire::{
    ChecksumMode, Flags, IpPacket, MIN_TCP_HEADER, Segment, SegmentSpec, SeqNumber,
    checksum::tcp_checksum,
};

/// Between Ethernet and IP.
const ETHERNET_BYTES: usize = 14;
/// `SIPHASH_WORDS`, and the key of the program `hash`.
const HASHED_WORDS: usize = 16;
const HASH_KEY: (u64, u64) = (7, 11);

fn headers(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("bpf")
        .join(folder);
    let entries = fs::read_dir(folder).expect("the folder of headers");
    entries
        .map(|entry| entry.expect("an entry").path())
        .collect()
}

/// Compiles a program as `build.rs` does.
pub(crate) fn compile(source: &Path, object: &Path) {
    let folder = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/bpf");
    let mut builder = SkeletonBuilder::new();
    builder.source(source).obj(object).clang_args([
        "-mcpu=v3",
        "-nostdinc",
        "-Wall",
        "-Werror",
        "-Wno-unused-function",
        folder,
    ]);
    builder
        .build()
        .unwrap_or_else(|error| panic!("{}: {error:?}", source.display()));
}

#[test]
fn header_alone_compiles() {
    let place = tempfile::tempdir().expect("a directory");
    let (source, object) = (
        place.path().join("one.bpf.c"),
        place.path().join("one.bpf.o"),
    );
    for folder in ["lib", "intf", "replay", "balance", "objects"] {
        let headers = headers(folder);
        assert!(!headers.is_empty(), "{folder} has no headers");
        for header in headers {
            fs::write(&source, format!("#include \"{}\"\n", header.display())).expect("a file");
            compile(&source, &object);
        }
    }
}

#[test]
fn header_of_lib_includes_no_header_of_a_mode() {
    for folder in ["lib", "intf"] {
        for header in headers(folder) {
            let text = fs::read_to_string(&header).expect("a header");
            let mut includes = text.lines().filter(|line| line.starts_with("#include"));
            let of_a_mode =
                includes.find(|line| line.contains("replay/") || line.contains("balance/"));
            assert_eq!(of_a_mode, None, "in {}", header.display());
        }
    }
}

/// `struct findings` of `tests/bpf/lib.bpf.c`.
#[derive(Debug)]
struct Findings {
    words: [u32; 18],
    hash: u64,
    source: IpAddr,
    destination: IpAddr,
}

struct Programs {
    object: Object,
}

impl Programs {
    fn load() -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let object = place.path().join("lib.bpf.o");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bpf/lib.bpf.c");
        compile(Path::new(source), &object);
        let mut builder = ObjectBuilder::default();
        let open = builder
            .open_file(&object)
            .expect("the object that was built");
        Self {
            object: open.load().expect("this kernel takes the programs"),
        }
    }

    /// Runs a program on a packet; returns the packet afterwards.
    fn run(&self, name: &str, packet: &[u8]) -> Vec<u8> {
        let ethertype: [u8; 2] = if packet[0] >> 4 == 6 {
            [0x86, 0xdd]
        } else {
            [8, 0]
        };
        let frame = [&[2; 12][..], &ethertype, packet].concat();
        let mut out = vec![0; frame.len()];
        let mut programs = self.object.progs_mut();
        let program = programs
            .find(|program| program.name() == name)
            .expect("a program");
        let mut input = ProgramInput::default();
        (input.data_in, input.data_out) = (Some(&frame[..]), Some(&mut out[..]));
        let output = program.test_run(input).expect("the program runs");
        assert_eq!(output.return_value, 0, "{name} lets the packet pass");
        out.split_off(ETHERNET_BYTES)
    }

    fn map(&self, name: &str) -> libbpf_rs::Map<'_> {
        let mut maps = self.object.maps();
        maps.find(|map| map.name() == name).expect("a map")
    }

    fn findings(&self) -> Findings {
        let value = self.map("found").lookup(&[0; 4], MapFlags::ANY);
        let bytes = value.expect("a lookup").expect("an element");
        let word =
            |n: usize| u32::from_ne_bytes(bytes[4 * n..4 * n + 4].try_into().expect("4 bytes"));
        let address = |at: usize| {
            let octets: [u8; 16] = bytes[at..at + 16].try_into().expect("16 bytes");
            Ipv6Addr::from(octets).to_canonical()
        };
        Findings {
            words: std::array::from_fn(word),
            hash: u64::from_ne_bytes(bytes[72..80].try_into().expect("8 bytes")),
            source: address(80),
            destination: address(96),
        }
    }
}

/// At most one option of each kind, each filled up to whole words.
fn options() -> impl Strategy<Value = Vec<u8>> {
    let mss = any::<u16>().prop_map(|mss| [&[2, 4][..], &mss.to_be_bytes()].concat());
    let scale = any::<u8>().prop_map(|shift| vec![1, 3, 3, shift]);
    let times = any::<[u8; 8]>().prop_map(|times| [&[1, 1, 8, 10][..], &times].concat());
    let sack = any::<[u8; 8]>().prop_map(|block| [&[1, 1, 5, 10][..], &block].concat());
    let fast_open = any::<[u8; 2]>().prop_map(|cookie| [&[34, 4][..], &cookie].concat());
    let some = |option: BoxedStrategy<Vec<u8>>| prop::option::of(option);
    let parts = (
        some(times.boxed()),
        some(mss.boxed()),
        some(scale.boxed()),
        some(sack.boxed()),
        some(fast_open.boxed()),
        some(Just(vec![1, 1, 4, 2]).boxed()),
    );
    parts
        .prop_map(|(a, b, c, d, e, f)| [a, b, c, d, e, f].into_iter().flatten().flatten().collect())
}

fn segments() -> impl Strategy<Value = Vec<u8>> {
    let numbers = any::<(bool, u32, u32, u16, u8)>();
    let payload = prop::collection::vec(any::<u8>(), 0..100);
    (numbers, options(), payload).prop_map(|((v6, seq, ack, window, flags), options, payload)| {
        let end = |v4: &str, v6_address: &str| if v6 { v6_address } else { v4 }.parse();
        let mut packet = Vec::new();
        let spec = SegmentSpec {
            source: end("10.0.0.1:40000", "[fd00::1]:40000").expect("an address"),
            destination: end("10.0.0.10:80", "[fd00::10]:80").expect("an address"),
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags: Flags::from_bits(flags),
            window,
            options: &options,
            payload: &payload,
        };
        spec.emit(&mut packet, ChecksumMode::Full)
            .expect("a segment");
        packet
    })
}

fn segment(packet: &[u8]) -> (IpPacket<'_>, Segment<'_>) {
    let ip = IpPacket::parse(packet).expect("a packet");
    let segment = Segment::of(&ip).expect("a segment");
    (ip, segment)
}

fn is_intact(packet: &[u8]) -> bool {
    let (ip, segment) = segment(packet);
    segment.checksum() == tcp_checksum(ip.source(), ip.destination(), ip.payload())
}

/// The offset of an option in the TCP header, and its data. 0: it is absent.
fn option(segment: &Segment<'_>, kind: u8) -> (u32, Vec<u8>) {
    let (bytes, mut at) = (segment.option_bytes(), 0);
    while at < bytes.len() && bytes[at] != 0 {
        let len = if bytes[at] == 1 {
            1
        } else {
            usize::from(bytes[at + 1])
        };
        if bytes[at] == kind {
            let offset = u32::try_from(MIN_TCP_HEADER + at).expect("a small number");
            return (offset, bytes[at + 2..at + len].to_vec());
        }
        at += len;
    }
    (0, Vec::new())
}

#[test]
fn segment_is_read_and_rewritten_as_wire_reads_it() {
    let programs = Programs::load();
    proptest!(ProptestConfig::with_cases(300), |(packet in segments())| {
        let after = programs.run("parse", &packet);
        let found = programs.findings();
        let (ip, wanted) = segment(&packet);
        prop_assert_eq!((found.source, found.destination), (ip.source(), ip.destination()));
        let times = wanted.timestamps().map_or((0, 0), |times| (times.value, times.echo));
        let (mss, _) = option(&wanted, 2);
        let (_, scale) = option(&wanted, 3);
        let (permitted, _) = option(&wanted, 4);
        let (sack, _) = option(&wanted, 5);
        let (stripped, _) = option(&wanted, 34);
        let header = &ip.payload()[..wanted.header_len()];
        let expected = [
            1,
            wanted.seq().0,
            wanted.ack().0,
            wanted.window().into(),
            wanted.flags().bits().into(),
            u32::try_from(wanted.payload_len()).expect("a small number"),
            wanted.sequence_len(),
            times.0,
            times.1,
            mss,
            scale.first().map_or(0, |shift| u32::from(*shift).min(14)),
            u32::from(permitted > 0),
            if sack > 0 { 10 } else { 0 },
            u32::from(stripped > 0),
            tcp_checksum(ip.source(), ip.destination(), header).into(),
            u32::from(wanted.seq().0.wrapping_sub(wanted.ack().0).cast_signed() > 0),
        ];
        prop_assert_eq!(&found.words[..expected.len()], &expected);
        prop_assert!(is_intact(&after));
        let (_, rewritten) = segment(&after);
        prop_assert_eq!(option(&rewritten, 34), (0, Vec::new()), "the option is removed");
        prop_assert_eq!(rewritten.payload(), wanted.payload());

        let exchanged = programs.run("exchange", &packet);
        prop_assert!(is_intact(&exchanged));
        let (_, exchanged) = segment(&exchanged);
        prop_assert_eq!((exchanged.seq(), exchanged.ack()), (wanted.ack(), wanted.seq()));
        prop_assert_eq!(exchanged.option_bytes(), wanted.option_bytes());
    });
}

/// A segment with these options, over IPv4.
fn packet_with(options: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    let ends = ["10.0.0.1:1", "10.0.0.10:80"].map(|end| end.parse().expect("an address"));
    let spec = SegmentSpec {
        source: ends[0],
        destination: ends[1],
        seq: SeqNumber(1),
        ack: SeqNumber(2),
        flags: Flags::ACK,
        window: 1,
        options,
        payload: b"words",
    };
    let emitted = spec.emit(&mut packet, ChecksumMode::Full);
    emitted.expect("a segment");
    packet
}

/// RFC 7323 2.3: a shift above 14 is taken for 14. 255 once was "no option".
#[test]
fn window_shift_above_14_is_14() {
    let programs = Programs::load();
    for shift in [0, 13, 14, 15, 254, 255] {
        programs.run("parse", &packet_with(&[1, 3, 3, shift]));
        assert_eq!(programs.findings().words[10], u32::from(shift.min(14)));
    }
}

#[test]
fn packet_that_is_no_whole_segment_is_none() {
    let programs = Programs::load();
    let whole = packet_with(&[]);
    let changed = |at: usize, value: u8| {
        let mut packet = whole.clone();
        packet[at] = value;
        packet
    };
    let cases = [
        ("UDP", changed(9, 17)),
        ("a fragment", changed(6, 0x20)),
        ("an IP header of 16 bytes", changed(0, 0x44)),
        ("a TCP header of 16 bytes", changed(32, 0x40)),
        (
            "a TCP header of 60 bytes, of which 25 are there",
            changed(32, 0xf0),
        ),
        ("half of a packet", changed(3, 250)),
    ];
    programs.run("parse", &whole);
    assert_eq!(programs.findings().words[0], 1);
    for (name, packet) in cases {
        assert_eq!(programs.run("parse", &packet), packet);
        assert_eq!(programs.findings().words[0], 0, "{name}");
    }
}

#[test]
fn siphash_of_words_is_siphash_2_4() {
    let programs = Programs::load();
    let packet = [0x45; 40];
    for seed in 0..20_u64 {
        let words: Vec<u8> = (0..HASHED_WORDS as u64)
            .flat_map(|n| (n.wrapping_mul(seed) ^ seed << 40).to_le_bytes())
            .collect();
        let map = programs.map("words");
        map.update(&[0; 4], &words, MapFlags::ANY).expect("a map");
        programs.run("hash", &packet);
        let mut hasher = SipHasher24::new_with_keys(HASH_KEY.0, HASH_KEY.1);
        hasher.write(&words);
        assert_eq!(programs.findings().hash, hasher.finish(), "{seed}");
    }
}

#[test]
fn process_has_the_number_of_its_own_namespace() {
    let programs = Programs::load();
    let mut all = programs.object.progs_mut();
    let program = all.find(|program| program.name() == "pid_namespace_number");
    let output = program
        .expect("a program")
        .test_run(ProgramInput::default());
    let number = output.expect("the program runs").return_value;
    assert_eq!(number, std::process::id());
    let link = fs::read_link("/proc/self/ns/pid").expect("a namespace");
    let namespace = programs.findings().words[16];
    assert_eq!(link.to_string_lossy(), format!("pid:[{namespace}]"));
}
