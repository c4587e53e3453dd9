//! What the client's wire saw of the ends of connections.

use std::collections::BTreeMap;

use lab::{Capture, Host, TcpSegment};

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
}

impl Recording {
    /// Begins with the connections to `port`, of both address families.
    ///
    /// # Panics
    /// When tcpdump cannot be started.
    #[must_use]
    pub fn start(client: &Host, port: u16) -> Self {
        // SYN, RST, FIN: bulk data would only make tcpdump miss what matters.
        let filter = format!(
            "tcp port {port} and ((ip and tcp[tcpflags] & 7 != 0) or (ip6 and ip6[53] & 7 != 0))"
        );
        let capture = client.capture(&filter).expect("tcpdump captures");
        Self { capture, port }
    }

    /// Ends it: the ending of each connection, in the order of their first SYNs.
    ///
    /// # Panics
    /// When the capture is not complete: it would prove nothing.
    #[must_use]
    pub fn finish(self) -> Vec<Ending> {
        let captured = self.capture.finish().expect("the capture ends");
        assert_eq!(captured.missed, Some(0), "tcpdump missed segments");
        let mut endings: Vec<Ending> = Vec::new();
        // By the client's port: which is the newest connection, and where its SYN began. Ports are used again.
        let mut newest: BTreeMap<(u8, u16), (usize, Option<u32>)> = BTreeMap::new();
        for packet in &captured.packets {
            let Some(segment) = TcpSegment::parse(&packet.frame) else {
                continue;
            };
            let from_server = segment.source == self.port;
            let client_port = if from_server {
                segment.destination
            } else {
                segment.source
            };
            let begins = (segment.is_syn() && !from_server).then_some(segment.sequence);
            let client = (segment.version, client_port);
            let known = newest.get(&client).copied();
            let again = known.filter(|(_, begun)| begins.is_none() || *begun == begins);
            let (which, _) = again.unwrap_or_else(|| {
                endings.push(Ending::default());
                let new = (endings.len() - 1, begins);
                newest.insert(client, new);
                new
            });
            let ending = &mut endings[which];
            // The test harness shows it when the test fails.
            eprintln!("{:?} {segment:?}", packet.time);
            ending.rst |= from_server && segment.is_rst();
            ending.fin |= from_server && segment.is_fin();
        }
        endings
    }
}

/// Asserts that no connection was told an end that the crash-free run's was not.
///
/// # Panics
/// When one was, or when there were more or fewer connections.
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
