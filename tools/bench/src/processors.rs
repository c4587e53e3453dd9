//! Who used how much of the processors, from `/proc`.

use std::fs;

use anyhow::{Context, Result};
use lab::Pid;

/// Processor time of the threads of a process, in seconds (`schedstat`: the first field is the time that a thread ran,
/// in nanoseconds). Includes the kernel's work in that time, much of which is for other processes: a packet is
/// received in the sender's time.
pub(super) fn used_by(process: Pid) -> Result<f64> {
    let tasks = format!("/proc/{process}/task");
    let mut sum = 0.0;
    for task in fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))? {
        // A thread may end while we look.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        sum += text.split(' ').next().and_then(nanoseconds).unwrap_or(0.0);
    }
    Ok(sum)
}

fn nanoseconds(text: &str) -> Option<f64> {
    Some(text.parse::<f64>().ok()? * 1e-9)
}

/// Processor time of all processors together, in seconds: all but idle time, and time that a host of virtual machines
/// took away (proc(5), stat, in ticks of 10 ms).
pub(super) fn used_by_all() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    busy(&text).context("no line `cpu` in /proc/stat")
}

fn busy(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<f64> = line
        .split_ascii_whitespace()
        .filter_map(|ticks| ticks.parse().ok())
        .collect();
    // user, nice, system, idle, iowait, irq, softirq
    let working = [0, 1, 2, 5, 6].map(|field| ticks.get(field).copied());
    Some(working.into_iter().sum::<Option<f64>>()? / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_stolen_time_is_no_work() {
        let stat = "cpu  100 20 300 4000 50 6 7 800 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n";
        assert_eq!(busy(stat), Some(4.33));
        assert_eq!(busy("cpu0 1 2 3 4 5 6 7 8 0 0\n"), None);
    }

    #[test]
    fn own_processor_time_is_positive() -> Result<()> {
        assert!(used_by(rustix::process::getpid())? > 0.0);
        Ok(())
    }
}
