//! Who stands by and already does what the server does hears what that one's processes are told as it comes.

use std::collections::BTreeMap;

use protocol::control::{Edition, Response};

use super::Sessions;

/// How much is told at a time, bytes.
const PIECE: usize = 64 << 10;

/// One of them.
#[derive(Debug)]
pub struct Follower {
    service: String,
    /// What it has, and how much of its streams.
    edition: Option<Edition>,
    streams: BTreeMap<u32, u64>,
    /// It knows of what edition it hears.
    is_told: bool,
}

impl Follower {
    /// Of this service. It has streams of these lengths already.
    #[must_use]
    pub fn new(service: String, edition: Option<Edition>, streams: &[(u32, u64)]) -> Self {
        Self {
            service,
            edition,
            streams: streams.iter().copied().collect(),
            is_told: edition.is_some(),
        }
    }

    /// The service.
    #[must_use]
    pub fn service(&self) -> &str {
        &self.service
    }

    /// The next thing that it is to hear; `key` is the name of the key that it has proven to have.
    pub fn next(&mut self, sessions: &Sessions, key: &str) -> Option<Response> {
        let session = sessions.followed(&self.service, key);
        // What begins with an image nobody can follow from the beginning.
        let session = session.filter(|one| one.kept_determinants().image().is_none());
        let edition = session.and_then(super::Session::edition);
        if !self.is_told || edition != self.edition {
            self.is_told = true;
            self.edition = edition;
            self.streams.clear();
            return Some(Response::Followed { edition });
        }
        let kept = session?.kept_determinants();
        for (process, length) in kept.streams() {
            let heard = self.streams.entry(process).or_default();
            let from = *heard;
            if from < length {
                let bytes = kept.read(process, from, PIECE);
                *heard += bytes.len() as u64;
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
