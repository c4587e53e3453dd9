//! Checkpoints at the logger: another host continues from there, with kills at all moments.

use std::time::Duration;

use e2e::{
    Protected, Seed,
    clients::finish,
    exchange::assert_untouched,
    loggers::{Logger, protect, with_logger, with_logger_that},
    pair::{FailOver, Pair, addresses},
    servers::{SERVER_PORT, redis, redis_at},
};
use lab::{Direction, Signal};

use super::{
    STATEFUL_REQUIRE, await_condition,
    checkpoints::{criu, fill, flags, images},
    power_off::{cannot_take_over, client, counting_while, fail_over_and_die},
    redis::Client,
    refusals::serve,
};

/// The metrics address of the logger.
pub(super) const METRICS_ADDRESS: &str = "10.0.0.20:9600";

/// Two hosts that make a checkpoint for each MiB of notes.
fn pair(label: &str) -> Pair {
    let criu = criu();
    let [address, _] = addresses();
    let often = flags(&criu, &["--checkpoint-at", "1MiB"]);
    let logger = ["--metrics", METRICS_ADDRESS];
    Pair::with(label, &logger, &often, |scene| redis_at(scene, address))
}

/// Bytes of the logger's memory for this use.
pub(super) fn held(logger: &Logger, kind: &str) -> u64 {
    let mut curl = logger.host().command("curl");
    curl.args(["-s", "-S", "-f", "-m", "10"]);
    let output = curl
        .arg(format!("http://{METRICS_ADDRESS}/metrics"))
        .output();
    let text = String::from_utf8(output.expect("curl").stdout).expect("text");
    let kind = format!("use=\"{kind}\"}} ");
    let values = text.lines().filter_map(|line| line.split_once(&kind));
    values
        .map(|(_, value)| value.parse::<u64>().expect("a number"))
        .sum()
}

/// Waits for this many further checkpoints.
fn await_checkpoints(server: &Protected, more: usize) {
    let before = server.events_of("checkpointed").len();
    server.wait_for("checkpointed", before + more);
}

/// Under load the service moves from host to host, each time from the last image and the log behind that image. On
/// each host the server dies once.
#[test]
fn redis_checkpoint_survives_power_off() {
    let mut pair = pair("ckhosts");
    let recording = pair.scene.record(SERVER_PORT);
    let seed = &mut Seed::choose("ckhosts");
    let mut quiet = client(&pair.scene);
    fill(&mut quiet, 0, 10_000);
    let state = quiet.ask(&["DBSIZE"]);
    let open = counting_while(&mut pair, 4, |pair| {
        await_checkpoints(&pair.first, 2);
        // The logger has freed the part of the record that an image replaces.
        await_condition("an image, and few notes", || {
            let made = pair.first.events_of("checkpointed");
            let all = made.last().and_then(|last| last["record_bytes"].as_u64());
            held(&pair.logger, "images") > 1 << 20
                && 2 * held(&pair.logger, "notes") < all.expect("a number")
        });
        fail_over_and_die(pair, seed);
        await_checkpoints(&pair.first, 1);
        pair.fail_over(FailOver::PowerOff);
    });
    assert_eq!(quiet.ask(&["GET", "key-9999"]), "value 9999");
    assert!(state.starts_with(":10"), "{state}");
    for stream in [open.stream(), quiet.stream()] {
        finish(stream);
    }
    assert_untouched(recording, 7);
    pair.stop();
}

/// The image comes to the standby when it is made: the takeover uses the same directory.
#[test]
fn image_is_at_the_standby_before_the_takeover() {
    let mut pair = pair("ckahead");
    let mut client = client(&pair.scene);
    fill(&mut client, 0, 30_000);
    let state = client.ask(&["DEBUG", "DIGEST"]);
    let arrived = |number: usize| pair.second.wait_for("image_prefetched", number);
    let first = arrived(1);
    assert!(first["image_bytes"].as_u64() > Some(1 << 20), "{first}");
    // An image that replaces the first one, too.
    let known = pair.second.events_of("image_prefetched").len();
    fill(&mut client, 0, 30_000);
    arrived(known + 1);
    await_condition("the newest image is there", || {
        pair.first.events_of("checkpointed").len()
            == pair.second.events_of("image_prefetched").len()
    });
    let ahead = inodes(&pair.second, "arrival-");
    assert_eq!(ahead.len(), 1, "{ahead:?}");
    pair.fail_over(FailOver::PowerOff);
    assert_eq!(inodes(&pair.first, "image-"), ahead, "{}", pair.first.log());
    assert!(inodes(&pair.first, "arrival-").is_empty());
    assert_eq!(client.ask(&["DEBUG", "DIGEST"]), state);
    drop(client);
    pair.stop();
}

/// The inodes of the directories with these beginnings of names among the images of a service.
fn inodes(service: &Protected, prefix: &str) -> Vec<u64> {
    use std::os::unix::fs::DirEntryExt as _;
    let entries = std::fs::read_dir(service.directory().join("images")).expect("images");
    let entries = entries.map(|entry| entry.expect("an entry"));
    let named = |entry: &std::fs::DirEntry| {
        entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(prefix))
    };
    entries.filter(named).map(|entry| entry.ino()).collect()
}

/// A restarted logger gets the image again, and the log behind the image.
#[test]
fn restarted_logger_gets_checkpoint_again() {
    let mut pair = pair("cklogger");
    let mut client = client(&pair.scene);
    fill(&mut client, 0, 30_000);
    pair.first.wait_for("checkpointed", 1);
    fill(&mut client, 30_000, 1000);
    pair.restart_logger();
    // No output leaves before the logger has the whole image.
    fill(&mut client, 31_000, 1000);
    await_condition("it has the image", || {
        held(&pair.logger, "images") > 1 << 20
    });
    let state = client.ask(&["DEBUG", "DIGEST"]);
    pair.fail_over(FailOver::PowerOff);
    let mut after = self::client(&pair.scene);
    assert_eq!(after.ask(&["DBSIZE"]), ":32000");
    assert_eq!(after.ask(&["DEBUG", "DIGEST"]), state);
    drop((client, after));
    pair.stop();
}

/// A death during the upload of an image leaves the previous image and the log since then.
#[test]
fn death_during_checkpoint_upload_is_masked() {
    let (scene, mut logger) = with_logger_that("ckway", &["--metrics", METRICS_ADDRESS]);
    let (criu, definition) = (criu(), redis(&scene));
    let often = flags(&criu, &["--checkpoint-at", "1MiB"]);
    let mut server = protect(&scene, &definition, &logger, &often);
    let way = logger.flags();
    let all: Vec<&str> = way.iter().map(String::as_str).chain(often).collect();
    let mut client = Client::to(&scene, scene.ipv4(SERVER_PORT));
    for (round, what) in ["server", "serve", "logger"].into_iter().enumerate() {
        upload(&mut client, round * 30_000, &logger);
        let state = client.ask(&["DEBUG", "DIGEST"]);
        let served = server.events_of("serving").len();
        match what {
            "server" => server.kill_main(Signal::KILL),
            "serve" => {
                server.kill_serve_itself();
                server.kill_main(Signal::KILL);
                server.succeed(&scene, &definition, &all);
            }
            _ => {
                logger.kill();
                logger.replace_dead(&scene);
                server.wait_for("logger_restarted", 1);
            }
        }
        put_away(&logger, Duration::ZERO);
        match what {
            "server" => drop(server.wait_serving(served + 1)),
            "serve" => drop(server.wait_serving(1)),
            _ => await_condition("the logger has all of it", || {
                held(&logger, "images") > 1 << 20
            }),
        }
        assert_eq!(client.ask(&["DEBUG", "DIGEST"]), state, "{what}");
        let all = (round + 1) * 30_000;
        assert_eq!(client.ask(&["DBSIZE"]), format!(":{all}"));
        server.assert_none_of("connection_reset");
    }
    drop(client);
    server.stop();
}

/// The other host continues from the previous image and all determinants since then.
#[test]
fn power_off_during_upload_keeps_previous_checkpoint() {
    let mut pair = pair("ckpower");
    let mut client = client(&pair.scene);
    fill(&mut client, 0, 30_000);
    pair.first.wait_for("checkpointed", 1);
    upload(&mut client, 30_000, &pair.logger);
    let state = client.ask(&["DEBUG", "DIGEST"]);
    pair.first.power_off();
    put_away(&pair.logger, Duration::ZERO);
    pair.second.wait_serving(1);
    assert_eq!(client.ask(&["DEBUG", "DIGEST"]), state);
    assert_eq!(client.ask(&["DBSIZE"]), ":60000");
    pair.change_places();
    drop(client);
    pair.stop();
}

/// Makes a checkpoint due by further keys, from the number `from`; returns when the image is on the slow link to the
/// logger.
fn upload(client: &mut Client, from: usize, logger: &Logger) {
    let before = held(logger, "images");
    put_away(logger, Duration::from_millis(60));
    let numbers = from..from + 30_000;
    for number in numbers.clone() {
        client.send(&["SET", &format!("key-{number}"), &format!("value {number}")]);
    }
    for _ in numbers {
        assert_eq!(client.answer(), "+OK");
    }
    await_condition("an image is on its way", || {
        held(logger, "images") > before + (1 << 20)
    });
}

/// Makes the way to the logger this long.
fn put_away(logger: &Logger, delay: Duration) {
    let link = &logger.host().links()[0];
    let adjusted = link.adjust(&Direction::BOTH, |link| link.delay(delay));
    adjusted.expect("a link");
}

/// A host without checkpoints cannot replace the part of the log that an image has replaced.
#[test]
fn standby_without_checkpoints_resets_old_clients() {
    let pair = pair("ckoptions");
    let mut client = client(&pair.scene);
    fill(&mut client, 0, 30_000);
    pair.first.wait_for("checkpointed", 1);
    cannot_take_over(pair, &STATEFUL_REQUIRE, client, "--checkpoint-at");
}

/// Contradicting options and missing requirements are errors at the start.
#[test]
fn missing_checkpoint_requirement_is_reported_at_start() {
    let (scene, logger) = with_logger("ckflags");
    let logger = logger.flags();
    let logger: Vec<&str> = logger.iter().map(String::as_str).collect();
    let often = ["--checkpoint-every", "10s", "--address-device", "eth0"];
    for (more, status, why) in [
        (&["--hot"][..], 64, "omit --hot, or"),
        (&["--criu", "/nowhere/criu"], 78, "make criu"),
    ] {
        let output = serve(
            &scene,
            &[&logger[..], &often, more].concat(),
            &["redis-server"],
        );
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(why), "{said}");
    }
}

/// Where the logger has no room for an image none is made, which is told, and the notes are kept.
#[test]
fn checkpoint_over_logger_limit_is_not_made() {
    let (scene, logger) = with_logger_that("ckroom", &["--limit-total", "4MiB"]);
    let criu = criu();
    let often = flags(&criu, &["--checkpoint-at", "1MiB"]);
    let server = protect(&scene, &redis(&scene), &logger, &often);
    let mut client = Client::to(&scene, scene.ipv4(SERVER_PORT));
    fill(&mut client, 0, 30_000);
    let told = server.wait_for("checkpoint_failed", 1)["reason"].to_string();
    assert!(told.contains("no room"), "{told}");
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    assert_eq!(client.ask(&["DBSIZE"]), ":30000");
    assert_eq!(images(&scene, &server).len(), 0);
    server.assert_none_of("connection_reset");
}

/// A restarted logger without room for the image has no record: a warning reports that, and no client waits.
#[test]
fn checkpoint_not_uploaded_again_is_reported() {
    let (scene, mut logger) = with_logger("ckagain");
    let criu = criu();
    let often = flags(&criu, &["--checkpoint-at", "1MiB"]);
    let server = protect(&scene, &redis(&scene), &logger, &often);
    let mut client = Client::to(&scene, scene.ipv4(SERVER_PORT));
    fill(&mut client, 0, 30_000);
    server.wait_for("checkpointed", 1);
    logger.kill();
    logger.replace_dead_with(&scene, &["--limit-total", "4MiB"]);
    let ended = server.wait_for("recording_stopped", 1)["reason"].to_string();
    assert!(ended.contains("no room"), "{ended}");
    let is_it =
        |one: &serde_json::Value| one["message"].to_string().contains("last checkpoint again");
    await_condition("it is told why", || {
        server.events_of("warning").iter().any(is_it)
    });
    assert_eq!(client.ask(&["DBSIZE"]), ":30000");
    fill(&mut client, 30_000, 1000);
    assert_eq!(client.ask(&["DBSIZE"]), ":31000");
    // The next incarnation starts without state, and is recorded again.
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    assert_eq!(client.answer_or_error(), None, "reset");
    let mut client = Client::to(&scene, scene.ipv4(SERVER_PORT));
    assert_eq!(client.ask(&["DBSIZE"]), ":0");
    fill(&mut client, 0, 100);
    server.kill_main(Signal::KILL);
    server.wait_serving(2);
    assert_eq!(client.ask(&["DBSIZE"]), ":100");
}
