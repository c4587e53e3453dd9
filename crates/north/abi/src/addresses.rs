//! Addresses to which the clients of a service connect.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Most rows of ports: as many as a service may have addresses.
const PORT_ROWS_MAX: usize = 1024;
/// Prefix of an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2).
const IPV4_MAPPED_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// The addresses of a service. The supervisor writes the table before there are processes, and the processes read the
/// table.
#[derive(Debug)]
#[repr(C)]
pub struct Addresses {
    count: AtomicU32,
    all: [Ports; PORT_ROWS_MAX],
}

/// Consecutive ports of one IP address.
#[derive(Debug)]
#[repr(C)]
struct Ports {
    /// IPv4 addresses are mapped to IPv6.
    ip: [AtomicU64; 2],
    first: AtomicU32,
    last: AtomicU32,
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            count: AtomicU32::new(0),
            all: [const { Ports::NONE }; PORT_ROWS_MAX],
        }
    }
}

impl Ports {
    #[expect(
        clippy::declare_interior_mutable_const,
        reason = "it is copied into an array"
    )]
    const NONE: Self = Self {
        ip: [AtomicU64::new(0), AtomicU64::new(0)],
        first: AtomicU32::new(0),
        last: AtomicU32::new(0),
    };

    fn set(&self, ip: [u8; 16], ports: [u16; 2]) {
        for (word, value) in self.ip.iter().zip(words(ip)) {
            word.store(value, Ordering::Relaxed);
        }
        self.first.store(ports[0].into(), Ordering::Relaxed);
        self.last.store(ports[1].into(), Ordering::Relaxed);
    }

    /// Whether a socket at this address has clients of these ports. A socket at the unspecified address has the
    /// clients of all addresses of the family; the unspecified IPv6 address covers both families.
    fn are_at(&self, ip: [u8; 16], port: u16) -> bool {
        let own = [&self.ip[0], &self.ip[1]].map(|word| word.load(Ordering::Relaxed));
        let is_host = own == words(ip) || ip == [0; 16] || ip == mapped([0; 4]) && is_mapped(own);
        let [first, last] = [&self.first, &self.last].map(|port| port.load(Ordering::Relaxed));
        is_host && (first..=last).contains(&port.into())
    }
}

impl Addresses {
    /// Stores the addresses. Consecutive ports of one IP address follow each other in the iterator.
    pub fn set(&self, addresses: impl IntoIterator<Item = ([u8; 16], u16)>) {
        let mut count = 0;
        let mut last: Option<([u8; 16], [u16; 2])> = None;
        for (ip, port) in addresses {
            match &mut last {
                Some((same, [_, end])) if *same == ip && end.checked_add(1) == Some(port) => {
                    *end = port;
                }
                _ => {
                    count += usize::from(last.is_some());
                    last = Some((ip, [port; 2]));
                }
            }
            if let (Some((ip, ports)), Some(place)) = (last, self.all.get(count)) {
                place.set(ip, ports);
            }
        }
        let count = (count + usize::from(last.is_some())).min(PORT_ROWS_MAX);
        self.count
            .store(u32::try_from(count).unwrap_or(0), Ordering::Release);
    }

    /// Whether a socket at this address has clients of the service.
    #[must_use]
    pub fn are_at(&self, ip: [u8; 16], port: u16) -> bool {
        let count = self.count.load(Ordering::Acquire) as usize;
        self.all.iter().take(count).any(|one| one.are_at(ip, port))
    }
}

/// An IPv4-mapped IPv6 address.
#[must_use]
pub fn mapped(ip: [u8; 4]) -> [u8; 16] {
    let mut all = [0; 16];
    all[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
    all[12..].copy_from_slice(&ip);
    all
}

fn is_mapped(ip: [u64; 2]) -> bool {
    ip[0] == 0 && ip[1] >> 32 == 0xffff
}

fn words(ip: [u8; 16]) -> [u64; 2] {
    let number = u128::from_be_bytes(ip);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lower half is what is wanted"
    )]
    [(number >> 64) as u64, number as u64]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_listener_is_known() {
        let addresses = Addresses::default();
        let ipv4 = mapped([10, 0, 0, 1]);
        let ipv6 = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        addresses.set([(ipv4, 80), (ipv4, 81), (ipv4, 90), (ipv6, 443)]);
        for port in [80, 81, 90] {
            assert!(addresses.are_at(ipv4, port), "{port}");
            assert!(addresses.are_at(mapped([0; 4]), port), "{port}");
            assert!(addresses.are_at([0; 16], port), "{port}");
            assert!(!addresses.are_at(ipv6, port), "{port}");
        }
        assert!(addresses.are_at(ipv6, 443) && addresses.are_at([0; 16], 443));
        assert!(!addresses.are_at(mapped([0; 4]), 443), "another family");
        assert!(!addresses.are_at(mapped([10, 0, 0, 2]), 80), "another host");
        for port in [0, 79, 82, 89, 91] {
            assert!(!addresses.are_at(ipv4, port), "{port}");
        }
        addresses.set([]);
        assert!(!addresses.are_at(ipv4, 80));
    }

    #[test]
    fn address_table_holds_all_rows() {
        let addresses = Addresses::default();
        let own = mapped([10, 0, 0, 1]);
        let odd = |row: u16| (own, 2 * row + 1);
        addresses.set((0..1024).map(odd));
        assert!(addresses.are_at(own, 1) && addresses.are_at(own, 2047));
        assert!(!addresses.are_at(own, 2046));
    }
}
