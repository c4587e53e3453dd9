//! The thread that accepts clients.

use std::{
    io,
    os::unix::net::{UnixListener, UnixStream},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

/// Pause after an accept without a free descriptor or thread.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Answers all clients forever, each client in a separate thread.
pub(crate) fn listen_to<A>(listener: &UnixListener, answer: impl Fn() -> A)
where
    A: FnOnce(UnixStream) -> io::Result<()> + Send + 'static,
{
    for asker in listener.incoming() {
        let answer = answer();
        let answered = move |asker| {
            if let Err(error) = answer(asker) {
                tracing::debug!("a client is gone: {error}");
            }
        };
        let begun = asker.and_then(|asker| thread::Builder::new().spawn(move || answered(asker)));
        if let Err(error) = begun {
            // Descriptors or threads are short. The client sees a closed connection.
            tracing::warn!("a client cannot be answered: {error}");
            thread::sleep(RETRY_PAUSE);
        }
    }
}

/// Increases a count while this value exists.
#[derive(Debug)]
pub(crate) struct CountGuard<'a>(&'a AtomicUsize);

impl<'a> CountGuard<'a> {
    pub(crate) fn one(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
