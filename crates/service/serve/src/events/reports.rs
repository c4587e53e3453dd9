//! Events with their time and place, the latest of which are kept.

use std::{collections::VecDeque, fmt, sync::OnceLock};

use recovery::Event;
use serde::Serialize;

use super::{Code, Happening, JSON_VERSION};
use crate::{clock, event_log::EventLog};

/// A happening with its time and place.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Of the schema.
    pub version: u32,
    /// Microseconds since 1970.
    pub time_unix_us: u64,
    /// The same in all that one `serve` tells, and another in what the next one does: when its process began,
    /// microseconds since 1970.
    pub run_unix_us: u64,
    /// The service.
    pub service: String,
    /// What happened, in words.
    pub message: String,
    /// What happened.
    #[serde(flatten)]
    pub happening: Happening,
}

impl Report {
    /// Something is not as it should be with this service, now.
    #[must_use]
    pub fn trouble(service: &str, code: Code, reason: String) -> Self {
        Self::now(service, Happening::Warning { code, reason })
    }

    pub(crate) fn now(service: &str, happening: Happening) -> Self {
        let message = happening.to_string();
        Self::in_words(service, happening, message)
    }

    fn in_words(service: &str, happening: Happening, message: String) -> Self {
        let run_unix_us = run();
        Self {
            version: JSON_VERSION,
            time_unix_us: clock::wall(),
            run_unix_us,
            service: service.to_owned(),
            message,
            happening,
        }
    }
}

static RUN: OnceLock<u64> = OnceLock::new();

/// This process begins now. A process that does not say so has begun when it tells something for the first time.
pub fn begins() {
    RUN.get_or_init(clock::wall);
}

/// When this process has begun.
fn run() -> u64 {
    *RUN.get_or_init(clock::wall)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "outlive: {} {}", self.service, self.message)
    }
}

/// How many reports are kept for those who ask later.
const KEPT: usize = 1000;

/// The server, as people know it.
#[derive(Debug, Default)]
struct Server {
    program: String,
    /// Its main process, as was told last.
    pid: Option<u32>,
}

impl Server {
    fn heed(&mut self, happening: &Happening) {
        self.pid = match happening {
            Happening::Adopted { pid, .. } => *pid,
            Happening::Started { pid }
            | Happening::ReplicaPromoted { pid, .. }
            | Happening::Recovery(Event::Restarted { pid, .. }) => Some(*pid),
            _ => return,
        };
    }

    /// With the name of the process that has died.
    fn in_words(&self, happening: &Happening) -> String {
        match happening {
            Happening::Recovery(Event::Died { cause, detected_ms }) => match cause.pid() {
                Some(pid) => {
                    let who = if self.pid == Some(pid) {
                        format!("{} (pid {pid})", self.program)
                    } else {
                        format!("process {pid} of {}", self.program)
                    };
                    format!("{}; detected in {detected_ms:.2} ms", cause.of(&who))
                }
                None => happening.to_string(),
            },
            _ => happening.to_string(),
        }
    }
}

/// The latest reports, numbered.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    kept: VecDeque<Report>,
    /// Number of the first one kept.
    first: u64,
    server: Server,
    log: Option<EventLog>,
}

impl Reports {
    /// Of a server of this program, and, if there is a log, for those who ask when we are gone, too.
    pub(crate) fn begin(&mut self, program: String, log: impl FnOnce() -> Option<EventLog>) {
        self.server.program = program;
        self.log = self.log.take().or_else(log);
    }

    pub(crate) fn add(&mut self, service: &str, happening: Happening) -> &Report {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
            self.first += 1;
        }
        self.server.heed(&happening);
        let message = self.server.in_words(&happening);
        let report = Report::in_words(service, happening, message);
        if let Some(log) = &mut self.log {
            log.add(&report);
        }
        self.kept.push_back(report);
        &self.kept[self.kept.len() - 1]
    }

    /// Why they are not in the log, if that is so and was not asked yet.
    pub(crate) fn not_logged(&mut self) -> Option<String> {
        self.log.as_mut()?.failure()
    }

    /// Those from number `from` on, and the number after the last.
    pub(crate) fn since(&self, from: u64) -> (impl Iterator<Item = &Report>, u64) {
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
    fn who_has_died_is_told_by_name() {
        let mut reports = Reports::default();
        reports.begin("nginx".into(), || None);
        reports.add("web", Happening::Started { pid: 7 });
        let mut died = |pid, signal| {
            let cause = Cause::Signal { pid, signal };
            let detected_ms = 1.594;
            let event = Event::Died { cause, detected_ms };
            reports
                .add("web", Happening::Recovery(event))
                .message
                .clone()
        };
        let words = "nginx (pid 7) was killed by SIGKILL; detected in 1.59 ms";
        assert_eq!(died(7, 9), words);
        let words = "process 8 of nginx was killed by SIGSEGV; detected in 1.59 ms";
        assert_eq!(died(8, 11), words);
    }
}
