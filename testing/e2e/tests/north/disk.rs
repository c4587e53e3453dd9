//! Effects on files happen once: after a recovery the files are the same as without a crash.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use e2e::{
    Protected, Scene, Seed,
    exchange::assert_all_recovered,
    servers::{self, SERVER_PORT, redis_in},
};
use lab::Signal;

use super::{STATEFUL_REQUIRE, await_condition, checkpoints, command_server, redis::Client};

/// A directory for a server's files.
pub(super) fn directory(scene: &Scene, name: &str) -> PathBuf {
    let directory = scene.directory().join(name);
    fs::create_dir_all(&directory).expect("a directory");
    directory
}

/// Files of a directory and the directories below.
pub(super) fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else {
            let contents = fs::read(&path).expect("a file");
            files.insert(path, contents);
        }
    }
    files
}

/// Whether a replica is receiving, or has received, the whole data set.
fn is_receiving_snapshot(client: &mut Client) -> bool {
    let told = client.ask(&["INFO", "replication"]);
    ["state=send_bulk", "state=online"]
        .iter()
        .any(|state| told.contains(state))
}

fn is_saving(client: &mut Client) -> bool {
    let told = client.ask(&["INFO", "persistence"]);
    told.contains("bgsave_in_progress:1") || told.contains("rewrite_in_progress:1")
}

pub(super) fn await_saved(scene: &Scene) {
    await_condition("it has saved", || !is_saving(&mut Client::new(scene)));
}

/// Another redis finds this in a copy of the files.
pub(super) fn digest_of(scene: &Scene, files: &Path, saves: &[&str]) -> String {
    let copy = directory(scene, "copy");
    for (path, contents) in self::files(files) {
        let to = copy.join(path.strip_prefix(files).expect("below it"));
        fs::create_dir_all(to.parent().expect("a parent")).expect("a directory");
        fs::write(to, contents).expect("a copy");
    }
    let address = scene.ipv4(SERVER_PORT + 1);
    let _other = scene.plain(&redis_in(&copy, address, saves));
    let mut client = Client::to(scene, address);
    await_condition("it has loaded its files", || {
        let told = Client::to(scene, address).ask(&["INFO", "persistence"]);
        told.contains("\nloading:0")
    });
    let digest = client.ask(&["DEBUG", "DIGEST"]);
    fs::remove_dir_all(copy).expect("removed");
    digest
}

fn fill(client: &mut Client, seed: &mut Seed) {
    for _ in 0..200 {
        let key = format!("key{}", seed.between(0, 500));
        client.ask(&["APPEND", &key, &"x".repeat(seed.between(1, 2000))]);
    }
}

fn kill(server: &Protected, kill: usize) {
    server.kill_main(Signal::KILL);
    server.wait_serving(kill);
}

/// redis found no file at the start and has made a file: the next incarnation finds no file at the start, and does not
/// make the file again.
#[test]
fn redis_save_is_not_repeated() {
    let scene = Scene::new("redissave");
    let saves = ["--save", ""];
    let directory = directory(&scene, "files");
    let server = scene.protect_with(
        &redis_in(&directory, scene.ipv4(SERVER_PORT), &saves),
        &STATEFUL_REQUIRE,
    );
    let seed = &mut Seed::choose("redissave");
    let mut client = Client::new(&scene);
    for round in 0..3 {
        fill(&mut client, seed);
        assert_eq!(client.ask(&["SAVE"]), "+OK");
        fill(&mut client, seed);
        assert!(client.ask(&["BGSAVE"]).starts_with('+'));
        await_saved(&scene);
        let (saved, digest) = (files(&directory), client.ask(&["DEBUG", "DIGEST"]));
        assert_eq!(saved.len(), 1, "{:?}", saved.keys());
        kill(&server, 2 * round + 1);
        assert_eq!(client.ask(&["DEBUG", "DIGEST"]), digest);
        assert!(files(&directory) == saved, "its files are others");
        assert_eq!(digest_of(&scene, &directory, &saves), digest);
        // During the save: the child dies as well, and the server learns of the death.
        assert!(client.ask(&["BGSAVE"]).starts_with('+'));
        kill(&server, 2 * round + 2);
        await_saved(&scene);
        assert_eq!(client.ask(&["DEBUG", "DIGEST"]), digest);
    }
    assert_all_recovered(&server);
}

/// Slow enough to be hit by a kill, or by two.
fn save_slowly(client: &mut Client) {
    let slowly = ["CONFIG", "SET", "rdb-key-save-delay", "3000"];
    assert_eq!(client.ask(&slowly), "+OK");
}

/// A saving child continues, with the data from the start of the save.
#[test]
fn redis_save_in_progress_continues() {
    let scene = Scene::new("redissaving");
    let saves = ["--save", ""];
    let directory = directory(&scene, "files");
    let server = scene.protect_with(
        &redis_in(&directory, scene.ipv4(SERVER_PORT), &saves),
        &STATEFUL_REQUIRE,
    );
    let seed = &mut Seed::choose("redissaving");
    let mut client = Client::new(&scene);
    save_slowly(&mut client);
    for round in 0..3 {
        fill(&mut client, seed);
        let digest = client.ask(&["DEBUG", "DIGEST"]);
        let save = ["BGSAVE", "BGREWRITEAOF", "BGSAVE"][round];
        assert!(client.ask(&[save]).starts_with('+'));
        for death in 1..=2 {
            thread::sleep(Duration::from_millis(seed.between(20, 200) as u64));
            kill(&server, 2 * round + death);
            client.ask(&["INCR", "later"]);
        }
        await_saved(&scene);
        let told = client.ask(&["INFO", "persistence"]);
        for status in ["rdb_last_bgsave_status:ok", "aof_last_bgrewrite_status:ok"] {
            assert!(told.contains(status), "{told}");
        }
        if save == "BGSAVE" {
            assert_eq!(digest_of(&scene, &directory, &saves), digest);
        }
        assert_ne!(client.ask(&["DEBUG", "DIGEST"]), digest);
    }
    assert_all_recovered(&server);
}

/// A replica gets the whole data set from the saving child, and all later writes.
#[test]
fn redis_replica_gets_save_in_progress() {
    let scene = Scene::new("redissync");
    let directory = directory(&scene, "files");
    let server = redis_in(&directory, scene.ipv4(SERVER_PORT), &["--save", ""]);
    let server = scene.protect_with(&server, &STATEFUL_REQUIRE);
    let seed = &mut Seed::choose("redissync");
    let mut client = Client::new(&scene);
    save_slowly(&mut client);
    for death in 1..=3 {
        fill(&mut client, seed);
        let mut replica = Client::new(&scene);
        replica.send(&["SYNC"]);
        let asks = &mut Client::new(&scene);
        await_condition("it saves", || {
            is_saving(asks) || is_receiving_snapshot(asks)
        });
        kill(&server, death);
        let number = death.to_string();
        assert_eq!(client.ask(&["SET", "told", &number]), "+OK");
        let dump = replica.dump();
        assert!(dump.starts_with(b"REDIS00"), "{:?}", dump.get(..10));
        // All that follows is commands.
        let last = format!("SET told {number}");
        let mut command = replica.answer();
        while command != last {
            let is_its_own = ["ping", "SELECT"]
                .iter()
                .any(|own| command.starts_with(own));
            assert!(is_its_own, "{command}");
            command = replica.answer();
        }
    }
    assert_all_recovered(&server);
}

/// A save replaces the file that redis has loaded: the next incarnations load the replaced file, after the first save
/// and after the third.
#[test]
fn redis_loads_replaced_file_again() {
    let scene = Scene::new("redisreload");
    let saves = ["--save", ""];
    let directory = directory(&scene, "files");
    let first = redis_in(&directory, scene.ipv4(SERVER_PORT + 2), &saves);
    let seed = &mut Seed::choose("redisreload");
    {
        // redis finds a dump at the start.
        let _other = scene.plain(&first);
        let mut client = Client::to(&scene, scene.ipv4(SERVER_PORT + 2));
        fill(&mut client, seed);
        assert_eq!(client.ask(&["SAVE"]), "+OK");
    }
    let server = scene.protect_with(
        &redis_in(&directory, scene.ipv4(SERVER_PORT), &saves),
        &STATEFUL_REQUIRE,
    );
    let mut client = Client::new(&scene);
    for death in 1..=3 {
        fill(&mut client, seed);
        let digest = client.ask(&["DEBUG", "DIGEST"]);
        assert_eq!(client.ask(&["DEBUG", "RELOAD"]), "+OK");
        assert_eq!(client.ask(&["DEBUG", "DIGEST"]), digest);
        fill(&mut client, seed);
        assert!(client.ask(&["BGSAVE"]).starts_with('+'));
        await_saved(&scene);
        let (saved, digest) = (files(&directory), client.ask(&["DEBUG", "DIGEST"]));
        kill(&server, death);
        assert_eq!(client.ask(&["DEBUG", "DIGEST"]), digest);
        assert!(files(&directory) == saved, "its files are others");
    }
    assert_all_recovered(&server);
}

/// redis begins a log on request and renames the log: the next incarnations append to the renamed file.
#[test]
fn redis_append_to_renamed_log_survives() {
    let scene = Scene::new("redisnewlog");
    let directory = directory(&scene, "files");
    let server = redis_in(&directory, scene.ipv4(SERVER_PORT), &["--save", ""]);
    let server = scene.protect_with(&server, &STATEFUL_REQUIRE);
    let seed = &mut Seed::choose("redisnewlog");
    let mut client = Client::new(&scene);
    let begin = ["CONFIG", "SET", "appendonly", "yes"];
    assert_eq!(client.ask(&begin), "+OK");
    await_saved(&scene);
    let names: Vec<PathBuf> = files(&directory).into_keys().collect();
    for death in 1..=4 {
        fill(&mut client, seed);
        kill(&server, death);
        fill(&mut client, seed);
        let digest = client.ask(&["DEBUG", "DIGEST"]);
        assert_eq!(client.ask(&["DEBUG", "LOADAOF"]), "+OK");
        assert_eq!(client.ask(&["DEBUG", "DIGEST"]), digest);
        let logs = ["--save", "", "--appendonly", "yes"];
        assert_eq!(digest_of(&scene, &directory, &logs), digest);
        let now: Vec<PathBuf> = files(&directory).into_keys().collect();
        assert_eq!(now, names, "and nothing else");
    }
    assert_all_recovered(&server);
}

/// Each command is in the log once, after any kind of death, at any time.
#[test]
fn redis_append_is_written_once() {
    let scene = Scene::new("redislog");
    let saves = [
        "--save",
        "",
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
    ];
    let directory = directory(&scene, "files");
    let server = scene.protect_with(
        &redis_in(&directory, scene.ipv4(SERVER_PORT), &saves),
        &STATEFUL_REQUIRE,
    );
    let seed = &mut Seed::choose("redislog");
    let mut client = Client::new(&scene);
    for round in 1..=6 {
        thread::scope(|scope| {
            let scene = &scene;
            let counter = scope.spawn(move || {
                let mut client = Client::new(scene);
                for _ in 0..500 {
                    client.ask(&["INCR", "counter"]);
                    client.ask(&["RPUSH", "list", "one"]);
                }
            });
            thread::sleep(Duration::from_millis(seed.between(10, 300) as u64));
            kill(&server, round);
            counter.join().expect("it has counted");
        });
        fill(&mut client, seed);
        if round % 3 == 2 {
            assert!(client.ask(&["BGREWRITEAOF"]).starts_with('+'));
            await_saved(&scene);
        }
        let digest = client.ask(&["DEBUG", "DIGEST"]);
        assert_eq!(client.ask(&["GET", "counter"]), (round * 500).to_string());
        assert_eq!(
            digest_of(&scene, &directory, &saves),
            digest,
            "round {round}"
        );
    }
    assert_all_recovered(&server);
}

/// Another program replaces or removes a file that redis has read: the next incarnations read the old content.
#[test]
fn externally_replaced_file_is_read_as_before() {
    let scene = Scene::new("replaced");
    let (notes, new) = (
        scene.directory().join("notes"),
        scene.directory().join("new"),
    );
    let server = scene.protect_with(
        &servers::command_server(&scene, "/usr/bin/python3"),
        &STATEFUL_REQUIRE,
    );
    let mut client = command_server::Client::new(&scene);
    for (round, text) in [(1, "one"), (2, "twice"), (3, "three times")] {
        fs::write(&new, text).expect("written");
        fs::rename(&new, &notes).expect("replaced");
        let length = text.len().to_string();
        assert_eq!(client.ask("read"), length);
        kill(&server, round);
        assert_eq!(client.ask("read"), length);
    }
    fs::remove_file(&notes).expect("it was there");
    kill(&server, 4);
    fs::write(&notes, "there again").expect("written");
    assert_eq!(client.ask("read"), "11");
    assert_all_recovered(&server);
}

/// The same for a file of an image.
#[test]
fn externally_replaced_file_is_read_as_before_by_image() {
    let scene = Scene::new("imaged");
    let criu = checkpoints::criu();
    let flags = checkpoints::flags(&criu, &["--checkpoint-every", "1s"]);
    let server = scene.protect_with(&servers::command_server(&scene, "/usr/bin/python3"), &flags);
    let mut client = command_server::Client::new(&scene);
    let notes = scene.directory().join("notes");
    fs::write(&notes, "first").expect("written");
    assert_eq!(client.ask("read"), "5");
    let new = scene.directory().join("new");
    fs::write(&new, "another").expect("written");
    fs::rename(&new, &notes).expect("replaced");
    // The last command is not in the image: by this command the file has been closed.
    assert_eq!(client.ask("count"), "2");
    server.wait_for("checkpointed", 1);
    kill(&server, 1);
    assert_eq!(client.ask("read"), "7");
    assert_all_recovered(&server);
}

/// A replay finds the earlier content of a file, or fails.
#[test]
fn changed_file_is_reread_or_reported() {
    let scene = Scene::new("reader");
    let server = scene.protect_with(
        &servers::command_server(&scene, "/usr/bin/python3"),
        &STATEFUL_REQUIRE,
    );
    let mut client = command_server::Client::new(&scene);
    for (round, length) in [(1, "6"), (2, "12"), (3, "18")] {
        client.say("note");
        assert_eq!(client.ask("read"), length);
        kill(&server, round);
        assert_eq!(client.ask("read"), length);
    }
    assert_all_recovered(&server);
    fs::write(scene.directory().join("notes"), "other\nother\nother\n").expect("written");
    server.kill_main(Signal::KILL);
    let serving = server.wait_serving(4);
    assert_eq!(
        (&serving["recovered"], &serving["reset"]),
        (&0.into(), &1.into()),
        "{serving}"
    );
    let trouble = server.wait_for("warning", 1);
    assert!(
        trouble["message"].to_string().contains("a file"),
        "{trouble}"
    );
}

/// The restarted server listens on the UNIX socket, although the dead incarnation has left the socket file.
#[test]
fn redis_unix_socket_survives_restart() {
    let scene = Scene::new("redisunix");
    let path = scene.directory().join("redis.sock");
    let mut redis = servers::redis(&scene);
    let more = ["--unixsocket".to_owned(), path.display().to_string()];
    redis.command.extend(more);
    let server = scene.protect_with(&redis, &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    for life in 1..=3 {
        let answer = client.ask(&["INCR", "lives"]);
        assert_eq!(answer, format!(":{life}"));
        kill(&server, life);
    }
    let mut local = std::os::unix::net::UnixStream::connect(&path).expect("it listens");
    local.write_all(b"PING\r\n").expect("sent");
    let mut pong = [0; 7];
    local.read_exact(&mut pong).expect("an answer");
    assert_eq!(&pong, b"+PONG\r\n");
    assert_eq!(client.ask(&["GET", "lives"]), "3");
    server.assert_none_of("connection_reset");
}
