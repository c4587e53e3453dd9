//! One client that fetches an object of one byte, a connection each time.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::Host;

/// Fetches in a run. Five runs have the 10,000 of the paper.
const FETCH_COUNT: usize = 2000;
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// Durations of the steps of one fetch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fetch {
    /// From the SYN to the SYN-ACK: `connect`.
    pub(super) handshake: Duration,
    /// From the request to the first segment of the response.
    pub(super) response: Duration,
    /// From the SYN to the server's FIN.
    pub(super) total: Duration,
}

/// Fetches the object of one byte on connections one after the other, from this host.
///
/// # Errors
/// A connection or a response fails.
pub(super) fn measure(client: &Host, address: SocketAddr) -> Result<Vec<Fetch>> {
    client.enter(|| (0..FETCH_COUNT).map(|_| fetch(address)).collect())?
}

fn fetch(address: SocketAddr) -> Result<Fetch> {
    let request = b"GET /1 HTTP/1.1\r\nHost: pool\r\nConnection: close\r\n\r\n";
    let mut buffer = [0; 4096];
    let syn = Instant::now();
    let mut stream = TcpStream::connect_timeout(&address, STEP_TIMEOUT)?;
    let connected = Instant::now();
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    let asked = Instant::now();
    stream.write_all(request)?;
    let mut len = stream.read(&mut buffer)?;
    let answered = Instant::now();
    loop {
        let count = stream.read(&mut buffer[len..])?;
        len += count;
        if count == 0 {
            break;
        }
    }
    let end = Instant::now();
    let response = &buffer[..len];
    ensure!(
        response.starts_with(b"HTTP/1.1 200") && response.ends_with(b"\r\n\r\n1"),
        "a wrong response: {}",
        String::from_utf8_lossy(response)
    );
    Ok(Fetch {
        handshake: connected - syn,
        response: answered - asked,
        total: end - syn,
    })
}
