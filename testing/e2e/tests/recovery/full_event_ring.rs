//! Events of the kernel that found the event ring full.
//!
//! Any process may listen on the service's port at another address. The kernel reports such listeners in the same
//! ring.

use std::fs;
use std::net::TcpStream;

use e2e::arrange::{run, run_words, wait_until};
use e2e::clients::{read_exactly, write};
use e2e::servers::{self, SERVER_PORT};
use e2e::{Protected, Scene};
use lab::Signal;

use crate::{echoes, is_reset, lost_only};

/// Stops `serve`, lets kernel events overflow, and runs `happens`: `serve` does not learn of these events.
fn unheard(scene: &Scene, protected: &Protected, happens: impl FnOnce()) {
    const LISTENER_SCRIPT: &str = "
import socket, sys
for _ in range(20000):
    one = socket.socket(socket.AF_INET6)
    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(('::', int(sys.argv[1])))
    one.listen()
    one.close()
";
    protected.kill_serve(Signal::STOP);
    run_words(
        &scene.server,
        &["python3", "-c", LISTENER_SCRIPT, &SERVER_PORT.to_string()],
    );
    happens();
    protected.kill_serve(Signal::CONT);
}

fn await_events_lost(protected: &Protected) {
    let told = protected.wait_for("warning", 1);
    assert_eq!(told["code"], "events_lost", "{told}");
}

/// A death shuts the gate, also with a full ring.
#[test]
fn death_in_full_ring_is_found() {
    let scene = Scene::new("unheard");
    let protected = scene.protect(&servers::socat(&scene));
    let (ended, other) = (scene.connect(SERVER_PORT), scene.connect(SERVER_PORT));
    echoes(&ended, b"one");
    echoes(&other, b"other");
    unheard(&scene, &protected, || {
        let worker = protected.worker_pids()[0];
        lab::signal(worker, Signal::KILL).expect("it runs");
        wait_until("the worker has ended", || {
            !protected.worker_pids().contains(&worker)
        });
    });
    protected.wait_for("died", 1);
    protected.wait_serving(1);
    for stream in [&ended, &other] {
        echoes(stream, b"afterwards");
    }
    drop((ended, other));
    protected.stop();
}

/// The server has died between a client's SYN and the end of the handshake: the connection waits for a splice.
#[test]
fn late_handshake_in_full_ring_is_found() {
    let scene = Scene::new("unheard-late");
    let protected = scene.protect(&servers::socat(&scene));
    let rules = format!(
        "table inet late {{ chain out {{ type filter hook output priority 0;
            tcp dport {SERVER_PORT} tcp flags & (syn|ack) == ack drop
        }}\n}}\n"
    );
    let file = scene.write("late.nft", rules);
    run(&scene.client, &format!("nft -f {}", file.display()));
    let late = scene.connect(SERVER_PORT);
    protected.kill_main(Signal::KILL);
    protected.wait_serving(1);
    unheard(&scene, &protected, || {
        run(&scene.client, "nft delete table inet late");
        write(&late, b"late");
        let here = late.local_addr().expect("an address").port();
        wait_until("its segment has left", || {
            let sent = run(&scene.client, &format!("ss -tinH sport = :{here}"));
            sent.contains("bytes_sent")
        });
    });
    assert_eq!(read_exactly(&late, 4), b"late");
    await_events_lost(&protected);
    drop(late);
    protected.stop();
}

/// The next `serve` does not know that the server has still to say something again.
#[test]
fn contradiction_in_full_ring_is_found() {
    let scene = Scene::new("unheard-other");
    let (server, may_speak, has_spoken) = servers::second_thoughts(&scene);
    let mut protected = scene.protect(&server);
    let client: TcpStream = scene.connect(SERVER_PORT);
    write(&client, b"a request");
    assert_eq!(read_exactly(&client, 9), b"the first");
    wait_until("it has spoken", || has_spoken.exists());
    fs::remove_file(&has_spoken).expect("it is there");
    protected.kill_main(Signal::KILL);
    protected.wait_serving(1);
    protected.kill_serve_itself();
    protected.succeed(&scene, &server, &[]);
    unheard(&scene, &protected, || {
        fs::write(&may_speak, "").expect("its directory is there");
        wait_until("it has said something else", || has_spoken.exists());
    });
    lost_only(&protected, &client, "");
    is_reset(&client);
    await_events_lost(&protected);
    protected.stop();
}
