//! The table of a pool in etcd, version 3, through the JSON gateway.
//!
//! One key has the table, and the revision of the key is the condition of each write. Leases, locks and elections of
//! etcd are not used. A thread carries the requests out: no request delays the lease of a member.

mod json;

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    net::SocketAddr,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    str::FromStr,
    sync::mpsc,
    time::Duration,
};

use pool::{CasRegister, Register as _, Reply, Request};
use protocol::pool::Table;
use ureq::{Agent, Error};

use crate::{
    error::{BalanceError, SystemContext},
    register::RegisterNews,
};

pub(crate) use json::table_json;

/// Time for a connection to etcd, and for a request.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest answer, bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// The servers of an etcd cluster: `etcd://HOST:PORT,HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdServers(Vec<String>);

/// No list of etcd servers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no register: write etcd://HOST:PORT, with a comma before each further HOST:PORT")]
pub struct ServersError(String);

impl FromStr for EtcdServers {
    type Err = ServersError;

    fn from_str(text: &str) -> Result<Self, ServersError> {
        let failed = || ServersError(text.to_owned());
        let list = text.strip_prefix("etcd://").ok_or_else(failed)?;
        let servers: Vec<String> = list.split(',').map(ToOwned::to_owned).collect();
        match servers.iter().all(|server| is_server(server)) {
            true => Ok(Self(servers)),
            false => Err(failed()),
        }
    }
}

impl fmt::Display for EtcdServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}", self.0.join(","))
    }
}

fn is_server(text: &str) -> bool {
    if text.parse::<SocketAddr>().is_ok() {
        return true;
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && host.chars().all(allowed) && port.parse::<u16>().is_ok()
    })
}

/// A table in etcd.
pub(crate) struct EtcdRegister {
    servers: EtcdServers,
    cas: CasRegister,
    /// The thread ends when this is closed.
    requests: mpsc::Sender<Request>,
    replies: mpsc::Receiver<Result<Reply, (Reply, String)>>,
    woken: UnixStream,
    /// Why etcd does not answer.
    failure: Option<String>,
}

impl EtcdRegister {
    /// Reads the table, or writes `first`.
    ///
    /// # Errors
    /// etcd does not answer within `limit`.
    pub(crate) fn open(
        servers: EtcdServers,
        pool: &str,
        first: Table,
        limit: Duration,
    ) -> Result<Self, BalanceError> {
        let (requests, requested) = mpsc::channel();
        let (reply, replies) = mpsc::channel();
        let doing = "start a thread for etcd";
        let (woken, wake) = UnixStream::pair().doing(doing)?;
        woken.set_nonblocking(true).doing(doing)?;
        let mut client = Client::new(&servers, pool);
        std::thread::Builder::new()
            .name("etcd".into())
            .spawn(move || {
                for request in requested {
                    if reply.send(client.carry_out(&request)).is_err() {
                        return;
                    }
                    let _ = (&wake).write_all(&[1]);
                }
            })
            .doing(doing)?;
        let mut register = Self {
            servers,
            cas: CasRegister::new(first),
            requests,
            replies,
            woken,
            failure: None,
        };
        register.claim(limit)?;
        Ok(register)
    }

    fn claim(&mut self, limit: Duration) -> Result<(), BalanceError> {
        let start = std::time::Instant::now();
        while !self.is_available() {
            let now = start.elapsed();
            if now >= limit {
                return Err(BalanceError::Register {
                    servers: self.servers.clone(),
                    reason: self.failure.clone().unwrap_or_default(),
                });
            }
            self.send(now);
            let Some(due) = self.cas.due_at() else {
                // A request is under way, and has a time limit.
                if let Ok(reply) = self.replies.recv() {
                    self.take(reply, start.elapsed());
                }
                continue;
            };
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
        self.cas.restart_clock();
        Ok(())
    }

    /// The newest known table.
    pub(crate) const fn newest(&self) -> &Table {
        self.cas.newest()
    }

    pub(crate) const fn cas(&mut self) -> &mut CasRegister {
        &mut self.cas
    }

    pub(crate) fn is_available(&self) -> bool {
        self.cas.is_available()
    }

    pub(crate) fn due_at(&self) -> Option<Duration> {
        self.cas.due_at()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    pub(crate) fn name(&self) -> String {
        self.servers.to_string()
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.clone()
    }

    pub(crate) fn poll(&mut self, now: Duration) -> Option<RegisterNews> {
        let had_failed = self.failure.is_some();
        let mut sink = [0; 64];
        while (&self.woken)
            .read(&mut sink)
            .is_ok_and(|read| read == sink.len())
        {}
        while let Ok(reply) = self.replies.try_recv() {
            self.take(reply, now);
        }
        self.send(now);
        match (&self.failure, had_failed) {
            (Some(reason), false) => Some(RegisterNews::Lost(reason.clone())),
            (None, true) => Some(RegisterNews::Back),
            _ => None,
        }
    }

    fn take(&mut self, reply: Result<Reply, (Reply, String)>, now: Duration) {
        let reply = match reply {
            Ok(reply) => {
                self.failure = None;
                reply
            }
            Err((reply, reason)) => {
                self.failure = Some(reason);
                reply
            }
        };
        self.cas.on_reply(reply, now);
    }

    fn send(&mut self, now: Duration) {
        if let Some(request) = self.cas.request(now) {
            // The thread lives as long as this end of the channel.
            let _ = self.requests.send(request);
        }
    }
}

/// The thread's side.
struct Client {
    agent: Agent,
    servers: Vec<String>,
    key: String,
}

impl Client {
    fn new(servers: &EtcdServers, pool: &str) -> Self {
        let config = Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(REQUEST_TIMEOUT))
            .http_status_as_error(false)
            .proxy(None)
            .build();
        Self {
            agent: config.into(),
            servers: servers.0.clone(),
            key: format!("outlive/pool/{pool}"),
        }
    }

    /// Asks one server after the other, until one has the request.
    fn carry_out(&mut self, request: &Request) -> Result<Reply, (Reply, String)> {
        let (path, body) = match request {
            Request::Read => ("range", json::range(&self.key)),
            Request::Swap { revision, table } => ("txn", json::swap(&self.key, *revision, table)),
        };
        let mut reason = String::new();
        for _ in 0..self.servers.len() {
            let url = format!("http://{}/v3/kv/{path}", self.servers[0]);
            match self.post(&url, &body) {
                Ok(answer) => {
                    let reply = match request {
                        Request::Read => json::value(&answer),
                        Request::Swap { .. } => json::swapped(&answer),
                    };
                    return reply.map_err(|reason| (Reply::Unknown, reason));
                }
                Err(error) => {
                    reason = format!("{}: {error}", self.servers[0]);
                    self.servers.rotate_left(1);
                    if !is_unsent(&error) {
                        return Err((Reply::Unknown, reason));
                    }
                }
            }
        }
        Err((Reply::Unsent, reason))
    }

    fn post(&self, url: &str, body: &str) -> Result<String, Error> {
        let mut response = self.agent.post(url).send(body)?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let text = body.read_to_string()?;
        match status.is_success() {
            true => Ok(text),
            false => Err(Error::StatusCode(status.as_u16())),
        }
    }
}

/// Whether no server can have seen the request.
fn is_unsent(error: &Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    match error {
        Error::HostNotFound | Error::ConnectionFailed => true,
        Error::Timeout(of) => matches!(of, ureq::Timeout::Connect | ureq::Timeout::Resolve),
        Error::Io(error) => matches!(
            error.kind(),
            ConnectionRefused | HostUnreachable | NetworkUnreachable
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_servers_is_read_and_shown() {
        for text in ["etcd://10.0.0.1:2379", "etcd://a:2379,[fd00::1]:2379"] {
            assert_eq!(
                text.parse::<EtcdServers>().expect("servers").to_string(),
                text
            );
        }
        for text in [
            "",
            "etcd://",
            "etcd://a",
            "http://a:1",
            "etcd://a:1,",
            "etcd://a b:1",
        ] {
            assert!(text.parse::<EtcdServers>().is_err(), "{text}");
        }
    }
}
