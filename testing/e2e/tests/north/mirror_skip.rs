//! Input that a server with state has read goes to the logger once: in the determinant log, and not as a mirrored
//! segment.

use std::{thread, time::Duration};

use e2e::{
    Protected,
    loggers::status,
    pair::{FailOver, Pair, addresses},
    servers::redis_at,
};

use super::{STATEFUL_REQUIRE, await_condition, power_off::client, redis::Client};

fn pair(label: &str) -> Pair {
    let [address, _] = addresses();
    Pair::with(label, &[], &STATEFUL_REQUIRE, |scene| {
        redis_at(scene, address)
    })
}

fn counted(server: &Protected, name: &str) -> u64 {
    status(server)["counters"][name].as_u64().expect("a number")
}

fn count(client: &mut Client, from: u32, to: u32) {
    for number in from..=to {
        assert_eq!(client.ask(&["INCR", "counter"]), format!(":{number}"));
    }
}

/// Counts until this many requests were left to the notes. A request whose note is late is copied, too: the number of
/// copies depends on the machine.
fn count_until_left(server: &Protected, client: &mut Client, first: u32, enough: u64) {
    let mut next = first;
    await_condition("requests are left to the notes", || {
        count(client, next, next + 99);
        next += 100;
        counted(server, "mirror_skipped") > enough
    });
}

/// All that this client has sent was acknowledged.
fn is_acknowledged(pair: &Pair, client: &Client) -> bool {
    let port = client.stream().local_addr().expect("an address").port();
    let port = format!("sport = :{port}");
    let said = pair.scene.on_client("ss", &["-tnH", &port]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let queue = said.split_whitespace().nth(2).map(str::to_owned);
    queue.unwrap_or_else(|| panic!("ss said {said:?}")) == "0"
}

#[test]
fn recorded_input_is_not_mirrored() {
    let mut pair = pair("north-copies");
    let mut client = client(&pair.scene);
    count_until_left(&pair.first, &mut client, 1, 500);
    for way in [FailOver::PowerOff, FailOver::Switchover] {
        pair.fail_over(way);
        let next = client
            .ask(&["GET", "counter"])
            .parse::<u32>()
            .expect("a number")
            + 1;
        count_until_left(&pair.first, &mut client, next, 200);
    }
    drop(client);
    pair.stop();
}

/// Acknowledged bytes of a client without a response survive the host.
#[test]
fn unanswered_client_gets_ack_of_stable_data() {
    let mut pair = pair("north-unanswered");
    let mut client = client(&pair.scene);
    count(&mut client, 1, 500);
    client.send(&["CLIENT", "REPLY", "OFF"]);
    for round in 1..=20 {
        for _ in 0..10 {
            client.send(&["INCR", "counter"]);
            thread::sleep(Duration::from_millis(round % 4));
        }
    }
    await_condition("all is acknowledged", || is_acknowledged(&pair, &client));
    pair.fail_over(FailOver::PowerOff);
    assert_eq!(client.ask(&["CLIENT", "REPLY", "ON"]), "+OK");
    assert_eq!(client.ask(&["GET", "counter"]), "700");
    drop(client);
    pair.stop();
}

/// Long requests are mirrored, and may be read in parts; short requests arrive in between.
#[test]
fn short_and_long_requests_alternate() {
    let mut pair = pair("north-long");
    let mut client = client(&pair.scene);
    for round in 0..3 {
        for number in 1..=300_usize {
            assert_eq!(
                client.ask(&["INCR", "short"]),
                format!(":{}", 300 * round + number)
            );
            if number % 10 == 0 {
                let value = number.to_string().repeat(40 * number);
                assert_eq!(client.ask(&["SET", "long", &value]), "+OK");
                assert_eq!(client.ask(&["GET", "long"]), value);
            }
        }
        pair.fail_over(FailOver::PowerOff);
    }
    drop(client);
    pair.stop();
}
