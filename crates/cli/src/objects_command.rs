//! `outlive objects`.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::UNIX_EPOCH,
};

use member::{Event, MemberError, WITHHOLD_MAX};
use protocol::pool::MemberName;
use recovery::Count;
use serde::Serialize;
use serve::{JSON_VERSION, Priority};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};
use supervise::{CgroupError, Command};

use crate::{
    arguments::{Clean, Objects},
    commands::{json, line},
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
            &format_args!("--withhold must be at most 4min{hint}"),
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
            |event| say(&name, event, json),
        )
    });
    match served {
        Ok(()) => Outcome::Done,
        Err(error) => {
            let (outcome, code) = outcome_of(&error);
            stdout::fail(code, &error);
            outcome.of_service()
        }
    }
}

/// Removes the rest of a member. A running member is an error only if the user named it.
pub(crate) fn clean(arguments: &Clean, name: &str) -> Outcome {
    match member::clean(&arguments.run.run_dir, name, arguments.kill) {
        Ok(cleaned) if arguments.json => {
            json(&cleaned);
            Outcome::Done
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
            Outcome::Done
        }
        Err(MemberError::Runs(_)) if arguments.service.is_none() => Outcome::NotNow,
        Err(error) => {
            let (outcome, code) = outcome_of(&error);
            stdout::fail(code, &error);
            outcome
        }
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
        MemberError::Address(_) => (Outcome::Config, "member_address"),
        MemberError::Runs(_) => (Outcome::NotNow, "runs_already"),
        MemberError::NeverRan(_) => (Outcome::Usage, "no_member"),
        MemberError::Balancer { .. } | MemberError::NoAnswer => (Outcome::Unavailable, "balancer"),
        MemberError::Refused(_) => (Outcome::NotNow, "not_admitted"),
        MemberError::Protocol(_) | MemberError::Terms(_) => (Outcome::Unsupported, "version"),
        _ => (Outcome::Internal, "system"),
    }
}

#[derive(Serialize)]
struct EventLine<'a> {
    version: u32,
    time_unix_us: u64,
    member: &'a str,
    #[serde(flatten)]
    event: &'a Event,
}

fn say(name: &MemberName, event: &Event, json: bool) {
    if event.is_frequent() && !json {
        return;
    }
    let line = if json {
        let elapsed = UNIX_EPOCH.elapsed().unwrap_or_default();
        let line = EventLine {
            version: JSON_VERSION,
            time_unix_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            member: name.as_str(),
            event,
        };
        serde_json::to_string(&line).unwrap_or_default()
    } else {
        stdout::in_one_line(&format!("outlive: {name}: {event}"))
    };
    let priority = if event.is_warning() {
        Priority::Warning
    } else {
        Priority::Notice
    };
    stdout::say(priority, &line);
}
