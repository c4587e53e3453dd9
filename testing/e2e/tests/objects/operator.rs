//! The operator's view of a pool: status, events, metrics.

use std::io::Write as _;
use std::os::unix::fs::symlink;

use e2e::Scene;
use e2e::arrange::wait_until;
use e2e::pool::{Pool, PoolProgram, pool_addresses};
use lab::Host;
use serde_json::Value;

use super::Download;

const METRICS_ADDRESS: &str = "127.0.0.1:9602";

/// The lines of JSON of a command that ends with status 0.
fn lines(program: &PoolProgram, arguments: &[&str]) -> Vec<Value> {
    let output = program.outlive(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("JSON")
}

fn words(program: &PoolProgram, arguments: &[&str]) -> String {
    let output = program.outlive(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn status(program: &PoolProgram) -> Value {
    let all = lines(program, &["status", "--connections"]);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone()
}

/// A download that is read up to a part, after the death of its first member. Returns the other member, too.
fn revived_download(pool: &Pool) -> (Download, usize) {
    let mut download = Download::begin(pool, pool_addresses()[0]);
    let dies = pool.server_of(download.client());
    pool.members[dies].program.host.power_off().expect("off");
    pool.await_members(1);
    // A client whose window is shut is revived when the window opens.
    download.read_up_to(download.bytes.len() + (1 << 20));
    wait_until("the download is revived", || pool.revived().len() == 1);
    (download, 1 - dies)
}

fn metrics(host: &Host) -> String {
    let output = host
        .command("curl")
        .args([
            "--silent",
            "--fail",
            &format!("http://{METRICS_ADDRESS}/metrics"),
        ])
        .output()
        .expect("curl starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn status_of_a_member_has_the_revived_object() {
    let pool = Pool::of("objects-status", 2);
    let (download, other) = revived_download(&pool);
    let member = &pool.members[other];
    let shown = status(&member.program);
    assert_eq!(shown["version"], 1);
    assert_eq!(shown["member"], *member.name);
    assert_eq!(shown["stage"], "serving");
    assert!(shown["pool"]["lease_ms"].is_u64(), "{shown}");
    assert_eq!(shown["totals"]["revived"], 1);
    assert_eq!(shown["connections"], 1);
    let flow = serde_json::json!({"phase": "body", "held_by": "client", "connections": 1});
    assert_eq!(shown["flows"], Value::from(vec![flow]));
    let connection = &shown["list"][0];
    let ends = format!("{} -> {}", download.client(), pool_addresses()[0]);
    assert_eq!(connection["connection"], ends);
    assert_eq!(connection["object"], "/big.bin");
    let offset = connection["offset"].as_u64().expect("an offset");
    assert!(offset >= super::FIRST_PART as u64 / 2, "{shown}");
    let text = words(&member.program, &["status", "--connections"]);
    assert!(text.contains("1 held by their clients"), "{text}");
    assert!(text.contains("/big.bin, byte "), "{text}");
    download.finish();
    pool.stop();
}

#[test]
fn status_of_a_member_has_the_reason_against_protection() {
    let pool = Pool::of("objects-status-bare", 1);
    let address = pool_addresses()[0];
    let mut http = pool.scene.connect_to(address);
    let request = format!(
        "GET /big.bin HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
    );
    http.write_all(request.as_bytes()).expect("room");
    let program = &pool.members[0].program;
    program.wait_for("unprotected", 1);
    let shown = status(program);
    assert_eq!(shown["unprotected_by"], serde_json::json!({"upgraded": 1}));
    assert_eq!(shown["list"][0]["reason"], "upgraded");
    assert_eq!(shown["list"][0]["held_by"], "none");
    let events = lines(program, &["events"]);
    let unprotected = events.iter().find(|event| event["event"] == "unprotected");
    assert_eq!(unprotected.expect("the event")["code"], "upgraded");
    drop(http);
    pool.stop();
}

#[test]
fn host_with_balancer_and_member_shows_both() {
    let pool = Pool::of("objects-status-both", 1);
    // Programs of two hosts, as in the run directory of one host.
    let both = both_in_one(&pool.scene);
    let program = &pool.members[0].program;
    let arguments = ["status", "--run-dir", &both];
    let shown = lines(program, &arguments);
    assert_eq!(shown.len(), 2, "{shown:?}");
    assert_eq!(shown[0]["pool"], "pool");
    assert_eq!(shown[0]["members"][0]["name"], "web1");
    assert_eq!(shown[1]["member"], "web1");
    let text = words(program, &arguments);
    assert!(text.starts_with("pool: "), "{text}");
    assert!(text.contains("\nweb1: serving on "), "{text}");
    let ambiguous = program.outlive(&["events", "--run-dir", &both]);
    let message = String::from_utf8_lossy(&ambiguous.stderr).into_owned();
    assert_eq!(ambiguous.status.code(), Some(64));
    assert!(message.contains("pool, web1"), "{message}");
    let of_pool = lines(program, &["events", "--run-dir", &both, "pool"]);
    assert!(of_pool.iter().any(|event| event["event"] == "joined"));
    pool.stop();
}

fn both_in_one(scene: &Scene) -> String {
    let both = scene.run_dir().join("both");
    std::fs::create_dir(&both).expect("a directory");
    for (program, part) in [("balancer", ".balance"), ("web1", ".objects")] {
        symlink(scene.run_dir().join(program).join(part), both.join(part)).expect("a link");
    }
    both.to_string_lossy().into_owned()
}

#[test]
fn events_of_members_and_balancer_can_be_read_later() {
    let pool = Pool::of("objects-events", 2);
    let (download, other) = revived_download(&pool);
    let member = &pool.members[other];
    let events = lines(&member.program, &["events"]);
    let kinds: Vec<&str> = events
        .iter()
        .filter_map(|event| event["event"].as_str())
        .collect();
    for kind in ["serving", "joined", "pool_changed", "revived"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    for event in &events {
        assert_eq!(event["version"], 1);
        assert_eq!(event["member"], *member.name);
        assert!(
            event["message"].is_string() && event["run_unix_us"].is_u64(),
            "{event}"
        );
    }
    let revived = events.iter().find(|event| event["event"] == "revived");
    let revived = revived.expect("the event");
    assert_eq!(revived["client"], download.client().to_string());
    assert_eq!(revived["object"], "/big.bin");
    assert_eq!(revived, &pool.revived()[0]);
    let text = words(&member.program, &["events"]);
    assert!(
        text.contains(&format!("Z {} goes on with /big.bin", member.name)),
        "{text}"
    );
    let of_balancer = lines(&pool.balancer, &["events", "pool"]);
    let dead = of_balancer
        .iter()
        .find(|event| event["event"] == "declared_dead");
    let dead = dead.expect("the event");
    assert_eq!(dead["member"], *pool.members[1 - other].name);
    assert_eq!(dead["pool"], "pool");
    download.finish();
    pool.stop();
}

#[test]
fn metrics_of_a_member_count_revivals() {
    let mut pool = Pool::of("objects-metrics", 0);
    pool.add_member(&["--metrics", METRICS_ADDRESS]);
    pool.add_member(&["--metrics", METRICS_ADDRESS]);
    let (download, other) = revived_download(&pool);
    let program = &pool.members[other].program;
    let text = metrics(&program.host);
    let parsed = text.lines().map(|line| Ok(line.to_owned()));
    let parsed = prometheus_parse::Scrape::parse(parsed).expect("metrics");
    let value = |metric: &str, label: (&str, &str)| {
        let has = |sample: &&prometheus_parse::Sample| {
            sample.metric == metric && sample.labels.get(label.0) == Some(label.1)
        };
        let sample = parsed.samples.iter().find(has);
        match &sample
            .unwrap_or_else(|| panic!("no {metric} {label:?}: {text}"))
            .value
        {
            prometheus_parse::Value::Counter(value) | prometheus_parse::Value::Gauge(value) => {
                *value
            }
            value => panic!("{metric}: {value:?}"),
        }
    };
    let name = ("member", pool.members[other].name.as_str());
    assert_eq!(
        value("outlive_objects_revivals_total", ("outcome", "revived")),
        1.0
    );
    assert_eq!(
        value("outlive_objects_revivals_total", ("outcome", "refused")),
        0.0
    );
    assert_eq!(value("outlive_objects_stage", ("state", "serving")), 1.0);
    assert_eq!(value("outlive_objects_members", name), 1.0);
    let health = format!("http://{METRICS_ADDRESS}/health");
    let health = e2e::arrange::run(&program.host, &format!("curl --silent --fail {health}"));
    assert!(health.contains("connections"), "{health}");
    download.finish();
    pool.stop();
}
