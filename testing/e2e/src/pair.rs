//! A service on two hosts, and a logger that grants the lease.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lab::{Host, Signal};

use crate::arrange::wait_until;
use crate::loggers::{Logger, protect, status, with_logger_that};
use crate::servers::{SERVER_PORT, Server, test_server_at};
use crate::{EVENT_TIMEOUT, Protected, Scene};

/// The addresses of the service. A host has them only while the host serves.
///
/// # Panics
/// Never: the addresses are constants.
#[must_use]
pub fn addresses() -> [SocketAddr; 2] {
    ["10.0.0.110:8080", "[fd00::110]:8080"].map(|text| {
        let address: SocketAddr = text.parse().expect("an address");
        assert_eq!(address.port(), SERVER_PORT);
        address
    })
}

/// A server of the server's host, moved to the addresses of the service: in the command and in the configuration.
///
/// # Panics
/// When `configuration` cannot be read or written again.
#[must_use]
pub fn at_addresses(scene: &Scene, mut server: Server, configuration: Option<&str>) -> Server {
    let moved = [scene.ipv4(SERVER_PORT), scene.ipv6(SERVER_PORT)];
    let moved: Vec<(SocketAddr, SocketAddr)> = moved.into_iter().zip(addresses()).collect();
    let instead = |text: &str| {
        moved.iter().fold(text.to_owned(), |text, (own, shared)| {
            text.replace(&own.ip().to_string(), &shared.ip().to_string())
        })
    };
    for word in &mut server.command {
        *word = instead(word);
    }
    if let Some(name) = configuration {
        let path = scene.directory().join(name);
        let text = fs::read_to_string(&path).expect("its configuration");
        fs::write(path, instead(&text)).expect("written");
    }
    for address in &mut server.addresses {
        let shared = moved.iter().find(|(own, _)| own == address);
        *address = shared.expect("an address of the host").1;
    }
    server
}

/// How `serve` is told that the addresses come with the service.
pub const ADDRESS_DEVICE_FLAGS: [&str; 2] = ["--address-device", "eth0"];

/// For how long a host may serve after a sign of life: two seconds, or the milliseconds that `OUTLIVE_LEASE_MS`
/// says. A machine that stands still for longer (virtual ones do, for the default of `outlive`) sees takeovers that
/// no test has caused.
///
/// # Panics
/// When the variable is no number.
#[must_use]
pub fn lease() -> Duration {
    let text = std::env::var("OUTLIVE_LEASE_MS");
    Duration::from_millis(text.map_or(2000, |text| text.parse().expect("a number")))
}

/// A service on two hosts: `first` serves, `second` stands by.
#[derive(Debug)]
pub struct Pair {
    // Dropped in this order.
    /// The host that serves.
    pub first: Protected,
    /// The standby.
    pub second: Protected,
    /// Grants the lease.
    pub logger: Logger,
    /// The server of both hosts.
    pub server: Server,
    /// The lab; clients may share the scene while the hosts change roles.
    pub scene: Arc<Scene>,
    /// Additional flags of both hosts.
    more: Vec<String>,
}

impl Pair {
    /// Two hosts at 10 and 30, and a logger at 20.
    ///
    /// # Panics
    /// When the first host does not serve, or the second host does not stand by.
    #[must_use]
    pub fn new(label: &str, server: impl FnOnce(&Scene) -> Server) -> Self {
        Self::with(label, &[], &[], server)
    }

    /// The same with a logger and hosts that are told more.
    ///
    /// # Panics
    /// As [`Pair::new`].
    #[must_use]
    pub fn with(
        label: &str,
        logger: &[&str],
        hosts: &[&str],
        server: impl FnOnce(&Scene) -> Server,
    ) -> Self {
        let lease = format!("{}ms", lease().as_millis());
        let more = [&["--lease", &lease], logger].concat();
        let (scene, logger) = with_logger_that(label, &more);
        let server = server(&scene);
        let other = scene.lab.add_host_at("other", 30).expect("a host");
        let first = protect(
            &scene,
            &server,
            &logger,
            &[&ADDRESS_DEVICE_FLAGS[..], hosts].concat(),
        );
        let more: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let flags = flags(&logger, &more);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let second = first.standby(&scene, &other, &server, &flags);
        let this = Self {
            first,
            second,
            logger,
            server,
            scene: Arc::new(scene),
            more,
        };
        this.await_standby();
        this
    }

    /// Of our test server.
    ///
    /// # Panics
    /// As [`Pair::new`].
    #[must_use]
    pub fn with_test_server(label: &str) -> Self {
        Self::new(label, |scene| {
            test_server_at(scene, addresses().to_vec(), &[])
        })
    }

    /// Flags of both hosts.
    #[must_use]
    pub fn flags(&self) -> Vec<String> {
        flags(&self.logger, &self.more)
    }

    /// Another standby on a host of its own.
    ///
    /// # Panics
    /// When the new host does not stand by.
    #[must_use]
    pub fn another(&self, host: &Host, priority: u32) -> Protected {
        let mut flags = self.flags();
        flags.extend(["--priority".to_owned(), priority.to_string()]);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let another = self.first.standby(&self.scene, host, &self.server, &flags);
        another.wait_for("standby_started", 1);
        another
    }

    /// Replaces the additional flags of hosts that start from now on.
    pub fn set_extra_flags(&mut self, more: &[&str]) {
        self.more = more.iter().map(ToString::to_string).collect();
    }

    /// Waits until `second` would take over.
    ///
    /// # Panics
    /// When `second` does not get ready in time.
    pub fn await_standby(&self) {
        self.second.wait_for("standby_started", 1);
        self.first.wait_for("lease_required", 1);
    }

    /// After `second` took over: swaps both, powers the host of the former server on, and starts a standby there.
    ///
    /// # Panics
    /// When the host does not stand by.
    pub fn change_places(&mut self) {
        std::mem::swap(&mut self.first, &mut self.second);
        self.second.power_on();
        self.begin_standby();
        self.await_standby();
    }

    /// Starts the standby on the host of `second`, after all its processes have ended.
    pub fn begin_standby(&mut self) {
        let flags = self.flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        self.second.begin_as("standby", &self.server, &flags);
    }

    /// Makes the standby take over, and waits until the former server stands by.
    ///
    /// # Panics
    /// When the roles do not change in time.
    #[track_caller]
    pub fn fail_over(&mut self, way: FailOver) {
        self.move_service(way, |standby, before| {
            standby.wait_serving(before.serving + 1);
        });
    }

    /// Makes the standby serve, as [`Pair::fail_over`] does, while a client may close a connection at any time.
    /// Without a connection to restore the standby starts a server, and recovers no connection.
    ///
    /// # Panics
    /// When the standby does not serve in time.
    #[track_caller]
    pub fn fail_over_while_clients_leave(&mut self, way: FailOver) {
        self.move_service(way, |standby, before| {
            wait_until("the standby serves", || {
                Counts::served_by(standby) > before.serving + before.started
            });
        });
    }

    #[track_caller]
    fn move_service(&mut self, way: FailOver, wait_for: impl Fn(&Protected, &Counts)) {
        let before = Counts::of(self);
        match way {
            FailOver::PowerOff => {
                self.first.power_off();
                wait_for(&self.second, &before);
                return self.change_places();
            }
            FailOver::Switchover => {
                self.hand_over();
                wait_for(&self.second, &before);
            }
            FailOver::Stop => {
                self.first.kill_serve(Signal::STOP);
                wait_for(&self.second, &before);
                self.first.kill_serve(Signal::CONT);
                self.first.wait_for("superseded", before.superseded + 1);
            }
        }
        self.change_roles(&before);
    }

    /// Has `outlive switchover` hand the service over to the standby. While logger or standby are slow, the standby is
    /// unknown: then the function asks for the switchover again.
    ///
    /// # Panics
    /// When the service refuses the switchover for another reason.
    #[track_caller]
    pub fn hand_over(&self) {
        wait_until("the logger answers a move", || {
            let moved = self
                .first
                .outlive("switchover", &["--json", self.first.name()]);
            // On a busy machine a standby may be silent for a moment, and does not count as one then.
            let reasons = ["the logger does not answer", "no standby is registered"];
            let slow = reasons.iter().any(|reason| moved.stderr.contains(reason));
            let said = || self.first.log();
            assert!(slow || moved.status == Some(0), "{moved:?}\n{}", said());
            !slow
        });
    }

    /// Kills the logger and starts a new logger in the same place, and waits until `first` has found the new logger,
    /// and a standby there.
    ///
    /// # Panics
    /// When `first` does not find both in time.
    #[track_caller]
    pub fn restart_logger(&mut self) {
        let restarts = self.first.events_of("logger_restarted").len();
        self.logger.kill();
        self.logger.replace_dead(&self.scene);
        self.first.wait_for("logger_restarted", restarts + 1);
        // By then an earlier lease has expired: a valid lease is from the new logger.
        thread::sleep(lease());
        self.await_leases();
    }

    /// Waits until `first` has a lease, and `second` would take over.
    ///
    /// # Panics
    /// When that does not happen in time.
    #[track_caller]
    pub fn await_leases(&self) {
        wait_until("one host has a lease, the other stands by", || {
            let (first, second) = (lease_of(&self.first), lease_of(&self.second));
            first.ends_with("ms more") && second.starts_with("standing by") && !second.contains(';')
        });
    }

    /// After `second` took over: waits until `first` notices and stands by, then swaps both. `before` holds the
    /// counts from before the change.
    ///
    /// # Panics
    /// When the roles do not change in time.
    #[track_caller]
    pub fn change_roles(&mut self, before: &Counts) {
        self.first.wait_for("standby_started", before.stood_by + 1);
        self.second.wait_for("lease_required", before.leased + 1);
        std::mem::swap(&mut self.first, &mut self.second);
    }

    /// Ends both, see [`stop_all`].
    ///
    /// # Panics
    /// As there.
    pub fn stop(self) {
        stop_all([self.second, self.first]);
    }
}

/// How a standby comes to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailOver {
    /// The host that serves loses power, and gets power back afterwards.
    PowerOff,
    /// The service is handed over on purpose.
    Switchover,
    /// `serve` is stopped (SIGSTOP), and goes on afterwards.
    Stop,
}

/// Numbers of events.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    /// Recoveries of the standby.
    pub serving: usize,
    /// Servers that the standby has started without a connection to restore.
    pub started: usize,
    /// Epochs of the standby.
    pub granted: usize,
    /// Changes of the need for a lease at `second`: a standby registered there, or no standby was left.
    pub leased: usize,
    /// How often `first` was superseded.
    pub superseded: usize,
    /// How often `first` stood by.
    pub stood_by: usize,
}

impl Counts {
    /// Up to now.
    #[must_use]
    pub fn of(pair: &Pair) -> Self {
        let count = |one: &Protected, kind| one.events_of(kind).len();
        Self {
            serving: count(&pair.second, "serving"),
            started: count(&pair.second, "started"),
            granted: count(&pair.second, "granted"),
            leased: count(&pair.second, "lease_required"),
            superseded: count(&pair.first, "superseded"),
            stood_by: count(&pair.first, "standby_started"),
        }
    }

    /// How often the standby has begun to serve, with and without a connection to restore.
    fn served_by(standby: &Protected) -> usize {
        standby.events_of("serving").len() + standby.events_of("started").len()
    }
}

/// The host's report on the lease; empty without a report.
///
/// # Panics
/// When the host cannot be asked.
#[track_caller]
#[must_use]
pub fn lease_of(one: &Protected) -> String {
    let status = status(one);
    status["lease"].as_str().unwrap_or_default().to_owned()
}

/// Whether a host stands alone, has got a lease, or has none for want of a standby, after the leases of all ended hosts
/// have expired: a standby that ended without a farewell counts as present until then.
fn knows_of_ends(one: &Protected, before: Instant) -> bool {
    let elapsed = before.elapsed();
    let words = lease_of(one);
    let left = words.split_once(", for ").and_then(|(_, rest)| {
        let number = rest.split(' ').next()?.parse().ok()?;
        Some(Duration::from_millis(number))
    });
    match left {
        Some(left) => elapsed + left > 2 * lease(),
        None => !words.contains("is silent"),
    }
}

/// Stops all hosts of some services, standbys first: otherwise a standby would serve. Looks for leftovers after the
/// last host has ended.
///
/// # Panics
/// When a host does not end properly, hands over without a standby, or leaves a resource.
pub fn stop_all<const N: usize>(mut all: [Protected; N]) {
    let mut ended_at = Instant::now();
    for one in &all {
        wait_until("the end of the others is known", || {
            one.ended(Duration::ZERO).is_some() || knows_of_ends(one, ended_at)
        });
        let moves = one.events_of("handed_over").len();
        one.kill_serve(Signal::TERM);
        let ended = one.ended(EVENT_TIMEOUT);
        let code = ended.and_then(|status| status.code());
        assert_eq!(code, Some(0), "{ended:?}: {}", one.log());
        let handed_over = one.events_of("handed_over").len();
        assert_eq!(handed_over, moves, "to nobody: {}", one.log());
        ended_at = Instant::now();
    }
    for one in &mut all {
        one.assert_nothing_left();
    }
}

fn flags(logger: &Logger, more: &[String]) -> Vec<String> {
    let device = ADDRESS_DEVICE_FLAGS.iter().map(ToString::to_string);
    let more = device.chain(more.iter().cloned());
    logger.flags().into_iter().chain(more).collect()
}
