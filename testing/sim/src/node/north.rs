//! The north side of a stateful server's host. The determinants outlive the server, and the next incarnation gets
//! sockets with the numbers of the clients.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use recovery::{ReplayPosition, SplicePoint};
use smoltcp::iface::SocketHandle;
use south_model::{Flow, fabricated_syn};
use wire::{ChecksumMode, Flags, FlowId, FlowKey, SegmentSpec, SeqNumber, kind};

use super::{Node, finished, packet};
use crate::{
    clock,
    determinants::DeterminantLog,
    host::SocketSetup,
    invariants::{InvariantChecker, Violation},
    length32,
    process::Process,
    repair::Blueprint,
    scenario::{Flaw, NorthSetup},
    stateful::{Connection, Stateful},
};

/// Events of a stateful server, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NorthCounters {
    /// Sockets that were grafted.
    pub grafts: u32,
    /// Grafted sockets that had to send missing output again.
    pub resumed: u32,
    /// Grafted sockets that were closed at once, as the dead incarnation may have been about to do.
    pub closed: u32,
    /// Deaths during a replay, before the grafts, before the handover, and while serving.
    pub deaths: [u32; 4],
}

/// The stateful server without its process.
#[derive(Debug)]
pub(crate) struct North {
    pub(crate) setup: NorthSetup,
    pub(crate) determinants: DeterminantLog,
    /// Steps of the program until its death, or until the death of the next incarnation.
    pub(crate) fuse: Option<u32>,
    /// Grafted sockets before the handover, by the number of their connections.
    made: BTreeMap<usize, SocketHandle>,
    /// The clock of each grafted connection.
    clocks: BTreeMap<FlowKey, usize>,
    /// Number of determinants, and the read positions at that number.
    releasing: Option<(usize, Vec<(FlowId, SeqNumber)>)>,
    pub(crate) counters: NorthCounters,
}

impl North {
    pub(crate) fn new(setup: NorthSetup) -> Self {
        Self {
            setup,
            determinants: DeterminantLog::new(setup.flaw),
            fuse: None,
            made: BTreeMap::new(),
            clocks: BTreeMap::new(),
            releasing: None,
            counters: NorthCounters::default(),
        }
    }

    pub(crate) fn made(&self) -> impl Iterator<Item = SocketHandle> + '_ {
        self.made.values().copied()
    }

    /// The host loses its power.
    pub(crate) fn lose_power(&mut self, rng: &mut SmallRng) {
        self.determinants.lose_power(rng);
        (self.releasing, self.fuse) = (None, None);
        self.made.clear();
    }

    /// The incarnation dies.
    pub(crate) fn dies(&mut self, stateful: &Stateful) {
        let stage = match (stateful.has_replayed(), stateful.waits()) {
            (false, _) => 0,
            (true, true) if self.made.is_empty() => 1,
            (true, true) => 2,
            (true, false) => 3,
        };
        self.counters.deaths[stage] += 1;
    }
}

impl Node {
    /// Starts an incarnation of the server.
    pub(crate) fn begin(&mut self, mut process: Process) {
        if let Some(north) = &mut self.north {
            north.made.clear();
            north.determinants.lose_unmade();
            process.stateful = Some(Stateful::new(process.incarnation, &north.determinants));
        }
        self.process = Some(process);
    }

    fn stateful(&self) -> Option<&Stateful> {
        self.process.as_ref()?.stateful.as_ref()
    }

    /// Whether the server has replayed all determinants.
    pub(crate) fn has_replayed(&self) -> bool {
        self.stateful().is_some_and(Stateful::has_replayed)
    }

    fn passed(&self, key: FlowKey, flow: &Flow) -> Option<(usize, &Connection)> {
        let knows_syns = self.north.as_ref()?.setup.knows_syns;
        let isn = knows_syns.then_some(flow.client.isn);
        self.stateful()?.passed(key, isn)
    }

    /// Replay position of the connection, while the server waits for its sockets.
    pub(crate) fn standing(&self, key: FlowKey, flow: &Flow) -> Option<ReplayPosition> {
        let (_, passed) = self.passed(key, flow)?;
        Some(ReplayPosition {
            instream: expected(flow, passed),
            outstream: flow.server.isn + 1 + length32(passed.said.len()),
            is_closed: passed.closed,
            is_certain: self.north.as_ref()?.setup.knows_syns,
        })
    }

    /// Replay positions of all connections, for a logger on another machine: that logger need not wait for segments
    /// without a copy.
    pub(crate) fn replay_positions(&self) -> Vec<(FlowId, SeqNumber)> {
        let north = self.north.as_ref();
        if north.is_none_or(|north| north.setup.commit.is_none()) {
            return Vec::new();
        }
        let flows = self.south.flows();
        let stands = flows.filter_map(|(key, flow)| {
            let standing = self.standing(*key, flow)?;
            Some((flow.id, standing.instream))
        });
        stands.collect()
    }

    /// Recorded reads of this connection that the logger knows.
    pub(crate) fn read_cursor(&self, key: FlowKey, flow: &Flow) -> Option<SeqNumber> {
        let determinants = &self.north.as_ref()?.determinants;
        let mut cursors = determinants.read_cursors().iter();
        let its = cursors.find(|(its, isn, _)| (*its, *isn) == (key, flow.client.isn));
        its.map(|(_, isn, read)| *isn + 1 + length32(*read))
    }

    /// Tells the data plane the recorded reads of a serving server.
    pub(crate) fn note_reads(&mut self) {
        if !self.stateful().is_some_and(Stateful::serves) {
            return;
        }
        let Some(north) = self
            .north
            .as_ref()
            .filter(|north| north.setup.commit.is_some())
        else {
            return;
        };
        let too_soon = north.setup.flaw == Flaw::TellsTooSoon;
        for (key, isn, read) in north.determinants.read_cursors() {
            let read = match north.determinants.read_of(*key) {
                Some(all) if too_soon => all,
                _ => *read,
            };
            self.south
                .advance_read_cursor(*key, *isn, *isn + 1 + length32(read));
        }
    }

    /// Stable read positions of the flows' connections.
    pub(crate) fn read_positions(&mut self) -> Vec<(FlowId, SeqNumber)> {
        let Some(north) = &mut self.north else {
            return Vec::new();
        };
        let determinants = &north.determinants;
        let flows = self.south.flows().filter(|(_, flow)| flow.closed_ns == 0);
        let read = flows.filter_map(|(key, flow)| {
            let read = determinants.read_of(*key)?;
            Some((flow.id, flow.client.isn + 1 + length32(read)))
        });
        let (length, read) = north
            .releasing
            .take()
            .unwrap_or_else(|| (determinants.len(), read.collect()));
        if determinants.are_stable(length) {
            return read;
        }
        north.releasing = Some((length, read));
        Vec::new()
    }

    /// Makes the socket for the server, opens the flow, and then sends the missing output, as `serve` does.
    pub(crate) fn graft(
        &mut self,
        key: FlowKey,
        flow: &Flow,
        point: SplicePoint,
        checker: &mut InvariantChecker,
        now: u64,
    ) -> Result<(), Violation> {
        let Some((number, passed)) = self.passed(key, flow) else {
            return Ok(());
        };
        let Some(said) = lacked(flow, passed, point.outstream) else {
            return Ok(()); // no client has this output: refused
        };
        let (expected, is_closed) = (expected(flow, passed), passed.closed);
        let blueprint = self.blueprint(key, flow, (expected, point.outstream), said.len())?;
        let Some(socket) = self.host.repaired(blueprint, now) else {
            return Err(Violation::new(format!("no socket can be made for {key}")));
        };
        let window = flow
            .server
            .rcv_wnd_edge
            .distance_from(expected)
            .unwrap_or(0);
        let (instream, outstream) = (point.instream, point.outstream);
        let grafted = self
            .south
            .graft(key, flow.id, instream, outstream, window, now);
        if grafted.is_err() {
            self.host.sockets.remove(socket);
            return Ok(()); // gone
        }
        self.join(
            key,
            number,
            Graft {
                socket,
                said,
                is_closed,
            },
            checker,
        )?;
        self.report_states(now);
        self.poll(checker, now)
    }

    /// Joins the flow and the socket.
    fn join(
        &mut self,
        key: FlowKey,
        number: usize,
        graft: Graft,
        checker: &mut InvariantChecker,
    ) -> Result<(), Violation> {
        let Some(north) = &mut self.north else {
            return Ok(());
        };
        let socket = self.host.socket(graft.socket);
        let swallowed = north.setup.flaw == Flaw::SwallowsWords;
        if !swallowed && socket.send_slice(&graft.said) != Ok(graft.said.len()) {
            return Err(Violation::new(format!("{key} does not take what was said")));
        }
        north.counters.grafts += 1;
        north.counters.resumed += u32::from(!graft.said.is_empty());
        north.counters.closed += u32::from(graft.is_closed);
        if graft.is_closed {
            socket.close();
            checker.server_closed(key);
        } else {
            north.made.insert(number, graft.socket);
        }
        Ok(())
    }

    fn blueprint(
        &mut self,
        key: FlowKey,
        flow: &Flow,
        (expected, next): (SeqNumber, SeqNumber),
        unsaid: usize,
    ) -> Result<Blueprint, Violation> {
        let north = self.north.as_mut();
        let next = match north.as_ref().map(|north| north.setup.flaw) {
            Some(Flaw::GraftsAhead) => next + 1,
            _ => next,
        };
        let clock = north.map_or(0, |north| {
            let count = north.clocks.len();
            *north.clocks.entry(key).or_insert(count)
        });
        let mut opened = flow.clone();
        opened.splice.instream = expected - 1;
        let not_written = |error: wire::EmitError| Violation::new(error.to_string());
        let syn = fabricated_syn(key, &opened).map_err(not_written)?;
        let ack = last_word(key, flow, expected, next).map_err(not_written)?;
        Ok(Blueprint {
            syn: finished(packet(syn, 0, ChecksumMode::Partial)),
            ack,
            next,
            socket: SocketSetup {
                receive_buffer: self.setup.receive_buffer,
                send_buffer: self.setup.send_buffer.max(unsaid),
                timestamps: Some(clock::going_on(clock, flow.server.tsval.wrapping_add(1))),
                nagle: self.setup.nagle,
            },
        })
    }

    /// Gives the server its sockets.
    pub(crate) fn hand_over(&mut self) {
        let stateful = self.process.as_mut().and_then(|one| one.stateful.as_mut());
        if let (Some(stateful), Some(north)) = (stateful, &mut self.north) {
            stateful.go(|number| north.made.remove(&number));
        }
    }
}

/// A grafted connection.
struct Graft {
    socket: SocketHandle,
    said: Vec<u8>,
    is_closed: bool,
}

/// Output that the client lacks.
fn lacked(flow: &Flow, passed: &Connection, next: SeqNumber) -> Option<Vec<u8>> {
    let known = next.distance_from(flow.server.isn + 1)?;
    passed.said.get(crate::index(known)..).map(<[u8]>::to_vec)
}

/// The next sequence number for the server.
fn expected(flow: &Flow, passed: &Connection) -> SeqNumber {
    flow.client.isn + 1 + length32(passed.read)
}

/// The last segment of the client, as far as the server has read: acknowledgement `next`, and this window.
fn last_word(
    key: FlowKey,
    flow: &Flow,
    seq: SeqNumber,
    next: SeqNumber,
) -> Result<Vec<u8>, wire::EmitError> {
    let mut options = Vec::new();
    if flow.server.timestamps {
        options.extend([1, 1, kind::TIMESTAMPS, 10]); // RFC 7323 appendix A
        options.extend(flow.client.tsval.to_be_bytes());
        options.extend(flow.server.tsval.to_be_bytes());
    }
    let mut bytes = Vec::new();
    let segment = SegmentSpec {
        source: key.client(),
        destination: key.server(),
        seq,
        ack: next,
        flags: Flags::ACK,
        window: flow.client.window,
        options: &options,
        payload: &[],
    };
    segment.emit(&mut bytes, ChecksumMode::Full)?;
    Ok(bytes)
}
