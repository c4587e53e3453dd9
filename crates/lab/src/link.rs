//! The cable between a host's interface and the switch, and how it is broken.
//!
//! A link is a veth pair: `eth0` in the host, `port<n>` in the switch. Between the port and
//! the bridge there are three ways:
//!
//! - *direct*: the port is a port of the bridge, at full speed;
//! - *relayed*: the [`Relay`] sits between the port and a second veth pair, `near<n>` and
//!   `far<n>`, whose far end is the bridge's port. Impaired links and those that are cut in
//!   one direction go this way;
//! - *detached*: the port leads nowhere. The host's interface keeps its carrier, so
//!   nobody is told that the link is cut, as when a cable further away is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Doing;
use crate::namespace::Namespace;
use crate::packet_socket::PacketSocket;
use crate::relay::{Relay, Way, Ways};
use crate::switch::Switch;
use crate::tools::run;
use crate::{Address, Direction, Error, Impairment};

/// A host's link. Clones are the same link.
#[derive(Clone, Debug)]
pub struct Link {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    host: String,
    interface: String,
    address: Address,
    number: u32,
    bridge: String,
    switch: Arc<Switch>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The host's namespace while the link's ends exist.
    plugged: Option<Arc<Namespace>>,
    to_host: Setting,
    from_host: Setting,
    path: Path,
}

/// What is wanted of one direction. It outlasts a loss of power.
#[derive(Debug, Default)]
struct Setting {
    impairment: Option<Impairment>,
    cut: bool,
}

#[derive(Debug)]
enum Path {
    Detached,
    Direct,
    Relayed(Relay),
}

impl Link {
    /// A link that is not there yet.
    pub(crate) fn new(
        host: &str,
        interface: &str,
        address: Address,
        switch: &Arc<Switch>,
    ) -> Result<Self, Error> {
        let state = State {
            plugged: None,
            to_host: Setting::default(),
            from_host: Setting::default(),
            path: Path::Detached,
        };
        let inner = Inner {
            host: host.to_owned(),
            interface: interface.to_owned(),
            address,
            number: switch.next_port(),
            bridge: switch.bridge(address.subnet())?,
            switch: Arc::clone(switch),
            state: Mutex::new(state),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The interface's name in the host.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.inner.interface
    }

    /// Its place: subnet, number and addresses.
    #[must_use]
    pub fn address(&self) -> Address {
        self.inner.address
    }

    /// Cuts the link both ways. When this returns nothing passes; what was under way is
    /// lost. The host's interface stays up.
    ///
    /// # Errors
    /// [`Error::Command`] when `ip` fails.
    pub fn cut(&self) -> Result<(), Error> {
        self.change(|to_host, from_host| (to_host.cut, from_host.cut) = (true, true))
    }

    /// Cuts one direction of the link, as a broken strand of a fibre does.
    ///
    /// # Errors
    /// [`Error::Command`] or [`Error::Io`] when the relay cannot be put in the way.
    pub fn cut_one_way(&self, direction: Direction) -> Result<(), Error> {
        self.change(|to_host, from_host| match direction {
            Direction::ToHost => to_host.cut = true,
            Direction::FromHost => from_host.cut = true,
        })
    }

    /// Ends all cuts. An impairment stays.
    ///
    /// # Errors
    /// As for [`Link::cut_one_way`].
    pub fn heal(&self) -> Result<(), Error> {
        self.change(|to_host, from_host| (to_host.cut, from_host.cut) = (false, false))
    }

    /// Impairs both directions alike, in place of what was set before, and prints the
    /// impairment with its seed to standard error when its seed matters.
    ///
    /// A few frames can be lost when the first impairment is set and when the last is
    /// cleared; not when one takes the place of another.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value out of range, else as for [`Link::cut_one_way`].
    pub fn impair(&self, impairment: &Impairment) -> Result<(), Error> {
        self.announce(impairment, "both ways")?;
        self.change(|to_host, from_host| {
            to_host.impairment = Some(impairment.clone());
            from_host.impairment = Some(impairment.clone());
        })
    }

    /// Impairs one direction, and leaves the other as it is.
    ///
    /// # Errors
    /// As for [`Link::impair`].
    pub fn impair_one_way(
        &self,
        direction: Direction,
        impairment: &Impairment,
    ) -> Result<(), Error> {
        let way = match direction {
            Direction::ToHost => "to the host",
            Direction::FromHost => "from the host",
        };
        self.announce(impairment, way)?;
        self.change(|to_host, from_host| {
            let setting = match direction {
                Direction::ToHost => to_host,
                Direction::FromHost => from_host,
            };
            setting.impairment = Some(impairment.clone());
        })
    }

    /// Ends the impairment of both directions; what was under way arrives at once. A cut
    /// stays.
    ///
    /// # Errors
    /// As for [`Link::cut_one_way`].
    pub fn clear_impairment(&self) -> Result<(), Error> {
        self.change(|to_host, from_host| {
            (to_host.impairment, from_host.impairment) = (None, None);
        })
    }

    /// Checks an impairment and prints it, so that a failed test can be run again.
    fn announce(&self, impairment: &Impairment, way: &str) -> Result<(), Error> {
        impairment.check()?;
        let Inner {
            host, interface, ..
        } = &*self.inner;
        tracing::info!(host, interface, way, %impairment, "a link is impaired");
        if impairment.is_random() {
            eprintln!("lab: {host} {interface} {way}: {impairment}");
        }
        Ok(())
    }

    /// Changes what is wanted, and makes it so if the host is on.
    fn change(&self, change: impl FnOnce(&mut Setting, &mut Setting)) -> Result<(), Error> {
        let mut state = self.inner.lock();
        let State {
            to_host, from_host, ..
        } = &mut *state;
        change(to_host, from_host);
        self.inner.establish(&mut state)
    }

    /// Makes the link, with its addresses, in the namespace of a host.
    pub(crate) fn plug(&self, namespace: &Arc<Namespace>) -> Result<(), Error> {
        let mut state = self.inner.lock();
        let (port, interface) = (self.inner.port(), self.interface());
        let address = self.address();
        self.inner.switch.namespace().ip(&format!(
            "link add name {port} type veth peer name {interface} address {mac} netns {name}\n\
             link set dev {port} up\n",
            mac = address.mac(),
            name = namespace.name(),
        ))?;
        namespace.ip(&format!(
            "link set dev {interface} up\n\
             address add {ipv4}/24 broadcast + dev {interface}\n\
             address add {ipv6}/64 dev {interface} nodad\n",
            ipv4 = address.ipv4(),
            ipv6 = address.ipv6(),
        ))?;
        state.plugged = Some(Arc::clone(namespace));
        self.inner.establish(&mut state)
    }

    /// Removes both ends. When this returns nothing passes, and nothing is under way.
    pub(crate) fn unplug(&self) -> Result<(), Error> {
        let mut state = self.inner.lock();
        if state.plugged.take().is_none() {
            return Ok(());
        }
        let mut script = format!("link delete dev {}\n", self.inner.port());
        if let Path::Relayed(relay) = &state.path {
            relay.set(&Ways::closed());
            script += &format!("link delete dev {}\n", self.inner.near());
        }
        let removed = self.inner.switch.namespace().ip(&script);
        state.path = Path::Detached;
        removed
    }
}

impl Inner {
    /// A panic elsewhere leaves the state as true as the last command.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn port(&self) -> String {
        format!("port{}", self.number)
    }

    fn near(&self) -> String {
        format!("near{}", self.number)
    }

    fn far(&self) -> String {
        format!("far{}", self.number)
    }

    /// Takes the way that the settings ask for.
    fn establish(&self, state: &mut State) -> Result<(), Error> {
        let Some(host) = state.plugged.clone() else {
            return Ok(());
        };
        let (to_host, from_host) = (&state.to_host, &state.from_host);
        if to_host.cut && from_host.cut {
            self.detach(&mut state.path, &host)
        } else if [to_host, from_host]
            .iter()
            .any(|way| way.cut || way.impairment.is_some())
        {
            let ways = Ways {
                to_host: to_host.way(),
                from_host: from_host.way(),
            };
            self.relay(&mut state.path, &host, &ways)
        } else {
            self.attach(&mut state.path, &host)
        }
    }

    fn detach(&self, path: &mut Path, host: &Arc<Namespace>) -> Result<(), Error> {
        match path {
            Path::Detached => Ok(()),
            Path::Direct => {
                let port = self.port();
                self.switch
                    .namespace()
                    .ip(&format!("link set dev {port} nomaster\n"))?;
                *path = Path::Detached;
                Ok(())
            }
            Path::Relayed(relay) => {
                relay.set(&Ways::closed());
                *path = Path::Detached;
                self.remove_relay(host, "")
            }
        }
    }

    fn attach(&self, path: &mut Path, host: &Arc<Namespace>) -> Result<(), Error> {
        let attach = format!("link set dev {} master {}\n", self.port(), self.bridge);
        match path {
            Path::Direct => return Ok(()),
            Path::Detached => self.switch.namespace().ip(&attach)?,
            Path::Relayed(_) => {
                *path = Path::Detached;
                self.remove_relay(host, &attach)?;
            }
        }
        *path = Path::Direct;
        Ok(())
    }

    fn relay(&self, path: &mut Path, host: &Arc<Namespace>, ways: &Ways) -> Result<(), Error> {
        if let Path::Relayed(relay) = path {
            relay.set(ways);
            return Ok(());
        }
        let relay = self.insert_relay(host).inspect_err(|_| {
            // Nothing of a half-built relay may stand in the way of the next try.
            let near = self.near();
            let _ = self
                .switch
                .namespace()
                .ip(&format!("link delete dev {near}\n"));
        })?;
        relay.set(ways);
        *path = Path::Relayed(relay);
        Ok(())
    }

    /// Builds a relay, closed both ways, and moves the link over to it.
    fn insert_relay(&self, host: &Arc<Namespace>) -> Result<Relay, Error> {
        let switch = self.switch.namespace();
        let (port, near, far) = (self.port(), self.near(), self.far());
        switch.ip(&format!(
            "link add name {near} type veth peer name {far}\n\
             link set dev {near} up\n\
             link set dev {far} up\n"
        ))?;
        offload(switch, &far, false)?;
        offload(host, &self.interface, false)?;
        let open = |interface: &str| PacketSocket::open(interface, true);
        let (to_host, to_bridge) =
            switch
                .enter(|| Ok((open(&port)?, open(&near)?)))?
                .map_err(|source| Error::Io {
                    action: format!("open packet sockets on {port} and {near}"),
                    source,
                })?;
        let name = format!("{} {}", self.host, self.interface);
        let relay = Relay::start(&name, to_host, to_bridge, &Ways::closed())
            .doing(|| format!("start the relay of {name}"))?;
        switch.ip(&format!(
            "link set dev {port} nomaster\n\
             link set dev {far} master {}\n",
            self.bridge
        ))?;
        Ok(relay)
    }

    /// Removes what [`Inner::insert_relay`] built, except the relay, and then does `next`.
    fn remove_relay(&self, host: &Arc<Namespace>, next: &str) -> Result<(), Error> {
        let near = self.near();
        self.switch
            .namespace()
            .ip(&format!("link delete dev {near}\n{next}"))?;
        offload(host, &self.interface, true)
    }
}

impl Setting {
    fn way(&self) -> Way {
        Way {
            impairment: self
                .impairment
                .clone()
                .unwrap_or_else(|| Impairment::with_seed(0)),
            cut: self.cut,
        }
    }
}

/// Whether a device may be given several segments as one. Without it the kernel cuts them
/// before the device, so that the relay's losses are those of single segments.
fn offload(namespace: &Arc<Namespace>, interface: &str, on: bool) -> Result<(), Error> {
    let value = if on { "on" } else { "off" };
    let mut command = namespace.command("ethtool");
    command.args(["-K", interface]);
    for feature in ["tso", "gso", "tx-udp-segmentation"] {
        command.args([feature, value]);
    }
    run(&mut command)
}
