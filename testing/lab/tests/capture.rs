//! Captures contain all traffic of the link, and no other traffic.

mod common;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use common::{Udp, addresses, connect, pattern, transfer, two_hosts};
use lab::{Endings, Error, Impairment, TcpSegment, endings};

#[test]
fn capture_starts_and_ends_exactly() {
    let (_lab, server, client) = two_hosts("capture");
    let udp = Udp::new(&server, &client);
    let before = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    for round in 1..=5 {
        let capture = server.capture("udp").unwrap();
        for number in 0..20 {
            udp.send(number, 60);
        }
        assert_eq!(udp.received(20, common::EVENT_TIMEOUT).len(), 20);
        let captured = capture.finish().unwrap();
        assert_eq!(captured.missed, Some(0));
        assert_eq!(captured.packets.len(), 20, "round {round}");
        for packet in &captured.packets {
            assert_eq!(packet.length, 14 + 20 + 8 + 60);
            assert_eq!(packet.frame.len(), packet.length);
            assert!(packet.time + Duration::from_secs(1) > before);
        }
    }
}

#[test]
fn endings_are_captured_for_both_families_and_sides() {
    let (_lab, server, client) = two_hosts("endings");
    for address in addresses(&server) {
        let captures = [&server, &client].map(|host| host.capture("").unwrap());
        let (theirs, ours) = connect(&server, &client, address);
        let port = theirs.local_addr().unwrap().port();
        let client_port = ours.local_addr().unwrap().port();
        ours.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&theirs).read(&mut [0]).unwrap(), 0);
        // Closing with unread data is a RST.
        (&theirs).write_all(b"unread").unwrap();
        ours.peek(&mut [0]).unwrap();
        drop(ours);
        let deadline = Instant::now() + common::EVENT_TIMEOUT;
        while theirs.take_error().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the RST does not arrive");
            thread::sleep(Duration::from_millis(1));
        }
        for capture in captures {
            let captured = capture.finish().unwrap();
            let client_said = endings(&captured.packets, client_port);
            assert_eq!((client_said.fin, client_said.rst), (1, 1));
            assert_eq!(endings(&captured.packets, port), Endings::default());
            let syns = captured
                .packets
                .iter()
                .filter_map(|packet| TcpSegment::parse(&packet.frame))
                .filter(|segment| segment.flags & 0x02 != 0);
            assert_eq!(syns.count(), 2);
        }
    }
}

#[test]
fn bulk_transfer_is_captured_whole() {
    let (_lab, server, client) = two_hosts("bulk");
    let capture = client.capture("tcp").unwrap();
    let (theirs, ours) = connect(&server, &client, addresses(&server)[0]);
    let port = theirs.local_addr().unwrap().port();
    let bytes = pattern(20_000_000);
    assert!(transfer(&theirs, &ours, &bytes) == bytes);
    let captured = capture.finish().unwrap();
    assert_eq!(captured.missed, Some(0));
    let payload: usize = captured
        .packets
        .iter()
        .filter(|p| TcpSegment::parse(&p.frame).is_some_and(|s| s.source == port))
        .map(|p| p.length - 14 - 20 - 32)
        .sum();
    assert!(payload >= bytes.len(), "{payload}");
}

#[test]
fn failed_capture_reports_reason() {
    let (lab, server, _) = two_hosts("bad capture");
    let error = server.capture("no such filter").unwrap_err();
    assert!(
        matches!(&error, Error::CaptureNotListening { stderr, .. } if stderr.contains("syntax error")),
        "{error}"
    );
    assert!(server.capture_on("eth9", "").is_err());
    assert!(server.pids().unwrap().is_empty());
    let dropped = server.capture("").unwrap();
    drop(dropped);
    assert!(server.pids().unwrap().is_empty());
    assert_eq!(std::fs::read_dir(lab.directory()).unwrap().count(), 0);
}

#[test]
fn capture_survives_host() {
    let (_lab, server, client) = two_hosts("dead capture");
    let udp = Udp::new(&server, &client);
    let capture = server.capture("udp").unwrap();
    udp.send(1, 60);
    udp.received(1, common::EVENT_TIMEOUT);
    // tcpdump may not have written the frame yet, so the count may be 0.
    server.power_off().unwrap();
    let captured = capture.finish().unwrap();
    assert!(captured.packets.len() <= 1);
}

#[test]
fn loopback_is_captured() {
    let (_lab, server, _) = two_hosts("loopback");
    let capture = server.capture_on("lo", "tcp").unwrap();
    let (theirs, ours) = connect(&server, &server, "::1".parse().unwrap());
    assert_eq!(transfer(&ours, &theirs, b"self"), b"self");
    let captured = capture.finish().unwrap();
    let segments = captured.packets.iter();
    let segments = segments.filter_map(|packet| TcpSegment::parse(&packet.frame));
    assert_eq!(
        segments.filter(|segment| segment.flags & 0x02 != 0).count(),
        2
    );
}

#[test]
fn impaired_link_carries_single_segments() {
    let (_lab, server, client) = two_hosts("segments");
    let (theirs, ours) = connect(&server, &client, addresses(&server)[0]);
    let bytes = pattern(2_000_000);
    let largest = || {
        let capture = client.capture("tcp").unwrap();
        assert!(transfer(&theirs, &ours, &bytes) == bytes);
        assert!(transfer(&ours, &theirs, &bytes) == bytes);
        let captured = capture.finish().unwrap();
        captured.packets.iter().map(|packet| packet.length).max()
    };
    assert!(largest() > Some(1514));
    // Both ends of the connection: the host cuts the segments of a side, and the switch's end of the client's link
    // cuts the segments of the other side.
    client.impair(&Impairment::with_seed(1)).unwrap();
    assert_eq!(largest(), Some(1514));
    client.clear_impairment().unwrap();
    assert!(largest() > Some(1514));
}
