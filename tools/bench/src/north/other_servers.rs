//! Servers with state that are not redis: messages of mosquitto, and requests to nginx by TLS.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::Bench;
use crate::figure::{Aim, Figure, column, ratios};
use crate::stage::PORT;
use crate::subject::{Mode, Server, alternate};
use crate::traffic::{on_client, wrk};
use harness::nginx;

const MODES: [(Mode, &str); 4] = [
    (Mode::Plain, "plain"),
    (Mode::Wrapped, "recorded"),
    (Mode::Committed(0), "committed"),
    (Mode::Committed(1000), "committed.1ms"),
];
/// Least part of the plain speed.
const AIM_RATIO: f64 = 0.85;

/// Messages a second from a client through mosquitto to another client, each confirmed to the sender. First as
/// mosquitto comes; then without Nagle's algorithm (RFC 1122 4.2.3.4) in mosquitto and the clients. With Nagle's
/// algorithm a side holds a message back until the message before is acknowledged. Now and then both sides then wait
/// for a delayed acknowledgement, 40 ms. Small differences in time change how often, and that effect is larger than
/// the measured cost.
pub(crate) fn messages(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = sent(bench, "north.mosquitto", "", "")?;
    let at_once = ("set_tcp_nodelay true\n", " --nodelay");
    figures.extend(sent(
        bench,
        "north.mosquitto.nodelay",
        at_once.0,
        at_once.1,
    )?);
    Ok(figures)
}

fn sent(bench: &Bench, name: &str, configured: &str, option: &str) -> Result<Vec<Figure>> {
    let address = bench.stage.address(PORT);
    let config = bench.stage.file("mosquitto.conf");
    let text = format!(
        "user root\nlistener {PORT} {}\nallow_anonymous true\nmax_queued_messages 0\n{configured}",
        address.ip()
    );
    fs::write(&config, text)?;
    let command = ["mosquitto", "-c"].map(Into::into);
    let command = command.into_iter().chain([config.into()]).collect();
    let server = Server::of(command, PORT).pinned();
    // `mosquitto_pub -l` ends with the acknowledgement of the packet id of the last line. Ids have 16 bits. With more
    // lines, the first acknowledgement of that id ends the program, and unacknowledged lines are lost.
    let count = bench.size("60000", "20000");
    let heard = bench.stage.file("heard");
    let script = CONVERSATION
        .replace("PLACE", &format!("-h {} -p {PORT}{option}", address.ip()))
        .replace("COUNT", count)
        .replace("HEARD", &heard.to_string_lossy());
    bench.say(format_args!("{count} messages by mosquitto{option}"));
    let modes = MODES.map(|(mode, _)| mode);
    let runs = alternate(bench, &server, &modes, |_| {
        let said = on_client(bench, "sh", &["-ec", &script])?;
        let seconds: f64 = said
            .trim()
            .parse()
            .with_context(|| format!("the clients said {said}"))?;
        Ok([count.parse::<f64>()? / seconds])
    })?;
    let how = format!(
        "mosquitto_pub{option} -q 1 -l of {count} lines, mosquitto_sub{option} -q 1, which has heard them all"
    );
    Ok(compared(name, &runs, &how))
}

/// A retained message tells that the subscription is ready. The script then prints the duration, in seconds.
const CONVERSATION: &str = "
mosquitto_pub PLACE -t bench -q 1 -r -m ready
stdbuf -oL mosquitto_sub PLACE -t bench -q 1 -C $((COUNT + 1)) >HEARD &
until [ -s HEARD ]; do sleep 0.01; done
begin=$(date +%s%N)
seq COUNT | mosquitto_pub PLACE -t bench -q 1 -l
wait $!
end=$(date +%s%N)
mosquitto_pub PLACE -t bench -q 1 -r -n
rm HEARD
echo $((end - begin)) | awk '{ print $1 / 1e9 }'
";

/// Requests a second.
pub(crate) fn tls(bench: &Bench) -> Result<Vec<Figure>> {
    let directory = bench.stage.testbed.directory();
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]);
    openssl.args([
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-subj",
        "/CN=bench",
    ]);
    openssl.arg("-out").arg(directory.join("cert.pem"));
    openssl.arg("-keyout").arg(directory.join("key.pem"));
    let output = openssl.output().context("openssl")?;
    ensure!(output.status.success(), "openssl failed: {output:?}");
    let config = bench.stage.file("tls.conf");
    fs::write(
        &config,
        nginx::with_tls(directory, bench.stage.address(PORT)),
    )?;
    let server = Server::nginx_with(bench, "tls.conf").pinned();
    let url = format!("https://{}/small", bench.stage.address(PORT));
    let duration = bench.size("-d2s", "-d1s");
    bench.say("wrk by TLS with 16 connections");
    let modes = MODES.map(|(mode, _)| mode);
    let runs = alternate(bench, &server, &modes, |_| {
        Ok([wrk(bench, &["-t1", "-c16", duration, &url])?])
    })?;
    let how = format!(
        "wrk -t1 -c16 {duration} of an object of 128 bytes by TLS 1.3, nginx as one process"
    );
    Ok(compared("north.tls", &runs, &how))
}

/// Speeds, and the ratio of each to the plain speed.
fn compared(name: &str, runs: &[Vec<[f64; 1]>], how: &str) -> Vec<Figure> {
    let plain = column(&runs[0], 0);
    let mut figures = Vec::new();
    for (runs, (_, mode)) in runs.iter().zip(MODES) {
        let speeds = column(runs, 0);
        figures.push(Figure::of(format!("{name}.{mode}"), "1/s", &speeds, how));
        if mode == "plain" {
            continue;
        }
        let ratio = Figure::of(
            format!("{name}.{mode}.ratio"),
            "",
            &ratios(&plain, &speeds),
            how,
        );
        figures.push(match mode {
            "committed.1ms" => ratio,
            _ => ratio.aim(Aim::AtLeast(AIM_RATIO), super::BOUND),
        });
    }
    figures
}
