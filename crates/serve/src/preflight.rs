//! What must be so before a service can be protected; `outlive check` prints it.

use std::{
    ffi::OsString,
    fs,
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixStream,
    path::Path,
};

use dataplane::MOST_ADDRESSES;
use serde::Serialize;
use supervise::{
    Cgroup, address_is_local, check_destroy_supported, listener_on, local_addresses, mounts,
    resolve,
};

use crate::{
    config::ServeConfig,
    error::{Fault, ServeError, SystemContext},
    instance::Instance,
    known_servers, leasing, link, own_addresses,
};

/// Result of one question.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub question: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What was found, and what to do if it is not.
    pub answer: String,
    /// Whose fault it is, if it is not, and whether time helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

impl Finding {
    fn of(question: &str, result: Result<String, ServeError>) -> Self {
        Self {
            question: question.to_owned(),
            ok: result.is_ok(),
            fault: result.as_ref().err().map(ServeError::fault),
            answer: result.unwrap_or_else(|error| error.to_string()),
        }
    }
}

/// Why `serve` would not begin: what time does not mend comes first.
#[must_use]
pub fn fault_of(findings: &[Finding]) -> Option<Fault> {
    let faults = findings.iter().filter_map(|finding| finding.fault);
    let passes = |fault: &Fault| matches!(fault, Fault::Missing | Fault::InTheWay);
    let mut faults = faults.peekable();
    let first = faults.peek().copied();
    faults.find(|fault| !passes(fault)).or(first)
}

/// What `serve` does takes these capabilities, by their numbers (capabilities(7)). The last one has some others in it.
const NEEDED: [(&str, u32); 5] = [
    ("NET_ADMIN", 12),
    ("NET_RAW", 13),
    ("PERFMON", 38),
    ("BPF", 39),
    ("SYS_ADMIN", SYS_ADMIN),
];
const SYS_ADMIN: u32 = 21;
/// Those that the kernel takes as given with `SYS_ADMIN`.
const OF_ADMIN: [&str; 2] = ["PERFMON", "BPF"];

/// May we? Whoever we are: root in a container has not all of root's capabilities.
///
/// # Errors
/// We may not.
pub fn privileges() -> Result<(), ServeError> {
    let doing = "read our own capabilities";
    let status = fs::read_to_string("/proc/thread-self/status").doing(doing)?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    let missing = missing(effective.unwrap_or(u64::MAX)); // a kernel that does not say it
    if missing.is_empty() {
        Ok(())
    } else {
        Err(ServeError::NoCapability(missing))
    }
}

fn missing(effective: u64) -> Vec<&'static str> {
    let has = |number: u32| effective & (1 << number) != 0;
    let lacks = |(name, number): &(&str, u32)| {
        let given = has(SYS_ADMIN) && OF_ADMIN.contains(name);
        !(given || has(*number))
    };
    let missing = NEEDED.into_iter().filter(lacks);
    missing.map(|(name, _)| name).collect()
}

/// Are there the file systems that pins and cgroups take, and can we use them? What is mounted and made for that in
/// `directory` is removed again.
///
/// # Errors
/// The first that is not.
pub(crate) fn file_systems(directory: &Path, name: &str) -> Result<(), ServeError> {
    drop(mounts::bpffs(directory)?);
    let cgroup2 = mounts::cgroup2(directory)?;
    let cgroup = Cgroup::create(&cgroup2, name)?;
    cgroup.remove()?;
    Ok(())
}

/// [`file_systems`], tried in a directory of its own.
fn file_systems_here() -> Result<(), ServeError> {
    let name = format!("outlive-check-{}", std::process::id());
    let directory = std::env::temp_dir().join(&name);
    fs::create_dir(&directory).doing("make a directory to try mounts in")?;
    let tried = file_systems(&directory, &name);
    for mounted in ["bpf", "cgroup2"] {
        let _ = fs::remove_dir(directory.join(mounted));
    }
    let _ = fs::remove_dir(&directory);
    tried
}

/// Can these addresses be protected here, and are they free?
///
/// # Errors
/// The first one that cannot, and why.
pub fn addresses(addresses: &[SocketAddr]) -> Result<(), ServeError> {
    addresses_on(addresses, None)
}

/// The same, of addresses that may be still to be brought up on this device.
pub(crate) fn addresses_on(
    addresses: &[SocketAddr],
    device: Option<&str>,
) -> Result<(), ServeError> {
    if let Some(device) = device {
        own_addresses::check(device)?;
    }
    if addresses.is_empty() {
        return Err(ServeError::NoAddress);
    }
    if addresses.len() > MOST_ADDRESSES {
        return Err(ServeError::TooManyAddresses {
            given: addresses.len(),
        });
    }
    for address in addresses {
        if address.ip().is_unspecified() {
            return Err(ServeError::Wildcard(*address));
        }
        let here = address_is_local(address.ip()).doing("list this host's addresses")?;
        if !here && device.is_none() {
            let present: Vec<String> = local_addresses()
                .doing("list this host's addresses")?
                .iter()
                .map(ToString::to_string)
                .collect();
            return Err(ServeError::NotLocal {
                address: *address,
                present: present.join(", "),
            });
        }
        if let Some(owner) = listener_on(*address).doing("list the listening sockets")? {
            return Err(ServeError::InUse {
                owner: owner.to_string(),
            });
        }
    }
    Ok(())
}

/// Can this command be run?
///
/// # Errors
/// There is no such program, or it cannot be executed.
pub fn command(command: &[OsString]) -> Result<(), ServeError> {
    let program = command.first().ok_or(supervise::SpawnError::Empty)?;
    resolve(program)?;
    Ok(())
}

/// Can what this command's server is told be recorded (`--north`)? As far as its file says.
///
/// # Errors
/// Why not.
pub fn recordable(command: &[OsString]) -> Result<(), ServeError> {
    let program = command.first().ok_or(supervise::SpawnError::Empty)?;
    wrap::program::check(&resolve(program)?)?;
    Ok(())
}

/// The same, and is nothing known of this server that forbids it?
fn rebuildable(command: &[OsString]) -> Result<(), ServeError> {
    recordable(command)?;
    let program = command.first().ok_or(supervise::SpawnError::Empty)?;
    match known_servers::obstacle(command, &resolve(program)?) {
        Some(why) => Err(ServeError::not_replayable(command, why)),
        None => Ok(()),
    }
}

/// Can this logger be used with the first key of this file? Tells how it answers.
///
/// # Errors
/// The key file is none, nobody answers there, by TCP or by UDP, or does not want us.
pub fn logger(at: SocketAddr, key_file: &Path) -> Result<String, ServeError> {
    link::check(at, key_file)
}

/// A name that can be a directory.
///
/// # Errors
/// It cannot.
pub fn name(name: &str) -> Result<(), ServeError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let begins_well = !name.starts_with(['.', '-']);
    if name.is_empty() || name.len() > 64 || !begins_well || !name.chars().all(fits) {
        return Err(ServeError::BadName(name.to_owned()));
    }
    Ok(())
}

/// Can several hosts serve these addresses by turns, at the word of the logger?
///
/// # Errors
/// Why not.
pub fn takeover(at: &[SocketAddr], device: &str, loggers: &[SocketAddr]) -> Result<(), ServeError> {
    if loggers.len() > 1 {
        return Err(ServeError::SeveralLoggers);
    }
    leasing::obstacle(at, device)?.map_or(Ok(()), Err)
}

/// What is to be looked at.
#[derive(Debug, Default, Clone, Copy)]
pub struct Asked<'a> {
    /// The addresses of the service.
    pub addresses: &'a [SocketAddr],
    /// The device on which they are to be brought up.
    pub device: Option<&'a str>,
    /// The server's command.
    pub command: &'a [OsString],
    /// The server has state.
    pub wrapped: bool,
    /// Loggers on other machines.
    pub loggers: &'a [SocketAddr],
    /// The keys that they know the service by.
    pub key_file: Option<&'a Path>,
}

/// Look at this host, and at what is named.
#[must_use]
pub fn report(asked: Asked<'_>) -> Vec<Finding> {
    let mut findings = host(asked.addresses);
    if !asked.addresses.is_empty() {
        findings.push(free(asked.addresses, asked.device));
    }
    findings.extend(beyond(asked));
    findings
}

/// Look at all that `serve` would look at with this configuration.
#[must_use]
pub fn report_of(config: &ServeConfig) -> Vec<Finding> {
    let link = config.link.as_ref();
    let asked = Asked {
        addresses: &config.addresses,
        device: config.address_device.as_deref(),
        command: &config.command,
        wrapped: config.wrapped,
        loggers: link.map_or(&[], |link| &link.loggers),
        key_file: link.map(|link| &*link.key_file),
    };
    let mut findings = host(&config.addresses);
    findings.push(finding("name", name(&config.name), "can be one"));
    findings.push(match presence(config) {
        Presence::Runs => {
            let name = config.name.clone();
            finding("service", Err(ServeError::AlreadyServed { name }), "")
        }
        Presence::Left => finding(
            "service",
            Ok(()),
            "it was left running: serve takes it over",
        ),
        Presence::None => free(asked.addresses, asked.device),
    });
    if let Some(checkpoints) = &config.checkpoints {
        let criu = checkpoint::Criu::find(&checkpoints.criu).map(drop);
        findings.push(finding("CRIU", criu.map_err(Into::into), "can be used"));
    }
    if let Some(address) = config.metrics {
        let bound = TcpListener::bind(address).map(drop);
        let bound = bound.map_err(|error| ServeError::Metrics { address, error });
        findings.push(finding("metrics", bound, "their port is free"));
    }
    findings.extend(beyond(asked));
    findings
}

/// What there is of a service already.
enum Presence {
    Runs,
    /// Its `serve` has died.
    Left,
    None,
}

fn presence(config: &ServeConfig) -> Presence {
    if UnixStream::connect(config.run_dir.socket(&config.name)).is_ok() {
        Presence::Runs
    } else if Instance::is_begun_in(&config.run_dir.service(&config.name)) {
        Presence::Left
    } else {
        Presence::None
    }
}

fn free(at: &[SocketAddr], device: Option<&str>) -> Finding {
    let good = match device {
        None => "on this host, and free",
        Some(_) => "free, here or to be brought up",
    };
    finding("addresses", addresses_on(at, device), good)
}

/// What is asked beyond host and addresses.
fn beyond(asked: Asked<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(device) = asked.device.filter(|_| !asked.loggers.is_empty()) {
        findings.push(finding(
            "another host can take over",
            takeover(asked.addresses, device, asked.loggers),
            "whichever the logger grants it to, at any time",
        ));
    }
    if !asked.command.is_empty() {
        let found = command(asked.command);
        findings.push(finding("command", found, "found and executable"));
    }
    if asked.wrapped && !asked.command.is_empty() {
        let good = "the library can be preloaded, and nothing else is known that forbids it: that other threads or processes that share memory serve clients is seen before the first one hears anything";
        findings.push(finding(
            "the server's state can be rebuilt",
            rebuildable(asked.command),
            good,
        ));
    }
    if let Some(key_file) = asked.key_file {
        let found = |at: &SocketAddr| Finding::of(&format!("logger {at}"), logger(*at, key_file));
        findings.extend(asked.loggers.iter().map(found));
    }
    findings
}

/// What is asked of the host. Without privileges the rest would blame what is not to blame.
fn host(at: &[SocketAddr]) -> Vec<Finding> {
    let privileges = finding("privileges", privileges(), "all that it takes");
    if !privileges.ok {
        return vec![privileges];
    }
    vec![
        privileges,
        finding(
            "kernel: programs load",
            dataplane::probe().map_err(Into::into),
            "all of them",
        ),
        finding(
            "kernel: sockets can be destroyed",
            check_destroy_supported().map_err(Into::into),
            "INET_DIAG_DESTROY",
        ),
        finding(
            "bpf and cgroup2 file systems",
            file_systems_here(),
            "there, or can be mounted, and cgroups can be made",
        ),
        finding(
            "settings of the network interfaces",
            dataplane::check_settings(at).map_err(Into::into),
            "as they must be, or can be changed",
        ),
    ]
}

fn finding(question: &str, result: Result<(), ServeError>, good: &str) -> Finding {
    Finding::of(question, result.map(|()| good.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_that_are_missing_are_named() {
        let all = (1 << 41) - 1;
        assert!(missing(all).is_empty());
        // What a container's root has by default (Docker).
        let container = 0xa804_25fb;
        assert_eq!(
            missing(container),
            ["NET_ADMIN", "PERFMON", "BPF", "SYS_ADMIN"]
        );
        let with = |numbers: &[u32]| numbers.iter().fold(container, |set, one| set | 1 << one);
        assert_eq!(missing(with(&[12, 38, 39])), ["SYS_ADMIN"]);
        assert!(missing(with(&[12, 21])).is_empty());
        assert_eq!(missing(0).len(), NEEDED.len());
    }
}
