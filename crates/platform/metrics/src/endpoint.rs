//! The thread that answers.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::{fd::AsFd, unix::net::UnixStream},
    thread,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, poll};

use crate::{
    Health, Numbers,
    families::text,
    format::{self, Format},
    request::{self, Timed, Wanted},
};

/// After a connection that could not be taken (there may be no descriptor left just now).
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// An address where the numbers will be.
#[derive(Debug)]
pub struct Endpoint {
    listener: TcpListener,
}

impl Endpoint {
    /// Listens on the address. A peer waits until [`Endpoint::run`].
    ///
    /// # Errors
    /// Errors of the system: the port is taken, or the host does not have the address.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        // A peer may be gone before the accept: then the accept must not wait for the next peer.
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// The address on which the endpoint listens.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers peers until the returned value is dropped. For each request, a separate thread calls `ask`, which
    /// returns the numbers, or the reason why there are no numbers.
    ///
    /// # Errors
    /// The system has no thread or descriptors left.
    pub fn run<N: Numbers>(
        self,
        mut ask: impl FnMut() -> Result<N, String> + Send + 'static,
    ) -> io::Result<Running> {
        let (stop, stopped) = UnixStream::pair()?;
        thread::Builder::new()
            .name("metrics".into())
            .spawn(move || {
                while waits(&self.listener, &stopped) {
                    match self.listener.accept() {
                        // A broken connection is the problem of the peer alone.
                        Ok((mut peer, _)) => drop(answer(&mut peer, &mut ask)),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(_) => thread::sleep(ACCEPT_RETRY_DELAY),
                    }
                }
            })?;
        Ok(Running { _stop: stop })
    }
}

/// An endpoint that answers, until this value is dropped.
#[derive(Debug)]
pub struct Running {
    _stop: UnixStream,
}

/// Waits for a peer. Returns false when the endpoint is to end.
fn waits(listener: &TcpListener, stopped: &UnixStream) -> bool {
    let mut fds = [
        PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN),
    ];
    match poll(&mut fds, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => fds[1].revents().is_empty(),
        Err(_) => false,
    }
}

fn answer<N: Numbers>(
    peer: &mut TcpStream,
    ask: &mut impl FnMut() -> Result<N, String>,
) -> io::Result<()> {
    peer.set_nonblocking(false)?;
    let (wanted, only_head) = request::read(peer)?;
    let plain = |status, body: &str| (status, PLAIN_TEXT, format!("{body}\n"));
    let (status, kind, body) = match wanted {
        Wanted::Metrics(format) => match ask().map(text) {
            Ok(Ok(text)) => {
                let text = match format {
                    Format::OpenMetrics => text,
                    Format::Plain => format::plain(&text),
                };
                ("200 OK", format.content_type(), text)
            }
            Ok(Err(error)) => plain("500 Internal Server Error", &error.to_string()),
            Err(why) => plain("503 Service Unavailable", &why),
        },
        Wanted::Health => match ask().map(|numbers| numbers.health()) {
            Ok(Health::Well(how)) => plain("200 OK", &how),
            Ok(Health::Ill(why)) | Err(why) => plain("503 Service Unavailable", &why),
        },
        Wanted::Other => plain("404 Not Found", "there are /metrics and /health"),
        Wanted::Method => plain("405 Method Not Allowed", "there are only GET and HEAD"),
        Wanted::Nonsense => plain("400 Bad Request", "this is no request of HTTP"),
    };
    let length = body.len();
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    if !only_head {
        answer += &body;
    }
    Timed::new(peer).write_all(answer.as_bytes())
}
