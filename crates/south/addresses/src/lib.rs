//! Addresses that come and go with the service.
//!
//! If the system brings the addresses of a service up at boot, the kernel resets every connection whose client sends
//! before the service is there. Therefore `serve` brings the addresses up behind a gate that is already shut
//! (`--address-device`), and announces the addresses to the neighbours at once.
//!
//! The run directory lists these addresses. The addresses stay when a `serve` is killed; the next `serve`, or `outlive
//! clean`, takes the addresses down. Without either, the addresses expire: `serve` extends each address by
//! ten minutes, again and again.

#![forbid(unsafe_code)]

mod error;
mod garp;

use std::{
    collections::BTreeSet,
    fs,
    fs::File,
    io::{self, Write},
    net::{IpAddr, SocketAddr},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use dataplane::{Announcer, ethernet_interfaces, holder_of};
use serde::{Deserialize, Serialize};
use supervise::{Addresses, HostAddress};

use error::SystemContext;
pub use error::{AddressError, LinkLayer};
use garp::Burst;

/// The file in a service's directory.
pub const FILE: &str = "addresses.json";
/// The same before the file is complete.
const UNFINISHED_FILE: &str = "addresses.new";

/// Lifetime of an address that no `serve` holds. Until then a server without a `serve` goes on, unprotected, and the
/// next `serve` finds everything in place. Equal to the time that a logger retains records by default (`--retention`):
/// afterwards the records are gone, a takeover is useless, and the address is free for another host.
const ADDRESS_LIFETIME: Duration = Duration::from_secs(600);
/// Interval at which the lifetime of the addresses begins again.
const HOLD_INTERVAL: Duration = Duration::from_secs(5);

/// Time after which the kernel receives packets for a new address, and the interval between two looks.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(100);
const RECEIVE_POLL_INTERVAL: Duration = Duration::from_micros(100);

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct StoredAddresses {
    device: String,
    addresses: Vec<IpAddr>,
}

/// The service addresses that this host has because this host serves.
pub struct VirtualAddresses {
    device: String,
    ips: Vec<IpAddr>,
    host: Addresses,
    announcer: Announcer,
    burst: Burst,
    hold_at: Duration,
}

/// Whether there is such a device.
///
/// # Errors
/// [`AddressError::NoDevice`].
pub fn check(device: &str) -> Result<(), AddressError> {
    number_of(device).map(|_| ())
}

/// Asks the neighbours on the link for the addresses that this host does not have yet.
///
/// # Errors
/// [`AddressError::InUse`].
pub fn refuse_in_use(device: &str, addresses: &[SocketAddr]) -> Result<(), AddressError> {
    let present = list(&mut open()?)?;
    let has = |ip: &IpAddr| present.iter().any(|one| one.ip == *ip);
    let all: BTreeSet<IpAddr> = addresses
        .iter()
        .map(|one| one.ip().to_canonical())
        .collect();
    let wanted: Vec<IpAddr> = all.into_iter().filter(|ip| !has(ip)).collect();
    for interface in ethernet_interfaces()? {
        if interface.name != device {
            continue;
        }
        match holder_of(&interface, &wanted) {
            Ok(None) => {}
            Ok(Some((ip, mac))) => {
                let device = device.to_owned();
                return Err(AddressError::InUse { ip, device, mac });
            }
            // The device may be down.
            Err(error) => tracing::debug!(%error, device, "the neighbours were not asked"),
        }
    }
    Ok(())
}

impl VirtualAddresses {
    /// Whether this address goes with the service.
    #[must_use]
    pub fn has(&self, ip: IpAddr) -> bool {
        self.ips.contains(&ip)
    }

    /// Bring up the missing addresses, and announce the addresses to the neighbours. `None`: the host has all
    /// addresses.
    ///
    /// # Errors
    /// The system refuses.
    pub fn bring_up(
        directory: &Path,
        device: &str,
        addresses: &[SocketAddr],
        now: Duration,
    ) -> Result<Option<Self>, AddressError> {
        let number = number_of(device)?;
        let mut stored = read(directory)?;
        if stored.device != device {
            // The addresses now belong on another device.
            take_down(directory)?;
            stored = StoredAddresses::default();
        }
        let mut host = open()?;
        let present = list(&mut host)?;
        let ips = managed(addresses, &present, &stored.addresses, number);
        // Stored before the change: a killed `serve` leaves no unknown address behind.
        stored.device = device.to_owned();
        stored.addresses.clone_from(&ips);
        write(directory, &stored)?;
        if ips.is_empty() {
            return Ok(None);
        }
        for ip in &ips {
            host.hold(*ip, number, ADDRESS_LIFETIME)
                .doing("bring up an address of the service")?;
        }
        for ip in &ips {
            await_received(&mut host, *ip)?;
        }
        let mut brought_up = Self {
            device: stored.device,
            ips,
            host,
            announcer: Announcer::new()?,
            burst: Burst::begin(now),
            hold_at: now + HOLD_INTERVAL,
        };
        brought_up.announce_if_due(now);
        Ok(Some(brought_up))
    }

    /// Time of the next action.
    #[must_use]
    pub fn due(&self) -> Duration {
        let burst = self.burst.due();
        burst.map_or(self.hold_at, |due| due.min(self.hold_at))
    }

    /// Announce and hold the addresses when due. Returns addresses that were gone and are up again: another program
    /// removed the address, or the device was down, which removes IPv6 addresses.
    ///
    /// # Errors
    /// The system refuses.
    pub fn poll(&mut self, now: Duration) -> Result<Vec<IpAddr>, AddressError> {
        self.announce_if_due(now);
        if now < self.hold_at {
            return Ok(Vec::new());
        }
        self.hold_at = now + HOLD_INTERVAL;
        let gone = self.hold()?;
        if !gone.is_empty() {
            self.burst = Burst::begin(now);
            self.announce_if_due(now);
        }
        Ok(gone)
    }

    fn hold(&mut self) -> Result<Vec<IpAddr>, AddressError> {
        let number = number_of(&self.device)?;
        let present = list(&mut self.host)?;
        let mut gone = Vec::new();
        for ip in &self.ips {
            match present.iter().find(|one| one.ip == *ip) {
                Some(one) if is_managed(one, number) => {}
                Some(_) => continue, // the address has another owner now
                None => gone.push(*ip),
            }
            self.host
                .hold(*ip, number, ADDRESS_LIFETIME)
                .doing("hold an address of the service")?;
        }
        Ok(gone)
    }

    fn announce_if_due(&mut self, now: Duration) {
        if self.burst.step(now)
            && let Err(error) = self.announce()
        {
            // The device may be down; the announcement is repeated.
            tracing::debug!(%error, device = self.device, "the neighbours were not told");
        }
    }

    fn announce(&self) -> Result<(), AddressError> {
        // Looked up each time: a new card may have replaced a failed card.
        for interface in ethernet_interfaces()? {
            if interface.name == self.device {
                for ip in &self.ips {
                    self.announcer.announce(&interface, *ip)?;
                }
            }
        }
        Ok(())
    }
}

/// The first packet from the address makes the kernel resolve a neighbour. If the neighbour's reply comes too early,
/// the kernel asks again a second later, and sends no packet before.
fn await_received(host: &mut Addresses, ip: IpAddr) -> Result<(), AddressError> {
    let until = Instant::now() + RECEIVE_TIMEOUT;
    while !host
        .is_received(ip)
        .doing("see whether a new address is there")?
        && Instant::now() < until
    {
        thread::sleep(RECEIVE_POLL_INTERVAL); // the kernel's thread may need this processor
    }
    Ok(())
}

/// Addresses that `serve` brings up and takes down: the host lacks the address, or has the address only from an earlier
/// `serve`.
fn managed(
    addresses: &[SocketAddr],
    present: &[HostAddress],
    stored: &[IpAddr],
    device: u32,
) -> Vec<IpAddr> {
    let mut ours = Vec::new();
    for ip in addresses.iter().map(|address| address.ip().to_canonical()) {
        let wanted = match present.iter().find(|one| one.ip == ip) {
            None => true,
            Some(one) => stored.contains(&ip) && is_managed(one, device),
        };
        if wanted && !ours.contains(&ip) {
            ours.push(ip);
        }
    }
    ours
}

/// A permanent address belongs to the system, whatever an earlier incarnation has stored.
fn is_managed(address: &HostAddress, device: u32) -> bool {
    address.device == device && !address.permanent
}

/// Take down the addresses that were brought up for the service in this directory. Returns the number of addresses.
///
/// # Errors
/// The system refuses.
pub fn take_down(directory: &Path) -> Result<usize, AddressError> {
    let stored = read(directory)?;
    let mut taken = 0;
    // Without the device there are none.
    if let (false, Ok(number)) = (stored.addresses.is_empty(), number_of(&stored.device)) {
        let mut host = open()?;
        for address in list(&mut host)? {
            if stored.addresses.contains(&address.ip) && is_managed(&address, number) {
                let removed = host.remove(address.ip, number);
                taken += usize::from(removed.doing("take down an address of the service")?);
            }
        }
        // Waiting packets from the address would leave after the end of the fence.
        host.drop_waiting()
            .doing("give up what waits for a neighbour")?;
    }
    match fs::remove_file(directory.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).doing("forget the addresses of the service")
        }
        _ => Ok(taken),
    }
}

fn open() -> Result<Addresses, AddressError> {
    Addresses::open().doing("ask the kernel for this host's addresses")
}

fn list(host: &mut Addresses) -> Result<Vec<HostAddress>, AddressError> {
    host.list().doing("list this host's addresses")
}

fn number_of(device: &str) -> Result<u32, AddressError> {
    let number = Addresses::device(device).doing("look a network device up")?;
    number.ok_or_else(|| AddressError::NoDevice(device.to_owned()))
}

fn read(directory: &Path) -> Result<StoredAddresses, AddressError> {
    let doing = "read which addresses belong to the service";
    match fs::read(directory.join(FILE)) {
        Ok(text) => serde_json::from_slice(&text)
            .map_err(io::Error::other)
            .doing(doing),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(StoredAddresses::default()),
        Err(error) => Err(error).doing(doing),
    }
}

fn write(directory: &Path, stored: &StoredAddresses) -> Result<(), AddressError> {
    keep(directory, stored).doing("note the addresses of the service")
}

/// After a kill at any time, the old file or the new file is there: half a file would stop every start.
fn keep(directory: &Path, stored: &StoredAddresses) -> io::Result<()> {
    let new = directory.join(UNFINISHED_FILE);
    let text = serde_json::to_vec(stored).map_err(io::Error::other)?;
    let mut writing = File::create(&new)?;
    writing.write_all(&text)?;
    writing.sync_all()?;
    fs::rename(&new, directory.join(FILE))
}

#[cfg(test)]
mod tests;
