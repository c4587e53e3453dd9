//! The program at XDP, run on packets beside the program at tc.

use std::os::fd::AsFd as _;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use south_model::Packet;

use super::*;
use crate::harness::Frame;

const ETHERNET_BYTES: usize = 14;
/// enum xdp_action.
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const MACS_OF_CLIENT: [u8; 12] = [2; 12];

/// The link-layer addresses of a frame to a member.
fn macs_to(name: &str) -> [u8; 12] {
    let number = NAMES.iter().position(|found| *found == name);
    let number = u8::try_from(number.expect("a member")).expect("few");
    [2, 0, 0, 0, 1, number, 2, 0, 0, 0, 0, 0x99]
}

fn frame_of(packet: &[u8], v6: bool) -> Vec<u8> {
    let ethertype: [u8; 2] = if v6 { [0x86, 0xdd] } else { [8, 0] };
    [&MACS_OF_CLIENT[..], &ethertype, packet].concat()
}

impl Balancer {
    /// The program at XDP: the verdict, and the frame.
    fn run_xdp(&self, frame: &[u8]) -> (u32, Vec<u8>) {
        let program = self.balance.xdp_fd().expect("the program");
        run_program(program.as_raw_fd(), frame)
    }

    /// A packet of this connection takes the way through tc, and leaves with the header that the kernel finds.
    fn learn(&self, connection: Connection) -> &'static str {
        let packet = segment(connection.client, connection.service, &[]);
        let mut frame = Frame::of(&Packet {
            bytes: packet,
            mark: 0,
            ifindex: 1,
            checksum: ChecksumMode::Full,
        });
        let run = |frame: &mut Frame, program: std::os::fd::BorrowedFd<'_>| {
            frame.run(program.as_fd()).expect("the packet is run");
        };
        let tc = self.balance.program_fd().expect("the program");
        run(&mut frame, tc);
        let owner = owner(TableKind::Maglev, connection);
        frame.bytes[..12].copy_from_slice(&macs_to(owner));
        let noted = frame.cb;
        assert_ne!(noted[0], 0, "tc has noted the member");
        let watch = self.balance.neighbour_watch_fd().expect("the program");
        run(&mut frame, watch);
        assert_eq!(frame.cb[0], 0, "devices below have another header");
        owner
    }

    /// All members' headers, which do not age.
    fn learn_all(&self) {
        let mut learned = std::collections::BTreeSet::new();
        for port in 1..1000 {
            let (client, service) = (client(false, port), service(false));
            learned.insert(self.learn(Connection { client, service }));
            if learned.len() == NAMES.len() {
                break;
            }
        }
        assert_eq!(learned.len(), NAMES.len());
        self.see_neighbours_at(u64::MAX / 4);
    }

    /// Changes the time at which tc saw the headers.
    fn see_neighbours_at(&self, time: u64) {
        let path = self.place.pins.pin("neighbours");
        let map = MapHandle::from_pinned_path(path).expect("pinned");
        for key in map.keys().collect::<Vec<_>>() {
            let value = map.lookup(&key, MapFlags::ANY).expect("a lookup");
            let mut value = value.expect("a header");
            value[..8].copy_from_slice(&time.to_ne_bytes());
            map.update(&key, &value, MapFlags::ANY).expect("written");
        }
    }
}

/// XDP sends what tc redirects, to the same member, and passes all else unchanged.
#[track_caller]
fn assert_as_tc(balancer: &Balancer, packet: &[u8], v6: bool) {
    let (verdict, owner) = balancer.run(packet, v6);
    let (before, packets) = (balancer.counters(), balancer.packets());
    let frame = frame_of(packet, v6);
    let (action, sent) = balancer.run_xdp(&frame);
    let (after, packets_after) = (balancer.counters(), balancer.packets());
    let counted = packets
        .iter()
        .zip(&packets_after)
        .find(|(before, after)| before.1 < after.1)
        .map(|(_, (name, _))| name.clone());
    let is_sent = verdict == TC_REDIRECT;
    assert_eq!(action, if is_sent { XDP_TX } else { XDP_PASS });
    assert_eq!(counted, owner);
    let macs = owner.as_deref().map_or(MACS_OF_CLIENT, macs_to);
    assert_eq!(sent[..12], macs);
    assert_eq!(sent[12..], frame[12..]);
    let sent = u64::from(is_sent);
    assert_eq!(after.forwarded - before.forwarded, sent);
    assert_eq!(after.xdp_forwarded - before.xdp_forwarded, sent);
    // tc drops and counts.
    assert_eq!(after.fragments, before.fragments);
    assert_eq!(after.no_member, before.no_member);
}

#[test]
fn any_packet_at_xdp_goes_where_tc_redirects_it() {
    let balancer = Balancer::with_table(TableKind::Maglev, &NAMES);
    balancer.learn_all();
    let cases = ProptestConfig {
        failure_persistence: None,
        cases: 2000,
        ..ProptestConfig::default()
    };
    proptest!(cases, |((v6, packet) in any_packet())| {
        assert_as_tc(&balancer, &packet, v6);
    });
    let counters = balancer.counters();
    assert!(counters.xdp_forwarded > 100, "{counters:?}");
    assert!(counters.icmp > 100, "{counters:?}");
}

#[test]
fn packet_with_options_fragment_and_other_protocol_at_xdp_are_as_at_tc() {
    let balancer = Balancer::with_table(TableKind::Maglev, &NAMES);
    balancer.learn_all();
    let plain = segment(client(false, 1), service(false), &[7; 16]);
    let mut options = plain.clone();
    options[0] = 0x46;
    options.splice(20..20, [1, 1, 1, 0]);
    let mut fragment = plain.clone();
    fragment[6] |= 0x20;
    let mut udp = plain.clone();
    udp[9] = 17;
    for packet in [&plain, &options, &fragment, &udp] {
        assert_as_tc(&balancer, packet, false);
    }
    let mut v6 = segment(client(true, 1), service(true), &[]);
    assert_as_tc(&balancer, &v6, true);
    v6[6] = 44;
    v6.splice(40..40, [6, 0, 0, 1, 0, 0, 0, 9]);
    assert_as_tc(&balancer, &v6, true);
    // Plain, with options, and of IPv6.
    assert_eq!(balancer.counters().xdp_forwarded, 3);
}

/// The kernel gives tc such packets without the tag, for the device of the VLAN.
#[test]
fn frame_with_vlan_tag_and_of_arp_pass_at_xdp() {
    let balancer = Balancer::with_table(TableKind::Maglev, &NAMES);
    balancer.learn_all();
    let packet = segment(client(false, 1), service(false), &[]);
    let frame = frame_of(&packet, false);
    assert_eq!(balancer.run_xdp(&frame).0, XDP_TX);
    let before = balancer.counters();
    let tagged = [&frame[..12], &[0x81, 0, 0, 10], &frame[12..]].concat();
    let stacked = [&frame[..12], &[0x88, 0xa8, 0, 10], &tagged[12..]].concat();
    let mut arp = frame.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    for frame in [tagged, stacked, arp, frame[..ETHERNET_BYTES].to_vec()] {
        assert_eq!(balancer.run_xdp(&frame), (XDP_PASS, frame.clone()));
    }
    assert_eq!(balancer.counters(), before);
}

#[test]
fn packet_at_xdp_passes_until_tc_has_found_the_neighbour() {
    let mut balancer = Balancer::with_table(TableKind::Maglev, &NAMES);
    let (client, service) = (client(false, 1), service(false));
    let frame = frame_of(&segment(client, service, &[]), false);
    assert_eq!(balancer.run_xdp(&frame), (XDP_PASS, frame.clone()));
    assert_eq!(balancer.counters(), BalanceCounters::default());
    balancer.learn(Connection { client, service });
    balancer.see_neighbours_at(u64::MAX / 4);
    assert_eq!(balancer.run_xdp(&frame).0, XDP_TX);
    // The next process of the balancer has the same table and headers.
    balancer = balancer.restart();
    assert_eq!(balancer.run_xdp(&frame).0, XDP_TX);
    assert_eq!(balancer.counters().xdp_forwarded, 2);
    // Long ago: the kernel must look for the neighbour again.
    balancer.see_neighbours_at(1);
    assert_eq!(balancer.run_xdp(&frame), (XDP_PASS, frame.clone()));
    balancer.see_neighbours_at(u64::MAX / 4);
    // A member at another address, and on another link.
    for change in [
        |member: &mut BalanceMember| member.address = IpAddr::from([10, 0, 0, 200]),
        |member: &mut BalanceMember| member.interface = 2,
    ] {
        let mut moved = table(2, TableKind::Maglev, &NAMES);
        moved.members.iter_mut().for_each(change);
        balancer.balance.write_table(moved).expect("memory");
        assert_eq!(balancer.run_xdp(&frame), (XDP_PASS, frame.clone()));
    }
    assert_eq!(balancer.counters().xdp_forwarded, 2);
}

/// Of GRO: tc's packets are cut where they leave, and XDP's are not.
#[test]
fn packet_longer_than_the_link_passes_at_xdp() {
    let alone = || {
        // SAFETY: the call concerns this thread alone, which does no other work.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "run it as root");
        let mut ip = std::process::Command::new("ip");
        let set = ip.args(["link", "set", "lo", "mtu", "1000", "up"]).status();
        assert!(set.expect("ip runs").success());
        let balancer = Balancer::with_table(TableKind::Maglev, &NAMES);
        balancer.learn_all();
        let header = segment(client(false, 1), service(false), &[]).len();
        for (len, action) in [(1000, XDP_TX), (1001, XDP_PASS)] {
            let payload = vec![7; len - header];
            let packet = segment(client(false, 1), service(false), &payload);
            assert_eq!(packet.len(), len);
            let found = balancer.run_xdp(&frame_of(&packet, false)).0;
            assert_eq!(found, action, "{len}");
        }
    };
    std::thread::scope(|scope| scope.spawn(alone).join().expect("no panic"));
}

#[test]
fn packet_to_be_wrapped_passes_at_xdp() {
    let members = (0..).zip(NAMES).map(|(number, name)| member(number, name));
    let balancer = Balancer::encapsulating(members.collect());
    let frame = frame_of(&segment(client(false, 1), service(false), &[]), false);
    assert_eq!(balancer.run_xdp(&frame), (XDP_PASS, frame.clone()));
    assert_eq!(balancer.counters(), BalanceCounters::default());
}
