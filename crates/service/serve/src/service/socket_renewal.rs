//! Recovered connections shall be fast again: `bpf/replay/renew.h` explains the slowness.
//!
//! A separate thread looks at the sockets: the kernel may wait at a socket for as long as some process likes, and the
//! thread that gives the heartbeat must not wait. Without the separate thread the connections are slower for a while.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use dataplane::DataplaneError;

use crate::service::Service;

/// Delay of the first pass after a recovery, and the factor from pass to pass.
const FIRST_PASS_DELAY: Duration = Duration::from_millis(10);
const PASS_DELAY_FACTOR: u32 = 2;
/// After this silence of a client, congestion control has forgotten the replay anyway: BBR remembers the shortest round
/// trip for 10 s.
const LAST_PASS_AFTER: Duration = Duration::from_secs(10);

/// The thread, by the channel that tells of recovered connections. The thread ends with the channel; no thread waits
/// for that end.
#[derive(Debug, Default)]
pub(crate) struct Renewal(Option<Sender<()>>);

impl Renewal {
    /// `look` renews the sockets that are due, and returns the number of connections for the next look.
    fn by(look: impl Fn() -> Result<usize, DataplaneError> + Send + 'static) -> Self {
        let (recovered, hear) = channel();
        let thread = thread::Builder::new().name("renewal".to_owned());
        match thread.spawn(move || renew(&hear, look)) {
            Ok(_) => Self(Some(recovered)),
            Err(error) => {
                tracing::warn!(%error, "no thread that looks at recovered sockets");
                Self(None)
            }
        }
    }

    /// Returns whether the thread receives.
    fn recovered(&self) -> bool {
        let thread = self.0.as_ref();
        thread.is_some_and(|thread| thread.send(()).is_ok())
    }
}

impl Service {
    /// Connections were recovered.
    pub(crate) fn schedule_socket_renewal(&mut self) {
        if self.socket_renewal.recovered() {
            return;
        }
        match self.resources.plane.renewer() {
            Ok(renewer) => {
                self.socket_renewal = Renewal::by(move || renewer.look());
                self.socket_renewal.recovered();
            }
            Err(error) => tracing::warn!(%error, "recovered sockets are not renewed"),
        }
    }
}

/// After each recovery looks again and again, until all is done or would have come without a look.
fn renew(recovered: &Receiver<()>, look: impl Fn() -> Result<usize, DataplaneError>) {
    while recovered.recv().is_ok() {
        let mut pause = Duration::ZERO;
        while pause <= LAST_PASS_AFTER {
            match recovered.recv_timeout(pause) {
                Ok(()) => {
                    pause = Duration::ZERO;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            match look() {
                Ok(0) => break,
                Ok(_) => pause = (pause * PASS_DELAY_FACTOR).max(FIRST_PASS_DELAY),
                Err(error) => {
                    tracing::warn!(%error, "recovered sockets are not renewed");
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    /// A socket that is locked for ever holds up this thread alone.
    #[test]
    fn blocked_pass_does_not_block_service() {
        let (looks, looking) = sync_channel(0);
        let (never, ends) = sync_channel::<()>(0);
        let ends = std::sync::Mutex::new(ends);
        let renewal = Renewal::by(move || {
            let _ = looks.send(());
            let ends = ends.lock().expect("the only one");
            let _ = ends.recv();
            Ok(0)
        });
        assert!(renewal.recovered());
        looking.recv().expect("it looks");
        assert!(renewal.recovered());
        drop(renewal);
        drop(never);
    }

    #[test]
    fn unfinished_sockets_get_another_pass() {
        let (looks, looking) = sync_channel(0);
        let left = std::sync::Mutex::new(3);
        let renewal = Renewal::by(move || {
            let mut left = left.lock().expect("the only one");
            *left -= 1;
            let _ = looks.send(*left);
            Ok(*left)
        });
        renewal.recovered();
        let all: Vec<usize> = looking.iter().take(3).collect();
        assert_eq!(all, [2, 1, 0]);
    }

    /// And the next recovery tries again.
    #[test]
    fn failed_pass_keeps_thread() {
        let (looks, looking) = sync_channel(0);
        let renewal = Renewal::by(move || {
            let _ = looks.send(());
            Err(DataplaneError::Missing("renew"))
        });
        for _ in 0..3 {
            assert!(renewal.recovered());
            looking.recv().expect("it looks");
        }
    }
}
