//! `fence.h`: packets that leave in time, packets that are too late, and packets that need no
//! lease.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use south_model::{MARK_CLIENT_SPACE, MARK_SERVER_SPACE, MARK_TO_CLIENT, Packet};
use wire::{ChecksumMode, Flags, SeqNumber};

use crate::harness::*;

const IN_TIME: Option<bool> = Some(true);
const TOO_LATE: Option<bool> = Some(false);

fn raw(bytes: Vec<u8>) -> Packet {
    Packet {
        bytes,
        mark: 0,
        ifindex: IFINDEX,
        checksum: ChecksumMode::Full,
    }
}

/// A packet of another protocol than TCP, with this payload.
pub(crate) fn other(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Packet {
    let len = u8::try_from(payload.len()).unwrap();
    let (header, ends) = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => (
            vec![0x45, 0, 0, 20 + len, 0, 0, 0, 0, 64, protocol, 0, 0],
            [from.octets(), to.octets()].concat(),
        ),
        (IpAddr::V6(from), IpAddr::V6(to)) => (
            vec![0x60, 0, 0, 0, 0, len, protocol, 255],
            [from.octets(), to.octets()].concat(),
        ),
        _ => unreachable!("one family"),
    };
    raw([header, ends, payload.to_vec()].concat())
}

/// An ARP packet for IPv4 over Ethernet: sender and target.
fn arp(operation: u8, sender: [u8; 4], target: [u8; 4]) -> Packet {
    let head = [0, 1, 8, 0, 6, 4, 0, operation];
    let mac = [2, 0, 0, 0, 0, 0x10];
    raw([&head[..], &mac, &sender, &[0xff; 6], &target].concat())
}

/// Verdicts on the packet with each lease.
fn with_leases(both: &mut Both, packet: &Packet) -> [Verdict; 3] {
    [None, IN_TIME, TOO_LATE].map(|lease| {
        both.lease(lease);
        both.egress(packet.clone()).verdict
    })
}

#[test]
fn nothing_that_could_reach_a_client_leaves_too_late() {
    for v6 in [false, true] {
        for flags in [ACK, FIN_ACK, RST, RST.union(ACK)] {
            let mut both = Both::numbered(1000, 5000, v6).open();
            let spec = segment(both.s + 1, both.c + 1).flags(flags).payload(b"x");
            let known = spec.packet(both.key.server(), both.key.client());
            assert_eq!(with_leases(&mut both, &known), [Next, Next, WITHHELD]);
            let stranger = client_end(v6, 9);
            let unknown = spec.packet(both.key.server(), stranger);
            assert_eq!(with_leases(&mut both, &unknown), [Next, Next, WITHHELD]);
            let mut cut = known.clone();
            cut.bytes[if v6 { 40 } else { 20 } + 12] = 0x10;
            assert_eq!(with_leases(&mut both, &cut), [Next, Next, DROP]);
            assert_eq!(both.counted("fenced"), 3);
            assert_eq!(both.counted("gated_out"), 0);
            // The lease was only late: the same flow continues.
            assert_eq!(with_leases(&mut both, &known)[1], Next);
        }
    }
}

#[test]
fn a_handshake_is_not_answered_too_late() {
    let mut both = Both::new();
    both.client(both.syn());
    both.lease(TOO_LATE);
    let fenced = both.server(both.syn_ack());
    assert_eq!(fenced.verdict, WITHHELD, "for the server it was sent");
    both.lease(IN_TIME);
    assert_eq!(both.server(both.syn_ack()).verdict, Next);
}

#[test]
fn what_we_make_for_clients_is_fenced_and_what_stays_here_is_not() {
    let mut both = Both::new().open();
    let spec = |space| {
        let spec = segment(SeqNumber(1), SeqNumber(2)).payload(b"x");
        spec.mark(MARK + space)
    };
    let (server, client) = (both.key.server(), both.key.client());
    let mut leases = |space| with_leases(&mut both, &spec(space).packet(server, client));
    assert_eq!(leases(MARK_TO_CLIENT), [Next, Next, DROP]);
    assert_eq!(leases(TO_LOGGER), [Next; 3]);
    for space in [MARK_CLIENT_SPACE, MARK_SERVER_SPACE] {
        assert_eq!(leases(space), [RedirectIngress; 3]);
    }
}

#[test]
fn nobody_has_to_be_alive_for_it() {
    let mut both = Both::new().open();
    both.lease(TOO_LATE);
    both.fall_silent();
    let data = segment(both.s + 1, both.c + 1).payload(b"x");
    assert_eq!(both.server(data).verdict, WITHHELD);
}

/// The clock is that which goes on while the host sleeps.
#[test]
fn a_lease_counts_from_the_boot_of_the_host() {
    let mut both = Both::new().open();
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now = Duration::try_from(now).expect("it has not been negative yet");
    let hour = Duration::from_secs(3600);
    let data = segment(both.s + 1, both.c + 1).payload(b"x");
    let data = data.packet(both.key.server(), both.key.client());
    for (end, verdict) in [(now, WITHHELD), (now + hour, Next)] {
        let fence = both.kernel.plane().fence().expect("it is there");
        fence.set_lease(Some(end)).expect("it runs");
        let passes = verdict == Next;
        both.happened(|model, _| model.set_lease(Some(if passes { u64::MAX } else { 0 })));
        assert_eq!(both.egress(data.clone()).verdict, verdict);
    }
}

#[test]
fn a_replay_goes_on_and_what_comes_after_it_waits() {
    let mut both = Both::new().open();
    let (c, s) = (both.c + 1, both.s + 1);
    both.server(segment(s, c).timestamps(901, 11).payload(b"heard"));
    both.client(segment(c, s + 5).timestamps(12, 901));
    both.lease(TOO_LATE);
    let s2 = SeqNumber(70_000);
    both.splice(s2);
    // A repetition that the client has.
    let again = segment(s2 + 1, c).timestamps(71, 12).payload(b"heard");
    assert_eq!(both.server(again).verdict, RedirectIngress);
    let new = segment(s2 + 6, c).timestamps(72, 12).payload(b"new");
    let before = both.flow().server;
    assert_eq!(both.server(new.clone()).verdict, WITHHELD);
    assert_eq!(both.flow().server, before, "the client was told nothing");
    both.lease(IN_TIME);
    let out = both.server(new);
    assert_eq!((out.verdict, out.segment().seq()), (Next, s + 5));
}

#[test]
fn nothing_else_leaves_in_the_name_of_a_protected_address() {
    for v6 in [false, true] {
        let mut both = Both::numbered(1000, 5000, v6);
        let (ours, client) = (server_end(v6).ip(), client_end(v6, 0));
        let stranger = if v6 { "fd00::77" } else { "10.0.0.77" }.parse().unwrap();
        let late = [Next, Next, DROP];
        for (from, verdicts) in [(ours, late), (stranger, [Next; 3])] {
            let icmp = other(from, client.ip(), if v6 { 58 } else { 1 }, &[3; 40]);
            assert_eq!(with_leases(&mut both, &icmp), verdicts);
            let plain = segment(SeqNumber(1), SeqNumber(2)).flags(Flags::RST);
            let ssh = plain.packet(SocketAddr::new(from, 22), client);
            assert_eq!(with_leases(&mut both, &ssh), verdicts);
        }
    }
}

#[test]
fn nobody_is_told_that_a_protected_address_is_here() {
    let mut both = Both::new();
    let (ours, stranger, late) = ([10, 0, 0, 10], [10, 0, 0, 77], [Next, Next, DROP]);
    for operation in [1, 2] {
        let announced = arp(operation, ours, ours);
        assert_eq!(with_leases(&mut both, &announced), late);
        let told = arp(operation, ours, stranger);
        assert_eq!(with_leases(&mut both, &told), late);
        // A question for an address is no claim.
        let asked = arp(operation, stranger, ours);
        assert_eq!(with_leases(&mut both, &asked), [Next; 3]);
    }
    let (IpAddr::V6(ours), all) = (server_end(true).ip(), "ff02::1".parse().unwrap()) else {
        unreachable!("it is IPv6");
    };
    let link_local: IpAddr = "fe80::10".parse().unwrap();
    let neighbour = |kind: u8, target: std::net::Ipv6Addr| {
        let head = [kind, 0, 0, 0, 0x20, 0, 0, 0];
        other(link_local, all, 58, &[&head[..], &target.octets()].concat())
    };
    let stranger = "fd00::77".parse().unwrap();
    assert_eq!(with_leases(&mut both, &neighbour(136, ours)), late);
    assert_eq!(with_leases(&mut both, &neighbour(135, ours)), [Next; 3]);
    assert_eq!(with_leases(&mut both, &neighbour(136, stranger)), [Next; 3]);
    let short = other(link_local, all, 58, &[136, 0, 0, 0]);
    assert_eq!(with_leases(&mut both, &short), [Next; 3]);
}
