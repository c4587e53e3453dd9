//! `outlive lab status` and `list`.

use std::io::{self, Write};

use lab::held::{AskError, HostStatus, Layout, LinkStatus, Place, Status, WayStatus};

use super::{ask_status, place, refused};
use crate::{
    arguments::lab::{List, Status as Arguments},
    exit::Outcome,
};

/// Prints a line; the reader may be gone.
fn line(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

pub(super) fn json(value: &impl serde::Serialize) {
    if let Ok(text) = serde_json::to_string(value) {
        line(&text);
    }
}

pub(super) fn status(arguments: &Arguments) -> Outcome {
    let asked = place(&arguments.which)
        .and_then(|place| ask_status(&place).map_err(|error| refused(&error)));
    match asked {
        Ok(status) if arguments.json => json(&status),
        Ok(status) => show(&status),
        Err(outcome) => return outcome,
    }
    Outcome::Done
}

pub(super) fn list(arguments: &List) -> Outcome {
    let places = Place::all(&arguments.labs.lab_dir);
    if places.is_empty() && !arguments.json {
        line(&format!("no lab in {}", arguments.labs.lab_dir.display()));
    }
    for place in places {
        match ask_status(&place) {
            Ok(status) if arguments.json => json(&status),
            Ok(status) => line(&format!("{}: {}", status.name, hosts(&status))),
            // A lab that has just ended does not belong in the list.
            Err(AskError::NoLab(_)) => {}
            Err(error) => {
                refused(&error);
            }
        }
    }
    Outcome::Done
}

fn hosts(status: &Status) -> String {
    let names = status.hosts.iter().map(|host| match host.on {
        true => host.name.clone(),
        false => format!("{} (off)", host.name),
    });
    names.collect::<Vec<_>>().join(", ")
}

/// The lab for people.
pub(super) fn show(status: &Status) {
    let layout = match status.layout {
        Layout::OneSwitch => "one switch",
        Layout::Separate => "a switch for clients, one for loggers",
        Layout::Shared => "one shared medium",
    };
    line(&format!(
        "lab {}: {layout}; held by process {}",
        status.name, status.pid
    ));
    status.hosts.iter().for_each(show_host);
}

fn show_host(host: &HostStatus) {
    let off = if host.on { "" } else { " (off)" };
    line(&format!(
        "  {}{off}: namespace {}",
        host.name, host.namespace
    ));
    for link in &host.links {
        let addresses = format!("{} {} {}", link.interface, link.ipv4, link.ipv6);
        line(&format!("    {addresses}{}", condition(link)));
    }
    for (pid, name) in &host.processes {
        line(&format!("    process {pid} {name}"));
    }
}

/// The impairments of a link, per direction if the directions differ.
fn condition(link: &LinkStatus) -> String {
    let mut said = String::new();
    if link.mtu != 1500 {
        said += &format!(", MTU {}", link.mtu);
    }
    let whole = WayStatus::default();
    if link.to_host == link.from_host {
        if link.to_host != whole {
            said += &format!(", {}", link.to_host);
        }
        return said;
    }
    for (way, name) in [(&link.to_host, "to"), (&link.from_host, "from")] {
        if *way != whole {
            said += &format!(", {name} the host: {way}");
        }
    }
    said
}
