//! A process with a world can end at any time. Needs root and `/dev/fuse`.

use std::{
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use conceal::world::World;

/// Time after which a process counts as a process that never ends.
const PROCESS_END_TIMEOUT: Duration = Duration::from_secs(120);
/// Number of processes.
const PROCESS_COUNT: u64 = 400;
/// Microseconds between the end times of two processes.
const STEP_US: u64 = 20;
/// Environment variable: microseconds from the first view to the end of the process.
const ENDS_AFTER: &str = "OUTLIVE_TEST_ENDS_AFTER_US";

/// Another thread makes the mounts of the next encapsulation. Without [`World::end`], a process that was killed while
/// that thread waited for an answer of the process's own file system never ended, and `outlive make --stop` waited
/// forever. This happened to about 1 of 1,500 processes on a single processor.
#[test]
fn process_killed_during_mounts_leaves_no_hang() {
    if let Ok(after) = std::env::var(ENDS_AFTER) {
        end_after(Duration::from_micros(after.parse().expect("a number")));
    }
    let program = std::env::current_exe().expect("this program");
    for round in 0..PROCESS_COUNT {
        let mut command = Command::new(&program);
        command
            .args([
                "--exact",
                "process_ends_at_any_moment_while_mounts_are_made",
            ])
            .env(ENDS_AFTER, (round * STEP_US).to_string())
            .stdout(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let began = Instant::now();
        while child.try_wait().expect("a child").is_none() {
            let pid = child.id();
            assert!(
                began.elapsed() < PROCESS_END_TIMEOUT,
                "round {round}: process {pid} does not end"
            );
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn end_after(time: Duration) -> ! {
    let directory = tempfile::TempDir::new_in("/var/lib").expect("a directory");
    let world = World::new(&[directory.path().into()], Arc::new(|_| false), &[], &[]);
    let world = world.expect("root and /dev/fuse");
    let view = world.begin(world.encapsulation()).expect("a view");
    thread::sleep(time);
    world.end();
    drop(directory);
    std::mem::forget((world, view));
    std::process::exit(0)
}
