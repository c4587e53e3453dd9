//! Who uses the server, and what each of them has to say in the end.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::demo::director::Message;
use crate::demo::stage::Stage;
use crate::demo::{curl, idle};

/// Curls whose output is read slowly.
const SLOW: usize = 25;
/// Connections that are idle while the server is killed.
const IDLE: usize = 25;

/// What the clients share.
pub(crate) struct Scene<'a> {
    pub(crate) stage: &'a Stage,
    /// Raised when the server will not be killed any more.
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
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Download,
        Self::Upload,
        Self::KeepAlive,
        Self::Slow,
        Self::Idle,
    ];

    /// How many connections of this kind there are.
    pub(crate) fn connections(self) -> usize {
        match self {
            Self::Download | Self::Upload | Self::KeepAlive => 1,
            Self::Slow => SLOW,
            Self::Idle => IDLE,
        }
    }

    /// What it is, and over which address.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Download => "download of 200 MB",
            Self::Upload => "upload of 200 MB, IPv6",
            Self::KeepAlive => "200 requests, keep-alive",
            Self::Slow => "slow downloads",
            Self::Idle => "idle connections",
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
        }
    }
}

/// What a connection was good for that did what it had to.
pub(crate) struct Served {
    /// Bytes compared, all the same.
    pub(crate) bytes: u64,
    /// The longest that the client waited, in the sense of [`Kind::pause`].
    pub(crate) pause: Option<Duration>,
}

/// How it went with one connection.
pub(crate) struct Outcome {
    pub(crate) kind: Kind,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// An error means that the connection was broken.
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
        .flat_map(|kind| (0..kind.connections()).map(move |n| (kind, n)));
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
