//! Activities of clients at the moment of a failure.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use e2e::clients::{read_exactly, read_to_end, write};
use e2e::exchange::{Exchange, echoes, end, talks};
use e2e::pair::{addresses, lease};
use e2e::{EVENT_TIMEOUT, Scene, assert_same_bytes, pattern};

/// Progress of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The clients begin.
    Begin,
    /// All clients are ready for the failure.
    Ready,
    /// The failure has happened.
    Struck,
    /// Clients are served again.
    Over,
}

/// Progress of a failure, for waiting clients.
#[derive(Debug)]
pub(crate) struct Moment {
    /// And how many are not ready yet.
    stage: Mutex<(Stage, usize)>,
    changed: Condvar,
}

impl Moment {
    /// For this many groups of clients.
    pub(crate) fn new(groups: usize) -> Self {
        Self {
            stage: Mutex::new((Stage::Begin, groups)),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn reach(&self, stage: Stage) {
        self.stage.lock().expect("whole").0 = stage;
        self.changed.notify_all();
    }

    /// A group is ready.
    fn ready(&self) {
        let mut now = self.stage.lock().expect("whole");
        now.1 -= 1;
        if now.1 == 0 {
            now.0 = Stage::Ready;
            self.changed.notify_all();
        }
    }

    #[track_caller]
    pub(crate) fn wait(&self, stage: Stage) {
        let now = self.stage.lock().expect("whole");
        let waited = self
            .changed
            .wait_timeout_while(now, EVENT_TIMEOUT, |now| now.0 < stage);
        let (now, _) = waited.expect("whole");
        assert!(now.0 >= stage, "only {now:?}");
    }
}

/// The work of clients. Each phase makes `connections` connections, and ends them. Clients notice bytes before or
/// after the expected bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) connections: usize,
    pub(crate) clients: fn(&Scene, &Moment),
}

pub(crate) const PHASES: [Phase; 4] = [
    Phase {
        name: "set-up",
        connections: 12,
        clients: set_up,
    },
    Phase {
        name: "transfer",
        connections: 10,
        clients: transfer,
    },
    Phase {
        name: "idle",
        connections: 6,
        clients: idle,
    },
    Phase {
        name: "close",
        connections: 10,
        clients: close,
    },
];

/// After this time a lease has expired, with all segments that were in flight.
pub(crate) fn over() -> Duration {
    lease() + Duration::from_millis(100)
}

/// Silent connections, and new connections: before the failure, during the failure, and while no host answers.
fn set_up(scene: &Scene, moment: &Moment) {
    let silent: Vec<TcpStream> = addresses()
        .into_iter()
        .map(|to| scene.connect_to(to))
        .collect();
    thread::scope(|scope| {
        let one = |number: u64, to: SocketAddr| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(20) * u32::try_from(number).expect("few"));
                let stream = scene.connect_to(to);
                moment.wait(Stage::Over);
                talks(&stream, "made meanwhile");
                end(&stream);
            })
        };
        moment.ready();
        moment.wait(Stage::Ready);
        let numbered = (0..5).flat_map(|number| addresses().map(|to| (number, to)));
        let made: Vec<_> = numbered.map(|(number, to)| one(number, to)).collect();
        for one in made {
            one.join().expect("it is made");
        }
    });
    for stream in &silent {
        talks(stream, "at last");
        end(stream);
    }
}

/// A large download, a large upload, and an echo. The echo rests during the failure.
fn transfer(scene: &Scene, moment: &Moment) {
    let uploads = Exchange {
        download: 0,
        echo: 0,
        upload: 2 << 20,
        pace: READ_INTERVAL,
        kills: 0,
    };
    let (small, large) = (pattern(64 << 10), pattern(2 << 20));
    thread::scope(|scope| {
        let uploads =
            addresses().map(|to| scope.spawn(move || uploads.undisturbed(|| scene.connect_to(to))));
        let echo = addresses().map(|to| scene.connect_to(to));
        for stream in &echo {
            write(stream, b"echo\n");
            echoes(stream, &small);
        }
        let large = &large;
        let downloads = addresses().map(|to| {
            let stream = scene.connect_to(to);
            write(&stream, format!("pattern {}\n", large.len()).as_bytes());
            compare(&stream, &large[..PIECE_BYTES]);
            scope.spawn(move || {
                compare(&stream, &large[PIECE_BYTES..]);
                end(&stream);
            })
        });
        moment.ready();
        moment.wait(Stage::Over);
        for stream in &echo {
            echoes(stream, &small);
            end(stream);
        }
        for one in uploads.into_iter().chain(downloads) {
            one.join().expect("a transfer");
        }
    });
}

/// Bytes of a read, and a client's pause after each read.
const PIECE_BYTES: usize = 16 << 10;
const READ_INTERVAL: Duration = Duration::from_millis(4);

fn compare(stream: &TcpStream, expected: &[u8]) {
    for piece in expected.chunks(PIECE_BYTES) {
        assert_same_bytes("download", piece, &read_exactly(stream, piece.len()));
        thread::sleep(READ_INTERVAL);
    }
}

/// No data is in flight. Connections continue after the failure.
fn idle(scene: &Scene, moment: &Moment) {
    let both = addresses();
    let talk = both.map(|to| scene.connect_to(to));
    let echo = both.map(|to| scene.connect_to(to));
    let early = both.map(|to| scene.connect_to(to));
    for ((talk, echo), early) in talk.iter().zip(&echo).zip(&early) {
        talks(talk, "before");
        write(echo, b"echo\n");
        echoes(echo, b"hello");
        talks(early, "before");
    }
    moment.ready();
    moment.wait(Stage::Struck);
    // These clients wait for no host. But a host that is cut off from the logger alone serves until the lease
    // expires, and answers of that time cannot be compared.
    thread::sleep(over());
    thread::scope(|scope| {
        for stream in &early {
            scope.spawn(|| talks(stream, "meanwhile"));
        }
    });
    moment.wait(Stage::Over);
    for ((talk, echo), early) in talk.iter().zip(&echo).zip(&early) {
        talks(talk, "afterwards");
        echoes(echo, b"afterwards");
        for stream in [talk, echo, early] {
            end(stream);
        }
    }
}

/// A client has closed, and the server has data left to send; the server has closed, and the client has not; both
/// close, just before and after the failure.
fn close(scene: &Scene, moment: &Moment) {
    let both = addresses();
    let stamp = format!("{:?}", Instant::now()).replace(|c: char| !c.is_ascii_digit(), "");
    let go = scene.directory().join(format!("go-{stamp}"));
    let client_first = both.map(|to| scene.connect_to(to));
    let server_first = both.map(|to| scene.connect_to(to));
    let before = both.map(|to| scene.connect_to(to));
    let after = both.map(|to| scene.connect_to(to));
    let server_then = both.map(|to| scene.connect_to(to));
    for stream in &client_first {
        talks(stream, "before");
        write(
            stream,
            format!("wait {}\nsay goodbye\n", go.display()).as_bytes(),
        );
        stream.shutdown(std::net::Shutdown::Write).expect("a FIN");
    }
    for stream in &server_first {
        talks(stream, "before");
        write(stream, b"half-close\n");
        assert_eq!(read_to_end(stream), b"");
    }
    for stream in before.iter().chain(&after).chain(&server_then) {
        talks(stream, "before");
    }
    for stream in &before {
        stream.shutdown(std::net::Shutdown::Write).expect("a FIN");
    }
    moment.ready();
    moment.wait(Stage::Struck);
    for stream in &after {
        stream.shutdown(std::net::Shutdown::Write).expect("a FIN");
    }
    for stream in &server_then {
        write(stream, b"half-close\n");
    }
    moment.wait(Stage::Over);
    std::fs::write(&go, "").expect("a file");
    for stream in &client_first {
        assert_eq!(read_exactly(stream, 8), b"goodbye\n");
    }
    for stream in server_first.iter().chain(&server_then) {
        end(stream);
    }
    for stream in client_first.iter().chain(&before).chain(&after) {
        assert_eq!(read_to_end(stream), b"");
    }
}
