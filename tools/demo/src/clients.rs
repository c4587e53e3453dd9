//! The clients of the servers, and their results.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::director::Message;
use crate::server::Server;
use crate::stage::Stage;
use crate::{count, curl, idle, messages};

/// Curls whose output is read slowly.
const SLOW_CLIENTS: usize = 25;
/// Connections that are idle while the server is killed.
const IDLE_CLIENTS: usize = 25;
/// Connections of a redis-benchmark, each with one command at a time.
pub(crate) const COUNTING_CLIENTS: usize = 4;

/// The state that the clients share.
pub(crate) struct Scene<'a> {
    pub(crate) stage: &'a Stage,
    /// Raised after the last kill.
    pub(crate) kills_over: &'a AtomicBool,
    /// Raised when the demo ends early: all clients give up.
    pub(crate) given_up: &'a AtomicBool,
}

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Download,
    Upload,
    KeepAlive,
    Slow,
    Idle,
    Count,
    Channel,
    Topic,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] = [
        Self::Download,
        Self::Upload,
        Self::KeepAlive,
        Self::Slow,
        Self::Idle,
        Self::Count,
        Self::Channel,
        Self::Topic,
    ];

    /// The server of these clients.
    pub(crate) fn server(self) -> Server {
        match self {
            Self::Count | Self::Channel => Server::Redis,
            Self::Topic => Server::Mosquitto,
            _ => Server::Nginx,
        }
    }

    /// Number of clients of this kind.
    pub(crate) fn clients(self) -> usize {
        match self {
            Self::Slow => SLOW_CLIENTS,
            Self::Idle => IDLE_CLIENTS,
            _ => 1,
        }
    }

    /// Connections of each client at a time.
    pub(crate) fn at_a_time(self) -> usize {
        match self {
            Self::Count => COUNTING_CLIENTS,
            // Who publishes, and who has subscribed.
            Self::Channel | Self::Topic => 2,
            _ => 1,
        }
    }

    /// Name of the work, with the IP version if not IPv4.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Download => "download of 200 MB",
            Self::Upload => "upload of 200 MB, IPv6",
            Self::KeepAlive => "200 requests, keep-alive",
            Self::Slow => "slow downloads",
            Self::Idle => "idle connections",
            Self::Count => "redis-benchmark, INCR",
            Self::Channel => "messages, redis-cli",
            Self::Topic => "messages, mosquitto QoS 2",
        }
    }

    /// Name of the work whose longest pause counts.
    pub(crate) fn pause(self) -> &'static str {
        match self {
            Self::Download => "between two reads of what curl writes",
            Self::Upload => "without curl reading on in its file, or without the answer",
            Self::KeepAlive => "from a request to the end of its answer, as curl measures",
            Self::Slow => "not measured: they read from their buffers, 80 KiB/s",
            Self::Idle => "from a request to the end of its answer",
            Self::Count => "from an INCR to its answer, as redis-benchmark measures (3 s at most)",
            Self::Channel | Self::Topic => {
                "without a message for the subscriber, of some 50 a second"
            }
        }
    }

    /// Name of the counted things.
    pub(crate) fn counted(self, count: u64) -> String {
        match self {
            Self::Count => format!("{count} INCR, each counted once"),
            _ => format!("{count} messages, each delivered once"),
        }
    }

    /// Runs a client.
    fn run(self, number: usize, scene: &Scene<'_>) -> Result<Served> {
        match self {
            Self::Download => curl::download(scene),
            Self::Upload => curl::upload(scene),
            Self::KeepAlive => curl::keep_alive(scene),
            Self::Slow => curl::slow(scene),
            Self::Idle => idle::run(scene, number),
            Self::Count => count::run(scene),
            Self::Channel | Self::Topic => messages::run(scene, self.server()),
        }
    }
}

/// Result of a client that worked.
pub(crate) struct Served {
    /// Number of connections: as many as without a death.
    pub(crate) connections: usize,
    /// Commands in redis, or delivered messages, each counted once.
    pub(crate) count: u64,
    /// Equal bytes.
    pub(crate) bytes: u64,
    /// Longest wait of the client, as in [`Kind::pause`].
    pub(crate) pause: Option<Duration>,
}

impl Served {
    /// A client with a single connection, which counts bytes alone.
    pub(crate) fn on_one(bytes: u64, pause: Option<Duration>) -> Self {
        Self {
            connections: 1,
            count: 0,
            bytes,
            pause,
        }
    }
}

/// Outcome of a client.
pub(crate) struct Outcome {
    pub(crate) kind: Kind,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// An error: a connection was broken.
    pub(crate) result: Result<Served>,
}

/// Starts all clients. Each one reports to `director`.
pub(crate) fn start<'scope, 'a: 'scope>(
    scope: &'scope Scope<'scope, '_>,
    scene: &'a Scene<'a>,
    director: &Sender<Message>,
) -> Vec<ScopedJoinHandle<'scope, ()>> {
    let numbered = Kind::ALL
        .into_iter()
        .flat_map(|kind| (0..kind.clients()).map(move |n| (kind, n)));
    numbered
        .map(|(kind, number)| {
            let director = director.clone();
            scope.spawn(move || {
                let began = Instant::now();
                let result = kind.run(number, scene);
                let ended = Instant::now();
                // After an interruption of the demo no thread receives messages.
                let _ = director.send(Message::Client(Outcome {
                    kind,
                    began,
                    ended,
                    result,
                }));
            })
        })
        .collect()
}
