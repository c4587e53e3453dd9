//! Processor time and state of processes.

use std::{fs, time::Duration};

use rustix::{param::clock_ticks_per_second, process::Pid};

/// Activity of several processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Activity {
    /// Processor time of the processes, and of ended children that they have waited for.
    pub time: Duration,
    /// Whether no process wants a processor, or waits for a disk or for an answer of this program.
    pub is_at_rest: bool,
}

/// States in `stat` (proc(5)) without work: sleeping, stopped or dead.
const AT_REST: &str = "STtZXxI";
/// Parts of names of kernel functions in which a thread waits for an answer of a file system or about a call.
const FOR_AN_ANSWER: [&str; 3] = ["fuse", "request_wait_answer", "seccomp"];

impl Activity {
    /// Reads the activity of these processes.
    #[must_use]
    pub fn of(processes: &[Pid]) -> Self {
        let mut all = Self {
            time: Duration::ZERO,
            is_at_rest: true,
        };
        for process in processes {
            // A parent in the list has usually waited for a process that is gone.
            let of = format!("/proc/{}", process.as_raw_pid());
            if let Some((_, waited_for)) = stat_of(&of) {
                all.is_at_rest &= threads(&of).all(|thread| is_at_rest(&thread));
                all.time += waited_for + own(*process);
            }
        }
        all
    }
}

/// The first thread often sleeps while others work.
fn threads(process: &str) -> impl Iterator<Item = String> {
    let all = fs::read_dir(format!("{process}/task"));
    let all = all.into_iter().flatten().flatten();
    all.filter_map(|thread| thread.path().into_os_string().into_string().ok())
}

/// Whether the thread is at rest, as far as the kernel shows.
fn is_at_rest(thread: &str) -> bool {
    let sleeps = stat_of(thread).is_none_or(|(state, _)| AT_REST.contains(state));
    let place = || fs::read_to_string(format!("{thread}/wchan")).unwrap_or_default();
    sleeps && !FOR_AN_ANSWER.iter().any(|word| place().contains(word))
}

/// State of a process or thread, and the time of its waited-for children.
fn stat_of(of: &str) -> Option<(char, Duration)> {
    let about = fs::read_to_string(format!("{of}/stat")).ok()?;
    // The name may contain any byte.
    let (_, after) = about.rsplit_once(')')?;
    let mut words = after.split_whitespace();
    let state = words.next()?.chars().next()?;
    // The state is field 3, and the times are fields 16 and 17 (proc(5)).
    let ticks = words
        .skip(12)
        .take(2)
        .filter_map(|it| it.parse::<u64>().ok());
    let in_a_second = clock_ticks_per_second().max(1);
    let time = Duration::from_nanos(ticks.sum::<u64>() * (1_000_000_000 / in_a_second));
    Some((state, time))
}

/// Processor time of a process with all threads.
fn own(process: Pid) -> Duration {
    let mut clock = 0;
    // SAFETY: the number lives as long as the call.
    let found = unsafe { libc::clock_getcpuclockid(process.as_raw_pid(), &raw mut clock) };
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure lives as long as the call.
    if found != 0 || unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Duration::ZERO;
    }
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn working_threads_differ_from_resting() {
        let this = rustix::process::getpid();
        let working = Activity::of(&[this]);
        assert!(working.time > Duration::ZERO && !working.is_at_rest);
        let mut rests = Command::new("cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("cat");
        let process = Pid::from_child(&rests);
        while !Activity::of(&[process]).is_at_rest {
            std::thread::yield_now();
        }
        drop(rests.stdin.take());
        rests.wait().expect("it ends");
        assert_eq!(Activity::of(&[process]).time, Duration::ZERO);
    }

    #[test]
    fn waiter_for_working_thread_is_working() {
        let script = "import threading\ndef work():\n while True: pass\n\
            thread = threading.Thread(target=work)\nthread.start()\nthread.join()\n";
        let mut works = Command::new("python3")
            .args(["-c", script])
            .spawn()
            .expect("Python");
        let process = Pid::from_child(&works);
        let of = format!("/proc/{}", works.id());
        let waits = || stat_of(&of).is_some_and(|(state, _)| state == 'S');
        while threads(&of).count() < 2 || !waits() {
            std::thread::yield_now();
        }
        let is_at_rest = Activity::of(&[process]).is_at_rest;
        works.kill().expect("it runs");
        works.wait().expect("it ends");
        assert!(!is_at_rest);
    }

    #[test]
    fn ended_children_count_as_work() {
        let script = "i=0; while [ $i -lt 20 ]; do sh -c 'j=0; while [ $j -lt 9999 ]; do j=$((j+1)); done'; i=$((i+1)); done; read x";
        let mut waits = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .spawn()
            .expect("sh");
        let process = Pid::from_child(&waits);
        let of = format!("/proc/{}", waits.id());
        let is_there = || stat_of(&of).is_some_and(|(state, time)| state == 'S' && !time.is_zero());
        while !is_there() {
            std::thread::yield_now();
        }
        assert!(Activity::of(&[process]).time > own(process));
        drop(waits.stdin.take());
        waits.wait().expect("it ends");
    }
}
