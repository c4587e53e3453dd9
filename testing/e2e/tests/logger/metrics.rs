//! Metrics of `serve` and of the logger.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use e2e::arrange::{StartGate, run};
use e2e::loggers::{Logger, key_file};
use e2e::servers::{SERVER_PORT, test_server};
use e2e::{EVENT_TIMEOUT, Scene};
use lab::{Host, Signal};
use prometheus_parse::{Scrape, Value};

use crate::{echoes, echoing, protect, talks};

/// A role that shows metrics.
struct Shown<'a> {
    host: &'a Host,
    address: SocketAddr,
}

impl Shown<'_> {
    /// Status and body of `/health`.
    fn health(&self) -> (String, String) {
        let url = format!("http://{}/health", self.address);
        let limit = EVENT_TIMEOUT.as_secs();
        let said = run(
            self.host,
            &format!("curl -s -m {limit} -w %{{http_code}} {url}"),
        );
        let (body, status) = said.rsplit_once('\n').expect("a line and a status");
        (status.to_owned(), body.to_owned())
    }

    fn scrape(&self) -> Numbers {
        let url = format!("http://{}/metrics", self.address);
        let limit = EVENT_TIMEOUT.as_secs();
        let text = run(self.host, &format!("curl -s -S -f -m {limit} {url}"));
        assert!(text.contains("# TYPE outlive_build_info gauge"), "{text}");
        let lines = text.lines().map(|line| Ok(line.to_owned()));
        Numbers(Scrape::parse(lines).expect("it can be read"))
    }

    /// Scrapes until the numbers satisfy the condition.
    #[track_caller]
    fn until(&self, so: impl Fn(&Numbers) -> bool) -> Numbers {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        loop {
            let numbers = self.scrape();
            if so(&numbers) {
                return numbers;
            }
            assert!(Instant::now() < deadline, "{:#?}", numbers.0.samples);
            thread::sleep(Duration::from_millis(100));
        }
    }
}

struct Numbers(Scrape);

impl Numbers {
    /// The sum of all samples of this name, optionally with this value of a label.
    #[track_caller]
    fn of(&self, name: &str, label: Option<(&str, &str)>) -> f64 {
        let sum = self.so_far(name, label);
        sum.unwrap_or_else(|| panic!("no {name} {label:?}"))
    }

    /// The same; there may be none yet.
    fn so_far(&self, name: &str, label: Option<(&str, &str)>) -> Option<f64> {
        let samples = self.0.samples.iter();
        let fit: Vec<f64> = samples
            .filter(|sample| sample.metric == name)
            .filter(|sample| label.is_none_or(|(key, value)| sample.labels.get(key) == Some(value)))
            .map(|sample| match sample.value {
                Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value) => value,
                ref other => panic!("{name}: {other:?}"),
            })
            .collect();
        (!fit.is_empty()).then(|| fit.iter().sum())
    }
}

#[test]
fn recovery_shows_in_metrics_of_serve_and_logger() {
    let scene = Scene::new("link-metrics");
    let host = scene.lab.add_host_at("logger", 20).expect("a host");
    let [at_logger, at_serve] = [(&host, 9600), (&scene.server, 9601)].map(|(host, port)| Shown {
        host,
        address: (host.address().ipv4(), port).into(),
    });
    let keys = key_file(&scene, "keys");
    let log = scene.directory().join("log");
    let flags = [
        "--dir",
        &log.to_string_lossy(),
        "--metrics",
        &at_logger.address.to_string(),
    ];
    let logger = Logger::start(&scene, &host, &keys, &flags);
    let (server, gate) = StartGate::before(&scene, test_server(&scene));
    let metrics = at_serve.address.to_string();
    let protected = protect(&scene, &server, &logger, &["--metrics", &metrics]);
    let (talk, echo) = (scene.connect(SERVER_PORT), echoing(&scene));
    talks(&talk, "before");
    echoes(&echo, b"before");

    let (status, why) = at_serve.health();
    assert_eq!(status, "200", "{why}");
    let before = at_serve
        .until(|n| n.so_far("outlive_connections", Some(("protection", "protected"))) >= Some(2.0));
    assert_eq!(before.of("outlive_deaths_total", None), 0.0);
    assert_eq!(before.of("outlive_logger_up", None), 1.0);
    let (status, why) = at_logger.health();
    assert_eq!(status, "200", "{why}");
    let kept = at_logger.until(|n| {
        let label = Some(("stream", "instream"));
        n.so_far("outlive_logger_recorded_bytes_total", label) > Some(0.0)
    });
    assert_eq!(
        kept.of("outlive_logger_sessions", Some(("state", "attached"))),
        1.0
    );
    assert_eq!(
        kept.of("outlive_logger_log", Some(("state", "durable"))),
        1.0
    );
    assert!(kept.of("outlive_logger_log_size_bytes", None) > 0.0);

    // During the recovery both endpoints answer, with the present state.
    gate.shut();
    protected.kill_main(Signal::KILL);
    let dying =
        at_serve.until(|n| n.so_far("outlive_stage", Some(("state", "starting"))) == Some(1.0));
    assert_eq!(
        dying.of("outlive_deaths_total", Some(("cause", "signal"))),
        1.0
    );
    assert_eq!(dying.of("outlive_recoveries_total", None), 0.0);
    let (status, why) = at_serve.health();
    assert_eq!(status, "503", "{why}");
    assert!(why.starts_with("not ready, clients wait"), "{why}");
    let meanwhile = at_logger.scrape();
    assert!(meanwhile.of("outlive_logger_segments_total", None) > 0.0);
    gate.open();

    protected.wait_for("verified", 1);
    let after =
        at_serve.until(|n| n.so_far("outlive_stage", Some(("state", "serving"))) == Some(1.0));
    assert_eq!(after.of("outlive_recoveries_total", None), 1.0);
    assert!(after.of("outlive_connections_recovered_total", None) >= 2.0);
    assert_eq!(after.of("outlive_connections_reset_total", None), 0.0);
    assert!(after.of("outlive_replayed_bytes_total", None) > 0.0);
    assert!(after.of("outlive_dataplane_self_acks_total", None) > 0.0);
    let took = after.of("outlive_last_recovery_seconds", Some(("step", "live")));
    assert!(took > 0.0, "{took}");
    let (status, why) = at_serve.health();
    assert_eq!(status, "200", "{why}");
    let acks = meanwhile.of("outlive_logger_acks_total", None);
    echoes(&echo, b"afterwards");
    at_logger.until(|n| n.of("outlive_logger_acks_total", None) > acks);
    protected.stop();
}

#[test]
fn unusable_metrics_address_leaves_nothing() {
    let scene = Scene::new("metrics-taken");
    let protected = scene.protect(&test_server(&scene));
    for (metrics, word, code) in [
        ("192.0.2.1:9601", "192.0.2.1:9601", 69),
        ("10.0.0.10:81", "protected", 64),
    ] {
        let flags = [
            "--address",
            "10.0.0.10:81",
            "--name",
            "other",
            "--metrics",
            metrics,
        ];
        let refused = protected.outlive("serve", &[&flags[..], &["--", "true"]].concat());
        assert_eq!(refused.status, Some(code), "{refused:?}");
        assert!(refused.stderr.contains(word), "{refused:?}");
    }
    protected.stop();
}
