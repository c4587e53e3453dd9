//! Servers with state: all output to clients follows from the determinants, in order. The expected output is computed
//! here from the determinants and the clients' scripts alone.

use recovery::SplicePoint;
use wire::FlowKey;

use super::{ClientView, InvariantChecker, Violation, ensure, index};
use crate::{
    conversation::{Digest, ticket},
    determinants::{Determinant, DeterminantLog},
};

/// A connection that was accepted.
struct ReceivedInput {
    client: usize,
    /// Bytes that were read of the client, and tickets that were given to the client.
    read: usize,
    tickets: usize,
}

impl InvariantChecker {
    /// A connection continues with a socket that was made for the connection.
    pub(crate) fn grafted(
        &mut self,
        key: FlowKey,
        point: SplicePoint,
        determinants: &DeterminantLog,
    ) -> Result<(), Violation> {
        let read = determinants.read_of(key);
        let Some(seen) = self.of_mut(key) else {
            return Err(Violation(format!("a stranger is grafted: {key}")));
        };
        let (Some(client), Some(server)) = (seen.client_isn, seen.server_isn) else {
            return Err(Violation(format!("{key} is grafted but was never open")));
        };
        let instream = index(point.instream.0.wrapping_sub(client.0));
        ensure(read == Some(instream), || {
            format!("{key} goes on behind {instream} bytes, of which {read:?} were read")
        })?;
        let has = seen.has.unwrap_or(server + 1);
        ensure(!point.outstream.after(has), || {
            let next = point.outstream;
            format!("{key}: {next} is to be said next, and the client has what is before {has}")
        })?;
        seen.orphaned = false;
        seen.replay_offset = instream;
        Ok(())
    }

    /// Checks that a server without crashes would have had the same output from the same reads in this order.
    pub(crate) fn all_follows_from(&self, determinants: &DeterminantLog) -> Result<(), Violation> {
        let mut accepted: Vec<ReceivedInput> = Vec::new();
        let mut digest = Digest::NONE;
        let mut tickets = 0;
        for determinant in determinants.iter() {
            match determinant {
                Determinant::Accepted { key, .. } => accepted.push(self.received_input(*key)?),
                Determinant::Read { connection, bytes } => {
                    let heard = accepted.get_mut(*connection);
                    let heard =
                        heard.ok_or_else(|| Violation::new("a determinant of no connection"))?;
                    let seen = &self.seen[heard.client];
                    seen.reads(heard.read, bytes)?;
                    heard.read += bytes.len();
                    digest.add_all(&seen.key.client().port().to_be_bytes());
                    digest.add_all(&bytes.len().to_be_bytes());
                    digest.add_all(bytes);
                    while let Some((_, place)) = seen.asked_for(heard) {
                        tickets += 1;
                        heard.tickets += 1;
                        seen.received_ticket(place.start, &ticket(tickets, digest))?;
                    }
                }
                _ => {}
            }
        }
        for seen in &self.seen {
            let same = accepted
                .iter()
                .filter(|one| self.seen[one.client].key == seen.key);
            seen.received_no_more_tickets(same.map(|one| one.tickets).max().unwrap_or(0))?;
        }
        Ok(())
    }

    fn received_input(&self, key: FlowKey) -> Result<ReceivedInput, Violation> {
        let client = self.by_address.get(&key.client()).copied();
        let stranger = || Violation(format!("a stranger was accepted: {key}"));
        Ok(ReceivedInput {
            client: client.ok_or_else(stranger)?,
            read: 0,
            tickets: 0,
        })
    }
}

impl ClientView {
    fn reads(&self, at: usize, bytes: &[u8]) -> Result<(), Violation> {
        let sent = self.script.instream.get(at..at + bytes.len());
        ensure(sent == Some(bytes), || {
            format!(
                "{}: input with a determinant at {at} was not sent",
                self.key
            )
        })
    }

    /// The next ticket that the client has requested by now.
    fn asked_for(&self, heard: &ReceivedInput) -> Option<&(usize, std::ops::Range<usize>)> {
        let next = self.script.tickets.get(heard.tickets);
        next.filter(|(asked, _)| *asked <= heard.read)
    }

    /// Checks that bytes sent at this place, if any, equal the answer.
    fn received_ticket(&self, at: usize, answer: &[u8]) -> Result<(), Violation> {
        for (place, byte) in (at..).zip(answer) {
            let told = self.told.get(&place);
            ensure(told.is_none_or(|told| told == byte), || {
                let key = self.key;
                format!(
                    "{key} was told {told:?} at {place}, where {byte} follows from what was read"
                )
            })?;
        }
        Ok(())
    }

    /// Checks that the client got no ticket without a request.
    fn received_no_more_tickets(&self, tickets: usize) -> Result<(), Violation> {
        let rest = self.script.tickets.get(tickets..).unwrap_or_default();
        let told = rest
            .iter()
            .find(|(_, place)| self.told.contains_key(&place.start));
        ensure(told.is_none(), || {
            format!(
                "{} was told what does not follow from anything read: {told:?}",
                self.key
            )
        })
    }
}
