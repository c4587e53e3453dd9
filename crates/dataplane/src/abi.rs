//! The structures of `bpf/intf.h`, generated from the compiled object, and how they become ours.

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
    include!(concat!(env!("OUT_DIR"), "/south.skel.rs"));
}

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

pub(crate) use generated::types::*;
use ssw::{
    ClientHalf, Flow, LogHalf, Mode, Range, Said, ServerHalf, SpliceHalf, Unprotected, VerifyHalf,
};
use wire::{FlowId, FlowKey, SeqNumber};

/// The compiled programs.
pub(crate) const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/south.bpf.o"));

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

    /// The structure at the beginning of `bytes`; `None` if they are too few.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut value = Self::default();
        let len = size_of::<Self>();
        value.as_bytes_mut().copy_from_slice(bytes.get(..len)?);
        Some(value)
    }
}

// SAFETY: generated `repr(C)` structures of integers; `intf.h` pads explicitly and the generator
// names what the compiler adds at the end.
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

impl From<flow> for Flow {
    fn from(raw: flow) -> Self {
        let options = usize::from(raw.syn_options_len).min(raw.syn_options.len());
        Self {
            id: FlowId(raw.id),
            closed_ns: raw.closed_ns,
            spliced_ns: raw.spliced_ns,
            incarnation: raw.incarnation,
            ifindex: raw.ifindex,
            mode: match flow_mode(u32::from(raw.mode)) {
                flow_mode::FLOW_SPLICING => Mode::Splicing,
                flow_mode::FLOW_SPLICED => Mode::Spliced,
                flow_mode::FLOW_DIVERGED => Mode::Diverged,
                _ => Mode::Observed,
            },
            unprotected: Unprotected::from_code(raw.unprotected),
            server_closing: raw.server_closing != 0,
            whole_segments: raw.whole_segments != 0,
            syn_flags: raw.syn_flags,
            syn_window: raw.syn_window,
            client: raw.client.into(),
            server: raw.server.into(),
            splice: raw.splice.into(),
            verify: raw.verify.into(),
            log: raw.log.into(),
            syn_options: raw.syn_options[..options].to_vec(),
        }
    }
}

impl From<client_half> for ClientHalf {
    fn from(raw: client_half) -> Self {
        Self {
            isn: SeqNumber(raw.isn),
            nxt: SeqNumber(raw.nxt),
            ack: SeqNumber(raw.ack),
            tsval: raw.tsval,
            window: raw.window,
            window_scale: raw.window_scale,
            reset: raw.reset != 0,
            spoken: SeqNumber(raw.spoken),
        }
    }
}

impl From<server_half> for ServerHalf {
    fn from(raw: server_half) -> Self {
        Self {
            sent: raw.sent,
            isn: SeqNumber(raw.isn),
            nxt: SeqNumber(raw.nxt),
            ack: SeqNumber(raw.ack),
            edge: SeqNumber(raw.edge),
            tsval: raw.tsval,
            window_scale: raw.window_scale,
            timestamps: raw.timestamps != 0,
            sack: raw.sack != 0,
            answered: raw.answered != 0,
        }
    }
}

impl From<splice_half> for SpliceHalf {
    fn from(raw: splice_half) -> Self {
        Self {
            instream: SeqNumber(raw.instream),
            outstream: SeqNumber(raw.outstream),
            delta_seq: raw.delta_seq,
            ts_delta: raw.ts_delta,
            first_tsval: raw.first_tsval,
            isn: SeqNumber(raw.isn),
            nxt: SeqNumber(raw.nxt),
            ack: SeqNumber(raw.ack),
            edge: SeqNumber(raw.edge),
            window_scale: raw.window_scale,
        }
    }
}

impl From<verify_half> for VerifyHalf {
    fn from(raw: verify_half) -> Self {
        Self {
            head_sent: raw.head_sent,
            head_next: SeqNumber(raw.head_next),
            head_left: raw.head_left,
            end: SeqNumber(raw.end),
            compared: raw.compared,
            tolerated: raw.tolerated,
            unverified: raw.unverified,
            diverged_at: SeqNumber(raw.diverged_at),
            ended_early: raw.ended_early != 0,
            said: match said(u32::from(raw.said)) {
                said::SAID_ANSWER => Said::Answer,
                said::SAID_OTHER_PROTOCOL => Said::OtherProtocol,
                _ => Said::Nothing,
            },
        }
    }
}

impl From<log_half> for LogHalf {
    fn from(raw: log_half) -> Self {
        let ranges = |from: &[range], count: u8| {
            let ranges = from.iter().take(usize::from(count));
            ranges
                .map(|range| Range {
                    start: SeqNumber(range.start),
                    end: SeqNumber(range.end),
                })
                .collect()
        };
        let held = raw.held.iter().take(usize::from(raw.held_count));
        Self {
            counter: raw.counter,
            stable: SeqNumber(raw.stable),
            ack: SeqNumber(raw.ack),
            edge: SeqNumber(raw.edge),
            tsecr: raw.tsecr,
            ifindex: raw.ifindex,
            ranges: ranges(&raw.ranges, raw.range_count),
            blocks: ranges(&raw.blocks, raw.block_count),
            held: held.map(|seq| SeqNumber(*seq)).collect(),
            ttl: raw.ttl,
            ece: raw.ece != 0,
            withheld: raw.withheld != 0,
            ended: raw.ended != 0,
        }
    }
}
