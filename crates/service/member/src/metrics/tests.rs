use ::metrics::{Health, Numbers, table, text};

use super::*;
use crate::{event::Event, status::tests::example};

#[test]
fn numbers_have_their_labels() {
    let text = text(example()).expect("text");
    for line in [
        r#"outlive_objects_stage{member="web1",state="serving"} 1"#,
        r#"outlive_objects_flows{member="web1",phase="body",held_by="none"} 3"#,
        r#"outlive_objects_flows{member="web1",phase="asked",held_by="client"} 0"#,
        r#"outlive_objects_unprotected{member="web1",reason="chunked"} 2"#,
        r#"outlive_objects_revivals_total{member="web1",outcome="revived"} 1"#,
        r#"outlive_objects_refused_total{member="web1",reason="version"} 1"#,
        r#"outlive_objects_revival_seconds_count{member="web1"} 1"#,
        r#"outlive_objects_forwarded_total{member="web1"} 1"#,
        r#"outlive_objects_forged_total{member="web1"} 5"#,
        r#"outlive_objects_store_up{member="web1",store="redis://10.0.0.8:6379"} 0"#,
        r#"outlive_objects_store_operations_total{member="web1",store="redis://10.0.0.8:6379",operation="put",outcome="timed_out"} 3"#,
        r#"outlive_objects_store_seconds_count{member="web1",store="redis://10.0.0.9:6379",operation="put"} 1"#,
        r#"outlive_objects_parked_total{member="web1"} 4"#,
        r#"outlive_objects_events_total{member="web1",kind="refused"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}

#[test]
fn member_without_lease_is_ill() {
    assert!(matches!(example().health(), Health::Well(_)));
    for stage in ["starting", "joining", "silent"] {
        let mut status = example();
        status.stage = stage.to_owned();
        assert!(matches!(status.health(), Health::Ill(_)), "{stage}");
        assert!(STAGES.contains(&stage));
    }
}

#[test]
fn kinds_are_equal_in_json_and_metrics() {
    let events = [
        Event::Serving { incarnation: 1 },
        Event::Left,
        Event::PoolChanged {
            epoch: 1,
            members: 1,
        },
        Event::Refused {
            client: ([192, 0, 2, 2], 40_000).into(),
            code: "version",
            reason: String::new(),
        },
    ];
    for event in events {
        let json = serde_json::to_value(&event).expect("JSON");
        assert_eq!(json["event"], event.kind());
        assert!(KINDS.contains(&event.kind()));
    }
}

#[test]
fn manual_lists_the_metrics() {
    let table = table(&text(example()).expect("text"));
    let manual = include_str!("../../../../../docs/operating/metrics.md");
    assert!(
        manual.contains(&table),
        "docs/operating/metrics.md lacks\n{table}"
    );
}
