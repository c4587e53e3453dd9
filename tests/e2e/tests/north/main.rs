//! Servers that are rebuilt from a record of what they were told: nothing that a client was told is forgotten, and no
//! connection ends.

mod lighttpd;
mod redis;

use std::{thread, time::Duration};

use e2e::{Protected, Seed};
use lab::Signal;

const REQUIRE: [&str; 2] = ["--north", "require"];

/// Kills the server so often, at moments that nobody has chosen.
fn kill_again_and_again(server: &Protected, kills: usize, seed: &mut Seed) {
    for kill in 1..=kills {
        thread::sleep(Duration::from_millis(seed.between(100, 800) as u64));
        server.kill_main(Signal::KILL);
        server.wait_serving(kill);
    }
}
