//! The log link: address of the logger, and whether the logger is there.

use std::{
    net::SocketAddr,
    os::fd::{AsFd as _, BorrowedFd},
};

use libbpf_rs::{MapCore, MapFlags};
use wire::{FlowId, FlowKey};

use super::Dataplane;
use crate::{
    abi::{self, Abi},
    error::{DataplaneError, MapContext},
};

/// How ACKs of the server's TCP and of the logger become ACKs to the client. Either may be earlier
/// (FT-TCP IV.F; `clamp.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AckStrategy {
    /// The server's next segment acknowledges the logged input.
    Basic,
    /// Pure ACKs wait until all acknowledged input is logged.
    Lazy,
    /// An ACK of the logger becomes an ACK to the client at once, if the number is new.
    #[default]
    Eager,
    /// As [`AckStrategy::Eager`], if the logger has the client's newest byte.
    Conditional,
}

/// Both ends of the link, with keys and limits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LinkSettings {
    /// Our end: the address and port of the socket that sends the probes.
    pub local: SocketAddr,
    /// The logger's.
    pub remote: SocketAddr,
    /// The agreed version of the link.
    pub version: u8,
    /// Which of the two slots these keys are for: 0 or 1.
    pub slot: u8,
    /// Key of datagrams to the logger.
    pub up: [u8; 16],
    /// Key of datagrams from the logger.
    pub down: [u8; 16],
    /// The largest IP packet that the link carries, bytes: clients' segments must leave space for
    /// the headers of the link.
    pub mtu: u16,
    /// Handling of acknowledgements.
    pub strategy: AckStrategy,
    /// The logger takes digests of outstreams.
    pub digests: bool,
}

impl Dataplane {
    /// Use this link from now on. Keys of the other slot stay valid.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn set_link(&self, settings: &LinkSettings) -> Result<(), DataplaneError> {
        let zero = 0u32.to_ne_bytes();
        let before = self
            .maps
            .link
            .lookup(&zero, MapFlags::ANY)
            .doing("read the log link")?
            .and_then(|bytes| abi::link::from_bytes(&bytes))
            .unwrap_or_default();
        let mut link = link_of(settings, &before);
        // The programs read meanwhile: write the key before the slot that names the key.
        link.slot = before.slot;
        for slot in [before.slot, settings.slot & 1] {
            link.slot = slot;
            self.maps
                .link
                .update(&zero, link.as_bytes(), MapFlags::ANY)
                .doing("write the log link")?;
        }
        Ok(())
    }

    /// Number of probes that the programs have seen on the way to the logger. The number wraps to
    /// 0.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn probes_seen(&self) -> Result<u32, DataplaneError> {
        let zero = 0u32.to_ne_bytes();
        let path = self.maps.path.lookup(&zero, MapFlags::ANY);
        let path = path.doing("read the way to the logger")?;
        let path = path.and_then(|bytes| abi::link_path::from_bytes(&bytes));
        Ok(path.unwrap_or_default().seen)
    }

    /// Sets whether there is a logger. Without a logger, new connections are not protected.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn link_up(&self, up: bool) -> Result<(), DataplaneError> {
        self.control(
            "say whether there is a logger",
            abi::control_op::CONTROL_LINK_UP,
            |c| c.argument = u64::from(up),
        )
        .map(drop)
    }

    /// The read cursors of a server with state (`read_cursors.h`): a map that the server's
    /// processes map into memory.
    #[must_use]
    pub fn read_cursors(&self) -> BorrowedFd<'_> {
        self.maps.read_cursors.as_fd()
    }

    /// Records a flow again that had lost the logger, from the client's next request on.
    ///
    /// # Errors
    /// The flow with this number is gone (`ENOENT`), or did not lose the logger (`EINVAL`).
    pub fn reprotect(&self, key: FlowKey, flow: FlowId) -> Result<(), DataplaneError> {
        self.control(
            "protect a flow again",
            abi::control_op::CONTROL_REPROTECT,
            |c| {
                c.key = key.into();
                c.flow_id = flow.0;
            },
        )
        .map(drop)
    }
}

fn link_of(settings: &LinkSettings, before: &abi::link) -> abi::link {
    let mut link = abi::link {
        local: abi::mapped(settings.local.ip()),
        remote: abi::mapped(settings.remote.ip()),
        local_port: settings.local.port().to_be(),
        remote_port: settings.remote.port().to_be(),
        mtu: settings.mtu,
        strategy: u8::try_from(strategy_of(settings.strategy).0).unwrap_or_default(),
        digests: u8::from(settings.digests),
        v6: u8::from(!settings.remote.ip().to_canonical().is_ipv4()),
        version: settings.version,
        up: before.up,
        down: before.down,
        ..Default::default()
    };
    let slot = usize::from(settings.slot & 1);
    link.up[slot] = key_of(settings.up);
    link.down[slot] = key_of(settings.down);
    link
}

/// The key in the form of SipHash: two little-endian words.
fn key_of(key: [u8; 16]) -> abi::link_key {
    let [low, high] = [0, 8].map(|at| {
        let mut word = [0; 8];
        word.copy_from_slice(&key[at..at + 8]);
        u64::from_le_bytes(word)
    });
    abi::link_key { k0: low, k1: high }
}

fn strategy_of(strategy: AckStrategy) -> abi::ack_strategy {
    match strategy {
        AckStrategy::Basic => abi::ack_strategy::ACK_BASIC,
        AckStrategy::Lazy => abi::ack_strategy::ACK_LAZY,
        AckStrategy::Eager => abi::ack_strategy::ACK_EAGER,
        AckStrategy::Conditional => abi::ack_strategy::ACK_CONDITIONAL,
    }
}
