//! Addresses that come and go with the service.
//!
//! Where the system brings the addresses of a service up by itself, its kernel resets, after a restart of
//! the host, every connection whose client speaks before the service is there. So they are brought up
//! by us, behind a gate that is shut already (`--address-device`). Which ones is kept in the run
//! directory: they stay when a `serve` is killed, and whoever takes over or cleans up takes them down.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    path::Path,
    process::{Command, Stdio},
};

use serde::{Deserialize, Serialize};
use supervise::local_addresses;

use crate::error::{ServeError, SystemContext};

/// The file in a service's directory.
pub(crate) const FILE: &str = "addresses.json";

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    device: String,
    addresses: Vec<IpAddr>,
}

/// Is there such a device?
pub(crate) fn check(device: &str) -> Result<(), ServeError> {
    // A name is no path, and all devices there are links.
    if device.contains('/') || !Path::new("/sys/class/net").join(device).is_symlink() {
        return Err(ServeError::NoDevice(device.to_owned()));
    }
    Ok(())
}

/// Bring those up that the host does not have.
pub(crate) fn bring_up(
    directory: &Path,
    device: &str,
    addresses: &[SocketAddr],
) -> Result<(), ServeError> {
    let present: Vec<IpAddr> = local_addresses()
        .doing("list this host's addresses")?
        .into_iter()
        .map(|local| local.ip)
        .collect();
    let mut kept = read(directory)?;
    device.clone_into(&mut kept.device);
    for address in addresses {
        let ip = address.ip().to_canonical();
        if present.contains(&ip) {
            continue;
        }
        // First noted, then done: nothing is left behind whenever we are killed.
        kept.addresses.retain(|known| *known != ip);
        kept.addresses.push(ip);
        write(directory, &kept)?;
        run("add", device, ip).doing("bring up an address of the service")?;
    }
    Ok(())
}

/// Take down what was brought up for the service in this directory. Tells how many.
pub(crate) fn take_down(directory: &Path) -> Result<usize, ServeError> {
    let kept = read(directory)?;
    let mut taken = 0;
    for ip in &kept.addresses {
        // It may have been taken down by hand, or have gone with its device.
        match run("del", &kept.device, *ip) {
            Ok(()) => taken += 1,
            Err(error) => tracing::debug!(%ip, %error, "an address was not taken down"),
        }
    }
    match fs::remove_file(directory.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).doing("forget the addresses of the service")
        }
        _ => Ok(taken),
    }
}

fn read(directory: &Path) -> Result<Kept, ServeError> {
    let doing = "read which addresses belong to the service";
    match fs::read(directory.join(FILE)) {
        Ok(text) => serde_json::from_slice(&text)
            .map_err(io::Error::other)
            .doing(doing),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kept::default()),
        Err(error) => Err(error).doing(doing),
    }
}

fn write(directory: &Path, kept: &Kept) -> Result<(), ServeError> {
    let text = serde_json::to_vec(kept).map_err(io::Error::other);
    text.and_then(|text| fs::write(directory.join(FILE), text))
        .doing("note the addresses of the service")
}

/// `ip address add` or `del`, alone in its network: nothing else is routed by it.
fn run(action: &str, device: &str, ip: IpAddr) -> io::Result<()> {
    let prefix = if ip.is_ipv4() { 32 } else { 128 };
    let address = format!("{ip}/{prefix}");
    let mut command = Command::new("ip");
    command.args(["address", action, &address, "dev", device]);
    if ip.is_ipv6() && action == "add" {
        command.arg("nodad"); // who waits for it would miss the clients' patience
    }
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!(
        "ip address {action} {address} dev {device}: {}",
        said.trim()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_to_be_there() {
        check("lo").unwrap();
        for name in ["none-such", "", "../net/lo", ".."] {
            assert!(check(name).is_err(), "{name}");
        }
    }

    #[test]
    fn what_is_there_already_is_neither_brought_up_nor_taken_down() {
        let directory = tempfile::tempdir().unwrap();
        let here: SocketAddr = "127.0.0.1:80".parse().unwrap();
        bring_up(directory.path(), "lo", &[here]).unwrap();
        assert_eq!(take_down(directory.path()).unwrap(), 0);
        assert!(local_addresses().unwrap().iter().any(|l| l.ip == here.ip()));
    }

    #[test]
    fn rubbish_in_the_file_is_no_reason_to_do_anything() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), "rubbish").unwrap();
        assert!(take_down(directory.path()).is_err());
    }
}
