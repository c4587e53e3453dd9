//! Start after the end of another host, and end when another host starts.

use std::{os::fd::AsFd, path::Path, time::Duration};

use lease::Speech;
use north_host::layout;
use recovery::{HEARTBEAT_INTERVAL, Stage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sd_notify::NotifyState;
use supervise::destroy_sockets;
use wire::FlowKey;

use super::{Ending, Service, notify_manager, opened_by_server};
use crate::{
    clock,
    config::{ServeConfig, in_words},
    error::{ServeError, SystemContext},
    events::{Code, Event},
    image_prefetch::{ImagePrefetch, PrefetchedImage},
    lease_client::{LeaseClient, Position},
    standby_eligibility::other_determinants,
};

/// Wait for a grant of the logger before the warning.
const GRANT_WARNING_DELAY: Duration = Duration::from_secs(2);
/// Time for the logger to record the last output.
const RECORD_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Time from SIGKILL to the end of the server's processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Attempts to destroy all sockets of the service.
const SOCKET_DESTROY_ATTEMPTS: u32 = 5;

/// The last events about the lease.
#[derive(Debug, Default)]
pub(super) struct LeaseReport {
    standby: bool,
    superseded: bool,
    failure: Option<String>,
}

/// A standby, and the host that needs a lease because of a standby.
#[derive(Default)]
pub(super) struct Standby {
    reported: LeaseReport,
    /// Images that arrive while this host is a standby.
    pub(super) images: Option<ImagePrefetch>,
}

impl Standby {
    /// The serving host makes images: they come here before they are needed.
    fn prefetch_images(&mut self, config: &ServeConfig, run_dir: &Path) {
        match ImagePrefetch::start(config, run_dir) {
            Ok(images) => self.images = images,
            // A takeover reports the reason, or fetches the image.
            Err(error) => tracing::debug!(%error, "no image is fetched ahead"),
        }
    }

    fn image_event(&self) -> Option<Event> {
        Some(match self.images.as_ref()?.news()? {
            Ok(PrefetchedImage { bytes, took }) => Event::ImagePrefetched {
                image_bytes: bytes,
                took_ms: clock::millis(took),
            },
            Err(why) => Event::Warning {
                code: Code::ImageNotPrefetched,
                reason: format!(
                    "the server's checkpoint is not fetched before a takeover, and a takeover may fail for the same reason: {why}"
                ),
            },
        })
    }
}

impl Service {
    /// Wait until this host may serve. Until then, this host has only the programs of the service, which drop every
    /// packet. Returns the ending, if this host does not serve.
    pub(super) fn await_epoch(&mut self) -> Result<Option<Ending>, ServeError> {
        let alone_at = if self.config.standby {
            None
        } else {
            self.survey_timeouts().none.map(|none| self.began + none)
        };
        let (mut stands_by, mut warned_of) = (None, None);
        let mut tell_at = Some(clock::now() + GRANT_WARNING_DELAY);
        loop {
            let Some(lease) = &self.resources.lease else {
                return Ok(None);
            };
            lease.seen();
            let position = lease.position();
            if self.should_stop() {
                return Ok(Some(Ending::Stopped));
            }
            if position.superseded.is_some() {
                return Ok(Some(Ending::Superseded)); // to begin again as a new instance
            }
            if let Some(epoch) = position.epoch {
                self.resources.instance.serves_in(epoch)?;
                self.emit(Event::Granted { epoch });
                return Ok(None);
            }
            if let Some(why) = position.claimed {
                return Err(ServeError::AddressClaimed(why));
            }
            let now = clock::now();
            let alone = !position.has_answered && alone_at.is_some_and(|at| now >= at);
            if alone && lease.serve_alone()? {
                self.resources.instance.serves_in(0)?;
                let reason = "the logger does not answer: this host serves, because `outlive serve` says that no other does";
                self.warn(Code::ServesUnheard, reason);
                return Ok(None);
            }
            let heard = position.has_answered;
            if heard {
                self.notify_ready();
            }
            if let Some(epoch) = position.stands_by.filter(|one| stands_by != Some(*one)) {
                stands_by = Some(epoch);
                let host = position.hosts.serves.clone();
                self.emit(Event::StandbyStarted { epoch, host });
                if self.standby.images.is_none() {
                    let run_dir = self.resources.lock.directory().to_owned();
                    self.standby.prefetch_images(&self.config, &run_dir);
                }
            }
            let other = other_determinants(&self.config, position.hosts.determinants);
            if let Some(version) = other.filter(|_| stands_by.is_some() && other != warned_of) {
                self.warn(Code::StandbyOtherVersion, other_version(version));
            }
            warned_of = other.filter(|_| stands_by.is_some());
            if tell_at.take_if(|at| now >= *at).is_some() && stands_by.is_none() {
                self.emit(self.waiting_event(position));
            }
            if let Some(arrived) = self.standby.image_event() {
                self.emit(arrived);
            }
            self.wait_as_standby()?;
        }
    }

    fn waiting_event(&self, position: Position) -> Event {
        if position.has_answered || self.config.standby {
            return Event::Warning {
                code: Code::AwaitsGrant,
                reason: grant_obstacle(position.failure, position.has_answered),
            };
        }
        Event::WaitingForLogger {
            at_most_ms: self.survey_timeouts().none.map(clock::millis),
        }
    }

    /// Waits for the logger, a signal or a request.
    fn wait_as_standby(&mut self) -> Result<(), ServeError> {
        self.heartbeat()?;
        self.extend_start();
        self.attach_new_interfaces()?;
        self.answer_control();
        let until = clock::now() + HEARTBEAT_INTERVAL;
        loop {
            self.replicate()?;
            if !self.wait_for_lease(until)? {
                break;
            }
        }
        self.signals.seen();
        Ok(())
    }

    /// `true` if only the replication has input.
    fn wait_for_lease(&self, until: Duration) -> Result<bool, ServeError> {
        let Some(lease) = &self.resources.lease else {
            return Ok(false);
        };
        let mut fds = vec![
            PollFd::from_borrowed_fd(lease.as_fd(), PollFlags::IN),
            self.signals.watch(),
        ];
        self.control.watch(&mut fds);
        let others = fds.len();
        self.watch_replica(&mut fds);
        let left = until.saturating_sub(clock::now());
        let timeout = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).doing("wait for the logger's word"),
        }
        let has = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let (others, followed) = fds.split_at(others);
        Ok(followed.iter().any(has) && !others.iter().any(has))
    }

    /// The end of the service, if another host serves now.
    pub(super) fn poll_lease(&mut self) -> Result<Option<Ending>, ServeError> {
        let Some(lease) = &self.resources.lease else {
            return Ok(None);
        };
        lease.seen();
        let position = lease.position();
        self.set_leased(position.speech != Speech::Free);
        if let Some(epoch) = position.superseded {
            if !std::mem::replace(&mut self.standby.reported.superseded, true) {
                let host = position.hosts.serves.clone();
                self.emit(Event::Superseded { epoch, host });
            }
            self.kill_behind_fence()?;
            self.destroy_all_sockets()?;
            return Ok(Some(Ending::Superseded));
        }
        if let Some(epoch) = position.epoch {
            self.resources.instance.serves_in(epoch)?;
        }
        let told = &mut self.standby.reported;
        let mut news = Vec::new();
        // A standby that was silent for a moment is still a standby: this host needs a lease until the right to send
        // has no end.
        let required = position.standby || told.standby && position.speech != Speech::Free;
        if required != told.standby && position.failure.is_none() {
            told.standby = required;
            let host = position.hosts.stands_by.clone().filter(|_| required);
            news.push(Event::LeaseRequired { required, host });
        }
        if position.speech != Speech::Free && position.failure != told.failure {
            if let Some(why) = &position.failure {
                news.push(Event::Warning {
                    code: Code::LeaseNotProlonged,
                    reason: format!("the lease is not renewed: {why}"),
                });
            }
            told.failure = position.failure;
        }
        for event in news {
            self.emit(event);
        }
        Ok(None)
    }

    /// Whether another host would take over at once, with the logger's records.
    pub(super) fn has_standby(&mut self) -> bool {
        let lease = self.resources.lease.as_ref();
        let position = lease.and_then(LeaseClient::position_now);
        position.is_some_and(|position| position.standby)
            && self
                .resources
                .logger
                .link()
                .is_some_and(|link| link.is_up())
    }

    /// With a lease, clients wait for a lost logger: this host must not send without the logger anyway.
    fn set_leased(&mut self, leased: bool) {
        if std::mem::replace(&mut self.is_leased, leased) == leased {
            return;
        }
        self.update_loss_policy();
    }

    /// Gives the loss policy to the link.
    pub(super) fn update_loss_policy(&mut self) {
        let policy = self.policy();
        if let (Some(link), Some(policy)) = (self.resources.logger.link(), policy) {
            link.set_policy(policy);
        }
    }

    /// The reason against a switchover now.
    pub(super) fn switchover_obstacle(&mut self) -> Option<&'static str> {
        if self.resources.lease.is_none() {
            return Some(
                "the service has no lease, so no other host can take over: that takes --logger and --address-device",
            );
        }
        if !self.has_standby() {
            let unheard = self
                .resources
                .logger
                .link()
                .is_none_or(|link| !link.is_up());
            return Some(match unheard {
                true => {
                    "the logger does not answer, and a switchover needs the logger: try again when the logger answers"
                }
                false => "no standby is registered: start `outlive standby` on another host",
            });
        }
        if self.recovery.stage() != Stage::Serving {
            return Some("the service is being recovered: try again when it serves");
        }
        None
    }

    /// Let the standby continue every connection: the logger has everything that clients were sent, and this host sends
    /// no more.
    pub(super) fn hand_over(&mut self, ending: Ending) -> Result<Ending, ServeError> {
        if ending == Ending::HandedOver {
            notify_manager(NotifyState::Stopping);
        }
        self.kill_behind_fence()?;
        self.flush_record()?;
        // After the flush of the record: ends of connections that the server had closed are not the end of the record.
        self.destroy_all_sockets()?;
        self.emit(Event::HandedOver);
        Ok(ending)
    }

    /// Kills the server behind the fence: clients notice no end.
    pub(super) fn kill_behind_fence(&mut self) -> Result<(), ServeError> {
        // The end of a connection that is noted here is not the client's.
        self.resources.plane.gate()?;
        if let Some(lease) = &self.resources.lease {
            lease.silence()?;
        }
        self.resources.cgroup.kill()?;
        self.resources.cgroup.wait_empty(KILL_TIMEOUT)?;
        self.server = None;
        self.reap();
        Ok(())
    }

    /// Destroys all sockets of the service's connections: the kernel would send from the sockets when this host serves
    /// again, if not before.
    pub(super) fn destroy_all_sockets(&self) -> Result<(), ServeError> {
        let opened = opened_by_server(&self.resources.plane.flows()?);
        let addresses = self.all_addresses(&opened);
        for _ in 0..SOCKET_DESTROY_ATTEMPTS {
            let destroyed = destroy_sockets(&addresses, |local, remote, _| {
                self.is_of_service(FlowKey::new(remote, local), &opened)
            })?;
            if destroyed.remaining == 0 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let addresses = in_words(&self.config.addresses).join(", ");
        Err(ServeError::SocketsLeft(addresses))
    }

    /// Sends recorded output that the logger lacks.
    fn flush_record(&mut self) -> Result<(), ServeError> {
        let token = u64::MAX;
        let until = clock::now() + RECORD_FLUSH_TIMEOUT;
        if let Some(link) = self.resources.logger.link() {
            link.drain(token, clock::now())?;
        }
        while clock::now() < until {
            let Some(link) = self.resources.logger.link() else {
                break;
            };
            link.fetch()?;
            self.poll_logger()?;
            let link = self.resources.logger.link();
            if link.is_none_or(|link| link.draining() != Some(token)) {
                break;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }
}

fn other_version(serves: u32) -> String {
    let own = layout::VERSION;
    format!(
        "the serving host records version {serves} of the determinants, and this host replays version {own}: a takeover loses the server's state and all connections. Give both hosts the same version of outlive (`outlive version`)"
    )
}

fn grant_obstacle(failure: Option<String>, heard: bool) -> String {
    match failure {
        Some(why) => format!("waiting for the logger: {why}"),
        None if heard => "this host may not take over yet: no host serves, or the one that does has a version or options \
                          without leases, or has died when it had no standby; start the first with `outlive serve`, and \
                          that one again on its own host"
            .into(),
        None => "waiting for the logger".into(),
    }
}
