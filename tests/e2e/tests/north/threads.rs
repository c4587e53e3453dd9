//! Helper threads: a replay has no time for what they did then.

use std::{thread, time::Duration};

use e2e::{
    Scene,
    exchange::assert_all_kept,
    servers::{interpreter, sleeper},
};

use super::{
    REQUIRE,
    seldom::{kill, run},
    words::Client,
};

/// A helper, which works as long as it is not waited for.
const HELPER: &str = r#"
import hashlib
wake, work, done = threading.Event(), bytes(1 << 25), []
def help():
    while True:
        wake.wait()
        wake.clear()
        for _ in range(4):
            hashlib.sha256(work)
        done.append(None)
threading.Thread(target=help, daemon=True).start()
"#;

/// A replay has no time between two lines. What a helper has done by the second one is the same nonetheless.
#[test]
fn what_was_begun_has_ended_before_it_is_looked_at() {
    let scene = Scene::new("helper");
    let server = scene.protect_with(&interpreter(&scene), &REQUIRE);
    let mut client = Client::new(&scene);
    run(&mut client, HELPER);
    for round in 1..=6 {
        run(&mut client, "wake.set()");
        if round % 3 != 0 {
            thread::sleep(Duration::from_millis(500));
        }
        assert_eq!(client.ask("len(done)"), round.to_string());
        if round % 2 == 0 {
            kill(&server, round / 2);
            assert_eq!(client.ask("len(done)"), round.to_string());
        }
    }
    assert_all_kept(&server);
}

/// A helper that sleeps is not waited for. When it has told the first thread something, it has in each life.
#[test]
fn what_helpers_have_told_they_tell_again() {
    let scene = Scene::new("sleeper");
    let server = scene.protect_with(&sleeper(&scene), &REQUIRE);
    let mut client = Client::new(&scene);
    for round in 1..=5 {
        for _ in 0..10 {
            client.ask("word");
        }
        assert_eq!(client.ask("last"), format!("last {}", 11 * round));
        kill(&server, round);
    }
    assert_eq!(client.ask("word"), "word 56");
    assert_all_kept(&server);
}

/// By its own clocks, which stand still in a replay.
#[test]
fn who_waits_in_vain_waits_as_long_in_each_life() {
    let scene = Scene::new("vain");
    let server = scene.protect_with(&interpreter(&scene), &REQUIRE);
    let mut client = Client::new(&scene);
    for round in 1..=3 {
        for _ in 0..3 {
            assert_eq!(client.ask("threading.Event().wait(0.03)"), "False");
        }
        kill(&server, round);
        assert_eq!(client.ask("round(1.5)"), "2");
    }
    assert_all_kept(&server);
}
