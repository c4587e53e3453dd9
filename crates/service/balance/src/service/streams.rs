//! The loop's side of the control streams.

use std::{sync::Arc, time::Instant};

use pool::StreamId;
use protocol::pool::{BalancerMessage, ENCAPSULATION_SINCE, MemberMessage, Refused};

use super::{Balancer, Tell, now};
use crate::{
    event::{Code, Event},
    member_stream::{MemberStream, StreamError},
};

/// Limit of control streams, streams without a proven key included.
const STREAM_COUNT_MAX: usize = 512;

impl Balancer {
    pub(super) fn accept(&mut self, tell: Tell<'_>) {
        for at in 0..self.listeners.len() {
            // An error: the peer has closed already, or descriptors are used up. The next loop iteration tries again.
            while let Ok((stream, remote)) = self.listeners[at].accept() {
                let refused = |reason: String| Event::Refused {
                    from: Some(remote),
                    member: None,
                    reason,
                };
                if self.streams.len() >= STREAM_COUNT_MAX {
                    let reason = format!("there are {STREAM_COUNT_MAX} connections already");
                    self.refuse(refused(reason), tell);
                    continue;
                }
                // The member may use a key that was added a moment ago.
                self.reload_keys(tell);
                let keys = Arc::clone(&self.keys);
                match MemberStream::accept(stream, remote, keys, Instant::now()) {
                    Ok(stream) => {
                        self.newest_stream += 1;
                        self.streams.insert(StreamId(self.newest_stream), stream);
                    }
                    Err(error) => self.refuse(refused(error.to_string()), tell),
                }
            }
        }
    }

    pub(super) fn refuse(&mut self, event: Event, tell: Tell<'_>) {
        if let Some(event) = self.refusals.limited(event, Instant::now()) {
            self.emit(&event, tell);
        }
    }

    /// Reads from the ready streams, and tells the monitor.
    pub(super) fn receive(&mut self, ready: &[StreamId], tell: Tell<'_>) {
        for id in ready {
            if let Err(error) = self.receive_from(*id, tell) {
                self.dismiss(*id, &error, tell);
            }
        }
    }

    fn receive_from(&mut self, id: StreamId, tell: Tell<'_>) -> Result<(), StreamError> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        stream.read()?;
        while let Some(stream) = self.streams.get_mut(&id)
            && let Some(message) = stream.message()?
        {
            if !stream.is_known && message == MemberMessage::AskMembers {
                self.show_members(id)?;
                break;
            }
            let version = stream.version();
            if let Some(reason) = self.reason_against(&message, version) {
                self.refuse_member(id, &message, reason, tell)?;
                break;
            }
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.is_known = true;
            }
            self.monitor.on_message(now(), id, message);
        }
        Ok(())
    }

    /// The answer to a check, which joins no pool.
    fn show_members(&mut self, id: StreamId) -> Result<(), StreamError> {
        let config = self.monitor.config().clone();
        let table = self.monitor.table().clone();
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.say(&BalancerMessage::Config(config))?;
            stream.say(&BalancerMessage::Table(table))?;
            stream.is_closing = true;
        }
        Ok(())
    }

    /// The part of the admission for which the kernel or the stream has to be asked.
    fn reason_against(&mut self, message: &MemberMessage, version: u8) -> Option<Refused> {
        let MemberMessage::Hello(hello) = message else {
            return None;
        };
        let encapsulates = self.forwarding.encapsulates();
        if encapsulates && version < ENCAPSULATION_SINCE {
            return Some(Refused::OutOfOrder);
        }
        match self.forwarding.is_reachable(hello.address.ip()) {
            Ok(true) => None,
            // Packets would be lost; a member that continues has its place in the table, and may be on a link again.
            Ok(false) | Err(_) => {
                let table = self.monitor.table();
                let is_in = table
                    .members
                    .iter()
                    .any(|entry| entry.membership == hello.membership);
                (!is_in).then_some(match encapsulates {
                    true => Refused::NoRoute,
                    false => Refused::NotOnLink,
                })
            }
        }
    }

    fn refuse_member(
        &mut self,
        id: StreamId,
        message: &MemberMessage,
        reason: Refused,
        tell: Tell<'_>,
    ) -> Result<(), StreamError> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        stream.say(&BalancerMessage::Refused { reason })?;
        stream.is_closing = true;
        let member = match message {
            MemberMessage::Hello(hello) => Some(hello.name.to_string()),
            _ => None,
        };
        let event = Event::Refused {
            from: Some(stream.remote),
            member,
            reason: reason.to_string(),
        };
        self.refuse(event, tell);
        Ok(())
    }

    /// Ends a control stream.
    pub(super) fn dismiss(&mut self, id: StreamId, why: &StreamError, tell: Tell<'_>) {
        let Some(stream) = self.streams.remove(&id) else {
            return;
        };
        self.monitor.on_stream_lost(id);
        if !stream.is_known && !stream.is_closing {
            let event = Event::Refused {
                from: Some(stream.remote),
                member: None,
                reason: why.to_string(),
            };
            self.refuse(event, tell);
        }
    }

    /// Sends the waiting messages, and closes the streams that are over.
    pub(super) fn flush(&mut self, tell: Tell<'_>) {
        let mut broken = Vec::new();
        for (id, stream) in &mut self.streams {
            if stream.wants_write()
                && let Err(error) = stream.flush()
            {
                broken.push((*id, error));
            } else if stream.is_closing && !stream.wants_write() {
                broken.push((*id, StreamError::Closed));
            }
        }
        for (id, error) in broken {
            self.dismiss(id, &error, tell);
        }
    }

    /// Ends streams without a proven key, and with a key that was removed.
    pub(super) fn check_streams(&mut self, tell: Tell<'_>) {
        let now = Instant::now();
        let streams = self.streams.iter();
        let over: Vec<(StreamId, StreamError)> = streams
            .filter_map(|(id, stream)| Some((*id, stream.check(&self.keys, now).err()?)))
            .collect();
        for (id, error) in over {
            self.dismiss(id, &error, tell);
        }
    }

    /// Reads the key file again, if it has changed. The key of the pool stays until the next start.
    pub(super) fn reload_keys(&mut self, tell: Tell<'_>) {
        match Arc::make_mut(&mut self.keys).reload_if_changed() {
            Ok(false) => {}
            Ok(true) => self.emit(&Event::KeysChanged, tell),
            Err(error) => self.warn(Code::KeysNotRead, error.to_string(), tell),
        }
    }
}
