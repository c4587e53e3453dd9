//! Names and addresses of members, checked before any other part sees them.

use core::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// The name of a member: equal at every balancer, and different from the names of the other members. The table depends
/// on the names alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberName(String);

/// A name that no member can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name of a member: a name has 1 to {most} letters, digits, '.', '_' or '-' (as a host name)", most = MemberName::LEN_MAX
)]
pub struct NameError(String);

impl MemberName {
    /// The longest name, bytes: a label of the DNS.
    pub const LEN_MAX: usize = 63;

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MemberName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
        match (1..=Self::LEN_MAX).contains(&name.len()) && name.bytes().all(allowed) {
            true => Ok(Self(name.to_owned())),
            false => Err(NameError(name.chars().take(Self::LEN_MAX + 1).collect())),
        }
    }
}

impl fmt::Display for MemberName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for MemberName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for MemberName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(D::Error::custom)
    }
}

/// The IP address at which the packets for the pool reach a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberAddress(IpAddr);

/// An address at which no member can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// `0.0.0.0` or `::`.
    #[error(
        "{0} means any address: a member needs an address of its own, on a network that the balancer has, too"
    )]
    Unspecified(IpAddr),
    /// Reaches the host itself.
    #[error(
        "{0} is a loopback address, and reaches no other host: name the member's address on the network of the balancer"
    )]
    Loopback(IpAddr),
    /// Reaches several hosts.
    #[error("{0} is the address of several hosts: name the member's own address")]
    Group(IpAddr),
}

impl MemberAddress {
    /// The address of one other host, an IPv4 address not in the mapped form.
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn new(address: IpAddr) -> Result<Self, AddressError> {
        let address = address.to_canonical();
        let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
        if address.is_unspecified() {
            return Err(AddressError::Unspecified(address));
        }
        if address.is_loopback() {
            return Err(AddressError::Loopback(address));
        }
        match address.is_multicast() || is_broadcast {
            true => Err(AddressError::Group(address)),
            false => Ok(Self(address)),
        }
    }

    /// The address.
    #[must_use]
    pub const fn ip(self) -> IpAddr {
        self.0
    }
}

impl fmt::Display for MemberAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// 16 bytes; IPv4 in the mapped form.
impl Serialize for MemberAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let v6 = match self.0 {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        v6.octets().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for MemberAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let octets = <[u8; 16]>::deserialize(deserializer)?;
        let address = IpAddr::V6(Ipv6Addr::from(octets));
        Self::new(address).map_err(D::Error::custom)
    }
}
