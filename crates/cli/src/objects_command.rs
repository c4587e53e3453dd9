//! `outlive objects`.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use member::{
    Event, MemberError, WITHHOLD_MAX,
    pool_check::{self, PoolCheck},
};
use operator_socket::EventRecord;
use protocol::pool::MemberName;
use recovery::Count;
use serve::Priority;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};
use supervise::{CgroupError, Command};

use crate::{
    arguments::{Check, Clean, Events, Objects, Status},
    commands::{json, line, mark},
    exit::Outcome,
    stdout,
};

/// Sequence numbers that are further apart than half of the space are in no order (RFC 9293, 3.4).
const DISCARD_LIMIT_MAX: u64 = 1 << 30;
/// Name of a host whose own name is no name of a member.
const NAMELESS: &str = "member";

pub(crate) fn run(arguments: Objects) -> Outcome {
    let json = arguments.json;
    let hint = arguments.file.hint();
    if arguments.withhold > WITHHOLD_MAX {
        stdout::fail(
            "options",
            &format_args!("--withhold must be at most 3min{hint}"),
        );
        return Outcome::of_options(!hint.is_empty());
    }
    if arguments.discard_limit > DISCARD_LIMIT_MAX {
        stdout::fail(
            "options",
            &format_args!("--discard-limit must be at most 1GiB{hint}"),
        );
        return Outcome::of_options(!hint.is_empty());
    }
    let Some(options) = options(arguments) else {
        let words =
            format!("--pool, --key-file and a name of 1 to 63 letters and digits are needed{hint}");
        stdout::fail("options", &words);
        return Outcome::of_options(!hint.is_empty());
    };
    let served = stopped().map_err(|source| MemberError::System {
        what: "watch for signals",
        source,
    });
    let served = served.and_then(|stopped| {
        let name = options.name.clone();
        member::run(
            &options,
            || stopped.load(Ordering::Relaxed),
            |record| say(record, &name, json),
        )
    });
    match served {
        Ok(()) => Outcome::Done,
        Err(error) => failed(&error).of_service(),
    }
}

/// Removes the rest of a member. Returns whether there was a rest: a running member is an error only if the user named
/// it.
pub(crate) fn clean(arguments: &Clean, name: &str) -> Result<bool, Outcome> {
    match member::clean(&arguments.run.run_dir, name, arguments.kill) {
        Ok(cleaned) if arguments.json => {
            json(&cleaned);
            Ok(true)
        }
        Ok(cleaned) => {
            let programs = match cleaned.programs {
                true => "programs detached",
                false => "no programs were attached",
            };
            line(&format!(
                "{name}: {programs}, {} killed, {} taken down",
                Count(cleaned.killed, "process"),
                Count(cleaned.addresses, "address")
            ));
            Ok(true)
        }
        Err(MemberError::Runs(_)) if arguments.service.is_none() => Ok(false),
        Err(MemberError::Runs(_)) => {
            let words = format!("{name} runs: stop `outlive objects` (SIGTERM), which cleans up");
            stdout::fail("runs_already", &words);
            Err(Outcome::NotNow)
        }
        Err(error) => Err(failed(&error)),
    }
}

fn options(arguments: Objects) -> Option<member::Options> {
    Some(member::Options {
        name: arguments.name.or_else(host_name)?,
        balancers: match arguments.pool.is_empty() {
            false => arguments.pool,
            true => return None,
        },
        key_file: arguments.key_file?,
        address: arguments.member_address,
        command: Command::new(arguments.command),
        discard_limit: arguments.discard_limit,
        is_immutable: arguments.immutable,
        withhold: arguments.withhold,
        takes_inputs: arguments.dynamic,
        takes_chunks: arguments.deterministic_chunks,
        metrics: arguments.metrics,
        drain: arguments.drain,
        run_dir: arguments.run.run_dir,
    })
}

fn host_name() -> Option<MemberName> {
    let name = rustix::system::uname();
    let name = name.nodename().to_str().unwrap_or(NAMELESS);
    name.parse().or_else(|_| NAMELESS.parse()).ok()
}

/// Becomes true when a signal asks the member to stop.
fn stopped() -> io::Result<Arc<AtomicBool>> {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        flag::register(signal, Arc::clone(&stopped))?;
    }
    Ok(stopped)
}

const fn outcome_of(error: &MemberError) -> (Outcome, &'static str) {
    match error {
        MemberError::Dataplane(_) => (Outcome::Unsupported, "data_plane"),
        MemberError::Cgroup(CgroupError::Occupied { .. }) => (Outcome::NotNow, "server_runs"),
        MemberError::Cgroup(_) | MemberError::Mount(_) => (Outcome::Unsupported, "cgroup"),
        MemberError::Spawn(_) => (Outcome::Config, "server"),
        MemberError::KeyFile(_) => (Outcome::Config, "key_file"),
        MemberError::PortTaken(_) | MemberError::EncapsulationPort { .. } => {
            (Outcome::NotNow, "port_taken")
        }
        MemberError::Address(_) => (Outcome::Config, "member_address"),
        MemberError::NoStore => (Outcome::Config, "no_store"),
        MemberError::Runs(_) => (Outcome::NotNow, "runs_already"),
        MemberError::NotRunning(_) => (Outcome::Unavailable, "not_running"),
        MemberError::Metrics { .. } => (Outcome::Config, "metrics_not_shown"),
        MemberError::NeverRan(_) => (Outcome::Usage, "no_member"),
        MemberError::Balancer { .. } | MemberError::NoAnswer => (Outcome::Unavailable, "balancer"),
        MemberError::Refused(_) => (Outcome::NotNow, "not_admitted"),
        MemberError::Protocol(_) | MemberError::Terms(_) => (Outcome::Unsupported, "version"),
        _ => (Outcome::Internal, "system"),
    }
}

fn say(record: &EventRecord<'_, Event>, name: &MemberName, json: bool) {
    let event = record.event();
    if event.is_frequent() && !json {
        return;
    }
    let line = match json {
        true => record.line(),
        false => stdout::in_one_line(&format!("outlive: {name}: {event}")),
    };
    let priority = if event.is_warning() {
        Priority::Warning
    } else {
        Priority::Notice
    };
    stdout::say(priority, &line);
}

/// Prints the state of a running member.
pub(crate) fn status(arguments: &Status, name: &str) -> Outcome {
    match member::ask(&arguments.run.run_dir, name, arguments.connections) {
        Ok(status) if arguments.json => json(&status),
        Ok(status) => line(&status.to_string()),
        Err(error) => return failed(&error),
    };
    Outcome::Done
}

/// Checks the pool of a balancer.
pub(crate) fn check(balancer: SocketAddr, arguments: Check) -> Outcome {
    let check = PoolCheck {
        balancer,
        key_file: arguments.serve.key_file.unwrap_or_default(),
        targets: arguments.url,
    };
    let findings = match pool_check::check(&check) {
        Ok(findings) => findings,
        Err(error) => return failed(&error),
    };
    for finding in &findings {
        if arguments.serve.json {
            json(finding);
        } else {
            let mark = mark(finding.ok, finding.warning);
            line(&format!("{mark} {}: {}", finding.question, finding.answer));
        }
    }
    match findings.iter().all(|finding| finding.ok || finding.warning) {
        true => Outcome::Done,
        false => Outcome::Failed,
    }
}

/// Prints the events of a running member.
pub(crate) fn events(arguments: &Events, name: &str, each: impl FnMut(&str) -> bool) -> Outcome {
    match member::ask_events(&arguments.run.run_dir, name, arguments.follow, each) {
        Ok(()) => Outcome::Done,
        Err(error) => failed(&error),
    }
}

fn failed(error: &MemberError) -> Outcome {
    if let MemberError::System { source, .. } = error
        && source.kind() == ErrorKind::PermissionDenied
    {
        stdout::fail(
            "not_permitted",
            &format_args!("{error}: run this as root (sudo)"),
        );
        return Outcome::NoPermission;
    }
    let (outcome, code) = outcome_of(error);
    stdout::fail(code, error);
    outcome
}
