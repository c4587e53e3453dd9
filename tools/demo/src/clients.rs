//! Who uses the server, and what each of them has to say in the end.

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

/// What the clients share.
pub(crate) struct Scene<'a> {
    pub(crate) stage: &'a Stage,
    /// Raised when the servers will not be killed any more.
    pub(crate) kills_over: &'a AtomicBool,
    /// Raised when the demo ends early: whoever still works gives up.
    pub(crate) given_up: &'a AtomicBool,
}

/// What a client does.
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

    /// Whose clients they are.
    pub(crate) fn server(self) -> Server {
        match self {
            Self::Count | Self::Channel => Server::Redis,
            Self::Topic => Server::Mosquitto,
            _ => Server::Nginx,
        }
    }

    /// How many clients of this kind there are.
    pub(crate) fn clients(self) -> usize {
        match self {
            Self::Slow => SLOW_CLIENTS,
            Self::Idle => IDLE_CLIENTS,
            _ => 1,
        }
    }

    /// How many connections each of them has at a time.
    pub(crate) fn at_a_time(self) -> usize {
        match self {
            Self::Count => COUNTING_CLIENTS,
            // Who publishes, and who has subscribed.
            Self::Channel | Self::Topic => 2,
            _ => 1,
        }
    }

    /// What it does, and if it is not over IPv4, over what.
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

    /// What its longest pause is the longest of.
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

    /// What its clients say of what they have counted.
    pub(crate) fn counted(self, count: u64) -> String {
        match self {
            Self::Count => format!("{count} INCR, each counted once"),
            _ => format!("{count} messages, each delivered once"),
        }
    }

    /// Lives one client's life.
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

/// What a client's connections were good for that did what they had to.
pub(crate) struct Served {
    /// How many it has made: as many as it would have made without any death.
    pub(crate) connections: usize,
    /// What it has counted: commands that redis has, or messages that were delivered, each once.
    pub(crate) count: u64,
    /// Bytes compared, all the same.
    pub(crate) bytes: u64,
    /// The longest that the client waited, in the sense of [`Kind::pause`].
    pub(crate) pause: Option<Duration>,
}

impl Served {
    /// One connection was enough, and there was nothing to count but bytes.
    pub(crate) fn on_one(bytes: u64, pause: Option<Duration>) -> Self {
        Self {
            connections: 1,
            count: 0,
            bytes,
            pause,
        }
    }
}

/// How it went with one client.
pub(crate) struct Outcome {
    pub(crate) kind: Kind,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// An error means that its connections were broken.
    pub(crate) result: Result<Served>,
}

/// Starts all clients, each of which reports to `director`.
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
                // Nobody listens when the demo was interrupted.
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
