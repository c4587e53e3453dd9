//! Read cursors of a server with state: input before a cursor need not be mirrored.

use super::*;

impl Link {
    /// Sends a mirrored segment with the read cursor `noted`.
    fn send_noted(&mut self, at: usize, len: usize, noted: usize) {
        let connection = &self.host.connections[&FlowId(1)];
        let packet = connection.packet(at, len, ChecksumMode::Full);
        let datagram = self.host.noted(connection, &packet, false, noted);
        self.take(&datagram);
    }

    /// The acknowledged bytes, and the ranges beyond.
    fn heard(&mut self) -> (usize, Vec<(usize, usize)>) {
        self.settle(NOW);
        let connection = &self.host.connections[&FlowId(1)];
        (connection.stable, connection.ranges.clone())
    }

    fn seq(&self, at: u32) -> SeqNumber {
        self.host.connections[&FlowId(1)].client_isn + 1 + at
    }

    fn release(&mut self, to: u32) {
        let places = vec![(FlowId(1), self.seq(to))];
        assert_eq!(self.ask(&Request::Release { places }), []);
    }

    /// The start of the record, and the recorded bytes from there.
    fn recorded(&mut self) -> (usize, Vec<u8>) {
        let journal = self.session().journal();
        let Some(journal::State::Protected(record)) =
            journal.summary(FlowId(1)).map(|summary| summary.state)
        else {
            panic!("unprotected");
        };
        let mut bytes = Vec::new();
        let start = record.start.instream;
        let read = journal.read(FlowId(1), start, usize::MAX, &mut bytes);
        read.expect("it begins there");
        let at = start.distance_from(self.seq(0)).expect("after the SYN");
        (usize::try_from(at).expect("short"), bytes)
    }
}

#[test]
fn a_copy_that_was_left_out_is_not_waited_for() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.connect(1, 1000);
    link.send(1, 0, 100);
    link.send(1, 200, 100);
    assert_eq!(link.heard(), (100, vec![(200, 300)]));
    link.send_noted(300, 100, 200);
    assert_eq!(link.heard(), (400, vec![]));
    let data = link.host.connections[&FlowId(1)].data.clone();
    assert_eq!(link.recorded(), (200, data[200..400].to_vec()));
    // Another gap of mirrored segments: the record has only the new segment.
    link.send_noted(500, 100, 500);
    assert_eq!(link.heard(), (600, vec![]));
    assert_eq!(link.recorded(), (500, data[500..600].to_vec()));
    // A late segment is not needed.
    link.send(1, 100, 100);
    assert_eq!(link.heard(), (600, vec![]));
    // The end.
    link.send_noted(900, 100, 800);
    assert_eq!(link.heard(), (800, vec![(900, 1000)]));
    link.send_noted(1000, 0, 900);
    assert_eq!(link.heard(), (1001, vec![]));
}

#[test]
fn what_is_noted_and_recorded_stays() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.connect(1, 1000);
    link.send(1, 0, 300);
    link.settle(NOW);
    let data = link.host.connections[&FlowId(1)].data.clone();
    for noted in [0, 100, 300] {
        link.send_noted(300, 100, noted);
        assert_eq!(link.heard(), (400, vec![]));
        assert_eq!(link.recorded(), (0, data[..400].to_vec()));
    }
    // Until the service releases the bytes.
    link.release(100);
    assert_eq!(link.recorded(), (100, data[100..400].to_vec()));
    assert!(link.settle(NOW).is_empty());
}

#[test]
fn a_segment_without_payload_says_it_as_well_and_is_answered_then() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.connect(1, 1000);
    link.send(1, 0, 100);
    link.send(1, 200, 100);
    link.settle(NOW);
    link.send_noted(300, 0, 150);
    assert_eq!(link.settle(NOW).len(), 1);
    assert_eq!(link.heard(), (150, vec![(200, 300)]));
    link.send_noted(300, 0, 150);
    assert!(link.settle(NOW).is_empty(), "no news");
    link.send_noted(300, 0, 200);
    assert_eq!(link.settle(NOW).len(), 1);
    assert_eq!(link.heard(), (300, vec![]));
    assert_eq!(link.session().statistics().progress, 3);
}

#[test]
fn a_service_says_itself_what_is_noted() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.connect(1, 1000);
    link.send(1, 0, 100);
    link.send(1, 200, 100);
    link.settle(NOW);
    link.release(200);
    assert_eq!(link.heard(), (300, vec![]));
    assert_eq!(link.recorded().0, 200);
    link.release(500);
    assert_eq!(link.heard(), (500, vec![]));
    assert_eq!(link.recorded(), (500, vec![]));
    // Releases of unknown connections and of impossible places change nothing.
    let places = vec![(FlowId(9), SeqNumber(9)), (FlowId(1), link.seq(0) - 1)];
    assert_eq!(link.ask(&Request::Release { places }), []);
    assert!(link.settle(NOW).is_empty());
    link.send(1, 500, 500);
    link.settle(NOW);
    assert!(link.host.is_recorded());
}

#[test]
fn a_service_that_keeps_nothing_between_turns_has_no_notes() {
    let turns = Attach {
        replay: types::ReplayMode::Request,
        ..attach(INSTANCE, 1000)
    };
    let mut link = Link::with(AckPolicy::EachBatch, 1, &turns);
    link.connect(1, 1000);
    link.send(1, 0, 100);
    link.send_noted(200, 100, 200);
    assert_eq!(link.heard(), (100, vec![(200, 300)]));
    link.release(200);
    assert_eq!(link.heard(), (100, vec![(200, 300)]));
}

proptest! {
    /// For any cursors from a sender with the keys: the record has the client's bytes from the start of the record
    /// on, and no cursor causes a panic.
    #[test]
    fn any_place_may_be_said(
        seed: u64,
        said in prop::collection::vec((0usize..2000, 0usize..300, any::<u16>()), 1..30),
    ) {
        let mut link = Link::new(AckPolicy::EachBatch, seed);
        link.connect(1, 2000);
        let data = link.host.connections[&FlowId(1)].data.clone();
        for (at, len, behind) in said {
            let connection = &link.host.connections[&FlowId(1)];
            let packet = connection.packet(at, len, ChecksumMode::Full);
            let flags = protocol::link::SegmentFlags { version: protocol::link::VERSION,
                kind: protocol::link::SegmentKind::Noted,
                unfinished: false,
                slot: link.host.keys.slot,
            };
            let place = link.seq(u32::try_from(at).expect("short")) - u32::from(behind);
            let mut datagram = Vec::new();
            let key = &link.host.keys.up;
            protocol::link::seal(&packet, FlowId(1), (flags, place), key, &mut datagram)
                .expect("a packet");
            link.take(&datagram);
            link.settle(NOW);
            let (start, bytes) = link.recorded();
            prop_assert!(data[start..].starts_with(&bytes));
        }
    }
}
