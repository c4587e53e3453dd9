use ::metrics::{Health, Numbers, table, text};

use super::*;
use crate::{event::Code, status::MemberStatus};

fn snapshot(names: &[&str]) -> Snapshot {
    let member = |name: &&str| MemberStatus {
        name: (*name).to_owned(),
        address: [10, 0, 0, 11].into(),
        in_table: true,
        connected: true,
        draining: *name == "web2",
        unknown: false,
        silent_ms: 3,
        packets: 9,
    };
    Snapshot {
        taken: Instant::now(),
        uptime: Duration::from_secs(1),
        status: Status {
            pool: "pool".into(),
            service: Vec::new(),
            listen: Vec::new(),
            hash: "maglev".into(),
            epoch: 7,
            register: Some("etcd://10.0.0.4:2379".into()),
            register_failure: None,
            balancers: 2,
            grants: true,
            stores: 1,
            lease_ms: [25, 250],
            members: names.iter().map(member).collect(),
            counts: PacketCounts {
                packets: 18,
                icmp_packets: 1,
                dropped_fragments: 2,
                dropped_without_member: 3,
                dropped_not_wrapped: 4,
                xdp_packets: 11,
            },
            forward: "xdp".into(),
            xdp_devices: vec!["eth0".into()],
        },
        events: [("declared_dead", 3)].into(),
    }
}

#[test]
fn numbers_of_members_have_their_names() {
    let text = text(snapshot(&["web1", "web2"])).expect("text");
    for line in [
        r#"outlive_balance_members{pool="pool",state="serving"} 1"#,
        r#"outlive_balance_members{pool="pool",state="draining"} 1"#,
        r#"outlive_balance_epoch{pool="pool"} 7"#,
        r#"outlive_balance_granters{pool="pool"} 2"#,
        r#"outlive_balance_packets_total{pool="pool",member="web2"} 9"#,
        r#"outlive_balance_forwarded_packets_total{pool="pool",program="tc"} 7"#,
        r#"outlive_balance_forwarded_packets_total{pool="pool",program="xdp"} 11"#,
        r#"outlive_balance_xdp_devices{pool="pool"} 1"#,
        r#"outlive_balance_dropped_packets_total{pool="pool",reason="no_member"} 3"#,
        r#"outlive_balance_events_total{pool="pool",kind="declared_dead"} 3"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}

#[test]
fn pool_without_members_or_register_is_ill() {
    assert!(matches!(snapshot(&[]).health(), Health::Ill(_)));
    assert!(matches!(snapshot(&["web1"]).health(), Health::Well(_)));
    let mut cut_off = snapshot(&["web1"]);
    cut_off.status.register_failure = Some("10.0.0.4:2379: timeout".into());
    assert!(matches!(cut_off.health(), Health::Ill(_)));
    let old = Snapshot {
        taken: Instant::now() - SNAPSHOT_AGE_MAX * 2,
        ..snapshot(&["web1"])
    };
    assert!(matches!(old.health(), Health::Ill(_)));
}

#[test]
fn every_event_is_counted() {
    let warnings = [
        Code::KeysNotRead,
        Code::AddressTaken,
        Code::AddressNotHeld,
        Code::InterfaceNotAttached,
        Code::MemberNotOnLink,
        Code::RegisterLost,
        Code::OnChangeFailed,
    ];
    for code in warnings {
        assert!(EVENT_KINDS.contains(&code.word()), "{code:?}");
        assert_eq!(serde_json::to_value(code).expect("JSON"), code.word());
    }
}

#[test]
fn manual_lists_the_metrics() {
    let table = table(&text(snapshot(&["web1"])).expect("text"));
    let manual = include_str!("../../../../../docs/operating/metrics.md");
    assert!(
        manual.contains(&table),
        "docs/operating/metrics.md lacks\n{table}"
    );
}
