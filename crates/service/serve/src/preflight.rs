//! The conditions for the protection of a service. `serve` and `outlive check` ask the same questions.

use std::{
    ffi::OsString,
    fs,
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixStream,
    path::Path,
};

use dataplane::{MOST_ADDRESSES, PinDirectory};
use serde::Serialize;
use supervise::{
    Cgroup, address_is_local, check_destroy_supported, listener_on, local_addresses, mounts,
    resolve,
};

use crate::{
    config::ServeConfig,
    error::{Fault, ServeError, SystemContext},
    events::JSON_VERSION,
    instance::Instance,
    known_servers, link, options, standby_eligibility,
};

/// The answer to a question.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// The subject of the question.
    pub question: String,
    /// Does the condition hold?
    pub ok: bool,
    /// The finding; of a condition that does not hold, also the remedy.
    pub answer: String,
    /// The condition does not hold, and `serve` begins nevertheless, with a warning.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub warning: bool,
    /// For a condition without which `serve` does not begin: the party at fault, and whether waiting helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// For a condition that does not hold: the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// The version of the schema.
    pub version: u32,
}

impl Finding {
    fn of(question: &str, result: Result<String, ServeError>) -> Self {
        Self {
            question: question.to_owned(),
            ok: result.is_ok(),
            fault: result.as_ref().err().map(ServeError::fault),
            code: result.as_ref().err().map(ServeError::code),
            warning: false,
            version: JSON_VERSION,
            answer: result.unwrap_or_else(|error| error.to_string()),
        }
    }

    /// The same of a condition that `serve` can do without.
    fn into_warning(self) -> Self {
        Self {
            warning: !self.ok,
            fault: None,
            ..self
        }
    }
}

/// The reason for which `serve` would not begin. A fault that time does not mend comes first.
#[must_use]
pub fn fault_of(findings: &[Finding]) -> Option<Fault> {
    let faults = findings.iter().filter_map(|finding| finding.fault);
    let passes = |fault: &Fault| matches!(fault, Fault::Missing | Fault::InTheWay);
    let mut faults = faults.peekable();
    let first = faults.peek().copied();
    faults.find(|fault| !passes(fault)).or(first)
}

/// The capabilities that `serve` needs, by number (capabilities(7)). The last capability includes some others.
const REQUIRED_CAPABILITIES: [(&str, u32); 5] = [
    ("NET_ADMIN", 12),
    ("NET_RAW", 13),
    ("PERFMON", 38),
    ("BPF", 39),
    ("SYS_ADMIN", SYS_ADMIN),
];
const SYS_ADMIN: u32 = 21;
/// The capabilities that `SYS_ADMIN` includes.
const INCLUDED_IN_SYS_ADMIN: [&str; 2] = ["PERFMON", "BPF"];

/// Does this process have all capabilities? Root in a container lacks some.
///
/// # Errors
/// A capability is missing.
pub fn privileges() -> Result<(), ServeError> {
    let doing = "read our own capabilities";
    let status = fs::read_to_string("/proc/thread-self/status").doing(doing)?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    let missing = missing(effective.unwrap_or(u64::MAX)); // the kernel does not say
    if missing.is_empty() {
        Ok(())
    } else {
        Err(ServeError::NoCapability(missing))
    }
}

fn missing(effective: u64) -> Vec<&'static str> {
    let has = |number: u32| effective & (1 << number) != 0;
    let lacks = |(name, number): &(&str, u32)| {
        let given = has(SYS_ADMIN) && INCLUDED_IN_SYS_ADMIN.contains(name);
        !(given || has(*number))
    };
    let missing = REQUIRED_CAPABILITIES.into_iter().filter(lacks);
    missing.map(|(name, _)| name).collect()
}

/// Are the file systems for pins and cgroups usable? The mounts and the cgroup of the trial are removed again
/// from `directory`.
///
/// # Errors
/// The first file system that is missing or unusable.
pub(crate) fn file_systems(directory: &Path, name: &str) -> Result<(), ServeError> {
    drop(mounts::bpffs(directory)?);
    let cgroup2 = mounts::cgroup2(directory)?;
    let cgroup = Cgroup::create(&cgroup2, name)?;
    cgroup.remove()?;
    Ok(())
}

/// [`file_systems`], in a directory for the trial.
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

/// Can these addresses be protected here, and are the ports free? With a device, an address may be absent still.
fn addresses_on(addresses: &[SocketAddr], device: Option<&str>) -> Result<(), ServeError> {
    if let Some(device) = device {
        service_addresses::check(device)?;
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

/// Does another service of this host claim an address of this service, with a server that may still have to listen?
///
/// # Errors
/// Another service does.
pub(crate) fn foreign_addresses(config: &ServeConfig) -> Result<(), ServeError> {
    let run_dir = &config.run_dir;
    let services = run_dir.services();
    for name in services.into_iter().filter(|name| *name != config.name) {
        let holder = run_dir.holder(&name);
        let Some(holder) = holder.filter(|one| one.is_of_our_network()) else {
            continue;
        };
        let its = options::addresses(&run_dir.service(&name));
        if let Some(address) = its.iter().find(|one| config.addresses.contains(one)) {
            return Err(ServeError::AddressServed {
                address: *address,
                service: name,
                pid: holder.pid.map_or(0, |pid| pid.as_raw_pid().unsigned_abs()),
            });
        }
    }
    Ok(())
}

/// Can this command be run?
fn command(command: &[OsString]) -> Result<(), ServeError> {
    let program = command.first().ok_or(supervise::SpawnError::Empty)?;
    resolve(program)?;
    Ok(())
}

/// Can the server of this command be rebuilt from a record of the server's input (`--stateful`)? The program's file and
/// the list of known servers decide.
fn rebuildable(command: &[OsString]) -> Result<(), ServeError> {
    let program = resolve(command.first().ok_or(supervise::SpawnError::Empty)?)?;
    north_host::program::check(&program)?;
    match known_servers::obstacle(command, &program) {
        Some(why) => Err(ServeError::not_replayable(command, why)),
        None => Ok(()),
    }
}

/// Is this logger usable with the first key of this file? Returns a description of the answers.
fn logger(at: SocketAddr, key_file: &Path) -> Result<String, ServeError> {
    link::check(at, key_file)
}

/// Can the name be the name of a directory?
///
/// # Errors
/// The name is unfit.
pub(crate) fn name(name: &str) -> Result<(), ServeError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let begins_well = !name.starts_with(['.', '-']);
    if name.is_empty() || name.len() > 64 || !begins_well || !name.chars().all(fits) {
        return Err(ServeError::BadName(name.to_owned()));
    }
    Ok(())
}

/// Can several hosts serve the addresses by turns, at the word of the logger?
fn takeover(config: &ServeConfig) -> Result<(), ServeError> {
    standby_eligibility::why_alone(config)?.map_or(Ok(()), Err)
}

/// A question before the setup.
struct Question<'a> {
    name: &'static str,
    /// The answer where the condition holds.
    good: &'static str,
    /// Without capabilities the answer would name a wrong cause.
    privileged: bool,
    ask: Box<dyn Fn() -> Result<(), ServeError> + 'a>,
}

impl<'a> Question<'a> {
    fn new(
        name: &'static str,
        good: &'static str,
        ask: impl Fn() -> Result<(), ServeError> + 'a,
    ) -> Self {
        let ask = Box::new(ask);
        Self {
            name,
            good,
            privileged: false,
            ask,
        }
    }

    fn privileged(self) -> Self {
        Self {
            privileged: true,
            ..self
        }
    }

    /// `otherwise`: a server that cannot be rebuilt is served without a record, and the answer tells this.
    fn answered(&self, otherwise: bool) -> Finding {
        match (self.ask)() {
            Err(error) if otherwise && error.is_of_the_north() => {
                Finding::of(self.name, Ok(error.and_without()))
            }
            answer => finding(self.name, answer, self.good),
        }
    }
}

/// The first questions of `serve`, in order, also about a service that an earlier `serve` has left.
fn first(config: &ServeConfig) -> Vec<Question<'_>> {
    let mut questions = vec![Question::new("privileges", "all that it takes", privileges)];
    if !config.addresses.is_empty() {
        questions.push(Question::new("name", "can be one", || name(&config.name)));
    }
    if !config.command.is_empty() {
        let asked = || command(&config.command);
        questions.push(Question::new("command", "found and executable", asked));
    }
    if config.wrapped && !config.command.is_empty() {
        let good = "the library can be preloaded, and nothing else is known that forbids it: that other threads or processes that share memory serve clients is seen before the first one hears anything";
        let asked = || rebuildable(&config.command);
        questions.push(Question::new(
            "the server's state can be rebuilt",
            good,
            asked,
        ));
    }
    if let Some(checkpoints) = &config.checkpoints {
        let asked = || Ok(checkpoint::Criu::find(&checkpoints.criu).map(drop)?);
        questions.push(Question::new("CRIU", "can be used", asked));
    }
    let destroyed = || Ok(check_destroy_supported()?);
    let destroyed = Question::new(
        "kernel: sockets can be destroyed",
        "INET_DIAG_DESTROY",
        destroyed,
    );
    questions.push(destroyed.privileged());
    questions
}

/// Preflight questions about a service without remains.
fn anew(config: &ServeConfig) -> Vec<Question<'_>> {
    let device = config.address_device.as_deref();
    let good = match device {
        None => "on this host, and free",
        Some(_) => "free, here or to be brought up",
    };
    let mut questions = Vec::new();
    if !config.addresses.is_empty() {
        let asked = move || {
            foreign_addresses(config)?;
            addresses_on(&config.addresses, device)
        };
        questions.push(Question::new("addresses", good, asked));
    }
    let asked = || Ok(dataplane::check_settings(&config.addresses)?);
    let settings = Question::new(
        "settings of the network interfaces",
        "as they must be, or can be changed",
        asked,
    );
    questions.push(settings.privileged());
    questions
}

fn pass(questions: &[Question<'_>]) -> Result<(), ServeError> {
    questions.iter().try_for_each(|question| (question.ask)())
}

/// May `serve` begin at all?
///
/// # Errors
/// The first reason against a start.
pub(crate) fn pass_first(config: &ServeConfig) -> Result<(), ServeError> {
    pass(&first(config))
}

/// May `serve` begin a new service?
///
/// # Errors
/// The first reason against a start.
pub(crate) fn pass_anew(config: &ServeConfig) -> Result<(), ServeError> {
    pass(&anew(config))
}

/// Are the pins of the service of another version?
pub(crate) fn layout(bpffs: &Path, config: &ServeConfig) -> Result<(), ServeError> {
    let host_name = config.run_dir.host_name(&config.name);
    match PinDirectory::other_layouts(bpffs, &host_name)[..] {
        [layout, ..] => Err(ServeError::OtherLayout {
            name: config.name.clone(),
            layout,
        }),
        [] => Ok(()),
    }
}

/// Does another host answer for an address that this host is to bring up?
///
/// # Errors
/// Another host answers.
pub(crate) fn neighbours(config: &ServeConfig) -> Result<(), ServeError> {
    match &config.address_device {
        Some(device) if !config.standby && !config.take_address => {
            Ok(service_addresses::refuse_in_use(device, &config.addresses)?)
        }
        _ => Ok(()),
    }
}

/// Asks all questions of `serve` with this configuration. Questions about missing addresses, or a missing command, are
/// left out.
#[must_use]
pub fn report(config: &ServeConfig) -> Vec<Finding> {
    let may = privileges().is_ok();
    let answers = |questions: Vec<Question<'_>>| -> Vec<Finding> {
        let asked = questions.iter().filter(|one| may || !one.privileged);
        let answered = asked.map(|one| one.answered(config.otherwise.is_some()));
        answered.collect()
    };
    let mut findings = answers(first(config));
    if may {
        findings.extend(by_trying());
    }
    match presence(config) {
        Presence::Runs => {
            let name = config.name.clone();
            let runs = Err(ServeError::AlreadyServed { name });
            findings.push(finding("service", runs, ""));
        }
        Presence::Left if may => {
            let good = "it was left running: serve takes it over";
            findings.push(finding("service", leftovers(config), good));
        }
        Presence::Left => {}
        Presence::None => {
            findings.extend(answers(anew(config)));
            findings.extend(among_hosts(config, may));
        }
    }
    if let Some(address) = config.metrics {
        let bound = TcpListener::bind(address).map(drop);
        let bound = bound.map_err(|error| ServeError::Metrics { address, error });
        findings.push(finding("metrics", bound, "their port is free"));
    }
    if let Some(link) = &config.link {
        let found =
            |at: &SocketAddr| Finding::of(&format!("logger {at}"), logger(*at, &link.key_file));
        findings.extend(link.loggers.iter().map(found));
    }
    findings
}

/// Can `serve` take over the running service? The mount of the service stays.
fn leftovers(config: &ServeConfig) -> Result<(), ServeError> {
    let directory = config.run_dir.service(&config.name);
    let bpffs = mounts::bpffs(&directory)?;
    let layout = layout(bpffs.path(), config);
    bpffs.leave();
    layout?;
    match (options::check(&directory, config), &config.otherwise) {
        (Err(error), Some(otherwise)) if error.is_without_record() => {
            options::check(&directory, otherwise)
        }
        (taken, _) => taken,
    }
}

/// The questions that a trial answers: `serve` calls the same functions.
fn by_trying() -> [Finding; 2] {
    [
        finding(
            "kernel: programs load",
            dataplane::probe().map_err(Into::into),
            "all of them",
        ),
        finding(
            "bpf and cgroup2 file systems",
            file_systems_here(),
            "there, or can be mounted, and cgroups can be made",
        ),
    ]
}

/// Other hosts that have the addresses, or may get the addresses.
fn among_hosts(config: &ServeConfig, may: bool) -> Vec<Finding> {
    let Some(device) = config.address_device.as_deref() else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    // The question about addresses names a missing device.
    if may && service_addresses::check(device).is_ok() {
        let good = "no other host answers for the addresses";
        findings.push(finding("neighbours", neighbours(config), good));
    }
    if config.link.is_some() {
        let answer = finding(
            "another host can take over",
            takeover(config),
            "whichever the logger grants it to, at any time",
        );
        findings.push(match config.standby {
            true => answer,
            false => answer.into_warning(),
        });
    }
    findings
}

/// The state of the service before the start.
enum Presence {
    Runs,
    /// The `serve` of the service has died.
    Left,
    None,
}

fn presence(config: &ServeConfig) -> Presence {
    if config.addresses.is_empty() {
        Presence::None
    } else if UnixStream::connect(config.run_dir.socket(&config.name)).is_ok()
        || config.run_dir.holder(&config.name).is_some()
    {
        // Without the socket: the `serve` is about to begin, or about to end.
        Presence::Runs
    } else if Instance::is_begun_in(&config.run_dir.service(&config.name)) {
        Presence::Left
    } else {
        Presence::None
    }
}

fn finding(question: &str, result: Result<(), ServeError>, good: &str) -> Finding {
    Finding::of(question, result.map(|()| good.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        let all = (1 << 41) - 1;
        assert!(missing(all).is_empty());
        // The default for root in a container (Docker).
        let container = 0xa804_25fb;
        assert_eq!(
            missing(container),
            ["NET_ADMIN", "PERFMON", "BPF", "SYS_ADMIN"]
        );
        let with = |numbers: &[u32]| numbers.iter().fold(container, |set, one| set | 1 << one);
        assert_eq!(missing(with(&[12, 38, 39])), ["SYS_ADMIN"]);
        assert!(missing(with(&[12, 21])).is_empty());
        assert_eq!(missing(0).len(), REQUIRED_CAPABILITIES.len());
    }
}
