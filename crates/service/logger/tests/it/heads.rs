//! Response heads arrive by the link, and a moment later by the control stream.

use std::time::Duration;

use protocol::{
    Digest, DigestSeed,
    control::{RecordSummary, Request, Response},
    link::{Head, seal_head, seal_said},
    mirror::FrameKind,
};
use wal::Storage;
use wire::{FlowId, SeqNumber};

use crate::{
    host::{Host, frame, signer},
    lives::{Logger, OLD, listens, peer, served, upload},
};

const FLOW: FlowId = FlowId(1);

/// A service with the request of a client, and the response.
struct Asked {
    logger: Logger,
    host: Host,
}

/// A response: the sequence number, and the server's packet.
type Said = (SeqNumber, Vec<u8>);

impl Asked {
    fn new() -> Self {
        let mut logger = Logger::new();
        let mut host = served(&mut logger, OLD, peer(1, 1000), &[100]);
        upload(&mut logger, &mut host, peer(1, 1000));
        Self { logger, host }
    }

    fn says(&mut self, payload: &[u8]) -> Said {
        let connection = self.host.connections.get_mut(&FLOW).expect("there");
        connection.answer(payload)
    }

    fn isn(&self) -> SeqNumber {
        self.host.connections[&FLOW].server_isn
    }

    /// The head of this response arrives by the link; the head before ended at `after`.
    fn by_link(&mut self, said: &Said, after: SeqNumber) {
        let keys = self.host.keys;
        let mut datagram = Vec::new();
        let by = signer(&keys, &keys.up);
        let whole = u16::try_from(self.host.connections[&FLOW].said).expect("short");
        let whole = whole
            - u16::try_from(said.0.distance_from(self.isn() + 1).expect("behind")).expect("short");
        let head = Head {
            after,
            keep: 5,
            whole,
            asked: SeqNumber(0),
        };
        seal_head(&said.1, FLOW, head, by, &mut datagram).expect("a packet");
        self.logger.take(peer(1, 1000), &[datagram]);
    }

    /// The digest of all output arrives by the link: the client has received the output, and the server has `had`
    /// bytes of input.
    fn digest_by_link(&mut self, digest: Digest, had: u32) {
        let connection = &self.host.connections[&FLOW];
        let packet = connection.packet(0, 0, wire::ChecksumMode::Full);
        let says = (digest, connection.client_isn + 1 + had);
        let by = signer(&self.host.keys, &self.host.keys.up);
        let mut datagram = Vec::new();
        seal_said(&packet, FLOW, says, by, &mut datagram).expect("a packet");
        self.logger.take(peer(1, 1000), &[datagram]);
    }

    fn hears(&mut self, heard: u32) {
        let packet = listens(&self.host, FLOW, heard, heard, heard);
        self.logger.take(peer(1, 1000), &[packet]);
    }

    /// Writes also entries that are not urgent.
    fn write(&mut self) {
        self.logger.now += Duration::from_secs(1);
        self.logger.write_all();
    }

    fn digest_by_stream(&mut self, next: u32) {
        let digest = self.digest(next).to_bytes();
        let bytes = frame(FLOW, FrameKind::Digest, &digest);
        self.logger.ask(OLD, &Request::Frames { bytes });
    }

    fn digest(&self, next: u32) -> Digest {
        Digest {
            folded: next.into(),
            sum: 5,
            base: self.isn() + 1,
            next: self.isn() + 1 + next,
        }
    }

    /// All known digests, and the places where the client began to send: input of the server, and output received
    /// by the client.
    fn digests(&mut self) -> (Vec<Digest>, Vec<(u32, u32)>) {
        let isn = self.host.connections[&FLOW].client_isn;
        let server = self.isn();
        let flow = FLOW;
        let digests = match &self.logger.ask(OLD, &Request::Digests { flow })[..] {
            [Response::Digests { digests, .. }] => digests.clone(),
            other => panic!("{other:?}"),
        };
        let places = match &self.logger.ask(OLD, &Request::Beginnings { flow })[..] {
            [Response::Beginnings { places, .. }] => places.clone(),
            other => panic!("{other:?}"),
        };
        let from = |at: SeqNumber, isn: SeqNumber| at.distance_from(isn + 1).expect("behind it");
        let places = places
            .iter()
            .map(|(at, heard)| (from(*at, isn), from(*heard, server)));
        (digests, places.collect())
    }

    fn told_seed(&mut self, seed: u64) -> DigestSeed {
        let told = Request::DigestSeed(DigestSeed([seed, 0]));
        match self.logger.ask(OLD, &told)[..] {
            [Response::DigestSeed(known)] => known,
            ref other => panic!("{other:?}"),
        }
    }

    fn by_stream(&mut self, said: &Said) {
        let kind = FrameKind::Outstream {
            from: said.0,
            asked: SeqNumber(0),
        };
        let bytes = frame(FLOW, kind, &said.1);
        self.logger.ask(OLD, &Request::Frames { bytes });
    }

    fn summary(&mut self) -> RecordSummary {
        match &self.logger.ask(OLD, &Request::Summaries)[..] {
            [Response::Summaries { summaries, .. }] => summaries[0],
            other => panic!("{other:?}"),
        }
    }

    /// Number of recorded bytes.
    fn bytes(&self) -> usize {
        let session = self.logger.sessions.get(OLD).expect("there");
        let heads = session.journal().outstream_ranges(FLOW);
        heads.map(|(_, bytes)| bytes.len()).sum()
    }

    /// Length of the output that is recorded in order.
    fn end(&mut self) -> Option<u32> {
        let first = self.isn() + 1;
        let end = self.summary().outstream_end?;
        Some(end.distance_from(first).expect("behind it"))
    }
}

#[test]
fn a_head_that_came_by_the_link_is_in_the_record_and_in_the_log() {
    let mut asked = Asked::new();
    let said = asked.says(b"short");
    asked.by_link(&said, said.0);
    assert_eq!(asked.end(), Some(5));
    assert!(
        asked.logger.out.datagrams().is_empty(),
        "nobody waits for an answer"
    );
    asked.logger.write_all();
    asked.by_stream(&said);
    asked.logger.order();
    assert!(asked.logger.writing.is_none(), "it is known");
    let long = asked.says(b"longer than that");
    asked.by_link(&long, said.0 + 5);
    assert_eq!(
        (asked.end(), asked.bytes()),
        (Some(21), 10),
        "the rest comes"
    );
    asked.logger.restart();
    assert_eq!((asked.end(), asked.bytes()), (Some(21), 10));
    asked.by_stream(&long);
    assert_eq!((asked.end(), asked.bytes()), (Some(21), 21));
    let statistics = asked.logger.sessions.get(OLD).expect("there").statistics();
    assert_eq!(
        (statistics.heads, statistics.refused()),
        (0, 0),
        "since the restart"
    );
}

#[test]
fn one_that_is_missing_is_not_hidden_by_the_next() {
    for restarts in [false, true] {
        let mut asked = Asked::new();
        let lost = asked.says(b"lost");
        let next = asked.says(b"next");
        asked.by_link(&next, lost.0 + 4);
        assert_eq!(asked.end(), Some(0), "nothing in order");
        if restarts {
            asked.logger.restart();
        }
        assert_eq!(asked.end(), Some(0));
        asked.by_stream(&lost);
        assert_eq!(asked.end(), Some(4));
        asked.by_stream(&next);
        assert_eq!(asked.end(), Some(8));
        if !restarts {
            let third = asked.says(b"third");
            asked.by_link(&third, next.0 + 4);
            assert_eq!(asked.end(), Some(13), "and so on");
        }
    }
}

#[test]
fn a_head_of_a_stranger_or_for_nobody_changes_nothing() {
    let mut asked = Asked::new();
    let said = asked.says(b"short");
    let keys = asked.host.keys;
    let mut datagram = Vec::new();
    let head = Head {
        after: said.0,
        keep: 5,
        whole: 5,
        asked: SeqNumber(0),
    };
    let by = signer(&keys, &keys.down);
    seal_head(&said.1, FLOW, head, by, &mut datagram).expect("a packet");
    let unknown = FlowId(9);
    let mut other = Vec::new();
    let by = signer(&keys, &keys.up);
    seal_head(&said.1, unknown, head, by, &mut other).expect("a packet");
    asked.logger.take(peer(1, 1000), &[datagram, other]);
    assert_eq!(asked.end(), None);
    let statistics = asked.logger.sessions.get(OLD).expect("there").statistics();
    assert_eq!(
        (statistics.bad_tags, statistics.unknown, statistics.heads),
        (1, 1, 0)
    );
}

#[test]
fn digests_that_came_by_the_link_are_in_the_record_and_in_the_log() {
    let mut asked = Asked::new();
    let all = [70_000, 80_000, 90_000].map(|next| asked.digest(next));
    asked.digest_by_link(all[0], 100);
    assert_eq!(asked.digests(), (vec![all[0]], vec![(100, 70_000)]));
    // The client began to send not there, but later.
    asked.digest_by_link(all[1], 100);
    assert_eq!(asked.digests(), (vec![all[1]], vec![(100, 80_000)]));
    // By the control stream, where the client may not have received all of the output.
    asked.digest_by_stream(90_000);
    let known = (vec![all[1], all[2]], vec![(100, 80_000)]);
    assert_eq!(asked.digests(), known);
    asked.write();
    for _ in 0..2 {
        asked.logger.restart();
        assert_eq!(asked.digests(), known);
    }
}

/// During a download each digest replaces the digest before, also in a log that is read.
#[test]
fn a_record_that_is_read_again_has_no_more_digests_than_before() {
    let mut asked = Asked::new();
    for next in (1..=300).map(|number| number << 16) {
        asked.hears(next - 5);
        asked.digest_by_stream(next);
        asked.write();
    }
    let (digests, places) = asked.digests();
    assert_eq!(
        digests,
        [299 << 16, 300 << 16].map(|next| asked.digest(next))
    );
    asked.logger.restart();
    assert_eq!(asked.digests(), (digests, places));
}

#[test]
fn places_of_digests_are_copied_across_gigabytes() {
    let mut asked = Asked::new();
    asked.digest_by_link(asked.digest(1 << 20), 100);
    let connection = asked.host.connections.get_mut(&FLOW).expect("there");
    connection.said += 1_500_000_000;
    let said = asked.says(b"head");
    asked.by_stream(&said);
    // Changes fill the log, which copies the record forward.
    for heard in (1..=2000).map(|number| 1_500_000_000 + (number << 16)) {
        asked.hears(heard);
        asked.write();
    }
    let oldest = asked.logger.log.storage().list().expect("listed")[0];
    assert!(oldest > 0, "its first segments are gone");
    let before = (asked.digests(), asked.bytes());
    asked.logger.restart();
    assert_eq!((asked.digests(), asked.bytes()), before);
    // The first digest stays, because the client began to send there.
    let next = 1_600_000_000;
    asked.digest_by_stream(next);
    let all = [1 << 20, next].map(|next| asked.digest(next));
    assert_eq!(asked.digests().0, all);
}

/// The key of existing digests stays. Without digests the key of the next host counts.
#[test]
fn digests_keep_their_key() {
    let mut asked = Asked::new();
    for seed in [7, 8] {
        // There is no digest yet.
        assert_eq!(asked.told_seed(seed), DigestSeed([seed, 0]));
    }
    let digest = asked.digest(70_000);
    asked.digest_by_link(digest, 100);
    assert_eq!(asked.told_seed(9), DigestSeed([8, 0]));
    asked.write();
    asked.logger.restart();
    assert_eq!(asked.told_seed(9), DigestSeed([8, 0]));
    asked.logger.close(OLD, FLOW);
    assert_eq!(asked.told_seed(9), DigestSeed([9, 0]));
}
