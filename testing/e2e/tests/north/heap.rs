//! Memory addresses are part of a program's computation.

use std::{thread, time::Duration};

use e2e::{Scene, exchange::assert_all_recovered, servers::redis};
use lab::Signal;

use super::{STATEFUL_REQUIRE, redis::Client};

/// Many keys come and go, with values short and long; long lists are freed by a helper thread.
const TURN_OVER: &str = "
    math.randomseed(tonumber(ARGV[1]))
    for list = 1, 20 do
        for _ = 1, 100 do
            redis.call('RPUSH', 'list-' .. list, string.rep('v', math.random(9000)))
        end
    end
    for _ = 1, 4000 do
        redis.call('SET', 'key-' .. math.random(4000), string.rep('v', math.random(44)))
        redis.call('SET', 'long-' .. math.random(400), string.rep('v', math.random(20000)))
        redis.call('DEL', 'key-' .. math.random(4000), 'long-' .. math.random(400))
    end
    for list = 1, 20 do
        redis.call('UNLINK', 'list-' .. list)
    end";

/// Memory addresses depend on the moments at which the allocator returns memory; redis prints addresses.
#[test]
fn redis_heap_addresses_are_equal() {
    let scene = Scene::new("redisheap");
    let mut redis = redis(&scene);
    redis.environment = vec![("MALLOC_CONF", "dirty_decay_ms:300")]; // for 10 s
    let server = scene.protect_with(&redis, &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    for kill in 1..=2 {
        for round in 0..3 {
            client.ask(&["EVAL", TURN_OVER, "0", &(kill * 10 + round).to_string()]);
            // Memory is given back as time goes by.
            thread::sleep(Duration::from_millis(500));
        }
        let mut places = |key: usize| client.ask(&["DEBUG", "OBJECT", &format!("key-{key}")]);
        let place = |said: String| said.split(' ').nth(1).map(str::to_owned);
        let then: Vec<_> = (1..=4000).map(&mut places).map(place).collect();
        server.kill_main(Signal::KILL);
        server.wait_serving(kill);
        let now: Vec<_> = (1..=4000).map(places).map(place).collect();
        let moved = then.iter().zip(&now).filter(|(then, now)| then != now);
        assert_eq!(moved.count(), 0);
    }
    assert_all_recovered(&server);
}
