//! When each step of a takeover was done, from the events of the host that takes over.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use lab::pcap::Packet;
use serde_json::Value;

/// Not an event: `serving` has the time since `restored`.
const CLEARED: &str = "cleared";

/// A step, the event at the end, and a description. A step begins where the step before ends.
pub(super) const STEPS: [(&str, &str, &str); 7] = [
    (
        "detection",
        "granted",
        "until the logger has granted the epoch: the lease runs out or is given up, the margin passes, the standby asks",
    ),
    (
        "record",
        "restored",
        "until the standby has what the logger knows of the connections, behind the gate",
    ),
    (
        "clearing",
        CLEARED,
        "until the addresses are up, clients are asked where they stand, and nothing of an earlier server is left",
    ),
    ("restart", "restarted", "until the server runs"),
    ("listening", "listening", "until it listens"),
    (
        "splice",
        "spliced",
        "until the connections are joined to it that can be",
    ),
    (
        "replay",
        "serving",
        "until it has had all that clients had sent",
    ),
];

/// The end of each of the [`STEPS`], in milliseconds since the power went, or since the move was asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Steps([f64; STEPS.len()]);

impl Steps {
    /// From the events of a standby, which began before `power_off` (seconds since 1970).
    pub(super) fn of(events: &[Value], power_off: f64) -> Result<Self> {
        let last = |name: &str| {
            let event = events.iter().rev().find(|event| event["event"] == name);
            event.with_context(|| format!("the standby has not told `{name}`"))
        };
        let after = |name: &str| -> Result<f64> {
            let time = last(name)?["time_unix_us"].as_f64();
            let time = time.context("an event without a time")? / 1e6;
            Ok((time - power_off) * 1e3)
        };
        let mut ends = [0.0; STEPS.len()];
        for (end, (_, name, _)) in ends.iter_mut().zip(STEPS) {
            *end = if name == CLEARED {
                let cleared = last("serving")?["timings"]["cleared_ms"].as_f64();
                after("restored")? + cleared.context("`serving` without its timings")?
            } else {
                after(name)?
            };
        }
        Ok(Self(ends))
    }

    /// How long each took.
    pub(super) fn each(self) -> [f64; STEPS.len()] {
        let mut before = 0.0;
        self.0.map(|end| end - std::mem::replace(&mut before, end))
    }

    pub(super) fn granted(self) -> f64 {
        self.0[0]
    }

    pub(super) fn live(self) -> f64 {
        self.0[STEPS.len() - 1]
    }

    /// From the server's start to the end of the replay.
    pub(super) fn replay(self) -> f64 {
        self.live() - self.0[STEPS.len() - 2]
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

/// The first announcement of an address to the neighbours after `power_off`, in milliseconds: an ARP packet in which
/// the sender asks for the sender's own address (RFC 5227 3).
pub(super) fn announced(packets: &[Packet], power_off: f64) -> Option<f64> {
    let since = Duration::try_from_secs_f64(power_off).ok()?;
    let first = packets
        .iter()
        .filter(|packet| packet.time >= since && is_announcement(&packet.frame))
        .min_by_key(|packet| packet.time)?;
    Some((first.time - since).as_secs_f64() * 1e3)
}

/// Ethernet's header has 14 bytes; the sender's and the target's IP are at 14 and 24 of ARP.
fn is_announcement(frame: &[u8]) -> bool {
    let (Some(sender), Some(target)) = (frame.get(28..32), frame.get(38..42)) else {
        return false;
    };
    sender == target
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn steps_are_times_between_events() -> Result<()> {
        let mut events = vec![json!({"event": "granted", "time_unix_us": 1_000_000})];
        let names = [
            "granted",
            "restored",
            "restarted",
            "listening",
            "spliced",
            "serving",
        ];
        for (number, name) in (1_u32..).zip(names) {
            let time = 100_000_000 + 250_000 * u64::from(number);
            let timings = json!({"cleared_ms": 50.0});
            events.push(json!({"event": name, "time_unix_us": time, "timings": timings}));
        }
        let steps = Steps::of(&events, 100.0)?;
        let each = [250.0, 250.0, 50.0, 200.0, 250.0, 250.0, 250.0];
        assert_eq!(steps.each(), each);
        assert_eq!((steps.granted(), steps.live()), (250.0, 1500.0));
        assert_eq!(steps.replay(), 250.0);
        assert!(Steps::of(&events[..3], 100.0).is_err());
        Ok(())
    }

    #[test]
    fn first_announcement_after_end_counts() {
        let packet = |ms, target: u8| {
            let mut frame = vec![0; 42];
            (frame[31], frame[41]) = (9, target);
            Packet {
                time: Duration::from_millis(ms),
                length: frame.len(),
                frame,
            }
        };
        let packets = [
            packet(900, 9),
            packet(1010, 8),
            packet(1025, 9),
            packet(1030, 9),
        ];
        let after = announced(&packets, 1.0).expect("there is one");
        assert!((after - 25.0).abs() < 1e-6);
        assert_eq!(announced(&packets[..2], 1.0), None);
    }
}
