//! Activities of clients at the moment of a failure.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use e2e::clients::{read_exactly, read_to_end, write};
use e2e::exchange::{Exchange, echoes, end, talks};
use e2e::pair::{addresses, lease};
use e2e::{EVENT_TIMEOUT, Scene, assert_same_bytes, pattern};

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The clients begin.
    Begin,
    /// All are ready: it may happen.
    Ready,
    /// It has happened.
    Struck,
    /// Clients are served again.
    Over,
}

/// How far it is, for those that wait for it.
#[derive(Debug)]
pub(crate) struct Moment {
    /// And how many are not ready yet.
    stage: Mutex<(Stage, usize)>,
    changed: Condvar,
}

impl Moment {
    /// Of so many groups of clients.
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

    /// One group is ready.
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

/// What clients do. Each makes its connections, so many, and ends them: what comes before and after the
/// words that it expects would be noticed.
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

/// After so long a lease is over, and whatever was still under way.
pub(crate) fn over() -> Duration {
    lease() + Duration::from_millis(100)
}

/// Connections that are there and have not said a word, and connections that are being made: before,
/// while it happens, and while nobody answers.
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

/// Much to the client, much to the server, and to and fro. The last rests when it happens.
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

/// What is read at a time, and how long a client rests after that.
const PIECE_BYTES: usize = 16 << 10;
const READ_INTERVAL: Duration = Duration::from_millis(4);

fn compare(stream: &TcpStream, expected: &[u8]) {
    for piece in expected.chunks(PIECE_BYTES) {
        assert_same_bytes("download", piece, &read_exactly(stream, piece.len()));
        thread::sleep(READ_INTERVAL);
    }
}

/// Nothing is under way. Afterwards they go on where they were.
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
    // These wait for nobody who serves. But a host that is cut off from the logger alone goes on until its
    // lease is over, and no answer of that time can be compared.
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

/// The client has closed, and the server has something left to say; the server has closed, and the
/// client has not; both do, just before and after it happens.
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
