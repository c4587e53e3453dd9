//! `outlive lab up` and `down`, and the process in between.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    path::PathBuf,
    process::{Command, Stdio},
};

use clap::ValueEnum;
use lab::held::{self, AskError, Place, Request};

use super::{ask_status, lab_failure, output, place, refused};
use crate::{
    arguments::lab::{Layout, Up, Which},
    exit::Outcome,
};

/// Output of the background process when the lab is ready.
const READY: &str = "ready";

/// Starts the process that holds the lab, and waits until the lab is there.
pub(crate) fn up(up: &Up) -> Outcome {
    match try_up(up) {
        Ok(()) => Outcome::Done,
        Err(outcome) => outcome,
    }
}

fn try_up(up: &Up) -> Result<(), Outcome> {
    if !rustix::process::geteuid().is_root() {
        return Err(lab_failure(&lab::Error::NotRoot));
    }
    let place = place(&up.which)?;
    // Mistakes in the names are reported before any part of the lab is made.
    held::plan(&up.hosts, layout(up.layout)).map_err(|error| lab_failure(&error))?;
    place.take().map_err(|error| lab_failure(&error))?;
    let started = start(&place, up).map_err(|error| {
        eprintln!("outlive: cannot start the process that holds the lab: {error}");
        Outcome::Internal
    });
    match started {
        Ok(true) => {
            let status = ask_status(&place).map_err(|error| refused(&error))?;
            output::show(&status);
            Ok(())
        }
        failed => {
            let log = fs::read_to_string(place.log()).unwrap_or_default();
            eprint!("{log}");
            if let Err(error) = outlive().and_then(|outlive| place.clear(&outlive)) {
                lab_failure(&error);
            }
            Err(failed.err().unwrap_or(Outcome::Internal))
        }
    }
}

/// Whether the process has reported that the lab is ready.
fn start(place: &Place, up: &Up) -> io::Result<bool> {
    let log = File::create(place.log())?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["lab", "hold", "--name", place.name(), "--lab-dir"]);
    command.args(place.directory().parent());
    command.args(["--hosts", &up.hosts.join(",")]);
    if let Some(layout) = up.layout.to_possible_value() {
        command.args(["--layout", layout.get_name()]);
    }
    if let Some(rate) = up.rate.and_then(|rate| rate.0) {
        command.args(["--rate", &format!("{rate}bit")]);
    }
    let mut holder = command
        .current_dir("/")
        .env_remove("OUTLIVE_LAB_KEEP")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()?;
    let mut line = String::new();
    if let Some(stdout) = holder.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if line.trim_end() == READY {
        return Ok(true);
    }
    holder.wait()?;
    Ok(false)
}

/// The process in the background.
pub(crate) fn hold(up: &Up) -> Outcome {
    // The holder leaves the terminal of its start. The call fails only for a leader of a process group (setsid(2)).
    let _ = rustix::process::setsid();
    let layout = layout(up.layout);
    let held = Place::new(&up.which.labs.lab_dir, &up.which.name).and_then(|place| {
        let hosts = held::plan(&up.hosts, layout)?;
        held::hold(
            &place,
            &hosts,
            layout,
            up.rate.and_then(|rate| rate.0),
            &outlive()?,
            || {
                // The reader has waited for the line, or has ended.
                let _ = writeln!(io::stdout(), "{READY}");
            },
        )
    });
    match held {
        Ok(()) => Outcome::Done,
        Err(error) => lab_failure(&error),
    }
}

/// Removes a lab, also a lab whose holder has died.
pub(crate) fn down(which: &Which) -> Outcome {
    let place = match place(which) {
        Ok(place) => place,
        Err(outcome) => return outcome,
    };
    match place.ask(&Request::Down) {
        Ok(_) => Outcome::Done,
        Err(AskError::Dead(_)) => match outlive().and_then(|outlive| place.clear(&outlive)) {
            Ok(()) => Outcome::Done,
            Err(error) => lab_failure(&error),
        },
        Err(error) => refused(&error),
    }
}

fn layout(layout: Layout) -> held::Layout {
    match layout {
        Layout::OneSwitch => held::Layout::OneSwitch,
        Layout::Separate => held::Layout::Separate,
        Layout::Shared => held::Layout::Shared,
    }
}

/// This program, which cleans up after its services.
fn outlive() -> Result<PathBuf, lab::Error> {
    std::env::current_exe().map_err(|source| lab::Error::Io {
        action: "find out where this program is".to_owned(),
        source,
    })
}
