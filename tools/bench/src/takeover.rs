//! From the death of the active host to the first byte from another host.
//!
//! The host loses power while clients use the service ([`silence_clients`]). The standby takes over ([`pair`]), and
//! the events tell the end of each step ([`steps`]). Then the dead host comes back as the standby, and the other host
//! loses power. Measured with the default lease, and with the shortest lease that is stable here; by the number of
//! connections, and by the number of recorded bytes. Also measured: the pause of clients at a switchover, and the cost
//! of a standby.

mod cost;
mod pair;
mod silence_clients;
mod steps;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::Rng as _;

use super::Bench;
use super::clients::Crowd;
use super::figure::{Aim, Figure, column};
use super::recovery::survivors;
use super::traffic::{curl, wrk};
use super::usage::{Used, anonymous};
pub(super) use pair::{Hosts, Pair, Served, address};
use silence_clients::{Silences, WHAT, Watchers};
pub(super) use steps::now;
use steps::{STEPS, Steps, announced};

/// The longest default lease of `outlive logger`, milliseconds: a host that has just begun to serve gets this lease.
pub(super) const DEFAULT_LEASE_MS: u64 = 250;
/// Terms that are tried, the shortest first.
const LEASE_TERMS_MS: [u64; 6] = [10, 20, 40, 60, 80, 120];
/// Earlier bytes are in the record after this time, and later ones are counted.
const SETTLE_TIME: Duration = Duration::from_millis(300);

const BOUND: &str = "the lease must be over before another host may speak, and that is most of it: of 250 ms a third \
     at most has passed when the power goes";
const TUNED_BOUND: &str = "besides the lease: the server's own start, and that client, two hosts and the logger \
     share two processors";
pub(super) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let hosts = Hosts::of(bench)?;
    let all = power_offs(bench, &hosts, DEFAULT_LEASE_MS)?;
    let all = all.context("the service has moved by itself: this machine is too busy")?;
    let aim = (Aim::AtMost(300.0), BOUND);
    let mut figures = of_power_offs("default", DEFAULT_LEASE_MS, &all, aim);
    figures.extend(tuned(bench, &hosts)?);
    for (connections, runs) in bench.size(
        &[(10, 5), (100, 5), (1000, 5), (10_000, 3)][..],
        &[(10, 1), (1000, 1), (10_000, 1)][..],
    ) {
        figures.extend(with_connections(bench, &hosts, *connections, *runs)?);
    }
    for megabytes in bench.size(&[1, 10, 100][..], &[1, 10][..]) {
        figures.extend(with_bytes(bench, &hosts, *megabytes, bench.size(5, 1))?);
    }
    figures.extend(moves(bench, &hosts)?);
    figures.extend(cost::measure(bench, &hosts)?);
    Ok(figures)
}

/// With the shortest lease that causes no takeover while both hosts live.
fn tuned(bench: &Bench, hosts: &Hosts) -> Result<Vec<Figure>> {
    for lease in LEASE_TERMS_MS {
        if !is_stable(bench, hosts, lease)? {
            continue;
        }
        let Some(all) = power_offs(bench, hosts, lease)? else {
            continue;
        };
        let how = format!(
            "of the leases {LEASE_TERMS_MS:?} the shortest by which the service stayed on its host while wrk and curl kept all \
             processors busy, and in all runs below but for the power-offs"
        );
        let lease_of = Figure::of("takeover.tuned.term", "ms", &[milliseconds(lease)], how);
        let aim = (Aim::AtMost(100.0), TUNED_BOUND);
        let figures = of_power_offs("tuned", lease, &all, aim);
        return Ok([lease_of].into_iter().chain(figures).collect());
    }
    bench.say("no lease that is shorter than the default is stable here");
    Ok(Vec::new())
}

/// Whether the service stays on the host under load, while both hosts live.
fn is_stable(bench: &Bench, hosts: &Hosts, lease: u64) -> Result<bool> {
    bench.say(format_args!("a lease of {lease} ms under load"));
    bench
        .stage
        .sparse("www/object", bench.size(4 << 30, 1 << 30))?;
    let mut pair = Pair::start(bench, hosts, &Served::Nginx, Some(lease))?;
    let url = format!("http://{}", address()?);
    let mut stands_by = pair.stand_by();
    for _ in 0..bench.size(5, 1) {
        if bench.interrupt.is_raised() || pair.has_moved()? {
            break;
        }
        // The outcome of these transfers does not matter here.
        let _ = wrk(bench, &["-t1", "-c64", "-d1s", &format!("{url}/small")]);
        let _ = curl(bench, &[&format!("{url}/object")]);
    }
    let moved = pair.has_moved()?;
    if moved {
        stands_by = Ok(());
    }
    pair.stop()?;
    stands_by?;
    Ok(!moved)
}

/// A takeover, in milliseconds.
struct Takeover {
    steps: Steps,
    silences: Silences,
    /// How long the dead host might still have spoken, if that is known.
    lease: Option<f64>,
    announced: Option<f64>,
}

/// Takes the power from the host that serves while clients watch.
fn take_over(bench: &Bench, pair: &mut Pair<'_>, lease_ms: u64) -> Result<Takeover> {
    bench.interrupt.check()?;
    let watchers = Watchers::start(bench, address()?)?;
    // Wherever in a lease.
    let phase = rand::rng().random_range(0..lease_ms * 1000);
    thread::sleep(SETTLE_TIME + Duration::from_micros(phase));
    let capture = bench.stage.client.capture("arp")?;
    let left = pair.lease_left()?;
    let power_off = now();
    pair.power_off()?;
    pair.wait_for(0, "serving")?;
    thread::sleep(SETTLE_TIME);
    let silences = watchers.finish()?;
    let steps = Steps::of(&pair.events(0)?, power_off)?;
    let announced = announced(&capture.finish()?.packets, power_off);
    // A grant much later than that means a renewal of the lease between the question and the power-off.
    let third = milliseconds(lease_ms) / 3.0;
    let lease = left.filter(|left| steps.granted() - left < third.max(20.0));
    Ok(Takeover {
        steps,
        silences,
        lease,
        announced,
    })
}

/// Power-offs in turn. `None`: a host was superseded without a power-off.
fn power_offs(bench: &Bench, hosts: &Hosts, lease: u64) -> Result<Option<Vec<Takeover>>> {
    let runs = bench.size(20, 3);
    bench.say(format_args!("{runs} power-offs, a lease of {lease} ms"));
    let mut pair = Pair::start(bench, hosts, &Served::Nginx, Some(lease))?;
    let mut all = Vec::new();
    let mut one = |pair: &mut Pair<'_>| -> Result<()> {
        all.push(take_over(bench, pair, lease)?);
        pair.come_back()
    };
    let mut done = pair.stand_by();
    for _ in 0..runs {
        done = done.and_then(|()| one(&mut pair));
    }
    let moved = pair.has_moved()?;
    pair.stop()?;
    bench.interrupt.check()?;
    if moved {
        return Ok(None);
    }
    done?;
    Ok(Some(all))
}

fn of_power_offs(
    name: &str,
    lease: u64,
    all: &[Takeover],
    (aim, bound): (Aim, &str),
) -> Vec<Figure> {
    let how = format!("power-off of the host that serves, a lease of {lease} ms; {WHAT}");
    let name = |what: &str| format!("takeover.{name}.{what}");
    let figure = |what: &str, values: &[f64], words: &str| {
        Figure::of(name(what), "ms", values, format!("{how}: {words}"))
    };
    let each = |of: &dyn Fn(&Takeover) -> f64| all.iter().map(of).collect::<Vec<f64>>();
    let words = "the longest time without a byte that the one who downloads has seen";
    let downloads = each(&|one| one.silences.download);
    let mut figures = vec![
        figure("pause.download", &downloads, words).aim(aim, bound),
        figure(
            "pause.request",
            &each(&|one| one.silences.request),
            "the longest that the other has waited for an answer",
        ),
    ];
    let steps: Vec<Steps> = all.iter().map(|one| one.steps).collect();
    figures.extend(of_steps(&steps, &figure));
    let known: Vec<[f64; 2]> = all
        .iter()
        .filter_map(|one| Some([one.lease?, one.steps.granted() - one.lease?]))
        .collect();
    if !known.is_empty() {
        let left = "how long the dead host might still have spoken, as it said just before";
        let margin = "from then until the epoch is granted: 10 ms for packets that wait in the host, the clocks' \
             drift, and until the standby asks again; within some ms, and only where the lease was not prolonged \
             after that question";
        for (index, (what, words)) in [("lease", left), ("margin", margin)]
            .into_iter()
            .enumerate()
        {
            figures.push(figure(what, &column(&known, index), words));
        }
    }
    let announced: Vec<f64> = all.iter().filter_map(|one| one.announced).collect();
    if !announced.is_empty() {
        let words =
            "from the power-off until the client's host is told by ARP where the address is now";
        figures.push(figure("address", &announced, words));
    }
    figures
}

fn of_steps(all: &[Steps], figure: &dyn Fn(&str, &[f64], &str) -> Figure) -> Vec<Figure> {
    let steps = STEPS.iter().enumerate().map(|(index, (step, _, words))| {
        let values: Vec<f64> = all.iter().map(|one| one.each()[index]).collect();
        figure(step, &values, words)
    });
    let live: Vec<f64> = all.iter().map(|one| one.live()).collect();
    let live = figure("live", &live, "all of these together");
    steps.chain([live]).collect()
}

/// With idle connections: the number that is alive, the time, and the memory of each part.
fn with_connections(
    bench: &Bench,
    hosts: &Hosts,
    connections: usize,
    runs: usize,
) -> Result<Vec<Figure>> {
    bench.say(format_args!(
        "{runs} power-offs with {connections} connections"
    ));
    let mut pair = Pair::start(bench, hosts, &Served::Nginx, Some(DEFAULT_LEASE_MS))?;
    pair.stand_by()?;
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let (mut all, mut alive) = (Vec::new(), Vec::new());
    let mut memory = [const { Vec::new() }; 3];
    let mut one = |pair: &mut Pair<'_>| -> Result<()> {
        let mut crowd = Crowd::gather_at(bench, address()?, connections)?;
        thread::sleep(SETTLE_TIME);
        let used = [
            Used::by(pair.pid(0)?)?.total(),
            anonymous(pair.logger_pid())?,
            Used::by(pair.pid(1)?)?.total(),
        ];
        all.push(take_over(bench, pair, DEFAULT_LEASE_MS)?);
        for (values, bytes) in memory.iter_mut().zip(used) {
            values.push(mib(bytes));
        }
        let (answer, why) = crowd.alive(bench)?;
        if let Some(why) = why {
            bench.say(format_args!("{answer} of {connections} answer: {why}"));
        }
        alive.push(f64::from(u32::try_from(answer)?));
        drop(crowd);
        pair.come_back()
    };
    let mut done = Ok(());
    for _ in 0..runs {
        done = done.and_then(|()| one(&mut pair));
    }
    let moved = pair.has_moved()?;
    pair.stop()?;
    match done {
        // So many clients at once may keep a busy machine from renewing the lease in time.
        Err(error) if moved && !alive.is_empty() => bench.say(format_args!(
            "after {} of {runs} the service has moved by itself: {error:#}",
            alive.len()
        )),
        done => done?,
    }
    let how = format!(
        "power-off of the host that serves with {connections} idle connections, each with one answered request, \
         a lease of {DEFAULT_LEASE_MS} ms"
    );
    let name = |what: &str| format!("takeover.{connections}.{what}");
    let figure = |what: &str, values: &[f64], words: &str| {
        Figure::of(name(what), "ms", values, format!("{how}: {words}"))
    };
    let steps: Vec<Steps> = all.iter().map(|one| one.steps).collect();
    let mut figures = of_steps(&steps, &figure);
    let pauses: Vec<f64> = all.iter().map(|one| one.silences.download).collect();
    let words = "the longest time without a byte that one more client has seen, who downloads";
    figures.push(figure("pause.download", &pauses, words));
    let words = format!("{how}: those that answered one more request afterwards");
    figures.push(survivors(&name("alive"), connections, &alive, &words));
    for (values, (what, words)) in memory.iter().zip([
        ("memory.host", "anonymous memory and BPF maps of serve"),
        ("memory.logger", "anonymous memory of the logger"),
        (
            "memory.standby",
            "anonymous memory and BPF maps of the standby",
        ),
    ]) {
        let how = format!("{words}, with {connections} connections, before the power-off");
        figures.push(Figure::of(name(what), "MiB", values, how));
    }
    Ok(figures)
}

/// With bytes that have to be given to the server again.
fn with_bytes(bench: &Bench, hosts: &Hosts, megabytes: usize, runs: usize) -> Result<Vec<Figure>> {
    bench.say(format_args!(
        "{runs} power-offs after an upload of {megabytes} MB"
    ));
    let mut pair = Pair::start(bench, hosts, &Served::Own("sink"), Some(DEFAULT_LEASE_MS))?;
    pair.stand_by()?;
    let mut all = Vec::new();
    for _ in 0..runs {
        bench.interrupt.check()?;
        let to = address()?;
        let mut stream = bench.stage.client.enter(|| TcpStream::connect(to))??;
        let block = vec![0x5a; 1_000_000];
        for _ in 0..megabytes {
            stream.write_all(&block)?;
        }
        thread::sleep(SETTLE_TIME);
        let power_off = now();
        pair.power_off()?;
        pair.wait_for(0, "serving")?;
        all.push(Steps::of(&pair.events(0)?, power_off)?);
        // The new server must have got every byte.
        stream.shutdown(Shutdown::Write)?;
        let mut count = String::new();
        stream.read_to_string(&mut count)?;
        let sent = (megabytes * block.len()).to_string();
        ensure!(count == sent, "the server counted `{count}`, not {sent}");
        pair.come_back()?;
    }
    pair.stop()?;
    let how = format!(
        "power-off of the host that serves after an upload of {megabytes} MB to a server that reads and discards, \
         a lease of {DEFAULT_LEASE_MS} ms"
    );
    let figure = |what: &str, values: Vec<f64>, words: &str| {
        let name = format!("takeover.{megabytes}MB.{what}");
        Figure::of(name, "ms", &values, format!("{how}: {words}"))
    };
    Ok(vec![
        figure(
            "replay",
            all.iter().map(|one| one.replay()).collect(),
            "until the new server has had all of it",
        ),
        figure(
            "live",
            all.iter().map(|one| one.live()).collect(),
            "from the power-off until then",
        ),
    ])
}

/// The pause of clients at an `outlive switchover`.
fn moves(bench: &Bench, hosts: &Hosts) -> Result<Vec<Figure>> {
    let runs = bench.size(20, 3);
    bench.say(format_args!("{runs} moves"));
    let mut pair = Pair::start(bench, hosts, &Served::Nginx, Some(DEFAULT_LEASE_MS))?;
    pair.stand_by()?;
    let mut all = Vec::new();
    for _ in 0..runs {
        bench.interrupt.check()?;
        let watchers = Watchers::start(bench, address()?)?;
        thread::sleep(SETTLE_TIME);
        let began = now();
        pair.hand_over()?;
        thread::sleep(SETTLE_TIME);
        let silences = watchers.finish()?;
        all.push((Steps::of(&pair.events(0)?, began)?, silences));
        pair.await_standby()?;
    }
    pair.stop()?;
    let how = format!("`outlive switchover` to the other host; {WHAT}");
    let figure = |what: &str, values: &[f64], words: &str| {
        let name = format!("takeover.move.{what}");
        Figure::of(name, "ms", values, format!("{how}: {words}"))
    };
    let downloads: Vec<f64> = all.iter().map(|(_, one)| one.download).collect();
    let requests: Vec<f64> = all.iter().map(|(_, one)| one.request).collect();
    let steps: Vec<Steps> = all.iter().map(|(steps, _)| *steps).collect();
    let pauses = [
        figure(
            "pause.download",
            &downloads,
            "the longest time without a byte that the one who downloads has seen",
        ),
        figure(
            "pause.request",
            &requests,
            "the longest that the other has waited for an answer",
        ),
    ];
    Ok(pauses
        .into_iter()
        .chain(of_steps(&steps, &figure))
        .collect())
}

fn milliseconds(number: u64) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}
