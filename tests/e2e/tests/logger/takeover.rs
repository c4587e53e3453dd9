//! The server's host goes away, and another one goes on.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use e2e::clients::Http;
use e2e::exchange::{Exchange, assert_untouched, echoes, end, talks};
use e2e::loggers::Logger;
use e2e::servers::{BIG, PORT, Server, nginx_at, test_server_at};
use e2e::{PATIENCE, Protected, Scene, assert_same_bytes, pattern};
use lab::Signal;
use rustix::process::kill_process;

use crate::{protect, status, with_logger};

/// The addresses of the service, which a host has only while it serves.
pub(crate) fn addresses() -> [SocketAddr; 2] {
    ["10.0.0.110:8080", "[fd00::110]:8080"].map(|text| {
        let address: SocketAddr = text.parse().expect("an address");
        assert_eq!(address.port(), PORT);
        address
    })
}

const DEVICE: [&str; 2] = ["--address-device", "eth0"];

/// A service on two hosts: `first` serves, `second` stands by.
pub(crate) struct Pair {
    // Dropped in this order.
    pub(crate) first: Protected,
    pub(crate) second: Protected,
    pub(crate) logger: Logger,
    server: Server,
    pub(crate) scene: Scene,
}

impl Pair {
    pub(crate) fn new(label: &str, server: impl FnOnce(&Scene) -> Server) -> Self {
        let (scene, logger) = with_logger(label);
        let server = server(&scene);
        let other = scene.lab.add_host_at("other", 30).expect("a host");
        let first = protect(&scene, &server, &logger, &DEVICE);
        let flags = flags(&logger);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let second = first.standby(&scene, &other, &server, &flags);
        let this = Self {
            scene,
            logger,
            server,
            first,
            second,
        };
        this.await_standby();
        this
    }

    pub(crate) fn talking(label: &str) -> Self {
        Self::new(label, |scene| {
            test_server_at(scene, addresses().to_vec(), &[])
        })
    }

    fn await_standby(&self) {
        self.second.wait_for("stands_by", 1);
        self.first.wait_for("leased", 1);
    }

    /// What was `second` serves, what was `first` stands by on its host, which has its power again.
    pub(crate) fn change_places(&mut self) {
        std::mem::swap(&mut self.first, &mut self.second);
        let flags = flags(&self.logger);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        self.second.power_on();
        self.second.begin_as("standby", &self.server, &flags);
        self.await_standby();
    }

    /// The standby first: else it would serve. What is left can be seen when both have gone.
    pub(crate) fn stop(mut self) {
        let moves = self.first.events_of("handed_over").len();
        for one in [&self.second, &self.first] {
            one.kill_serve(Signal::TERM);
            let ended = one.ended(PATIENCE);
            let code = ended.and_then(|status| status.code());
            assert_eq!(code, Some(0), "{ended:?}: {}", one.said());
        }
        let handed_over = self.first.events_of("handed_over").len();
        assert_eq!(handed_over, moves, "to nobody: {}", self.first.said());
        self.first.assert_nothing_left();
        self.second.assert_nothing_left();
    }
}

fn flags(logger: &Logger) -> Vec<String> {
    let device = DEVICE.iter().map(ToString::to_string);
    logger.flags().into_iter().chain(device).collect()
}

#[test]
fn a_standby_goes_on_when_the_host_loses_its_power() {
    let mut pair = Pair::talking("takeover-power");
    for address in addresses() {
        let recording = pair.scene.record(PORT);
        let idle = pair.scene.connect_to(address);
        talks(&idle, "before");
        let echo = pair.scene.connect_to(address);
        e2e::clients::write(&echo, b"echo\n");
        echoes(&echo, b"hello");
        thread::scope(|scope| {
            let scene = &pair.scene;
            let busy =
                scope.spawn(|| Exchange::default().undisturbed(|| scene.connect_to(address)));
            thread::sleep(Duration::from_millis(150));
            pair.first.power_off();
            let restored = pair.second.wait_for("restored", 1);
            assert_eq!(restored["lost"], 0, "{restored}");
            pair.second.wait_serving(1);
            assert!(busy.join().is_ok(), "{}", pair.second.said());
        });
        talks(&idle, "afterwards");
        echoes(&echo, b"afterwards");
        pair.second.assert_none_of("lost");
        assert_eq!(status(&pair.second)["unprotected"], 0);
        end(&idle);
        end(&echo);
        assert_untouched(recording, 5);
        // And back, for the other address.
        pair.change_places();
    }
    pair.stop();
}

#[test]
fn a_download_outlives_two_hosts() {
    let mut pair = Pair::new("takeover-nginx", |scene| {
        nginx_at(scene, addresses().to_vec())
    });
    let mut http = Http::new(pair.scene.connect_to(addresses()[0]));
    http.ask("/big.bin");
    let mut cuts = [BIG / 4, BIG / 2].into_iter().peekable();
    let got = http.response(|progress| {
        if cuts.next_if(|at| progress > *at).is_some() {
            pair.first.power_off();
            pair.second.wait_serving(1);
            pair.change_places();
        }
    });
    assert_same_bytes("download", &pattern(BIG), &got.body);
    http.ask("/small/3");
    assert_same_bytes("next", &pattern(500 + 3 * 700), &http.response(|_| ()).body);
    pair.first.kill_main(Signal::KILL);
    pair.first.wait_serving(2);
    http.ask("/small/4");
    assert_same_bytes("last", &pattern(500 + 4 * 700), &http.response(|_| ()).body);
    pair.stop();
}

/// Its programs are silent when its lease is over, whoever is there to say so; and it finds out.
#[test]
fn a_host_that_stands_still_or_is_cut_off_falls_silent_and_stands_by() {
    for stopped in [true, false] {
        let mut pair = Pair::talking("takeover-silent");
        let echo = pair.scene.connect_to(addresses()[0]);
        e2e::clients::write(&echo, b"echo\n");
        echoes(&echo, b"hello");
        // The head of the answer is with the logger a moment after the client has it.
        thread::sleep(Duration::from_millis(50));
        let serve = pair.first.serve_pid();
        if stopped {
            kill_process(serve, Signal::STOP).expect("it runs");
        } else {
            pair.scene.server.cut().expect("cut");
        }
        pair.second.wait_serving(1);
        echoes(&echo, b"there");
        if stopped {
            kill_process(serve, Signal::CONT).expect("it runs");
        } else {
            pair.scene.server.heal().expect("heal");
        }
        pair.first.wait_for("superseded", 1);
        pair.first.wait_for("stands_by", 1);
        echoes(&echo, b"still there");
        std::mem::swap(&mut pair.first, &mut pair.second);
        pair.first.wait_for("leased", 1);
        // Whoever was there before is as good as new.
        let moved = pair.first.outlive("move", &[]);
        assert_eq!(moved.status, Some(0), "{moved:?}");
        pair.second.wait_serving(1);
        echoes(&echo, b"back again");
        pair.stop();
    }
}

#[test]
fn a_service_is_moved_back_and_forth() {
    let mut pair = Pair::talking("takeover-move");
    let recording = pair.scene.record(PORT);
    let idle = pair.scene.connect_to(addresses()[1]);
    talks(&idle, "before");
    thread::scope(|scope| {
        let scene = &pair.scene;
        let busy =
            scope.spawn(|| Exchange::default().undisturbed(|| scene.connect_to(addresses()[0])));
        for turn in 1..=4usize {
            thread::sleep(Duration::from_millis(300));
            let moved = pair.first.outlive("move", &["--json"]);
            assert_eq!(moved.status, Some(0), "{moved:?}\n{}", pair.first.said());
            pair.second.wait_serving(turn.div_ceil(2));
            std::mem::swap(&mut pair.first, &mut pair.second);
            pair.first.wait_for("leased", turn / 2 + 1);
        }
        assert!(busy.join().is_ok(), "{}", pair.first.said());
    });
    talks(&idle, "afterwards");
    for one in [&pair.first, &pair.second] {
        one.assert_none_of("lost");
    }
    end(&idle);
    assert_untouched(recording, 4);
    let refused = pair.second.outlive("move", &[]);
    assert_eq!(refused.status, Some(1), "{refused:?}");
    pair.stop();
}

/// Who is stopped where another can go on hands over; who comes back too late stands by.
#[test]
fn a_serve_that_ends_hands_over() {
    let mut pair = Pair::talking("takeover-end");
    let echo = pair.scene.connect_to(addresses()[0]);
    e2e::clients::write(&echo, b"echo\n");
    echoes(&echo, b"hello");
    pair.first.kill_serve(Signal::TERM);
    assert!(pair.first.ended(PATIENCE).is_some());
    pair.second.wait_serving(1);
    echoes(&echo, b"afterwards");
    std::mem::swap(&mut pair.first, &mut pair.second);
    let flags = flags(&pair.logger);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    // It vouches that nobody serves, and is wrong.
    pair.second.begin_as("serve", &pair.server, &flags);
    pair.await_standby();
    // A `serve` is killed: its server lives, silent when the lease is over.
    pair.first.kill_serve_itself();
    pair.second.wait_serving(1);
    echoes(&echo, b"there");
    pair.first.begin_as("serve", &pair.server, &flags);
    pair.first.wait_for("superseded", 1);
    pair.first.wait_for("stands_by", 1);
    echoes(&echo, b"still there");
    std::mem::swap(&mut pair.first, &mut pair.second);
    pair.stop();
}
