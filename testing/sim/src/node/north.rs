//! The north side of a host whose server has state: its notes outlive it, and so do its clients' numbers, at which
//! its next life gets sockets.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use recovery::{ReplayPosition, SplicePoint};
use smoltcp::iface::SocketHandle;
use south_model::{Flow, fabricated_syn};
use wire::{ChecksumMode, Flags, FlowId, FlowKey, SegmentSpec, SeqNumber, kind};

use super::{Node, finished, packet};
use crate::{
    clock,
    host::SocketSetup,
    length32,
    notes::Notes,
    process::Process,
    repair::Blueprint,
    scenario::{Flaw, NorthSetup},
    stateful::{Connection, Stateful},
    witness::{Violation, Witness},
};

/// How often things happened to a server with state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Sockets that were made for connections.
    pub grafts: u32,
    /// And had to say again what a client lacked.
    pub resumed: u32,
    /// And were closed at once, as the dead life may have been about to.
    pub closed: u32,
    /// Deaths in a replay, before sockets were made, between that and their handover, and of one that served.
    pub deaths: [u32; 4],
}

/// What there is of it beside the process.
#[derive(Debug)]
pub(crate) struct North {
    pub(crate) setup: NorthSetup,
    pub(crate) notes: Notes,
    /// So many steps of the program until it is to die; of the next life, if there is none.
    pub(crate) fuse: Option<u32>,
    /// Sockets that are to be given to the server, by the number of their connections.
    made: BTreeMap<usize, SocketHandle>,
    /// Which clock has which connection that was grafted.
    clocks: BTreeMap<FlowKey, usize>,
    /// What the server had read when there were so many notes.
    releasing: Option<(usize, Vec<(FlowId, SeqNumber)>)>,
    pub(crate) tally: Tally,
}

impl North {
    pub(crate) fn new(setup: NorthSetup) -> Self {
        Self {
            setup,
            notes: Notes::new(setup.flaw),
            fuse: None,
            made: BTreeMap::new(),
            clocks: BTreeMap::new(),
            releasing: None,
            tally: Tally::default(),
        }
    }

    pub(crate) fn made(&self) -> impl Iterator<Item = SocketHandle> + '_ {
        self.made.values().copied()
    }

    /// Its host has lost its power.
    pub(crate) fn lose_power(&mut self, rng: &mut SmallRng) {
        self.notes.lose_power(rng);
        (self.releasing, self.fuse) = (None, None);
        self.made.clear();
    }

    /// This life dies.
    pub(crate) fn dies(&mut self, stateful: &Stateful) {
        let stage = match (stateful.has_replayed(), stateful.waits()) {
            (false, _) => 0,
            (true, true) if self.made.is_empty() => 1,
            (true, true) => 2,
            (true, false) => 3,
        };
        self.tally.deaths[stage] += 1;
    }
}

impl Node {
    /// A life of the server begins, which is this process.
    pub(crate) fn begin(&mut self, mut process: Process) {
        if let Some(north) = &mut self.north {
            north.made.clear();
            north.notes.lose_unmade();
            process.stateful = Some(Stateful::new(process.life, &north.notes));
        }
        self.process = Some(process);
    }

    fn stateful(&self) -> Option<&Stateful> {
        self.process.as_ref()?.stateful.as_ref()
    }

    /// The server has lived through its notes.
    pub(crate) fn has_replayed(&self) -> bool {
        self.stateful().is_some_and(Stateful::has_replayed)
    }

    fn passed(&self, key: FlowKey, flow: &Flow) -> Option<(usize, &Connection)> {
        let knows_syns = self.north.as_ref()?.setup.knows_syns;
        let isn = knows_syns.then_some(flow.client.isn);
        self.stateful()?.passed(key, isn)
    }

    /// Where the server stands with this connection, while it waits for those that it knows.
    pub(crate) fn standing(&self, key: FlowKey, flow: &Flow) -> Option<ReplayPosition> {
        let (_, passed) = self.passed(key, flow)?;
        Some(ReplayPosition {
            instream: expected(flow, passed),
            outstream: flow.server.isn + 1 + length32(passed.said.len()),
            is_closed: passed.closed,
            is_certain: self.north.as_ref()?.setup.knows_syns,
        })
    }

    /// The same of all connections, for a logger on another machine: it need not wait for what it has had no copy of.
    pub(crate) fn where_it_stands(&self) -> Vec<(FlowId, SeqNumber)> {
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

    /// What the logger knows to have been read of this connection, from notes.
    pub(crate) fn noted(&self, key: FlowKey, flow: &Flow) -> Option<SeqNumber> {
        let notes = &self.north.as_ref()?.notes;
        let mut noted = notes.noted().iter();
        let its = noted.find(|(its, isn, _)| (*its, *isn) == (key, flow.client.isn));
        its.map(|(_, isn, read)| *isn + 1 + length32(*read))
    }

    /// A server that serves says how far it has noted what it has read.
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
        for (key, isn, read) in north.notes.noted() {
            let read = match north.notes.read_of(*key) {
                Some(all) if too_soon => all,
                _ => *read,
            };
            self.south.note(*key, *isn, *isn + 1 + length32(read));
        }
    }

    /// What its flows' connections have read, as far as that is noted where it is safe.
    pub(crate) fn what_was_read(&mut self) -> Vec<(FlowId, SeqNumber)> {
        let Some(north) = &mut self.north else {
            return Vec::new();
        };
        let notes = &north.notes;
        let flows = self.south.flows().filter(|(_, flow)| flow.closed_ns == 0);
        let read = flows.filter_map(|(key, flow)| {
            let read = notes.read_of(*key)?;
            Some((flow.id, flow.client.isn + 1 + length32(read)))
        });
        let (length, read) = north
            .releasing
            .take()
            .unwrap_or_else(|| (notes.len(), read.collect()));
        if notes.are_stable(length) {
            return read;
        }
        north.releasing = Some((length, read));
        Vec::new()
    }

    /// Make the socket with which the server goes on, then let what concerns it pass, then say what is still to be
    /// said: as `serve` does.
    pub(crate) fn graft(
        &mut self,
        key: FlowKey,
        flow: &Flow,
        point: SplicePoint,
        witness: &mut Witness,
        now: u64,
    ) -> Result<(), Violation> {
        let Some((number, passed)) = self.passed(key, flow) else {
            return Ok(());
        };
        let Some(said) = lacked(flow, passed, point.outstream) else {
            return Ok(()); // nobody has said that: it is not taken
        };
        let (expected, is_closed) = (expected(flow, passed), passed.closed);
        let blueprint = self.blueprint(key, flow, (expected, point.outstream), said.len())?;
        let Some(socket) = self.host.repaired(blueprint, now) else {
            return Err(Violation::new(format!("no socket can be made for {key}")));
        };
        let window = flow.server.edge.distance_from(expected).unwrap_or(0);
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
            witness,
        )?;
        self.report_states(now);
        self.poll(witness, now)
    }

    /// The connection goes on.
    fn join(
        &mut self,
        key: FlowKey,
        number: usize,
        graft: Graft,
        witness: &mut Witness,
    ) -> Result<(), Violation> {
        let Some(north) = &mut self.north else {
            return Ok(());
        };
        let socket = self.host.socket(graft.socket);
        let swallowed = north.setup.flaw == Flaw::SwallowsWords;
        if !swallowed && socket.send_slice(&graft.said) != Ok(graft.said.len()) {
            return Err(Violation::new(format!("{key} does not take what was said")));
        }
        north.tally.grafts += 1;
        north.tally.resumed += u32::from(!graft.said.is_empty());
        north.tally.closed += u32::from(graft.is_closed);
        if graft.is_closed {
            socket.close();
            witness.server_closed(key);
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

    /// The server gets its connections, and goes on.
    pub(crate) fn hand_over(&mut self) {
        let stateful = self.process.as_mut().and_then(|one| one.stateful.as_mut());
        if let (Some(stateful), Some(north)) = (stateful, &mut self.north) {
            stateful.go(|number| north.made.remove(&number));
        }
    }
}

/// A connection that goes on.
struct Graft {
    socket: SocketHandle,
    said: Vec<u8>,
    is_closed: bool,
}

/// What the server has said, and its client lacks.
fn lacked(flow: &Flow, passed: &Connection, next: SeqNumber) -> Option<Vec<u8>> {
    let known = next.distance_from(flow.server.isn + 1)?;
    passed.said.get(crate::index(known)..).map(<[u8]>::to_vec)
}

/// The next number that the server is to be given.
fn expected(flow: &Flow, passed: &Connection) -> SeqNumber {
    flow.client.isn + 1 + length32(passed.read)
}

/// What the client said last, as far as the server has read it: it has everything before `next`, and this
/// window.
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
