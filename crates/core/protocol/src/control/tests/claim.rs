//! Messages about addresses.

use super::{round_trip::text, *};

pub(super) fn claim() -> impl Strategy<Value = Claim> {
    let address = any::<([u8; 16], u16)>().prop_map(|(octets, port)| {
        let ip = std::net::IpAddr::from(octets).to_canonical();
        std::net::SocketAddr::new(ip, port)
    });
    let v4 = any::<([u8; 4], u16)>().prop_map(std::net::SocketAddr::from);
    let addresses = prop::collection::vec(prop_oneof![address, v4], 0..4);
    let names = (text(), text());
    let numbers = any::<(u64, bool, bool, u32)>();
    (numbers, names, addresses).prop_map(|(rest, names, addresses)| {
        let ((host, serves, shared, determinants), (host_name, service)) = (rest, names);
        Claim {
            host,
            serves,
            shared,
            host_name,
            service,
            addresses,
            determinants,
        }
    })
}
