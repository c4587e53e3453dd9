//! The cable between a host's interface and the switch, and the faults of the cable.
//!
//! A link is a veth pair: `eth0` in the host, `port<n>` in the switch. Between the port and the bridge there are three
//! ways:
//!
//! - *direct*: the port is a port of the bridge, at full speed or at a rate that the kernel enforces (see
//!   [`crate::line`]);
//! - *relayed*: the [`Relay`] sits between the port and a second veth pair, `near<n>` and `far<n>`, whose far end is
//!   the bridge's port. Links with an impairment, and links that are cut in a single direction or from a single host,
//!   go this way;
//! - *detached*: the port leads nowhere. The host's interface keeps the carrier, so the host does not notice the cut,
//!   as with a broken cable further away.

mod path;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use path::{Path, Rates};

use crate::error::Doing;
use crate::namespace::Namespace;
use crate::relay::{Way, Ways};
use crate::switch::Switch;
use crate::xdp::pass_at_xdp;
use crate::{Address, Direction, Error, Impairment, Mac};

/// The MTU of a link unless told otherwise, Ethernet's.
const DEFAULT_MTU: u32 = 1500;

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
    switch: Arc<Switch>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The host's namespace while the link's ends exist.
    plugged: Option<Arc<Namespace>>,
    to_host: Setting,
    from_host: Setting,
    mtu: u32,
    path: Path,
}

/// The settings of a direction. The settings outlast a power-off.
#[derive(Debug, Default)]
struct Setting {
    impairment: Option<Impairment>,
    cut: bool,
    /// Whose frames do not pass.
    shut_out: Vec<Mac>,
}

impl Link {
    /// A link that is not there yet.
    pub(crate) fn new(
        host: &str,
        interface: &str,
        address: Address,
        switch: &Arc<Switch>,
    ) -> Result<Self, Error> {
        // The bridge must exist before the first port.
        switch.bridge(address.subnet())?;
        let state = State {
            plugged: None,
            to_host: Setting::default(),
            from_host: Setting::default(),
            mtu: DEFAULT_MTU,
            path: Path::Detached,
        };
        let inner = Inner {
            host: host.to_owned(),
            interface: interface.to_owned(),
            address,
            number: switch.next_port(),
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

    /// The place: subnet, number and addresses.
    #[must_use]
    pub fn address(&self) -> Address {
        self.inner.address
    }

    /// Cuts the link both ways. After the return no frame passes; frames under way are lost. The host's interface
    /// stays up.
    ///
    /// # Errors
    /// [`Error::Command`] when `ip` fails.
    pub fn cut(&self) -> Result<(), Error> {
        self.change(|to_host, from_host| (to_host.cut, from_host.cut) = (true, true))
    }

    /// Cuts a direction of the link, as a broken strand of a fibre does.
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

    /// Sets whether frames of a sender are kept from the host.
    pub(crate) fn shut_out(&self, sender: Mac, yes: bool) -> Result<(), Error> {
        self.change(|to_host, _| {
            to_host.shut_out.retain(|one| *one != sender);
            to_host.shut_out.extend(yes.then_some(sender));
        })
    }

    /// Impairs both directions alike, in place of earlier impairments, and prints an impairment with a significant
    /// seed to standard error.
    ///
    /// A few frames can be lost when the first impairment is set and when the last is cleared; not when an impairment
    /// replaces another.
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

    /// Impairs a direction, and leaves the other direction unchanged.
    ///
    /// # Errors
    /// As for [`Link::impair`].
    pub fn impair_one_way(
        &self,
        direction: Direction,
        impairment: &Impairment,
    ) -> Result<(), Error> {
        self.announce(impairment, direction.in_words())?;
        self.change(|to_host, from_host| {
            let setting = match direction {
                Direction::ToHost => to_host,
                Direction::FromHost => from_host,
            };
            setting.impairment = Some(impairment.clone());
        })
    }

    /// Ends the impairment of both directions; frames under way arrive at once. A cut stays.
    ///
    /// # Errors
    /// As for [`Link::cut_one_way`].
    pub fn clear_impairment(&self) -> Result<(), Error> {
        self.change(|to_host, from_host| {
            (to_host.impairment, from_host.impairment) = (None, None);
        })
    }

    /// Sets the largest IP packet that the link carries, at both ends (68 to 65,535 bytes; 1280 is the least for
    /// IPv6). The setting outlasts a power-off.
    ///
    /// # Errors
    /// [`Error::Command`] when `ip` fails; [`Error::Invalid`] for a size out of range.
    pub fn set_mtu(&self, bytes: u32) -> Result<(), Error> {
        if !(68..=65_535).contains(&bytes) {
            return Err(Error::Invalid(format!(
                "an MTU is 68 to 65535 bytes, not {bytes}"
            )));
        }
        let mut state = self.inner.lock();
        state.mtu = bytes;
        let Some(host) = state.plugged.clone() else {
            return Ok(());
        };
        // A relay in the way was built for the old size.
        self.inner.detach(&mut state.path, &host)?;
        self.inner.resize(&host, bytes)?;
        self.inner.establish(&mut state)
    }

    /// Lets the link carry frames that a program at XDP in the host sends (`XDP_TX`), until a power-off.
    ///
    /// # Errors
    /// [`Error::Io`] when the kernel takes no such program, or the host is off.
    pub fn carry_xdp(&self) -> Result<(), Error> {
        let port = self.inner.port();
        let attach = || pass_at_xdp(&port);
        let attached = self.inner.switch.namespace().enter(attach)?;
        attached.doing(|| format!("attach a program at XDP to {port}"))
    }

    /// The MTU of the link as set, in bytes.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.inner.lock().mtu
    }

    /// Whether a direction is cut.
    #[must_use]
    pub fn is_cut(&self, direction: Direction) -> bool {
        self.inner.lock().setting(direction).cut
    }

    /// The impairment of a direction, if any.
    #[must_use]
    pub fn impairment(&self, direction: Direction) -> Option<Impairment> {
        self.inner.lock().setting(direction).impairment.clone()
    }

    /// Changes the impairment of some directions: `change` gets the present impairment of each, or an impairment
    /// without faults. An impairment without faults afterwards is cleared.
    ///
    /// # Errors
    /// As for [`Link::impair`].
    pub fn adjust(
        &self,
        directions: &[Direction],
        change: impl Fn(Impairment) -> Impairment,
    ) -> Result<(), Error> {
        let mut adjusted = Vec::new();
        for direction in directions {
            let impairment = change(self.impairment(*direction).unwrap_or_default());
            self.announce(&impairment, direction.in_words())?;
            adjusted.push((*direction, impairment));
        }
        self.change(|to_host, from_host| {
            for (direction, impairment) in adjusted {
                let setting = match direction {
                    Direction::ToHost => &mut *to_host,
                    Direction::FromHost => &mut *from_host,
                };
                setting.impairment = impairment.is_anything().then_some(impairment);
            }
        })
    }

    /// Checks an impairment and prints the impairment, so that a failed test can be repeated.
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

    /// Changes the settings, and applies the settings if the host is on.
    fn change(&self, change: impl FnOnce(&mut Setting, &mut Setting)) -> Result<(), Error> {
        let mut state = self.inner.lock();
        let State {
            to_host, from_host, ..
        } = &mut *state;
        change(to_host, from_host);
        self.inner.establish(&mut state)
    }

    /// Makes the link, with addresses, in the namespace of a host.
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
        if state.mtu != DEFAULT_MTU {
            self.inner.resize(namespace, state.mtu)?;
        }
        self.inner.establish(&mut state)
    }

    /// Removes both ends. After the return no frame passes, and no frame is under way.
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
    fn subnet(&self) -> u8 {
        self.address.subnet()
    }

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
            return self.detach(&mut state.path, &host);
        }
        if let (Some(to_host), Some(from_host)) = (to_host.kernel_rate(), from_host.kernel_rate()) {
            let rates = Rates { to_host, from_host };
            match self.attach(&mut state.path, &host, rates, state.mtu) {
                Err(error) if rates != Rates::default() => {
                    tracing::warn!(%error, "the kernel keeps no rates; a relay does, which is slow");
                }
                done => return done,
            }
        }
        let ways = Ways {
            to_host: state.to_host.way(),
            from_host: state.from_host.way(),
        };
        self.relay(&mut state.path, &host, &ways, state.mtu)
    }
}

impl State {
    fn setting(&self, direction: Direction) -> &Setting {
        match direction {
            Direction::ToHost => &self.to_host,
            Direction::FromHost => &self.from_host,
        }
    }
}

impl Setting {
    /// The rate, if any, when the kernel can do all that is wanted; else `None`.
    fn kernel_rate(&self) -> Option<Option<u64>> {
        if !self.shut_out.is_empty() {
            return None;
        }
        match (&self.impairment, self.cut) {
            (None, false) => Some(None),
            (Some(impairment), false) => impairment.only_rate().map(Some),
            (_, true) => None,
        }
    }

    fn way(&self) -> Way {
        Way {
            impairment: self
                .impairment
                .clone()
                .unwrap_or_else(|| Impairment::with_seed(0)),
            cut: self.cut,
            shut_out: self.shut_out.clone(),
        }
    }
}
