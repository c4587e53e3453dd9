//! The hosts that speak for a service, on the client's wire.
//!
//! A host speaks with every frame whose source is an address of the service, and with every ARP or neighbour claim of
//! such an address.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lab::{Capture, Host, Mac, TcpSegment};

/// The length of an Ethernet header.
const ETHERNET_HEADER_BYTES: usize = 14;
/// ICMPv6 as a next header, and the type of a neighbour advertisement (RFC 4861 4.4).
const ICMPV6_PROTOCOL: u8 = 58;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// A capture of all that is said for some addresses.
#[derive(Debug)]
pub struct Speakers {
    capture: Capture,
    addresses: Vec<IpAddr>,
}

/// A frame that speaks.
#[derive(Debug, Clone)]
struct Transmission {
    /// When, since 1970.
    time: Duration,
    speaker: Mac,
    /// Description for people.
    what: String,
}

impl fmt::Display for Transmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} {}", self.time.as_secs_f64(), self.what)
    }
}

/// All that was said, in the order of time.
#[derive(Debug, Clone, Default)]
pub struct SpeakerLog {
    words: Vec<Transmission>,
}

impl Speakers {
    /// Begins to listen on the client's host.
    ///
    /// # Panics
    /// When tcpdump cannot be started.
    #[must_use]
    pub fn listen(client: &Host, addresses: &[SocketAddr]) -> Self {
        let addresses: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
        let sources: Vec<String> = addresses
            .iter()
            .map(|ip| format!("src host {ip}"))
            .collect();
        // A claim need not come from the claimed address.
        let filter = format!("({}) or arp or icmp6", sources.join(" or "));
        let capture = client.capture(&filter).expect("tcpdump captures");
        Self { capture, addresses }
    }

    /// The transmissions of all hosts.
    ///
    /// # Panics
    /// When the capture is incomplete: an incomplete capture proves no silence.
    #[must_use]
    pub fn finish(self) -> SpeakerLog {
        let captured = self.capture.finish().expect("the capture ends");
        assert_eq!(captured.missed, Some(0), "tcpdump missed frames");
        let packets = captured.packets.iter();
        SpeakerLog::of(
            packets.map(|packet| (packet.time, &packet.frame[..])),
            &self.addresses,
        )
    }
}

impl SpeakerLog {
    fn of<'a>(frames: impl Iterator<Item = (Duration, &'a [u8])>, addresses: &[IpAddr]) -> Self {
        let words = frames.filter_map(|(time, frame)| {
            Some(Transmission {
                time,
                speaker: speaker(frame, addresses)?,
                what: in_words(frame),
            })
        });
        Self {
            words: words.collect(),
        }
    }

    /// The hosts that sent, in turn.
    #[must_use]
    pub fn turns(&self) -> Vec<Mac> {
        let mut turns: Vec<Mac> = self.words.iter().map(|word| word.speaker).collect();
        turns.dedup();
        turns
    }

    /// Asserts that a single host sent at a time: the holders of the epochs, in this order, without a gap. Two
    /// successive epochs of the same host count as a single turn.
    ///
    /// # Panics
    /// When another host sent, or a holder was silent.
    #[track_caller]
    pub fn assert_one_at_a_time(&self, holders: &[Mac]) {
        let mut expected = holders.to_vec();
        expected.dedup();
        let holders: Vec<String> = expected.iter().map(ToString::to_string).collect();
        assert!(
            self.turns() == expected,
            "{holders:?} served, and there spoke\n{self}"
        );
    }

    /// Asserts that no host sent in a time, given since 1970.
    ///
    /// # Panics
    /// When a host did.
    #[track_caller]
    pub fn assert_silence(&self, from: Duration, to: Duration) {
        let within = |word: &&Transmission| (from..=to).contains(&word.time);
        if let Some(word) = self.words.iter().find(within) {
            panic!(
                "from {from:?} to {to:?} there spoke {}: {word}",
                word.speaker
            );
        }
    }
}

impl fmt::Display for SpeakerLog {
    /// A line for each turn: the host, the number of frames, the first and the last frame.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for turn in self.words.chunk_by(|a, b| a.speaker == b.speaker) {
            let (first, last) = (&turn[0], &turn[turn.len() - 1]);
            let frames = turn.len();
            writeln!(f, "{}: {frames} frames, {first} to {last}", first.speaker)?;
        }
        Ok(())
    }
}

/// The kind of a frame, for people.
fn in_words(frame: &[u8]) -> String {
    match TcpSegment::parse(frame) {
        Some(segment) => format!("{segment:?}"),
        None => format!("{:02x?}", &frame[12.min(frame.len())..60.min(frame.len())]),
    }
}

/// The sender of a frame, if the frame speaks for any of the addresses.
fn speaker(frame: &[u8], addresses: &[IpAddr]) -> Option<Mac> {
    let payload = frame.get(ETHERNET_HEADER_BYTES..)?;
    let claimed = match frame.get(12..ETHERNET_HEADER_BYTES)? {
        [0x08, 0x00] => vec![ipv4(payload, 12)?],
        // The sender's protocol address (RFC 826): of a reply, and of a question as well.
        [0x08, 0x06] => vec![ipv4(payload, 14)?],
        [0x86, 0xdd] => {
            let kinds = (payload.get(6)?, payload.get(40));
            let target = (kinds == (&ICMPV6_PROTOCOL, Some(&NEIGHBOUR_ADVERTISEMENT)))
                .then(|| ipv6(payload, 48));
            [ipv6(payload, 8), target.flatten()]
                .into_iter()
                .flatten()
                .collect()
        }
        _ => return None,
    };
    let speaks = claimed.iter().any(|ip| addresses.contains(ip));
    let source = frame.get(6..)?.first_chunk()?;
    speaks.then_some(Mac(*source))
}

fn ipv4(packet: &[u8], at: usize) -> Option<IpAddr> {
    let bytes: &[u8; 4] = packet.get(at..)?.first_chunk()?;
    Some(Ipv4Addr::from(*bytes).into())
}

fn ipv6(packet: &[u8], at: usize) -> Option<IpAddr> {
    let bytes: &[u8; 16] = packet.get(at..)?.first_chunk()?;
    Some(Ipv6Addr::from(*bytes).into())
}

/// The time, on the clock of captures.
#[must_use]
pub fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
