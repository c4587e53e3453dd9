//! The structures of `bpf/intf`, generated from the compiled object, and conversions into types of
//! this crate.

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
    include!(concat!(env!("OUT_DIR"), "/replay.skel.rs"));
}

mod flows;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

pub(crate) use generated::types::*;
use wire::FlowKey;

/// The compiled programs.
pub(crate) const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/replay.bpf.o"));

/// A structure that crosses between us and the kernel as bytes.
///
/// # Safety
/// The type is `repr(C)`, has no implicit padding and no invalid bit patterns.
pub(crate) unsafe trait Abi: Copy + Default {
    fn as_bytes(&self) -> &[u8] {
        let start = std::ptr::from_ref(self).cast::<u8>();
        // SAFETY: `self` is `size_of::<Self>()` initialised bytes (no padding, see the trait).
        unsafe { std::slice::from_raw_parts(start, size_of::<Self>()) }
    }

    fn as_bytes_mut(&mut self) -> &mut [u8] {
        let start = std::ptr::from_mut(self).cast::<u8>();
        // SAFETY: as above, and every bit pattern is valid, so bytes may be written freely.
        unsafe { std::slice::from_raw_parts_mut(start, size_of::<Self>()) }
    }

    /// The structure at the beginning of `bytes`; `None` if `bytes` is too short.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut value = Self::default();
        let len = size_of::<Self>();
        value.as_bytes_mut().copy_from_slice(bytes.get(..len)?);
        Some(value)
    }
}

// SAFETY: generated `repr(C)` structures of integers; `bpf/intf` pads explicitly and the generator
// names the padding of the compiler at the end.
unsafe impl Abi for flow_key {}
// SAFETY: as above.
unsafe impl Abi for endpoint {}
// SAFETY: as above.
unsafe impl Abi for flow {}
// SAFETY: as above.
unsafe impl Abi for service {}
// SAFETY: as above.
unsafe impl Abi for control {}
// SAFETY: as above.
unsafe impl Abi for event {}
// SAFETY: as above.
unsafe impl Abi for expect_key {}
// SAFETY: as above.
unsafe impl Abi for expect {}
// SAFETY: as above.
unsafe impl Abi for link {}
// SAFETY: as above.
unsafe impl Abi for link_path {}
// SAFETY: as above.
unsafe impl Abi for digest_key {}

pub(crate) fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
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
