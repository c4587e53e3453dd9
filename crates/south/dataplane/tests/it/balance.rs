//! The load balancer's program, run on packets beside a model of it.

mod encapsulation;
mod model;
mod xdp;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, RawFd};

use dataplane::{
    Balance, BalanceCounters, BalanceMember, BalanceSettings, BalanceTable, MEMBER_COUNT_MAX,
    PinDirectory, XdpMode, balance_pins, pinned_balancers,
};
use libbpf_rs::libbpf_sys;
use pool::{MAGLEV_ENTRY_COUNT, MemberIndex, OwnerTable, TableKind, flow_hash};
use proptest::prelude::*;
use protocol::pool::PoolKey;
use wire::{ChecksumMode, Flags, SegmentSpec, SeqNumber};

use crate::harness::Pinned;
use model::{Class, Connection, classify};

const KEY: PoolKey = PoolKey(*b"0123456789abcdef");
const NAMES: [&str; 3] = ["web1", "web2", "web3"];
/// Verdicts of a program at tc (linux/pkt_cls.h).
const TC_NEXT: i32 = -1;
const TC_DROP: i32 = 2;
const TC_REDIRECT: i32 = 7;

fn addresses() -> Vec<SocketAddr> {
    ["10.0.0.10:80", "[fd00::10]:80", "10.0.0.11:443"]
        .map(|text| text.parse().expect("an address"))
        .to_vec()
}

fn client(v6: bool, port: u16) -> SocketAddr {
    let ip: IpAddr = if v6 { "2001:db8::1" } else { "192.0.2.1" }
        .parse()
        .expect("an address");
    SocketAddr::new(ip, port)
}

fn service(v6: bool) -> SocketAddr {
    addresses()[usize::from(v6)]
}

fn member(number: u8, name: &str) -> BalanceMember {
    BalanceMember {
        name: name.to_owned(),
        membership: 100 + u64::from(number),
        address: IpAddr::from([10, 0, 0, 100 + number]),
        // The loopback, which exists in every network namespace.
        interface: 1,
        source: None,
        claim_port: 7701,
        draining: number == 2,
        slot: 0,
    }
}

fn table(epoch: u64, kind: TableKind, names: &[&str]) -> BalanceTable {
    let members = (0..).zip(names).map(|(number, name)| member(number, name));
    let owners = OwnerTable::new(kind, names).expect("different names");
    BalanceTable {
        epoch,
        kind,
        members: members.collect(),
        owners: owners
            .entries()
            .iter()
            .map(|MemberIndex(index)| *index)
            .collect(),
    }
}

struct Balancer {
    balance: Balance,
    place: Pinned,
}

impl Balancer {
    fn new() -> Self {
        let place = Pinned::nowhere_else();
        let balance = Self::start(&place);
        Self { balance, place }
    }

    /// A balancer that wraps packets.
    fn encapsulating(members: Vec<BalanceMember>) -> Self {
        let place = Pinned::nowhere_else();
        let settings = BalanceSettings {
            addresses: addresses(),
            key: KEY.0,
            encapsulates: true,
            xdp: Some(XdpMode::Native),
        };
        let balance = Balance::start(&settings, place.pins.clone()).expect("the program loads");
        let mut this = Self { balance, place };
        let mut table = table(1, TableKind::Maglev, &NAMES);
        table.members = members;
        this.balance.write_table(table).expect("memory");
        this
    }

    fn start(place: &Pinned) -> Balance {
        let settings = BalanceSettings {
            addresses: addresses(),
            key: KEY.0,
            encapsulates: false,
            xdp: Some(XdpMode::Native),
        };
        Balance::start(&settings, place.pins.clone()).expect("the program loads")
    }

    fn with_table(kind: TableKind, names: &[&str]) -> Self {
        let mut balancer = Self::new();
        balancer
            .balance
            .write_table(table(1, kind, names))
            .expect("memory");
        balancer
    }

    /// The next process of the balancer.
    fn restart(mut self) -> Self {
        self.balance = Self::start(&self.place);
        self
    }

    fn counters(&self) -> BalanceCounters {
        self.balance.counters().expect("counters")
    }

    fn packets(&self) -> Vec<(String, u64)> {
        self.balance.member_packets().expect("counters")
    }

    /// The verdict on a packet, and the member that gets the packet.
    fn run(&self, packet: &[u8], v6: bool) -> (i32, Option<String>) {
        let before = self.packets();
        let verdict = run(&self.balance, packet, v6);
        let after = self.packets();
        let counted = before
            .iter()
            .zip(&after)
            .find(|(before, after)| before.1 < after.1);
        (verdict, counted.map(|(_, (name, _))| name.clone()))
    }
}

/// Runs the program on a frame with this packet.
fn run(balance: &Balance, packet: &[u8], v6: bool) -> i32 {
    let ethertype: [u8; 2] = if v6 { [0x86, 0xdd] } else { [8, 0] };
    let frame = [&[2; 12][..], &ethertype, packet].concat();
    let program = balance.program_fd().expect("the program");
    let (verdict, out) = run_program(program.as_raw_fd(), &frame);
    assert_eq!(out, frame, "the packet stays as it is");
    verdict.cast_signed()
}

/// Runs a program on a frame: the verdict, and the frame afterwards.
fn run_program(program: RawFd, frame: &[u8]) -> (u32, Vec<u8>) {
    let mut out = vec![0; frame.len()];
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: libbpf_sys::size_t::try_from(size_of::<libbpf_sys::bpf_test_run_opts>()).unwrap(),
        data_in: frame.as_ptr().cast(),
        data_out: out.as_mut_ptr().cast(),
        data_size_in: u32::try_from(frame.len()).unwrap(),
        data_size_out: u32::try_from(out.len()).unwrap(),
        ..Default::default()
    };
    // SAFETY: every pointer is valid for the size beside it until the call returns.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program, &raw mut options) };
    assert_eq!(result, 0, "the program runs");
    (options.retval, out)
}

fn segment(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let spec = SegmentSpec {
        source,
        destination,
        seq: SeqNumber(1),
        ack: SeqNumber(2),
        flags: Flags::ACK,
        window: 1000,
        options: &[],
        payload,
    };
    spec.emit(&mut bytes, ChecksumMode::Full).expect("a packet");
    bytes
}

/// An error about `packet`, with `kept` bytes of it.
fn icmp_about(packet: &[u8], kept: usize, to: SocketAddr, kind: u8) -> Vec<u8> {
    let inner = &packet[..kept.min(packet.len())];
    let mut bytes = segment(client(to.is_ipv6(), 1), to, &[]);
    let header = if to.is_ipv6() { 40 } else { 20 };
    bytes.truncate(header);
    bytes.extend([kind, 0, 0, 0, 0, 0, 5, 0]);
    bytes.extend(inner);
    let len = u16::try_from(bytes.len()).expect("short");
    match to.is_ipv6() {
        true => {
            bytes[6] = 58;
            bytes[4..6].copy_from_slice(&(len - 40).to_be_bytes());
        }
        false => {
            bytes[9] = 1;
            bytes[2..4].copy_from_slice(&len.to_be_bytes());
        }
    }
    bytes
}

fn owner(kind: TableKind, connection: Connection) -> &'static str {
    let table = OwnerTable::new(kind, &NAMES).expect("different names");
    let hash = flow_hash(KEY, connection.client, connection.service);
    let MemberIndex(index) = table.owner(hash).expect("members");
    NAMES[usize::from(index)]
}

#[test]
fn segment_goes_to_owner_of_its_connection() {
    for kind in [TableKind::Maglev, TableKind::Modulo] {
        let balancer = Balancer::with_table(kind, &NAMES);
        for port in 1..100 {
            for v6 in [false, true] {
                let (client, service) = (client(v6, port), service(v6));
                let found = balancer.run(&segment(client, service, b"GET"), v6);
                let owner = owner(kind, Connection { client, service });
                assert_eq!(found, (TC_REDIRECT, Some(owner.to_owned())), "{client}");
            }
        }
        assert_eq!(balancer.counters().forwarded, 2 * 99);
        assert!(balancer.packets().iter().all(|(_, packets)| *packets > 20));
    }
}

#[test]
fn error_about_connection_goes_to_its_owner() {
    let balancer = Balancer::with_table(TableKind::Maglev, &NAMES);
    for port in 1..50 {
        for (v6, kind, kept) in [
            (false, 3, 28),
            (false, 11, 60),
            (true, 2, 48),
            (true, 1, 60),
        ] {
            let (client, service) = (client(v6, port), service(v6));
            let sent = segment(service, client, &[7; 20]);
            let error = icmp_about(&sent, kept, service, kind);
            let owner = owner(TableKind::Maglev, Connection { client, service });
            let found = balancer.run(&error, v6);
            assert_eq!(found, (TC_REDIRECT, Some(owner.to_owned())), "{kind}");
        }
    }
    assert_eq!(balancer.counters().icmp, 4 * 49);
}

#[test]
fn packet_of_this_host_passes() {
    let balancer = Balancer::with_table(TableKind::Maglev, &NAMES);
    for v6 in [false, true] {
        let (client, service) = (client(v6, 9), service(v6));
        let other_port = SocketAddr::new(service.ip(), 22);
        let other_host = SocketAddr::new(client.ip(), 80);
        let [unreachable, echo] = if v6 { [1, 128] } else { [3, 8] };
        let of_other_port = segment(other_port, client, &[]);
        let of_service = segment(service, client, &[]);
        for packet in [
            segment(client, other_port, &[]),
            segment(client, other_host, &[]),
            icmp_about(&of_service, 60, service, echo),
            icmp_about(&of_other_port, 60, service, unreachable),
            // The ports are cut off.
            icmp_about(&of_service, if v6 { 43 } else { 23 }, service, unreachable),
            // Of a client that talks to another host.
            icmp_about(&segment(client, other_host, &[]), 60, service, unreachable),
        ] {
            assert_eq!(balancer.run(&packet, v6), (TC_NEXT, None), "{packet:?}");
        }
    }
    assert_eq!(balancer.counters(), BalanceCounters::default());
}

#[test]
fn fragment_is_dropped_and_counted() {
    let balancer = Balancer::with_table(TableKind::Maglev, &NAMES);
    let mut first = segment(client(false, 1), service(false), &[7; 16]);
    first[6] |= 0x20;
    let mut later = first.clone();
    later[6..8].copy_from_slice(&[0, 3]);
    for packet in [first, later] {
        assert_eq!(balancer.run(&packet, false), (TC_DROP, None));
    }
    let mut packet = segment(client(true, 1), service(true), &[]);
    packet[6] = 44;
    packet.splice(40..40, [6, 0, 0, 1, 0, 0, 0, 9]);
    assert_eq!(balancer.run(&packet, true), (TC_DROP, None));
    packet[40] = 17;
    assert_eq!(balancer.run(&packet, true), (TC_NEXT, None));
    assert_eq!(balancer.counters().fragments, 3);
}

#[test]
fn segment_without_member_is_dropped_and_counted() {
    let mut balancer = Balancer::new();
    let packet = segment(client(false, 1), service(false), &[]);
    assert_eq!(balancer.run(&packet, false), (TC_DROP, None));
    let empty = table(1, TableKind::Maglev, &[]);
    balancer.balance.write_table(empty).expect("memory");
    assert_eq!(balancer.run(&packet, false), (TC_DROP, None));
    assert_eq!(balancer.counters().no_member, 2);
}

#[test]
fn next_balancer_adopts_table_and_counters() {
    let mut balancer = Balancer::with_table(TableKind::Modulo, &NAMES);
    let packet = segment(client(false, 1), service(false), &[]);
    let (_, owner) = balancer.run(&packet, false);
    let (before, packets) = (balancer.balance.table().cloned(), balancer.packets());
    balancer = balancer.restart();
    assert_eq!(balancer.balance.table(), before.as_ref());
    assert_eq!(balancer.packets(), packets);
    assert_eq!(balancer.run(&packet, false), (TC_REDIRECT, owner));
    let settings = BalanceSettings {
        addresses: vec![service(true)],
        key: KEY.0,
        encapsulates: false,
        xdp: Some(XdpMode::Native),
    };
    balancer.balance = Balance::start(&settings, balancer.place.pins.clone()).expect("it loads");
    assert_eq!(
        balancer.run(&packet, false),
        (TC_NEXT, None),
        "no address of the service any more"
    );
    balancer.balance.remove().expect("no pins are left");
    assert!(!balancer.place.pins.exists());
}

#[test]
fn member_keeps_its_counter_from_table_to_table() {
    let mut balancer = Balancer::with_table(TableKind::Modulo, &["b"]);
    let packet = segment(client(false, 1), service(false), &[]);
    balancer.run(&packet, false);
    let next = table(2, TableKind::Modulo, &["a", "b"]);
    balancer.balance.write_table(next).expect("memory");
    assert_eq!(
        balancer.packets(),
        [("a".to_owned(), 0), ("b".to_owned(), 1)]
    );
    let next = table(3, TableKind::Modulo, &["a"]);
    balancer.balance.write_table(next).expect("memory");
    let next = table(4, TableKind::Modulo, &["a", "c"]);
    balancer.balance.write_table(next).expect("memory");
    assert_eq!(
        balancer.packets(),
        [("a".to_owned(), 0), ("c".to_owned(), 0)]
    );
}

#[test]
fn pins_are_found_by_name() {
    let place = Pinned::nowhere_else();
    let service = place.pins.path();
    let bpffs = service.ancestors().nth(3).expect("a bpf filesystem");
    let name = format!("pool.{}", std::process::id());
    let pins: PinDirectory = balance_pins(bpffs, &name);
    let settings = BalanceSettings {
        addresses: addresses(),
        key: KEY.0,
        encapsulates: false,
        xdp: Some(XdpMode::Native),
    };
    let balance = Balance::start(&settings, pins).expect("the program loads");
    // Other balancers may run on this host.
    assert!(pinned_balancers(bpffs).contains(&name));
    balance.remove().expect("no pins are left");
    assert!(!pinned_balancers(bpffs).contains(&name));
}

/// In the header that both languages share.
#[test]
fn sizes_equal_the_header() {
    let header = include_str!("../../bpf/intf/balance.h");
    let defined = |name: &str| {
        let lines = header.lines();
        let found = lines.filter_map(|line| line.strip_prefix("#define ")?.strip_prefix(name));
        let mut numbers = found.filter_map(|number| number.trim().parse::<usize>().ok());
        numbers.next_back().expect("a number")
    };
    let version = usize::try_from(dataplane::BALANCE_FORMAT.version).expect("small");
    assert_eq!(defined("BALANCE_LAYOUT_VERSION "), version);
    assert_eq!(defined("BALANCE_MEMBERS "), MEMBER_COUNT_MAX);
    assert_eq!(MEMBER_COUNT_MAX, protocol::pool::MEMBER_COUNT_MAX);
    assert_eq!(defined("BALANCE_OWNERS "), MAGLEV_ENTRY_COUNT);
    assert!(defined("BALANCE_NAME_LEN ") > protocol::pool::MemberName::LEN_MAX);
}

fn any_packet() -> impl Strategy<Value = (bool, Vec<u8>)> {
    let parts = (any::<bool>(), 1u16.., 0..4u8, 0..70usize, any::<bool>());
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    (parts, damage, any::<Option<prop::sample::Index>>()).prop_map(|(parts, damage, cut)| {
        let (v6, port, kind, kept, is_error) = parts;
        let (client, service) = (client(v6, port), service(v6));
        let mut packet = match is_error {
            true => icmp_about(
                &segment(service, client, &[7; 20]),
                kept,
                service,
                kind + u8::from(!v6) * 2,
            ),
            false => segment(client, service, &[7; 20]),
        };
        for (at, byte) in damage {
            let at = at.index(packet.len());
            packet[at] = byte;
        }
        if let Some(cut) = cut {
            // The kernel runs no program on less than the header.
            let header = if v6 { 40 } else { 20 };
            packet.truncate(header + cut.index(packet.len() - header + 1));
        }
        (v6, packet)
    })
}

#[test]
fn any_packet_is_classified_as_by_the_model() {
    let balancer = Balancer::with_table(TableKind::Maglev, &NAMES);
    let cases = ProptestConfig {
        failure_persistence: None,
        cases: 3000,
        ..ProptestConfig::default()
    };
    proptest!(cases, |((v6, packet) in any_packet())| {
        let before = balancer.counters();
        let found = balancer.run(&packet, v6);
        let after = balancer.counters();
        let wanted = match classify(&packet, v6, &addresses()) {
            Class::Other => (TC_NEXT, None),
            Class::Fragment => (TC_DROP, None),
            Class::Segment(connection) | Class::Icmp(connection) => {
                (TC_REDIRECT, Some(owner(TableKind::Maglev, connection).to_owned()))
            }
        };
        prop_assert_eq!(found, wanted);
        let is_icmp = matches!(classify(&packet, v6, &addresses()), Class::Icmp(_));
        prop_assert_eq!(after.icmp - before.icmp, u64::from(is_icmp));
    });
}
