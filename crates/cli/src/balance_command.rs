//! `outlive balance`.

use std::{os::fd::AsFd, os::unix::net::UnixStream, path::Path};

use balance::{BalanceConfig, BalanceError, Balancer, Delivery, Event, Fault, Status};
use channel::KeyRing;
use operator_socket::EventRecord;
use recovery::Count;
use serde::Serialize;
use serve::{JSON_VERSION, Priority};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    low_level::pipe,
};

use crate::{
    arguments::{Balance, BalanceMember, BalanceStatus, BalanceVerb, Clean, Events},
    commands::{json, line},
    exit::Outcome,
    stdout,
};

pub(crate) fn run(arguments: &Balance) -> Outcome {
    match &arguments.verb {
        Some(BalanceVerb::Status(which)) => status(which),
        Some(BalanceVerb::Drain(which)) => done(balance::drain, which),
        Some(BalanceVerb::ConfirmDead(which)) => done(balance::confirm_dead, which),
        None => match balance(arguments) {
            Ok(()) => Outcome::Done,
            Err(error) => failed(&error).of_service(),
        },
    }
}

type Request = fn(&Path, &str, &str) -> Result<(), BalanceError>;

fn done(request: Request, which: &BalanceMember) -> Outcome {
    match request(&which.run.run_dir, &which.name, &which.member) {
        Ok(()) => Outcome::Done,
        Err(error) => failed(&error),
    }
}

/// Prints the error, and returns the outcome by the fault.
pub(crate) fn failed(error: &BalanceError) -> Outcome {
    stdout::fail(error.code(), error);
    match error.fault() {
        Fault::Config => Outcome::Config,
        Fault::Missing => Outcome::Unavailable,
        Fault::InTheWay => Outcome::NotNow,
        Fault::Permission => Outcome::NoPermission,
        Fault::Host => Outcome::Unsupported,
        Fault::Ours => Outcome::Internal,
    }
}

fn balance(arguments: &Balance) -> Result<(), BalanceError> {
    let signals = |source| BalanceError::System {
        what: "take signals",
        source,
    };
    let (stopped, stop) = UnixStream::pair().map_err(signals)?;
    for signal in [SIGTERM, SIGINT] {
        let stop = stop.try_clone().map_err(signals)?;
        pipe::register(signal, stop).map_err(signals)?;
    }
    let balancer = Balancer::start(BalanceConfig {
        name: arguments.name.clone(),
        addresses: arguments.address.clone(),
        address_device: arguments.address_device.clone(),
        listen: arguments.listen.clone(),
        keys: KeyRing::load(arguments.key_file.as_deref().unwrap_or(Path::new("")))?,
        kind: arguments.spread.hash.into(),
        lease: arguments.timing.lease,
        quiescence: arguments.timing.quiescence,
        version_check: arguments.version_check.into(),
        store: arguments.store.settings(),
        register: arguments.cooperation.register.clone(),
        delivery: Delivery {
            no_forward: arguments.cooperation.no_forward,
            on_change: arguments.cooperation.on_change.clone(),
            encapsulation: arguments.spread.encapsulate.map(Into::into),
            forward: arguments.spread.forward.into(),
            forward_devices: arguments.spread.forward_device.clone(),
        },
        metrics: arguments.metrics,
        run_dir: arguments.run.run_dir.clone(),
    })?;
    let json = arguments.json;
    balancer.run(stopped.as_fd(), &mut |record| say(record, json))
}

const fn priority(of: &Event) -> Priority {
    match of {
        Event::DeclaredDead { .. } => Priority::Error,
        Event::Warning { .. }
        | Event::Refused { .. }
        | Event::RefusedMore { .. }
        | Event::StreamLost { .. } => Priority::Warning,
        Event::Listening { .. }
        | Event::Table { .. }
        | Event::Joined { .. }
        | Event::Left { .. }
        | Event::Draining { .. }
        | Event::Drained { .. }
        | Event::KeysChanged
        | Event::RegisterBack
        | Event::Stopping => Priority::Notice,
    }
}

fn say(record: &EventRecord<'_, Event>, json: bool) {
    let event = record.event();
    let line = match json {
        true => record.line(),
        false => stdout::in_one_line(&format!("outlive: {event}")),
    };
    stdout::say(priority(event), &line);
}

/// Removes the rest of a balancer. A running balancer is an error only if the user named it.
pub(crate) fn clean(arguments: &Clean, name: &str) -> Outcome {
    match balance::clean(&arguments.run.run_dir, name) {
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
                "{name}: {programs}, {} taken down",
                Count(cleaned.addresses, "address")
            ));
            Outcome::Done
        }
        Err(BalanceError::AlreadyRuns(_)) if arguments.service.is_none() => Outcome::NotNow,
        Err(error) => failed(&error),
    }
}

/// The answer of a balancer, with the version of JSON.
#[derive(Serialize)]
struct Page<'a> {
    version: u32,
    #[serde(flatten)]
    status: &'a Status,
}

fn status(which: &BalanceStatus) -> Outcome {
    show(&which.run.run_dir, &which.name, which.json)
}

/// Prints the events of a running balancer.
pub(crate) fn events(arguments: &Events, name: &str, each: impl FnMut(&str) -> bool) -> Outcome {
    match balance::ask_events(&arguments.run.run_dir, name, arguments.follow, each) {
        Ok(()) => Outcome::Done,
        Err(error) => failed(&error),
    }
}

/// Prints the state of a running balancer.
pub(crate) fn show(run_dir: &Path, name: &str, as_json: bool) -> Outcome {
    match balance::ask(run_dir, name) {
        Ok(status) if as_json => {
            json(&Page {
                version: JSON_VERSION,
                status: &status,
            });
            Outcome::Done
        }
        Ok(status) => {
            print(&status);
            Outcome::Done
        }
        Err(error) => failed(&error),
    }
}

fn print(status: &Status) {
    let service: Vec<String> = status.service.iter().map(ToString::to_string).collect();
    line(&format!("{}: {}", status.pool, service.join(", ")));
    let ([least, most], counts) = (status.lease_ms, &status.counts);
    line(&format!(
        "  epoch {}, hash {}, leases of {least} to {most} ms",
        status.epoch, status.hash
    ));
    line(&format!(
        "  {} packets to members ({} ICMP errors); dropped: {} fragments, {} without a member{}",
        counts.packets,
        counts.icmp_packets,
        counts.dropped_fragments,
        counts.dropped_without_member,
        match counts.dropped_not_wrapped {
            0 => String::new(),
            count => format!(", {count} too long in UDP"),
        }
    ));
    let forward = match (status.forward.as_str(), status.xdp_devices.as_slice()) {
        ("none", _) => "another load balancer".to_owned(),
        (forward, []) => forward.to_owned(),
        (forward, devices) => {
            let (devices, packets) = (devices.join(", "), counts.xdp_packets);
            format!("{forward} on {devices} ({packets} packets), and tc")
        }
    };
    line(&format!("  forwarded by {forward}"));
    line(&match status.stores {
        0 => "  no store (--store)".to_owned(),
        stores => format!("  records of connections in {}", Count(stores, "store")),
    });
    if let Some(register) = &status.register {
        let own = match status.grants {
            true => "this balancer among them",
            false => "not of this balancer",
        };
        line(&format!(
            "  register {register}; members need the leases of {} balancers, {own}",
            status.balancers
        ));
        if let Some(reason) = &status.register_failure {
            line(&format!("  the register does not answer: {reason}"));
        }
    }
    if status.members.is_empty() {
        line("  no members");
    }
    for member in &status.members {
        let state = match (member.in_table, member.connected, member.draining) {
            _ if member.unknown => "unknown",
            (false, ..) => "joins",
            (true, _, true) => "drains",
            (true, false, false) => "disconnected",
            (true, true, false) => "serves",
        };
        line(&format!(
            "  {:<20}{:<24}{state}, {} packets, heard {} ms ago",
            member.name, member.address, member.packets, member.silent_ms
        ));
    }
}
