//! The end of the service, when it is asked for.

use std::{
    os::unix::net::UnixStream,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use recovery::Stage;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{Ending, Service, tell_manager};
use crate::{
    clock,
    error::{ServeError, SystemContext},
    events::Happening,
};

/// How long translated connections may take to end when the service is stopped.
const LINGER: Duration = Duration::from_secs(3);

impl Service {
    pub(super) fn stop(&mut self, signal: i32) -> Result<Ending, ServeError> {
        self.tell(Happening::Stopping { signal });
        tell_manager(NotifyState::Stopping);
        self.ground.plane.stopping(true)?;
        if self.recovery.stage() != Stage::Serving {
            // Nobody will come back: the clients are told now.
            self.recovery.give_up();
            self.act()?;
        }
        match self.server.take() {
            Some(mut server) => {
                server.stop(&self.ground.cgroup, self.config.grace)?;
            }
            None => self.ground.cgroup.kill()?,
        }
        self.linger()?;
        Ok(Ending::Stopped)
    }

    /// Translated connections end properly only while the programs are there.
    pub(super) fn linger(&mut self) -> Result<(), ServeError> {
        let until = clock::now() + LINGER;
        let open = |flow: &ssw::Flow| flow.mode == ssw::Mode::Spliced && flow.closed_ns == 0;
        while clock::now() < until
            && self
                .ground
                .plane
                .flows()?
                .iter()
                .any(|(_, flow)| open(flow))
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// A descriptor that becomes readable when we are asked to stop; the signal is in `which`.
pub(super) fn watch_signals(which: &Arc<AtomicUsize>) -> Result<UnixStream, ServeError> {
    let (read, write) = UnixStream::pair().doing("make a pipe for signals")?;
    read.set_nonblocking(true)
        .doing("make a pipe for signals")?;
    for (signal, value) in [(SIGTERM, TERM), (SIGINT, INT), (SIGHUP, HUP)] {
        signal_hook::flag::register_usize(signal, Arc::clone(which), value)
            .doing("watch signals")?;
        let write = write.try_clone().doing("make a pipe for signals")?;
        signal_hook::low_level::pipe::register(signal, write).doing("watch signals")?;
    }
    Ok(read)
}

const TERM: usize = 15;
const INT: usize = 2;
/// Not to stop: to read the key file again, and to replace the keys of the link.
pub(super) const HUP: usize = 1;
