//! A pool of simulated members: the model of the programs, the revival, and small TCPs at both ends. Members and
//! servers die at any time, and the network loses, delays and reorders.
//!
//! Whatever happens:
//!
//! - the byte at a sequence number never changes, and the client gets each object whole, or is reset: if the first
//!   segment of a response was lost, and a later one was not;
//! - a guarded request is never acknowledged before the client has the response;
//! - the client's TCP refuses no segment of ours by PAWS (RFC 7323, 5) but a segment that another one has overtaken;
//! - each echo that the server's TCP gets is a timestamp that this TCP has sent.

mod client;
mod pool;
mod server;

use proptest::prelude::*;

use pool::{Death, Pool, Scenario};

fn death() -> impl Strategy<Value = (u64, Death)> {
    let kind = prop_oneof![Just(Death::Host), Just(Death::Server)];
    (prop_oneof![3 => 1_u64..400, 1 => 1_u64..3000], kind)
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let first = prop_oneof![1_usize..3, 1_usize..200_000];
    let later = prop_oneof![1_usize..3, 1_usize..20_000];
    (
        (any::<u64>(), first, prop::collection::vec(later, 0..4)),
        prop::collection::vec(death(), 0..4),
        (0_u32..20, 1_u64..40, any::<bool>(), any::<bool>()),
    )
        .prop_map(
            |((seed, first, later), deaths, (loss, delay, v6, eager))| Scenario {
                seed,
                lengths: [vec![first], later].concat(),
                deaths,
                loss_percent: loss,
                delay_ticks: delay,
                v6,
                client_asks_at_once: eager,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
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
        client_asks_at_once: true,
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
            client_asks_at_once: true,
        };
        Pool::new(&scenario).run();
    }
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
                client_asks_at_once: false,
            };
            revived += Pool::new(&scenario).run().revived;
        }
    }
    assert!(revived > 100, "{revived} revivals");
}
