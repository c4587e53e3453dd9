//! The determinants of a service for its hot standby, as they arrive.

use std::collections::BTreeMap;

use protocol::control::{Edition, Response};

use super::Sessions;

/// Bytes of determinants in one message.
const PIECE_BYTES: usize = 64 << 10;

/// The stream to one hot standby.
#[derive(Debug)]
pub struct Replication {
    service: String,
    /// The edition at the standby, and the lengths of the standby's streams.
    edition: Option<Edition>,
    streams: BTreeMap<u32, u64>,
    /// The standby knows the edition.
    knows_edition: bool,
}

impl Replication {
    /// Replication of this service, to a standby with streams of these lengths.
    #[must_use]
    pub fn new(service: String, edition: Option<Edition>, streams: &[(u32, u64)]) -> Self {
        Self {
            service,
            edition,
            streams: streams.iter().copied().collect(),
            knows_edition: edition.is_some(),
        }
    }

    /// The service.
    #[must_use]
    pub fn service(&self) -> &str {
        &self.service
    }

    /// The next message; `key` is the name of the standby's key.
    pub fn next(&mut self, sessions: &Sessions, key: &str) -> Option<Response> {
        let session = sessions.followed(&self.service, key);
        // A log that begins with an image cannot be replicated from its beginning.
        let session = session.filter(|one| one.kept_determinants().image().is_none());
        let edition = session.and_then(super::Session::edition);
        if !self.knows_edition || edition != self.edition {
            self.knows_edition = true;
            self.edition = edition;
            self.streams.clear();
            return Some(Response::Followed { edition });
        }
        let kept = session?.kept_determinants();
        for (process, length) in kept.streams() {
            let sent = self.streams.entry(process).or_default();
            let from = *sent;
            if from < length {
                let bytes = kept.read(process, from, PIECE_BYTES);
                *sent += bytes.len() as u64;
                return Some(Response::Grown {
                    process,
                    from,
                    bytes,
                });
            }
        }
        None
    }
}
