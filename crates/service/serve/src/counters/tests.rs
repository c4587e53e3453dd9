use recovery::{Cause, Event as RecoveryEvent, LostReason, Timings};
use wire::FlowKey;

use std::collections::BTreeSet;

use super::{CAUSES, EventCounters, LOST, kind};
use crate::events::{
    COMMON, Code, Event, EventRecord, FormerInstance, KINDS, Request, Requester, counted,
};

fn connection() -> FlowKey {
    FlowKey::new(
        "192.0.2.1:40000".parse().expect("an address"),
        "192.0.2.2:80".parse().expect("an address"),
    )
}

/// An event of each kind.
fn all() -> Vec<Event> {
    let text = String::new;
    let recovery = [
        RecoveryEvent::Died {
            cause: Cause::NotServing,
            detected_ms: 0.5,
        },
        RecoveryEvent::Restarted {
            pid: 1,
            after_ms: 1.0,
        },
        RecoveryEvent::Listening { after_ms: 1.0 },
        RecoveryEvent::Spliced {
            connections: 3,
            after_ms: 1.0,
        },
        RecoveryEvent::Serving {
            recovered: 3,
            comparing: 2,
            reset: 1,
            replayed_requests: 7,
            replayed_bytes: 1000,
            replayed: vec![],
            timings: Timings {
                detected_ms: 0.5,
                live_ms: 20.0,
                ..Timings::default()
            },
        },
        RecoveryEvent::ConnectionsRecovered { connections: 2 },
        RecoveryEvent::ConnectionReset {
            connection: connection(),
            reason: LostReason::Quarantined { deaths: 3 },
            replayed_requests: 1,
            replayed_bytes: 10,
        },
        RecoveryEvent::ClientReset {
            connection: connection(),
        },
        RecoveryEvent::Verified {
            connections: 3,
            compared: 300,
            tolerated: 1,
            sampled: 5,
            unverified: 20,
        },
    ];
    let mut all = vec![
        Event::Started { pid: 1 },
        Event::Adopted {
            pid: None,
            connections: 0,
        },
        Event::Restored {
            former: FormerInstance::Silent,
            host: Some("a (10.0.0.1)".into()),
            connections: 1,
            lost: 0,
        },
        Event::Protecting {
            addresses: vec![],
            awaits: None,
        },
        Event::NotListening {
            addresses: vec![],
            elsewhere: vec![],
            waited_ms: 5000,
            standby: false,
        },
        Event::Unprotected {
            connection: text(),
            reason: text(),
        },
        Event::WaitingForLogger {
            at_most_ms: Some(30_000),
        },
        Event::Unseen {
            connections: 1,
            example: text(),
        },
        Event::LoggerInUse { logger: text() },
        Event::LoggerLost {
            logger: text(),
            reason: text(),
            connections: None,
        },
        Event::LoggerBack {
            logger: text(),
            waiting: 0,
            unprotected: 0,
        },
        Event::ProtectionResumed { connection: text() },
        Event::LoggerRestarted { connections: 0 },
        Event::StandbyStarted {
            epoch: 1,
            host: None,
        },
        Event::ImagePrefetched {
            image_bytes: 1,
            took_ms: 1,
        },
        Event::ReplicaStarted { pid: 1 },
        Event::CaughtUp { bytes: 1 },
        Event::ReplicaDropped {
            reason: text(),
            retry_ms: None,
        },
        Event::ReplicaPromoted {
            pid: 1,
            lag_bytes: 1,
        },
        Event::Granted { epoch: 2 },
        Event::LeaseRequired {
            required: true,
            host: Some("b (10.0.0.2)".into()),
        },
        Event::Superseded {
            epoch: 3,
            host: None,
        },
        Event::HandedOver,
        Event::Checkpointed {
            record_bytes: 1,
            image_bytes: 2,
            released_bytes: 30,
            left_bytes: 4,
            took_ms: 5000,
        },
        Event::CheckpointFailed { reason: text() },
        Event::RecordingStopped {
            reason: text(),
            record_bytes: 1,
        },
        Event::RecordReset { record_bytes: 1 },
        Event::StartFailed {
            reason: text(),
            retry_ms: 1,
        },
        Event::OperatorRequest {
            request: Request::Switchover,
            by: Requester::ourselves(),
        },
        Event::Cleaned {
            killed: 1,
            addresses: 0,
            settings: 0,
            by: Requester::ourselves(),
        },
        Event::Restarting,
        Event::ServerExited,
        Event::Stopping { signal: 15 },
        Event::UpstreamConnections {
            recovered: 2,
            reset: 1,
        },
        Event::Warning {
            code: Code::StepFailed,
            reason: text(),
        },
    ];
    all.extend(recovery.map(Event::Recovery));
    all
}

#[test]
fn event_kinds_match_json() {
    for (event, described) in all().into_iter().zip(KINDS) {
        let json = serde_json::to_value(EventRecord::now("web", event.clone())).expect("JSON");
        assert_eq!(json["event"], described.name);
        let has: BTreeSet<&str> = json
            .as_object()
            .expect("fields")
            .keys()
            .map(|key| &**key)
            .collect();
        let own = described.fields.split(", ").filter(|name| !name.is_empty());
        let common = COMMON.iter().map(|(name, _)| *name);
        assert_eq!(has, own.chain(common).collect(), "{}", described.name);
        assert!(counted().any(|word| word == kind(&event)), "{event:?}");
    }
    assert_eq!(all().len(), KINDS.len());
}

/// On failure, the test prints the right table.
#[test]
fn manual_lists_all_kinds_and_codes() {
    let manual = include_str!("../../../../../docs/events.md");
    let mut table = String::from("| `event` | its own fields | |\n|---|---|---|\n");
    for kind in KINDS {
        let fields: Vec<String> = kind
            .fields
            .split(", ")
            .map(|name| format!("`{name}`"))
            .collect();
        let fields = if kind.fields.is_empty() {
            String::new()
        } else {
            fields.join(", ")
        };
        table += &format!("| `{}` | {fields} | {} |\n", kind.name, kind.means);
    }
    assert!(manual.contains(&table), "docs/events.md lacks\n{table}");
    let mut table = String::from("| `code` | |\n|---|---|\n");
    for (word, means) in Code::ALL {
        table += &format!("| `{word}` | {means} |\n");
    }
    assert!(manual.contains(&table), "docs/events.md lacks\n{table}");
}

#[test]
fn recovery_is_counted() {
    let mut counters = EventCounters::default();
    for _ in 0..2 {
        all().iter().for_each(|event| counters.add(event));
    }
    assert!(all().iter().all(|event| counters.events[kind(event)] == 2));
    assert_eq!(counters.deaths[CAUSES[2]], 2);
    assert_eq!(counters.reset["quarantined"], 2);
    assert!(LOST.contains(&"quarantined"));
    assert_eq!((counters.recoveries, counters.recovered), (2, 10));
    assert_eq!(counters.replayed_requests, 14);
    assert_eq!(counters.replayed_bytes, 2000);
    assert_eq!((counters.equal_bytes, counters.unverified_bytes), (600, 40));
    assert_eq!((counters.sampled_bytes, counters.tolerated), (10, 2));
    assert_eq!(counters.pauses.count(), 2);
    assert_eq!(counters.last_ms["live"], 20.0);
    assert_eq!(counters.last_ms.len(), 7);
    assert_eq!(counters.checkpoints.count(), 2);
    assert_eq!(counters.last_checkpoint, Some((34, 4)));
    let json = serde_json::to_string(&counters).expect("JSON");
    let read: EventCounters = serde_json::from_str(&json).expect("what was written");
    assert_eq!(read, counters);
}
