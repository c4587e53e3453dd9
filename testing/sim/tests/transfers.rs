//! Bulk transfers, each run a function of its seed. `OUTLIVE_SIM_SEED` replays one, `OUTLIVE_SIM_RUNS` sets how many
//! there are.

use sim::{
    BulkFlaw, BulkOutcome, BulkScenario, ConnectionFlaw, ConnectionOutcome, ConnectionScenario,
    Seeded, play_bulk, play_connections,
};

/// Runs of an ordinary test.
const TRANSFER_RUNS: u64 = 800;
const CONNECTION_RUNS: u64 = 2000;
/// Most runs until a mistake is found.
const FLAW_RUNS: u64 = 2000;

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok();
    text.map(|text| text.parse().expect("a number"))
}

/// The seeds to play, and whether there is one alone.
fn seeds(runs: u64) -> (std::ops::Range<u64>, bool) {
    let seeds = match from_environment("OUTLIVE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..from_environment("OUTLIVE_SIM_RUNS").unwrap_or(runs),
    };
    let is_alone = seeds.end - seeds.start == 1;
    (seeds, is_alone)
}

#[test]
fn transfers_survive_any_faults() {
    let (seeds, is_alone) = seeds(TRANSFER_RUNS);
    let played = seeds.map(|seed| play_bulk(&BulkScenario::drawn_from(seed)));
    let outcomes: Vec<BulkOutcome> = played
        .map(|result| result.unwrap_or_else(|failure| panic!("{failure}")))
        .collect();
    let sum = |of: fn(&BulkOutcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let [predicted, copied, sent, resumed] = [
        sum(|it| it.predicted),
        sum(|it| it.copied),
        sum(|it| it.sent),
        sum(|it| u64::from(it.resumed)),
    ];
    eprintln!("predicted {predicted}, copied {copied}, sent {sent}, resumed {resumed}");
    assert!(is_alone || resumed > 100 && copied > 1000 && predicted > copied);
}

fn play(scenario: &BulkScenario) -> BulkOutcome {
    play_bulk(scenario).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Without a fault each prediction is right, but for the short packet at the end, and hardly a packet is sent a second
/// time: while the startup fills the queue of the network, some answers come after the timeout.
#[test]
fn calm_transfer_predicts_each_packet() {
    let (mut sent, mut needed) = (0, 0);
    for seed in 0..300 {
        let scenario = BulkScenario::drawn_from(seed).calm();
        let outcome = play(&scenario);
        let receivers = u64::try_from(scenario.receivers()).expect("few");
        assert!(outcome.copied <= receivers, "seed {seed}: {outcome:?}");
        sent += outcome.sent;
        needed += scenario.packets();
    }
    eprintln!("{sent} of {needed}");
    assert!(
        sent >= needed && sent * 100 < needed * 102,
        "{sent} of {needed}"
    );
}

/// A lost packet is sent again, and little else.
#[test]
fn lossy_transfer_repeats_the_lost_packets() {
    let (mut sent, mut needed) = (0, 0);
    for seed in 0..300 {
        let scenario = BulkScenario::drawn_from(seed).lossy();
        sent += play(&scenario).sent;
        needed += scenario.packets() * 1000 / u64::from(1000 - scenario.lost());
    }
    eprintln!("{sent} of {needed}");
    assert!(
        sent > needed && sent * 100 < needed * 106,
        "{sent} of {needed}"
    );
}

/// 100 Mbit/s, 50 ms: the speed with losses of 0, 1 and 2 %.
#[test]
fn losses_of_a_few_percent_cost_little_speed() {
    let [without, few, more] =
        [0, 10, 20].map(|lost| play(&BulkScenario::long_path(1, lost)).elapsed / 1_000_000);
    eprintln!("{without}, {few}, {more} ms");
    // 16 MB in packets of 1,400 bytes and 60 bytes of headers need 1,335 ms.
    assert!(without < 1335 * 5 / 4, "{without} ms");
    let slowest = without * 115 / 100;
    assert!(
        few < slowest && more < slowest,
        "{without}, {few}, {more} ms"
    );
}

#[test]
fn transfers_by_connections_survive_any_faults() {
    let (seeds, is_alone) = seeds(CONNECTION_RUNS);
    let played = seeds.map(|seed| play_connections(&ConnectionScenario::drawn_from(seed)));
    let outcomes: Vec<ConnectionOutcome> = played
        .map(|result| result.unwrap_or_else(|failure| panic!("{failure}")))
        .collect();
    let sum = |of: fn(&ConnectionOutcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let [attempts, sent, present] = [
        sum(|it| it.attempts),
        sum(|it| it.sent),
        sum(|it| it.present),
    ];
    eprintln!("attempts {attempts}, blasts sent {sent}, present {present}");
    let runs = u64::try_from(outcomes.len()).expect("few");
    assert!(is_alone || attempts > runs * 3 / 2 && present > runs);
}

/// Some run is broken by a mistake.
fn found<S, O>(flaw: &str, play: impl Fn(u64) -> Result<O, sim::BrokenRun<S>>)
where
    S: Seeded,
{
    let is_broken = |seed: u64| {
        let failure = play(seed).err().map(|failure| failure.to_string());
        if let Some(failure) = &failure {
            let end = failure.find('\n').unwrap_or(failure.len());
            eprintln!("{flaw}: {}", &failure[..end]);
        }
        failure.is_some()
    };
    assert!((0..FLAW_RUNS).any(is_broken), "nobody finds {flaw}");
}

macro_rules! flaws {
    ($play:ident, $scenario:ident, $flaw:ident: $($name:ident: $variant:ident,)*) => {
        $(#[test] fn $name() {
            found(stringify!($variant), |seed| {
                $play(&$scenario::drawn_from(seed).flawed($flaw::$variant))
            });
        })*
    };
}

flaws! {
    play_connections, ConnectionScenario, ConnectionFlaw:
    sent_present_blast_is_found: PresentSent,
    blast_written_twice_is_found: WrittenTwice,
    begun_blast_that_counts_is_found: BegunCounted,
}

flaws! {
    play_bulk, BulkScenario, BulkFlaw:
    reused_round_is_found: RoundReused,
    ignored_credit_is_found: CreditIgnored,
    missing_probe_is_found: NotProbed,
    ignored_silence_is_found: SilenceIgnored,
    copy_in_order_is_found: CopiedInOrder,
    forgotten_copy_is_found: NotCopied,
    answer_without_credit_is_found: AnsweredWithoutCredit,
    expected_present_packet_is_found: PresentExpected,
    almost_whole_blast_is_found: AlmostWhole,
    early_release_is_found: ReleasedEarly,
}
