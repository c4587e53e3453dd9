//! Deaths during a takeover, and consecutive deaths.

use std::net::TcpStream;

use e2e::arrange::{run, wait_until};
use e2e::clients::write;
use e2e::exchange::{assert_untouched, echoes, end, talks};
use e2e::pair::{FailOver, Pair, addresses, stop_all};
use e2e::servers::SERVER_PORT;
use e2e::speakers::Speakers;
use e2e::{EVENT_TIMEOUT, Protected};
use lab::Signal;

/// Connections of both address families: each family has a talking connection and an echo.
struct Clients {
    talk: [TcpStream; 2],
    echo: [TcpStream; 2],
}

impl Clients {
    fn of(pair: &Pair) -> Self {
        let connect = || addresses().map(|to| pair.scene.connect_to(to));
        let this = Self {
            talk: connect(),
            echo: connect(),
        };
        for stream in &this.echo {
            write(stream, b"echo\n");
        }
        this.go_on("before");
        this
    }

    fn go_on(&self, word: &str) {
        for (talk, echo) in self.talk.iter().zip(&self.echo) {
            talks(talk, word);
            echoes(echo, word.as_bytes());
        }
    }

    fn end(self) {
        for stream in self.talk.iter().chain(&self.echo) {
            end(stream);
        }
    }
}

/// There and back, by each way, with the same connections.
#[test]
fn failover_then_failback() {
    let mut pair = Pair::with_test_server("takeover-row");
    let recording = pair.scene.record(SERVER_PORT);
    let speakers = Speakers::listen(&pair.scene.client, &addresses());
    let clients = Clients::of(&pair);
    let mut holders = vec![mac(&pair.first)];
    for way in [FailOver::PowerOff, FailOver::Stop, FailOver::Switchover].repeat(2) {
        pair.fail_over(way);
        clients.go_on(&format!("{way:?}"));
        holders.push(mac(&pair.first));
        // The death of the server alone does not concern the other host.
        let deaths = pair.first.events_of("serving").len();
        pair.first.kill_main(Signal::KILL);
        pair.first.wait_serving(deaths + 1);
        clients.go_on("again");
    }
    clients.end();
    assert_untouched(recording, 4);
    speakers.finish().assert_one_at_a_time(&holders);
    pair.stop();
}

fn mac(one: &Protected) -> lab::Mac {
    one.host().mac("eth0").expect("it has one")
}

/// The takeover succeeds although the standby's server dies.
#[test]
fn server_death_during_takeover() {
    let mut pair = Pair::with_test_server("takeover-server");
    let recording = pair.scene.record(SERVER_PORT);
    let clients = Clients::of(&pair);
    for stage in ["restarted", "spliced"] {
        pair.first.power_off();
        pair.second.wait_for(stage, 1);
        pair.second.kill_main(Signal::KILL);
        pair.second.wait_for("died", 2);
        clients.go_on(stage);
        pair.change_places();
    }
    clients.end();
    assert_untouched(recording, 4);
    pair.stop();
}

/// The standby dies during the takeover, and another standby takes over.
fn another_takes_over(stage: &str, kill: fn(&Protected)) {
    let label = format!("takeover-{stage}");
    let mut pair = Pair::with_test_server(&label);
    let host = pair.scene.lab.add_host_at("third", 40).expect("a host");
    let third = pair.another(&host, 50);
    let recording = pair.scene.record(SERVER_PORT);
    let speakers = Speakers::listen(&pair.scene.client, &addresses());
    let clients = Clients::of(&pair);
    pair.first.power_off();
    pair.second.wait_for(stage, 1);
    kill(&pair.second);
    third.wait_serving(1);
    clients.go_on("afterwards");
    // Both hosts come back, and find another host serving.
    for one in [&pair.first, &pair.second] {
        if !one.host().is_on() {
            one.power_on();
        }
    }
    let [a, b, c] = [&pair.first, &pair.second, &third].map(mac);
    let flags = pair.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    for one in [&mut pair.first, &mut pair.second] {
        one.begin_as("standby", &pair.server, &flags);
        one.wait_for("standby_started", 1);
    }
    clients.go_on("with two standbys");
    third.assert_none_of("connection_reset");
    clients.end();
    assert_untouched(recording, 4);
    // The second host may have died before the first segment.
    let heard = speakers.finish();
    let spoke = heard.turns();
    assert!(spoke == [a, b, c] || spoke == [a, c], "{heard}");
    let Pair {
        first,
        second,
        logger,
        scene,
        ..
    } = pair;
    stop_all([first, second, third]);
    drop((logger, scene));
}

/// SIGKILL to `serve`. The server, if started, lives on, and is silent after the lease.
fn serve(one: &Protected) {
    one.kill_serve(Signal::KILL);
    assert!(one.ended(EVENT_TIMEOUT).is_some(), "serve survived SIGKILL");
}

/// A segment may wait in its host for the link-layer address of the client, before any program has seen the segment:
/// the segment must not leave without the programs.
#[test]
fn packets_queued_for_neighbour_never_leave() {
    let mut pair = Pair::with_test_server("takeover-waiting");
    let host = pair.second.host().clone();
    host.sysctl("net.ipv4.neigh.eth0.mcast_solicit", "100")
        .expect("a setting");
    host.sysctl("net.ipv6.neigh.eth0.mcast_solicit", "100")
        .expect("a setting");
    let lab = &pair.scene.lab;
    let recording = pair.scene.record(SERVER_PORT);
    let speakers = Speakers::listen(&pair.scene.client, &addresses());
    let clients = Clients::of(&pair);
    lab.part(&pair.scene.client, &host).expect("part");
    pair.first.power_off();
    // The host has sent segments to the clients, without a resolved neighbour.
    pair.second.wait_for("listening", 1);
    pair.first.power_on();
    let flags = pair.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    pair.first.begin_as("standby", &pair.server, &flags);
    pair.first.wait_for("standby_started", 1);
    let waits = run(&host, "ip neighbour show to 10.0.0.1");
    assert!(waits.contains("INCOMPLETE"), "{waits}");
    pair.second.kill_serve(Signal::STOP);
    pair.first.wait_serving(1);
    clients.go_on("afterwards");
    // `serve` ends for good: no later `serve` attaches programs.
    pair.second.kill_serve(Signal::TERM);
    pair.second.kill_serve(Signal::CONT);
    assert!(
        pair.second.ended(EVENT_TIMEOUT).is_some(),
        "{}",
        pair.second.log()
    );
    lab.rejoin(&pair.scene.client, &host).expect("rejoin");
    // The kernel resolves the neighbours and then sends the waiting packets, or no packet waits any more.
    wait_until("nothing waits for a neighbour", || {
        !run(&host, "ip neighbour show").contains("INCOMPLETE")
    });
    clients.go_on("at last");
    clients.end();
    assert_untouched(recording, 4);
    speakers.finish().assert_one_at_a_time(&[mac(&pair.first)]);
    pair.stop();
}

macro_rules! deaths {
    ($($name:ident: $stage:expr, $kill:expr;)*) => {
        $(#[test]
        fn $name() {
            another_takes_over($stage, $kill);
        })*
    };
}

deaths! {
    serve_dies_when_granted: "granted", serve;
    serve_dies_when_restored: "restored", serve;
    serve_dies_when_restarted: "restarted", serve;
    serve_dies_when_spliced: "spliced", serve;
    host_dies_when_granted: "granted", Protected::power_off;
    host_dies_when_restored: "restored", Protected::power_off;
    host_dies_when_restarted: "restarted", Protected::power_off;
    host_dies_when_spliced: "spliced", Protected::power_off;
}
