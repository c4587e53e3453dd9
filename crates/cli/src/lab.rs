//! `outlive lab`: test hosts that can be broken by hand.

mod holder;
mod output;

use std::{ffi::OsStr, io, path::PathBuf, process::Command, process::ExitCode};

use lab::{
    Direction,
    held::{self, Answer, AskError, Change, Place, Request, Status},
};

use crate::{
    arguments::lab::{Exec, Kill, Lab, Links, OneWay, Way, Which},
    exit::Outcome,
    stdout,
};

/// Exit status of an internal failure, and of a command that cannot be run or found, in a verb that passes on the
/// command's exit status. The numbers are those of env(1) and timeout(1).
const OUR_FAILURE: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

pub(crate) fn run(verb: Lab) -> ExitCode {
    let outcome = match verb {
        Lab::Exec(exec) => return self::exec(&exec),
        Lab::Up(up) => holder::up(&up),
        Lab::Hold(up) => holder::hold(&up),
        Lab::Down(down) => holder::down(&down.which),
        Lab::Status(status) => output::status(&status),
        Lab::List(list) => output::list(&list),
        Lab::Kill(kill) => self::kill(kill),
        Lab::Cut(cut) => change(cut.links, &cut.way, Change::Cut),
        Lab::Heal(heal) => change(heal.links, &OneWay { one_way: None }, Change::Heal),
        Lab::Loss(loss) => {
            let (percent, seed) = (loss.percent, loss.seed);
            change(loss.links, &loss.way, Change::Loss { percent, seed })
        }
        Lab::Delay(delay) => change(delay.links, &delay.way, Change::Delay(delay.time)),
        Lab::Rate(rate) => change(rate.links, &rate.way, Change::Rate(rate.bits.0)),
        Lab::Mtu(mtu) => change(mtu.links, &OneWay { one_way: None }, Change::Mtu(mtu.bytes)),
        Lab::PowerOff(power) => done(&power.which, &Request::PowerOff { host: power.host }),
        Lab::PowerOn(power) => done(&power.which, &Request::PowerOn { host: power.host }),
    };
    outcome.into()
}

/// The place of the lab that is meant.
fn place(which: &Which) -> Result<Place, Outcome> {
    let labs = std::path::absolute(&which.labs.lab_dir);
    let labs = labs.unwrap_or_else(|_| which.labs.lab_dir.clone());
    Place::new(&labs, &which.name).map_err(|error| lab_failure(&error))
}

fn lab_failure(error: &lab::Error) -> Outcome {
    let (outcome, code) = match error {
        lab::Error::NotRoot => (Outcome::NoPermission, "not_permitted"),
        lab::Error::Invalid(_) | lab::Error::Off { .. } => (Outcome::Usage, "lab_refuses"),
        _ => (Outcome::Internal, "lab"),
    };
    stdout::fail(code, error);
    outcome
}

fn refused(error: &AskError) -> Outcome {
    let (outcome, code) = match error {
        AskError::NoLab(_) => (Outcome::Usage, "no_lab"),
        AskError::Refused(refusal) if refusal.misuse => (Outcome::Usage, "lab_refuses"),
        AskError::Dead(_) => (Outcome::Failed, "lab_is_dead"),
        _ => (Outcome::Internal, "lab"),
    };
    stdout::fail(code, error);
    outcome
}

fn ask(which: &Which, request: &Request) -> Result<Answer, Outcome> {
    place(which)?.ask(request).map_err(|error| refused(&error))
}

fn ask_status(place: &Place) -> Result<Status, AskError> {
    match place.ask(&Request::Status)? {
        Answer::Status(status) => Ok(status),
        _ => Err(io::Error::other("it answered another question").into()),
    }
}

/// Sends a request without an answer to print.
fn done(which: &Which, request: &Request) -> Outcome {
    match ask(which, request) {
        Ok(_) => Outcome::Done,
        Err(outcome) => outcome,
    }
}

fn change(links: Links, way: &OneWay, change: Change) -> Outcome {
    let directions = match way.one_way {
        None => Direction::BOTH.to_vec(),
        Some(Way::ToHost) => vec![Direction::ToHost],
        Some(Way::FromHost) => vec![Direction::FromHost],
    };
    let request = Request::Links {
        host: links.host,
        interface: links.interface,
        directions,
        change,
    };
    done(&links.which, &request)
}

fn kill(kill: Kill) -> Outcome {
    let request = Request::Kill {
        host: kill.host,
        target: kill.target,
        signal: kill.signal,
    };
    match ask(&kill.which, &request) {
        Ok(Answer::Signalled(pids)) => {
            if kill.json {
                output::json(&pids);
            }
            Outcome::Done
        }
        Ok(_) => Outcome::Internal,
        Err(outcome) => outcome,
    }
}

/// Becomes the command, which then has the terminal, the signals and the exit status.
fn exec(exec: &Exec) -> ExitCode {
    let Ok((namespace, run_directory)) = host(exec) else {
        return OUR_FAILURE.into();
    };
    let Some((program, arguments)) = exec.command.split_first() else {
        return OUR_FAILURE.into();
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("OUTLIVE_RUN_DIR", run_directory);
    failed(program, &held::exec(&namespace, &mut command)).into()
}

fn failed(program: &OsStr, error: &held::ExecError) -> u8 {
    let program = program.display();
    match error {
        held::ExecError::Namespace(error) => {
            eprintln!("outlive: {error}");
            OUR_FAILURE
        }
        held::ExecError::Command(error) => {
            eprintln!("outlive: cannot run {program}: {error}");
            match error.kind() {
                io::ErrorKind::NotFound => NOT_FOUND,
                _ => CANNOT_RUN,
            }
        }
    }
}

/// The host's namespace and its run directory.
fn host(exec: &Exec) -> Result<(String, PathBuf), Outcome> {
    let place = place(&exec.which)?;
    let status = ask_status(&place).map_err(|error| refused(&error))?;
    let Some(host) = status.hosts.iter().find(|host| host.name == exec.host) else {
        let names: Vec<_> = status.hosts.iter().map(|host| &*host.name).collect();
        eprintln!(
            "outlive: lab {} has no host {}: there are {}",
            status.name,
            exec.host,
            names.join(", ")
        );
        return Err(Outcome::Usage);
    };
    if !host.on {
        eprintln!("outlive: host {} is off", host.name);
        return Err(Outcome::Usage);
    }
    Ok((host.namespace.clone(), host.run_directory.clone()))
}
