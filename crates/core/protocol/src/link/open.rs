//! OPEN: a client and the server have shaken hands; the SYN-ACK has not reached the client yet.
//!
//! Behind the head:
//!
//! | offset | field | |
//! |---|---|---|
//! | 32 | flow_key | 36 bytes: client's and server's address (16 each, IPv4 mapped), client's and server's port
//! (big-endian) |
//! | 68 | client_isn `u32` | |
//! | 72 | server_isn `u32` | |
//! | 76 | handshake | 52 bytes, see `handshake` |
//! | 128 | tag `u64` | of the 128 bytes before it |

use core::ops::Range;

use wire::{FlowId, FlowKey, SeqNumber};

use super::handshake::HANDSHAKE_LEN;
use super::head::{HEAD_LEN, Head, sign, u32_at};
use super::{
    FLOW_KEY_LEN, Handshake, KeySet, KeySlot, Kind, LinkError, LinkKey, flow_key_from,
    flow_key_into,
};

/// The length of an OPEN, in bytes.
pub const OPEN_LEN: usize = 136;

const AT_FLOW_KEY: Range<usize> = HEAD_LEN..HEAD_LEN + FLOW_KEY_LEN;
const AT_CLIENT_ISN: usize = 68;
const AT_SERVER_ISN: usize = 72;
const AT_HANDSHAKE: usize = 76;
const AT_TAG: usize = AT_HANDSHAKE + HANDSHAKE_LEN;

/// A handshake. Sent again with each SYN-ACK until the logger acknowledges the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// The agreed version of the link.
    pub version: u8,
    /// The slot of the key that the tag was made with.
    pub slot: KeySlot,
    /// The connection's number.
    pub flow: FlowId,
    /// Addresses and ports of the connection.
    pub key: FlowKey,
    /// The client's initial sequence number.
    pub client_isn: SeqNumber,
    /// The server's initial sequence number, in the client's sequence space.
    pub server_isn: SeqNumber,
    /// The agreed options.
    pub handshake: Handshake,
}

impl Open {
    /// The datagram, with a tag made with `key`, the key in [`Open::slot`].
    #[must_use]
    pub fn encode(&self, key: &LinkKey) -> [u8; OPEN_LEN] {
        let mut datagram = [0; OPEN_LEN];
        let head = Head {
            version: self.version,
            slot: self.slot,
            count: 0,
            flow: self.flow,
            counter: 0,
        };
        head.write(Kind::Open, &mut datagram);
        let mut flow_key = [0; FLOW_KEY_LEN];
        flow_key_into(&self.key, &mut flow_key);
        datagram[AT_FLOW_KEY].copy_from_slice(&flow_key);
        datagram[AT_CLIENT_ISN..AT_SERVER_ISN].copy_from_slice(&self.client_isn.0.to_le_bytes());
        datagram[AT_SERVER_ISN..AT_HANDSHAKE].copy_from_slice(&self.server_isn.0.to_le_bytes());
        datagram[AT_HANDSHAKE..AT_TAG].copy_from_slice(&self.handshake.encode());
        sign(&mut datagram, key);
        datagram
    }

    /// Parses a datagram, and checks the tag with `keys`. The SYN-ACK behind the OPEN, which waits
    /// for the answer, is ignored.
    ///
    /// # Errors
    ///
    /// [`LinkError`], if `datagram` is no OPEN of [`Open::encode`] with a valid tag.
    pub fn decode(datagram: &[u8], keys: &KeySet) -> Result<Self, LinkError> {
        let datagram = datagram
            .first_chunk::<OPEN_LEN>()
            .ok_or(LinkError::BadLength(datagram.len()))?;
        let head = Head::read(Kind::Open, datagram, keys)?;
        for (name, value) in [("count", u64::from(head.count)), ("counter", head.counter)] {
            if value != 0 {
                return Err(LinkError::BadField(name));
            }
        }
        let mut flow_key = [0; FLOW_KEY_LEN];
        flow_key.copy_from_slice(&datagram[AT_FLOW_KEY]);
        let mut handshake = [0; HANDSHAKE_LEN];
        handshake.copy_from_slice(&datagram[AT_HANDSHAKE..AT_TAG]);
        Ok(Self {
            version: head.version,
            slot: head.slot,
            flow: head.flow,
            key: flow_key_from(&flow_key),
            client_isn: SeqNumber(u32_at(datagram, AT_CLIENT_ISN)),
            server_isn: SeqNumber(u32_at(datagram, AT_SERVER_ISN)),
            handshake: Handshake::decode(&handshake)?,
        })
    }
}
