//! A pool of simulated members: the model of the programs, the revival, and small TCPs at both ends. Members and
//! servers die at any time, and the network loses, delays and reorders.
//!
//! Whatever happens:
//!
//! - the byte at a sequence number never changes, and the client gets each object whole, or is reset: if the first
//!   segment of a response was lost, and a later one was not;
//! - a guarded request is never acknowledged before the client has the response, or has echoed that the request is in
//!   the store;
//! - the client's TCP refuses no segment of ours by PAWS (RFC 7323, 5) but a segment that another one has overtaken;
//! - each echo that the server's TCP gets is a timestamp that this TCP has sent.

mod client;
mod part;
mod paws;
mod pool;
mod server;

use proptest::prelude::*;

use pool::{Asking, Death, Pool, Scenario};

fn death() -> impl Strategy<Value = (u64, Death)> {
    let kind = prop_oneof![Just(Death::Host), Just(Death::Server)];
    (prop_oneof![3 => 1_u64..400, 1 => 1_u64..3000], kind)
}

fn asking() -> impl Strategy<Value = Asking> {
    prop_oneof![
        Just(Asking::Acknowledged),
        Just(Asking::AtOnce),
        Just(Asking::Pipelined { joined: false }),
        Just(Asking::Pipelined { joined: true }),
    ]
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let first = prop_oneof![1_usize..3, 1_usize..200_000];
    let later = prop_oneof![1_usize..3, 1_usize..20_000];
    (
        (any::<u64>(), first, prop::collection::vec(later, 0..4)),
        prop::collection::vec(death(), 0..4),
        (0_u32..20, 1_u64..40, any::<bool>(), asking()),
    )
        .prop_map(
            |((seed, first, later), deaths, (loss, delay, v6, asking))| Scenario {
                seed,
                lengths: [vec![first], later].concat(),
                deaths,
                loss_percent: loss,
                delay_ticks: delay,
                v6,
                asking,
                client_has_timestamps: true,
                store: None,
                has_index: true,
                is_dynamic: false,
            },
        )
}

/// With a store: later responses may be long, too.
fn scenario_with_a_store() -> impl Strategy<Value = Scenario> {
    let lengths = prop::collection::vec(prop_oneof![1_usize..3, 1_usize..150_000], 1..4);
    let store = (0_u64..30, any::<bool>());
    (scenario(), lengths, store).prop_map(|(scenario, lengths, (delay, has_index))| Scenario {
        lengths,
        store: Some(delay),
        has_index,
        ..scenario
    })
}

/// A client without timestamps, which the store alone protects.
fn scenario_without_timestamps() -> impl Strategy<Value = Scenario> {
    scenario_with_a_store().prop_map(|scenario| Scenario {
        client_has_timestamps: false,
        has_index: true,
        ..scenario
    })
}

/// Dynamic responses: the record alone has the inputs of each.
fn dynamic_scenario() -> impl Strategy<Value = Scenario> {
    scenario_with_a_store().prop_map(|scenario| Scenario {
        is_dynamic: true,
        ..scenario
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]
    #[test]
    fn dynamic_downloads_survive_any_deaths(scenario in dynamic_scenario()) {
        Pool::new(&scenario).run();
    }

    #[test]
    fn downloads_without_timestamps_survive_any_deaths(scenario in scenario_without_timestamps()) {
        Pool::new(&scenario).run();
    }

    #[test]
    fn downloads_with_a_store_survive_any_deaths(scenario in scenario_with_a_store()) {
        Pool::new(&scenario).run();
    }

    #[test]
    fn downloads_survive_any_deaths(scenario in scenario()) {
        Pool::new(&scenario).run();
    }
}

#[test]
fn download_without_deaths_is_whole() {
    let scenario = Scenario {
        seed: 1,
        lengths: vec![100_000, 5_000, 1],
        deaths: Vec::new(),
        loss_percent: 0,
        delay_ticks: 5,
        v6: false,
        asking: Asking::AtOnce,
        client_has_timestamps: true,
        store: None,
        has_index: true,
        is_dynamic: false,
    };
    let pool = Pool::new(&scenario).run();
    assert_eq!(pool.revived, 0);
}

/// The member dies while a client that has a whole response asks for the next.
#[test]
fn next_requests_survive_a_death_at_any_tick() {
    let scenarios = (0..30_u64).flat_map(|seed| (1..40).map(move |tick| (seed, tick)));
    for (seed, tick) in scenarios {
        let scenario = Scenario {
            seed,
            lengths: vec![1, 1349, 1, 5_000],
            deaths: vec![(tick, Death::Host)],
            loss_percent: 10,
            delay_ticks: 1 + seed % 4,
            v6: false,
            asking: Asking::AtOnce,
            client_has_timestamps: true,
            store: None,
            has_index: true,
            is_dynamic: false,
        };
        Pool::new(&scenario).run();
    }
}

/// A client that does not wait for responses.
#[test]
fn pipelined_requests_survive_a_death_at_any_tick() {
    let mut revived = 0;
    for (tick, joined) in (1..300_u64).flat_map(|tick| [(tick, false), (tick, true)]) {
        for death in [Death::Host, Death::Server] {
            let scenario = Scenario {
                seed: tick,
                lengths: vec![40_000, 1, 5_000, 12_000],
                deaths: vec![(tick, death), (tick + 700, death)],
                loss_percent: 0,
                delay_ticks: 8,
                v6: false,
                asking: Asking::Pipelined { joined },
                client_has_timestamps: true,
                store: None,
                has_index: true,
                is_dynamic: false,
            };
            revived += Pool::new(&scenario).run().revived;
        }
    }
    assert!(revived > 300, "{revived} revivals");
}

/// Without loss and delay a death at each tick is a death before and behind each packet.
#[test]
fn downloads_survive_a_death_at_any_tick() {
    let mut revived = 0;
    for tick in 1..250 {
        for death in [Death::Host, Death::Server] {
            let scenario = Scenario {
                seed: 1,
                lengths: vec![60_000, 5_000],
                deaths: vec![(tick, death), (tick + 700, death)],
                loss_percent: 0,
                delay_ticks: 8,
                v6: true,
                asking: Asking::Acknowledged,
                client_has_timestamps: true,
                store: None,
                has_index: true,
                is_dynamic: false,
            };
            revived += Pool::new(&scenario).run().revived;
        }
    }
    assert!(revived > 100, "{revived} revivals");
}

/// Revivals with a record, and resets, of all runs with a store and a death at each tick.
fn deaths_with_a_store(client_has_timestamps: bool) -> (u32, u32) {
    let (mut revived, mut reset) = (0, 0);
    for tick in (1..400).filter(|tick| part::is_drawn(*tick)) {
        for death in [Death::Host, Death::Server] {
            let scenario = Scenario {
                seed: 1,
                lengths: vec![60_000, 120_000],
                deaths: vec![(tick, death), (tick + 700, death)],
                loss_percent: 0,
                delay_ticks: 8,
                v6: false,
                asking: Asking::Acknowledged,
                client_has_timestamps,
                store: Some(3),
                has_index: true,
                is_dynamic: false,
            };
            let pool = Pool::new(&scenario).run();
            revived += pool.revived_by_record;
            reset += u32::from(pool.is_reset);
        }
    }
    (revived, reset)
}

#[test]
fn stored_downloads_survive_a_death_at_any_tick() {
    let (revived, reset) = deaths_with_a_store(true);
    assert!(!part::is_whole() || revived > 150, "{revived} revivals");
    assert!(reset < 20, "{reset} resets");
}

/// Nothing of a response leaves before the store has the record.
#[test]
fn deferred_downloads_survive_a_death_at_any_tick() {
    let (revived, reset) = deaths_with_a_store(false);
    assert!(!part::is_whole() || revived > 150, "{revived} revivals");
    // Deaths before the record of the first response.
    assert!(reset < 40, "{reset} resets");
}

/// The store needs longer than a response waits: the response goes on without protection.
#[test]
fn deferred_download_outlasts_a_silent_store() {
    let scenario = Scenario {
        seed: 1,
        lengths: vec![60_000, 5_000],
        deaths: Vec::new(),
        loss_percent: 0,
        delay_ticks: 8,
        v6: true,
        asking: Asking::Acknowledged,
        client_has_timestamps: false,
        store: Some(60_000),
        has_index: true,
        is_dynamic: false,
    };
    let pool = Pool::new(&scenario).run();
    assert!(!pool.is_reset);
}

/// A segment that was overtaken fills the hole behind which the rest of a later response has come: the client's echo is
/// older than the client's acknowledgement.
#[test]
fn echo_older_than_its_acknowledgement_mixes_no_bytes() {
    let scenario = Scenario {
        seed: 10_751_442_977_736_454_760,
        lengths: vec![1, 32_768],
        deaths: vec![(446, Death::Host), (232, Death::Host), (45, Death::Host)],
        loss_percent: 3,
        delay_ticks: 8,
        v6: false,
        asking: Asking::Acknowledged,
        client_has_timestamps: true,
        store: Some(0),
        has_index: true,
        is_dynamic: false,
    };
    Pool::new(&scenario).run();
}

/// The segment of a later response is lost, and the acknowledgement of a part of its request arrives in a segment
/// without payload.
#[test]
fn acknowledged_part_of_a_request_without_its_response_costs_no_connection() {
    let scenario = Scenario {
        seed: 4_897_862_901_772_209_221,
        lengths: vec![1, 1, 1],
        deaths: vec![(359, Death::Host)],
        loss_percent: 7,
        delay_ticks: 32,
        v6: false,
        asking: Asking::AtOnce,
        client_has_timestamps: true,
        store: None,
        has_index: true,
        is_dynamic: false,
    };
    Pool::new(&scenario).run();
}

/// The client has not heard that its first request has arrived, and the record is of the next.
#[test]
fn record_of_the_next_request_tells_that_the_response_before_is_whole() {
    let scenario = Scenario {
        seed: 5_908_339_642_810_441_460,
        lengths: vec![109_793, 1, 906],
        deaths: vec![(192, Death::Host), (2321, Death::Server)],
        loss_percent: 18,
        delay_ticks: 22,
        v6: true,
        asking: Asking::AtOnce,
        client_has_timestamps: true,
        store: Some(14),
        has_index: true,
        is_dynamic: false,
    };
    Pool::new(&scenario).run();
}
