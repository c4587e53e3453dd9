use super::*;
use std::string::ToString;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn mapped_addresses_are_unmapped() {
    let mapped = FlowKey::new(
        address("[::ffff:10.0.0.1]:4000"),
        address("[::ffff:10.0.0.2]:80"),
    );
    let plain = FlowKey::new(address("10.0.0.1:4000"), address("10.0.0.2:80"));
    assert_eq!(mapped, plain);
    assert_eq!(mapped.client(), address("10.0.0.1:4000"));
    assert_eq!(mapped.to_string(), "10.0.0.1:4000 -> 10.0.0.2:80");
}

#[test]
fn ipv6_addresses_lose_scope_and_flow_label() {
    let scoped = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 4000, 7, 2));
    let key = FlowKey::new(scoped, address("[::1.2.3.4]:80"));
    assert_eq!(key.client(), address("[fe80::1]:4000"));
    assert_eq!(
        key.server(),
        address("[::1.2.3.4]:80"),
        "compatible is not mapped"
    );
    assert_eq!(key.to_string(), "[fe80::1]:4000 -> [::102:304]:80");
}

#[test]
fn key_has_direction() {
    let (a, b) = (address("10.0.0.1:80"), address("10.0.0.2:80"));
    assert_ne!(FlowKey::new(a, b), FlowKey::new(b, a));
    assert_eq!(FlowId(7).to_string(), "7");
}
