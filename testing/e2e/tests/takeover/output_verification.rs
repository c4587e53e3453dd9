//! Replayed output on another host is compared with the output of the dead host's server.

use std::net::TcpStream;
use std::path::PathBuf;

use e2e::clients::{Http, read_exactly, read_some, write};
use e2e::loggers::await_recorded;
use e2e::pair::{FailOver, Pair, addresses, at_addresses};
use e2e::servers;
use lab::Signal;

/// Offset in the greeting at which greetings differ: beyond the recorded part.
const DIFFERENCE_OFFSET: usize = 300_000;
const COMMAND_REPLY: &[u8] = b"250 OK\r\n";

struct Case {
    pair: Pair,
    stream: TcpStream,
    executed: PathBuf,
    /// Bytes that the client has heard.
    heard: usize,
}

/// A client has received the greeting, and the server has executed the client's commands, each after the answer to
/// the command before.
fn begun(label: &str, greeting: &str) -> Case {
    let pair = Pair::new(label, |scene| {
        at_addresses(
            scene,
            servers::greeter_behind(scene, greeting, DIFFERENCE_OFFSET),
            None,
        )
    });
    let stream = pair.scene.connect_to(addresses()[0]);
    let executed = pair.scene.directory().join("executed");
    let mut case = Case {
        pair,
        stream,
        executed,
        heard: 0,
    };
    case.receive(b"\r\n");
    for command in ["one", "two", "three"] {
        case.run_command(command);
    }
    case
}

impl Case {
    /// Read until the server has said this.
    fn receive(&mut self, end: &[u8]) {
        let mut said = [0; 4096];
        loop {
            let more = read_some(&self.stream, &mut said).expect("more");
            assert_ne!(more, 0, "an end");
            self.heard += more;
            if said[..more].ends_with(end) {
                return;
            }
        }
    }

    fn run_command(&mut self, command: &str) {
        write(&self.stream, format!("{command}\r\n").as_bytes());
        self.receive(COMMAND_REPLY);
    }

    fn executions(&self, command: &str) -> usize {
        let executed = std::fs::read_to_string(&self.executed).expect("text");
        executed.lines().filter(|line| *line == command).count()
    }
}

#[test]
fn difference_behind_recorded_prefix_is_detected() {
    let mut case = begun("compared-other", "");
    case.pair.fail_over(FailOver::PowerOff);
    let lost = case.pair.first.wait_for("connection_reset", 1);
    let reason = lost["reason"].to_string();
    assert!(reason.contains("(by the hash)"), "{lost}");
    assert_eq!(lost["replayed_requests"], 0, "{lost}");
    assert_eq!(case.executions("one"), 1);
    case.pair.stop();
}

/// The record has only the digest of the responses to earlier requests.
#[test]
fn differing_long_response_is_detected_by_request() {
    let turns = ["--replay=request"];
    let mut pair = Pair::with("compared-turn", &[], &turns, |scene| {
        at_addresses(scene, servers::changing(scene), None)
    });
    let stream = pair.scene.connect_to(addresses()[0]);
    write(&stream, b"short\r\n");
    assert_eq!(read_exactly(&stream, COMMAND_REPLY.len()), COMMAND_REPLY);
    write(&stream, b"long\r\n");
    assert_eq!(read_exactly(&stream, 300_008).len(), 300_008);
    await_recorded(&pair.first);
    pair.fail_over(FailOver::PowerOff);
    let lost = pair.first.wait_for("connection_reset", 1);
    let reason = lost["reason"].to_string();
    assert!(reason.contains("(by the hash)"), "{lost}");
    pair.stop();
}

/// The logger has the hash of all output before a turn, and the head of the answer, before the client has the answer.
#[test]
fn equal_output_reports_verified_bytes() {
    let mut case = begun("compared-same", "0815");
    case.pair.fail_over(FailOver::PowerOff);
    let verified = case.pair.first.wait_for("verified", 1);
    let number = |field: &str| verified[field].as_u64().expect("a number");
    let heard = u64::try_from(case.heard).expect("few");
    assert_eq!(number("compared"), heard, "{verified}");
    assert_eq!(number("unverified"), 0, "{verified}");
    case.run_command("four");
    assert_eq!((case.executions("one"), case.executions("four")), (2, 1));
    case.pair.first.assert_none_of("connection_reset");
    case.pair.stop();
}

/// The link has room only for the first bytes of a segment; the ring, with the rest, dies with the host. Then the
/// record has the end of this answer and the beginning of the next in a single piece.
#[test]
fn date_behind_recorded_prefix_is_ignored() {
    let mut pair = Pair::new("compared-date", |scene| {
        at_addresses(scene, servers::dated(scene), None)
    });
    let mut http = Http::new(pair.scene.connect_to(addresses()[0]));
    assert_eq!(http.get("/").status, 200);
    await_recorded(&pair.first);
    pair.first.kill_serve(Signal::STOP);
    for _ in 0..2 {
        assert_eq!(http.get("/").status, 200);
    }
    pair.fail_over(FailOver::PowerOff);
    let verified = pair.first.wait_for("verified", 1);
    // A date counts once in each chunk of 512 bytes, and once more in a segment that comes again.
    assert!(verified["tolerated"].as_u64() >= Some(3), "{verified}");
    assert_eq!(http.get("/").status, 200);
    pair.first.assert_none_of("connection_reset");
    pair.stop();
}
