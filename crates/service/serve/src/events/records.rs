//! Events with time and place; the latest events are kept.

use std::{collections::VecDeque, fmt, sync::OnceLock};

use recovery::Event as RecoveryEvent;
use serde::Serialize;

use super::{Code, Event, JSON_VERSION};
use crate::{clock, event_log::EventLog};

/// An event with time and place.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EventRecord {
    /// Version of the schema.
    pub version: u32,
    /// Microseconds since 1970.
    pub time_unix_us: u64,
    /// Start of the process, microseconds since 1970: equal in all events of a `serve`, different in those of the next.
    pub run_unix_us: u64,
    /// The service.
    pub service: String,
    /// The event in words.
    pub message: String,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

impl EventRecord {
    /// A warning about this service, with the present time.
    #[must_use]
    pub fn warning(service: &str, code: Code, reason: String) -> Self {
        Self::now(service, Event::Warning { code, reason })
    }

    pub(crate) fn now(service: &str, event: Event) -> Self {
        let message = event.to_string();
        Self::in_words(service, event, message)
    }

    fn in_words(service: &str, event: Event, message: String) -> Self {
        let run_unix_us = run();
        Self {
            version: JSON_VERSION,
            time_unix_us: clock::wall(),
            run_unix_us,
            service: service.to_owned(),
            message,
            event,
        }
    }
}

/// Start of this process, microseconds since 1970.
static PROCESS_START_US: OnceLock<u64> = OnceLock::new();

/// Notes the start of this process. Without this call, the process starts with the first event.
pub fn begins() {
    PROCESS_START_US.get_or_init(clock::wall);
}

/// Start of this process.
fn run() -> u64 {
    *PROCESS_START_US.get_or_init(clock::wall)
}

impl fmt::Display for EventRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "outlive: {} {}", self.service, self.message)
    }
}

/// Events that are retained for later requests.
const RETAINED_EVENTS: usize = 1000;

/// The server, with the name for people.
#[derive(Debug, Default)]
struct Server {
    program: String,
    /// Main process, as last reported.
    pid: Option<u32>,
}

impl Server {
    fn update(&mut self, event: &Event) {
        self.pid = match event {
            Event::Adopted { pid, .. } => *pid,
            Event::Started { pid }
            | Event::ReplicaPromoted { pid, .. }
            | Event::Recovery(RecoveryEvent::Restarted { pid, .. }) => Some(*pid),
            _ => return,
        };
    }

    /// With the name of the process that has died.
    fn in_words(&self, event: &Event) -> String {
        match event {
            Event::Recovery(RecoveryEvent::Died { cause, detected_ms }) => match cause.pid() {
                Some(pid) => {
                    let who = if self.pid == Some(pid) {
                        format!("{} (pid {pid})", self.program)
                    } else {
                        format!("process {pid} of {}", self.program)
                    };
                    format!("{}; detected in {detected_ms:.2} ms", cause.of(&who))
                }
                None => event.to_string(),
            },
            _ => event.to_string(),
        }
    }
}

/// The latest reports, numbered.
#[derive(Debug, Default)]
pub(crate) struct EventBuffer {
    kept: VecDeque<EventRecord>,
    /// Number of the first kept event.
    first: u64,
    server: Server,
    log: Option<EventLog>,
}

impl EventBuffer {
    /// Sets the program of the server, and a log, if configured, that outlives this process.
    pub(crate) fn begin(&mut self, program: String, log: impl FnOnce() -> Option<EventLog>) {
        self.server.program = program;
        self.log = self.log.take().or_else(log);
    }

    pub(crate) fn add(&mut self, service: &str, event: Event) -> &EventRecord {
        if self.kept.len() == RETAINED_EVENTS {
            self.kept.pop_front();
            self.first += 1;
        }
        self.server.update(&event);
        let message = self.server.in_words(&event);
        let report = EventRecord::in_words(service, event, message);
        if let Some(log) = &mut self.log {
            log.add(&report);
        }
        self.kept.push_back(report);
        &self.kept[self.kept.len() - 1]
    }

    /// Why events are not in the log, if writing fails and the reason was not returned before.
    pub(crate) fn not_logged(&mut self) -> Option<String> {
        self.log.as_mut()?.failure()
    }

    /// Events from number `from` on, and the number after the last event.
    pub(crate) fn since(&self, from: u64) -> (impl Iterator<Item = &EventRecord>, u64) {
        let skip = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let next = self.first + u64::try_from(self.kept.len()).unwrap_or(0);
        (self.kept.iter().skip(skip), next)
    }
}

#[cfg(test)]
mod tests {
    use recovery::Cause;

    use super::*;

    #[test]
    fn death_event_names_process() {
        let mut events = EventBuffer::default();
        events.begin("nginx".into(), || None);
        events.add("web", Event::Started { pid: 7 });
        let mut died = |pid, signal| {
            let cause = Cause::Signal { pid, signal };
            let detected_ms = 1.594;
            let event = RecoveryEvent::Died { cause, detected_ms };
            events.add("web", Event::Recovery(event)).message.clone()
        };
        let words = "nginx (pid 7) was killed by SIGKILL; detected in 1.59 ms";
        assert_eq!(died(7, 9), words);
        let words = "process 8 of nginx was killed by SIGSEGV; detected in 1.59 ms";
        assert_eq!(died(8, 11), words);
    }
}
