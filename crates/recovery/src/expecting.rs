//! What must be known of a connection before its splice: what its server had said, and where its client waited for that.
//! Without it nothing would be compared, and the server would be given at once all that the client has ever said.

use std::time::Duration;

use wire::FlowId;

use crate::{
    action::Action, connection::Step, event::LostReason, replay::Beginning, service::Recovery,
};

impl Recovery {
    /// Where the client of this connection began to speak after it had heard everything, in order: there its replay waits
    /// until the server has said as much again. Asked for by [`Action::Expect`].
    pub fn beginnings(&mut self, id: FlowId, beginnings: Vec<Beginning>) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.beginnings = beginnings;
        }
    }

    /// The logger does not answer [`Action::Expect`] now, and may soon: nothing is spliced before
    /// [`Recovery::logger_answers`], and this connection is asked for again then.
    pub fn unanswered(&mut self, id: FlowId) {
        let connection = self.connections.get_mut(&id);
        if let Some(connection) = connection.filter(|one| matches!(one.step, Step::Splicing { .. }))
        {
            connection.step = Step::Waiting;
            self.withdraw_splice(id);
            self.awaits_logger = true;
        }
    }

    /// The logger knows nothing of a connection for which [`Action::Expect`] asked. It is lost, unless there is nothing to
    /// be compared or replayed: the frame that opens its record may be on its way.
    pub fn no_record(&mut self, id: FlowId) {
        if self.connections.get(&id).is_some_and(|one| !one.is_fresh()) {
            self.drop_kept(id, LostReason::NoRecord);
        }
    }

    /// A splice waits for the logger's answer.
    #[must_use]
    pub fn awaits_logger(&self) -> bool {
        self.awaits_logger
    }

    /// The logger answers again, or nobody waits for it any more.
    pub fn logger_answers(&mut self, now: Duration) {
        if std::mem::take(&mut self.awaits_logger) {
            self.poll(now);
        }
    }

    /// A splice that was asked for is not to be carried out.
    pub(crate) fn withdraw_splice(&mut self, id: FlowId) {
        let is_it = |action: &Action| matches!(action, Action::Splice { flow, .. } if *flow == id);
        self.actions.retain(|action| !is_it(action));
    }
}
