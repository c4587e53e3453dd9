//! The end of the service, when it is asked for.

use std::{
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use recovery::{GaveUp, Stage};
use rustix::event::{PollFd, PollFlags};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use supervise::{TcpState, destroy_sockets};

use super::{Ending, Service, tell_manager};
use crate::{
    clock,
    error::{ServeError, SystemContext},
    events::Happening,
};

/// How long translated connections may take to end when the service is stopped.
const LINGER: Duration = Duration::from_secs(3);
/// Between two looks at connections that are to end.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

impl Service {
    pub(super) fn stop(&mut self, signal: i32) -> Result<Ending, ServeError> {
        self.tell(Happening::Stopping { signal });
        if self.has_standby() {
            return self.hand_over(Ending::HandedOver);
        }
        tell_manager(NotifyState::Stopping);
        self.ground.plane.stopping(true)?;
        self.tell_those_who_wait(GaveUp::Stopped)?;
        if let Some(north) = &mut self.north {
            north.ends();
        }
        match self.server.take() {
            Some(mut server) => {
                server.stop(&self.ground.cgroup, self.config.grace)?;
            }
            None => self.ground.cgroup.kill()?,
        }
        self.linger()?;
        self.end_connections()?;
        Ok(Ending::Stopped)
    }

    /// Nobody will come back for clients whose server has died: they are told now, also those that only listen.
    pub(super) fn tell_those_who_wait(&mut self, why: GaveUp) -> Result<(), ServeError> {
        if self.recovery.stage() != Stage::Serving {
            self.recovery.give_up(why);
            self.act()?;
        }
        Ok(())
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
            self.ground.plane.heartbeat()?;
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Without the address no socket can send what the dead server has left in it, and its client would wait for ever. A client
    /// that has not heard everything in time is reset.
    fn end_connections(&self) -> Result<(), ServeError> {
        if self.config.address_device.is_none() {
            return Ok(());
        }
        let addresses = &self.config.addresses;
        let until = clock::now() + self.config.grace;
        while clock::now() < until {
            let mut unheard = 0;
            destroy_sockets(addresses, |_, _, state| {
                unheard += usize::from(has_more_to_send(state));
                false
            })?;
            if unheard == 0 {
                break;
            }
            self.ground.plane.heartbeat()?;
            std::thread::sleep(LOOK_AGAIN);
        }
        destroy_sockets(addresses, |_, _, state| state != TcpState::TimeWait)?;
        Ok(())
    }
}

/// Of a socket that its process has left: data or a FIN is not acknowledged.
fn has_more_to_send(state: TcpState) -> bool {
    matches!(
        state,
        TcpState::FinWait1 | TcpState::Closing | TcpState::LastAck
    )
}

/// Being asked to stop, or to read the keys again. Watched before anything is set up, and for as long as
/// this process serves.
#[derive(Debug)]
pub struct Signals {
    /// The last one, 0 if there was none.
    which: Arc<AtomicUsize>,
    /// Readable when there was one.
    woken: UnixStream,
}

impl Signals {
    /// SIGTERM, SIGINT and SIGHUP have no other effect from here on.
    ///
    /// # Errors
    /// The system does not let us.
    pub fn watch_all() -> Result<Self, ServeError> {
        let doing = "watch signals";
        let (woken, wake) = UnixStream::pair().doing(doing)?;
        woken.set_nonblocking(true).doing(doing)?;
        let which = Arc::new(AtomicUsize::new(0));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            let (which, value) = (Arc::clone(&which), number(signal));
            let wake = wake.try_clone().doing(doing)?;
            signal_hook::flag::register_usize(signal, which, value).doing(doing)?;
            signal_hook::low_level::pipe::register(signal, wake).doing(doing)?;
        }
        Ok(Self { which, woken })
    }

    pub(super) fn try_clone(&self) -> Result<Self, ServeError> {
        Ok(Self {
            which: Arc::clone(&self.which),
            woken: self.woken.try_clone().doing("watch signals")?,
        })
    }

    /// Were we asked to stop?
    pub(super) fn stop(&self) -> bool {
        let which = self.which.load(Ordering::Relaxed);
        which != 0 && which != number(SIGHUP)
    }

    /// The signal that nobody has heeded yet.
    pub(super) fn take(&self) -> Option<i32> {
        let which = self.which.swap(0, Ordering::Relaxed);
        i32::try_from(which).ok().filter(|signal| *signal != 0)
    }

    pub(super) fn watch(&self) -> PollFd<'_> {
        PollFd::new(&self.woken, PollFlags::IN)
    }

    /// What woke us is seen.
    pub(super) fn seen(&self) {
        let mut drain = [0u8; 16];
        let _ = rustix::io::read(&self.woken, &mut drain);
    }
}

/// A signal, as it is kept.
fn number(signal: i32) -> usize {
    usize::try_from(signal).unwrap_or_default()
}
