use super::*;

pub(crate) fn example() -> Status {
    let mut totals = Totals::default();
    for event in [
        Event::Revived {
            client: ([192, 0, 2, 1], 40_000).into(),
            object: Some("/big.iso".into()),
            offset: Some(4711),
            after_us: 12_000,
        },
        Event::Refused {
            client: ([192, 0, 2, 2], 40_000).into(),
            code: "version",
            reason: "another version of the object".into(),
        },
        Event::Forwarded {
            client: ([192, 0, 2, 3], 40_000).into(),
            to: [10, 0, 0, 12].into(),
        },
    ] {
        totals.count(&event);
    }
    let flow = |phase, held_by, connections| FlowCount {
        phase,
        held_by,
        connections,
    };
    Status {
        version: 1,
        member: "web1".into(),
        stage: "serving".into(),
        uptime_ms: 60_000,
        pool: PoolStatus {
            balancers: vec![([10, 0, 0, 1], 7700).into()],
            epoch: Some(7),
            members: 3,
            lease_ms: Some(180),
            balancer_lost: None,
        },
        server: ServerStatus {
            addresses: vec![([10, 0, 0, 10], 80).into()],
            pid: Some(4711),
            incarnation: 2,
        },
        stores: vec![store(true), store(false)],
        connections: 6,
        flows: vec![
            flow(FlowPhase::Idle, HeldBy::Client, 2),
            flow(FlowPhase::Body, HeldBy::Client, 1),
            flow(FlowPhase::Body, HeldBy::None, 3),
        ],
        unprotected_by: [("chunked".into(), 2), ("no_timestamps".into(), 1)].into(),
        totals,
        counters: [("forged".to_owned(), 5), ("parked".to_owned(), 4)].into(),
        list: Vec::new(),
    }
}

fn store(answers: bool) -> StoreStatus {
    let mut answers_s = Histogram::default();
    answers_s.observe(0.000_2);
    let failures = (!answers).then(|| ("timed_out".to_owned(), 3));
    StoreStatus {
        store: match answers {
            true => "redis://10.0.0.9:6379".into(),
            false => "redis://10.0.0.8:6379".into(),
        },
        answers,
        operations: vec![OperationStatus {
            operation: "put".into(),
            outcomes: [("ok".to_owned(), 40)]
                .into_iter()
                .chain(failures)
                .collect(),
            answers_s,
        }],
    }
}

fn download(object: Option<&str>, reason: Option<&str>) -> ConnectionStatus {
    ConnectionStatus {
        connection: "192.0.2.1:40000 -> 10.0.0.10:80".into(),
        phase: FlowPhase::Body,
        held_by: reason.map_or(HeldBy::Client, |_| HeldBy::None),
        reason: reason.map(str::to_owned),
        object: object.map(str::to_owned),
        offset: reason.is_none().then_some(4711),
        acked_bytes: 5000,
        response_bytes: Some(10_000),
    }
}

#[test]
fn status_in_words_has_reasons() {
    let mut status = example();
    status.list = vec![
        download(Some("/big.iso"), None),
        download(None, Some("chunked")),
    ];
    let expected = "\
web1: serving on 10.0.0.10:80
  pool         balancer 10.0.0.1:7700, epoch 7, members: 3, lease for 180 ms more
  server       process 4711, incarnation 2
  store        redis://10.0.0.9:6379 answers, records: 40 written
  store        redis://10.0.0.8:6379 DOES NOT ANSWER, records: 40 written, NOT WRITTEN: 3 timed_out
  connections  6 open: 3 held by their clients, 3 NOT PROTECTED (2 chunked, 1 no_timestamps)
               2 idle, 4 body
  since start  1 revived, 1 refused (1 version), 1 forwarded
    192.0.2.1:40000 -> 10.0.0.10:80  body /big.iso, byte 4711 of the body, 5000 bytes acknowledged of 10000, held by the client
    192.0.2.1:40000 -> 10.0.0.10:80  body, 5000 bytes acknowledged of 10000, NOT PROTECTED: chunked";
    assert_eq!(status.to_string(), expected);
}

#[test]
fn status_without_pool_says_so() {
    let mut status = example();
    status.stage = "joining".into();
    status.pool.epoch = None;
    status.pool.lease_ms = None;
    status.server.pid = None;
    let words = status.to_string();
    assert!(words.contains("not a member, no lease"), "{words}");
    assert!(words.contains("not running"), "{words}");
}

#[test]
fn status_survives_json() {
    let status = example();
    let json = serde_json::to_string(&status).expect("JSON");
    let read: Status = serde_json::from_str(&json).expect("a status");
    assert_eq!(read, status);
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(value["flows"][0]["held_by"], "client");
    assert_eq!(value["totals"]["refused_by"]["version"], 1);
}
