//! The commands and options of `outlive lab`.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use lab::{Signal, held::Target};

use crate::units;

/// The commands of `outlive lab`.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  outlive lab up
  outlive lab exec server -- outlive serve --address 10.0.0.1:80 -- nginx -g 'daemon off;' &
  outlive lab loss client 1
  outlive lab exec client -- curl -O http://10.0.0.1/large &
  outlive lab kill server nginx
  outlive lab down")]
pub(crate) enum Lab {
    /// Make a lab
    Up(Up),
    /// Run a command on a host, and end with the exit status of the command
    ///
    /// Exit status 125 means that outlive failed, 126 that the command cannot be run, and 127 that the command was not
    /// found.
    ///
    /// In the environment of the command, OUTLIVE_RUN_DIR is a directory of the host. So services of outlive on
    /// different hosts do not meet, and `outlive lab exec HOST -- outlive status` shows the services of the host.
    /// Processes that the command leaves in the background stay.
    Exec(Exec),
    /// Send a signal to processes of a host
    Kill(Kill),
    /// Cut the links of a host: no frame passes, and the interfaces of the host stay up
    Cut(Cut),
    /// Repair the links of a host: no cut, no loss, no delay, no rate
    ///
    /// The rate of a shared medium stays: this rate belongs to the medium, not to the link.
    Heal(Heal),
    /// Lose a share of the frames on the links of a host, each way
    Loss(Loss),
    /// Delay the frames on the links of a host, each way: a round trip has the delay twice
    Delay(Delay),
    /// Limit the rate of the links of a host, each way
    ///
    /// Frames are counted as on Ethernet: 38 bytes more than the IP packet has, and 84 bytes at least. Frames for up
    /// to 100 ms wait; further frames are dropped. The kernel keeps a rate alone, also at 1 Gbit/s. Together with loss
    /// or delay, some hundred Mbit/s are possible.
    Rate(Rate),
    /// Set the largest IP packet of the links of a host
    Mtu(Mtu),
    /// Power a host off: unsent data is lost, and all processes of the host are killed
    PowerOff(Power),
    /// Power a host on: the host starts without processes, with the links as before
    PowerOn(Power),
    /// Show a lab: hosts, addresses, faults of links, processes
    Status(Status),
    /// List the labs
    List(List),
    /// Remove a lab, with all processes in the lab
    Down(Down),
    /// The process that `outlive lab up` leaves in the background
    #[command(hide = true)]
    Hold(Up),
}

/// The directory of labs.
#[derive(Debug, Args)]
pub(crate) struct Labs {
    /// Directory of all labs (also: environment variable OUTLIVE_LAB_DIR)
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/outlive-lab",
        env = "OUTLIVE_LAB_DIR",
        hide_env = true
    )]
    pub(crate) lab_dir: PathBuf,
}

/// The lab of a command.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Name of the lab
    #[arg(long, default_value = "lab")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) labs: Labs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Layout {
    /// all hosts on one switch, each host with an own link
    OneSwitch,
    /// hosts called server… have a second link, eth1, to a second switch; only these hosts and the hosts called
    /// logger… are on the second switch
    Separate,
    /// all hosts on one medium, as on an Ethernet hub; the hosts share the rate of the medium
    Shared,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Names of the hosts; the first is 10.0.0.1 and fd00::1, the second 10.0.0.2, and so on
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "server,logger,client"
    )]
    pub(crate) hosts: Vec<String>,
    /// Network between the hosts; the second switch is 10.0.1.0/24 and fd00:0:0:1::/64
    #[arg(long, value_enum, default_value = "one-switch")]
    pub(crate) layout: Layout,
    /// Rate of each link, or of the whole shared medium, as in 10Mbit (bit, kbit, Mbit, Gbit a second) [default: no
    /// limit]
    #[arg(long, value_name = "BITS", value_parser = units::rate)]
    pub(crate) rate: Option<units::Rate>,
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// Name of the host
    pub(crate) host: String,
    #[command(flatten)]
    pub(crate) which: Which,
    /// Command to run, and arguments of the command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Kill {
    /// Name of the host
    pub(crate) host: String,
    /// Number of a process, or name of a program: every process of this name on the host
    #[arg(value_name = "PID|NAME", value_parser = target)]
    pub(crate) target: Target,
    /// Name or number (1 to 31) of a signal
    #[arg(long, short, default_value = "KILL", value_parser = signal)]
    pub(crate) signal: i32,
    /// Print JSON: the numbers of the processes that were signalled
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Way {
    /// frames that other hosts send to the host
    ToHost,
    /// frames that the host sends
    FromHost,
}

/// The links of a host.
#[derive(Debug, Args)]
pub(crate) struct Links {
    /// Name of the host
    pub(crate) host: String,
    /// Only the link of this interface [default: all links of the host]
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,
    #[command(flatten)]
    pub(crate) which: Which,
}

/// One direction or both.
#[derive(Debug, Args)]
pub(crate) struct OneWay {
    /// Only this direction [default: both]
    #[arg(long, value_enum, value_name = "DIRECTION")]
    pub(crate) one_way: Option<Way>,
}

#[derive(Debug, Args)]
pub(crate) struct Cut {
    #[command(flatten)]
    pub(crate) links: Links,
    #[command(flatten)]
    pub(crate) way: OneWay,
}

#[derive(Debug, Args)]
pub(crate) struct Heal {
    #[command(flatten)]
    pub(crate) links: Links,
}

#[derive(Debug, Args)]
pub(crate) struct Loss {
    #[command(flatten)]
    pub(crate) links: Links,
    /// Share of the frames that are lost, in percent (0 to 100); 0 ends the loss
    #[arg(value_parser = units::percent)]
    pub(crate) percent: f64,
    /// Seed of the loss: the same seed loses the same frames [default: a new seed; `outlive lab status` shows the seed]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) way: OneWay,
}

#[derive(Debug, Args)]
pub(crate) struct Delay {
    #[command(flatten)]
    pub(crate) links: Links,
    /// Delay of each frame, one way (us, ms, s); 0 ends the delay
    #[arg(value_parser = units::duration)]
    pub(crate) time: Duration,
    #[command(flatten)]
    pub(crate) way: OneWay,
}

#[derive(Debug, Args)]
pub(crate) struct Rate {
    #[command(flatten)]
    pub(crate) links: Links,
    /// Rate, as in 10Mbit (bit, kbit, Mbit, Gbit a second); none ends the limit
    #[arg(value_parser = units::rate)]
    pub(crate) bits: units::Rate,
    #[command(flatten)]
    pub(crate) way: OneWay,
}

#[derive(Debug, Args)]
pub(crate) struct Mtu {
    #[command(flatten)]
    pub(crate) links: Links,
    /// Largest IP packet, in bytes (68 to 65535); set the same size on both hosts
    pub(crate) bytes: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Power {
    /// Name of the host
    pub(crate) host: String,
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Print JSON, one lab per line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) labs: Labs,
}

#[derive(Debug, Args)]
pub(crate) struct Down {
    #[command(flatten)]
    pub(crate) which: Which,
}

fn target(text: &str) -> Result<Target, String> {
    Ok(match text.parse() {
        Ok(pid) => Target::Pid(pid),
        Err(_) if text.is_empty() => return Err("a name is not empty".to_owned()),
        Err(_) => Target::Name(text.to_owned()),
    })
}

/// Names of usual signals.
const SIGNALS: [(&str, Signal); 13] = [
    ("ABRT", Signal::ABORT),
    ("ALRM", Signal::ALARM),
    ("BUS", Signal::BUS),
    ("CONT", Signal::CONT),
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("KILL", Signal::KILL),
    ("QUIT", Signal::QUIT),
    ("SEGV", Signal::SEGV),
    ("STOP", Signal::STOP),
    ("TERM", Signal::TERM),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
];

fn signal(text: &str) -> Result<i32, String> {
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    if let Some((_, signal)) = SIGNALS.iter().find(|(known, _)| *known == name) {
        return Ok(signal.as_raw());
    }
    match text.parse() {
        Ok(number @ 1..=31) => Ok(number),
        _ => {
            let names = SIGNALS.map(|(name, _)| name).join(", ");
            Err(format!("{text:?} is no signal: use {names}, or 1 to 31"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["KILL", "kill", "SIGKILL", "9"] {
            assert_eq!(signal(text), Ok(9), "{text}");
        }
        assert_eq!(signal("TERM"), Ok(15));
        for text in ["", "0", "32", "SIGSIG", "-9"] {
            assert!(signal(text).is_err(), "{text}");
        }
    }
}
