//! The output of the server is reported later than the input of the client: requests of a record on another machine.

use journal::{
    InstreamSegment, Journal, Limits, OutstreamSegment, Position, Protected, ReplayMode,
    ServerProgress, State,
};
use proptest::prelude::*;
use wire::{FlowId, SeqNumber};

const FLOW: FlowId = FlowId(7);
// Both streams wrap early.
const CLIENT: SeqNumber = SeqNumber(u32::MAX - 5);
const SERVER: SeqNumber = SeqNumber(u32::MAX - 9);
const OK: &str = "HTTP/1.1 200 OK\r\n\r\n";
const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";

const LIMITS: Limits = Limits {
    per_connection: 1 << 20,
    total: 1 << 20,
    connections: 1,
};

fn length(text: &str) -> u32 {
    u32::try_from(text.len()).expect("short")
}

/// A conversation, and the heads that the record has not been told yet.
struct Dialogue {
    journal: Journal,
    sent: u32,
    said: u32,
    untold: Vec<(u32, String)>,
}

impl Dialogue {
    fn new(journal: Journal) -> Self {
        let mut talk = Self {
            journal,
            sent: 0,
            said: 0,
            untold: Vec::new(),
        };
        talk.journal.open(FLOW, CLIENT, SERVER).expect("the first");
        talk
    }

    /// The client sends, with everything heard or, if that is not known, in doubt.
    fn client(&mut self, bytes: &str, doubt: bool) {
        let seq = CLIENT + 1 + self.sent;
        let heard = SERVER + 1 + self.said;
        let server = ServerProgress {
            nxt: heard,
            ack: seq,
        };
        let arrival = InstreamSegment {
            seq,
            payload: bytes.as_bytes(),
            fin: false,
            client_ack: heard,
            heard_all: !doubt,
            heads_known: false,
            doubted: None,
            server: (!doubt).then_some(server),
        };
        self.journal.instream(FLOW, &arrival).expect("recorded");
        self.sent += length(bytes);
    }

    fn server(&mut self, bytes: &str) {
        self.untold.push((self.said, bytes.to_owned()));
        self.said += length(bytes);
    }

    /// Reports `count` heads of the output to the record.
    fn tell(&mut self, count: usize) {
        for (at, bytes) in self.untold.drain(..count.min(self.untold.len())) {
            let told = self.journal.outstream(
                FLOW,
                &OutstreamSegment::in_order(SERVER + 1 + at, bytes.as_bytes()),
            );
            told.expect("recorded");
        }
    }

    fn record(&self) -> Protected {
        match self.journal.summary(FLOW).expect("known").state {
            State::Protected(record) => record,
            State::Unprotected(reason) => panic!("{reason}"),
        }
    }

    fn replayed(&self) -> String {
        let mut bytes = Vec::new();
        let from = self.record().start.instream;
        let read = self.journal.read(FLOW, from, usize::MAX, &mut bytes);
        read.expect("recorded");
        String::from_utf8(bytes).expect("text")
    }
}

fn late() -> Dialogue {
    Dialogue::new(Journal::with_late_heads(LIMITS, ReplayMode::Request))
}

#[test]
fn request_waits_for_earlier_response() {
    let mut talk = late();
    talk.client("one", false);
    talk.server(OK);
    talk.client("two", false);
    talk.client("-and-more", false);
    assert_eq!(talk.replayed(), "onetwo-and-more");
    talk.tell(1);
    assert_eq!(talk.replayed(), "two-and-more");
    let start = Position {
        instream: CLIENT + 4,
        outstream: SERVER + 1 + length(OK),
    };
    assert_eq!(talk.record().start, start);
    assert_eq!(talk.record().turns, 2);
    talk.server(OK);
    talk.tell(1);
    talk.client("three", false);
    assert_eq!(talk.replayed(), "three");
}

#[test]
fn bytes_beyond_gap_are_moved() {
    let mut talk = late();
    talk.client("one", false);
    talk.server(OK);
    talk.client("two", false);
    talk.sent += 4;
    talk.client("late", false);
    talk.tell(1);
    assert_eq!(talk.replayed(), "two");
    talk.sent -= 8;
    talk.client("hole", false);
    assert_eq!(talk.replayed(), "twoholelate");
    assert!(talk.journal.close(FLOW));
    assert_eq!(talk.journal.statistics().held, 0);
}

#[test]
fn undecided_interim_is_no_response() {
    let mut talk = late();
    talk.client("one", false);
    talk.server(OK);
    talk.tell(1);
    talk.client("head", false);
    assert_eq!(talk.replayed(), "head");
    talk.server(CONTINUE);
    talk.client("body", false);
    talk.tell(1);
    assert_eq!(talk.replayed(), "headbody");
    talk.server(OK);
    talk.client("next", false);
    talk.tell(1);
    assert_eq!(talk.replayed(), "next");
}

#[test]
fn doubt_begins_no_request() {
    let mut talk = late();
    talk.client("one", false);
    talk.server(OK);
    talk.tell(1);
    talk.client("tw", true);
    talk.client("o", false);
    assert_eq!(talk.replayed(), "onetwo");
    talk.server(OK);
    talk.tell(1);
    talk.client("three", false);
    assert_eq!(talk.replayed(), "three");
}

#[test]
fn oldest_and_newest_candidates_are_known() {
    let mut talk = late();
    for request in ["one", "two", "three", "four", "five"] {
        talk.client(request, false);
        talk.server(OK);
    }
    talk.tell(1);
    assert_eq!(talk.replayed(), "twothreefourfive");
    talk.tell(2);
    assert_eq!(talk.replayed(), "twothreefourfive");
    talk.tell(1);
    assert_eq!(talk.replayed(), "five");
}

#[test]
fn resumed_record_begins_at_position() {
    let mut talk = late();
    talk.sent = 100;
    talk.said = 200;
    let at = Position {
        instream: CLIENT + 101,
        outstream: SERVER + 201,
    };
    let resumed = talk.journal.resume(FLOW, CLIENT, SERVER, at);
    resumed.expect("known");
    assert_eq!(talk.record().start, at);
    assert_eq!(talk.record().turn, at);
    assert_eq!(talk.record().stable_seq, at.instream);
    talk.client("request", false);
    assert_eq!(talk.replayed(), "request");
    talk.server(OK);
    talk.client("next", false);
    talk.tell(1);
    assert_eq!(talk.replayed(), "next");
    assert_eq!(talk.journal.statistics().opened, 2);
}

proptest! {
    /// However late the heads come: a record begins with a whole request, and none that was not
    /// answered is missing; the next turn that begins when all is known is found.
    #[test]
    fn late_heads_give_equal_record(
        steps in prop::collection::vec((1usize..4, any::<bool>(), 0usize..4), 1..30),
    ) {
        let mut talk = late();
        let mut prompt = Dialogue::new(Journal::new(LIMITS, ReplayMode::Request));
        let mut whole = String::new();
        let mut requests = vec![0];
        for (pieces, interim, told) in steps {
            for piece in 0..pieces {
                if piece > 0 && interim {
                    talk.server(CONTINUE);
                    prompt.server(CONTINUE);
                    prompt.tell(1);
                }
                let text = if piece == 0 { "request;" } else { "body;" };
                talk.client(text, false);
                prompt.client(text, false);
                whole.push_str(text);
            }
            let replayed = talk.replayed();
            let begins = whole.len() - replayed.len();
            prop_assert_eq!(&whole[begins..], &replayed);
            prop_assert!(requests.contains(&begins), "in the middle of a request");
            prop_assert!(begins <= whole.len() - prompt.replayed().len());
            requests.push(whole.len());
            talk.server(OK);
            prompt.server(OK);
            prompt.tell(1);
            talk.tell(told);
        }
        talk.tell(usize::MAX);
        talk.client("last", false);
        prompt.client("last", false);
        prop_assert_eq!(talk.replayed(), "last");
        prop_assert_eq!(talk.record().start, prompt.record().start);
    }
}
