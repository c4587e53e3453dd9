//! Checkpoints: an image replaces the record before the image, with kills at all moments.

use std::{
    fs::{self, File},
    io::Write as _,
    net::TcpStream,
    os::unix::net::UnixStream,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use e2e::{
    Protected, Scene, Seed,
    clients::{finish, read_some},
    exchange::{assert_all_recovered, assert_untouched},
    loggers::status,
    pattern,
    servers::{self, BIG_FILE_BYTES, SERVER_PORT, lighttpd, redis, redis_in},
};
use lab::Signal;
use rustix::fs::{FlockOperation, fcntl_lock, flock};

use super::{
    await_condition, command_server,
    disk::{await_saved, digest_of, directory, files},
    redis::Client,
    refusals::serve,
};

/// The CRIU that `make criu` has built, else the system's CRIU.
pub(super) fn criu() -> String {
    let ourselves = std::env::current_exe().expect("our own path");
    // The test is in `deps`, in the directory of the profile, in the target directory.
    let built = ourselves
        .ancestors()
        .nth(3)
        .map(|target| target.join("criu/criu"));
    match built.filter(|built| built.exists()) {
        Some(built) => built.to_string_lossy().into_owned(),
        None => "criu".to_owned(),
    }
}

pub(super) fn flags<'a>(criu: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--stateful", "require", "--criu", criu], more].concat()
}

/// Sets `keys` keys of redis, by a single client.
pub(super) fn fill(client: &mut Client, from: usize, keys: usize) {
    for first in (from..from + keys).step_by(100) {
        for number in first..first + 100 {
            client.send(&["SET", &format!("key-{number}"), &format!("value {number}")]);
        }
        for _ in 0..100 {
            assert_eq!(client.answer(), "+OK");
        }
    }
}

/// The images that there are.
pub(super) fn images(scene: &Scene, server: &Protected) -> Vec<PathBuf> {
    let directory = scene.run_dir().join(server.name()).join("images");
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}

#[test]
fn redis_continues_from_checkpoint() {
    let scene = Scene::new("ckredis");
    let criu = criu();
    let server = scene.protect_with(&redis(&scene), &flags(&criu, &["--checkpoint-at", "1MiB"]));
    let recording = scene.record(SERVER_PORT);
    let (mut client, mut other) = (
        Client::to(&scene, scene.ipv4(SERVER_PORT)),
        Client::to(&scene, scene.ipv4(SERVER_PORT)),
    );
    assert_eq!(other.ask(&["SUBSCRIBE", "news"]), "subscribe news :1");
    for round in 1..=3 {
        fill(&mut client, round * 100_000, 100_000);
        let told = server.wait_for("checkpointed", round);
        assert!(told["record_bytes"].as_u64() > Some(1 << 20), "{told}");
        assert!(told["released_bytes"].as_u64() > Some(1 << 20), "{told}");
        fill(&mut client, 0, 1000);
        let state = client.ask(&["DEBUG", "DIGEST"]);
        let id = client.ask(&["CLIENT", "ID"]);
        server.kill_main(Signal::KILL);
        server.wait_serving(round);
        assert_eq!(client.ask(&["DEBUG", "DIGEST"]), state);
        assert_eq!(client.ask(&["CLIENT", "ID"]), id);
        assert_eq!(client.ask(&["PUBLISH", "news", "still here"]), ":1");
        assert_eq!(other.answer(), "message news still here");
    }
    server.assert_none_of("checkpoint_failed");
    let shown = server.outlive("status", &[]).stdout;
    assert!(
        shown.contains("were made by this serve, 0 could not be"),
        "{shown}"
    );
    let last = &status(&server)["totals"]["last_checkpoint"];
    assert!(last[0].as_u64() > last[1].as_u64(), "{last}");
    finish(client.stream());
    finish(other.stream());
    assert_all_recovered(&server);
    assert_untouched(recording, 2);
}

/// A death at any step of a checkpoint leaves the record and the last checkpoint unchanged.
#[test]
fn death_during_checkpoint_is_masked() {
    let scene = Scene::new("ckdeath");
    let criu = criu();
    let definition = redis(&scene);
    let flags = flags(&criu, &["--checkpoint-at", "1MiB"]);
    let mut server = scene.protect_with(&definition, &flags);
    let seed = &mut Seed::choose("ckdeath");
    let mut client = Client::to(&scene, scene.ipv4(SERVER_PORT));
    for round in 0..8 {
        // Enough writes that a checkpoint starts at the end, or before.
        fill(&mut client, round * 30_000, 30_000);
        let state = client.ask(&["DEBUG", "DIGEST"]);
        thread::sleep(Duration::from_millis(seed.between(0, 500) as u64));
        if round % 2 == 0 {
            let served = server.events_of("serving").len();
            server.kill_main(Signal::KILL);
            server.wait_serving(served + 1);
        } else {
            server.kill_serve_itself();
            if round % 4 == 1 {
                server.kill_main(Signal::KILL);
            }
            server.succeed(&scene, &definition, &flags);
            if round % 4 == 1 {
                server.wait_serving(1);
            }
        }
        assert_eq!(client.ask(&["DEBUG", "DIGEST"]), state);
        assert_eq!(
            server.events_of("connection_reset").len(),
            0,
            "{}",
            server.log()
        );
    }
    assert_eq!(client.ask(&["DBSIZE"]), ":240000");
    drop(client);
    server.stop();
}

/// An image that is damaged is not made a server: that is told, and all connections are reset.
#[test]
fn torn_image_is_reported_and_not_used() {
    let scene = Scene::new("cktorn");
    let criu = criu();
    let server = scene.protect_with(&redis(&scene), &flags(&criu, &["--checkpoint-at", "1MiB"]));
    let mut client = Client::to(&scene, scene.ipv4(SERVER_PORT));
    fill(&mut client, 0, 30_000);
    server.wait_for("checkpointed", 1);
    let there = status(&server)["checkpoint"]["image_bytes"].as_u64();
    assert!(there > Some(1 << 20), "{there:?}");
    let [image] = &images(&scene, &server)[..] else {
        panic!("one image: {:?}", images(&scene, &server));
    };
    let pages = fs::File::options()
        .write(true)
        .open(image.join("pages-1.img"));
    pages.expect("its pages").set_len(1 << 20).expect("torn");
    server.kill_main(Signal::KILL);
    let trouble = server.wait_for("warning", 1)["message"].to_string();
    assert!(trouble.contains("has changed"), "{trouble}");
    let serving = server.wait_serving(1);
    assert_eq!(serving["reset"], 1, "{serving}");
    assert_eq!(client.answer_or_error(), None);
    let mut client = Client::to(&scene, scene.ipv4(SERVER_PORT));
    assert_eq!(client.ask(&["DBSIZE"]), ":0");
    // The new record outlives a death, with a checkpoint and without.
    for kill in 2..=3 {
        fill(&mut client, 0, 30_000);
        if kill == 3 {
            server.wait_for("checkpointed", 2);
        }
        server.kill_main(Signal::KILL);
        server.wait_serving(kill);
        assert_eq!(client.ask(&["DBSIZE"]), ":30000");
    }
}

/// A client from before the checkpoint sends a fatal request: only that client is reset.
#[test]
fn fatal_request_after_checkpoint_is_quarantined() {
    let scene = Scene::new("ckpoison");
    let criu = criu();
    let server = scene.protect_with(&redis(&scene), &flags(&criu, &["--checkpoint-at", "1MiB"]));
    let (mut client, mut poison) = (
        Client::to(&scene, scene.ipv4(SERVER_PORT)),
        Client::to(&scene, scene.ipv4(SERVER_PORT)),
    );
    assert_eq!(poison.ask(&["PING"]), "+PONG");
    fill(&mut client, 0, 30_000);
    server.wait_for("checkpointed", 1);
    poison.send(&["DEBUG", "SEGFAULT"]);
    assert_eq!(poison.answer_or_error(), None);
    // The client may see the reset before `serve` reports the loss.
    server.wait_for("connection_reset", 1);
    assert_eq!(client.ask(&["DBSIZE"]), ":30000");
    assert_eq!(
        server.events_of("connection_reset").len(),
        1,
        "{}",
        server.log()
    );
}

/// Without a usable CRIU the start is refused, with advice.
#[test]
fn missing_criu_disables_checkpoints() {
    let scene = Scene::new("cknone");
    for (criu, why) in [("/nowhere/criu", "make criu"), ("true", "4.0 or newer")] {
        let flags = ["--criu", criu, "--checkpoint-every", "10s"];
        let output = serve(&scene, &flags, &["redis-server"]);
        assert_eq!(output.status.code(), Some(78), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(why), "{said}");
    }
}

/// A shadow replay repeats a save while the server saves: a single, whole file results.
#[test]
fn redis_save_beside_checkpoint_is_whole() {
    let scene = Scene::new("cksave");
    let criu = criu();
    let saves = ["--save", ""];
    let directory = directory(&scene, "files");
    let definition = redis_in(&directory, scene.ipv4(SERVER_PORT), &saves);
    let often = flags(&criu, &["--checkpoint-every", "1s"]);
    let server = scene.protect_with(&definition, &often);
    let mut client = Client::to(&scene, scene.ipv4(SERVER_PORT));
    for round in 1..=4 {
        fill(&mut client, round * 30_000, 30_000);
        let before = server.events_of("checkpointed").len();
        await_condition("a checkpoint is made beside", || {
            let began = Instant::now();
            assert_eq!(client.ask(&["SAVE"]), "+OK");
            client.ask(&["INCR", "saved"]);
            // No checkpoint is possible while redis saves.
            thread::sleep(began.elapsed().max(Duration::from_millis(20)));
            server.events_of("checkpointed").len() > before
        });
        assert_eq!(client.ask(&["SAVE"]), "+OK");
        let (saved, digest) = (files(&directory), client.ask(&["DEBUG", "DIGEST"]));
        assert_eq!(saved.len(), 1, "{:?}", saved.keys());
        assert_eq!(digest_of(&scene, &directory, &saves), digest);
        server.kill_main(Signal::KILL);
        server.wait_serving(2 * round - 1);
        assert_eq!(client.ask(&["DEBUG", "DIGEST"]), digest);
        assert!(files(&directory) == saved, "its files are others");
        // A child that has died with the server is in no image's way.
        assert!(client.ask(&["BGSAVE"]).starts_with('+'));
        server.kill_main(Signal::KILL);
        server.wait_serving(2 * round);
        await_saved(&scene);
    }
    finish(client.stream());
    assert_all_recovered(&server);
}

/// Reads until `got` has `length` bytes, or until the end or a reset.
fn download(stream: &mut TcpStream, got: &mut Vec<u8>, length: usize) {
    let mut piece = [0; 1 << 16];
    while got.len() < length {
        match read_some(&*stream, &mut piece) {
            Ok(read) if read > 0 => got.extend_from_slice(&piece[..read]),
            _ => return,
        }
    }
}

/// A download in whose middle a checkpoint was made goes on from there, but never from another file of the same length.
#[test]
fn download_continues_from_unchanged_file_only() {
    let scene = Scene::new("ckfile");
    let criu = criu();
    let often = flags(&criu, &["--checkpoint-every", "1s"]);
    let server = scene.protect_with(&lighttpd(&scene), &often);
    let (mut client, mut got) = (scene.connect(SERVER_PORT), Vec::new());
    client
        .write_all(b"GET /big.bin HTTP/1.1\r\nHost: server\r\n\r\n")
        .expect("sent");
    download(&mut client, &mut got, 100_000);
    server.wait_for("checkpointed", 1);
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    download(&mut client, &mut got, 200_000);
    let checkpoints = server.events_of("checkpointed").len();
    server.wait_for("checkpointed", checkpoints + 1);
    let (new, site) = (
        scene.write("new", vec![b'x'; BIG_FILE_BYTES]),
        scene.directory(),
    );
    fs::rename(new, site.join("www/big.bin")).expect("replaced");
    server.kill_main(Signal::KILL);
    let serving = server.wait_serving(2);
    assert_eq!(serving["reset"], 1, "{serving}");
    download(&mut client, &mut got, usize::MAX);
    let head = got.windows(4).position(|four| four == b"\r\n\r\n");
    let body = &got[head.expect("an answer") + 4..];
    assert!(
        200_000 <= got.len() && body.len() < BIG_FILE_BYTES,
        "{}",
        body.len()
    );
    assert!(
        pattern(BIG_FILE_BYTES).starts_with(body),
        "bytes of another file"
    );
}

/// A shadow replay does not touch objects that the server shares with other programs: the replay ends before, with a
/// warning.
#[test]
fn shared_objects_are_untouched() {
    let criu = criu();
    let kinds = [
        ("socket", "a name in the file system"),
        ("memory", "MAP_SHARED"),
        ("fifo", "FIFO"),
        ("thread", "change files"),
    ];
    for (what, why) in kinds {
        let scene = Scene::new("ckshare");
        let shared = scene.directory().join("shared");
        if ["memory", "thread"].contains(&what) {
            fs::write(&shared, [0]).expect("a file");
        }
        let definition = servers::command_server(&scene, "/usr/bin/python3");
        let often = flags(&criu, &["--checkpoint-every", "1s"]);
        let server = scene.protect_with(&definition, &often);
        let mut client = command_server::Client::new(&scene);
        assert_eq!(client.ask(&format!("share {what}")), "shared");
        // A rehearsal does not reach the last entries of the record.
        assert_eq!(client.ask("count"), "2");
        let told = server.wait_for("checkpoint_failed", 1);
        assert!(told["reason"].to_string().contains(why), "{told}");
        match what {
            "socket" => drop(UnixStream::connect(&shared).expect("its own")),
            "memory" => assert_eq!(fs::read(&shared).expect("a file"), [1]),
            "thread" => assert_eq!(fs::read(&shared).expect("a file"), b"\0once"),
            _ => {}
        }
        server.kill_main(Signal::KILL);
        server.wait_serving(1);
        assert_eq!(client.ask("count"), "3", "{what}");
        server.assert_none_of("connection_reset");
    }
}

/// A shadow replay locks no file. The process restored from the image holds the server's locks.
#[test]
fn locks_are_held_after_restore() {
    let criu = criu();
    type Lock = fn(&File, FlockOperation) -> rustix::io::Result<()>;
    let kinds: [(&str, Lock); 2] = [
        ("lock", |file, how| flock(file, how)),
        ("record", |file, how| fcntl_lock(file, how)),
    ];
    for (what, lock) in kinds {
        let scene = Scene::new("cklock");
        let shared = scene.directory().join("shared");
        fs::write(&shared, [0]).expect("a file");
        let file = File::options().write(true).open(&shared).expect("it");
        let is_free = || lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        let definition = servers::command_server(&scene, "/usr/bin/python3");
        let often = flags(&criu, &["--checkpoint-every", "1s"]);
        let server = scene.protect_with(&definition, &often);
        let mut client = command_server::Client::new(&scene);
        assert_eq!(client.ask(&format!("share {what}")), "shared");
        assert_eq!(client.ask("count"), "2");
        let before = server.events_of("checkpointed").len();
        assert_eq!(client.ask("count"), "3");
        server.wait_for("checkpointed", before + 1);
        assert!(!is_free(), "the server has it");
        server.kill_main(Signal::KILL);
        server.wait_serving(1);
        assert_eq!(client.ask("count"), "4", "{what}");
        assert!(!is_free(), "it has it again");
        server.assert_none_of("checkpoint_failed");
        server.assert_none_of("connection_reset");
    }
}
