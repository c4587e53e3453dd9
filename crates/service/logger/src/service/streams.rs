//! The loop's side of the control streams.

use std::{
    cmp::Reverse,
    io,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use protocol::{
    control::{Attach, ErrorCode, Request, Response},
    link::{self, LinkKey},
    mirror,
};
use rand::{TryRngCore, rngs::OsRng};

use super::{
    Event, Service,
    client::{Client, ClientError, Over},
    reload,
};
use crate::link::{Greeting, Inherited, answer_standby};

/// Limit of control streams, streams without a proven key included: well below the usual limit of descriptors.
const MAX_CLIENTS: usize = 512;
/// Limit of reads before the answer to a barrier: more than the sockets can hold of datagrams of any size.
const DRAIN: usize = 256;

impl Service {
    pub(super) fn accept(&mut self, tell: &mut dyn FnMut(&Event)) {
        let now = Instant::now();
        for (via, sockets) in self.sockets.iter().enumerate() {
            loop {
                let (stream, remote) = match sockets.listener.accept() {
                    Ok(accepted) => accepted,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The peer has closed already, or descriptors are used up: the next loop iteration tries again.
                    Err(_) => break,
                };
                if self.clients.len() >= MAX_CLIENTS {
                    let reason = format!("there are {MAX_CLIENTS} connections already");
                    self.refusals
                        .refused(remote, reason, now)
                        .iter()
                        .for_each(&mut *tell);
                    continue;
                }
                // The stream may use a key that was added a moment ago.
                reload(&mut self.keys, tell);
                match Client::accept(stream, remote, via, Arc::clone(&self.keys), now) {
                    Ok(client) => self.clients.push(client),
                    Err(error) => {
                        let refused = self.refusals.refused(remote, error.to_string(), now);
                        refused.iter().for_each(&mut *tell);
                    }
                }
            }
        }
    }

    /// Reads from the ready clients, and responds.
    pub(super) fn hear(&mut self, ready: &[bool], tell: &mut dyn FnMut(&Event)) {
        // Streams accepted meanwhile come in the next loop iteration. Serving hosts come before candidates: a pause
        // of the logger must not cost a serving host the service.
        let heard = 0..ready.len().min(self.clients.len());
        let (first, then): (Vec<usize>, Vec<usize>) =
            heard.partition(|at| self.clients[*at].serves);
        let mut gone = Vec::new();
        for at in first.into_iter().chain(then) {
            if let Err(error) = self.hear_one(at, ready[at], tell) {
                gone.push((at, error));
            }
        }
        // From the last: a removed client is replaced by the last client.
        gone.sort_by_key(|(at, _)| Reverse(*at));
        for (at, error) in gone {
            self.dismiss(at, &error, tell);
        }
    }

    fn hear_one(
        &mut self,
        at: usize,
        ready: bool,
        tell: &mut dyn FnMut(&Event),
    ) -> Result<(), ClientError> {
        if ready && self.clients[at].wants_read() {
            self.clients[at].read()?;
        }
        while let Some(request) = self.clients[at].request()? {
            let now = self.now();
            let session = self.clients[at].instance;
            let session = session.and_then(|instance| self.sessions.get_mut(instance));
            session
                .into_iter()
                .for_each(|session| session.on_activity(now));
            if let Some(who) = &self.clients[at].claims {
                self.leases.heard(who, now);
            }
            match (self.clients[at].instance, request) {
                (_, Request::Lease(request)) => self.lease(at, &request, tell)?,
                (None, Request::Claim(claim)) => self.claim(at, &claim, tell)?,
                (None, Request::GiveUp { service }) => self.give_up(at, service, tell)?,
                (None, Request::Attach(attach)) => self.attach(at, &attach, tell)?,
                (
                    None,
                    Request::Follow {
                        service,
                        edition,
                        streams,
                    },
                ) => {
                    self.follow(at, service, edition, &streams);
                }
                (
                    None,
                    ref request @ (Request::StoredImage { ref service }
                    | Request::ReadStoredImage { ref service, .. }),
                ) => {
                    let client = &mut self.clients[at];
                    client.over = Some(Over::HasImages);
                    let session = self.sessions.followed(service, client.key_name());
                    client.say(&answer_standby(session, request))?;
                }
                (None, Request::Connections) => self.connections_followed(at)?,
                (Some(instance), Request::Rekey) => {
                    if let (Ok((up, down)), Some(session)) =
                        (fresh_keys(), self.sessions.get_mut(instance))
                    {
                        let keys = session.rekey(up, down);
                        self.clients[at].say(&Response::Keys(keys))?;
                    }
                }
                (Some(instance), Request::Shutdown) => {
                    self.sessions.end(instance);
                    if let Some(who) = &self.clients[at].claims {
                        self.leases.withdraw(who);
                    }
                }
                (Some(instance), Request::InUse { session }) => {
                    self.sessions.in_use(instance, session, &mut self.out);
                }
                (Some(instance), request) => {
                    if matches!(request, Request::Barrier { .. }) {
                        self.drain(tell);
                    }
                    let Some(session) = self.sessions.get_mut(instance) else {
                        return Err(ClientError::Replaced);
                    };
                    for answer in session.answer(self.rpc, &request, &mut self.out) {
                        self.clients[at].say(&answer)?;
                    }
                }
                (None, _) => return Err(ClientError::OutOfOrder),
            }
        }
        Ok(())
    }

    /// Records the waiting datagrams, as many as the sockets can hold.
    fn drain(&mut self, tell: &mut dyn FnMut(&Event)) {
        for _ in 0..DRAIN * super::BATCHES {
            let (_, more) = self.batch(tell);
            if !more {
                return;
            }
        }
    }

    fn attach(
        &mut self,
        at: usize,
        attach: &Attach,
        tell: &mut dyn FnMut(&Event),
    ) -> Result<(), ClientError> {
        let greeting = match greeting() {
            Ok(greeting) => greeting,
            Err(error) => {
                let message = format!("no randomness for keys: {error}");
                return self.clients[at].say(&Response::Error {
                    code: ErrorCode::Internal,
                    message,
                });
            }
        };
        let instance = attach.instance;
        let frames = match common_versions(attach) {
            Ok(frames) => frames,
            Err(refused) => {
                let client = &mut self.clients[at];
                client.say(&Response::Error {
                    code: ErrorCode::NoCommonVersion,
                    message: refused.to_string(),
                })?;
                client.flush()?;
                return Err(refused);
            }
        };
        if self.leases.is_over(&attach.service, instance) {
            // The host may not know yet. A new session of this host would count as the newest session.
            let message = format!("{} is served by another host", attach.service);
            return self.clients[at].say(&Response::Error {
                code: ErrorCode::StillServed,
                message,
            });
        }
        let inherited = self.inherit(at, attach, tell)?;
        // An older stream of the instance, or of the inherited instance, gets no more requests.
        let older = [Some(instance), inherited.map(|earlier| earlier.instance)];
        for client in &mut self.clients {
            if client.instance.is_some() && older.contains(&client.instance) {
                client.instance = None;
                client.over = Some(Over::Replaced);
            }
        }
        let now = self.now();
        let client = &mut self.clients[at];
        let peer = client.peer(attach);
        let session = self.sessions.number(instance).unwrap_or(0);
        let (kept, keys) =
            self.sessions
                .attach(attach, peer, client.key_name(), &greeting, &mut self.out);
        if let Some(session) = self.sessions.get_mut(instance) {
            session.on_activity(now);
        }
        client.instance = Some(instance);
        if let Some(earlier) = inherited {
            tell(&Event::Inherited {
                service: attach.service.clone(),
                instance: format!("{instance:016x}"),
                earlier: format!("{:016x}", earlier.instance),
                connections: earlier.connections,
            });
        }
        tell(&Event::Attached {
            service: attach.service.clone(),
            instance: format!("{instance:016x}"),
            from: client.remote,
            key: client.key_name().to_owned(),
            kept,
        });
        client.say(&Response::Attached {
            pid: std::process::id(),
            kept,
            session,
            keys,
            frames,
        })
    }

    /// Moves the records of an earlier instance to the new instance, if the attachment asks for that and there are
    /// records.
    fn inherit(
        &mut self,
        at: usize,
        attach: &Attach,
        tell: &mut dyn FnMut(&Event),
    ) -> Result<Option<Inherited>, ClientError> {
        if !attach.inherit {
            return Ok(None);
        }
        // After a pause of the logger other hosts only seem silent: read their datagrams first.
        self.drain(tell);
        let now = self.now();
        let client = &mut self.clients[at];
        let peer = client.peer(attach);
        let granted = self.leases.serves(&attach.service, attach.instance);
        let key = client.key_name();
        let inherited = self
            .sessions
            .inherit(attach, peer, key, granted, now, &mut self.out);
        if let Err(not_yet) = &inherited {
            client.say(&Response::Error {
                code: not_yet.code(),
                message: not_yet.to_string(),
            })?;
            client.flush()?;
        }
        Ok(inherited?)
    }

    /// Ends a control stream.
    pub(super) fn dismiss(&mut self, at: usize, why: &ClientError, tell: &mut dyn FnMut(&Event)) {
        let client = self.clients.swap_remove(at);
        let Some(instance) = client.instance else {
            if client.over.is_none() && client.asks.is_none() && client.replication.is_none() {
                let refused = self
                    .refusals
                    .refused(client.remote, why.to_string(), Instant::now());
                refused.iter().for_each(&mut *tell);
            }
            return;
        };
        let now = self.now();
        self.sessions.detach(instance, now);
        for (attach, session) in self.sessions.iter() {
            if attach.instance == instance {
                let counts = session.statistics();
                tell(&Event::Detached {
                    service: attach.service.clone(),
                    instance: format!("{instance:016x}"),
                    reason: why.to_string(),
                    segments: counts.segments,
                    refused: counts.refused(),
                });
            }
        }
    }

    /// Sends the notices to the services.
    pub(super) fn tell_notices(&mut self) {
        for client in &mut self.clients {
            let session = client.instance.and_then(|i| self.sessions.get_mut(i));
            let Some(session) = session else { continue };
            while client.wants_read()
                && let Some(notice) = session.notice()
            {
                if client.say(&notice).is_err() {
                    // The next read finds the broken stream.
                    break;
                }
            }
        }
    }

    /// Answers the barriers whose earlier entries are all written.
    pub(super) fn answer_barriers(&mut self) {
        while let Some((instance, token)) = self.out.drained() {
            let asks = |client: &&mut Client| client.instance == Some(instance);
            // Without a client: the next stream of this instance repeats the question.
            if let Some(client) = self.clients.iter_mut().find(asks) {
                let _ = client.say(&Response::Drained { token });
            }
        }
    }

    pub(super) fn flush(&mut self, tell: &mut dyn FnMut(&Event)) {
        for at in (0..self.clients.len()).rev() {
            if self.clients[at].wants_write()
                && let Err(error) = self.clients[at].flush()
            {
                self.dismiss(at, &error, tell);
            }
        }
    }
}

/// The version of the mirror frame for a host that attaches. The version of the link comes with the link keys.
fn common_versions(attach: &Attach) -> Result<u8, ClientError> {
    if link::VERSIONS.agree(attach.link).is_none() {
        return Err(ClientError::LinkVersion(attach.link));
    }
    let frames = mirror::VERSIONS.agree(attach.frames);
    frames.ok_or(ClientError::FrameVersion(attach.frames))
}

fn fresh_keys() -> io::Result<(LinkKey, LinkKey)> {
    let mut keys = ([0; 16], [0; 16]);
    OsRng
        .try_fill_bytes(&mut keys.0)
        .map_err(io::Error::other)?;
    OsRng
        .try_fill_bytes(&mut keys.1)
        .map_err(io::Error::other)?;
    Ok((LinkKey(keys.0), LinkKey(keys.1)))
}

fn greeting() -> io::Result<Greeting> {
    let (up, down) = fresh_keys()?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanoseconds = since.unwrap_or_default().as_nanos();
    Ok(Greeting {
        up,
        down,
        counter: u64::try_from(nanoseconds).unwrap_or(u64::MAX / 2),
    })
}
