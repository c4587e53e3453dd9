//! Reading the flows and the counters.

use libbpf_rs::{MapCore, MapFlags};
use south_model::Flow;
use wire::FlowKey;

use super::Dataplane;
use crate::{
    abi::{self, Abi},
    batches::{ROOM, each_entry},
    error::{DataplaneError, MapContext},
};

impl Dataplane {
    /// All connections whose handshake is complete.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn flows(&self) -> Result<Vec<(FlowKey, Flow)>, DataplaneError> {
        let map = &self.maps.flows;
        let mut flows = Vec::new();
        each_entry(map, ROOM, |key, value| {
            if let (Some(key), Some(flow)) =
                (abi::flow_key::from_bytes(key), abi::flow::from_bytes(value))
            {
                flows.push((FlowKey::from(key), Flow::from(flow)));
            }
        })
        .doing("read the flows")?;
        Ok(flows)
    }

    /// One connection.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn flow(&self, key: FlowKey) -> Result<Option<Flow>, DataplaneError> {
        let value = self
            .maps
            .flows
            .lookup(abi::flow_key::from(key).as_bytes(), MapFlags::ANY)
            .doing("read a flow")?;
        Ok(value
            .and_then(|bytes| abi::flow::from_bytes(&bytes))
            .map(Flow::from))
    }

    /// Values of the counters, in the order of `enum counter`.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn counters(&self) -> Result<Counters, DataplaneError> {
        let map = &self.maps.counters;
        let mut values = Vec::new();
        for index in 0..abi::counter::COUNTERS.0 {
            let per_cpu = map
                .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)
                .doing("read a counter")?
                .unwrap_or_default();
            let value =
                |bytes: &Vec<u8>| bytes.first_chunk().copied().map_or(0, u64::from_ne_bytes);
            values.push(per_cpu.iter().map(value).sum());
        }
        Ok(Counters(values))
    }
}

/// Counts of the programs since the load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters(Vec<u64>);

macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident = $constant:ident,)*) => {
        impl Counters {
            $(#[doc = $doc]
            #[must_use]
            pub fn $name(&self) -> u64 {
                usize::try_from(abi::counter::$constant.0).ok().and_then(|i| self.0.get(i)).copied().unwrap_or(0)
            })*

            /// The names of all counters, each with a description.
            pub const DESCRIBED: &[(&str, &str)] = &[$((stringify!($name), $doc)),*];

            /// Every counter, by name, for status output.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name())),*]
            }
        }
    };
}

counters! {
    /// Instream segments recorded.
    mirrored = COUNT_MIRRORED,
    /// Instream segments dropped because the ring was full (the client sends them again).
    mirror_full = COUNT_MIRROR_FULL,
    /// Outstream heads recorded.
    heads = COUNT_HEADS,
    /// Outstream heads not recorded because the ring was full.
    heads_lost = COUNT_HEADS_LOST,
    /// Packets of the service dropped by the gate.
    gated_out = COUNT_GATED_OUT,
    /// Packets of clients dropped by the gate.
    gated_in = COUNT_GATED_IN,
    /// Replayed segments acknowledged in the client's name.
    self_acks = COUNT_SELF_ACKS,
    /// Segments translated on their way to clients.
    translated_out = COUNT_TRANSLATED_OUT,
    /// Segments translated on their way to the server.
    translated_in = COUNT_TRANSLATED_IN,
    /// Segments of connections that are not protected.
    untracked = COUNT_UNTRACKED,
    /// SYNs from which an option that we cannot carry was removed.
    stripped = COUNT_STRIPPED,
    /// Connections for which there was no room in the table.
    table_full = COUNT_TABLE_FULL,
    /// Events lost because nobody read them.
    events_lost = COUNT_EVENTS_LOST,
    /// Packets dropped because they could not be rewritten.
    edit_failed = COUNT_EDIT_FAILED,
    /// Acknowledgements of the logger, each counted once.
    link_acks = COUNT_LINK_ACKS,
    /// Packets that pretended to be one.
    link_forged = COUNT_LINK_FORGED,
    /// Beginnings of answers that went to the logger at once.
    link_heads = COUNT_LINK_HEADS,
    /// SYN-ACKs that went to the logger first.
    link_opens = COUNT_LINK_OPENS,
    /// Segments that told the client less than the server's TCP had.
    acks_clamped = COUNT_ACKS_CLAMPED,
    /// Pure ACKs that would have brought the client nothing new.
    acks_withheld = COUNT_ACKS_WITHHELD,
    /// ACKs made from acknowledgements of the logger.
    acks_made = COUNT_ACKS_MADE,
    /// Packets dropped because the lease was over.
    fenced = COUNT_FENCED,
    /// Segments of which the logger got no copy: their server notes what it reads.
    mirror_skipped = COUNT_MIRROR_SKIPPED,
    /// Replayed segments that waited for what is compared behind them.
    replay_held = COUNT_REPLAY_HELD,
    /// Connections of which only samples are digested from then on: their server speaks too fast.
    sampled = COUNT_SAMPLED,
}
