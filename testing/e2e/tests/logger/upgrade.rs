//! `serve` and its logger are upgraded one after the other, to the program with the feature `next-version`: the
//! formats of that program are of the next version.

use e2e::arrange::wait_until;
use e2e::binaries::next_outlive;
use e2e::exchange::Exchange;
use e2e::loggers::{Logger, key_file};
use e2e::servers::{SERVER_PORT, Server, test_server};
use e2e::{Protected, Scene, Seed};
use lab::Signal;

use crate::{echoes, echoing, protect};

/// A logger that is restarted is awaited.
const HOLD: [&str; 4] = ["--on-logger-loss", "hold", "--logger-timeout", "2s"];

/// An end of the log link.
#[derive(Clone, Copy)]
enum End {
    Logger,
    Serve,
}

struct Upgrade<'a> {
    scene: &'a Scene,
    server: Server,
    protected: Protected,
    logger: Logger,
}

impl<'a> Upgrade<'a> {
    fn begin(scene: &'a Scene) -> Self {
        let host = scene.lab.add_host_at("logger", 20).expect("a host");
        let keys = key_file(scene, "keys");
        let log = scene.directory().join("log");
        let logger = Logger::start(scene, &host, &keys, &["--dir", &log.to_string_lossy()]);
        let server = test_server(scene);
        let protected = protect(scene, &server, &logger, &HOLD);
        Self {
            scene,
            server,
            protected,
            logger,
        }
    }

    fn of(&mut self, end: End) {
        match end {
            End::Logger => self.upgrade_logger(),
            End::Serve => self.upgrade_serve(),
        }
    }

    /// The next version reads the log of this version, and has the records that this version had acknowledged.
    fn upgrade_logger(&mut self) {
        self.logger.kill();
        self.logger.replace_dead_by(&next_outlive(), self.scene);
        wait_until("the logger has the earlier records", || {
            self.logger.log().contains("with its earlier records")
        });
    }

    fn upgrade_serve(&mut self) {
        let flags = self.logger.flags();
        let flags = flags.iter().map(String::as_str).chain(HOLD);
        let flags: Vec<&str> = flags.collect();
        self.protected.kill_serve_itself();
        self.protected.set_binary(next_outlive());
        self.protected.succeed(self.scene, &self.server, &flags);
    }

    fn crash(&mut self) {
        let recoveries = self.protected.events_of("serving").len();
        self.protected.kill_main(Signal::KILL);
        let serving = self.protected.wait_serving(recoveries + 1);
        assert_eq!(serving["reset"], 0, "{serving}");
    }
}

/// Clients are at work. After each upgrade the server dies.
fn upgraded(label: &str, order: [End; 2]) {
    let scene = Scene::new(label);
    let mut upgrade = Upgrade::begin(&scene);
    let early = echoing(&scene);
    let exchange = Exchange {
        kills: 4,
        ..Exchange::default()
    };
    let connect = || scene.connect(SERVER_PORT);
    exchange.disturbed(&mut Seed::choose(label), connect, |moment| match moment {
        0 => upgrade.of(order[0]),
        2 => upgrade.of(order[1]),
        _ => upgrade.crash(),
    });
    echoes(&early, b"afterwards");
    upgrade.protected.assert_none_of("connection_reset");
    upgrade.protected.assert_none_of("unprotected");
    upgrade.protected.stop();
}

#[test]
fn connections_survive_upgrade_of_logger_then_serve() {
    upgraded("upgrade-logger", [End::Logger, End::Serve]);
}

#[test]
fn connections_survive_upgrade_of_serve_then_logger() {
    upgraded("upgrade-serve", [End::Serve, End::Logger]);
}
