//! The lab: a switch, hosts, and the removal of both.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Doing;
use crate::janitor::Janitor;
use crate::link::Link;
use crate::namespace::NETNS_DIRECTORY;
use crate::switch::Switch;
use crate::tools::run;
use crate::{Address, Error, Host};

/// Set to `1`, this leaves the lab in place for a look.
const KEEP_VARIABLE: &str = "OUTLIVE_LAB_KEEP";

/// The name of the switch among the hosts.
const SWITCH_NAME: &str = "switch";

/// Labs that this process has made or tried to.
static LAB_COUNT: AtomicU32 = AtomicU32::new(0);

/// Hosts on a switch.
///
/// A drop of a lab kills every process on the hosts and removes the hosts. When the process that made the lab dies
/// without the drop, by SIGKILL for instance, a small shell process does the same. With the variable
/// `OUTLIVE_LAB_KEEP=1` in the environment, neither happens: the lab stays and the names are printed (a process in a
/// [`Process`](crate::Process) guard ends nonetheless, and relays end with the maker of the lab).
#[derive(Debug)]
pub struct Lab {
    label: String,
    prefix: String,
    switch: Arc<Switch>,
    directory: PathBuf,
    /// Cleans up after services on the hosts.
    outlive: Option<PathBuf>,
    janitor: Option<Janitor>,
    hosts: Mutex<Vec<Host>>,
    /// Whether the lab has been removed, or is to be kept.
    done: bool,
}

impl Lab {
    /// A new lab without hosts. The label is for messages; names of namespaces are unique on the machine for any
    /// label, so labs do not collide.
    ///
    /// # Errors
    /// [`Error::NotRoot`]; [`Error::Command`] or [`Error::Io`] when a prerequisite is missing.
    pub fn new(label: &str) -> Result<Self, Error> {
        check_root()?;
        let prefix = free_prefix();
        let directory = tempfile::Builder::new()
            .prefix(&prefix)
            .tempdir()
            .doing(|| "make a temporary directory".to_owned())?;
        Self::create(label, prefix, directory.keep(), None)
    }

    /// A new lab whose files are in an existing directory, which goes with the lab. Each directory in `hosts` there is
    /// the run directory of a host's services: at the end, the lab calls `outlive` to clean each run directory.
    ///
    /// # Errors
    /// As for [`Lab::new`].
    pub(crate) fn new_in(directory: &Path, label: &str, outlive: &Path) -> Result<Self, Error> {
        check_root()?;
        let outlive = Some(outlive.to_owned());
        Self::create(label, free_prefix(), directory.to_owned(), outlive)
    }

    fn create(
        label: &str,
        prefix: String,
        directory: PathBuf,
        outlive: Option<PathBuf>,
    ) -> Result<Self, Error> {
        // Before there is anything to clean.
        let janitor = if keep() {
            None
        } else {
            let started = Janitor::start(&prefix, &directory, outlive.as_deref());
            Some(started.inspect_err(|_| {
                let _ = fs::remove_dir_all(&directory);
            })?)
        };
        let switch = Switch::create(&format!("{prefix}{SWITCH_NAME}"))?;
        tracing::debug!(label, prefix, "a lab is made");
        Ok(Self {
            label: label.to_owned(),
            prefix,
            switch: Arc::new(switch),
            directory,
            outlive,
            janitor,
            hosts: Mutex::default(),
            done: false,
        })
    }

    /// The prefix of the names of the lab's namespaces.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A directory for files, which goes with the lab.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The hosts, in the order of creation.
    #[must_use]
    pub fn hosts(&self) -> Vec<Host> {
        self.lock().clone()
    }

    /// Adds a host with the next free number in subnet 0: 10.0.0.1 is the first.
    ///
    /// # Errors
    /// As for [`Lab::add_host_at`].
    pub fn add_host(&self, name: &str) -> Result<Host, Error> {
        let taken: Vec<_> = self.lock().iter().flat_map(Host::addresses).collect();
        let free = (1..=254)
            .filter_map(|number| Address::new(0, number).ok())
            .find(|address| !taken.contains(address));
        match free {
            Some(address) => self.add_host_at(name, address.number()),
            None => Err(Error::Invalid("the lab is full".to_owned())),
        }
    }

    /// Adds a host at 10.0.0.`number` and fd00::`number` (1 to 254): switched on, `lo` and
    /// `eth0` up, connected to the other hosts.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the name or the number is taken, or the name has other
    /// characters than letters, digits, `-` and `_`; [`Error::Command`] when `ip` fails.
    pub fn add_host_at(&self, name: &str, number: u8) -> Result<Host, Error> {
        self.add_host_in(name, Address::new(0, number)?)
    }

    /// Adds a host whose `eth0` is at `address`, in whichever subnet that is.
    ///
    /// # Errors
    /// As for [`Lab::add_host_at`].
    pub fn add_host_in(&self, name: &str, address: Address) -> Result<Host, Error> {
        check_name(name)?;
        let mut hosts = self.lock();
        if hosts.iter().any(|host| host.name() == name) {
            return Err(Error::Invalid(format!("there is a host {name} already")));
        }
        check_free(&hosts, address)?;
        let namespace = format!("{}{name}", self.prefix);
        let host = Host::create(name, &namespace, address, self.directory(), &self.switch)?;
        // In the list before the power-on, so that a failure in between is cleaned up too.
        hosts.push(host.clone());
        host.power_on()?;
        Ok(host)
    }

    /// Makes a subnet without hosts a shared medium, as an Ethernet hub is, instead of a switch: all hosts together
    /// send at most so many bits per second, counted as by [`Impairment::rate`](crate::Impairment::rate). Or changes
    /// the rate of a shared medium.
    ///
    /// Unlike on a real hub there are no collisions, hosts do not back off, and frames wait in a single queue in the
    /// order of sending.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the subnet has hosts or the rate is 0; [`Error::Command`] when
    /// `ip` or `tc` fails, as without the kernel's ifb, mirred and u32.
    pub fn share(&self, subnet: u8, bits_per_second: u64) -> Result<(), Error> {
        if bits_per_second == 0 {
            return Err(Error::Invalid(
                "a medium has at least 1 bit per second".to_owned(),
            ));
        }
        self.switch.share(subnet, bits_per_second)
    }

    /// Adds an interface to a host, at `address`, connected to all interfaces in that subnet: the first switch is
    /// subnet 0, each other number is a separate bridge.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the address or the interface's name is taken;
    /// [`Error::Off`]; [`Error::Command`] when `ip` fails.
    pub fn add_link(&self, host: &Host, interface: &str, address: Address) -> Result<Link, Error> {
        let hosts = self.lock();
        check_free(&hosts, address)?;
        // The kernel allows 15 bytes.
        if check_name(interface).is_err() || interface.len() > 15 || host.link(interface).is_ok() {
            return Err(Error::Invalid(format!(
                "{} cannot have an interface {interface}",
                host.name()
            )));
        }
        host.add_link(interface, address)
    }

    /// Parts two hosts: no frame of either host reaches the other host, on any link, while both reach all other hosts.
    /// As after a cut, neither host gets an error. The parting outlasts a power-off. A few frames to and from other
    /// hosts can be lost at the beginning and at the end.
    ///
    /// # Errors
    /// [`Error::Command`] or [`Error::Io`] when a relay cannot be put in the way.
    pub fn part(&self, one: &Host, other: &Host) -> Result<(), Error> {
        one.shut_out(other, true)?;
        other.shut_out(one, true)
    }

    /// Ends a [`Lab::part`].
    ///
    /// # Errors
    /// As for [`Lab::part`].
    pub fn rejoin(&self, one: &Host, other: &Host) -> Result<(), Error> {
        one.shut_out(other, false)?;
        other.shut_out(one, false)
    }

    /// Removes the lab now, and reports the remains.
    ///
    /// # Errors
    /// The first failure; all other steps were tried nonetheless.
    pub fn remove(mut self) -> Result<(), Error> {
        self.clean()
    }

    fn clean(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.done, true) {
            return Ok(());
        }
        let mut results: Vec<_> = self.lock().iter().map(Host::remove).collect();
        results.push(self.switch.namespace().kill_all());
        results.push(self.switch.namespace().delete());
        if let Some(outlive) = &self.outlive {
            results.push(clean_run_directories(outlive, &self.directory));
        }
        let removed = fs::remove_dir_all(&self.directory);
        results.push(removed.doing(|| format!("remove {}", self.directory.display())));
        let result: Result<(), Error> = results.into_iter().collect();
        match (self.janitor.take(), &result) {
            (Some(janitor), Ok(())) => janitor.dismiss(),
            // The janitor tries again to remove the remains.
            (janitor, _) => drop(janitor),
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Host>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Lab {
    /// The label, and the namespaces with addresses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lab {}: {}{SWITCH_NAME}", self.label, self.prefix)?;
        for host in self.hosts() {
            let address = host.address();
            write!(f, ", {} ({}", host.namespace(), address.ipv4())?;
            write!(f, ", {})", address.ipv6())?;
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !self.done && keep() {
            self.done = true;
            let directory = self.directory.display();
            eprintln!("{self}, files in {directory}: kept, as {KEEP_VARIABLE} says");
        }
        if let Err(error) = self.clean() {
            tracing::error!(%error, label = self.label, "a lab was not removed");
        }
    }
}

/// Calls `outlive` to clean the run directories of the hosts.
fn clean_run_directories(outlive: &Path, directory: &Path) -> Result<(), Error> {
    let hosts = directory.join("hosts");
    let entries = fs::read_dir(&hosts).doing(|| format!("list {}", hosts.display()))?;
    // Each is tried.
    let cleaned = entries.flatten();
    let cleaned = cleaned.map(|entry| clean_run_directory(outlive, &entry.path()));
    cleaned.collect::<Vec<_>>().into_iter().collect()
}

/// The same for a single host.
pub(crate) fn clean_run_directory(outlive: &Path, run_directory: &Path) -> Result<(), Error> {
    let mut command = Command::new(outlive);
    command.args(["clean", "--kill", "--run-dir"]);
    run(command.arg(run_directory))
}

fn check_root() -> Result<(), Error> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(Error::NotRoot)
    }
}

fn keep() -> bool {
    std::env::var_os(KEEP_VARIABLE).is_some_and(|value| value == "1")
}

/// A prefix that no namespace has: the process number, and a number for each lab of the process. A kept lab of a
/// process that had the same number is passed over.
fn free_prefix() -> String {
    loop {
        let lab = LAB_COUNT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("olv{}-{lab}-", std::process::id());
        if !Path::new(NETNS_DIRECTORY)
            .join(format!("{prefix}{SWITCH_NAME}"))
            .exists()
        {
            return prefix;
        }
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 64 || name == SWITCH_NAME || !name.chars().all(allowed) {
        return Err(Error::Invalid(format!("`{name}` cannot be a name")));
    }
    Ok(())
}

fn check_free(hosts: &[Host], address: Address) -> Result<(), Error> {
    match hosts
        .iter()
        .find(|host| host.addresses().contains(&address))
    {
        None => Ok(()),
        Some(host) => Err(Error::Invalid(format!(
            "{} belongs to host {}",
            address.ipv4(),
            host.name()
        ))),
    }
}
