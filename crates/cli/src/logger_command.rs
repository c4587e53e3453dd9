//! `outlive logger`.

use std::{io::ErrorKind, os::fd::AsFd, os::unix::net::UnixStream, path::Path, time::UNIX_EPOCH};

use channel::KeyRing;
use logger::{Event, Service, ServiceConfig, ServiceError, link::AckPolicy};
use serde::Serialize;
use serve::{JSON_VERSION, Priority, ServeError};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    low_level::pipe,
};

use crate::{
    arguments::{Logger, LoggerVerb, Release},
    commands::{json, line},
    exit::{Outcome, failed},
    stdout,
};

/// Least of all records together, bytes.
const TOTAL_BYTES_MIN: u64 = 1 << 20;

pub(crate) fn run(arguments: &Logger) -> Outcome {
    match &arguments.verb {
        Some(LoggerVerb::Release(release)) => self::release(release),
        None => keep(arguments),
    }
}

fn release(arguments: &Release) -> Outcome {
    let service = &arguments.service;
    match serve::give_up(arguments.logger, &arguments.key_file, service) {
        Ok(epoch) if arguments.json => {
            json(&serde_json::json!({
                "version": JSON_VERSION, "service": service, "released": true, "epoch": epoch
            }));
            Outcome::Done
        }
        Ok(epoch) => {
            line(&format!(
                "{service}: released, epoch {epoch} is over; start `outlive serve` or `outlive standby` on another host"
            ));
            Outcome::Done
        }
        Err(ServeError::NotKnown(why)) => {
            stdout::fail(
                "not_released",
                &format_args!("{service} is not released: {why}"),
            );
            Outcome::NotNow
        }
        Err(error) => failed(&error),
    }
}

fn keep(arguments: &Logger) -> Outcome {
    let total = arguments
        .limit_total
        .unwrap_or_else(|| serve::host_memory() / 2);
    if total < TOTAL_BYTES_MIN {
        let hint = arguments.file.hint();
        stdout::fail(
            "options",
            &format_args!("--limit-total must be at least 1MiB{hint}"),
        );
        return Outcome::of_options(!hint.is_empty());
    }
    match keep_records(arguments, total) {
        Ok(()) => Outcome::Done,
        Err(error) => {
            let (outcome, code) = outcome_of(&error);
            stdout::fail(code, &error);
            outcome.of_service()
        }
    }
}

fn outcome_of(error: &ServiceError) -> (Outcome, &'static str) {
    match error {
        ServiceError::Listen { error, .. } | ServiceError::Metrics { error, .. } => {
            match error.kind() {
                ErrorKind::AddrInUse => (Outcome::NotNow, "port_in_use"),
                ErrorKind::AddrNotAvailable => (Outcome::Unavailable, "address_not_here"),
                ErrorKind::PermissionDenied => (Outcome::NoPermission, "not_permitted"),
                _ => (Outcome::Config, "not_listening"),
            }
        }
        ServiceError::Keys(_) => (Outcome::Config, "key_file"),
        ServiceError::Lease(_) => (Outcome::Config, "lease"),
        ServiceError::Log { .. } => (Outcome::Config, "log"),
        ServiceError::LogTaken(_) => (Outcome::NotNow, "log_taken"),
        ServiceError::Io(_) => (Outcome::Internal, "system"),
    }
}

fn keep_records(arguments: &Logger, limit_total: u64) -> Result<(), ServiceError> {
    let (stopped, stop) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        pipe::register(signal, stop.try_clone()?)?;
    }
    let acks = match arguments.ack_delay {
        _ if arguments.ack_each_frame => AckPolicy::EachFrame,
        Some(delay) => AckPolicy::After(delay),
        None => AckPolicy::EachBatch,
    };
    let service = Service::bind(ServiceConfig {
        listen: arguments.listen.clone(),
        keys: KeyRing::load(arguments.key_file.as_deref().unwrap_or(Path::new("")))?,
        keep: arguments.retention,
        limit_total,
        acks,
        busy_poll: arguments.busy_poll,
        directory: arguments.dir.clone(),
        metrics: arguments.metrics,
        lease: arguments.lease,
        tell_clients: arguments.zero_window_acks,
    })?;
    let json = arguments.json;
    service.run(stopped.as_fd(), &mut |event| say(event, json))
}

const fn priority(of: &Event) -> Priority {
    match of {
        Event::LogFailed { .. } | Event::Unserved { .. } | Event::TwoServices { .. } => {
            Priority::Error
        }
        Event::Warning { .. } | Event::Refused { .. } | Event::RefusedMore { .. } => {
            Priority::Warning
        }
        Event::Attached { .. } | Event::Detached { .. } | Event::Forgotten { .. } => Priority::Info,
        Event::Listening { .. }
        | Event::Restored { .. }
        | Event::LogRecovered
        | Event::HolderReleased { .. }
        | Event::Granted { .. }
        | Event::Inherited { .. }
        | Event::KeysChanged
        | Event::Stopping => Priority::Notice,
    }
}

/// As the events of `serve`.
#[derive(Serialize)]
struct Told<'a> {
    version: u32,
    time_unix_us: u64,
    #[serde(flatten)]
    event: &'a Event,
}

fn say(event: &Event, json: bool) {
    let line = if json {
        let elapsed = UNIX_EPOCH.elapsed().unwrap_or_default();
        let told = Told {
            version: JSON_VERSION,
            time_unix_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            event,
        };
        serde_json::to_string(&told).unwrap_or_default()
    } else {
        stdout::in_one_line(&format!("outlive: {event}"))
    };
    stdout::say(priority(event), &line);
}
