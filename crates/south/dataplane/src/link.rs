//! Facts about an interface, and settings on the interface, that the programs need.
//!
//! - An interface of a bridge or bond is left alone: the packets pass the master too, and must not
//!   be handled twice. (Packets of an interface of a VRF do not pass the VRF's device.)
//! - Frames may be several times longer than an IP packet can be (BIG TCP), and too long for the
//!   record: BIG TCP is switched off. On an interface with an MTU above 32 KiB, as the loopback is,
//!   frames of two segments remain; the programs handle such frames (`bpf/lib/packet.h`).
//! - The programs read frames whose VLAN tag is in the packet's metadata. On a VLAN interface with
//!   `reorder_hdr off` the tag stays in the frame: `reorder_hdr` is switched on.
//! - The loopback drops incoming packets with a source address of this host, unless the packets
//!   have been routed already; fabricated packets have not. `accept_local` lets the packets in (and
//!   `route_localnet` packets of 127.0.0.0/8). Only processes of this host can send there.
//! - The kernel must forget round-trip times of a replay: `tcp_min_rtt_wlen` is set to 0.
//!
//! Changed settings are put back when the programs are detached. A caller that must survive a crash stores the list of
//! changes ([`Change`]). Several services of a network namespace share these settings: each service lists the values
//! from before all services, and the last service puts these values back.

use std::{fs, io, process::Command};

use crate::{
    error::{DataplaneError, SocketContext},
    interfaces::Interface,
};

const LARGEST_FRAME: u64 = 65_536;
/// For how many seconds the kernel remembers the shortest round trip of a connection (ip-sysctl).
const TRIP_MEMORY: &str = "tcp_min_rtt_wlen";
const FRAME_SIZES: [&str; 2] = ["gso_max_size", "gro_max_size"];
/// Whether a VLAN interface takes tags out of frames.
const TAGS_OUT: &str = "reorder_hdr";

/// Properties of an interface, from `ip link`.
#[derive(Debug)]
pub(crate) struct Link {
    /// The interface belongs to a bridge or bond.
    pub(crate) enslaved: bool,
    /// Largest IP packet, bytes.
    pub(crate) mtu: u32,
    frame_sizes: Vec<(&'static str, u64)>,
    /// A VLAN interface that leaves tags in frames.
    keeps_tags: bool,
}

impl Link {
    pub(crate) fn of(interface: &Interface) -> Result<Self, DataplaneError> {
        let output = Command::new("ip")
            .args(["-json", "-details", "link", "show", "dev", &interface.name])
            .output()
            .doing("run ip (of the package iproute2)")?;
        let links: serde_json::Value = serde_json::from_slice(&output.stdout)
            .map_err(io::Error::other)
            .doing("read what ip says of an interface")?;
        let link = &links[0];
        let size = |name| {
            link[name]
                .as_u64()
                .filter(|size| *size > LARGEST_FRAME)
                .map(|size| (name, size))
        };
        Ok(Self {
            // The packets of an interface of a VRF do not come in through the VRF's own device.
            enslaved: link["master"].is_string() && link["linkinfo"]["info_slave_kind"] != "vrf",
            mtu: link["mtu"]
                .as_u64()
                .and_then(|mtu| u32::try_from(mtu).ok())
                .unwrap_or(1500),
            frame_sizes: FRAME_SIZES.into_iter().filter_map(size).collect(),
            keeps_tags: keeps_tags(&link["linkinfo"]),
        })
    }
}

fn keeps_tags(info: &serde_json::Value) -> bool {
    let flags = info["info_data"]["flags"].as_array();
    let takes_out = flags.is_some_and(|flags| flags.iter().any(|flag| flag == "REORDER_HDR"));
    info["info_kind"] == "vlan" && !takes_out
}

/// A changed setting of an interface, and the former value.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Change {
    /// The interface's name.
    pub interface: String,
    /// A size or `reorder_hdr` of `ip link`, a switch of `/proc/sys/net/ipv4/conf`, or `tcp_min_rtt_wlen`.
    pub setting: String,
    /// The former value.
    pub before: String,
}

impl Change {
    fn is_of_the_same(&self, other: &Self) -> bool {
        (&self.interface, &self.setting) == (&other.interface, &other.setting)
    }

    fn put_back(&self) -> io::Result<()> {
        if FRAME_SIZES.contains(&self.setting.as_str()) {
            set(&self.interface, &[&self.setting, &self.before])
        } else if self.setting == TAGS_OUT {
            set(&self.interface, &["type", "vlan", TAGS_OUT, &self.before])
        } else if self.setting == TRIP_MEMORY {
            fs::write(trip_memory(), &self.before)
        } else {
            fs::write(switch(&self.interface, &self.setting), &self.before)
        }
    }
}

/// Puts back the changes that are on no list of other services. Returns the number of settings.
pub fn put_back(changes: impl IntoIterator<Item = Change>, others: &[Change]) -> usize {
    let mut count = 0;
    for change in changes {
        if others.iter().any(|other| other.is_of_the_same(&change)) {
            continue;
        }
        // The interface may be gone.
        if let Err(error) = change.put_back() {
            tracing::warn!(?change, %error, "a setting was not put back");
        }
        count += 1;
    }
    count
}

/// Changes on an interface.
#[derive(Debug, Default)]
pub(crate) struct Arranged(Vec<Change>);

impl Arranged {
    /// Makes the needed settings; `localnet`: an address of 127.0.0.0/8 is to be reached.
    pub(crate) fn on(
        interface: &Interface,
        link: &Link,
        localnet: bool,
        others: &[Change],
    ) -> Result<Self, DataplaneError> {
        let mut arranged = Self::default();
        for (name, size) in &link.frame_sizes {
            set(&interface.name, &[name, &LARGEST_FRAME.to_string()])
                .doing("switch BIG TCP off")?;
            arranged.note(interface, name, size.to_string());
        }
        if link.keeps_tags {
            set(&interface.name, &["type", "vlan", TAGS_OUT, "on"])
                .doing("take VLAN tags out of frames")?;
            arranged.note(interface, TAGS_OUT, "off".to_owned());
        }
        for name in switches(interface, localnet) {
            arranged.switch_on(interface, name)?;
        }
        arranged.forget_short_trips(interface);
        arranged.share(interface, localnet, others);
        Ok(arranged)
    }

    /// Makes needed settings again that another program may have put back. Returns whether a change
    /// is new on the list.
    pub(crate) fn again(
        &mut self,
        interface: &Interface,
        localnet: bool,
    ) -> Result<bool, DataplaneError> {
        let noted = self.0.len();
        for name in switches(interface, localnet) {
            self.switch_on(interface, name)?;
        }
        self.forget_short_trips(interface);
        Ok(self.0.len() > noted)
    }

    fn forget_short_trips(&mut self, interface: &Interface) {
        if is_loopback(interface)
            && let Some(before) = forget_short_trips()
        {
            self.note(interface, TRIP_MEMORY, before);
        }
    }

    /// Takes over the changes of other services, which changed the shared settings first.
    fn share(&mut self, interface: &Interface, localnet: bool, others: &[Change]) {
        let mut needed: Vec<&str> = switches(interface, localnet)
            .chain(FRAME_SIZES)
            .chain([TAGS_OUT])
            .collect();
        needed.extend(is_loopback(interface).then_some(TRIP_MEMORY));
        for setting in needed {
            let is_it = |change: &&Change| {
                (&*change.interface, &*change.setting) == (&*interface.name, setting)
            };
            if let Some(first) = others.iter().find(is_it) {
                self.0.retain(|own| !is_it(&own));
                self.0.push(first.clone());
            }
        }
    }

    /// Changes of an earlier `serve`, which this `serve` puts back.
    pub(crate) const fn by_others(changes: Vec<Change>) -> Self {
        Self(changes)
    }

    fn switch_on(&mut self, interface: &Interface, name: &str) -> Result<(), DataplaneError> {
        let path = switch(&interface.name, name);
        let before = fs::read_to_string(&path).doing("read a setting of the loopback")?;
        if before.trim() == "0" {
            fs::write(&path, "1").map_err(|source| unchanged(interface, name, source))?;
            self.note(interface, name, before);
        }
        Ok(())
    }

    /// Adds a change; the value before the first change counts.
    fn note(&mut self, interface: &Interface, setting: &str, before: String) {
        let change = Change {
            interface: interface.name.clone(),
            setting: setting.to_owned(),
            before,
        };
        if !self.0.iter().any(|noted| noted.is_of_the_same(&change)) {
            self.0.push(change);
        }
    }

    pub(crate) fn changes(&self) -> &[Change] {
        &self.0
    }

    /// Put everything back that is on no list of other services.
    pub(crate) fn undo(&mut self, others: &[Change]) {
        put_back(self.0.drain(..), others);
    }
}

fn is_loopback(interface: &Interface) -> bool {
    interface.mac == [0; 6]
}

/// Settings of the loopback that must be on.
fn switches(interface: &Interface, localnet: bool) -> impl Iterator<Item = &'static str> {
    let names = ["accept_local", "route_localnet"].into_iter();
    let many = match (is_loopback(interface), localnet) {
        (false, _) => 0,
        (true, false) => 1,
        (true, true) => 2,
    };
    names.take(many)
}

/// Checks that [`Arranged::on`] could switch on all settings that are off. Changes no setting.
pub(crate) fn check_switches(interface: &Interface, localnet: bool) -> Result<(), DataplaneError> {
    for name in switches(interface, localnet) {
        let path = switch(&interface.name, name);
        let before = fs::read_to_string(&path).doing("read a setting of the loopback")?;
        if before.trim() == "0" {
            let opened = fs::File::options().write(true).open(&path);
            opened.map_err(|source| unchanged(interface, name, source))?;
        }
    }
    Ok(())
}

fn unchanged(interface: &Interface, name: &str, source: io::Error) -> DataplaneError {
    DataplaneError::Setting {
        path: switch(&interface.name, name).into(),
        setting: format!("net.ipv4.conf.{}.{name}", interface.name),
        source,
    }
}

fn switch(interface: &str, name: &str) -> String {
    format!("/proc/sys/net/ipv4/conf/{interface}/{name}")
}

fn trip_memory() -> String {
    format!("/proc/sys/net/ipv4/{TRIP_MEMORY}")
}

/// From now on, each round-trip time that the kernel measures replaces shorter times, in this
/// network namespace: see `bpf/replay/renew.h`. Returns the former value if the setting has
/// changed. Where the setting cannot be written, as in some containers, connections are slower for
/// a while after a death.
fn forget_short_trips() -> Option<String> {
    let before = fs::read_to_string(trip_memory()).ok()?;
    if before.trim() == "0" {
        return None;
    }
    match fs::write(trip_memory(), "0") {
        Ok(()) => Some(before),
        Err(error) => {
            tracing::debug!(%error, "{} cannot be written", trip_memory());
            None
        }
    }
}

/// `ip link set` of an interface.
fn set(interface: &str, words: &[&str]) -> io::Result<()> {
    let status = Command::new("ip")
        .args(["link", "set", "dev", interface])
        .args(words)
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "ip link set {interface} {}: {status}",
            words.join(" ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vlan_interface_without_reordering_keeps_tags() {
        let info = |kind: &str, flags: &[&str]| {
            keeps_tags(
                &serde_json::json!({"info_kind": kind, "info_data": {"id": 10, "flags": flags}}),
            )
        };
        assert!(info("vlan", &[]));
        assert!(info("vlan", &["GVRP"]));
        assert!(!info("vlan", &["REORDER_HDR"]));
        assert!(!info("macvlan", &[]));
        assert!(!keeps_tags(&serde_json::Value::Null));
    }
}
