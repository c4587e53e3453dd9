//! Tables 4 to 6: shares of interrupted blasts, measured and predicted, beside the paper's.

use std::fmt::Write as _;

use make_model::Precision;
use serde_json::{Value, json};

use super::USUAL_SIZE;
use super::load::{Counts, Load, TIME_FACTOR};
use super::model::{Sources, Traffic, measure};
use super::published::{self, HIGH_LOAD, NORMAL_LOAD};

/// Of a prediction for rates that were measured here.
const PRECISION: Precision = Precision {
    within: 0.05,
    runs: 300,
};
const PREDICTION_SEED: u64 = 1;

/// Rates in the paper's time: a tenth of the counted ones.
fn traffic(counts: &Counts, hosts: usize, seconds: f64, sources: Sources) -> Traffic {
    let per_second = |count: u64| count as f64 / seconds / hosts as f64 / TIME_FACTOR;
    Traffic {
        blasts: per_second(counts.blasts),
        others: per_second(counts.others),
        kilobytes: USUAL_SIZE,
        sources,
    }
}

/// The rows of Tables 4 and 5: what was counted, the traffic of a host, the paper's row.
fn rows(loads: &[Load]) -> Vec<(String, Counts, Traffic, published::Load)> {
    let papers = |at: usize| match at {
        0 => (NORMAL_LOAD[0], NORMAL_LOAD[1]),
        at => (HIGH_LOAD[at - 1], HIGH_LOAD[at - 1 + HIGH_LOAD.len() / 2]),
    };
    let both = loads.iter().enumerate().flat_map(|(at, load)| {
        let (workstation, server) = papers(at);
        let own = load.workstations;
        let of = traffic(&own, load.workstation_count, load.seconds, Sources::Single);
        let at_server = traffic(&load.server, 1, load.seconds, Sources::Several);
        [
            (format!("workstation, {}", load.name), own, of, workstation),
            (
                format!("file server, {}", load.name),
                load.server,
                at_server,
                server,
            ),
        ]
    });
    both.collect()
}

pub(super) fn tables(loads: &[Load]) -> String {
    let mut text = "\n## Interrupted blasts (Tables 4 and 5)\n\n\
        Hosts with one socket for all packets, time ten times as fast as in the paper (rates are in the paper's time), links of \
        75 Mbit/s, blasts of 8 KB. The prediction is the simulation of section 5 with the rates that were measured here.\n\n\
        | load | blasts | blasts/s: paper | here | other packets/s: paper | here | interrupted: paper | predicted by the paper | here | predicted here |\n\
        |---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for (name, counts, traffic, paper) in rows(loads) {
        let predicted = measure(&traffic, PRECISION, PREDICTION_SEED);
        let by_paper = paper
            .predicted
            .map_or("–".to_owned(), |it| format!("{it} %"));
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {:.2} | {} | {:.2} | {} % | {by_paper} | {:.1} % | {:.1} % |",
            counts.blasts,
            paper.blasts,
            traffic.blasts,
            paper.others,
            traffic.others,
            paper.measured,
            counts.share() * 100.0,
            predicted.value * 100.0,
        );
    }
    text + &cumulative(loads)
}

/// Table 6: all hosts that compile.
fn cumulative(loads: &[Load]) -> String {
    let (mut workstations, mut server) = (Counts::default(), Counts::default());
    for load in loads.iter().skip(1) {
        workstations += load.workstations;
        server += load.server;
    }
    let mut text = "\n## All loads but the normal one (Table 6)\n\n\
        | | workstations, paper | here | file server, paper | here |\n|---|---|---|---|---|\n"
        .to_owned();
    let both = |of: fn(&Counts) -> u64| [of(&workstations), of(&server)];
    for (name, papers, [own, servers]) in [
        ("blasts", ["28953", "6039"], both(|it| it.blasts)),
        ("interrupted", ["637", "477"], both(Counts::interrupted)),
        ("by broadcasts", ["180", "24"], both(|it| it.by_broadcasts)),
        ("by blasts", ["0", "36"], both(|it| it.by_blasts)),
        ("by other packets", ["457", "417"], both(|it| it.by_others)),
    ] {
        let [first, second] = papers;
        let _ = writeln!(text, "| {name} | {first} | {own} | {second} | {servers} |");
    }
    let share = |counts: &Counts| format!("{:.1} %", counts.share() * 100.0);
    let _ = writeln!(
        text,
        "| interrupted | 2.2 % | {} | 7.9 % | {} |",
        share(&workstations),
        share(&server)
    );
    text + "\nAs in the paper, fewer blasts are interrupted than predicted: packets do not come at any time. A workstation asks its next \
        question when its blast is there, and a host's packets wait for its own blast. In the product a transfer has a socket of its own: the kernel sorts packets before it puts them anywhere, and no blast \
        is interrupted (`blast.two.interrupted`).\n"
}

pub(super) fn to_json(load: &Load) -> Value {
    let counts = |counts: &Counts| {
        json!({
            "blasts": counts.blasts,
            "interrupted": counts.interrupted(),
            "by_broadcasts": counts.by_broadcasts,
            "by_blasts": counts.by_blasts,
            "by_others": counts.by_others,
            "others": counts.others,
        })
    };
    json!({
        "load": load.name,
        "seconds": load.seconds,
        "workstations": load.workstation_count,
        "workstation": counts(&load.workstations),
        "server": counts(&load.server),
    })
}
