//! Events with time and place; the latest events are kept.

use std::{
    collections::VecDeque,
    fmt::Display,
    sync::OnceLock,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::Serialize;
use types::JSON_VERSION;

/// Number of kept events.
const EVENT_COUNT_MAX: usize = 1000;

/// The program that an event is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source<'a> {
    /// The balancer of the pool with this name.
    Pool(&'a str),
    /// The member with this name.
    Member(&'a str),
}

/// An event with time and place.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EventRecord<'a, E> {
    version: u32,
    time_unix_us: u64,
    /// Start of the process: equal in all events of a process.
    run_unix_us: u64,
    #[serde(flatten)]
    source: Source<'a>,
    /// The event in words.
    message: String,
    #[serde(flatten)]
    event: &'a E,
}

impl<'a, E: Serialize + Display> EventRecord<'a, E> {
    /// An event of this moment.
    pub fn now(source: Source<'a>, event: &'a E) -> Self {
        static PROCESS_START_US: OnceLock<u64> = OnceLock::new();
        let time_unix_us = unix_us();
        Self {
            version: JSON_VERSION,
            time_unix_us,
            run_unix_us: *PROCESS_START_US.get_or_init(|| time_unix_us),
            source,
            message: event.to_string(),
            event,
        }
    }

    /// The event.
    #[must_use]
    pub const fn event(&self) -> &'a E {
        self.event
    }

    /// A line of JSON.
    #[must_use]
    pub fn line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Microseconds since 1970.
fn unix_us() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(elapsed.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

#[derive(Debug)]
struct Numbered {
    number: u64,
    line: String,
}

/// The latest events. Frequent events do not displace rare events.
#[derive(Debug, Default)]
pub(crate) struct EventBuffer {
    rare: VecDeque<Numbered>,
    frequent: VecDeque<Numbered>,
    next: u64,
}

impl EventBuffer {
    /// Adds the line of an event.
    pub(crate) fn push(&mut self, line: String, is_frequent: bool) {
        let events = match is_frequent {
            true => &mut self.frequent,
            false => &mut self.rare,
        };
        if events.len() == EVENT_COUNT_MAX {
            events.pop_front();
        }
        let number = self.next;
        events.push_back(Numbered { number, line });
        self.next += 1;
    }

    /// The kept events from this number on, in their order, and the number of the next event.
    pub(crate) fn since(&self, from: u64) -> (Vec<&str>, u64) {
        let new = |event: &&Numbered| event.number >= from;
        let all = self.rare.iter().rev().take_while(new);
        let mut all: Vec<&Numbered> = all
            .chain(self.frequent.iter().rev().take_while(new))
            .collect();
        all.sort_by_key(|event| event.number);
        let lines = all.into_iter().map(|event| event.line.as_str());
        (lines.collect(), self.next)
    }
}
