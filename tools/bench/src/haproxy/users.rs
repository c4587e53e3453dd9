//! The users of the service while servers are killed. Some download all the time, each time over a new connection.
//! Others request a small object now and then, over a lasting connection.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::Bench;
use crate::clients::read_some;
use crate::download::{Download, Response, connect, object};

/// In words, with the numbers from below.
pub(crate) const WHAT: &str = "8 clients download 32 MiB again and again, each time over a new connection, and 8 ask for 128 \
     bytes every 20 ms over one that stays";
const USERS_OF_EACH_KIND: usize = 8;
/// More than the buffers of HAProxy's host hold: a server's death loses a part of each download.
const LARGE_OBJECT_BYTES: usize = 32 << 20;
const BETWEEN_REQUESTS: Duration = Duration::from_millis(20);
/// Longest wait of a user.
const USER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The observations of the clients.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(super) downloads: usize,
    /// Downloads that were under way at a kill.
    pub(super) hit: usize,
    pub(super) broken_downloads: usize,
    /// The longest silence of each that was hit and was whole, in milliseconds.
    pub(super) pauses: Vec<f64>,
    pub(super) requests: usize,
    pub(super) broken_requests: usize,
    /// The longest answered request, in milliseconds.
    pub(super) longest_wait: f64,
    /// The error of a failed download or request.
    pub(super) why: Option<String>,
}

/// A download or a small request.
struct Use {
    is_download: bool,
    began: Instant,
    ended: Instant,
    /// The longest time without a byte.
    silence: Result<Duration>,
}

/// The running clients.
pub(crate) struct Users {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Use>>>,
}

impl Users {
    pub(crate) fn start(bench: &Bench, address: SocketAddr) -> Result<Self> {
        let object: Arc<Vec<u8>> = Arc::new(object(LARGE_OBJECT_BYTES));
        std::fs::write(bench.stage.file("www/object"), &*object)?;
        let over = Arc::new(AtomicBool::new(false));
        let mut users = Self {
            over: Arc::clone(&over),
            threads: Vec::new(),
        };
        // A thread stays in the network namespace of the thread that started it.
        bench.stage.client.enter(|| {
            for _ in 0..USERS_OF_EACH_KIND {
                let (stop, object) = (Arc::clone(&over), Arc::clone(&object));
                let download = move || until(&stop, || download(address, &object));
                users.threads.push(thread::spawn(download));
                let stop = Arc::clone(&over);
                users
                    .threads
                    .push(thread::spawn(move || asking(&stop, address)));
            }
        })?;
        Ok(users)
    }

    /// Waits for `rest`, then ends the clients, and counts.
    pub(crate) fn finish(
        mut self,
        bench: &Bench,
        rest: Duration,
        kills: &[Instant],
    ) -> Result<Seen> {
        thread::sleep(rest);
        bench.interrupt.check()?;
        self.over.store(true, Ordering::Relaxed);
        let mut seen = Seen::default();
        for thread in self.threads.drain(..) {
            let uses = thread.join().map_err(|_| anyhow!("a client panicked"))?;
            for done in uses {
                seen.count(done, kills);
            }
        }
        if let Some(why) = &seen.why {
            bench.say(format_args!("one that broke: {why}"));
        }
        Ok(seen)
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

impl Seen {
    fn count(&mut self, done: Use, kills: &[Instant]) {
        let hit = kills
            .iter()
            .any(|kill| (done.began..done.ended).contains(kill));
        let (all, broken) = if done.is_download {
            self.hit += usize::from(hit);
            (&mut self.downloads, &mut self.broken_downloads)
        } else {
            (&mut self.requests, &mut self.broken_requests)
        };
        *all += 1;
        match done.silence {
            Ok(silence) => {
                let milliseconds = silence.as_secs_f64() * 1e3;
                if !done.is_download {
                    self.longest_wait = self.longest_wait.max(milliseconds);
                } else if hit {
                    self.pauses.push(milliseconds);
                }
            }
            Err(error) => {
                *broken += 1;
                self.why.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }
}

/// The longest time without a byte of the object.
fn download(address: SocketAddr, object: &[u8]) -> Result<Duration> {
    let request = "GET /object HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n";
    let done = Download::run(address, request, object, USER_TIMEOUT);
    done.outcome.map(|()| done.silence)
}

/// Repeats the download until the end.
fn until(over: &AtomicBool, mut use_it: impl FnMut() -> Result<Duration>) -> Vec<Use> {
    let mut uses = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let silence = use_it().context("a download");
        if silence.is_err() {
            thread::sleep(RETRY_PAUSE);
        }
        uses.push(Use {
            is_download: true,
            began,
            ended: Instant::now(),
            silence,
        });
    }
    uses
}

/// Sends requests over a lasting connection, and over a new connection after an error.
fn asking(over: &AtomicBool, address: SocketAddr) -> Vec<Use> {
    let mut uses = Vec::new();
    let mut stream = None;
    while !over.load(Ordering::Relaxed) {
        thread::sleep(BETWEEN_REQUESTS);
        let began = Instant::now();
        let silence = ask(&mut stream, address).context("a small request");
        if silence.is_err() {
            stream = None;
        }
        uses.push(Use {
            is_download: false,
            began,
            ended: Instant::now(),
            silence,
        });
    }
    uses
}

/// The time until the whole answer is there.
fn ask(stream: &mut Option<TcpStream>, address: SocketAddr) -> Result<Duration> {
    let began = Instant::now();
    let stream = match stream {
        Some(stream) => stream,
        none => none.insert(connect(address, USER_TIMEOUT)?),
    };
    stream.write_all(b"GET /small HTTP/1.1\r\nHost: bench\r\n\r\n")?;
    let mut answer = Response::default();
    let mut buffer = [0; 4096];
    let mut have = 0;
    while have < crate::stage::SMALL_OBJECT_BYTES {
        let read = read_some(stream, &mut buffer)?;
        ensure!(read > 0, "closed instead of an answer");
        have += answer.body(&buffer[..read])?.len();
    }
    Ok(began.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hit_and_broken_clients_are_counted() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let done = |is_download, began, ended, silence: Option<u64>| Use {
            is_download,
            began: at(began),
            ended: at(ended),
            silence: silence.map(Duration::from_millis).context("it broke"),
        };
        let mut seen = Seen::default();
        for one in [
            done(true, 0, 10, Some(1)),
            done(true, 5, 50, Some(30)),
            done(true, 6, 50, None),
            done(false, 0, 40, Some(35)),
            done(false, 41, 42, None),
        ] {
            seen.count(one, &[at(20)]);
        }
        assert_eq!((seen.downloads, seen.hit, seen.broken_downloads), (3, 2, 1));
        assert_eq!(seen.pauses, [30.0]);
        assert_eq!((seen.requests, seen.broken_requests), (2, 1));
        assert!((seen.longest_wait - 35.0).abs() < 1e-9);
        assert_eq!(seen.why.as_deref(), Some("it broke"));
    }
}
