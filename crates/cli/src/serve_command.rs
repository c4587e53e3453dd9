//! `outlive serve`.

use std::time::Duration;

use dataplane::{AckStrategy, AttachMode};
use recovery::ReplayMode;
use serve::{
    CheckpointConfig, Code, Ending, Event, EventRecord, History, LinkConfig, LoggerLimits,
    OnLoggerLoss, Priority, RunDir, ServeConfig, ServeError, Service, Signals, Verify,
};

use crate::{
    arguments::{
        self, Ack, Attach, Bounding, CrashOn, LoggerLoss, OutputCommit, Replay, Serve, Stateful,
    },
    exit::{Outcome, failed},
    stdout, units,
};

/// Bounds of a connection's record, bytes: a few requests, and half of the sequence space.
const RECORD_BYTES_MIN: u64 = 4 << 10;
const RECORD_BYTES_MAX: u64 = 2 << 30;
/// Least total size of all records, unless a single connection may have less, bytes.
const TOTAL_BYTES_MIN: u64 = 1 << 20;
/// Least record size for a checkpoint or a restart, bytes, and least time between two checkpoints.
const CHECKPOINT_BYTES_MIN: u64 = 1 << 20;
const CHECKPOINT_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Least silence of a logger with a meaning: probes go out four times as often.
const LOGGER_TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// Serve, or wait for that; with `standby` the logger says when.
pub(crate) fn serve(arguments: Serve, standby: bool) -> Outcome {
    let json = arguments.json;
    let hint = arguments.file.hint();
    let config = match with_otherwise(arguments, standby) {
        Ok(config) => config,
        Err(message) => {
            stdout::fail("options", &format_args!("{message}{hint}"));
            return Outcome::of_options(!hint.is_empty());
        }
    };
    let kept_here = !json && config.link.is_none();
    let tell = move |report: &EventRecord| {
        let priority = report.event.priority();
        if kept_here && matches!(report.event, Event::Started { .. }) {
            let name = &report.service;
            let words = format!(
                "outlive: the record of {name} is kept on this host: connections survive the server's death, not the host's"
            );
            stdout::say(Priority::Notice, &words);
        }
        if json {
            stdout::say(priority, &serde_json::to_string(report).unwrap_or_default());
        } else {
            stdout::say(priority, &stdout::in_one_line(&report.to_string()));
        }
    };
    match run(config, tell) {
        Ok(()) => Outcome::Done,
        Err(error) => failed(&error).of_service(),
    }
}

/// Until the service ends, here and elsewhere, or we are asked to stop; a server that cannot be rebuilt is served
/// `otherwise`, if that is wanted.
fn run(
    mut config: ServeConfig,
    mut tell: impl FnMut(&EventRecord) + Copy + 'static,
) -> Result<(), ServeError> {
    // The signals come first: a stop during the setup must leave no remains.
    let signals = Signals::watch_all()?;
    supervise::limits::raise();
    let mut past = History::default();
    loop {
        let service = Service::new(config.clone(), &signals, past, tell);
        let (ending, history) = match (service.and_then(Service::run), &config.otherwise) {
            (Err(error), Some(other)) if error.is_of_the_north() || error.is_without_record() => {
                tell(&EventRecord::warning(
                    &config.name,
                    Code::NotRebuilt,
                    error.and_without(),
                ));
                let standby = config.standby;
                config = ServeConfig {
                    standby,
                    ..(**other).clone()
                };
                past = History::default();
                continue;
            }
            (ended, _) => ended?,
        };
        past = history;
        match ending {
            Ending::Stopped | Ending::Ended | Ending::HandedOver => return Ok(()),
            Ending::Moved | Ending::Superseded => config.standby = true,
        }
    }
}

/// The configuration of `outlive serve` with these options. A missing option is an error only if the option should be
/// in the file.
pub(crate) fn to_check(mut arguments: Serve, standby: bool) -> Result<ServeConfig, String> {
    if arguments.file.config.is_some() {
        let missing = [
            ("--address", arguments.address.is_empty()),
            ("the server's command", arguments.command.is_empty()),
        ];
        if let Some((what, _)) = missing.iter().find(|(_, missing)| *missing) {
            return Err(format!("{what} is missing"));
        }
    }
    if arguments.address.is_empty() {
        arguments.name.get_or_insert_with(|| "check".to_owned());
    }
    with_otherwise(arguments, standby)
}

/// How to serve, and how a server that cannot be rebuilt.
fn with_otherwise(arguments: Serve, standby: bool) -> Result<ServeConfig, String> {
    let otherwise = match arguments.stateful {
        Stateful::Prefer => Some(Serve {
            stateful: Stateful::Off,
            hot: false,
            bounding: Bounding::default(),
            ..arguments.clone()
        }),
        Stateful::Off | Stateful::Require => None,
    };
    let otherwise = otherwise.map(|other| config(other, standby)).transpose()?;
    Ok(ServeConfig {
        otherwise: otherwise.map(|other| {
            Box::new(ServeConfig {
                without: true,
                ..other
            })
        }),
        ..config(arguments, standby)?
    })
}

fn config(arguments: Serve, standby: bool) -> Result<ServeConfig, String> {
    let addresses = units::all(&arguments.address);
    let ring = u32::try_from(arguments.ring_size)
        .ok()
        .filter(|ring| ring.is_power_of_two() && (1 << 20..=1 << 30).contains(ring))
        .ok_or("--ring-size must be a power of two from 1MiB to 1GiB")?;
    if !(RECORD_BYTES_MIN..=RECORD_BYTES_MAX).contains(&arguments.limit_per_connection) {
        return Err("--limit-per-connection must be from 4KiB to 2GiB".into());
    }
    let total = arguments.limit_total.unwrap_or_else(quarter_of_memory);
    if total < arguments.limit_per_connection.min(TOTAL_BYTES_MIN) {
        return Err(
            "--limit-total must be at least 1MiB, or at least --limit-per-connection".into(),
        );
    }
    let link = link(&arguments)?;
    if standby && arguments.logger.len() > 1 {
        return Err(
            "a standby requires exactly one --logger: several loggers do not agree on the host that serves".into(),
        );
    }
    if standby && (link.is_none() || arguments.address_device.is_none()) {
        return Err("a standby requires --logger, which grants leases, and --address-device, on which the addresses come with the service".into());
    }
    if let Some(metrics) = arguments.metrics.filter(|at| addresses.contains(at)) {
        return Err(format!(
            "{metrics} is a protected address: give --metrics another port"
        ));
    }
    if arguments.hot && !arguments.stateful.is_wanted() {
        return Err(
            "--hot requires --stateful=require: a replica replays the recorded input of the server"
                .into(),
        );
    }
    if arguments.hot && (link.is_none() || arguments.address_device.is_none()) {
        return Err("--hot requires --logger, which sends the record to the replica, and --address-device, as each standby does".into());
    }
    if arguments.stateful.is_wanted() && matches!(arguments.crash_on, CrashOn::Main) {
        return Err("--crash-on=main leaves the death of a child to its parent, and --stateful rebuilds every process: omit one of the two options".into());
    }
    let checkpoints = checkpoints(&arguments)?;
    let renew_at = renewal(&arguments)?;
    let name = match (arguments.name, addresses.first()) {
        (Some(name), _) => name,
        (None, Some(address)) => ServeConfig::default_name(*address),
        (None, None) => return Err("--address is missing".into()),
    };
    let has_state = arguments.stateful.is_wanted();
    Ok(ServeConfig {
        name,
        link,
        addresses,
        address_device: arguments.address_device,
        take_address: arguments.take_address,
        shared_address: arguments.shared_address,
        command: arguments.command,
        wrapped: has_state,
        otherwise: None,
        without: false,
        checkpoints,
        renew_at,
        // A server with state gets all input again, also the answered input.
        replay: match arguments.replay {
            _ if has_state => ReplayMode::Connection,
            Replay::Connection => ReplayMode::Connection,
            Replay::Request => ReplayMode::Request,
        },
        // A server with state compares all of its repeated output by itself.
        verify: match arguments.verify {
            _ if has_state => Verify::Off,
            arguments::Verify::Full => Verify::Full,
            arguments::Verify::Hash => Verify::Hash,
            arguments::Verify::Head => Verify::Head,
            arguments::Verify::Off => Verify::Off,
        },
        tolerate: arguments.verify_ignore_header,
        crash_on: match arguments.crash_on {
            CrashOn::Main => serve::CrashOn::Main,
            CrashOn::Signal => serve::CrashOn::Signal,
            CrashOn::AnyFailure => serve::CrashOn::AnyFailure,
        },
        limits: LoggerLimits {
            per_connection: arguments.limit_per_connection,
            total,
            ring,
        },
        max_connections: arguments.max_connections,
        give_up_after: arguments.recovery_timeout,
        quarantine_after: arguments.quarantine_after,
        grace: arguments.stop_timeout,
        attach: match arguments.attach {
            Attach::Auto => AttachMode::Auto,
            Attach::Tcx => AttachMode::Tcx,
            Attach::Clsact => AttachMode::Clsact,
        },
        standby,
        hot: arguments.hot,
        // The lowest preference serves next.
        preference: u16::MAX - arguments.priority,
        metrics: arguments.metrics,
        history: arguments.history.of(&arguments.run.run_dir),
        run_dir: RunDir::new(arguments.run.run_dir),
    })
}

/// When checkpoints are made.
fn checkpoints(arguments: &Serve) -> Result<Option<CheckpointConfig>, String> {
    let given = &arguments.bounding;
    if given.checkpoint_at.is_none() && given.checkpoint_every.is_none() {
        if given.checkpoint_dir.is_some() {
            return Err("--checkpoint-dir requires --checkpoint-at or --checkpoint-every".into());
        }
        return Ok(None);
    }
    if !arguments.stateful.is_wanted() {
        return Err("checkpoints require --stateful=require".into());
    }
    if arguments.hot {
        return Err("a replica replays the whole record, and checkpoints remove the beginning of the record: omit --hot, or --checkpoint-at and --checkpoint-every".into());
    }
    if given
        .checkpoint_at
        .is_some_and(|at| at < CHECKPOINT_BYTES_MIN)
    {
        return Err("--checkpoint-at must be at least 1MiB".into());
    }
    if given
        .checkpoint_every
        .is_some_and(|every| every < CHECKPOINT_INTERVAL_MIN)
    {
        return Err("--checkpoint-every must be at least 1s".into());
    }
    Ok(Some(CheckpointConfig {
        criu: given.criu.clone(),
        at: given.checkpoint_at,
        every: given.checkpoint_every,
        directory: given.checkpoint_dir.clone(),
    }))
}

/// Record size at which a server without lasting state (`--stateless`) and its record start again.
fn renewal(arguments: &Serve) -> Result<Option<u64>, String> {
    let given = &arguments.bounding;
    if !given.stateless {
        return Ok(None);
    }
    if !arguments.stateful.is_wanted() {
        return Err("--stateless requires --stateful=require".into());
    }
    if given.checkpoint_at.is_some() || given.checkpoint_every.is_some() {
        return Err(
            "--stateless excludes checkpoints: a server that keeps nothing needs no image".into(),
        );
    }
    if given.stateless_reset_at < CHECKPOINT_BYTES_MIN {
        return Err("--stateless-reset-at must be at least 1MiB".into());
    }
    Ok(Some(given.stateless_reset_at))
}

/// The loggers on other machines.
fn link(arguments: &Serve) -> Result<Option<LinkConfig>, String> {
    let Some(key_file) = arguments
        .key_file
        .clone()
        .filter(|_| !arguments.logger.is_empty())
    else {
        return Ok(None);
    };
    if arguments.logger_timeout < LOGGER_TIMEOUT_MIN {
        return Err("--logger-timeout must be at least 100ms".into());
    }
    Ok(Some(LinkConfig {
        loggers: arguments.logger.clone(),
        key_file,
        strategy: match arguments.ack {
            Ack::Basic => AckStrategy::Basic,
            Ack::Lazy => AckStrategy::Lazy,
            Ack::Eager => AckStrategy::Eager,
            Ack::Conditional => AckStrategy::Conditional,
        },
        on_loss: on_loss(arguments)?,
        commit_effects: matches!(arguments.output_commit, OutputCommit::All),
        copies_per_second: arguments.mirror_skip_above,
        timeout: arguments.logger_timeout,
    }))
}

/// Output that a server with state sends without a logger could not be rebuilt.
fn on_loss(arguments: &Serve) -> Result<OnLoggerLoss, String> {
    let has_state = arguments.stateful.is_wanted();
    match arguments.on_logger_loss {
        Some(LoggerLoss::Unprotect) if has_state => Err("with --stateful, clients wait when no logger answers: only --on-logger-loss=hold is possible".into()),
        Some(LoggerLoss::Hold) => Ok(OnLoggerLoss::Hold),
        None if has_state => Ok(OnLoggerLoss::Hold),
        Some(LoggerLoss::Unprotect) | None => Ok(OnLoggerLoss::Unprotect),
    }
}

fn quarter_of_memory() -> u64 {
    serve::host_memory() / 4
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Verb};

    fn configured(options: &[&str]) -> ServeConfig {
        let words = ["outlive", "serve", "--address", "10.0.0.10:80"];
        let words = words.iter().chain(options).chain(&["--", "server"]);
        let Verb::Serve(serve) = Arguments::parse_from(words).verb else {
            panic!("another command");
        };
        to_check(*serve, false).expect("good options")
    }

    /// A server with state gets all input from the beginning, also answered input, with any `--replay`.
    #[test]
    fn request_replay_requires_stateless() {
        let turns = ["--replay", "request"];
        assert_eq!(configured(&turns).replay, ReplayMode::Request);
        let state = configured(&[&turns[..], &["--stateful", "require"]].concat());
        assert_eq!(state.replay, ReplayMode::Connection);
        let preferred = configured(&[&turns[..], &["--stateful", "prefer"]].concat());
        assert_eq!(preferred.replay, ReplayMode::Connection);
        let without = preferred.otherwise.expect("a service without a record");
        assert_eq!(without.replay, ReplayMode::Request);
    }
    #[test]
    fn check_takes_the_options_of_serve() {
        let options = ["--address", "10.0.0.10:80", "--replay", "request"];
        let words = ["outlive", "check"].iter().chain(&options);
        let words = words.chain(&["--", "server"]);
        let Verb::Check(check) = Arguments::parse_from(words).verb else {
            panic!("another command");
        };
        let config = to_check(check.serve, false).expect("good options");
        assert_eq!(config.replay, ReplayMode::Request);
    }
}
