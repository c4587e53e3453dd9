//! Repeated simulation of a setting.

use rand::{SeedableRng as _, rngs::SmallRng};

use crate::{
    scheduler::run,
    statistics::{Interval, interval, mean, median},
    workload::{Setting, Workload},
};

/// Least number of runs, as in the paper.
const MINIMUM_RUNS: usize = 10;

/// Required precision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Precision {
    /// Half of the 95 % interval of the medians, relative to the medians; 0.03 in the paper.
    pub within: f64,
    /// Most runs.
    pub runs: usize,
}

/// Results over all runs, with 95 % intervals.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Number of runs.
    pub runs: usize,
    /// The median of the requests' improvements.
    pub improvement: Interval,
    /// The mean of the improvements.
    pub mean: Interval,
    /// Seconds of the median response of pessimistic make.
    pub pessimistic: Interval,
    /// Seconds of the median response of optimistic make.
    pub optimistic: Interval,
    /// Machine time of optimistic make, relative to pessimistic make.
    pub load: Interval,
    /// Machine time of aborted commands, relative to pessimistic make.
    pub aborted: Interval,
    /// Share of requests that optimistic make answers later than pessimistic make.
    pub worse: Interval,
    /// Minutes by number of busy machines, with pessimistic and with optimistic make.
    pub utilization: [Vec<usize>; 2],
}

/// Results of a run.
struct Run {
    figures: [f64; 7],
    utilization: [Vec<usize>; 2],
}

/// Simulates a setting until the three medians are known precisely enough. Equal seeds give equal results.
#[must_use]
pub fn measure(
    workload: &Workload,
    setting: &Setting,
    precision: Precision,
    seed: u64,
) -> Measured {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut columns: [Vec<f64>; 7] = Default::default();
    let mut utilization: [Vec<usize>; 2] = Default::default();
    loop {
        // With a single user, there may be no request in the whole time.
        if let Some(run) = one(workload, setting, &mut random) {
            for (column, figure) in columns.iter_mut().zip(run.figures) {
                column.push(figure);
            }
            for (all, minutes) in utilization.iter_mut().zip(run.utilization) {
                add(all, &minutes);
            }
        }
        let runs = columns[0].len();
        let known = |column: &Vec<f64>| interval(column).relative() <= precision.within;
        let is_known = runs >= MINIMUM_RUNS && columns[..3].iter().all(known);
        if is_known || runs >= precision.runs.max(2) {
            break;
        }
    }
    let [
        improvement,
        pessimistic,
        optimistic,
        mean,
        load,
        aborted,
        worse,
    ] = [0, 1, 2, 3, 4, 5, 6].map(|which: usize| interval(&columns[which]));
    Measured {
        runs: columns[0].len(),
        improvement,
        mean,
        pessimistic,
        optimistic,
        load,
        aborted,
        worse,
        utilization,
    }
}

/// Both kinds of make with the same requests.
fn one(workload: &Workload, setting: &Setting, random: &mut SmallRng) -> Option<Run> {
    let requests = workload.requests(setting, random);
    if requests.is_empty() {
        return None;
    }
    let pessimistic = run(&requests, setting, false);
    let optimistic = run(&requests, setting, true);
    let both = pessimistic.responses.iter().zip(&optimistic.responses);
    let improvements: Vec<f64> = both.map(|(before, after)| before / after).collect();
    let worse = improvements.iter().map(|it| f64::from(u8::from(*it < 1.0)));
    Some(Run {
        figures: [
            median(&improvements),
            median(&pessimistic.responses),
            median(&optimistic.responses),
            mean(&improvements),
            optimistic.busy / pessimistic.busy,
            optimistic.aborted / pessimistic.busy,
            mean(&worse.collect::<Vec<_>>()),
        ],
        utilization: [pessimistic.utilization, optimistic.utilization],
    })
}

/// Adds a minute for each of these numbers of busy machines.
fn add(minutes: &mut Vec<usize>, machines: &[usize]) {
    for busy in machines {
        if minutes.len() <= *busy {
            minutes.resize(busy + 1, 0);
        }
        minutes[*busy] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRECISION: Precision = Precision {
        within: 0.03,
        runs: 100,
    };

    #[test]
    fn baseline_equals_papers() {
        let baseline = measure(&Workload::paper(), &Setting::baseline(5), PRECISION, 1);
        assert!(baseline.improvement.relative() <= 0.03, "{baseline:?}");
        assert!((10..=100).contains(&baseline.runs));
        // 3 % by the interval, and as much by the fit.
        assert!((baseline.improvement.value / 1.72 - 1.0).abs() < 0.06);
        assert!((baseline.mean.value / 8.28 - 1.0).abs() < 0.1);
        assert!((0.0..0.1).contains(&baseline.worse.value));
    }

    #[test]
    fn faster_machines_equal_papers() {
        for (speed, paper) in [(1.0, 1.7), (8.0, 5.1), (16.0, 3.3)] {
            let setting = Setting {
                speed,
                machines: None,
                ..Setting::baseline(5)
            };
            let measured = measure(&Workload::paper(), &setting, PRECISION, 3);
            let off = measured.improvement.value / paper - 1.0;
            assert!(off.abs() < 0.06, "{speed}: {off}");
        }
    }

    /// As in section 6.1.
    #[test]
    fn small_requests_gain_more() {
        let setting = Setting {
            horizon: 500_000.0,
            ..Setting::baseline(5)
        };
        let mut random = SmallRng::seed_from_u64(4);
        let requests = Workload::paper().requests(&setting, &mut random);
        let [before, after] = [false, true].map(|it| run(&requests, &setting, it).responses);
        let improvements = |is_of: &dyn Fn(usize) -> bool| {
            let all = requests.iter().zip(before.iter().zip(&after));
            let these = all.filter(|(request, _)| is_of(request.commands.len()));
            median(
                &these
                    .map(|(_, (before, after))| before / after)
                    .collect::<Vec<_>>(),
            )
        };
        assert!(improvements(&|count| count <= 2) > 1.5 * improvements(&|count| count > 2));
    }

    #[test]
    fn same_seed_gives_same_result() {
        let setting = Setting::baseline(2);
        let once = |seed| measure(&Workload::paper(), &setting, PRECISION, seed);
        assert_eq!(once(7), once(7));
        assert_ne!(once(7), once(8));
    }

    #[test]
    fn unreachable_precision_stops_at_limit() {
        let precision = Precision {
            within: 1e-6,
            runs: 12,
        };
        let measured = measure(&Workload::paper(), &Setting::baseline(1), precision, 1);
        assert_eq!(measured.runs, 12);
        assert!(measured.improvement.relative() > 1e-6);
    }

    #[test]
    fn machine_minutes_are_counted() {
        let mut minutes = Vec::new();
        add(&mut minutes, &[0, 2, 2]);
        add(&mut minutes, &[1]);
        assert_eq!(minutes, [1, 1, 2]);
    }
}
