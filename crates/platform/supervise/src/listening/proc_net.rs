//! `/proc/net/tcp` and `/proc/net/tcp6` (proc_net_tcp(5)): a socket per line,
//!
//! ```text
//!   sl  local_address rem_address   st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode …
//!    0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000   0       0 12345 …
//! ```
//!
//! An address consists of 32-bit words, each printed as a number in the host's byte order; a port is a plain number.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::tcp_state::TcpState;

/// A socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) local: SocketAddr,
    pub(super) state: TcpState,
    /// Inode of the socket's file; `None` if no process has the socket open.
    pub(super) inode: Option<u64>,
}

/// The sockets in `table`. Lines of another form, such as the heading, are skipped.
pub(super) fn parse(table: &[u8]) -> impl Iterator<Item = Row> {
    table
        .split(|&b| b == b'\n')
        .filter_map(|line| parse_line(std::str::from_utf8(line).ok()?))
}

fn parse_line(line: &str) -> Option<Row> {
    let mut fields = line.split_ascii_whitespace();
    let local = parse_address(fields.nth(1)?)?;
    let state = u8::from_str_radix(fields.nth(1)?, 16).ok()?;
    let inode: u64 = fields.nth(5)?.parse().ok()?;
    Some(Row {
        local,
        state: TcpState::from_kernel(state)?,
        inode: (inode != 0).then_some(inode),
    })
}

fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let ip = match ip.len() {
        8 => IpAddr::from(Ipv4Addr::from(parse_word(ip)?)),
        32 => {
            let mut bytes = [0; 16];
            for (i, out) in bytes.chunks_exact_mut(4).enumerate() {
                out.copy_from_slice(&parse_word(ip.get(i * 8..i * 8 + 8)?)?);
            }
            IpAddr::from(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

fn parse_word(hex: &str) -> Option<[u8; 4]> {
    u32::from_str_radix(hex, 16).ok().map(u32::to_ne_bytes)
}
