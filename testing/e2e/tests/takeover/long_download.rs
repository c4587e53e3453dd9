//! A long download while the service moves from host to host.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use e2e::exchange::assert_untouched;
use e2e::pair::{FailOver, Pair, addresses};
use e2e::servers::{SERVER_PORT, nginx_at};
use e2e::speakers::Speakers;
use e2e::{EVENT_TIMEOUT, assert_same_bytes, pattern};
use lab::Output;

/// For how long, in seconds; `make soak` says more.
const SECONDS_VARIABLE: &str = "OUTLIVE_STREAM_SECONDS";
/// Bytes that the client reads in a second. Buffers between server and client hold only a few seconds' worth: until
/// then the server still sends.
const BYTES_PER_SECOND: usize = 1 << 20;
/// Between two hosts.
const HOST_CHANGE_INTERVAL: Duration = Duration::from_secs(2);

#[test]
fn long_download_survives_host_after_host() {
    let seconds =
        std::env::var(SECONDS_VARIABLE).map_or(20, |text| text.parse().expect("a number"));
    let mut pair = Pair::new("takeover-stream", |scene| {
        nginx_at(scene, addresses().to_vec())
    });
    let content = pattern(seconds * BYTES_PER_SECOND);
    pair.scene.write("www/long.bin", &content);
    let recording = pair.scene.record(SERVER_PORT);
    let speakers = Speakers::listen(&pair.scene.client, &addresses());
    let mut holders = vec![mac(&pair)];
    let got = pair.scene.directory().join("got");
    let mut curl = pair.scene.client.command("curl");
    let (url, rate) = (
        format!("http://{}/long.bin", addresses()[0]),
        BYTES_PER_SECOND.to_string(),
    );
    curl.args(["-q", "-sS", "--limit-rate", &rate, "-o"])
        .arg(&got)
        .arg(url);
    let output = Output::File(pair.scene.directory().join("curl.said"));
    let began = Instant::now();
    let curl = pair.scene.client.spawn(&mut curl, &output).expect("curl");
    let mut ways = [FailOver::PowerOff, FailOver::Switchover, FailOver::Stop]
        .into_iter()
        .cycle();
    thread::sleep(HOST_CHANGE_INTERVAL);
    while curl
        .wait_with_timeout(Duration::ZERO)
        .expect("wait")
        .is_none()
    {
        let limit =
            Duration::from_secs(u64::try_from(seconds).expect("few")) * 5 + 5 * EVENT_TIMEOUT;
        assert!(began.elapsed() < limit, "it hangs");
        pair.fail_over_while_clients_leave(ways.next().expect("endless"));
        holders.push(mac(&pair));
        let _ = curl.wait_with_timeout(HOST_CHANGE_INTERVAL);
    }
    let ended = curl
        .wait_with_timeout(EVENT_TIMEOUT)
        .expect("wait")
        .expect("it has ended");
    let moves = holders.len() - 1;
    println!("{ended}, {:.0?} and {moves} hosts later", began.elapsed());
    assert!(ended.success(), "{ended}");
    assert!(moves >= seconds / 10, "only {moves} moves");
    assert_same_bytes("download", &content, &fs::read(&got).expect("a file"));
    assert_untouched(recording, 1);
    // Each new holder announces the address, even after the end of the download.
    speakers.finish().assert_one_at_a_time(&holders);
    pair.stop();
}

fn mac(pair: &Pair) -> lab::Mac {
    pair.first.host().mac("eth0").expect("it has one")
}
