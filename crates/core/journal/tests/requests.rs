//! When a request begins, and which bytes of earlier requests are kept.

use journal::{
    InstreamSegment, Journal, Limits, Mark, OutstreamSegment, Position, ReadError, ReplayMode,
    ServerProgress, State,
};
use wire::{FlowId, SeqNumber};

const FLOW: FlowId = FlowId(7);
// Both streams wrap early.
const CLIENT: SeqNumber = SeqNumber(u32::MAX - 5);
const SERVER: SeqNumber = SeqNumber(u32::MAX - 9);

/// A connection, driven as a dialogue.
struct Dialogue {
    journal: Journal,
    /// Bytes that the client sent, that the server sent, and that the client acknowledged.
    sent: u32,
    answered: u32,
    acknowledged: u32,
}

impl Dialogue {
    fn new(mode: ReplayMode) -> Self {
        let limits = Limits {
            per_connection: 1 << 20,
            total: 1 << 20,
            connections: 1,
        };
        let mut journal = Journal::new(limits, mode);
        journal.open(FLOW, CLIENT, SERVER).expect("the first");
        Self {
            journal,
            sent: 0,
            answered: 0,
            acknowledged: 0,
        }
    }

    /// The client sends; the server's TCP had acknowledged all but the last `behind` bytes.
    fn client_with_unacknowledged(&mut self, bytes: &str, behind: u32) {
        let seq = CLIENT + 1 + self.sent;
        let arrival = InstreamSegment {
            seq,
            payload: bytes.as_bytes(),
            fin: false,
            client_ack: SERVER + 1 + self.acknowledged,
            heard_all: self.acknowledged == self.answered,
            heads_known: false,
            doubted: None,
            server: Some(ServerProgress {
                nxt: SERVER + 1 + self.answered,
                ack: seq - behind,
            }),
        };
        self.journal.instream(FLOW, &arrival).expect("recorded");
        self.sent += u32::try_from(bytes.len()).expect("short");
    }

    fn client(&mut self, bytes: &str) {
        self.client_with_unacknowledged(bytes, 0);
    }

    /// The server sends, and the journal records the output.
    fn server(&mut self, bytes: &str) {
        let seq = SERVER + 1 + self.answered;
        self.journal
            .outstream(FLOW, &OutstreamSegment::in_order(seq, bytes.as_bytes()))
            .expect("recorded");
        self.server_unrecorded(bytes);
    }

    /// The server sends, and the mirror loses the output.
    fn server_unrecorded(&mut self, bytes: &str) {
        self.answered += u32::try_from(bytes.len()).expect("short");
    }

    fn client_acknowledges(&mut self) {
        self.acknowledged = self.answered;
    }

    /// The number of requests, and where the last began, in bytes of both streams.
    fn turn(&self) -> (u64, u32, u32) {
        let summary = self.journal.summary(FLOW).expect("known");
        let State::Protected(record) = summary.state else {
            panic!("unprotected: {summary:?}");
        };
        let Position {
            instream,
            outstream,
        } = record.turn;
        let (instream, outstream) = (
            instream.distance_from(CLIENT + 1).expect("after the SYN"),
            outstream.distance_from(SERVER + 1).expect("after the SYN"),
        );
        (record.turns, instream, outstream)
    }

    /// The instream that would be replayed.
    fn replayed(&self) -> String {
        let State::Protected(record) = self.journal.summary(FLOW).expect("known").state else {
            return String::new();
        };
        let mut bytes = Vec::new();
        self.journal
            .read(FLOW, record.start.instream, usize::MAX, &mut bytes)
            .expect("recorded");
        String::from_utf8(bytes).expect("text")
    }

    /// Where the client sent after receiving new output.
    fn beginnings(&self) -> Vec<(u32, u32)> {
        let beginnings = self.journal.beginnings(FLOW).map(|at| {
            let instream = at.instream.distance_from(CLIENT + 1);
            let outstream = at.outstream.distance_from(SERVER + 1);
            instream.zip(outstream).expect("after the SYN")
        });
        beginnings.collect()
    }

    fn heads(&self) -> Vec<(u32, String)> {
        self.journal
            .outstream_ranges(FLOW)
            .map(|(seq, bytes)| {
                let at = seq.distance_from(SERVER + 1).expect("after the SYN");
                (at, String::from_utf8(bytes.to_vec()).expect("text"))
            })
            .collect()
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";

#[test]
fn keep_alive_requests_are_separate() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    for request in 0..20 {
        let line = format!("GET /{request:02} HTTP/1.1\r\n\r\n");
        let length = u32::try_from(line.len()).expect("short");
        talk.client(&line);
        let answered = request * 38;
        let begun = (u64::from(request) + 1, request * length, answered);
        assert_eq!(talk.turn(), begun);
        assert_eq!(talk.replayed(), line);
        talk.server(OK);
        assert_eq!(talk.heads(), [(answered, OK.to_owned())]);
        talk.client_acknowledges();
    }
    let dropped = talk.journal.read(FLOW, CLIENT + 1, 1, &mut Vec::new());
    assert!(matches!(dropped, Err(ReadError::Dropped(_))), "{dropped:?}");
}

#[test]
fn segmented_request_is_one() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    for part in ["GET / ", "HTTP/1.1\r\n", "\r\n"] {
        talk.client(part);
    }
    talk.server(OK);
    talk.client_acknowledges();
    talk.client("GET /2");
    assert_eq!(talk.turn(), (2, 18, 38));
    talk.client(" HTTP/1.1\r\n");
    assert_eq!(talk.turn(), (2, 18, 38));
    assert_eq!(talk.replayed(), "GET /2 HTTP/1.1\r\n");
}

#[test]
fn connection_mode_keeps_all_requests() {
    let mut talk = Dialogue::new(ReplayMode::Connection);
    for _ in 0..2 {
        talk.client("ping");
        talk.server("pong");
        talk.client_acknowledges();
    }
    talk.client("last");
    assert_eq!(talk.turn(), (3, 8, 8));
    assert_eq!(talk.replayed(), "pingpinglast");
    assert_eq!(talk.heads(), [(0, "pongpong".to_owned())]);
}

#[test]
fn echo_is_a_request() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    talk.client("one");
    talk.server("one");
    talk.client("two");
    assert_eq!(talk.turn(), (1, 0, 0), "the client does not have it yet");
    talk.server("two");
    talk.client_acknowledges();
    talk.client("three");
    assert_eq!(talk.turn(), (2, 6, 6));
    assert_eq!(talk.replayed(), "three");
    assert_eq!(talk.heads(), []);
}

#[test]
fn half_acked_response_continues() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    talk.client("GET /big\r\n");
    talk.server(OK);
    talk.client_acknowledges();
    talk.server_unrecorded("body");
    talk.client("GET /next\r\n");
    assert_eq!(talk.turn(), (1, 0, 0));
    assert_eq!(talk.replayed(), "GET /big\r\nGET /next\r\n");
}

#[test]
fn pipelined_requests_are_one() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    talk.client("GET /1\r\n");
    talk.client("GET /2\r\n");
    talk.server(OK);
    talk.client_acknowledges();
    // The server already works on the second request, whose bytes the server's TCP has not even acknowledged.
    talk.client_with_unacknowledged("GET /3\r\n", 8);
    assert_eq!(talk.turn(), (1, 0, 0));
    talk.server(OK);
    talk.server(OK);
    talk.client_acknowledges();
    talk.client("GET /4\r\n");
    assert_eq!(talk.turn(), (2, 24, 114));
}

#[test]
fn interim_response_does_not_end_request() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    talk.client("PUT / HTTP/1.1\r\nExpect: 100-continue\r\n\r\n");
    talk.server(CONTINUE);
    talk.client_acknowledges();
    talk.client("the body");
    assert_eq!(talk.turn(), (1, 0, 0));
    assert!(talk.replayed().ends_with("\r\n\r\nthe body"));
}

#[test]
fn response_after_interim_ends_request() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    for _ in 0..3 {
        talk.client("PUT / HTTP/1.1\r\nExpect: 100-continue\r\n\r\n");
        talk.server(CONTINUE);
        talk.client_acknowledges();
        talk.client("the body");
        talk.server(OK);
        talk.client_acknowledges();
    }
    talk.client("GET / HTTP/1.1\r\n\r\n");
    assert_eq!(talk.turn().0, 4);
    assert_eq!(talk.replayed(), "GET / HTTP/1.1\r\n\r\n");
}

#[test]
fn interim_after_response_does_not_end_request() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    // Two requests at once; the second wants to be told to go on.
    talk.client("GET /1 HTTP/1.1\r\n\r\nPUT /2 HTTP/1.1\r\nExpect: 100-continue\r\n\r\n");
    talk.server(OK);
    talk.server(CONTINUE);
    talk.client_acknowledges();
    talk.client("the body");
    assert_eq!(talk.turn(), (1, 0, 0));
    talk.server(OK);
    talk.client_acknowledges();
    talk.client("GET /3");
    assert_eq!(talk.replayed(), "GET /3");
}

#[test]
fn partial_interim_does_not_end_request() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    talk.client("PUT / HTTP/1.1\r\nExpect: 100-continue\r\n\r\n");
    talk.server("HTTP/1.1 ");
    talk.client_acknowledges();
    talk.client("the body");
    assert_eq!(talk.turn(), (1, 0, 0));
}

#[test]
fn unrecorded_response_does_not_end_request() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    talk.client("GET /1\r\n");
    talk.server_unrecorded("HTTP/1.1 2");
    talk.server("00 OK\r\n\r\n");
    talk.client_acknowledges();
    talk.client("GET /2\r\n");
    assert_eq!(talk.turn(), (1, 0, 0));
}

#[test]
fn gap_or_retransmission_begins_no_request() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    talk.client("GET /1\r\n");
    talk.server(OK);
    talk.client_acknowledges();
    // A repetition of the first request.
    talk.sent = 0;
    talk.client("GET /1\r\n");
    assert_eq!(talk.turn(), (1, 0, 0));
    // Bytes beyond a gap, then the bytes of the gap.
    talk.sent = 12;
    talk.client("/2\r\n");
    assert_eq!(talk.turn(), (1, 0, 0));
    talk.sent = 8;
    talk.client("GET ");
    assert_eq!(talk.turn(), (1, 0, 0));
    assert_eq!(talk.replayed(), "GET /1\r\nGET /2\r\n");
}

/// The first part of a request has arrived before the previous request. The late part does not tell how much the
/// server had sent when the first part was sent.
#[test]
fn reordered_request_rest_begins_no_request() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    talk.server_unrecorded(OK);
    talk.client_acknowledges();
    talk.sent = 8;
    let beginning = InstreamSegment {
        seq: CLIENT + 1 + talk.sent,
        payload: b"GET ",
        fin: false,
        client_ack: SERVER + 1 + talk.answered,
        heard_all: true,
        heads_known: false,
        doubted: None,
        server: None,
    };
    talk.journal.instream(FLOW, &beginning).expect("recorded");
    (talk.sent, talk.answered, talk.acknowledged) = (0, 0, 0);
    talk.client("GET /1\r\n");
    talk.server(OK);
    talk.client_acknowledges();
    talk.sent = 12;
    talk.client("/2\r\n");
    assert_eq!(talk.turn(), (1, 0, 0));
    assert_eq!(talk.replayed(), "GET /1\r\nGET /2\r\n");
}

#[test]
fn pure_ack_or_fin_begins_no_request() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    talk.client("GET /1\r\n");
    talk.server(OK);
    talk.client_acknowledges();
    talk.client("");
    assert_eq!(talk.turn(), (1, 0, 0));
    let seq = CLIENT + 1 + talk.sent;
    let fin = InstreamSegment {
        seq,
        payload: b"",
        fin: true,
        client_ack: SERVER + 1 + talk.answered,
        heard_all: true,
        heads_known: false,
        doubted: None,
        server: Some(ServerProgress {
            nxt: SERVER + 1 + talk.answered,
            ack: seq,
        }),
    };
    talk.journal.instream(FLOW, &fin).expect("recorded");
    assert_eq!(talk.turn(), (1, 0, 0));
    // Nor do bytes that a broken client sends after the FIN.
    talk.client("GET /2\r\n");
    assert_eq!(talk.turn(), (1, 0, 0));
    assert_eq!(talk.replayed(), "GET /1\r\n");
}

#[test]
fn reordered_head_is_kept() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    talk.client("ping");
    talk.server("pong");
    talk.client_acknowledges();
    // The answer to the next request is mirrored before that request is.
    talk.journal
        .outstream(FLOW, &OutstreamSegment::in_order(SERVER + 5, b"PONG"))
        .expect("recorded");
    talk.client("PING");
    assert_eq!(talk.turn(), (2, 4, 4));
    assert_eq!(talk.heads(), [(4, "PONG".to_owned())]);
}

#[test]
fn reordered_response_does_not_end_request() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    talk.client("GET /1 HTTP/1.1\r\n");
    // Of these two, the server sent the first after the second had arrived.
    talk.journal
        .outstream(FLOW, &OutstreamSegment::in_order(SERVER + 1, OK.as_bytes()))
        .expect("recorded");
    talk.client("\r\n");
    assert_eq!(talk.turn(), (1, 0, 0));
    assert_eq!(talk.replayed(), "GET /1 HTTP/1.1\r\n\r\n");
}

#[test]
fn doubtful_request_begins_no_request_midway() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    talk.client("GET /1\r\n");
    talk.server(OK);
    talk.client_acknowledges();
    // The second segment of the next request overtakes the first.
    talk.sent += 4;
    talk.client("/2\r\n");
    talk.sent = 8;
    talk.client("PUT ");
    talk.sent = 16;
    talk.client("body");
    assert_eq!(talk.turn(), (1, 0, 0));
    assert_eq!(talk.replayed(), "GET /1\r\nPUT /2\r\nbody");
    // The response ends the doubt.
    talk.server(OK);
    talk.client_acknowledges();
    talk.client("GET /3\r\n");
    assert_eq!(talk.replayed(), "GET /3\r\n");
}

#[test]
fn held_requests_neither_begin_nor_drop() {
    let mut talk = Dialogue::new(ReplayMode::Request);
    talk.client("GET /1\r\n");
    talk.server(OK);
    talk.client_acknowledges();
    talk.journal.hold_turns(true);
    talk.client("GET ");
    talk.journal.hold_turns(false);
    talk.client("/2\r\n");
    assert_eq!(talk.turn(), (1, 0, 0));
    assert_eq!(talk.replayed(), "GET /1\r\nGET /2\r\n");
}

/// Whatever the server had said: a replay waits for that.
#[test]
fn all_input_beginnings_are_kept() {
    let mut talk = Dialogue::new(ReplayMode::Connection);
    talk.server("220 hello\r\n"); // the server sends first
    talk.client_acknowledges();
    talk.client("a\r\n");
    talk.client("b\r\n"); // before the answer
    talk.server(CONTINUE);
    talk.client("c\r\n"); // the client has not received CONTINUE
    talk.client_acknowledges();
    talk.client_with_unacknowledged("d\r\n", 3); // of which the server may not have the beginning
    talk.client("e\r\n");
    let said = 11 + u32::try_from(CONTINUE.len()).expect("short");
    assert_eq!(talk.beginnings(), [(0, 11), (12, said)]);
    assert_eq!(talk.turn().1, 0, "an interim answer begins no turn");
    let mut by_turns = Dialogue::new(ReplayMode::Request);
    for request in ["a\r\n", "b\r\n"] {
        by_turns.client(request);
        by_turns.server(OK);
        by_turns.client_acknowledges();
    }
    assert_eq!(by_turns.beginnings(), [], "that is where the replay begins");
    by_turns.journal.close(FLOW);
    assert_eq!(by_turns.beginnings(), []);
    assert_eq!(by_turns.journal.statistics().held, 0);
}

#[test]
fn hashes_are_kept_for_repeated_output() {
    let mark = |said: u32| Mark {
        base: SERVER + 1,
        next: SERVER + 1 + said,
        digest: [said.into(), 7],
    };
    for (mode, kept) in [(ReplayMode::Connection, 2), (ReplayMode::Request, 1)] {
        let mut talk = Dialogue::new(mode);
        let mut said = 0;
        for request in ["a\r\n", "b\r\n", "c\r\n"] {
            talk.client(request);
            let recorded =
                (said > 0).then(|| talk.journal.mark(FLOW, mark(said), (SERVER + 1, None)));
            assert!(recorded.is_none_or(|new| new == Ok(true)));
            talk.server(OK);
            talk.client_acknowledges();
            said = talk.answered;
        }
        let length = u32::try_from(OK.len()).expect("short");
        let all = [mark(length), mark(2 * length)];
        let marks: Vec<_> = talk.journal.marks(FLOW).collect();
        assert_eq!(marks, all[2 - kept..]);
        assert_eq!(
            talk.journal.mark(FLOW, mark(length), (SERVER + 1, None)),
            Ok(false)
        );
        talk.journal.close(FLOW);
        assert_eq!(talk.journal.statistics().held, 0);
    }
}
