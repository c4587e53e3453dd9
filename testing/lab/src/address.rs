//! The place of a link: subnet, and number within the subnet.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Error;

/// The place of a link: number `N` in subnet `S` has the addresses `10.0.S.N/24` and `fd00:0:0:S::N/64`.
///
/// Each subnet is a bridge of the lab's switch. The IPv6 address shows the same decimal digits as the IPv4 address:
/// 10.0.0.12 goes with fd00::12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    subnet: u8,
    number: u8,
}

impl Address {
    /// The place `number` (1 to 254) in `subnet`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for number 0 (the network) and 255 (broadcast).
    pub fn new(subnet: u8, number: u8) -> Result<Self, Error> {
        if number == 0 || number == 255 {
            return Err(Error::Invalid(format!(
                "a host's number is 1 to 254, not {number}"
            )));
        }
        Ok(Self { subnet, number })
    }

    /// The subnet `S`.
    #[must_use]
    pub fn subnet(self) -> u8 {
        self.subnet
    }

    /// The number `N` in the subnet.
    #[must_use]
    pub fn number(self) -> u8 {
        self.number
    }

    /// `10.0.S.N`, with prefix length 24.
    #[must_use]
    pub fn ipv4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, self.subnet, self.number)
    }

    /// `fd00:0:0:S::N`, with prefix length 64.
    #[must_use]
    pub fn ipv6(self) -> Ipv6Addr {
        let (s, n) = (same_digits(self.subnet), same_digits(self.number));
        Ipv6Addr::new(0xfd00, 0, 0, s, 0, 0, 0, n)
    }

    /// The link-layer address, locally administered. The address depends on the place alone, so a host keeps the
    /// address through a power-off.
    #[must_use]
    pub fn mac(self) -> Mac {
        Mac([2, 0, 0, 0, self.subnet, self.number])
    }
}

/// The number whose hexadecimal digits are the decimal digits of `value`.
fn same_digits(value: u8) -> u16 {
    let value = u16::from(value);
    ((value / 100) << 8) | ((value / 10 % 10) << 4) | (value % 10)
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_families_share_digits() {
        let address = Address::new(3, 254).unwrap();
        assert_eq!(address.ipv4().to_string(), "10.0.3.254");
        assert_eq!(address.ipv6().to_string(), "fd00:0:0:3::254");
        assert_eq!(address.mac().to_string(), "02:00:00:00:03:fe");
    }

    #[test]
    fn network_and_broadcast_are_not_hosts() {
        assert!(Address::new(0, 0).is_err());
        assert!(Address::new(0, 255).is_err());
    }
}
