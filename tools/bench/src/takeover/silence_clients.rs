//! Two clients that measure the longest silence by their own clock. One client downloads, so that the server sends all
//! the time. The other client requests a small object again and again, so that requests may need a retransmission.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::Bench;
use crate::clients::read_some;
use crate::stage::{SMALL_OBJECT_BYTES, limit};

/// Rate of the client's link, bit/s: low enough that the programs on that host are not busy.
const LINK_RATE: u64 = 100_000_000;
/// Bytes that the download has read when the run begins.
const DOWNLOAD_START_BYTES: usize = 256 << 10;
/// Longest silence that a client waits for.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
const BETWEEN_REQUESTS: Duration = Duration::from_millis(2);

/// In words.
pub(crate) const WHAT: &str = "the client's link has 100 Mbit/s; one connection downloads all the time, on another one small requests follow each other";

/// The longest time without a byte, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Silences {
    pub(crate) download: f64,
    /// From a request to the end of the response.
    pub(crate) request: f64,
}

/// The running clients.
pub(crate) struct Watchers<'a> {
    bench: &'a Bench,
    over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Result<Duration>>>,
}

impl<'a> Watchers<'a> {
    /// Starts both clients; returns when both are served.
    pub(crate) fn start(bench: &'a Bench, address: SocketAddr) -> Result<Self> {
        bench.stage.sparse("www/large", 1 << 40)?;
        limit(&bench.stage.client, Some(LINK_RATE))?;
        let mut watchers = Self {
            bench,
            over: Arc::new(AtomicBool::new(false)),
            clients: Vec::new(),
        };
        // A thread stays in the network namespace of the thread that started it.
        bench.stage.client.enter(|| -> Result<()> {
            let stream = begin_download(connect(address)?)?;
            let over = Arc::clone(&watchers.over);
            let download = thread::spawn(move || read_on(&over, stream));
            watchers.clients.push(download);
            let (stream, over) = (connect(address)?, Arc::clone(&watchers.over));
            let asking = thread::spawn(move || ask_on(&over, stream));
            watchers.clients.push(asking);
            Ok(())
        })??;
        Ok(watchers)
    }

    /// Ends both clients.
    ///
    /// # Errors
    /// A connection broke, or a client received wrong bytes.
    pub(crate) fn finish(mut self) -> Result<Silences> {
        self.over.store(true, Ordering::Relaxed);
        let heard = self.clients.drain(..).map(|client| {
            let silence = client.join().map_err(|_| anyhow!("a client panicked"))?;
            Ok(silence?.as_secs_f64() * 1e3)
        });
        let heard = heard.collect::<Result<Vec<f64>>>()?;
        let [download, request] = heard[..] else {
            return Err(anyhow!("there are two clients"));
        };
        Ok(Silences { download, request })
    }
}

impl Drop for Watchers<'_> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            let _ = client.join();
        }
        if let Err(error) = limit(&self.bench.stage.client, None) {
            eprintln!("bench: the client's link stays slow: {error:#}");
        }
    }
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, SILENCE_TIMEOUT)?;
    stream.set_read_timeout(Some(SILENCE_TIMEOUT))?;
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    Ok(stream)
}

/// Requests more than the time allows, and reads the beginning.
fn begin_download(mut stream: TcpStream) -> Result<TcpStream> {
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: bench\r\n\r\n")?;
    let mut beginning = vec![0; DOWNLOAD_START_BYTES];
    stream.read_exact(&mut beginning)?;
    ensure!(beginning.starts_with(b"HTTP/1.1 200 "), "it is not 200");
    Ok(stream)
}

fn read_on(over: &AtomicBool, mut stream: TcpStream) -> Result<Duration> {
    let (mut longest, mut last) = (Duration::ZERO, Instant::now());
    let mut buffer = vec![0; 64 << 10];
    while !over.load(Ordering::Relaxed) {
        let read = read_some(&mut stream, &mut buffer).context("a download")?;
        ensure!(read > 0, "a download was closed");
        let zeros = buffer[..read].iter().all(|byte| *byte == 0);
        ensure!(zeros, "a download has other bytes than the file");
        let now = Instant::now();
        longest = longest.max(now - std::mem::replace(&mut last, now));
    }
    Ok(longest)
}

fn ask_on(over: &AtomicBool, mut stream: TcpStream) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    let mut answer = Vec::new();
    while !over.load(Ordering::Relaxed) {
        thread::sleep(BETWEEN_REQUESTS);
        let began = Instant::now();
        stream.write_all(b"GET /small HTTP/1.1\r\nHost: bench\r\n\r\n")?;
        answer.clear();
        while !is_whole(&answer) {
            let mut buffer = [0; 2048];
            let read = read_some(&mut stream, &mut buffer).context("a request")?;
            ensure!(read > 0, "a connection was closed");
            answer.extend_from_slice(&buffer[..read]);
        }
        ensure!(answer.starts_with(b"HTTP/1.1 200 "), "it is not 200");
        longest = longest.max(began.elapsed());
    }
    Ok(longest)
}

fn is_whole(answer: &[u8]) -> bool {
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n");
    end.is_some_and(|end| answer.len() >= end + 4 + SMALL_OBJECT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_is_complete_with_body() {
        let mut answer = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n".to_vec();
        assert!(!is_whole(&answer));
        answer.extend([b'x'; SMALL_OBJECT_BYTES - 1]);
        assert!(!is_whole(&answer));
        answer.push(b'x');
        assert!(is_whole(&answer));
    }
}
