//! The structures of `bpf/intf/objects.h`, generated from the compiled object.

#[allow(
    missing_docs,
    dead_code,
    unreachable_pub,
    non_camel_case_types,
    non_snake_case,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/objects.skel.rs"));
}

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

pub(crate) use generated::types::*;
use supervise::Route;
use wire::FlowKey;

use crate::abi::{Abi, mapped};

/// The compiled programs.
pub(crate) const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/objects.bpf.o"));

// SAFETY: generated `repr(C)` structures of integers; `bpf/intf` pads explicitly and the generator
// names the padding of the compiler at the end.
unsafe impl Abi for flow_key {}
// SAFETY: as above.
unsafe impl Abi for endpoint {}
// SAFETY: as above.
unsafe impl Abi for member {}
// SAFETY: as above.
unsafe impl Abi for member_control {}
// SAFETY: as above.
unsafe impl Abi for object_flow {}
// SAFETY: as above.
unsafe impl Abi for object_event {}
// SAFETY: as above.
unsafe impl Abi for object_copy {}
// SAFETY: as above.
unsafe impl Abi for store_confirmation {}

// SAFETY: as above.
unsafe impl Abi for next_hop {}

impl next_hop {
    /// To a neighbour, or by the route.
    pub(crate) fn new(address: IpAddr, route: Option<Route>) -> Self {
        let mut words = [0; 4];
        let octets = match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        for (word, bytes) in words.iter_mut().zip(octets.as_chunks::<4>().0) {
            *word = u32::from_ne_bytes(*bytes);
        }
        let family = if address.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        Self {
            family: family.unsigned_abs(),
            address: words,
            route: outer_route {
                source: route.map_or([0; 16], |route| mapped(route.source)),
                destination: mapped(address),
                ifindex: route.map_or(0, |route| route.device),
            },
        }
    }
}

impl From<SocketAddr> for endpoint {
    fn from(address: SocketAddr) -> Self {
        Self {
            address: mapped(address.ip()),
            port: address.port().to_be(),
            pad: 0,
        }
    }
}

impl From<FlowKey> for flow_key {
    fn from(key: FlowKey) -> Self {
        Self {
            client: mapped(key.client().ip()),
            server: mapped(key.server().ip()),
            client_port: key.client().port().to_be(),
            server_port: key.server().port().to_be(),
        }
    }
}

impl From<flow_key> for FlowKey {
    fn from(key: flow_key) -> Self {
        let end = |address: [u8; 16], port: u16| {
            SocketAddr::new(Ipv6Addr::from(address).to_canonical(), u16::from_be(port))
        };
        Self::new(
            end(key.client, key.client_port),
            end(key.server, key.server_port),
        )
    }
}
