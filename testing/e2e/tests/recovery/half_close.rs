//! Servers that half-close early and continue to read. (A half-close outside a replay is in `orderly_ends.rs`.)

use std::fs;
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;

use e2e::arrange::{run, wait_until};
use e2e::clients::{read_exactly, read_to_end, write};
use e2e::servers::{self, SERVER_PORT};
use e2e::{Protected, Scene, assert_same_bytes, pattern};
use lab::Signal;

/// More than a server's TCP has room for before the server reads, and more than an answer of the logger has.
const READ_BYTES: usize = 2 << 20;
/// Bytes of the rest of an upload, and of a part of the rest.
const REST_BYTES: usize = 100_000;
const PART_BYTES: usize = 40_000;
/// Bytes of the rest that a server has read together with the first part, at most.
const IN_HAND: usize = 10_000;

/// An upload with an early answer. The server has read a part of the upload, and waits before the rest. The next
/// incarnation half-closes before any read.
struct Early {
    scene: Scene,
    protected: Protected,
    /// Without this file, no life half-closes.
    half_closes: PathBuf,
    /// And none reads the rest.
    reads_on: PathBuf,
    parts: [PathBuf; 2],
    stream: TcpStream,
    content: Vec<u8>,
    /// Commands of the client between the first part and the rest.
    in_between: String,
}

impl Early {
    fn new(label: &str) -> Self {
        let scene = Scene::new(label);
        let protected = scene.protect(&servers::test_server(&scene));
        let file = |name: &str| scene.directory().join(name);
        let (half_closes, reads_on) = (file("half-closes"), file("reads-on"));
        let parts = [file("part-1"), file("part-2")];
        let stream = scene.connect(SERVER_PORT);
        let [first, last] = parts.each_ref().map(|part| part.display());
        let lines = format!(
            "say early\nhalf-close {}\nkeep {READ_BYTES} {first}\n",
            half_closes.display()
        );
        let in_between = format!("wait {}\nkeep {REST_BYTES} {last}\n", reads_on.display());
        write(&stream, lines.as_bytes());
        assert_eq!(read_exactly(&stream, 6), b"early\n");
        Self {
            scene,
            protected,
            half_closes,
            reads_on,
            parts,
            stream,
            content: pattern(READ_BYTES + REST_BYTES),
            in_between,
        }
    }

    /// The client sends the first part, and `rest` bytes of the rest.
    fn begin(&self, rest: usize) {
        let (first, others) = self.content.split_at(READ_BYTES);
        for piece in [first, self.in_between.as_bytes(), &others[..rest]] {
            write(&self.stream, piece);
        }
        self.await_unread(rest.saturating_sub(IN_HAND));
    }

    /// Sends the rest from the offset `but`, and a FIN.
    fn end(&self, but: usize) {
        write(&self.stream, &self.content[READ_BYTES + but..]);
        self.stream.shutdown(Shutdown::Write).expect("a FIN");
    }

    /// Waits until the server has read the first part, and the server's TCP holds `length` bytes of the rest.
    fn await_unread(&self, length: usize) {
        wait_until("the server waits, and its TCP has more", || {
            let ask = format!("ss -tnH sport = :{SERVER_PORT}");
            let sockets = run(&self.scene.server, &ask);
            let unread = sockets.split_whitespace().nth(1);
            let unread = unread.and_then(|bytes| bytes.parse().ok());
            self.parts[0].exists() && unread.is_some_and(|unread: usize| unread >= length)
        });
    }

    /// Kills the server. The next incarnation half-closes at once, and reads the rest or waits before the rest. The
    /// present incarnation sees neither these files nor the client's next bytes: an end now would be the end of both
    /// sides.
    fn dies(&self, death: usize, then_reads_on: bool) {
        self.protected.kill_main(Signal::STOP);
        fs::remove_file(&self.parts[0]).expect("the first part was read");
        fs::write(&self.half_closes, "").expect("a file");
        if then_reads_on {
            fs::write(&self.reads_on, "").expect("a file");
        }
        self.protected.kill_main(Signal::KILL);
        self.protected.wait_for("died", death);
    }

    /// Asserts that the last incarnation has read the whole upload, and has sent no further byte.
    fn reads_all(self, recoveries: usize) {
        assert_same_bytes("after the early answer", b"", &read_to_end(&self.stream));
        wait_until("the server has the rest", || self.parts[1].exists());
        let parts = self.parts.each_ref().map(fs::read);
        let [first, rest] = parts.map(|part| part.expect("a part"));
        assert_same_bytes("upload", &self.content, &[first, rest].concat());
        self.protected.wait_serving(recoveries);
        self.protected.assert_none_of("connection_reset");
        self.protected.stop();
    }
}

#[test]
fn upload_continues_after_replayed_half_close() {
    let early = Early::new("half-closed");
    early.begin(PART_BYTES);
    early.dies(1, true);
    early.end(PART_BYTES);
    early.reads_all(1);
}

#[test]
fn recorded_upload_is_replayed_after_half_close() {
    let early = Early::new("half-closed-end");
    early.begin(REST_BYTES);
    early.end(REST_BYTES);
    early.dies(1, true);
    early.reads_all(1);
}

/// An incarnation that has half-closed in a replay has not closed: its end is not the client's end.
#[test]
fn death_after_replayed_half_close() {
    let early = Early::new("half-closed-twice");
    early.begin(PART_BYTES);
    early.dies(1, false);
    assert_same_bytes("half-closed", b"", &read_to_end(&early.stream));
    early.protected.wait_serving(1);
    early.await_unread(PART_BYTES - IN_HAND);
    early.dies(2, true);
    early.end(PART_BYTES);
    early.reads_all(2);
}
