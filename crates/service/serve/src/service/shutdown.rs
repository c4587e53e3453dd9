//! The end of the service on request.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use recovery::GaveUp;
use rustix::event::{PollFd, PollFlags};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use supervise::{TcpState, destroy_socket, destroy_sockets};
use wire::FlowKey;

use super::{Ending, Service, notify_manager, opened_by_server};
use crate::{
    clock,
    error::{ServeError, SystemContext},
    events::Event,
};

/// Time for translated connections to end when the service stops.
const TRANSLATED_CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval between two looks at connections that end.
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Service {
    pub(super) fn stop(&mut self, signal: i32) -> Result<Ending, ServeError> {
        self.emit(Event::Stopping { signal });
        if self.has_standby() {
            return self.hand_over(Ending::HandedOver);
        }
        notify_manager(NotifyState::Stopping);
        self.resources.plane.stopping(true)?;
        self.reset_waiting_clients(GaveUp::Stopped)?;
        if let Some(north) = &mut self.north {
            north.ends();
        }
        match self.server.take() {
            Some(mut server) => {
                server.stop(&self.resources.cgroup, self.config.grace)?;
            }
            // A daemon has left the first process, or no server runs.
            None => supervise::stop_daemon(&self.resources.cgroup, self.config.grace)?,
        }
        self.await_translated_closes()?;
        Ok(Ending::Stopped)
    }

    /// No server will return for clients whose server has died: reset all clients now, also clients that only receive.
    /// A connection may have ended since the last look, or the replay may be complete: such a client gets no RST.
    pub(super) fn reset_waiting_clients(&mut self, why: GaveUp) -> Result<(), ServeError> {
        self.progress()?;
        self.recovery.give_up(why);
        self.execute().map(drop)
    }

    /// Translated connections end properly only while the programs are there.
    pub(super) fn await_translated_closes(&mut self) -> Result<(), ServeError> {
        let until = clock::now() + TRANSLATED_CLOSE_TIMEOUT;
        let open = |flow: &south_model::Flow| {
            flow.mode == south_model::Mode::Spliced && flow.closed_ns == 0
        };
        while clock::now() < until
            && self
                .resources
                .plane
                .flows()?
                .iter()
                .any(|(_, flow)| open(flow))
        {
            self.heartbeat()?;
            std::thread::sleep(CLOSE_POLL_INTERVAL);
        }
        Ok(())
    }

    /// If the address goes with the service, no socket can send the data that the dead server has left in the socket,
    /// and the client would wait for ever. The clients are sent this data now, for up to `--stop-timeout`; slower
    /// clients are reset.
    pub(super) fn close_connections(&mut self) -> Result<(), ServeError> {
        let flows = self.resources.plane.flows()?;
        let opened = opened_by_server(&flows);
        let mut addresses = self.all_addresses(&opened);
        let own = self.vip.as_ref();
        addresses.retain(|address| own.is_some_and(|own| own.has(address.ip())));
        let until = clock::now().saturating_add(self.config.grace);
        let mut unacknowledged = self.unacknowledged(&addresses, &opened)?;
        while !unacknowledged.is_empty() && clock::now() < until {
            self.heartbeat()?;
            self.poll_addresses()?;
            std::thread::sleep(CLOSE_POLL_INTERVAL);
            unacknowledged = self.unacknowledged(&addresses, &opened)?;
        }
        for key in unacknowledged {
            // Not by the kernel: in some states a destroyed socket sends no RST, and before Linux 6.12 no socket
            // without a process does.
            match self.resources.plane.flow(key)? {
                Some(flow) => self.reset_client(key, flow.id)?,
                None => drop(destroy_socket(key.server(), key.client())?),
            }
        }
        Ok(())
    }

    /// Connections of which the client lacks data or the FIN.
    fn unacknowledged(
        &self,
        addresses: &[SocketAddr],
        opened: &BTreeSet<FlowKey>,
    ) -> Result<Vec<FlowKey>, ServeError> {
        let mut unacknowledged = Vec::new();
        if addresses.is_empty() {
            return Ok(unacknowledged);
        }
        destroy_sockets(addresses, |local, remote, state| {
            let key = FlowKey::new(remote, local);
            if has_more_to_send(state) && self.is_of_service(key, opened) {
                unacknowledged.push(key);
            }
            false
        })?;
        Ok(unacknowledged)
    }
}

/// A socket without a process: data or a FIN is not acknowledged.
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
    /// Number of the last signal, 0 for none.
    which: Arc<AtomicUsize>,
    /// Readable after a signal.
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

    /// A signal that was not handled yet.
    pub(super) fn take(&self) -> Option<i32> {
        let which = self.which.swap(0, Ordering::Relaxed);
        i32::try_from(which).ok().filter(|signal| *signal != 0)
    }

    pub(super) fn watch(&self) -> PollFd<'_> {
        PollFd::new(&self.woken, PollFlags::IN)
    }

    /// Clears the wake-up.
    pub(super) fn seen(&self) {
        let mut drain = [0u8; 16];
        let _ = rustix::io::read(&self.woken, &mut drain);
    }
}

/// The stored form of a signal.
fn number(signal: i32) -> usize {
    usize::try_from(signal).unwrap_or_default()
}
