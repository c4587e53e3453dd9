//! Requests to a holder, and responses.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Layout;
use crate::Direction;

/// A request to the holder.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// How the lab is. Answered with [`Answer::Status`].
    Status,
    /// Change the links of a host.
    Links {
        /// The host's name.
        host: String,
        /// Only this interface; `None` for all.
        interface: Option<String>,
        /// In these directions.
        directions: Vec<Direction>,
        /// How.
        change: Change,
    },
    /// Send a signal. Answered with [`Answer::Signalled`].
    Kill {
        /// The host's name.
        host: String,
        /// The receivers of the signal.
        target: Target,
        /// The number of the signal.
        signal: i32,
    },
    /// Take the power from a host.
    PowerOff {
        /// The host's name.
        host: String,
    },
    /// Return the power to a host.
    PowerOn {
        /// The host's name.
        host: String,
    },
    /// Remove the lab. Answered when the lab is gone.
    Down,
}

/// A change of links.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Drop all frames.
    Cut,
    /// Remove all faults: no cut, loss, delay, rate.
    Heal,
    /// Lose this share of the frames, in percent; 0 ends the loss.
    Loss {
        /// 0 to 100.
        percent: f64,
        /// Whose luck; `None` for fresh randomness.
        seed: Option<u64>,
    },
    /// Delay each frame by this time; 0 ends the delay.
    Delay(Duration),
    /// At most so many bits a second; `None` ends the limit.
    Rate(Option<u64>),
    /// The largest IP packet, in bytes.
    Mtu(u32),
}

/// Which processes of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The process with this number.
    Pid(i32),
    /// All of this name: the program's file name, as in `ps -e`.
    Name(String),
}

/// The result of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The request was executed.
    Done,
    /// How the lab is.
    Status(Status),
    /// These processes got the signal.
    Signalled(Vec<i32>),
}

/// Why a request was not executed.
#[derive(Clone, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The reason.
    pub message: String,
    /// Whether the request was wrong; otherwise the lab failed.
    pub misuse: bool,
}

/// A lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The name.
    pub name: String,
    /// The process that holds the lab.
    pub pid: u32,
    /// The connection of the hosts.
    pub layout: Layout,
    /// The directory of the lab's files.
    pub directory: PathBuf,
    /// The hosts.
    pub hosts: Vec<HostStatus>,
}

/// A host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostStatus {
    /// The name.
    pub name: String,
    /// Whether the power is on.
    pub on: bool,
    /// The network namespace, for `ip netns exec` and `nsenter --net=/run/netns/…`.
    pub namespace: String,
    /// `--run-dir` for the services of `outlive` on the host.
    pub run_directory: PathBuf,
    /// The links.
    pub links: Vec<LinkStatus>,
    /// The processes, with names.
    pub processes: BTreeMap<i32, String>,
}

/// A link of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The interface's name.
    pub interface: String,
    /// The IPv4 address; the prefix has 24 bits.
    pub ipv4: Ipv4Addr,
    /// The IPv6 address; the prefix has 64 bits.
    pub ipv6: Ipv6Addr,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    /// The faults of frames to the host.
    pub to_host: WayStatus,
    /// The faults of frames from the host.
    pub from_host: WayStatus,
}

/// A direction of a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WayStatus {
    /// All frames are dropped.
    pub cut: bool,
    /// The share of frames that are lost.
    pub loss_percent: f64,
    /// The seed of that, if there is any.
    pub seed: Option<u64>,
    /// How long each frame travels, in microseconds.
    pub delay_microseconds: u128,
    /// Bits per second, if limited.
    pub rate: Option<u64>,
}

impl fmt::Display for WayStatus {
    /// `loss 1 %, delay 20ms`, or an empty text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = Vec::new();
        if self.cut {
            said.push("cut".to_owned());
        }
        if self.loss_percent > 0.0 {
            let seed = self.seed.unwrap_or_default();
            said.push(format!("loss {} % (seed {seed})", self.loss_percent));
        }
        if let Ok(delay @ 1..) = u64::try_from(self.delay_microseconds) {
            said.push(format!("delay {:?}", Duration::from_micros(delay)));
        }
        if let Some(rate) = self.rate {
            said.push(format!("rate {}", bits(rate)));
        }
        f.write_str(&said.join(", "))
    }
}

/// `10Mbit` for 10,000,000.
fn bits(rate: u64) -> String {
    let units = [(1_000_000_000, "Gbit"), (1_000_000, "Mbit"), (1000, "kbit")];
    let unit = units
        .into_iter()
        .find(|(unit, _)| rate.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or((1, "bit"));
    format!("{}{name}", rate / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direction_is_printed() {
        assert_eq!(WayStatus::default().to_string(), "");
        let way = WayStatus {
            cut: true,
            loss_percent: 0.5,
            seed: Some(7),
            delay_microseconds: 20_500,
            rate: Some(1_500_000),
        };
        let said = "cut, loss 0.5 % (seed 7), delay 20.5ms, rate 1500kbit";
        assert_eq!(way.to_string(), said);
    }
}
