//! Ends of connections on the client's wire.

use std::{collections::BTreeMap, time::Duration};

use lab::{Capture, Host, TcpSegment, pcap::Packet};

use crate::arrange::wait_until;

/// How the server's side of one connection ended on the client's wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ending {
    /// The server's host sent a RST.
    pub rst: bool,
    /// The server's host sent a FIN.
    pub fin: bool,
}

/// A capture of the segments that begin and end connections, on the client's host.
#[derive(Debug)]
pub struct Recording {
    capture: Capture,
    port: u16,
    duplicates: bool,
}

/// A connection of a client's port.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// Index among all connections.
    number: usize,
    /// Sequence number of the SYN.
    begun: Option<u32>,
    /// The client's side has ended.
    client_fin: bool,
    /// Sequence number after the server's FIN.
    server_end: Option<u32>,
}

impl Recording {
    /// Begins with the connections to `port`, of both address families.
    ///
    /// # Panics
    /// When tcpdump cannot be started.
    #[must_use]
    pub fn start(client: &Host, port: u16) -> Self {
        // SYN, RST, FIN only: under bulk data tcpdump would miss these segments.
        let filter = format!(
            "tcp port {port} and ((ip and tcp[tcpflags] & 7 != 0) or (ip6 and ip6[53] & 7 != 0))"
        );
        let capture = client.capture(&filter).expect("tcpdump captures");
        Self {
            capture,
            port,
            duplicates: false,
        }
    }

    /// Accepts duplicated segments. When both sides have ended, the client's last acknowledgement has closed the
    /// server's socket. A duplicate of that acknowledgement gets a RST from any host, after the server's FIN: that
    /// RST ends no connection.
    #[must_use]
    pub fn with_duplicates(self) -> Self {
        Self {
            duplicates: true,
            ..self
        }
    }

    /// Stops the recording, and returns the ending of each connection, in the order of the first SYNs.
    ///
    /// # Panics
    /// When the capture is incomplete: an incomplete capture proves no absence of a RST.
    #[must_use]
    pub fn finish(self) -> Vec<Ending> {
        let captured = self.capture.finish().expect("the capture ends");
        assert_eq!(captured.missed, Some(0), "tcpdump missed segments");
        for segment in segments(&captured.packets) {
            // The test harness shows this text when the test fails.
            eprintln!("{segment:?}");
        }
        endings(&captured.packets, self.port, self.duplicates)
    }

    /// Waits until the server's host has ended this many connections: a client that closes first does not wait for
    /// the server's end.
    ///
    /// # Panics
    /// When the server's host never does.
    pub fn await_ended(&self, connections: usize) {
        wait_until("the server's host ends all connections", || {
            let packets = self.capture.so_far().expect("a capture");
            let endings = endings(&packets, self.port, self.duplicates);
            let ended = endings.iter().filter(|ending| ending.fin || ending.rst);
            ended.count() >= connections
        });
    }
}

fn segments(packets: &[Packet]) -> impl Iterator<Item = (Duration, TcpSegment)> {
    let parsed = packets
        .iter()
        .map(|packet| Some((packet.time, TcpSegment::parse(&packet.frame)?)));
    parsed.flatten()
}

/// The ending of each connection to `port`, in the order of their first SYNs.
fn endings(packets: &[Packet], port: u16, duplicates: bool) -> Vec<Ending> {
    let mut endings: Vec<Ending> = Vec::new();
    // The newest connection of each of the client's ports: ports are used again.
    let mut newest: BTreeMap<(u8, u16), Known> = BTreeMap::new();
    for (_, segment) in segments(packets) {
        let from_server = segment.source == port;
        let client_port = if from_server {
            segment.destination
        } else {
            segment.source
        };
        let begins = (segment.is_syn() && !from_server).then_some(segment.sequence);
        let known = newest.entry((segment.version, client_port));
        let new = Known {
            number: endings.len(),
            begun: begins,
            client_fin: false,
            server_end: None,
        };
        let known = known.or_insert(new);
        if begins.is_some() && known.begun != begins {
            *known = new;
        }
        if known.number == endings.len() {
            endings.push(Ending::default());
        }
        let ending = &mut endings[known.number];
        if !from_server {
            known.client_fin |= segment.is_fin();
            continue;
        }
        let both_ended = known.client_fin && known.server_end == Some(segment.sequence);
        ending.rst |= segment.is_rst() && !(duplicates && both_ended);
        if segment.is_fin() {
            ending.fin = true;
            let length = u32::try_from(segment.payload).expect("a segment");
            known.server_end = Some(segment.sequence.wrapping_add(length).wrapping_add(1));
        }
    }
    endings
}

/// Asserts that no connection got an end which the run without a crash did not have.
///
/// # Panics
/// When a connection got a further FIN or RST, or when the numbers of connections differ.
#[track_caller]
pub fn assert_same_endings(crash_free: &[Ending], crashed: &[Ending]) {
    assert_eq!(
        crash_free.len(),
        crashed.len(),
        "connections: {crash_free:?} without, {crashed:?} with the crash"
    );
    for (number, (without, with)) in crash_free.iter().zip(crashed).enumerate() {
        let more = (with.rst && !without.rst) || (with.fin && !without.fin);
        assert!(
            !more,
            "connection {number} ended with {with:?}, without the crash with {without:?}"
        );
    }
}
