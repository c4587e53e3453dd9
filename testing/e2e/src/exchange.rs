//! Three connections at work while the server is killed: a download, an echo, an upload.
//!
//! Each client compares every byte. After the response a client closes its side first: in a run without a crash the
//! server sends a FIN only as the answer to the client's FIN, and no RST.

use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lab::Signal;

use crate::clients::{read_exactly, read_to_end, write};
use crate::servers::SERVER_PORT;
use crate::{
    Checksum, EVENT_TIMEOUT, Ending, Protected, Recording, Scene, Seed, assert_same_bytes, pattern,
};

/// Size of a read or write.
const PIECE_BYTES: usize = 16 << 10;

/// Amount of work, and its pace.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    /// Bytes to the client.
    pub download: usize,
    /// Bytes both ways.
    pub echo: usize,
    /// Bytes to the server.
    pub upload: usize,
    /// Pause of a client after each piece of 16 KiB: a kill can then hit the middle.
    pub pace: Duration,
    /// How often something is killed.
    pub kills: usize,
}

impl Default for Exchange {
    fn default() -> Self {
        Self::SOME
    }
}

impl Exchange {
    /// A few megabytes and two kills.
    pub const SOME: Self = Self {
        download: 4 << 20,
        echo: 1 << 20,
        upload: 3 << 20,
        pace: Duration::from_millis(1),
        kills: 2,
    };

    /// Runs the exchange with connections made by `connect`, kills the server at random moments, and asserts that
    /// clients and wire saw no trace of a kill.
    ///
    /// # Panics
    /// When there was a trace, or the exchange takes too long.
    pub fn survives(
        &self,
        scene: &Scene,
        server: &Protected,
        seed: &mut Seed,
        connect: impl Fn() -> TcpStream + Sync,
    ) {
        let recording = scene.record(crate::servers::SERVER_PORT);
        self.run(server, seed, connect, |_| {});
        assert_untouched(recording, 3);
        assert_all_recovered(server);
    }

    /// Runs the exchange as [`Exchange::survives`] does, but compares only bytes. Calls `before_kill` before each
    /// kill, with the number of the kill from 0.
    ///
    /// # Panics
    /// When a byte is wrong or missing, or the exchange takes too long.
    pub fn run(
        &self,
        server: &Protected,
        seed: &mut Seed,
        connect: impl Fn() -> TcpStream + Sync,
        mut before_kill: impl FnMut(usize),
    ) {
        let recoveries = server.events_of("serving").len();
        self.disturbed(seed, connect, |number| {
            before_kill(number);
            server.kill_main(Signal::KILL);
            server.wait_serving(recoveries + number + 1);
        });
    }

    /// Runs the exchange, and calls `kill` at random moments, with the number of the kill from 0.
    ///
    /// # Panics
    /// When a byte is wrong or missing, or the exchange takes too long.
    pub fn disturbed(
        &self,
        seed: &mut Seed,
        connect: impl Fn() -> TcpStream + Sync,
        mut kill: impl FnMut(usize),
    ) {
        let moments = self.moments(seed);
        let done = AtomicUsize::new(0);
        // In sequence: the recording knows the connections by their order.
        let [download, echo, upload] = [connect(), connect(), connect()];
        thread::scope(|scope| {
            let workers = [
                scope.spawn(|| self.download(&download, &done)),
                scope.spawn(|| self.echo(&echo, &done)),
                scope.spawn(|| self.upload(&upload, &done)),
            ];
            for (number, moment) in moments.into_iter().enumerate() {
                let deadline = Instant::now() + EVENT_TIMEOUT;
                while done.load(Ordering::Relaxed) < moment && Instant::now() < deadline {
                    if workers.iter().all(thread::ScopedJoinHandle::is_finished) {
                        break; // so early: they have failed, and say so themselves
                    }
                    thread::sleep(Duration::from_micros(200));
                }
                kill(number);
            }
        });
    }

    /// Runs the exchange without a kill.
    ///
    /// # Panics
    /// When a byte is wrong or missing.
    pub fn undisturbed(&self, connect: impl Fn() -> TcpStream) {
        let done = AtomicUsize::new(0);
        let [download, echo, upload] = [connect(), connect(), connect()];
        thread::scope(|scope| {
            scope.spawn(|| self.download(&download, &done));
            scope.spawn(|| self.echo(&echo, &done));
            scope.spawn(|| self.upload(&upload, &done));
        });
    }

    /// How many bytes are done when the server is killed.
    fn moments(&self, seed: &mut Seed) -> Vec<usize> {
        let all = self.download + 2 * self.echo + self.upload;
        // Each kill has a share of the first four fifths.
        let share = all * 4 / 5 / self.kills.max(1);
        let in_share = |number| number * share + seed.between(share / 10, share);
        (0..self.kills).map(in_share).collect()
    }

    /// `pattern N`, compared piece by piece.
    fn download(&self, stream: &TcpStream, done: &AtomicUsize) {
        write(stream, format!("pattern {}\n", self.download).as_bytes());
        self.compare(stream, &pattern(self.download), done, "download");
        end(stream);
    }

    /// `echo` while the answers are read at the same time.
    fn echo(&self, stream: &TcpStream, done: &AtomicUsize) {
        let bytes = pattern(self.echo);
        thread::scope(|scope| {
            scope.spawn(|| {
                write(stream, b"echo\n");
                self.write_slowly(stream, &bytes, done);
            });
            self.compare(stream, &bytes, done, "echo");
        });
        end(stream);
    }

    /// `sink N`: the server answers with the checksum of the received bytes.
    fn upload(&self, stream: &TcpStream, done: &AtomicUsize) {
        let bytes = pattern(self.upload);
        write(stream, format!("sink {}\n", self.upload).as_bytes());
        self.write_slowly(stream, &bytes, done);
        let expected = format!("{} {:016x}\n", self.upload, Checksum::of(&bytes));
        let answer = read_exactly(stream, expected.len());
        assert_eq!(String::from_utf8_lossy(&answer), expected, "upload");
        end(stream);
    }

    fn write_slowly(&self, stream: &TcpStream, bytes: &[u8], done: &AtomicUsize) {
        for piece in bytes.chunks(PIECE_BYTES) {
            write(stream, piece);
            done.fetch_add(piece.len(), Ordering::Relaxed);
            thread::sleep(self.pace);
        }
    }

    fn compare(&self, stream: &TcpStream, expected: &[u8], done: &AtomicUsize, what: &str) {
        for (number, piece) in expected.chunks(PIECE_BYTES).enumerate() {
            let got = read_exactly(stream, piece.len());
            assert_same(&got, piece, number * PIECE_BYTES, what);
            done.fetch_add(piece.len(), Ordering::Relaxed);
            thread::sleep(self.pace);
        }
    }
}

/// Asserts that bytes are the same, and reports the first difference.
///
/// # Panics
/// When the bytes differ.
#[track_caller]
pub fn assert_same(got: &[u8], expected: &[u8], offset: usize, what: &str) {
    assert_eq!(
        got.len(),
        expected.len(),
        "{what}: length at offset {offset}"
    );
    let differs = got.iter().zip(expected).position(|(a, b)| a != b);
    assert!(
        differs.is_none(),
        "{what}: byte {} is wrong",
        offset + differs.unwrap_or(0)
    );
}

/// Exchanges a line on a connection before a kill and after the `recovery`-th recovery (from 1).
///
/// # Panics
/// When the connection does not survive.
#[track_caller]
pub fn echo_survives_a_kill(scene: &Scene, server: &Protected, recovery: usize) {
    let stream = scene.connect(SERVER_PORT);
    write(&stream, b"echo\nhello");
    assert_eq!(read_exactly(&stream, 5), b"hello");
    server.kill_main(Signal::KILL);
    server.wait_serving(recovery);
    write(&stream, b"again");
    assert_eq!(read_exactly(&stream, 5), b"again");
    end(&stream);
}

/// Closes the client's side, and expects only the server's close.
///
/// # Panics
/// When the server sends a byte.
#[track_caller]
pub fn end(stream: &TcpStream) {
    stream
        .shutdown(std::net::Shutdown::Write)
        .expect("a shutdown");
    assert_eq!(read_to_end(stream), b"", "after the last byte");
}

/// Asserts that each of `connections` connections ended as without a crash when the client
/// closes first: with the server's FIN and without a RST.
///
/// # Panics
/// When a connection ended otherwise.
#[track_caller]
pub fn assert_untouched(recording: Recording, connections: usize) {
    let proper = Ending {
        rst: false,
        fin: true,
    };
    recording.await_ended(connections);
    assert_eq!(
        recording.finish(),
        vec![proper; connections],
        "endings on the client's wire"
    );
}

/// Asserts that each recovery kept all connections and their protection.
///
/// # Panics
/// When a connection was reset or lost its protection, or a warning was printed.
#[track_caller]
pub fn assert_all_recovered(server: &Protected) {
    for kind in [
        "connection_reset",
        "unprotected",
        "warning",
        "logger_restarted",
    ] {
        let events = server.events_of(kind);
        assert!(events.is_empty(), "{events:#?}");
    }
}

/// Sends a line and expects the same line as the answer.
///
/// # Panics
/// When another line comes.
#[track_caller]
pub fn talks(stream: &TcpStream, word: &str) {
    write(stream, format!("say {word}\n").as_bytes());
    let got = read_exactly(stream, word.len() + 1);
    assert_same_bytes("answer", format!("{word}\n").as_bytes(), &got);
}

/// A connection that echoes, after a first exchange.
///
/// # Panics
/// When the server does not echo.
#[track_caller]
pub fn echoing(scene: &Scene) -> TcpStream {
    let stream = scene.connect(SERVER_PORT);
    write(&stream, b"echo\n");
    echoes(&stream, b"hello");
    stream
}

/// Sends these bytes and expects their echo.
///
/// # Panics
/// When other bytes come.
#[track_caller]
pub fn echoes(stream: &TcpStream, bytes: &[u8]) {
    write(stream, bytes);
    assert_same_bytes("echo", bytes, &read_exactly(stream, bytes.len()));
}
