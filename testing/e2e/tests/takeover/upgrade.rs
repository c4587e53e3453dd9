//! Both hosts and the logger are upgraded one after the other, to the program with the feature `next-version`. Each
//! version takes over from the other, also through a logger of the other version.

use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use e2e::arrange::wait_until;
use e2e::binaries::next_outlive;
use e2e::exchange::{Exchange, assert_untouched, echoes, end, talks};
use e2e::loggers::{Logger, status};
use e2e::pair::{FailOver, Pair, addresses, lease};
use e2e::servers::{SERVER_PORT, test_server_at};
use e2e::{EVENT_TIMEOUT, Seed};
use lab::Signal;

/// A pace at which clients are at work in each part: a part waits for leases.
const CLIENT_PACE: Duration = Duration::from_millis(40);

/// A part of an upgrade, while clients are at work.
#[derive(Clone, Copy)]
enum Part {
    /// The standby ends and starts as the next version.
    Standby,
    /// `serve` dies, and the next version adopts the server.
    Serve,
    /// The logger dies and starts as the next version.
    Logger,
    /// The standby takes over.
    FailOver,
}

struct Upgrade {
    pair: Pair,
    way: FailOver,
    silent: TcpStream,
    echo: TcpStream,
}

impl Upgrade {
    fn take(&mut self, part: Part) {
        let pair = &mut self.pair;
        match part {
            Part::Standby => upgrade_standby(pair),
            Part::Serve => upgrade_serve(pair),
            Part::Logger => upgrade_logger(pair),
            Part::FailOver => {
                pair.fail_over(self.way);
                let restored = pair.first.events_of("restored");
                let restored = restored.last().expect("it has taken over");
                assert_eq!(restored["lost"], 0, "{restored}");
                let at_work = restored["connections"].as_u64() > Some(2);
                assert!(at_work, "the exchange has ended: {restored}");
            }
        }
        pair.await_leases();
        echoes(&self.echo, b"meanwhile");
        for one in [&pair.first, &pair.second] {
            one.assert_none_of("connection_reset");
            one.assert_none_of("unprotected");
        }
    }
}

fn upgrade_standby(pair: &mut Pair) {
    pair.second.kill_serve(Signal::TERM);
    assert!(
        pair.second.ended(EVENT_TIMEOUT).is_some(),
        "{}",
        pair.second.log()
    );
    pair.second.set_binary(next_outlive());
    pair.begin_standby();
    pair.second.wait_for("standby_started", 1);
}

fn upgrade_serve(pair: &mut Pair) {
    // The standby would take over at the end of the lease.
    pair.second.kill_serve(Signal::STOP);
    let flags = pair.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    pair.first.kill_serve_itself();
    pair.first.set_binary(next_outlive());
    pair.first.succeed(&pair.scene, &pair.server, &flags);
    pair.second.kill_serve(Signal::CONT);
}

/// The next version reads log and grants of this version.
fn upgrade_logger(pair: &mut Pair) {
    let attached = |logger: &Logger| logger.log().matches("with its earlier records").count();
    let before = attached(&pair.logger);
    pair.logger.kill();
    pair.logger.replace_dead_by(&next_outlive(), &pair.scene);
    wait_until("the logger has the earlier records", || {
        attached(&pair.logger) > before
    });
    // By then an earlier lease has expired: a valid lease is from the new logger.
    thread::sleep(lease());
}

fn upgraded(label: &str, (way, hosts): (FailOver, &[&str]), parts: &[Part]) {
    let log = tempfile::tempdir().expect("a directory");
    let logger = ["--dir", &log.path().to_string_lossy()];
    let pair = Pair::with(label, &logger, hosts, |scene| {
        test_server_at(scene, addresses().to_vec(), &[])
    });
    let scene = Arc::clone(&pair.scene);
    let recording = scene.record(SERVER_PORT);
    let connect = || scene.connect_to(addresses()[0]);
    let [silent, echo] = addresses().map(|to| scene.connect_to(to));
    talks(&silent, "before");
    e2e::clients::write(&echo, b"echo\n");
    echoes(&echo, b"hello");
    let mut upgrade = Upgrade {
        pair,
        way,
        silent,
        echo,
    };
    let exchange = Exchange {
        download: 8 << 20,
        echo: 2 << 20,
        upload: 8 << 20,
        pace: CLIENT_PACE,
        kills: parts.len(),
    };
    exchange.disturbed(&mut Seed::choose(label), connect, |number| {
        upgrade.take(parts[number]);
    });
    let Upgrade {
        pair, silent, echo, ..
    } = upgrade;
    talks(&silent, "afterwards");
    assert_eq!(status(&pair.first)["unprotected"], 0);
    end(&silent);
    end(&echo);
    assert_untouched(recording, 5);
    pair.stop();
}

/// The middle of an exchange is a moment at which the logger may lack the beginning of an answer, and an answer without
/// beginning is not comparable.
const UNVERIFIED: (FailOver, &[&str]) = (FailOver::PowerOff, &["--verify", "off"]);

const VERIFIED: (FailOver, &[&str]) = (FailOver::Switchover, &[]);

const STANDBY_FIRST: [Part; 6] = [
    Part::Standby,
    Part::FailOver,
    Part::FailOver,
    Part::Logger,
    Part::FailOver,
    Part::Standby,
];

const SERVE_FIRST: [Part; 6] = [
    Part::Serve,
    Part::FailOver,
    Part::Logger,
    Part::FailOver,
    Part::Standby,
    Part::FailOver,
];

const LOGGER_FIRST: [Part; 6] = [
    Part::Logger,
    Part::FailOver,
    Part::Standby,
    Part::FailOver,
    Part::FailOver,
    Part::Serve,
];

#[test]
fn connections_survive_upgrade_of_standby_first() {
    upgraded("upgrade-standby", UNVERIFIED, &STANDBY_FIRST);
}

#[test]
fn connections_survive_upgrade_of_serving_host_first() {
    upgraded("upgrade-serving", UNVERIFIED, &SERVE_FIRST);
}

#[test]
fn connections_survive_upgrade_of_logger_first() {
    upgraded("upgrade-granter", UNVERIFIED, &LOGGER_FIRST);
}

#[test]
fn switchovers_between_versions_are_verified() {
    upgraded("upgrade-moves", VERIFIED, &STANDBY_FIRST);
}
