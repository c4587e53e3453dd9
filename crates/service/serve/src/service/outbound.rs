//! Upstream connections from an address of the service: the data plane adopts such a connection, and treats the
//! connection like a client connection from then on. Input is recorded before the acknowledgement, and another host can
//! continue the connection.
//!
//! The adoption takes place before either end has sent data. The server waits for the adoption.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd as _,
};

use north_host::{counts::is_unused, repair::Blueprint};
use south_model::{ClientHalf, Flow, LogHalf, Response, ServerHalf, VerifyHalf};
use wire::{Flags, FlowId, FlowKey, OptionsBuffer, OptionsFull, TcpOption};

use super::Service;
use crate::{
    error::ServeError,
    north::{North, OutboundRequest},
};

impl Service {
    /// The server waits for the answer which of the upstream connections continue as client connections do.
    pub(super) fn register_outbound(&mut self) -> Result<(), ServeError> {
        while let Some(joining) = self.north.as_mut().and_then(North::next_outbound) {
            let joined = self.join(&joining)?;
            let north = self.north.as_mut();
            let is_heard = north.is_some_and(|north| north.answer(joining, joined));
            if let Some((key, flow)) = joined.filter(|_| !is_heard) {
                let _ = self.resources.plane.abandon(key, flow); // the flow may be gone
            }
        }
        Ok(())
    }

    /// The server is dead. Adopted connections that the server had no time to record continue as before, with the held
    /// sockets.
    pub(super) fn unjoin(&mut self) {
        let unnoted = self.north.as_mut().map(North::unjoin);
        for (key, flow) in unnoted.unwrap_or_default() {
            let _ = self.resources.plane.abandon(key, flow); // the flow may be gone
        }
    }

    fn join(&mut self, joining: &OutboundRequest) -> Result<Option<(FlowKey, FlowId)>, ServeError> {
        let Some(socket) = &joining.socket else {
            return Ok(None);
        };
        let blueprint = match Blueprint::of(socket.as_fd()) {
            Ok(Some(blueprint)) if self.is_service_address(blueprint.local.ip()) => blueprint,
            Ok(_) => return Ok(None),
            Err(error) => {
                tracing::warn!(%error, "a connection of the server's own goes on for as long as this process does");
                return Ok(None);
            }
        };
        let key = FlowKey::new(blueprint.peer, blueprint.local);
        let (id, incarnation) = self.resources.plane.number()?;
        let flow = flow_of(&blueprint, id, incarnation);
        if let Err(error) = self.resources.plane.restore(key, &flow) {
            tracing::warn!(%key, %error, "a connection of the server's own is not protected");
            return Ok(None);
        }
        // Earlier data is in no record; all later data is recorded.
        let opened = self.open_record(key, &flow);
        let is_unheard = is_unused(socket.as_fd()).unwrap_or(false);
        let is_joined = matches!(opened, Ok(true)) && is_unheard;
        if !is_joined {
            let _ = self.resources.plane.abandon(key, id); // the flow may be gone
        }
        opened.map(|_| is_joined.then_some((key, id)))
    }

    fn is_service_address(&self, address: IpAddr) -> bool {
        let mut own = self.config.addresses.iter();
        own.any(|one| one.ip().to_canonical() == address.to_canonical())
    }

    /// Is this a connection of the service? The server opens connections from any port.
    pub(super) fn is_ours(&self, key: FlowKey, flow: &Flow) -> bool {
        let server = key.server();
        let is_opened = flow.is_opened_by_server() && self.is_service_address(server.ip());
        is_opened || self.config.addresses.contains(&server)
    }

    /// [`Self::is_ours`] for a known set of upstream connections: connections of other programs may use the ports.
    pub(crate) fn is_of_service(&self, key: FlowKey, opened: &BTreeSet<FlowKey>) -> bool {
        self.config.addresses.contains(&key.server()) || opened.contains(&key)
    }

    /// The addresses of the service, and the addresses with the ports of upstream connections.
    pub(crate) fn all_addresses(&self, opened: &BTreeSet<FlowKey>) -> Vec<SocketAddr> {
        let opened = opened.iter().map(|key| key.server());
        self.config
            .addresses
            .iter()
            .copied()
            .chain(opened)
            .collect()
    }

    /// Begins the record of the connection. The answer of a remote logger shows that the logger knows the connection.
    fn open_record(&mut self, key: FlowKey, flow: &Flow) -> Result<bool, ServeError> {
        if self.link().is_none() {
            return Ok(self.resources.plane.opened(key, flow.id).is_ok());
        }
        self.resume(key, flow, (flow.client.isn + 1, flow.server.isn + 1))?;
        Ok(self.ask_logger(|logger| logger.statistics())?.is_some())
    }
}

/// Upstream connections that the server has opened and not closed.
pub(crate) fn opened_by_server(flows: &[(FlowKey, Flow)]) -> BTreeSet<FlowKey> {
    let is_open = |flow: &Flow| flow.is_opened_by_server() && flow.closed_ns == 0;
    let open = flows.iter().filter(|(_, flow)| is_open(flow));
    open.map(|(key, _)| *key).collect()
}

/// A flow as if the peer had opened the connection, and the server were about to answer.
fn flow_of(opened: &Blueprint, id: FlowId, incarnation: u32) -> Flow {
    let (instream, outstream) = (opened.expected, opened.acknowledged);
    let rcv_wnd_edge = instream + opened.receive_window;
    let (theirs, ours) = opened.options.window_scales.unwrap_or_default();
    Flow {
        id,
        incarnation,
        syn_flags: (Flags::SYN | Flags::ACK).bits(),
        syn_window: window_field(opened.send_window, 0),
        syn_options: options_of(opened).map_or_else(|_| Vec::new(), |all| all.as_slice().to_vec()),
        client: ClientHalf {
            isn: instream - 1,
            nxt: instream,
            ack: outstream,
            window: window_field(opened.send_window, theirs),
            window_scale: theirs,
            response_start: outstream,
            ..ClientHalf::default()
        },
        server: ServerHalf {
            isn: outstream - 1,
            nxt: outstream,
            ack: instream,
            rcv_wnd_edge,
            tsval: opened.timestamp.unwrap_or(0),
            window_scale: ours,
            timestamps: opened.timestamp.is_some(),
            sack: opened.options.sack,
            synack_seen: true,
            ..ServerHalf::default()
        },
        verify: VerifyHalf {
            head_next: outstream,
            heads_to: outstream,
            response: Response::Begun,
            ..VerifyHalf::default()
        },
        log: LogHalf {
            stable: instream,
            ack: instream,
            rcv_wnd_edge,
            copied_ack: outstream,
            former_ack: instream,
            ..LogHalf::default()
        },
        ..Flow::default()
    }
}

fn window_field(window: u32, scale: u8) -> u16 {
    u16::try_from(window >> (scale & 15)).unwrap_or(u16::MAX)
}

/// The options that the peer has agreed to, as options of a SYN from the peer.
fn options_of(opened: &Blueprint) -> Result<OptionsBuffer, OptionsFull> {
    let mut options = OptionsBuffer::new();
    if let Some(mss) = opened.options.mss {
        options.push(&TcpOption::MaxSegmentSize(mss))?;
    }
    if let Some((theirs, _)) = opened.options.window_scales {
        options.push(&TcpOption::WindowScale(theirs))?;
    }
    if opened.options.sack {
        options.push(&TcpOption::SackPermitted)?;
    }
    if opened.timestamp.is_some() {
        options.push(&TcpOption::Timestamps { value: 0, echo: 0 })?;
    }
    Ok(options)
}
