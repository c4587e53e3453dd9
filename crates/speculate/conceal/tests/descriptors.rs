//! A call that cannot be checked, because this process has run out of descriptors, waits. The test has a separate
//! process, because the limit of descriptors concerns all tests of a process. Needs root, `/dev/fuse` and Python.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use conceal::world::World;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

/// How long something may take that has to happen.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);

fn limit(current: Option<u64>) {
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current, ..limits }).expect("it is lower");
}

#[test]
fn uninspectable_path_waits() {
    let directory = tempfile::TempDir::new_in("/var/lib").expect("a directory");
    let world = World::new(&[directory.path().into()], Arc::new(|_| false), &[], &[]);
    let world = world.expect("root and /dev/fuse");
    let (_concealing, view) = world.begin(world.encapsulation()).expect("a view");
    let script = "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print('ready', flush=True); signal.sigwait([signal.SIGUSR1])
os.open('/proc/sys/vm/drop_caches', os.O_RDWR)";
    let mut command = Command::new("python3");
    command.args(["-c", script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let (mut child, outside) = view.spawn(&mut command, directory.path()).expect("python3");
    view.members().hurry();
    let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
    said.read_line(&mut String::new()).expect("it is ready");

    let before = getrlimit(Resource::Nofile).current;
    limit(Some(0));
    let process = Pid::from_child(&child);
    kill_process(process, Signal::USR1).expect("it runs");
    let (mut waits, began) = (false, Instant::now());
    while !waits && began.elapsed() < STEP_TIMEOUT && child.try_wait().expect("a child").is_none() {
        thread::sleep(Duration::from_millis(5));
        waits = !outside.waiting().is_empty();
    }
    limit(before);
    assert!(waits, "it was let through");
    child.kill().expect("it waits");
    child.wait().expect("it ends");
}
