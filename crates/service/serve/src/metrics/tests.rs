use std::collections::BTreeMap;

use ::metrics::{Health, Numbers, text};
use dataplane::Counters;

use super::{MODES, STAGES, STEPS};
use crate::{
    CheckpointStatus, CommitStatus, EventCounters, RecordStatus, ReplicaStatus, Status, counters,
    status::STANDBY,
};

/// A status with all fields.
fn status() -> Status {
    let mut totals = EventCounters {
        last_ms: BTreeMap::from(STEPS.map(|step| (step.to_owned(), 250.0))),
        last_checkpoint: Some((900, 40)),
        ..EventCounters::default()
    };
    totals.reset.insert("quarantined".into(), 2);
    totals.pauses.observe(0.25);
    totals.checkpoints.observe(1.5);
    Status {
        version: 1,
        service: "web".into(),
        addresses: vec!["192.0.2.1:80".into()],
        stage: "serving".into(),
        server_pid: Some(7),
        serve_pid: 6,
        logger_pid: None,
        logger: "192.0.2.9:7600".into(),
        incarnation: 2,
        uptime_ms: 1500.0,
        replay: "connection".into(),
        interfaces: vec!["lo (tcx)".into()],
        connections: 9,
        unprotected: 3,
        unseen: 0,
        waiting_for_request: 1,
        spliced: 4,
        replica: Some(ReplicaStatus {
            pid: 8,
            record_bytes: 700,
            lag_bytes: 50,
            not_listening: vec![],
        }),
        determinant_log_bytes: Some(60),
        output_commit: Some(CommitStatus {
            iterations: 40,
            waits: 30,
            waited_ms: 250.0,
        }),
        record_ended: None,
        checkpoint: Some(CheckpointStatus {
            record_bytes: 2000,
            image_bytes: 5000,
        }),
        recorded_bytes: 1000,
        held_bytes: 800,
        limit_bytes: 4000,
        connection_limit_bytes: 1000,
        survives: String::new(),
        modes: [("spliced".into(), 4), ("observed".into(), 5)].into(),
        unprotected_by: [("awaits_request".into(), 1), ("total_limit".into(), 2)].into(),
        lease: None,
        standby_present: Some(true),
        other_host: None,
        epoch: None,
        logger_up: true,
        record: Some(RecordStatus {
            connections: 6,
            unprotected: 0,
            instream_bytes: 1000,
            outstream_bytes: 100,
            frames: 20,
            malformed_frames: 1,
            unknown_frames: 2,
        }),
        totals,
        counters: [("mirrored".into(), 20)].into(),
        list: Vec::new(),
    }
}

#[test]
fn status_becomes_metrics() {
    let text = text(status()).expect("text");
    for line in [
        r#"outlive_connections{service="web",protection="protected"} 6"#,
        r#"outlive_connections{service="web",protection="from_next_request"} 1"#,
        r#"outlive_connections{service="web",protection="unprotected"} 2"#,
        r#"outlive_unprotected_connections{service="web",reason="total_limit"} 2"#,
        r#"outlive_connection_modes{service="web",mode="spliced"} 4"#,
        r#"outlive_recorded_bytes_total{service="web",stream="instream"} 1000"#,
        r#"outlive_connections_reset_total{service="web",reason="quarantined"} 2"#,
        r#"outlive_connections_reset_total{service="web",reason="diverged"} 0"#,
        r#"outlive_last_recovery_seconds{service="web",step="live"} 0.25"#,
        r#"outlive_recovery_seconds_count{service="web"} 1"#,
        r#"outlive_dataplane_mirrored_total{service="web"} 20"#,
        r#"outlive_stage{service="web",state="serving"} 1"#,
        r#"outlive_replica_running{service="web"} 1"#,
        r#"outlive_standby_present{service="web"} 1"#,
        r#"outlive_replica_lag_bytes{service="web"} 50"#,
        r#"outlive_record_held_bytes{service="web"} 800"#,
        r#"outlive_record_limit_bytes{service="web"} 4000"#,
        r#"outlive_determinant_log_bytes{service="web"} 60"#,
        r#"outlive_determinant_log_active{service="web"} 1"#,
        r#"outlive_output_commit_iterations_total{service="web"} 40"#,
        r#"outlive_output_commit_waits_total{service="web"} 30"#,
        r#"outlive_output_commit_wait_seconds_total{service="web"} 0.25"#,
        r#"outlive_checkpoint_seconds_count{service="web"} 1"#,
        r#"outlive_last_checkpoint_bytes{service="web",part="image"} 5000"#,
        r#"outlive_last_checkpoint_bytes{service="web",part="record_before"} 900"#,
        r#"outlive_last_checkpoint_bytes{service="web",part="record_after"} 40"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}

#[test]
fn service_without_server_or_logger_is_unhealthy() {
    assert!(matches!(status().health(), Health::Well(_)));
    // A standby has no waiting clients.
    let well = ["serving", STANDBY];
    for stage in STAGES.into_iter().filter(|stage| !well.contains(stage)) {
        let mut other = status();
        other.stage = stage.to_owned();
        assert!(matches!(other.health(), Health::Ill(_)), "{stage}");
    }
    for stage in well {
        let mut other = status();
        other.stage = stage.to_owned();
        assert!(matches!(other.health(), Health::Well(_)), "{stage}");
        other.logger_up = false;
        assert!(matches!(other.health(), Health::Ill(_)), "{stage}");
    }
}

#[test]
fn service_with_ended_record_is_unhealthy() {
    let mut other = status();
    other.record_ended = Some("there is no room".into());
    assert!(matches!(other.health(), Health::Ill(why) if why.contains("no room")));
    let text = text(other).expect("text");
    assert!(
        text.contains("outlive_determinant_log_active{service=\"web\"} 0"),
        "{text}"
    );
}

#[test]
fn metric_labels_match_status() {
    let steps = counters::steps(&recovery::Timings::default());
    assert_eq!(steps.map(|(step, _)| step), STEPS);
    assert!(MODES.contains(&"diverged"));
    let names: Vec<&str> = Counters::DESCRIBED.iter().map(|(name, _)| *name).collect();
    assert!(names.contains(&"mirrored"), "{names:?}");
}

/// On failure, the test prints the right table.
#[test]
fn manual_lists_all_metrics() {
    let text = text(status()).expect("text");
    let manual = include_str!("../../../../../docs/operating/metrics.md");
    let table = ::metrics::table(&text);
    assert!(
        manual.contains(&table),
        "docs/operating/metrics.md lacks\n{table}"
    );
}
