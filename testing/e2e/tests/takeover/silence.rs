//! A host that must stay silent for longer than Linux keeps a connection with undeliverable segments.

use std::fs;
use std::thread;
use std::time::Duration;

use e2e::arrange::wait_until;
use e2e::exchange::assert_untouched;
use e2e::pair::{Pair, addresses, lease, lease_of};
use e2e::servers::{SERVER_PORT, nginx_at};
use e2e::{EVENT_TIMEOUT, assert_same_bytes, pattern};
use lab::Output;

/// Bytes that the client reads in a second.
const BYTES_PER_SECOND: usize = 1 << 20;
/// Linux gives up a connection after `tcp_retries2` (15) probes, at intervals of half a second.
const GIVE_UP_TIME: Duration = Duration::from_millis(15 * 500);

#[test]
fn download_survives_minutes_of_silence() {
    // A logger without a log might take the standby for the host that serves.
    let log = tempfile::tempdir().expect("a directory");
    let memory = ["--dir", &log.path().to_string_lossy()];
    let mut pair = Pair::with("takeover-silence", &memory, &[], |scene| {
        nginx_at(scene, addresses().to_vec())
    });
    // With a larger buffer the client would have data left, and would send window updates all the time.
    let client = &pair.scene.client;
    client
        .sysctl("net.ipv4.tcp_rmem", "4096 131072 131072")
        .expect("a setting");
    let content = pattern(20 * BYTES_PER_SECOND);
    pair.scene.write("www/long.bin", &content);
    let recording = pair.scene.record(SERVER_PORT);
    let got = pair.scene.directory().join("got");
    let mut curl = client.command("curl");
    curl.args([
        "-q",
        "-sS",
        "--limit-rate",
        &BYTES_PER_SECOND.to_string(),
        "-o",
    ])
    .arg(&got)
    .arg(format!("http://{}/long.bin", addresses()[0]));
    let output = Output::File(pair.scene.directory().join("curl.said"));
    let curl = client.spawn(&mut curl, &output).expect("curl");
    wait_until("the download has begun", || {
        fs::metadata(&got).is_ok_and(|file| file.len() > 1 << 20)
    });
    pair.logger.kill();
    wait_until("the host is silent", || {
        lease_of(&pair.first).contains("is silent")
    });
    thread::sleep(lease() + 2 * GIVE_UP_TIME);
    pair.logger.replace_dead(&pair.scene);
    let ended = curl
        .wait_with_timeout(Duration::from_secs(20) + EVENT_TIMEOUT)
        .expect("wait")
        .expect("it has ended");
    assert!(ended.success(), "{ended}");
    assert_same_bytes("download", &content, &fs::read(&got).expect("a file"));
    assert_untouched(recording, 1);
    pair.stop();
}
