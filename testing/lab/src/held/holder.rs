//! The process that keeps a lab.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::message::{
    Answer, Change, HostStatus, LinkStatus, Refusal, Request, Status, Target, WayStatus,
};
use super::{Layout, Place, Planned};
use crate::error::Doing;
use crate::lab::clean_run_directory;
use crate::{Direction, Error, Host, Impairment, Lab, Link};

/// A silent client must not keep the other clients waiting.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes a lab at a place that has been taken, calls `ready` when the lab is complete, and serves requests until the
/// request to remove the lab. `rate` is the rate of each link, or of the whole medium if shared. `outlive` cleans up
/// after services.
///
/// # Errors
/// A prerequisite of a lab is missing; all parts are removed then.
pub fn hold(
    place: &Place,
    hosts: &[Planned],
    layout: Layout,
    rate: Option<u64>,
    outlive: &Path,
    ready: impl FnOnce(),
) -> Result<(), Error> {
    let lab = Lab::new_in(place.directory(), place.name(), outlive)?;
    fs::write(place.prefix(), lab.prefix()).doing(|| "write the lab's prefix".to_owned())?;
    let holder = Holder {
        lab,
        place,
        layout,
        outlive,
    };
    holder.build(hosts, rate)?;
    let listener = UnixListener::bind(place.socket()).doing(|| "listen on a socket".to_owned())?;
    ready();
    for client in listener.incoming() {
        let client = client.doing(|| "accept on the lab's socket".to_owned())?;
        match read(&client) {
            Ok(Request::Down) => {
                let removed = holder.lab.remove();
                answer(client, removed.map(|()| Answer::Done));
                return Ok(());
            }
            Ok(request) => answer(client, holder.obey(request)),
            Err(error) => tracing::warn!(%error, "somebody asked nonsense"),
        }
    }
    Ok(())
}

struct Holder<'a> {
    lab: Lab,
    place: &'a Place,
    layout: Layout,
    outlive: &'a Path,
}

impl Holder<'_> {
    fn build(&self, hosts: &[Planned], rate: Option<u64>) -> Result<(), Error> {
        if let (Layout::Shared, Some(rate)) = (self.layout, rate) {
            self.lab.share(0, rate)?;
        }
        for planned in hosts {
            let Some((first, others)) = planned.addresses.split_first() else {
                continue;
            };
            let host = self.lab.add_host_in(&planned.name, *first)?;
            for (number, address) in (1..).zip(others) {
                self.lab
                    .add_link(&host, &format!("eth{number}"), *address)?;
            }
            if let (Layout::OneSwitch | Layout::Separate, Some(rate)) = (self.layout, rate) {
                for link in host.links() {
                    link.adjust(&Direction::BOTH, |links| links.rate(rate))?;
                }
            }
            self.make_run_directory(host.name())?;
        }
        Ok(())
    }

    fn obey(&self, request: Request) -> Result<Answer, Error> {
        match request {
            Request::Status => return Ok(Answer::Status(self.status())),
            Request::Links {
                host,
                interface,
                directions,
                change,
            } => {
                let host = self.host(&host)?;
                let links = match interface {
                    Some(interface) => vec![host.link(&interface)?],
                    None => host.links(),
                };
                for link in links {
                    apply(&link, &directions, &change)?;
                }
            }
            Request::Kill {
                host,
                target,
                signal,
            } => {
                let hit = signal_processes(&self.host(&host)?, &target, signal)?;
                return Ok(Answer::Signalled(hit));
            }
            Request::PowerOff { host } => {
                let host = self.host(&host)?;
                host.power_off()?;
                // A real host's /run does not survive either.
                let directory = self.run_directory(host.name());
                clean_run_directory(self.outlive, &directory)?;
                fs::remove_dir_all(&directory)
                    .doing(|| format!("remove {}", directory.display()))?;
            }
            Request::PowerOn { host } => {
                let host = self.host(&host)?;
                self.make_run_directory(host.name())?;
                host.power_on()?;
            }
            // The answer follows when the holder has removed the lab.
            Request::Down => {}
        }
        Ok(Answer::Done)
    }

    fn host(&self, name: &str) -> Result<Host, Error> {
        let hosts = self.lab.hosts();
        let found = hosts.iter().find(|host| host.name() == name);
        found.cloned().ok_or_else(|| {
            let names: Vec<_> = hosts.iter().map(Host::name).collect();
            let (lab, there) = (self.place.name(), names.join(", "));
            Error::Invalid(format!("lab {lab} has no host {name}: there are {there}"))
        })
    }

    fn run_directory(&self, host: &str) -> PathBuf {
        self.place.directory().join("hosts").join(host)
    }

    fn make_run_directory(&self, host: &str) -> Result<(), Error> {
        let directory = self.run_directory(host);
        fs::create_dir_all(&directory).doing(|| format!("make {}", directory.display()))
    }

    fn status(&self) -> Status {
        let hosts = self.lab.hosts();
        Status {
            name: self.place.name().to_owned(),
            pid: std::process::id(),
            layout: self.layout,
            directory: self.place.directory().to_owned(),
            hosts: hosts.iter().map(|host| self.host_status(host)).collect(),
        }
    }

    fn host_status(&self, host: &Host) -> HostStatus {
        HostStatus {
            name: host.name().to_owned(),
            on: host.is_on(),
            namespace: host.namespace().to_owned(),
            run_directory: self.run_directory(host.name()),
            links: host.links().iter().map(link_status).collect(),
            // A host that is off has none.
            processes: processes(host).unwrap_or_default(),
        }
    }
}

fn read(client: &UnixStream) -> io::Result<Request> {
    client.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(client).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// A client that does not wait for the answer does not need the answer.
fn answer(mut client: UnixStream, answer: Result<Answer, Error>) {
    let answer = answer.map_err(|error| Refusal {
        misuse: matches!(error, Error::Invalid(_) | Error::Off { .. }),
        message: error.to_string(),
    });
    let told = serde_json::to_string(&answer)
        .map_err(io::Error::from)
        .and_then(|text| client.write_all(format!("{text}\n").as_bytes()));
    if let Err(error) = told {
        tracing::debug!(%error, "an answer was not heard");
    }
}

fn apply(link: &Link, directions: &[Direction], change: &Change) -> Result<(), Error> {
    match change {
        Change::Cut => match directions {
            [direction] => link.cut_one_way(*direction),
            _ => link.cut(),
        },
        Change::Heal => {
            link.heal()?;
            link.clear_impairment()
        }
        Change::Loss { percent, seed } => {
            // Both directions draw from different streams of a seed.
            let seed = seed.unwrap_or_else(|| Impairment::new().seed());
            link.adjust(directions, |old| old.loss(*percent).seeded(seed))
        }
        Change::Delay(time) => link.adjust(directions, |old| old.delay(*time)),
        Change::Rate(Some(rate)) => link.adjust(directions, |old| old.rate(*rate)),
        Change::Rate(None) => link.adjust(directions, Impairment::unlimited),
        Change::Mtu(bytes) => link.set_mtu(*bytes),
    }
}

fn link_status(link: &Link) -> LinkStatus {
    let way = |direction| {
        let impairment = link.impairment(direction);
        let some = impairment.as_ref();
        let lossy = some.filter(|some| some.loss_percent() > 0.0);
        WayStatus {
            cut: link.is_cut(direction),
            loss_percent: some.map_or(0.0, Impairment::loss_percent),
            seed: lossy.map(Impairment::seed),
            delay_microseconds: some.map_or(0, |some| some.delay_time().as_micros()),
            rate: some.and_then(Impairment::rate_limit),
        }
    };
    LinkStatus {
        interface: link.interface().to_owned(),
        ipv4: link.address().ipv4(),
        ipv6: link.address().ipv6(),
        mtu: link.mtu(),
        to_host: way(Direction::ToHost),
        from_host: way(Direction::FromHost),
    }
}

/// The processes of a host with names.
fn processes(host: &Host) -> Result<BTreeMap<i32, String>, Error> {
    let pids = host.pids()?.into_iter();
    let named = pids.filter_map(|pid| Some((pid.as_raw_nonzero().get(), process_name(pid)?)));
    Ok(named.collect())
}

/// The name as in `ps -e`, if the process lives.
fn process_name(pid: Pid) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// Sends a signal to the target processes, and returns the process numbers.
fn signal_processes(host: &Host, target: &Target, number: i32) -> Result<Vec<i32>, Error> {
    let signal = Signal::from_named_raw(number)
        .ok_or_else(|| Error::Invalid(format!("there is no signal {number}")))?;
    let wanted = |pid: i32, name: &str| match target {
        Target::Pid(wanted) => *wanted == pid,
        // The kernel keeps 15 bytes of a name.
        Target::Name(wanted) => wanted.as_bytes().iter().take(15).eq(name.as_bytes()),
    };
    let there = processes(host)?;
    let mut hit = Vec::new();
    for (number, name) in &there {
        let Some(pid) = Pid::from_raw(*number).filter(|_| wanted(*number, name)) else {
            continue;
        };
        let sent = pidfd_open(pid, PidfdFlags::empty()).and_then(|pidfd| {
            // Asked after the descriptor is there: the number may have been given away anew.
            match process_name(pid) {
                Some(now) if now == *name => pidfd_send_signal(pidfd, signal),
                _ => Err(rustix::io::Errno::SRCH),
            }
        });
        match sent {
            Ok(()) => hit.push(*number),
            // The process has just ended.
            Err(rustix::io::Errno::SRCH) => {}
            Err(error) => {
                return Err(error).doing(|| format!("send a signal to process {number}"));
            }
        }
    }
    if hit.is_empty() {
        let which = match target {
            Target::Pid(pid) => format!("process {pid}"),
            Target::Name(name) => format!("process called {name}"),
        };
        let there: Vec<_> = there
            .iter()
            .map(|(pid, name)| format!("{pid} {name}"))
            .collect();
        let there = if there.is_empty() {
            "none runs".to_owned()
        } else {
            format!("there are {}", there.join(", "))
        };
        return Err(Error::Invalid(format!(
            "host {} has no {which}: {there}",
            host.name()
        )));
    }
    Ok(hit)
}
