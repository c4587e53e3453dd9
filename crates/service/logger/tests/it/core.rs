//! The core of the logger, without sockets: datagrams in, acknowledgements out.

mod acks;
mod control;
mod datagram_faults;
mod determinants;
mod read_cursors;
mod sessions;

use std::{net::SocketAddr, time::Duration};

use logger::{
    RpcHandler,
    link::{AckPolicy, Greeting, Outbox, Peer, Session, Sessions},
};
use proptest::prelude::*;
use protocol::{
    UnprotectedReason,
    control::{Attach, Request, Response, Resume},
    link::{Ack, KeySlot, LinkKey, Open, Probe, ProbeKind},
    mirror::{CloseReason, FrameKind},
};
use rand::{Rng, seq::SliceRandom};
use wire::{ChecksumMode, FlowId, SeqNumber};

use crate::host::{Connection, Host, attach, cut, frame};

const INSTANCE: u64 = 5;
const NOW: Duration = Duration::from_secs(10);
const KEEP: Duration = Duration::from_secs(600);
const PID: RpcHandler = RpcHandler::new(1);

fn peer() -> Peer {
    Peer {
        via: 0,
        local: [192, 0, 2, 9].into(),
        address: SocketAddr::from(([192, 0, 2, 1], 1000)),
    }
}

fn greeting(number: u8) -> Greeting {
    Greeting {
        up: LinkKey([number; 16]),
        down: LinkKey([number + 100; 16]),
        counter: 1000,
    }
}

/// A logger, and the serving host at the other end of the link.
struct Link {
    sessions: Sessions,
    host: Host,
    out: Outbox,
}

impl Link {
    fn new(policy: AckPolicy, seed: u64) -> Self {
        Self::with(policy, seed, &attach(INSTANCE, 1000))
    }

    fn with(policy: AckPolicy, seed: u64, attach: &Attach) -> Self {
        let mut sessions = Sessions::new(policy, 1 << 30, KEEP);
        let mut out = Outbox::default();
        let (kept, keys) = sessions.attach(attach, peer(), "key", &greeting(1), &mut out);
        assert!(!kept);
        Self {
            sessions,
            host: Host::new(keys, seed),
            out,
        }
    }

    fn session(&mut self) -> &mut Session {
        self.sessions.get_mut(INSTANCE).expect("attached")
    }

    fn ask(&mut self, request: &Request) -> Vec<Response> {
        let session = self.sessions.get_mut(INSTANCE).expect("attached");
        session.answer(PID, request, &mut self.out)
    }

    fn take(&mut self, datagram: &[u8]) {
        self.sessions.take(peer(), datagram, NOW, &mut self.out);
    }

    /// The end of a batch: the ACKs that were sent.
    fn settle(&mut self, now: Duration) -> Vec<Ack> {
        self.sessions.settle(now, &mut self.out);
        let sent = self.out.datagrams().iter();
        let acks = sent.map(|datagram| {
            assert_eq!(datagram.to, peer());
            self.host.hear(datagram.bytes())
        });
        let acks = acks.collect();
        self.out.clear();
        acks
    }

    fn connect(&mut self, flow: u64, len: usize) {
        self.host.connect(flow, len);
        let open = self.host.open(&self.host.connections[&FlowId(flow)]);
        self.take(&open);
        self.settle(NOW);
        assert!(self.host.connections[&FlowId(flow)].opened);
    }

    fn send(&mut self, flow: u64, at: usize, len: usize) {
        let connection = &self.host.connections[&FlowId(flow)];
        let packet = connection.packet(at, len, ChecksumMode::Full);
        let datagram = self.host.segment(connection, &packet, false);
        self.take(&datagram);
    }

    /// The input of a client in the record.
    fn read(&mut self, flow: FlowId) -> Vec<u8> {
        let first = self.host.connections[&flow].client_isn + 1;
        let mut all = Vec::new();
        loop {
            let request = Request::Read {
                flow,
                from: first + u32::try_from(all.len()).expect("short"),
                max_len: 10_000,
            };
            match &self.ask(&request)[..] {
                [Response::Data { bytes, .. }] if bytes.is_empty() => return all,
                [Response::Data { bytes, .. }] => all.extend_from_slice(bytes),
                other => panic!("{other:?}"),
            }
        }
    }

    /// No ACK has run ahead of the record, and the record has the bytes of the clients.
    fn check(&mut self) {
        let flows: Vec<FlowId> = self.host.connections.keys().copied().collect();
        for flow in flows {
            if !self.host.connections[&flow].opened {
                continue;
            }
            let recorded = self.read(flow);
            let connection = &self.host.connections[&flow];
            assert!(connection.data.starts_with(&recorded));
            let told = connection.stable.min(connection.data.len());
            assert!(told <= recorded.len(), "an ACK ran ahead of the record");
        }
    }
}

#[test]
fn acks_of_a_batch_share_datagrams() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    let flows: Vec<u64> = (1..=30).collect();
    for &flow in &flows {
        link.connect(flow, 100);
    }
    for &flow in &flows {
        link.send(flow, 0, 100);
    }
    link.sessions.settle(NOW, &mut link.out);
    let mut datagrams = Vec::new();
    link.out.drain(|to, datagram| {
        assert_eq!(to, peer());
        datagrams.push(datagram.to_vec());
    });
    let told: Vec<Vec<u64>> = datagrams
        .iter()
        .map(|datagram| {
            let acks = Ack::each(datagram).map(|ack| link.host.hear(ack));
            acks.map(|ack| ack.flow.0).collect()
        })
        .collect();
    assert_eq!(told.concat(), flows);
    assert_eq!(told.iter().map(Vec::len).collect::<Vec<_>>(), [5; 6]);
    assert!(link.out.datagrams().is_empty());
}
