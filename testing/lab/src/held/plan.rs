//! Connections between hosts.

use serde::{Deserialize, Serialize};

use crate::{Address, Error};

/// How hosts are connected. Clients and servers meet in subnet 0; servers and loggers meet in subnet 1, if there is a
/// subnet 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// All hosts on a single switch, each with a separate link.
    OneSwitch,
    /// Servers have a second link, `eth1`, to a switch of servers and loggers only.
    Separate,
    /// All hosts on a single medium, as on an Ethernet hub: the hosts share the rate.
    Shared,
}

/// A planned host: the name, and the addresses of `eth0`, `eth1`, …
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The name.
    pub name: String,
    /// The places of the links.
    pub addresses: Vec<Address>,
}

/// Gives each host a number, in the order of the names, from 1, and the links. A host whose name begins with `server`
/// is a server, with `logger` a logger.
///
/// # Errors
/// [`Error::Invalid`] for more than 254 hosts or none.
pub fn plan(names: &[String], layout: Layout) -> Result<Vec<Planned>, Error> {
    if names.is_empty() {
        return Err(Error::Invalid("a lab needs a host".to_owned()));
    }
    let mut planned = Vec::new();
    for (number, name) in (1..=u8::MAX).zip(names) {
        let subnets: &[u8] = match layout {
            Layout::Separate if name.starts_with("server") => &[0, 1],
            Layout::Separate if name.starts_with("logger") => &[1],
            _ => &[0],
        };
        let addresses = subnets.iter().map(|subnet| Address::new(*subnet, number));
        planned.push(Planned {
            name: name.clone(),
            addresses: addresses.collect::<Result<_, _>>()?,
        });
    }
    if planned.len() < names.len() {
        return Err(Error::Invalid("a lab has at most 254 hosts".to_owned()));
    }
    Ok(planned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(layout: Layout) -> Vec<String> {
        let names = ["server", "logger", "client"].map(str::to_owned);
        let planned = plan(&names, layout).unwrap();
        let shown = |planned: &Planned| {
            let addresses = planned.addresses.iter().map(|a| a.ipv4().to_string());
            addresses.collect::<Vec<_>>().join(" ")
        };
        planned.iter().map(shown).collect()
    }

    #[test]
    fn only_servers_are_on_both_switches() {
        let one = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
        assert_eq!(addresses(Layout::OneSwitch), one);
        assert_eq!(addresses(Layout::Shared), one);
        let separate = ["10.0.0.1 10.0.1.1", "10.0.1.2", "10.0.0.3"];
        assert_eq!(addresses(Layout::Separate), separate);
    }

    #[test]
    fn plan_size_is_limited() {
        let names = |count: usize| vec!["host".to_owned(); count];
        assert!(plan(&names(0), Layout::OneSwitch).is_err());
        assert!(plan(&names(254), Layout::OneSwitch).is_ok());
        assert!(plan(&names(255), Layout::OneSwitch).is_err());
        assert!(plan(&names(1000), Layout::OneSwitch).is_err());
    }
}
