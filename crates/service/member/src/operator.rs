//! The operator's view of a running member: status, events, metrics.

use std::{net::SocketAddr, path::PathBuf, time::Instant};

use operator_socket::{EventRecord, OperatorSocket, Source};
use protocol::pool::MemberName;
use rustix::event::PollFd;

use crate::{
    engine::Member,
    error::{MemberError, SystemContext},
    event::Event,
    metrics,
    status::Totals,
};

/// Receives the events.
pub(crate) type Tell<'a> = &'a mut dyn FnMut(&EventRecord<'_, Event>);

/// What an operator can ask.
pub(crate) struct Operator {
    name: MemberName,
    socket: OperatorSocket,
    totals: Totals,
    /// Why the member is not in the pool, as was told.
    refusal: Option<String>,
    started: Instant,
    _metrics: Option<::metrics::Running>,
}

impl Operator {
    pub(crate) fn start(
        name: &MemberName,
        socket: PathBuf,
        metrics: Option<SocketAddr>,
    ) -> Result<Self, MemberError> {
        let metrics = metrics::show(metrics, socket.clone())?;
        Ok(Self {
            name: name.clone(),
            socket: OperatorSocket::bind(socket).doing("make the socket for status")?,
            totals: Totals::default(),
            refusal: None,
            started: Instant::now(),
            _metrics: metrics,
        })
    }

    /// Adds all descriptors that the member waits for.
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        self.socket.watch(fds);
    }

    /// Counts, keeps and prints an event. A member that is not admitted tries several times a second: each reason is
    /// told once, and counted each time.
    pub(crate) fn emit(&mut self, event: &Event, tell: Tell<'_>) {
        self.totals.count(event);
        match event {
            Event::NotAdmitted { reason } if self.refusal.as_ref() == Some(reason) => return,
            Event::NotAdmitted { reason } => self.refusal = Some(reason.clone()),
            Event::Joined => self.refusal = None,
            _ => {}
        }
        let record = EventRecord::now(Source::Member(self.name.as_str()), event);
        self.socket.push_event(record.line(), event.is_frequent());
        tell(&record);
    }

    /// Answers the questions that have arrived.
    pub(crate) fn answer(&mut self, member: &Member) {
        let (totals, started) = (&self.totals, self.started);
        self.socket.answer(|list| {
            let mut status = member.status(list).ok()?;
            let uptime = started.elapsed().as_millis();
            status.uptime_ms = u64::try_from(uptime).unwrap_or(u64::MAX);
            status.totals = totals.clone();
            Some(status)
        });
    }
}
