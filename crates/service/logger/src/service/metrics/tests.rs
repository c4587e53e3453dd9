use std::time::{Duration, Instant};

use ::metrics::{Health, Histogram, Numbers, text};

use super::{OfSession, Snapshot};
use crate::{durable::LogState, link::LinkStatistics};

fn snapshot(log: Option<(LogState, u64)>) -> Snapshot {
    let session = |instance| OfSession {
        service: "web".into(),
        instance,
        half_open: 2,
        link: LinkStatistics {
            bad_tags: 7,
            ..LinkStatistics::default()
        },
        journal: journal::Statistics {
            connections: 5,
            unprotected: 1,
            ..journal::Statistics::default()
        },
        determinants: 3,
        images: 4,
    };
    Snapshot {
        taken: Instant::now(),
        uptime: Duration::from_secs(1),
        sessions: vec![session(1), session(2)],
        detached: 1,
        streams: 1,
        strangers: 0,
        closed_windows: 0,
        limit_total: 1 << 30,
        log,
        commits: Histogram::default(),
        events: [("attached", 3)].into(),
    }
}

#[test]
fn sessions_of_one_service_are_told_apart() {
    let text = text(snapshot(Some((LogState::Durable, 4096)))).expect("text");
    for line in [
        r#"outlive_logger_connections{service="web",session="0000000000000001",protection="protected"} 4"#,
        r#"outlive_logger_connections{service="web",session="0000000000000002",protection="unprotected"} 1"#,
        r#"outlive_logger_refused_datagrams_total{service="web",session="0000000000000002",reason="bad_tag"} 7"#,
        r#"outlive_logger_memory_bytes{service="web",session="0000000000000002",use="images"} 4"#,
        r#"outlive_logger_sessions{state="detached"} 1"#,
        r#"outlive_logger_log{state="durable"} 1"#,
        "outlive_logger_log_size_bytes 4096",
        r#"outlive_logger_events_total{kind="attached"} 3"#,
        r#"outlive_logger_events_total{kind="log_failed"} 0"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}

#[test]
fn it_is_ill_while_records_are_where_they_should_not_be() {
    for (log, well) in [
        (None, true),
        (Some((LogState::Durable, 0)), true),
        (Some((LogState::CatchingUp, 0)), false),
        (Some((LogState::Failed, 0)), false),
    ] {
        let health = snapshot(log).health();
        assert_eq!(
            matches!(health, Health::Well(_)),
            well,
            "{log:?}: {health:?}"
        );
    }
}

#[test]
fn it_is_ill_when_it_hangs() {
    let mut old = snapshot(None);
    old.taken = old
        .taken
        .checked_sub(Duration::from_secs(9))
        .expect("a host that is up for longer");
    assert!(matches!(old.health(), Health::Ill(_)));
}

/// On a failure the test prints the text that the manual should have.
#[test]
fn the_manual_has_all_of_them() {
    let text = text(snapshot(Some((LogState::Durable, 4096)))).expect("text");
    let manual = include_str!("../../../../../../docs/operating/metrics.md");
    let table = ::metrics::table(&text);
    assert!(
        manual.contains(&table),
        "docs/operating/metrics.md lacks\n{table}"
    );
}
