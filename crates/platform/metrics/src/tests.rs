use std::{
    fmt,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Instant,
};

use crate::{Endpoint, Families, Health, Histogram, Label, Numbers, Unit, request, text};

#[derive(Debug, Clone)]
struct Example {
    well: bool,
    times: Histogram,
}

impl Numbers for Example {
    fn labels(&self) -> Vec<Label> {
        vec![("service", "a \"quoted\" one".into())]
    }

    fn families(&self, to: &mut Families<'_>) -> fmt::Result {
        to.info("build", "What it is", vec![("version", "1".into())])?;
        to.counter("taken", Unit::Bytes, "Bytes that were taken", u64::MAX)?;
        let kinds = ["one", "other"].map(|kind| (vec![("kind", kind.into())], 3_u64));
        to.counters("things", Unit::None, "Things", kinds)?;
        to.gauge("age", Unit::Seconds, "How old it is", 0.5)?;
        to.state("stage", "Where it is", &["here", "there"], "there")?;
        to.histogram("waits", "How long it waited", &self.times)
    }

    fn health(&self) -> Health {
        if self.well {
            Health::Well("all is well".into())
        } else {
            Health::Ill("it is broken".into())
        }
    }
}

fn numbers() -> Example {
    let mut times = Histogram::default();
    for seconds in [0.004, 0.006, 0.007, 100.0] {
        times.observe(seconds);
    }
    Example { well: true, times }
}

#[test]
fn families_are_openmetrics_text() {
    let text = text(numbers()).expect("text");
    let label = r#"service="a \"quoted\" one""#;
    for line in [
        "# TYPE build info".to_owned(),
        format!(r#"build_info{{{label},version="1"}} 1"#),
        "# TYPE taken_bytes counter".to_owned(),
        "# UNIT taken_bytes bytes".to_owned(),
        "# HELP taken_bytes Bytes that were taken".to_owned(),
        format!("taken_bytes_total{{{label}}} {}", u64::MAX),
        format!(r#"things_total{{{label},kind="other"}} 3"#),
        format!("age_seconds{{{label}}} 0.5"),
        format!(r#"stage{{{label},state="here"}} 0"#),
        format!(r#"stage{{{label},state="there"}} 1"#),
        format!(r#"waits_seconds_bucket{{le="0.01",{label}}} 3"#),
        format!(r#"waits_seconds_bucket{{le="60.0",{label}}} 3"#),
        format!(r#"waits_seconds_bucket{{le="+Inf",{label}}} 4"#),
        format!("waits_seconds_count{{{label}}} 4"),
    ] {
        let found = text.lines().any(|found| sorted(found) == sorted(&line));
        assert!(found, "{line} in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"), "{text}");
}

/// The order of labels is nobody's business.
fn sorted(line: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = line.split(['{', '}', ',']).collect();
    parts.sort_unstable();
    parts
}

#[test]
fn prometheus_parser_reads_metrics() {
    let text = text(numbers()).expect("text");
    let lines = text.lines().map(|line| Ok(line.to_owned()));
    let read = prometheus_parse::Scrape::parse(lines).expect("it can be read");
    let things = read.samples.iter().filter(|s| s.metric == "things_total");
    assert_eq!(things.count(), 2, "{read:?}");
}

/// The rules of `promtool check metrics`: names of counters with suffixes, and no type `info`.
#[test]
fn text_format_is_offered() {
    let text = crate::format::plain(&text(numbers()).expect("text"));
    let label = r#"service="a \"quoted\" one""#;
    for line in [
        "# TYPE build_info gauge".to_owned(),
        format!(r#"build_info{{{label},version="1"}} 1"#),
        "# HELP taken_bytes_total Bytes that were taken".to_owned(),
        "# TYPE taken_bytes_total counter".to_owned(),
        format!("taken_bytes_total{{{label}}} {}", u64::MAX),
        "# TYPE waits_seconds histogram".to_owned(),
        format!("waits_seconds_count{{{label}}} 4"),
    ] {
        let found = text.lines().any(|found| sorted(found) == sorted(&line));
        assert!(found, "{line} in\n{text}");
    }
    for line in text.lines().filter(|line| line.starts_with('#')) {
        let known = line.starts_with("# HELP ") || line.starts_with("# TYPE ");
        assert!(known && !line.ends_with(" info"), "{line}");
    }
    let lines = text.lines().map(|line| Ok(line.to_owned()));
    let read = prometheus_parse::Scrape::parse(lines).expect("it can be read");
    let things = read.samples.iter().filter(|s| s.metric == "things_total");
    assert_eq!(things.count(), 2, "{read:?}");
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    stream.write_all(request.as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn endpoint_responds_until_dropped() {
    let endpoint = Endpoint::bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let address = endpoint.address().expect("its address");
    let mut asked = 0;
    let running = endpoint
        .run(move || {
            asked += 1;
            match asked {
                1 => Ok(numbers()),
                2 => Ok(Example {
                    well: false,
                    ..numbers()
                }),
                3 => Err("nobody knows".to_owned()),
                _ => Ok(numbers()),
            }
        })
        .expect("it runs");
    let health = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    let well = ask(address, health);
    assert!(well.starts_with("HTTP/1.1 200 OK\r\n"), "{well}");
    assert!(well.ends_with("\r\n\r\nall is well\n"), "{well}");
    let ill = ask(address, health);
    assert!(ill.starts_with("HTTP/1.1 503"), "{ill}");
    assert!(ill.ends_with("it is broken\n"), "{ill}");
    let unknown = ask(address, "GET /metrics HTTP/1.0\r\n\r\n");
    assert!(unknown.starts_with("HTTP/1.1 503"), "{unknown}");
    assert!(unknown.ends_with("nobody knows\n"), "{unknown}");
    let accept = "Accept: application/openmetrics-text;version=1.0.0";
    let metrics = ask(
        address,
        &format!("GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n{accept}\r\n\r\n"),
    );
    assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
    assert!(metrics.contains("application/openmetrics-text"));
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    let plain = ask(
        address,
        "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n",
    );
    assert!(
        plain.contains("Content-Type: text/plain; version=0.0.4"),
        "{plain}"
    );
    assert!(!plain.contains("# EOF"), "{plain}");
    let head = ask(address, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
        ("\u{1}\u{2}\r\n\r\n", "400"),
    ] {
        let answer = ask(address, request);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
    }
    drop(running);
    // The port is free after the thread has noticed the end.
    while Endpoint::bind(address).is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn request_head_is_bounded() {
    assert_eq!(request::parse(b"GET /metrics HTTP/1.1\r\nA: b\r\n"), None);
    let long = [b"GET /".as_slice(), &[b'a'; 9000]].concat();
    let nonsense = Some((request::Wanted::Nonsense, false));
    assert_eq!(request::parse(&long), nonsense);
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
    assert_eq!(request::parse(many.as_bytes()), nonsense);
}

#[test]
fn peer_has_no_time_after_deadline() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("its address");
    let mut peer = TcpStream::connect(address).expect("a connection");
    peer.write_all(b"GET").expect("room");
    let (mut stream, _) = listener.accept().expect("the peer");
    let mut timed = request::Timed::until(&mut stream, Instant::now());
    let read = timed.read(&mut [0; 3]).map_err(|error| error.kind());
    assert_eq!(read, Err(ErrorKind::TimedOut));
    let written = timed.write(b"HTTP").map_err(|error| error.kind());
    assert_eq!(written, Err(ErrorKind::TimedOut));
}

#[test]
fn alert_rules_are_in_the_manual() {
    let rules = include_str!("../../../../packaging/prometheus/outlive.rules.yml");
    let manual = include_str!("../../../../docs/operating/metrics.md");
    let events = include_str!("../../../../docs/events.md");
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    for alert in alerts {
        assert!(events.contains(&format!("| `{alert}` |")), "{alert}");
    }
    let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let expressions = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    let words = expressions.flat_map(|expression| expression.split(|c| !is_of_name(c)));
    for metric in words.filter(|word| word.starts_with("outlive_")) {
        assert!(manual.contains(&format!("| `{metric}` |")), "{metric}");
    }
}
