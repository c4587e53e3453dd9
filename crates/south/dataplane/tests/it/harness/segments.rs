//! Packets of the two ends of a connection.

use std::net::SocketAddr;

use south_model::Packet;
use wire::{ChecksumMode, Flags, SegmentSpec, SeqNumber};

pub(crate) const MARK: u32 = 0x0f70_0000;
pub(crate) const ACK: Flags = Flags::ACK;
pub(crate) const SYN: Flags = Flags::SYN;
pub(crate) const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);
pub(crate) const FIN_ACK: Flags = Flags::FIN.union(Flags::ACK);
pub(crate) const RST: Flags = Flags::RST;
/// Shift of the client's windows, and of the first and the second server's.
pub(crate) const CLIENT_SCALE: u8 = 2;
pub(crate) const SERVER_SCALE: u8 = 7;
pub(crate) const LATER_SCALE: u8 = 5;
/// The loopback, which exists in every network namespace.
pub(crate) const IFINDEX: u32 = 1;

pub(crate) fn client_end(v6: bool, number: u16) -> SocketAddr {
    let address = if v6 { "fd00::1" } else { "10.0.0.1" };
    SocketAddr::new(address.parse().unwrap(), 40_000 + number)
}

pub(crate) fn server_end(v6: bool) -> SocketAddr {
    let address = if v6 { "fd00::10" } else { "10.0.0.10" };
    SocketAddr::new(address.parse().unwrap(), 80)
}

/// A segment to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) seq: SeqNumber,
    pub(crate) ack: SeqNumber,
    pub(crate) flags: Flags,
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) mark: u32,
    /// Over IPv6, with the header of a super-segment.
    pub(crate) jumbo: bool,
}

/// An ACK without options.
pub(crate) fn segment(seq: SeqNumber, ack: SeqNumber) -> Spec {
    Spec {
        seq,
        ack,
        flags: ACK,
        window: 1000,
        options: Vec::new(),
        payload: Vec::new(),
        mark: 0,
        jumbo: false,
    }
}

impl Spec {
    pub(crate) fn flags(self, flags: Flags) -> Self {
        Self { flags, ..self }
    }
    pub(crate) fn window(self, window: u16) -> Self {
        Self { window, ..self }
    }
    pub(crate) fn options(self, options: &[u8]) -> Self {
        Self {
            options: options.to_vec(),
            ..self
        }
    }
    pub(crate) fn timestamps(self, value: u32, echo: u32) -> Self {
        Self {
            options: timestamps(value, echo),
            ..self
        }
    }
    pub(crate) fn payload(self, payload: &[u8]) -> Self {
        Self {
            payload: payload.to_vec(),
            ..self
        }
    }
    pub(crate) fn mark(self, mark: u32) -> Self {
        Self { mark, ..self }
    }
    pub(crate) fn jumbo(self) -> Self {
        Self {
            jumbo: true,
            ..self
        }
    }

    pub(crate) fn packet(&self, source: SocketAddr, destination: SocketAddr) -> Packet {
        let mut bytes = Vec::new();
        SegmentSpec {
            source,
            destination,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            options: &self.options,
            payload: &self.payload,
        }
        .emit(&mut bytes, ChecksumMode::Full)
        .unwrap();
        if self.jumbo && bytes[0] >> 4 == 6 {
            bytes = with_jumbo_header(&bytes);
        }
        Packet {
            bytes,
            mark: self.mark,
            ifindex: IFINDEX,
            checksum: ChecksumMode::Full,
        }
    }
}

pub(crate) fn timestamps(value: u32, echo: u32) -> Vec<u8> {
    [
        &[1, 1, 8, 10],
        &value.to_be_bytes()[..],
        &echo.to_be_bytes()[..],
    ]
    .concat()
}

/// MSS, SACK permitted, timestamps, window scale.
pub(crate) fn syn_options(tsval: u32, tsecr: u32, scale: u8) -> Vec<u8> {
    let stamps = &timestamps(tsval, tsecr)[2..];
    [&[2, 4, 5, 0xb4, 4, 2][..], stamps, &[1, 3, 3, scale]].concat()
}

pub(crate) fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap()
}

/// Offset of a jumbo header, and its beginning: TCP follows, eight bytes, one option of four.
const JUMBO_AT: usize = 40;
const JUMBO: [u8; 4] = [6, 0, 0xc2, 4];

/// An IPv6 packet of Linux that is too long for the length field (RFC 2675). A real packet of that
/// length is too long for this kernel's test run; the programs look at the header.
pub(crate) fn with_jumbo_header(plain: &[u8]) -> Vec<u8> {
    let (header, segment) = plain.split_at(JUMBO_AT);
    let length = length(segment) + 8;
    let mut bytes = [header, &JUMBO, &length.to_be_bytes(), segment].concat();
    bytes[4..7].fill(0); // no length; a hop-by-hop header follows
    bytes
}

/// The same packet without a jumbo header.
pub(crate) fn without_jumbo_header(bytes: &[u8]) -> Vec<u8> {
    let mut plain = bytes.to_vec();
    if bytes[0] >> 4 == 6 && bytes[6] == 0 {
        plain.drain(JUMBO_AT..JUMBO_AT + 8);
        let length = u16::try_from(plain.len() - JUMBO_AT).unwrap();
        plain[4..6].copy_from_slice(&length.to_be_bytes());
        plain[6] = 6;
    }
    plain
}
