//! Servers with state, rebuilt from the determinant log: no acknowledged response is forgotten, and no connection
//! ends.

mod abortive_close;
mod checkpoint_upload;
mod checkpoints;
mod command_server;
mod disk;
mod divergence;
mod files;
mod ftp;
mod heap;
mod helper_threads;
mod hot_replicas;
mod hot_standby;
mod listeners;
mod mirror_skip;
mod mosquitto;
mod ngircd;
mod node;
mod power_off;
mod process_per_connection;
mod proxies;
mod rare_calls;
mod record_limits;
mod redis;
mod redis_client;
mod refusals;
mod second_thread;
mod sessions;
mod stateful_prefer;
mod streamer;
mod tls;
mod upgrade;
mod upstream;
mod upstream_adoption;
mod websocket;

use std::{
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use e2e::{EVENT_TIMEOUT, Protected, Scene, Seed, arrange};
use lab::Signal;

const STATEFUL_REQUIRE: [&str; 2] = ["--stateful", "require"];

/// Kills the server `kills` times, at random moments.
fn kill_repeatedly(server: &Protected, kills: usize, seed: &mut Seed) {
    for kill in 1..=kills {
        thread::sleep(Duration::from_millis(seed.between(100, 800) as u64));
        server.kill_main(Signal::KILL);
        server.wait_serving(kill);
    }
}

/// Runs `clients` numbered clients during `act`, and then signals the end. Returns the result of each client.
fn with_clients<T: Send>(
    clients: usize,
    client: impl Fn(usize, &AtomicBool) -> T + Sync,
    act: impl FnOnce(),
) -> Vec<T> {
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (client, is_over) = (&client, &AtomicBool::new(false));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..clients)
            .map(|which| scope.spawn(move || client(which, is_over)))
            .collect();
        // Also after a failure of `act`: the clients end then, too.
        let ends = Ends(is_over);
        act();
        drop(ends);
        let clients = clients.into_iter();
        clients.map(|one| one.join().expect("a client")).collect()
    })
}

/// How many bytes of a client the server has read in this life. The kernel of the server's host knows the number:
/// `serve`, when asked for a status, waits for a logger, and some loggers are out of reach.
fn read_by_server(scene: &Scene, client: &TcpStream) -> u64 {
    let port = client.local_addr().expect("an address").port();
    let port = format!("dport = :{port}");
    let said = arrange::run_words(&scene.server, &["ss", "-tniH", &port]);
    let mut words = said.split_whitespace();
    let unread = words.nth(1).and_then(|queue| queue.parse().ok());
    let received = words.find_map(|word| word.strip_prefix("bytes_received:"));
    let received: u64 = received.map_or(0, |bytes| bytes.parse().expect("a number"));
    unread.map_or(0, |unread| received.saturating_sub(unread))
}

/// Waits for the condition.
#[track_caller]
fn await_condition(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while !is_so() {
        assert!(
            Instant::now() < deadline,
            "not within {EVENT_TIMEOUT:?}: {what}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}
