//! `outlive status`, `switchover`, `events`, `history`, `check`, `clean` and `key`.

use std::{
    fs,
    io::{self, Write},
    path::Path,
    time::{Duration, Instant, UNIX_EPOCH},
};

use recovery::Count;
use serde::de::DeserializeOwned;
use serve::{
    JSON_VERSION, Priority, RunDir, Status as ServiceStatus,
    control::{Question, REPLY_TIMEOUT, Restarted, Switchover, ask},
    event_log, preflight,
};

use crate::{
    arguments::{Check, Clean, Events, Key, OfService, ShowHistory, Status},
    balance_command,
    exit::{Outcome, failed},
    objects_command, serve_command, stdout, units,
};

/// Prints a line; returns false when the reader of the output is gone.
pub(crate) fn line(text: &str) -> bool {
    writeln!(io::stdout(), "{text}").is_ok()
}

pub(crate) fn json(value: &impl serde::Serialize) -> bool {
    serde_json::to_string(value).is_ok_and(|text| line(&text))
}

/// A directory without permission is not an empty directory: the user gets an error.
fn may_list(directory: &Path) -> Result<(), Outcome> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let directory = directory.display();
            stdout::fail(
                "not_permitted",
                &format_args!("only root may list the services in {directory} ({error})"),
            );
            Err(Outcome::NoPermission)
        }
        _ => Ok(()),
    }
}

/// Names of the programs that run on this host, or have left something, by kind.
struct Programs {
    services: Vec<String>,
    pools: Vec<String>,
    members: Vec<String>,
}

impl Programs {
    /// All programs, or those with this name.
    fn named(directory: &Path, name: Option<&str>) -> Self {
        let matching = |mut names: Vec<String>| {
            names.retain(|one| name.is_none_or(|name| name == one));
            names
        };
        Self {
            services: matching(RunDir::new(directory.to_owned()).services()),
            pools: matching(balance::leftovers(directory)),
            members: matching(member::leftovers(directory)),
        }
    }

    fn is_empty(&self) -> bool {
        self.services.is_empty() && self.pools.is_empty() && self.members.is_empty()
    }

    fn all(&self) -> Vec<&str> {
        let all = [&self.services, &self.pools, &self.members];
        all.into_iter().flatten().map(String::as_str).collect()
    }
}

pub(crate) fn status(arguments: &Status) -> Outcome {
    let directory = &arguments.run.run_dir;
    if let Err(outcome) = may_list(directory) {
        return outcome;
    }
    let run_dir = RunDir::new(directory.clone());
    let mut programs = Programs::named(directory, arguments.service.as_deref());
    match &arguments.service {
        // The message is about services.
        Some(name) if programs.is_empty() => programs.services.push(name.clone()),
        None if programs.is_empty() && !arguments.json => {
            line(&format!(
                "no service, balancer or member runs here (looked in {run_dir}); a logger tells of itself in its events \
                 and by --metrics"
            ));
        }
        Some(_) | None => {}
    }
    let services = programs.services.iter();
    let services = services.map(|name| status_of_service(&run_dir, name, arguments));
    let pools = programs.pools.iter();
    let pools = pools.map(|name| balance_command::show(directory, name, arguments.json));
    let members = programs.members.iter();
    let members = members.map(|name| objects_command::status(arguments, name));
    let outcomes = services.chain(pools).chain(members);
    // All programs are shown; the last failure is the outcome.
    outcomes.fold(Outcome::Done, |failure, outcome| match outcome {
        Outcome::Done => failure,
        failure => failure,
    })
}

fn status_of_service(run_dir: &RunDir, name: &str, arguments: &Status) -> Outcome {
    let mut answer = None;
    let question = Question::Status {
        list: arguments.connections,
    };
    let asked = ask(&run_dir.socket(name), question, |text| {
        answer = serde_json::from_str::<Option<ServiceStatus>>(text)
            .ok()
            .flatten();
        false
    });
    match (asked, answer) {
        (Ok(()), Some(status)) if arguments.json => json(&status),
        (Ok(()), Some(status)) => line(&status.to_string()),
        (Err(error), _) => return not_served(run_dir, name, &error),
        (Ok(()), None) => {
            stdout::fail(
                "no_status",
                &format_args!("the serve of {name} has no status; see the messages of that serve"),
            );
            return Outcome::Internal;
        }
    };
    Outcome::Done
}

fn not_served(run_dir: &RunDir, name: &str, error: &io::Error) -> Outcome {
    let known = run_dir.services().iter().any(|known| known == name);
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            stdout::fail(
                "not_permitted",
                &format_args!("only root may ask the serve of {name} ({error})"),
            );
            Outcome::NoPermission
        }
        io::ErrorKind::WouldBlock => {
            stdout::fail(
                "no_serve",
                &format_args!(
                    "the serve of {name} runs and has not answered for {} s: it has been stopped, or hangs, and nothing is \
                 protected meanwhile; let it go on (SIGCONT), or kill it, and start the same `outlive serve`, which takes over",
                    REPLY_TIMEOUT.as_secs()
                ),
            );
            Outcome::Failed
        }
        _ if !known => {
            stdout::fail(
                "no_service",
                &format_args!("no service is called {name}: {}", self::known(run_dir)),
            );
            Outcome::Usage
        }
        _ if run_dir.holder(name).is_some() => {
            stdout::fail(
                "no_serve_yet",
                &format_args!("the outlive serve of {name} starts, or ends: ask again in a moment"),
            );
            Outcome::NotNow
        }
        _ => {
            stdout::fail(
                "no_serve",
                &format_args!(
                    "no outlive serve answers for {name} ({error}); if it was killed, its server may go on, \
                 unprotected: the same `outlive serve` takes it over; or stop that server, and run \
                 `outlive clean --run-dir {run_dir} {name}`"
                ),
            );
            Outcome::Failed
        }
    }
}

/// The named service, or the only service. Otherwise an error lists the services.
fn named(service: Option<&str>, directory: &Path) -> Result<String, Outcome> {
    may_list(directory)?;
    let run_dir = RunDir::new(directory.to_owned());
    let name = service
        .map(str::to_owned)
        .or_else(|| only(run_dir.services()));
    name.ok_or_else(|| {
        stdout::fail("which_service", &which(&run_dir));
        Outcome::Usage
    })
}

pub(crate) fn events(arguments: &Events) -> Outcome {
    let directory = &arguments.run.run_dir;
    if let Err(outcome) = may_list(directory) {
        return outcome;
    }
    let each = |text: &str| {
        if arguments.json {
            return line(text);
        }
        line(&in_words(text).unwrap_or_else(|| text.to_owned()))
    };
    let programs = Programs::named(directory, arguments.service.as_deref());
    match (
        &programs.services[..],
        &programs.pools[..],
        &programs.members[..],
    ) {
        ([], [pool], []) => return balance_command::events(arguments, pool, each),
        ([], [], [member]) => return objects_command::events(arguments, member, each),
        ([_], [], []) | ([], [], []) => {}
        _ => {
            let names = programs.all().join(", ");
            stdout::fail(
                "which_service",
                &format_args!("which program? There are {names}"),
            );
            return Outcome::Usage;
        }
    }
    let run_dir = RunDir::new(directory.clone());
    let name = match named(arguments.service.as_deref(), directory) {
        Ok(name) => name,
        Err(outcome) => return outcome,
    };
    let question = Question::Events {
        follow: arguments.follow,
    };
    match ask(&run_dir.socket(&name), question, each) {
        Ok(()) => Outcome::Done,
        Err(error) => not_served(&run_dir, &name, &error),
    }
}

pub(crate) fn history(arguments: &ShowHistory) -> Outcome {
    let directory = arguments.history.or_usual();
    if let Err(outcome) = may_list(&directory) {
        return outcome;
    }
    let known = event_log::services(&directory);
    let place = directory.display();
    let Some(name) = arguments.service.clone().or_else(|| only(known.clone())) else {
        let there = match known.is_empty() {
            true => {
                format!(
                    "there is no history in {place}: no `outlive serve` has written one there (with another --run-dir, so \
                     in a lab, `outlive serve` writes one only where --history says)"
                )
            }
            false => format!("which service? There are {}", known.join(", ")),
        };
        stdout::fail("which_service", &there);
        return Outcome::Usage;
    };
    let since = arguments.since.map_or(0, units::Since::unix_us);
    let read = event_log::read(&directory, &name, |text| {
        let report = serde_json::from_str::<serde_json::Value>(text).ok();
        let time = report.and_then(|report| report["time_unix_us"].as_u64());
        if time.is_some_and(|time| time < since) {
            return true;
        }
        let words = (!arguments.json).then(|| in_words(text)).flatten();
        line(&words.unwrap_or_else(|| text.to_owned()))
    });
    match read {
        Ok(0) => Outcome::Done,
        Ok(cut_off) => {
            let cut_off = Count(cut_off, "line");
            stdout::say(
                Priority::Warning,
                &format!("outlive: {cut_off} cut off, by a crash or a full disk"),
            );
            Outcome::Done
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            stdout::fail(
                "no_history",
                &format_args!("{name} has no history in {place}"),
            );
            Outcome::Usage
        }
        Err(error) => {
            stdout::fail(
                "history_not_read",
                &format_args!("the history of {name} in {place} cannot be read: {error}"),
            );
            match error.kind() {
                io::ErrorKind::PermissionDenied => Outcome::NoPermission,
                _ => Outcome::Failed,
            }
        }
    }
}

/// An order to a service, obeyed or not.
struct Order<T> {
    name: String,
    /// `None`: the `serve` of the service ended before the reply.
    reply: Option<T>,
    took: Duration,
}

impl<T: DeserializeOwned> Order<T> {
    /// Waits for the reply while `serve` lives.
    fn give(arguments: &OfService, question: Question) -> Result<Self, Outcome> {
        let run_dir = RunDir::new(arguments.run.run_dir.clone());
        let name = named(arguments.service.as_deref(), &arguments.run.run_dir)?;
        let began = Instant::now();
        let mut reply = None;
        let read = |text: &str| {
            reply = serde_json::from_str(text).ok();
            false
        };
        match ask(&run_dir.socket(&name), question, read) {
            Ok(()) => Ok(Self {
                name,
                reply,
                took: began.elapsed(),
            }),
            Err(error) => Err(not_served(&run_dir, &name, &error)),
        }
    }
}

pub(crate) fn switch_over(arguments: &OfService) -> Outcome {
    let Order { name, reply, took } = match Order::give(arguments, Question::Switchover {}) {
        Ok(order) => order,
        Err(outcome) => return outcome,
    };
    let took_ms = took.as_secs_f64() * 1e3;
    match reply {
        Some(Switchover::Done) => {
            if arguments.json {
                json(&serde_json::json!({
                    "version": JSON_VERSION, "service": name, "switched_over": true, "took_ms": took_ms
                }));
            } else {
                line(&format!(
                    "{name}: switched over in {took_ms:.0} ms; the standby serves"
                ));
            }
            Outcome::Done
        }
        Some(Switchover::Refused(why)) => {
            stdout::fail(
                "not_switched_over",
                &format_args!("the standby does not take over {name}: {why}"),
            );
            Outcome::Failed
        }
        None => {
            stdout::fail(
                "switchover_unknown",
                &format_args!(
                    "the serve of {name} does not answer whether the standby has taken over; see `outlive status`"
                ),
            );
            Outcome::Internal
        }
    }
}

pub(crate) fn restart(arguments: &OfService) -> Outcome {
    let Order { name, reply, took } = match Order::give(arguments, Question::Restart {}) {
        Ok(order) => order,
        Err(outcome) => return outcome,
    };
    let took_ms = took.as_millis();
    match reply {
        Some(Restarted::Restarted { recovered, reset }) => {
            if arguments.json {
                json(&serde_json::json!({
                    "version": JSON_VERSION, "service": name, "restarted": true, "recovered": recovered, "reset": reset, "took_ms": took_ms
                }));
            } else {
                let recovered = Count(recovered, "connection");
                line(&format!(
                    "{name}: restarted in {took_ms} ms: {recovered} recovered, {reset} reset"
                ));
            }
            Outcome::Done
        }
        Some(Restarted::Refused(why)) => {
            stdout::fail(
                "not_restarted",
                &format_args!("{name} is not restarted: {why}"),
            );
            Outcome::NotNow
        }
        Some(Restarted::Failed(why)) => {
            stdout::fail(
                "not_restarted",
                &format_args!("the server of {name} is ended, and cannot be restarted: {why}"),
            );
            Outcome::Failed
        }
        None => {
            stdout::fail(
                "restart_unknown",
                &format_args!(
                    "the serve of {name} has ended before the restarted server was ready; see `outlive status`"
                ),
            );
            Outcome::Failed
        }
    }
}

/// `2026-11-21T02:35:19.123Z 10.0.0.10-80 restarted as process 4711 after 3.4 ms`
fn in_words(text: &str) -> Option<String> {
    let report: serde_json::Value = serde_json::from_str(text).ok()?;
    let time = Duration::from_micros(report["time_unix_us"].as_u64()?);
    let time = humantime::format_rfc3339_millis(UNIX_EPOCH.checked_add(time)?);
    // In this order: an event of a balancer may have a member, and is of the pool.
    let sources = ["service", "pool", "member"];
    let source = sources.into_iter().find(|key| report[key].is_string())?;
    let (source, message) = (report[source].as_str()?, report["message"].as_str()?);
    Some(stdout::in_one_line(&format!("{time} {source} {message}")))
}

fn only(mut names: Vec<String>) -> Option<String> {
    if names.len() == 1 { names.pop() } else { None }
}

/// The sentence for a command line without a service.
fn which(run_dir: &RunDir) -> String {
    let known = known(run_dir);
    match run_dir.services().is_empty() {
        true => known,
        false => format!("which service? {known}"),
    }
}

fn known(run_dir: &RunDir) -> String {
    match run_dir.services() {
        names if names.is_empty() => format!("no service is running here (looked in {run_dir})"),
        names => format!("there are {}", names.join(", ")),
    }
}

pub(crate) fn check(arguments: Check) -> Outcome {
    if let Some(balancer) = arguments.pool {
        return objects_command::check(balancer, arguments);
    }
    let json = arguments.serve.json;
    let hint = arguments.serve.file.hint();
    let config = match serve_command::to_check(arguments.serve, arguments.standby) {
        Ok(config) => config,
        Err(mistake) => {
            stdout::fail("options", &format_args!("{mistake}{hint}"));
            return Outcome::of_options(!hint.is_empty());
        }
    };
    let findings = preflight::report(&config);
    for finding in &findings {
        if json {
            self::json(finding);
        } else {
            let mark = mark(finding.ok, finding.warning);
            line(&format!("{mark} {}: {}", finding.question, finding.answer));
        }
    }
    preflight::fault_of(&findings).map_or(Outcome::Done, Outcome::from)
}

/// The first word of an answer of a check.
pub(crate) const fn mark(is_ok: bool, is_warning: bool) -> &'static str {
    match (is_ok, is_warning) {
        (true, _) => "ok  ",
        (false, true) => "WARN",
        (false, false) => "FAIL",
    }
}

pub(crate) fn clean(arguments: &Clean) -> Outcome {
    let history = arguments.history.of(&arguments.run.run_dir);
    if let Err(outcome) = may_list(&arguments.run.run_dir) {
        return outcome;
    }
    let run_dir = RunDir::new(arguments.run.run_dir.clone());
    let all = arguments.service.is_none();
    let is_named = |name: &String| arguments.service.as_ref().is_none_or(|named| named == name);
    let named =
        |names: Vec<String>| -> Vec<String> { names.into_iter().filter(is_named).collect() };
    let pools = named(balance::leftovers(&arguments.run.run_dir));
    let members = named(member::leftovers(&arguments.run.run_dir));
    let mut names = named(run_dir.services());
    // Without a service, a pool or a member of this name, the message is about services.
    if let (Some(name), true) = (
        &arguments.service,
        names.is_empty() && pools.is_empty() && members.is_empty(),
    ) {
        names.push(name.clone());
    }
    let mut outcome = Outcome::Done;
    let mut running = Running::default();
    let count = names.len() + pools.len() + members.len();
    for name in pools {
        match balance_command::clean(arguments, &name) {
            Outcome::NotNow if all => running.pools.push(name),
            Outcome::Done => {}
            failed => outcome = failed,
        }
    }
    for name in members {
        match objects_command::clean(arguments, &name) {
            Ok(true) => {}
            Ok(false) => running.members.push(name),
            Err(failed) => outcome = failed,
        }
    }
    for name in names {
        match serve::clean::clean(&run_dir, &name, arguments.kill, history.as_deref()) {
            Ok(cleaned) if arguments.json => {
                json(&cleaned);
            }
            Ok(cleaned) => {
                let programs = if cleaned.programs {
                    "programs detached"
                } else {
                    "no programs were attached"
                };
                line(&format!(
                    "{name}: {programs}, {} killed, {} taken down, {} put back",
                    Count(cleaned.killed, "process"),
                    Count(cleaned.addresses, "address"),
                    Count(cleaned.settings, "setting")
                ));
            }
            // A running service is not to be cleaned. This is an error only if the user named the service.
            Err(serve::ServeError::AlreadyServed { .. }) if all => running.services.push(name),
            Err(serve::ServeError::AlreadyServed { .. }) => {
                stdout::fail(
                    "already_served",
                    &format_args!("{name} is running; stop its serve (SIGTERM), which cleans up"),
                );
                outcome = Outcome::NotNow;
            }
            Err(error) => outcome = failed(&error),
        }
    }
    if running.count() == count && !arguments.json {
        line(&running.in_words(&run_dir));
    }
    outcome
}

/// Names that `outlive clean` leaves alone, because a command runs for each.
#[derive(Default)]
struct Running {
    services: Vec<String>,
    pools: Vec<String>,
    members: Vec<String>,
}

impl Running {
    const fn count(&self) -> usize {
        self.services.len() + self.pools.len() + self.members.len()
    }

    fn in_words(&self, run_dir: &RunDir) -> String {
        let mut text = format!("nothing to clean in {run_dir}");
        let running = [
            ("serve", &self.services),
            ("balance", &self.pools),
            ("objects", &self.members),
        ];
        let running = running.into_iter().filter(|(_, names)| !names.is_empty());
        for (separator, (command, names)) in [": ", "; ", "; "].iter().zip(running) {
            let names = names.join(", ");
            text += &format!("{separator}`outlive {command}` runs for {names}");
        }
        text
    }
}

pub(crate) fn key(arguments: &Key) -> Outcome {
    let name = arguments
        .name
        .clone()
        .map_or_else(channel::Key::fresh_name, Ok);
    match name.and_then(|name| channel::Key::generate(&name)) {
        Ok(key) => {
            line(&key.line());
            Outcome::Done
        }
        Err(error) => {
            stdout::fail("key", &format_args!("{error}"));
            match error.kind() {
                io::ErrorKind::InvalidInput => Outcome::Usage,
                _ => Outcome::Internal,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_services_explain_empty_clean() {
        let run_dir = RunDir::new("/run/outlive".into());
        let mut running = Running::default();
        let none = running.in_words(&run_dir);
        assert_eq!(none, "nothing to clean in /run/outlive");
        running.services = vec!["web".to_owned(), "mail".to_owned()];
        let two = running.in_words(&run_dir);
        assert_eq!(two, format!("{none}: `outlive serve` runs for web, mail"));
        running.members.push("web1".to_owned());
        let three = running.in_words(&run_dir);
        assert_eq!(three, format!("{two}; `outlive objects` runs for web1"));
    }
}
