//! Real processes in real cgroups: started, watched, killed, and without remains.

use std::time::{Duration, Instant};
use std::{fs, io};

use crate::common::{EVENT_TIMEOUT, Service, eventually, exists};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, getsid, kill_process};
use supervise::{Cgroup, CgroupError, Command, Exit, Pid, Server, SpawnError, reap_orphans};

const KILLED_BY_SIGKILL: Exit = Exit::Signal {
    signal: 9,
    core_dumped: false,
};

fn shell(script: &str) -> Command {
    Command::new(["sh", "-c", script])
}

fn start(command: &Command, cgroup: &Cgroup) -> Server {
    command.start(cgroup).expect("it starts")
}

fn exit_of(server: &mut Server) -> Exit {
    server
        .wait(EVENT_TIMEOUT)
        .expect("our child")
        .expect("it ends")
}

fn procs(cgroup: &Cgroup) -> Vec<Pid> {
    cgroup.procs().expect("readable")
}

/// Removes the cgroup and checks that no part of the service remains.
fn assert_nothing_left(cgroup: Cgroup, pids: &[Pid]) {
    assert!(cgroup.wait_empty(EVENT_TIMEOUT).expect("readable"));
    eventually("no process and no zombie is left", || {
        reap_orphans(&cgroup, &[]).expect("/proc");
        !pids.iter().any(|&pid| exists(pid))
    });
    let path = cgroup.path().to_owned();
    cgroup.remove().expect("empty");
    assert!(!path.exists());
}

#[test]
fn process_runs_in_cgroup_and_session_until_killed() {
    let (_service, cgroup) = Service::new();
    let mut server = start(&Command::new(["sleep", "1000"]), &cgroup);
    let pid = server.pid();
    assert_eq!(procs(&cgroup), [pid]);
    assert!(cgroup.populated().expect("readable"));
    assert_eq!(getsid(Some(pid)).expect("it lives"), pid);
    assert_eq!(server.try_wait().expect("our child"), None);
    assert_eq!(server.wait(Duration::ZERO).expect("our child"), None);

    cgroup.kill().expect("killed");
    assert_eq!(exit_of(&mut server), KILLED_BY_SIGKILL);
    assert_eq!(
        server.try_wait().expect("remembered"),
        Some(KILLED_BY_SIGKILL)
    );
    assert_nothing_left(cgroup, &[pid]);
}

/// Not even the first instruction may run outside of the cgroup: the BPF programs rely on this.
#[test]
fn first_instruction_runs_in_cgroup() {
    let (service, cgroup) = Service::new();
    let out = service.run_dir.path().join("out");
    let script = format!("exec cat /proc/self/cgroup > {}", out.display());
    let mut server = start(&shell(&script), &cgroup);
    assert_eq!(exit_of(&mut server), Exit::Status(0));
    let seen = fs::read_to_string(out).expect("written");
    let expected = format!("0::/outlive/{}/life-1", service.name);
    assert!(seen.lines().any(|line| line == expected), "{seen}");
}

#[test]
fn signal_mask_and_working_directory_are_set() {
    let (service, cgroup) = Service::new();
    let dir = fs::canonicalize(service.run_dir.path()).expect("it exists");
    let script = "grep SigBlk /proc/self/status > mask; pwd > dir";
    let command = shell(script).working_directory(&dir);
    // Started from a thread that blocks signals, as a supervisor with a signalfd does.
    let mut server = std::thread::scope(|s| {
        let blocked = s.spawn(|| {
            nix::sys::signal::SigSet::all()
                .thread_block()
                .expect("blocked");
            start(&command, &cgroup)
        });
        blocked.join().expect("no panic")
    });
    assert_eq!(exit_of(&mut server), Exit::Status(0));
    let read = |name| fs::read_to_string(dir.join(name)).expect("written");
    assert_eq!(read("mask").trim(), "SigBlk:\t0000000000000000");
    assert_eq!(read("dir").trim(), dir.to_string_lossy());
}

#[test]
fn argv0_is_user_input() {
    let (service, cgroup) = Service::new();
    let out = service.run_dir.path().join("out");
    let script = format!("tr '\\0' ' ' < /proc/$$/cmdline > {}", out.display());
    assert_eq!(
        exit_of(&mut start(&shell(&script), &cgroup)),
        Exit::Status(0)
    );
    let seen = fs::read_to_string(out).expect("written");
    assert!(seen.starts_with("sh -c tr"), "{seen}");
}

#[test]
fn exits_are_distinguished() {
    let (_service, cgroup) = Service::new();
    let run = |script: &str| exit_of(&mut start(&shell(script), &cgroup));
    assert_eq!(run("exit 0"), Exit::Status(0));
    assert_eq!(run("exit 3"), Exit::Status(3));
    let terminated = run("kill -TERM $$");
    assert_eq!(terminated.to_string(), "killed by SIGTERM");
    // A core dump is the host's choice.
    let aborted = run("ulimit -c 0; kill -ABRT $$");
    assert!(
        matches!(aborted, Exit::Signal { signal: 6, .. }),
        "{aborted}"
    );
    assert!(aborted.to_string().starts_with("killed by SIGABRT"));
}

#[test]
fn pidfd_and_cgroup_events_wake_event_loop() {
    let (_service, cgroup) = Service::new();
    let server = start(&Command::new(["sleep", "1000"]), &cgroup);
    assert!(cgroup.populated().expect("readable"), "arms the events");
    let ready = |timeout: Duration| {
        let mut fds = [
            PollFd::new(&server, PollFlags::IN),
            PollFd::from_borrowed_fd(cgroup.events_fd(), PollFlags::PRI),
        ];
        let timeout = Timespec::try_from(timeout).expect("short");
        poll(&mut fds, Some(&timeout)).expect("polls");
        [
            fds[0].revents().contains(PollFlags::IN),
            fds[1].revents().contains(PollFlags::PRI),
        ]
    };
    assert_eq!(ready(Duration::from_millis(20)), [false, false]);
    cgroup.kill().expect("killed");
    eventually("both are ready", || ready(EVENT_TIMEOUT) == [true, true]);
    assert!(!cgroup.populated().expect("readable"));
    assert_eq!(ready(Duration::ZERO), [true, false], "armed again");
}

#[test]
fn process_tree_is_killed_whole() {
    let (_service, cgroup) = Service::new();
    let script = "sleep 1000 & sh -c 'sleep 1000 & sleep 1000 & wait' & wait";
    let mut server = start(&shell(script), &cgroup);
    eventually("the tree has grown", || procs(&cgroup).len() == 5);
    let pids = procs(&cgroup);
    cgroup.kill().expect("killed");
    assert_eq!(exit_of(&mut server), KILLED_BY_SIGKILL);
    assert_nothing_left(cgroup, &pids);
}

#[test]
fn double_forked_daemon_is_killed_and_reaped() {
    let (_service, cgroup) = Service::new();
    let script = "setsid sh -c 'setsid sleep 1000 & exit 0' & exit 0";
    let mut server = start(&shell(script), &cgroup);
    let main = server.pid();
    assert_eq!(exit_of(&mut server), Exit::Status(0));
    let mut daemon = None;
    eventually("only the daemon is left", || {
        daemon = match procs(&cgroup)[..] {
            [pid] if comm(pid) == "sleep" => Some(pid),
            _ => None,
        };
        daemon.is_some()
    });
    let daemon = daemon.expect("found above");
    assert_ne!(daemon, main);
    assert_eq!(parent(daemon), getpid(), "the subreaper");
    cgroup.kill().expect("killed");
    assert_nothing_left(cgroup, &[main, daemon]);
}

fn comm(pid: Pid) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    text.trim_end().to_owned()
}

fn parent(pid: Pid) -> Pid {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|l| l.strip_prefix("PPid:"));
    let number = line.expect("a parent").trim().parse().expect("a number");
    Pid::from_raw(number).expect("a pid")
}

#[test]
fn orphan_reaping_leaves_statuses_of_children() {
    let (_service, cgroup) = Service::new();
    let (_other_service, other) = Service::new();
    let mut stranger = std::process::Command::new("false").spawn().expect("starts");
    let mut main = start(&shell("exit 7"), &cgroup);
    let mut neighbour = start(&shell("exit 8"), &other);
    let is_zombie = |pid: Pid| {
        fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|s| s.contains("State:\tZ"))
    };
    let all = [Pid::from_child(&stranger), main.pid(), neighbour.pid()];
    eventually("all are zombies", || all.iter().all(|&pid| is_zombie(pid)));
    assert_eq!(reap_orphans(&cgroup, &[main.pid()]).expect("/proc"), 0);
    assert_eq!(exit_of(&mut main), Exit::Status(7));
    assert_eq!(exit_of(&mut neighbour), Exit::Status(8));
    assert_eq!(stranger.wait().expect("ours").code(), Some(1));

    // Without `keep` the main process is an orphan like any other.
    let forgotten = start(&shell("exit 9"), &cgroup);
    eventually("it is a zombie", || is_zombie(forgotten.pid()));
    assert_eq!(reap_orphans(&cgroup, &[]).expect("/proc"), 1);
    assert!(!exists(forgotten.pid()));
}

#[test]
fn occupied_cgroup_is_refused_and_empty_cgroup_replaced() {
    let (service, cgroup) = Service::new();
    let server = start(&Command::new(["sleep", "1000"]), &cgroup);
    let error = Cgroup::create(&service.mount, &service.name).expect_err("occupied");
    assert!(
        matches!(&error, CgroupError::Occupied { pids, .. } if *pids == [server.pid()]),
        "{error}"
    );
    assert!(error.to_string().contains(&server.pid().to_string()));
    let adopted = Cgroup::open(&service.mount, &service.name).expect("it is there");
    assert_eq!(adopted.id(), cgroup.id());
    let error = adopted.remove().expect_err("occupied");
    assert!(matches!(error, CgroupError::Occupied { .. }), "{error}");

    cgroup.kill().expect("killed");
    assert!(cgroup.wait_empty(EVENT_TIMEOUT).expect("readable"));
    reap_orphans(&cgroup, &[]).expect("/proc");
    let replaced = Cgroup::create(&service.mount, &service.name).expect("empty");
    assert_ne!(replaced.id(), cgroup.id());
    assert!(!cgroup.populated().expect("a removed cgroup is empty"));
    replaced.remove().expect("empty");
    cgroup.remove().expect("gone already");
}

/// Level and id as the BPF programs compare: `/proc/<pid>/cgroup` is the kernel's own view of the depth, and the id of
/// a live server stays while another service has a different id.
#[test]
fn cgroup_id_and_level_match_kernel() {
    let (_service, cgroup) = Service::new();
    let (_other_service, other) = Service::new();
    let server = start(&Command::new(["sleep", "1000"]), &cgroup);
    let seen = fs::read_to_string(format!("/proc/{}/cgroup", server.pid())).expect("it lives");
    let path = seen.lines().find_map(|l| l.strip_prefix("0::/"));
    // The cgroup of the process is the sub-cgroup of the incarnation, a level below the service's cgroup.
    let depth = path.expect("a v2 line").split('/').count() - 1;
    assert_eq!(usize::try_from(cgroup.level()), Ok(depth));
    assert_ne!(cgroup.id(), other.id());
    assert!(cgroup.id() > 1, "1 is the root");
}

/// After `cgroup.kill` no process can be born into the same cgroup (see `Cgroup::new_life`).
#[test]
fn killed_server_is_started_again() {
    let (_service, cgroup) = Service::new();
    for _ in 0..3 {
        let mut server = start(&Command::new(["sleep", "1000"]), &cgroup);
        assert_eq!(
            server.wait(Duration::from_millis(20)).expect("a child"),
            None,
            "it lives"
        );
        cgroup.kill().expect("killed");
        assert_eq!(exit_of(&mut server), KILLED_BY_SIGKILL);
        assert!(cgroup.wait_empty(EVENT_TIMEOUT).expect("readable"));
    }
    cgroup.remove().expect("empty");
}

#[test]
fn sub_cgroups_belong_to_service() {
    let (_service, cgroup) = Service::new();
    let sub = cgroup.path().join("worker");
    let script = format!(
        "mkdir {sub} && sh -c 'echo 0 > {sub}/cgroup.procs; exec sleep 1000' & wait",
        sub = sub.display()
    );
    let mut server = start(&shell(&script), &cgroup);
    let inside = || fs::read_to_string(sub.join("cgroup.procs")).unwrap_or_default();
    eventually("the worker has moved", || inside().lines().count() == 1);
    assert_eq!(procs(&cgroup).len(), 2);
    let pids = procs(&cgroup);
    cgroup.kill().expect("killed");
    assert_eq!(exit_of(&mut server), KILLED_BY_SIGKILL);
    assert_nothing_left(cgroup, &pids);
}

#[test]
fn graceful_server_stops_gracefully() {
    let (_service, cgroup) = Service::new();
    let mut server = start(&shell("trap 'exit 5' TERM; sleep 1000 & wait"), &cgroup);
    eventually("it is set up", || procs(&cgroup).len() == 2);
    let pids = procs(&cgroup);
    let main = server.pid();
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| server.stop(&cgroup, EVENT_TIMEOUT));
        // SIGTERM is for the server alone: the child outlives the shell, and the grace goes on.
        let left: Vec<_> = pids.iter().copied().filter(|&pid| pid != main).collect();
        eventually("the server has ended", || procs(&cgroup) == left);
        assert!(!stopping.is_finished());
        kill_process(left[0], Signal::KILL).expect("the child lives");
        let exit = stopping.join().expect("no panic").expect("stopped");
        assert_eq!(exit, Exit::Status(5));
    });
    assert!(!pids.iter().any(|&pid| exists(pid)), "reaped");
    assert_nothing_left(cgroup, &pids);
}

#[test]
fn stop_kills_remaining_processes_after_timeout() {
    let (_service, cgroup) = Service::new();
    let mut server = start(&shell("(trap '' TERM; exec sleep 1000) & exit 5"), &cgroup);
    assert_eq!(exit_of(&mut server), Exit::Status(5));
    eventually("only the child is left", || {
        procs(&cgroup).iter().map(|&pid| comm(pid)).eq(["sleep"])
    });
    let pids = procs(&cgroup);
    let begin = Instant::now();
    let grace = Duration::from_millis(200);
    let exit = server.stop(&cgroup, grace).expect("stopped");
    assert_eq!(exit, Exit::Status(5));
    assert!(begin.elapsed() >= grace);
    assert!(!pids.iter().any(|&pid| exists(pid)), "reaped");
    assert_nothing_left(cgroup, &pids);
}

#[test]
fn stop_returns_when_cgroup_is_empty() {
    let (_service, cgroup) = Service::new();
    let mut server = start(&Command::new(["sleep", "1000"]), &cgroup);
    // A grace without an end: a stop that waited for the end of the grace would hang.
    let exit = server.stop(&cgroup, Duration::MAX).expect("stopped");
    assert_eq!(exit.to_string(), "killed by SIGTERM");
    assert_eq!(server.stop(&cgroup, Duration::ZERO).expect("again"), exit);
}

#[test]
fn stop_kills_server_ignoring_sigterm() {
    let (_service, cgroup) = Service::new();
    let mut server = start(&shell("trap '' TERM; sleep 1000; sleep 1000"), &cgroup);
    eventually("it is set up", || procs(&cgroup).len() == 2);
    let pids = procs(&cgroup);
    let exit = server
        .stop(&cgroup, Duration::from_millis(50))
        .expect("stopped");
    assert_eq!(exit, KILLED_BY_SIGKILL);
    assert_nothing_left(cgroup, &pids);
}

#[test]
fn stop_terminates_daemon_without_main_process() {
    let (service, cgroup) = Service::new();
    let out = service.run_dir.path().join("out");
    let script = format!(
        "setsid sh -c 'exec 2>/dev/null; trap \"echo bye > {}; exit 0\" TERM; while :; do sleep 0.01; done' & exit 0",
        out.display()
    );
    let mut server = start(&shell(&script), &cgroup);
    assert_eq!(exit_of(&mut server), Exit::Status(0));
    // The trap is set once the loop of the script runs.
    eventually("the daemon runs", || {
        procs(&cgroup).iter().any(|&pid| comm(pid) == "sleep")
    });
    server.stop(&cgroup, EVENT_TIMEOUT).expect("stopped");
    assert_eq!(fs::read_to_string(out).expect("it said so"), "bye\n");
    assert_nothing_left(cgroup, &[]);
}

#[test]
fn terminate_of_dead_process_is_no_error() {
    let (_service, cgroup) = Service::new();
    let mut server = start(&shell("exit 0"), &cgroup);
    exit_of(&mut server);
    server.terminate().expect("nothing to do");
}

#[test]
fn failed_start_leaves_nothing() {
    let (service, cgroup) = Service::new();
    let dir = service.run_dir.path();
    let script = dir.join("script");
    fs::write(&script, "#!/no/such/interpreter\n").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&script, mode).expect("executable");
    let error = |command: Command| command.start(&cgroup).expect_err("nothing to start");

    let e = error(Command::new(Vec::<String>::new()));
    assert!(matches!(e, SpawnError::Empty), "{e}");
    let e = error(Command::new(["no-such-program-here"]));
    assert!(matches!(e, SpawnError::NotFound { .. }), "{e}");
    let e = error(Command::new([&script]));
    assert!(matches!(e, SpawnError::NoInterpreter { .. }), "{e}");
    let e = error(shell("exit 0").working_directory(dir.join("none")));
    assert!(matches!(e, SpawnError::WorkingDirectory { .. }), "{e}");
    let (service, removed) = Service::new();
    Cgroup::open(&service.mount, &service.name)
        .and_then(Cgroup::remove)
        .expect("empty");
    let e = shell("exit 0")
        .start(&removed)
        .expect_err("nowhere to start");
    assert!(matches!(e, SpawnError::Cgroup { .. }), "{e}");
    let e = error(Command::new(["sh", "a\0b"]));
    assert!(matches!(e, SpawnError::Start { .. }), "{e}");
    assert!(!cgroup.populated().expect("readable"));
}

/// A program that dies in the first instant is known before.
#[test]
fn process_is_announced_before_exec() {
    let (_service, cgroup) = Service::new();
    let program = |pid: Pid| fs::read_link(format!("/proc/{pid}/exe")).expect("a process");
    let mut announced = None;
    let mut announce = |pid| {
        assert_eq!(program(pid), program(getpid()));
        announced = Some(pid);
        Ok(())
    };
    let command = shell("exit 3");
    let server = command.start_with(&cgroup, &[], &mut announce);
    let mut server = server.expect("it starts");
    assert_eq!(announced, Some(server.pid()));
    assert_eq!(exit_of(&mut server), Exit::Status(3));
    assert_nothing_left(cgroup, &[server.pid()]);
}

#[test]
fn failed_announcement_prevents_exec() {
    let (service, cgroup) = Service::new();
    let file = service.run_dir.path().join("begun");
    let mut announced = None;
    let mut refuse = |pid| {
        announced = Some(pid);
        Err(io::Error::other("no"))
    };
    let command = shell(&format!("touch {}", file.display()));
    let started = command.start_with(&cgroup, &[], &mut refuse);
    let error = started.map(drop).expect_err("not announced");
    assert!(matches!(error, SpawnError::Start { .. }), "{error}");
    assert_nothing_left(cgroup, &[announced.expect("a number")]);
    assert!(!file.exists());
}

#[test]
fn empty_cgroup_wait_has_timeout() {
    let (_service, cgroup) = Service::new();
    assert!(cgroup.wait_empty(Duration::ZERO).expect("readable"));
    let server = start(&Command::new(["sleep", "1000"]), &cgroup);
    let begin = Instant::now();
    let timeout = Duration::from_millis(50);
    assert!(!cgroup.wait_empty(timeout).expect("readable"));
    assert!(begin.elapsed() >= timeout);
    kill_process(server.pid(), Signal::KILL).expect("it lives");
    assert!(cgroup.wait_empty(Duration::MAX).expect("readable"));
}

#[test]
fn server_is_adopted_by_pid_and_cgroup() {
    let (_service, cgroup) = Service::new();
    let mut ours = start(&shell("exec sleep 1000"), &cgroup);
    let pid = ours.pid();
    let adopt = |pid| Server::adopt(pid, &cgroup).expect("it can be asked");
    assert!(adopt(getpid()).is_none(), "somebody else's process");
    let mut adopted = adopt(pid).expect("it runs");
    assert_eq!(adopted.try_wait().expect("it can be asked"), None);
    kill_process(pid, Signal::KILL).expect("it lives");
    // The parent gets the status of the process; the adopter only sees the end.
    assert_eq!(
        adopted.wait(EVENT_TIMEOUT).expect("poll"),
        Some(Exit::Unseen)
    );
    assert_eq!(exit_of(&mut ours), KILLED_BY_SIGKILL);
    assert!(adopt(pid).is_none(), "it is gone");
    assert_nothing_left(cgroup, &[pid]);
    assert!(!Exit::Unseen.is_failure());
}
