//! Requests to a holder, and responses.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Layout;
use crate::Direction;

/// What is asked.
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
        /// Who gets it.
        target: Target,
        /// Its number.
        signal: i32,
    },
    /// Take the power from a host.
    PowerOff {
        /// The host's name.
        host: String,
    },
    /// Give it back.
    PowerOn {
        /// The host's name.
        host: String,
    },
    /// Remove the lab. Answered when it is gone.
    Down,
}

/// What happens to links.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Nothing passes any more.
    Cut,
    /// Nothing is wrong any more: no cut, loss, delay, rate.
    Heal,
    /// Lose this share of the frames, in percent; 0 ends it.
    Loss {
        /// 0 to 100.
        percent: f64,
        /// Whose luck; `None` for fresh randomness.
        seed: Option<u64>,
    },
    /// Each frame takes so much longer; 0 ends it.
    Delay(Duration),
    /// At most so many bits a second; `None` ends it.
    Rate(Option<u64>),
    /// The largest IP packet, in bytes.
    Mtu(u32),
}

/// Which processes of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The one of this number.
    Pid(i32),
    /// All of this name: the program's file name, as in `ps -e`.
    Name(String),
}

/// What was done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// All of it.
    Done,
    /// How the lab is.
    Status(Status),
    /// These processes got the signal.
    Signalled(Vec<i32>),
}

/// Why nothing was done.
#[derive(Clone, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What is wrong.
    pub message: String,
    /// Whether with what was asked, not with us.
    pub misuse: bool,
}

/// A lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// The process that holds it.
    pub pid: u32,
    /// How its hosts are connected.
    pub layout: Layout,
    /// Its files.
    pub directory: PathBuf,
    /// Its hosts.
    pub hosts: Vec<HostStatus>,
}

/// A host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostStatus {
    /// Its name.
    pub name: String,
    /// Whether the power is on.
    pub on: bool,
    /// Its network namespace, for `ip netns exec` and `nsenter --net=/run/netns/…`.
    pub namespace: String,
    /// `--run-dir` for the services of `outlive` on it.
    pub run_directory: PathBuf,
    /// Its links.
    pub links: Vec<LinkStatus>,
    /// Its processes and their names.
    pub processes: BTreeMap<i32, String>,
}

/// A link of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The interface's name.
    pub interface: String,
    /// Its address; the prefix has 24 bits.
    pub ipv4: Ipv4Addr,
    /// Its address; the prefix has 64 bits.
    pub ipv6: Ipv6Addr,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    /// What happens to what comes.
    pub to_host: WayStatus,
    /// What happens to what it sends.
    pub from_host: WayStatus,
}

/// One direction of a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WayStatus {
    /// Nothing passes.
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
    /// `loss 1 %, delay 20ms`, or nothing.
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
