//! A host: a network namespace with links, processes, and a power switch.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Pid, Signal};

use crate::capture::Capture;
use crate::error::Doing;
use crate::link::Link;
use crate::namespace::Namespace;
use crate::process::{Output, Process, await_stopped};
use crate::switch::Switch;
use crate::{Address, Direction, Error, Impairment, Mac};

/// The interface that each host has.
const FIRST_INTERFACE: &str = "eth0";

/// A host of a lab. Clones are the same host.
#[derive(Clone, Debug)]
pub struct Host {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    namespace_name: String,
    address: Address,
    directory: PathBuf,
    switch: Arc<Switch>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    power: Power,
    links: Vec<Link>,
}

#[derive(Debug)]
enum Power {
    On(Arc<Namespace>),
    Off,
    /// The lab is gone; there is no way back.
    Removed,
}

impl Host {
    pub(crate) fn create(
        name: &str,
        namespace_name: &str,
        address: Address,
        directory: &Path,
        switch: &Arc<Switch>,
    ) -> Result<Self, Error> {
        let link = Link::new(name, FIRST_INTERFACE, address, switch)?;
        let inner = Inner {
            name: name.to_owned(),
            namespace_name: namespace_name.to_owned(),
            address,
            directory: directory.to_owned(),
            switch: Arc::clone(switch),
            state: Mutex::new(State {
                power: Power::Off,
                links: vec![link],
            }),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The host's name in the lab.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The namespace's name, for `ip netns exec`.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.inner.namespace_name
    }

    /// The place of the host's first interface, `eth0`.
    #[must_use]
    pub fn address(&self) -> Address {
        self.inner.address
    }

    /// A command that runs on this host, with an empty standard input unless the caller sets another. Starting the
    /// command while the host is off fails.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        match self.on() {
            Ok(namespace) => namespace.command(program),
            Err(_) => off_command(program),
        }
    }

    /// Starts a command on this host, even if made for another host, as the leader of a new process group.
    ///
    /// # Errors
    /// [`Error::Off`]; [`Error::Io`] when the command cannot be started or an output file cannot be opened.
    pub fn spawn(&self, command: &mut Command, output: &Output) -> Result<Process, Error> {
        self.on()?.confine(command);
        Process::start(command, output)
    }

    /// Runs `work` on a fresh thread inside the host's namespace: sockets that `work` opens are the host's, and stay
    /// the host's afterwards. A panic of `work` continues in the caller.
    ///
    /// # Errors
    /// [`Error::Off`]; [`Error::Io`] when the namespace cannot be entered.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        self.on()?.enter(work)
    }

    /// The processes of the host, including tcpdump for captures; never the calling process.
    ///
    /// # Errors
    /// [`Error::Off`]; [`Error::Io`] when `/proc` cannot be read.
    pub fn pids(&self) -> Result<Vec<Pid>, Error> {
        self.on()?.pids()
    }

    /// Sends SIGKILL to the members of `pids` that are processes of this host, all at once, and returns when the
    /// processes are gone.
    ///
    /// # Errors
    /// [`Error::Off`]; [`Error::Survivors`] when some live on for seconds.
    pub fn kill(&self, pids: &[Pid]) -> Result<(), Error> {
        self.on()?.kill(pids)
    }

    /// Stops all processes of the host (SIGSTOP), until [`Host::resume`]. The host's kernel runs on: the kernel
    /// answers, acknowledges and retransmits. For a machine whose processors stand still, the host must also be cut
    /// off ([`Host::cut`]).
    ///
    /// # Errors
    /// [`Error::Off`]; [`Error::Io`] when `/proc` cannot be read.
    pub fn pause(&self) -> Result<(), Error> {
        let namespace = self.on()?;
        let mut stopped = 0;
        // Again, as some may have been forked meanwhile.
        loop {
            let pids = namespace.pids()?;
            for (pid, _) in namespace.signal(&pids, Signal::STOP) {
                await_stopped(pid);
            }
            if std::mem::replace(&mut stopped, pids.len()) == pids.len() {
                return Ok(());
            }
        }
    }

    /// Resumes all processes of the host.
    ///
    /// # Errors
    /// As for [`Host::pause`].
    pub fn resume(&self) -> Result<(), Error> {
        let namespace = self.on()?;
        namespace.signal(&namespace.pids()?, Signal::CONT);
        Ok(())
    }

    /// Sets a kernel parameter of the host, such as `net.ipv4.tcp_syncookies`. A power-off resets the parameter, as on
    /// a real host.
    ///
    /// # Errors
    /// [`Error::Off`]; [`Error::Io`] when there is no such parameter or value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<(), Error> {
        self.on()?.sysctl(key, value)
    }

    /// Whether the power is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on().is_ok()
    }

    /// The links, `eth0` first.
    #[must_use]
    pub fn links(&self) -> Vec<Link> {
        self.inner.lock().links.clone()
    }

    /// The link of an interface.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the host has no such interface.
    pub fn link(&self, interface: &str) -> Result<Link, Error> {
        let state = self.inner.lock();
        let link = state.links.iter().find(|l| l.interface() == interface);
        link.cloned().ok_or_else(|| {
            Error::Invalid(format!("host {} has no interface {interface}", self.name()))
        })
    }

    /// The link-layer address of an interface.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the host has no such interface.
    pub fn mac(&self, interface: &str) -> Result<Mac, Error> {
        Ok(self.link(interface)?.address().mac())
    }

    /// The kernel's number of an interface in the host, `lo` included.
    ///
    /// # Errors
    /// [`Error::Off`]; [`Error::Io`] when the host has no such interface.
    pub fn ifindex(&self, interface: &str) -> Result<u32, Error> {
        self.enter(|| {
            let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
            let socket = socket_with(AddressFamily::INET, kind, flags, None)?;
            name_to_index(&socket, interface)
        })?
        .doing(|| format!("find interface {interface} of {}", self.name()))
    }

    /// [`Link::cut`] of `eth0`.
    ///
    /// # Errors
    /// As there.
    pub fn cut(&self) -> Result<(), Error> {
        self.link(FIRST_INTERFACE)?.cut()
    }

    /// [`Link::cut_one_way`] of `eth0`.
    ///
    /// # Errors
    /// As there.
    pub fn cut_one_way(&self, direction: Direction) -> Result<(), Error> {
        self.link(FIRST_INTERFACE)?.cut_one_way(direction)
    }

    /// [`Link::heal`] of `eth0`.
    ///
    /// # Errors
    /// As there.
    pub fn heal(&self) -> Result<(), Error> {
        self.link(FIRST_INTERFACE)?.heal()
    }

    /// [`Link::impair`] of `eth0`.
    ///
    /// # Errors
    /// As there.
    pub fn impair(&self, impairment: &Impairment) -> Result<(), Error> {
        self.link(FIRST_INTERFACE)?.impair(impairment)
    }

    /// [`Link::impair_one_way`] of `eth0`.
    ///
    /// # Errors
    /// As there.
    pub fn impair_one_way(
        &self,
        direction: Direction,
        impairment: &Impairment,
    ) -> Result<(), Error> {
        self.link(FIRST_INTERFACE)?
            .impair_one_way(direction, impairment)
    }

    /// [`Link::clear_impairment`] of `eth0`.
    ///
    /// # Errors
    /// As there.
    pub fn clear_impairment(&self) -> Result<(), Error> {
        self.link(FIRST_INTERFACE)?.clear_impairment()
    }

    /// Captures the frames of `eth0`; see [`Host::capture_on`].
    ///
    /// # Errors
    /// As for [`Host::capture_on`].
    pub fn capture(&self, filter: &str) -> Result<Capture, Error> {
        self.capture_on(FIRST_INTERFACE, filter)
    }

    /// Captures the frames that an interface sends and receives, from the return of this call on. `filter` is in the
    /// language of pcap-filter(7); an empty filter passes every frame. The interface is an interface of the host or
    /// `lo`, not tcpdump's `any`.
    ///
    /// # Errors
    /// [`Error::Off`]; [`Error::CaptureNotListening`] with tcpdump's complaint about the filter or the interface;
    /// [`Error::Io`] when tcpdump is not installed.
    pub fn capture_on(&self, interface: &str, filter: &str) -> Result<Capture, Error> {
        Capture::start(&self.on()?, &self.inner.directory, interface, filter)
    }

    /// Takes the power from the host. The links go first, so that no packet of the dying processes gets out; then
    /// every process is killed; then the kernel's state goes: sockets, routes, filters, programs, parameters. Does
    /// nothing to a host that is off.
    ///
    /// # Errors
    /// [`Error::Survivors`]; [`Error::Command`] when `ip` fails.
    pub fn power_off(&self) -> Result<(), Error> {
        let mut state = self.inner.lock();
        if !matches!(state.power, Power::On(_)) {
            return Ok(());
        }
        shut_down(&mut state)
    }

    /// Returns the power: the host starts with the interfaces, the addresses, and the cuts and impairments of the
    /// links, and without processes. Does nothing to a host that is on.
    ///
    /// # Errors
    /// [`Error::Off`] when the lab has been removed; [`Error::Command`] when `ip` fails.
    pub fn power_on(&self) -> Result<(), Error> {
        let mut state = self.inner.lock();
        match state.power {
            Power::On(_) => Ok(()),
            Power::Removed => Err(self.inner.off()),
            Power::Off => {
                let namespace = Namespace::create(&self.inner.namespace_name)?;
                // From here on there is something for a shutdown to take down.
                state.power = Power::On(Arc::clone(&namespace));
                configure(&namespace)?;
                state
                    .links
                    .iter()
                    .try_for_each(|link| link.plug(&namespace))
            }
        }
    }

    /// Sets whether frames of another host are dropped.
    pub(crate) fn shut_out(&self, other: &Self, yes: bool) -> Result<(), Error> {
        for link in self.links() {
            for address in other.addresses() {
                if address.subnet() == link.address().subnet() {
                    link.shut_out(address.mac(), yes)?;
                }
            }
        }
        Ok(())
    }

    /// Adds an interface, connected to the bridge of the subnet.
    pub(crate) fn add_link(&self, interface: &str, address: Address) -> Result<Link, Error> {
        let mut state = self.inner.lock();
        let Power::On(namespace) = &state.power else {
            return Err(self.inner.off());
        };
        let link = Link::new(self.name(), interface, address, &self.inner.switch)?;
        link.plug(namespace)?;
        state.links.push(link.clone());
        Ok(link)
    }

    /// The places of all interfaces.
    pub(crate) fn addresses(&self) -> Vec<Address> {
        let state = self.inner.lock();
        state.links.iter().map(Link::address).collect()
    }

    /// The end: power off, with no way back.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        let mut state = self.inner.lock();
        let result = match state.power {
            Power::On(_) => shut_down(&mut state),
            Power::Off | Power::Removed => Ok(()),
        };
        state.power = Power::Removed;
        result
    }

    /// The namespace, if the host is on.
    fn on(&self) -> Result<Arc<Namespace>, Error> {
        match &self.inner.lock().power {
            Power::On(namespace) => Ok(Arc::clone(namespace)),
            Power::Off | Power::Removed => Err(self.inner.off()),
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn off(&self) -> Error {
        Error::Off {
            host: self.name.clone(),
        }
    }
}

/// Takes down the running parts. Each step is tried even after a failure; the first failure is returned.
fn shut_down(state: &mut State) -> Result<(), Error> {
    let Power::On(namespace) = std::mem::replace(&mut state.power, Power::Off) else {
        return Ok(());
    };
    let unplugged: Vec<_> = state.links.iter().map(Link::unplug).collect();
    let killed = namespace.kill_all();
    let deleted = namespace.delete();
    unplugged.into_iter().chain([killed, deleted]).collect()
}

/// Sets kernel parameters of a host before the links exist.
fn configure(namespace: &Arc<Namespace>) -> Result<(), Error> {
    for scope in ["all", "default"] {
        let ipv6 = format!("net.ipv6.conf.{scope}");
        // Addresses are usable at once, and only the lab configures addresses.
        for (name, value) in [
            ("disable_ipv6", "0"),
            ("accept_dad", "0"),
            ("accept_ra", "0"),
        ] {
            namespace.sysctl(&format!("{ipv6}.{name}"), value)?;
        }
        // New namespaces inherit the machine's setting; tests must not depend on that setting.
        namespace.sysctl(&format!("net.ipv4.conf.{scope}.rp_filter"), "0")?;
    }
    namespace.sysctl("net.ipv4.ping_group_range", "0 2147483647")?;
    if namespace
        .sysctl("net.ipv4.tcp_congestion_control", "cubic")
        .is_err()
    {
        tracing::info!("this kernel has no cubic; hosts use its default congestion control");
    }
    namespace.ip("link set dev lo up\n")
}

/// A command that fails at the start, with the reason.
fn off_command(program: &str) -> Command {
    let mut command = Command::new(program);
    // SAFETY: the closure only makes an error value from a number.
    unsafe { command.pre_exec(|| Err(rustix::io::Errno::NETDOWN.into())) };
    command
}
