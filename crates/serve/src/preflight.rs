//! What must be so before a service can be protected; `outlive check` prints it.

use std::{ffi::OsString, net::SocketAddr, path::Path};

use dataplane::MOST_ADDRESSES;
use serde::Serialize;
use supervise::{address_is_local, check_destroy_supported, listener_on, local_addresses, resolve};

use crate::{
    error::{Fault, ServeError, SystemContext},
    leasing, link, own_addresses,
};

/// Result of one question.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub question: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What was found, and what to do if it is not.
    pub answer: String,
    /// Whose fault it is, if it is not, and whether time helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

impl Finding {
    fn of(question: &str, result: Result<String, ServeError>) -> Self {
        Self {
            question: question.to_owned(),
            ok: result.is_ok(),
            fault: result.as_ref().err().map(ServeError::fault),
            answer: result.unwrap_or_else(|error| error.to_string()),
        }
    }
}

/// Why `serve` would not begin: what time does not mend comes first.
#[must_use]
pub fn fault_of(findings: &[Finding]) -> Option<Fault> {
    let faults = findings.iter().filter_map(|finding| finding.fault);
    let passes = |fault: &Fault| matches!(fault, Fault::Missing | Fault::InTheWay);
    let mut faults = faults.peekable();
    let first = faults.peek().copied();
    faults.find(|fault| !passes(fault)).or(first)
}

/// May we?
///
/// # Errors
/// We are not root.
pub fn privileges() -> Result<(), ServeError> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(ServeError::NotRoot)
    }
}

/// Can these addresses be protected here, and are they free?
///
/// # Errors
/// The first one that cannot, and why.
pub fn addresses(addresses: &[SocketAddr]) -> Result<(), ServeError> {
    addresses_on(addresses, None)
}

/// The same, of addresses that may be still to be brought up on this device.
pub(crate) fn addresses_on(
    addresses: &[SocketAddr],
    device: Option<&str>,
) -> Result<(), ServeError> {
    if let Some(device) = device {
        own_addresses::check(device)?;
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

/// Can this command be run?
///
/// # Errors
/// There is no such program, or it cannot be executed.
pub fn command(command: &[OsString]) -> Result<(), ServeError> {
    let program = command.first().ok_or(supervise::SpawnError::Empty)?;
    resolve(program)?;
    Ok(())
}

/// Can what this command's server is told be recorded (`--north`)? As far as its file says.
///
/// # Errors
/// Why not.
pub fn recordable(command: &[OsString]) -> Result<(), ServeError> {
    let program = command.first().ok_or(supervise::SpawnError::Empty)?;
    wrap::program::check(&resolve(program)?)?;
    Ok(())
}

/// Can this logger be used with the first key of this file? Tells how it answers.
///
/// # Errors
/// The key file is none, nobody answers there, by TCP or by UDP, or does not want us.
pub fn logger(at: SocketAddr, key_file: &Path) -> Result<String, ServeError> {
    link::check(at, key_file)
}

/// A name that can be a directory.
///
/// # Errors
/// It cannot.
pub fn name(name: &str) -> Result<(), ServeError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let begins_well = !name.starts_with(['.', '-']);
    if name.is_empty() || name.len() > 64 || !begins_well || !name.chars().all(fits) {
        return Err(ServeError::BadName(name.to_owned()));
    }
    Ok(())
}

/// Can several hosts serve these addresses by turns, at the word of the logger?
///
/// # Errors
/// Why not.
pub fn takeover(at: &[SocketAddr], device: &str, loggers: &[SocketAddr]) -> Result<(), ServeError> {
    if loggers.len() > 1 {
        return Err(ServeError::SeveralLoggers);
    }
    leasing::obstacle(at, device)?.map_or(Ok(()), Err)
}

/// Look at this kernel, and at addresses (to be brought up on a device, if one is named), a command (whose server
/// has state, if it is `wrapped`) and loggers if given.
#[must_use]
pub fn report(
    at: &[SocketAddr],
    device: Option<&str>,
    argv: &[OsString],
    wrapped: bool,
    loggers: &[SocketAddr],
    key_file: Option<&Path>,
) -> Vec<Finding> {
    let mut findings = vec![
        finding("privileges", privileges(), "root"),
        finding(
            "kernel: programs load",
            dataplane::probe().map_err(Into::into),
            "all of them",
        ),
        finding(
            "kernel: sockets can be destroyed",
            check_destroy_supported().map_err(Into::into),
            "INET_DIAG_DESTROY",
        ),
    ];
    if !at.is_empty() {
        let good = match device {
            None => "on this host, and free",
            Some(_) => "free, here or to be brought up",
        };
        findings.push(finding("addresses", addresses_on(at, device), good));
    }
    if let Some(device) = device.filter(|_| !loggers.is_empty()) {
        findings.push(finding(
            "another host can take over",
            takeover(at, device, loggers),
            "whichever the logger grants it to, at any time",
        ));
    }
    if !argv.is_empty() {
        findings.push(finding("command", command(argv), "found and executable"));
    }
    if wrapped && !argv.is_empty() {
        let good = "the library can be preloaded; whether its threads serve clients is seen when one speaks";
        findings.push(finding(
            "the server's state can be rebuilt",
            recordable(argv),
            good,
        ));
    }
    for (at, key_file) in loggers.iter().zip(std::iter::repeat(key_file)) {
        if let Some(key_file) = key_file {
            let found = logger(*at, key_file);
            findings.push(Finding::of(&format!("logger {at}"), found));
        }
    }
    findings
}

fn finding(question: &str, result: Result<(), ServeError>, good: &str) -> Finding {
    Finding::of(question, result.map(|()| good.to_owned()))
}
