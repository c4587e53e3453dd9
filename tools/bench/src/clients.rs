//! A crowd: connections of the client's host that stay, and now and then ask for something.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Bench;
use super::stage::PORT;

const REQUEST: &[u8] = b"GET /small HTTP/1.1\r\nHost: bench\r\n\r\n";
/// Longest time of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long all together may take that ask at once.
const CROWD_TIMEOUT: Duration = Duration::from_secs(20);
/// Failed responses after which no further connection is asked: each failure takes the whole timeout.
const FAILURE_LIMIT: usize = 3;

/// Open connections. A drop closes the connections with a RST, which leaves no `TIME_WAIT`.
pub(super) struct Crowd(Vec<TcpStream>);

impl Crowd {
    /// Opens `number` connections, and requests a small object over each.
    pub(super) fn gather(bench: &Bench, number: usize) -> Result<Self> {
        Self::gather_at(bench, bench.stage.address(PORT), number)
    }

    /// The same elsewhere.
    pub(super) fn gather_at(bench: &Bench, address: SocketAddr, number: usize) -> Result<Self> {
        let connect = || -> Result<Vec<TcpStream>> {
            let mut streams = Vec::with_capacity(number);
            for count in 0..number {
                if count % 100 == 0 {
                    bench.interrupt.check()?;
                }
                let mut stream =
                    TcpStream::connect(address).with_context(|| format!("connection {count}"))?;
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
                stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
                ask(&mut stream).with_context(|| format!("connection {count}"))?;
                streams.push(stream);
            }
            Ok(streams)
        };
        Ok(Self(bench.stage.client.enter(connect)??))
    }

    /// The number of connections that still answer, and the error of a failed connection.
    pub(super) fn alive(&mut self, bench: &Bench) -> Result<(usize, Option<String>)> {
        let (mut alive, mut failed, mut why) = (0, 0, None);
        for stream in &mut self.0 {
            bench.interrupt.check()?;
            match ask(stream) {
                Ok(()) => alive += 1,
                Err(error) => {
                    let port = stream.local_addr().map_or(0, |address| address.port());
                    why = Some(format!("client port {port}: {error:#}"));
                    failed += 1;
                }
            }
            if failed >= FAILURE_LIMIT {
                break;
            }
        }
        Ok((alive, why))
    }
}

/// The responses to a crowd that asked all at once.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Milliseconds from the first request to each response.
    pub(super) after: Vec<f64>,
    /// The error of a connection without a response.
    pub(super) why: Option<String>,
}

impl Crowd {
    /// Sends a request over every connection, and then waits for the responses.
    pub(super) fn ask_all(&mut self, bench: &Bench) -> Result<Answers> {
        let began = Instant::now();
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut answers = Answers::default();
        let mut waiting = 0usize;
        for (number, stream) in self.0.iter_mut().enumerate() {
            let data = epoll::EventData::new_u64(u64::try_from(number)?);
            match stream.write_all(REQUEST) {
                Ok(()) => {
                    epoll::add(&poll, &*stream, data, epoll::EventFlags::IN)?;
                    waiting += 1;
                }
                Err(error) => answers.why = Some(format!("it cannot be asked: {error}")),
            }
        }
        let deadline = began + CROWD_TIMEOUT;
        let mut events = Vec::with_capacity(1024);
        while waiting > 0 && Instant::now() < deadline {
            bench.interrupt.check()?;
            let pause = Timespec {
                tv_sec: 0,
                tv_nsec: 100_000_000,
            };
            epoll::wait(&poll, spare_capacity(&mut events), Some(&pause))?;
            for event in events.drain(..) {
                let stream = &mut self.0[usize::try_from(event.data.u64())?];
                epoll::delete(&poll, &*stream)?;
                waiting -= 1;
                // A response is a single segment.
                match answer(stream) {
                    Ok(()) => answers.after.push(began.elapsed().as_secs_f64() * 1e3),
                    Err(error) => answers.why = Some(format!("{error:#}")),
                }
            }
        }
        if waiting > 0 {
            answers.why = Some(format!("{waiting} had no answer"));
        }
        Ok(answers)
    }
}

/// Sends a request and reads the response.
fn ask(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(REQUEST)?;
    answer(stream)
}

/// Reads available bytes. A stop and continue of the process, or a tracer, interrupts a read that has a time limit
/// (signal(7)): such an interrupt is no response.
pub(super) fn read_some(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            heard => return heard,
        }
    }
}

fn answer(stream: &mut TcpStream) -> Result<()> {
    let mut answer = [0; 2048];
    let mut length = 0;
    loop {
        let read = read_some(stream, &mut answer[length..])?;
        ensure!(read > 0, "closed by the server");
        length += read;
        let header = answer[..length]
            .windows(4)
            .position(|end| end == b"\r\n\r\n");
        if header.is_some_and(|header| length >= header + 4 + 128) {
            break;
        }
    }
    ensure!(
        answer.starts_with(b"HTTP/1.1 200 "),
        "the answer is not 200"
    );
    Ok(())
}

/// Lets us, and servers that we start from now on, have that many connections and some files.
pub(super) fn raise_limit(number: usize) -> Result<()> {
    let wanted = u64::try_from(number)? + 512;
    let now = getrlimit(Resource::Nofile);
    if now.current.is_some_and(|current| current < wanted) {
        let maximum = now.maximum.map(|maximum| maximum.max(wanted));
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(wanted),
                maximum,
            },
        )
        .with_context(|| format!("cannot have {wanted} open descriptors"))?;
    }
    Ok(())
}
