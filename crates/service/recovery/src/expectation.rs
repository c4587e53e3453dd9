//! Knowledge that the splice of a connection needs: the old output, and the places at which the client waited for
//! output. Without this knowledge no output would be compared, and the server would get all input of the client at
//! once.

use std::time::Duration;

use south_model::Digest;
use wire::FlowId;

use crate::{
    action::Action, connection::ConnectionStep, event::LostReason, replay::Beginning,
    service::Recovery,
};

/// Digests of the output that a server on another host has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputBefore {
    /// Digest of the output that the client has.
    pub said: Digest,
    /// Digest of the output that a replay leaves out.
    pub turn: Digest,
}

impl Recovery {
    /// Places at which the client sent after the client had all output, in order: at each place the replay waits until
    /// the server has repeated the output. Also digests of the server's output, in order. [`Action::Expect`] asks for
    /// both.
    pub fn beginnings(&mut self, id: FlowId, beginnings: Vec<Beginning>, digests: Vec<Digest>) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.words.digests = digests;
            let first = connection.point.instream + 1;
            let mut beginnings = beginnings;
            beginnings.retain(|at| at.instream.at_or_after(first));
            connection.words.beginnings = beginnings;
        }
    }

    /// Output of another host's server, for a connection that was made anew. Called before the splice.
    #[must_use]
    pub fn output_before(&self, id: FlowId) -> Option<OutputBefore> {
        let connection = self.connections.get(&id)?;
        let words = &connection.words;
        let heard = words.heard_elsewhere?;
        let from = connection.point.outstream;
        let of_it = |digest: &&Digest| digest.next.after(from) && digest.next.at_or_before(heard);
        let said = *words.digests.iter().rfind(of_it)?;
        let mut digests = words.digests.iter();
        let turn = digests.find(|digest| digest.next == from && digest.base == said.base);
        let nothing = Digest {
            base: from,
            next: from,
            ..Digest::default()
        };
        let turn = turn.copied().unwrap_or(nothing);
        (turn.base == said.base).then_some(OutputBefore { said, turn })
    }

    /// The digest that is compared first on this connection ([`Action::Compare`]). The digest is set before the SYN,
    /// because a server may send at once.
    #[must_use]
    pub fn compared_first(&self, id: FlowId) -> Option<Digest> {
        let beginnings = &self.connections.get(&id)?.words.beginnings;
        beginnings.iter().find_map(|at| at.said)
    }

    /// The logger does not answer [`Action::Expect`] now, and may soon: no connection is spliced before
    /// [`Recovery::logger_answers`], and the question for this connection is repeated then.
    pub fn unanswered(&mut self, id: FlowId) {
        let connection = self.connections.get_mut(&id);
        if let Some(connection) =
            connection.filter(|one| matches!(one.step, ConnectionStep::Splicing { .. }))
        {
            connection.step = ConnectionStep::Waiting;
            self.withdraw_splice(id);
            self.awaits_logger = true;
        }
    }

    /// The logger has no record of a connection for which [`Action::Expect`] asked. The connection is lost, unless the
    /// record would be empty: the frame that opens the record may be under way.
    pub fn no_record(&mut self, id: FlowId) {
        if self.connections.get(&id).is_some_and(|one| !one.is_fresh()) {
            self.drop_connection(id, LostReason::NoRecord);
        }
    }

    /// A splice waits for the logger's answer.
    #[must_use]
    pub fn awaits_logger(&self) -> bool {
        self.awaits_logger
    }

    /// The logger answers again, or is no longer waited for.
    pub fn logger_answers(&mut self, now: Duration) {
        if std::mem::take(&mut self.awaits_logger) {
            self.poll(now);
        }
    }

    /// A requested splice is called off.
    pub(crate) fn withdraw_splice(&mut self, id: FlowId) {
        let is_it = |action: &Action| matches!(action, Action::Splice { flow, .. } if *flow == id);
        self.actions.retain(|action| !is_it(action));
    }
}
