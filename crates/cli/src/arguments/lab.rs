//! What can be asked of `outlive lab`.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use lab::{Signal, held::Target};

use crate::units;

/// What can be done to a lab.
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
    /// Run a command on a host and pass its exit status on; 125 says that outlive failed
    ///
    /// In the command's environment, OUTLIVE_RUN_DIR is a directory of the host, so that services
    /// of outlive on different hosts do not meet, and `outlive lab exec HOST -- outlive status`
    /// shows those of the host. What the command leaves in the background stays.
    Exec(Exec),
    /// Send a signal to processes of a host
    Kill(Kill),
    /// Cut a host's links: nothing passes, and its interfaces do not notice
    Cut(Cut),
    /// Make a host's links whole again: no cut, loss, delay or rate
    ///
    /// The rate of a shared medium stays: it is not the link's.
    Heal(Heal),
    /// Lose a share of the frames on a host's links, each way
    Loss(Loss),
    /// Delay the frames on a host's links, each way: a round trip takes twice as long
    Delay(Delay),
    /// Limit what passes a host's links, each way
    ///
    /// Frames are counted as on Ethernet: 38 bytes more than the IP packet has, 84 at least. Up to
    /// 100 ms' worth of frames wait, what comes on top is dropped. A rate alone is kept by the
    /// kernel, also at 1 Gbit/s; together with loss or delay, some hundred Mbit/s are
    /// possible.
    Rate(Rate),
    /// Set the largest IP packet of a host's links
    Mtu(Mtu),
    /// Take the power from a host: what it had to say is lost, its processes are killed
    PowerOff(Power),
    /// Give it back: the host starts empty, with its links as they were
    PowerOn(Power),
    /// Show a lab: hosts, addresses, what is wrong with their links, processes
    Status(Status),
    /// Show which labs there are
    List(List),
    /// Remove a lab, with all that runs in it
    Down(Down),
    /// The process that `up` leaves in the background
    #[command(hide = true)]
    Hold(Up),
}

/// Where labs are found.
#[derive(Debug, Args)]
pub(crate) struct Labs {
    /// Directory of all labs
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/outlive-lab",
        env = "OUTLIVE_LAB_DIR",
        hide_env = true
    )]
    pub(crate) lab_dir: PathBuf,
}

/// Which lab.
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
    /// all on one switch, each with a link of its own
    OneSwitch,
    /// hosts called server… have a second link, eth1, to a switch for them and the hosts called
    /// logger… alone
    Separate,
    /// all on one medium, as on an Ethernet hub: they share its rate
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
    /// How they are connected; the second switch is 10.0.1.0/24 and fd00:0:0:1::/64
    #[arg(long, value_enum, default_value = "one-switch")]
    pub(crate) layout: Layout,
    /// Rate of each link, or of the whole medium if it is shared (kbit, Mbit, Gbit a second)
    #[arg(long, value_name = "BITS", value_parser = units::rate)]
    pub(crate) rate: Option<units::Rate>,
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// The host
    pub(crate) host: String,
    #[command(flatten)]
    pub(crate) which: Which,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Kill {
    /// The host
    pub(crate) host: String,
    /// A process's number, or a program's name: all of that name on the host
    #[arg(value_name = "PID|NAME", value_parser = target)]
    pub(crate) target: Target,
    /// A signal's name or number
    #[arg(long, short, default_value = "KILL", value_parser = signal)]
    pub(crate) signal: i32,
    /// Print JSON: the processes that got it
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Way {
    /// what the others send to the host
    ToHost,
    /// what the host sends
    FromHost,
}

/// Which links of which host.
#[derive(Debug, Args)]
pub(crate) struct Links {
    /// The host
    pub(crate) host: String,
    /// Only this interface [default: all of the host]
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
    /// Share of the frames that are lost, in percent (0 to 100); 0 ends it
    #[arg(value_parser = units::percent)]
    pub(crate) percent: f64,
    /// Makes the same frames be lost each time [default: another each time; status shows it]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) way: OneWay,
}

#[derive(Debug, Args)]
pub(crate) struct Delay {
    #[command(flatten)]
    pub(crate) links: Links,
    /// How long each frame travels, one way (us, ms, s); 0 ends it
    #[arg(value_parser = units::duration)]
    pub(crate) time: Duration,
    #[command(flatten)]
    pub(crate) way: OneWay,
}

#[derive(Debug, Args)]
pub(crate) struct Rate {
    #[command(flatten)]
    pub(crate) links: Links,
    /// Bits a second (bit, kbit, Mbit, Gbit), as in 10Mbit; none ends it
    #[arg(value_parser = units::rate)]
    pub(crate) bits: units::Rate,
    #[command(flatten)]
    pub(crate) way: OneWay,
}

#[derive(Debug, Args)]
pub(crate) struct Mtu {
    #[command(flatten)]
    pub(crate) links: Links,
    /// Largest IP packet in bytes (68 to 65535); set it on both hosts
    pub(crate) bytes: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Power {
    /// The host
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
    /// Print JSON, one lab a line
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

/// Signals that people send, by their names.
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
