//! A connection continues on a new socket that has the client's numbers already: a *graft*.

use std::{io, net::TcpStream, os::fd::AsFd as _};

use north_host::{
    ConnectionReport, Ends, Position, Which,
    repair::{Blueprint, Options, say_again},
};
use recovery::ReplayPosition;
use south_model::Flow;
use wire::{FlowKey, SeqNumber, TcpOption};

use super::{
    North,
    upstream::{Outgoing, reset_socket},
};

impl North {
    /// Position of the server in this connection; `None`: the server has never accepted the connection.
    pub(crate) fn replay_position(&self, key: FlowKey, flow: &Flow) -> Option<ReplayPosition> {
        let standing = self.passed(key, flow)?.position;
        Some(ReplayPosition {
            instream: at(flow.client.isn, standing.instream),
            outstream: at(flow.server.isn, standing.outstream),
            is_closed: standing.is_closed,
            is_certain: standing.which != Which::Unknown,
        })
    }

    /// The report about this connection, among reports with the same ends.
    fn passed(&self, key: FlowKey, flow: &Flow) -> Option<&ConnectionReport> {
        let ends = ends(key);
        if flow.is_opened_by_server() {
            return self.passed.get(&(ends, Which::Flow(flow.id.0)));
        }
        let by_syn = self.passed.get(&(ends, Which::Isn(flow.client.isn.0)));
        by_syn.or_else(|| self.passed.get(&(ends, Which::Unknown)))
    }

    /// The socket with which the server continues, and the missing output. `outstream` is the first sequence number
    /// that the client lacks.
    pub(crate) fn graft(
        &self,
        key: FlowKey,
        flow: &Flow,
        outstream: SeqNumber,
    ) -> io::Result<Option<Graft>> {
        let Some(passed) = self.passed(key, flow) else {
            return Ok(None);
        };
        let expected = at(flow.client.isn, passed.position.instream);
        let kept_from = at(flow.server.isn, passed.offset);
        // Neither output that was dropped, nor output that was never produced.
        let known = outstream.distance_from(kept_from);
        let said = known.and_then(|known| passed.output.get(known as usize..));
        let said = said.ok_or_else(|| io::Error::other("what its client lacks was not kept"))?;
        let window = flow
            .server
            .rcv_wnd_edge
            .distance_from(expected)
            .unwrap_or(0);
        let blueprint = Blueprint {
            local: key.server(),
            peer: key.client(),
            acknowledged: outstream,
            expected,
            options: agreed(flow),
            timestamp: flow
                .server
                .timestamps
                .then(|| flow.server.tsval.wrapping_add(1)),
            send_window: u32::from(flow.client.window) << (flow.client.window_scale & 15),
            receive_window: window,
        };
        Ok(Some(Graft {
            connection: passed.connection,
            socket: blueprint.build()?,
            window,
            said: said.to_vec(),
            is_shut: passed.position.is_shut,
            is_closed: passed.position.is_closed,
            is_opened_by_server: flow.is_opened_by_server(),
        }))
    }

    /// The connection continues: earlier output that the client lacks is sent.
    pub(crate) fn join(&mut self, graft: Graft) -> io::Result<()> {
        say_again(&graft.socket, &graft.said)?;
        if graft.is_closed {
            return Ok(()); // by dropping it: the kernel finishes
        }
        if graft.is_shut {
            graft.socket.shutdown(std::net::Shutdown::Write)?;
        }
        self.rejoined += usize::from(graft.is_opened_by_server);
        self.made.insert(graft.connection, graft.socket);
        Ok(())
    }

    /// The server gets the connections, and continues. Connections that were reset show the reset. Returns the fate of
    /// the upstream connections.
    pub(crate) fn hand_over(&mut self) -> io::Result<Outgoing> {
        let open = self.passed.values().filter(|one| !one.position.is_closed);
        let (made, lost): (Vec<_>, Vec<_>) =
            open.partition(|one| self.made.contains_key(&one.connection));
        // The process has a descriptor less for each connection, and may have none left for reset connections.
        for passed in made {
            if let Some(socket) = self.made.get(&passed.connection) {
                // A connection that cannot be handed over stays here: a close would reach the client.
                self.handover.give(passed, socket.as_fd())?;
                self.made.remove(&passed.connection);
            }
        }
        for passed in lost {
            self.handover.give(passed, reset_socket()?.as_fd())?;
        }
        // Clients of connections that the server has closed may still have to learn of the close.
        self.passed.retain(|_, one| one.position.is_closed);
        let mut outgoing = self
            .upstream
            .hand_over(&self.handover, &self.memory.begun())?;
        outgoing.kept += std::mem::take(&mut self.rejoined);
        self.handover.go()?;
        Ok(outgoing)
    }
}

/// A connection that goes on.
pub(crate) struct Graft {
    connection: u32,
    socket: TcpStream,
    /// Free receive window of the socket, bytes.
    pub(crate) window: u32,
    said: Vec<u8>,
    is_shut: bool,
    is_closed: bool,
    is_opened_by_server: bool,
}

/// How far clients are.
pub(crate) fn positions(flows: &[(FlowKey, Flow)]) -> Vec<Position> {
    let open = flows.iter().filter(|(_, flow)| flow.closed_ns == 0);
    let position = |(key, flow): &(FlowKey, Flow)| Position {
        ends: ends(*key),
        received: received(flow),
    };
    open.map(position).collect()
}

pub(crate) fn ends(key: FlowKey) -> Ends {
    Ends::new(key.client(), key.server())
}

/// The number of the byte at this place of a stream.
fn at(isn: SeqNumber, offset: u64) -> SeqNumber {
    // Numbers come round; places do not.
    let [a, b, c, d, ..] = offset.to_le_bytes();
    isn + 1 + u32::from_le_bytes([a, b, c, d])
}

/// How many bytes of the outstream the client has.
fn received(flow: &Flow) -> u64 {
    let lacks = flow.server.nxt.distance_from(flow.client.ack).unwrap_or(0);
    flow.server.sent.saturating_sub(lacks.into())
}

/// Options agreed in the handshake, which the new socket has not seen.
fn agreed(flow: &Flow) -> Options {
    let mut mss = None;
    let mut scales = false;
    for option in wire::Options::new(&flow.syn_options).flatten() {
        match option {
            TcpOption::MaxSegmentSize(size) => mss = Some(size),
            TcpOption::WindowScale(_) => scales = true,
            _ => {}
        }
    }
    Options {
        mss,
        window_scales: scales.then_some((flow.client.window_scale, flow.server.window_scale)),
        sack: flow.server.sack,
    }
}
