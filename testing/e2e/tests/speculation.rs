//! `outlive speculate`: the effects of a command exist after a commit, and never existed after an abort.

mod tree;

use std::{
    fs,
    io::{Read as _, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::process::ExitStatusExt as _,
    },
    process::{Command, Stdio},
};

use tempfile::TempDir;
use tree::{Tree, wait_until};

/// A gate that concealed commands wait for, until the gate is dropped. A file would be another input of the commands.
/// But `/proc` is the same for every process: here, whether this process has a descriptor.
struct Gate(OwnedFd);

impl Gate {
    fn shut() -> Self {
        // No other descriptor of this process gets that number meanwhile: the kernel gives the least free number.
        const HIGH_DESCRIPTOR: i32 = 500;
        let file = fs::File::open("/dev/null").expect("a device");
        let high = rustix::io::fcntl_dupfd_cloexec(&file, HIGH_DESCRIPTOR);
        Self(high.expect("a descriptor"))
    }

    /// A script that ends when the gate is open.
    fn is_waited_for(&self) -> String {
        let descriptor = self.0.as_raw_fd();
        let process = std::process::id();
        format!("while [ -L /proc/{process}/fd/{descriptor} ]; do sleep 0.01; done")
    }
}

/// A single test: each part looks for leftovers, and would see the leftovers of a concurrent part.
#[test]
fn commands_are_created_committed_and_aborted() {
    committed_effects_exist();
    aborted_effects_do_not_exist();
    committed_command_continues();
    inputs_are_committed_first();
    conflicting_inputs_are_reported();
    stale_speculation_is_not_committed();
    timeout_aborts_speculation();
    stdin_is_read_from_user();
    outside_effects_wait_for_commit();
    waiting_command_is_aborted();
    interrupt_reaches_committed_command();
    daemon_waits_for_committed_command();
    name_is_reusable();
    mistakes_are_reported();
}

fn committed_effects_exist() {
    let tree = Tree::new();
    fs::write(tree.file("old"), "old").expect("a file");
    let script = "echo one; echo two >&2; echo new >new; mv old older; mkdir -p d/e; ln -s ../new d/link; chmod 600 new; exit 7";
    tree.create("it", &[], script);
    tree.ended("it");
    assert!(!tree.file("new").exists() && tree.file("old").exists());
    let mandated = tree.run(&["commit", "it"]);
    assert_eq!(mandated.status.code(), Some(7));
    assert_eq!(mandated.stdout, b"one\n");
    let errors = String::from_utf8(mandated.stderr).expect("text");
    assert!(errors.starts_with("two\n"), "{errors}");
    assert!(errors.contains("visible now"), "{errors}");
    assert_eq!(
        fs::read_to_string(tree.file("new")).expect("it is there"),
        "new\n"
    );
    assert_eq!(
        fs::read_to_string(tree.file("d/link")).expect("too"),
        "new\n"
    );
    assert!(tree.file("older").exists() && !tree.file("old").exists());
    assert!(tree.all().is_empty());
}

fn aborted_effects_do_not_exist() {
    let tree = Tree::new();
    tree.create("finished", &[], "echo >new");
    tree.create("running", &[], "echo >newer; sleep 1000");
    tree.ended("finished");
    assert_eq!(tree.done(&["abort", "finished"]), "finished\n");
    assert_eq!(tree.done(&["abort", "running"]), "running\n");
    let left = fs::read_dir(tree.path()).expect("it is there").count();
    assert_eq!(left, 0);
    let refused = tree.refused(&["commit", "finished"]);
    assert!(refused.contains("no speculation"), "{refused}");
    // A client that waits for an aborted command learns of the abort; the effects until then stay.
    tree.create("wanted", &[], "echo there; echo >there; sleep 1000");
    wait_until("it has begun", || {
        tree.all()[0]["effects"].as_u64() > Some(0)
    });
    let mandate = tree
        .outlive(&["commit", "wanted"])
        .stdout(Stdio::piped())
        .spawn();
    let mandate = mandate.expect("outlive");
    wait_until("it is there", || tree.file("there").exists());
    assert_eq!(tree.done(&["abort", "wanted"]), "wanted\n");
    let output = mandate.wait_with_output().expect("it ends");
    assert_eq!(output.stdout, b"there\n");
    assert_eq!(output.status.signal(), Some(9));
}

fn committed_command_continues() {
    let tree = Tree::new();
    let script = "echo before; echo before >file; until [ -e go ]; do sleep 0.02; done; echo after >>file; echo after";
    tree.create("it", &[], script);
    wait_until("it has begun", || {
        tree.all()[0]["effects"].as_u64() > Some(0)
    });
    assert!(!tree.file("file").exists());
    let mandate = tree
        .outlive(&["commit", "it"])
        .stdout(Stdio::piped())
        .spawn();
    let mandate = mandate.expect("outlive");
    wait_until("it is there", || tree.file("file").exists());
    fs::write(tree.file("go"), "").expect("a file");
    let output = mandate.wait_with_output().expect("it ends");
    assert_eq!(output.stdout, b"before\nafter\n");
    let file = fs::read_to_string(tree.file("file")).expect("it is there");
    assert_eq!(file, "before\nafter\n");
}

fn inputs_are_committed_first() {
    let tree = Tree::new();
    let gate = Gate::shut();
    let one = format!("{}; echo one >one; echo did one", gate.is_waited_for());
    tree.create("one", &[], &one);
    tree.create("two", &[], "echo two >two; echo did two");
    tree.create(
        "both",
        &["--input", "one", "--input", "two"],
        "cat one two >both; echo did both",
    );
    assert_eq!(tree.state("both"), "waits");
    drop(gate);
    tree.ended("both");
    assert!(!tree.file("one").exists());
    assert_eq!(
        tree.done(&["commit", "both"]),
        "did one\ndid two\ndid both\n"
    );
    let both = fs::read_to_string(tree.file("both")).expect("it is there");
    assert_eq!(both, "one\ntwo\n");
    // An abort also aborts all commands that have the command as an input.
    tree.create("below", &[], "echo >below");
    tree.create("above", &["--input", "below"], "cat below >above");
    tree.ended("above");
    assert_eq!(tree.done(&["abort", "below"]), "above\nbelow\n");
    assert!(!tree.file("above").exists());
}

fn conflicting_inputs_are_reported() {
    let tree = Tree::new();
    fs::write(tree.file("count"), "1\n").expect("a file");
    let script = "read n <count; echo $((n + 1)) >count";
    tree.create("one", &[], script);
    tree.create("two", &[], script);
    tree.ended("one");
    tree.ended("two");
    let refused = tree.refused(&[
        "run", "--input", "one", "--input", "two", "--", "cat", "count",
    ]);
    assert!(
        refused.contains("two, its input, has read what another one"),
        "{refused}"
    );
}

fn stale_speculation_is_not_committed() {
    let tree = Tree::new();
    fs::write(tree.file("read"), "1\n").expect("a file");
    tree.create("it", &[], "cat read >copy");
    tree.ended("it");
    fs::write(tree.file("read"), "two\n").expect("a file");
    let refused = tree.refused(&["commit", "it"]);
    assert!(
        refused.contains("/read has changed since it was read"),
        "{refused}"
    );
    assert!(!tree.file("copy").exists());
}

fn timeout_aborts_speculation() {
    let tree = Tree::new();
    tree.create("it", &["--timeout", "500ms"], "echo >file; sleep 1000");
    wait_until("it is aborted", || tree.all().is_empty());
    assert!(!tree.file("file").exists());
}

fn stdin_is_read_from_user() {
    let tree = Tree::new();
    let script = "read one; echo $one >one; read two; echo $two >two";
    // The creating command has a standard input, too.
    let create = tree
        .outlive(&["run", "--name", "it", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .status();
    assert!(create.expect("outlive").success());
    let mut mandate = tree.outlive(&["commit", "it"]);
    let mandate = mandate.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut mandate = mandate.expect("outlive");
    let mut input = mandate.stdin.take().expect("a pipe");
    input.write_all(b"first\nsecond\nthird\n").expect("room");
    assert!(mandate.wait().expect("it ends").success());
    let read = |name| fs::read_to_string(tree.file(name)).expect("it is there");
    assert_eq!((&*read("one"), &*read("two")), ("first\n", "second\n"));
}

/// Changes elsewhere, devices, and requests to the kernel: done at the commit, and not before.
fn outside_effects_wait_for_commit() {
    let tree = Tree::new();
    let outside = TempDir::new_in("/var/lib").expect("another directory");
    let there = outside.path().join("there");
    let say = |what: &str| format!("echo before; {what}; echo after");
    tree.create(
        "elsewhere",
        &[],
        &say(&format!("echo new >{}", there.display())),
    );
    tree.create(
        "kernel",
        &[],
        &say("read n </proc/sys/vm/swappiness; echo $n >/proc/sys/vm/swappiness"),
    );
    tree.create("device", &[], &say("echo '<7>outlive was here' >/dev/kmsg"));
    tree.create("program", &[], &say("(unshare -m true || true)"));
    let waits = |name: &str, why: &str| {
        let all = tree.all();
        let one = all
            .iter()
            .find(|one| one["name"] == name)
            .expect("it is there")
            .clone();
        one["waiting"].to_string().contains(why)
    };
    for (name, why) in [
        ("elsewhere", "outside"),
        ("kernel", "the kernel's state"),
        ("device", "a device"),
        ("program", "the state of the machine"),
    ] {
        wait_until(name, || waits(name, why));
        assert!(!there.exists());
    }
    for name in ["kernel", "device", "program", "elsewhere"] {
        assert_eq!(tree.done(&["commit", name]), "before\nafter\n", "{name}");
    }
    assert_eq!(fs::read_to_string(there).expect("it is there"), "new\n");
}

fn waiting_command_is_aborted() {
    let tree = Tree::new();
    let outside = TempDir::new_in("/var/lib").expect("another directory");
    let there = outside.path().join("there");
    let script = format!("while :; do echo new >{}; done", there.display());
    tree.create("it", &[], &script);
    wait_until("it waits", || {
        tree.all()[0]["waiting"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    });
    assert_eq!(tree.done(&["abort", "it"]), "it\n");
    assert!(!there.exists());
}

fn interrupt_reaches_committed_command() {
    let tree = Tree::new();
    tree.create(
        "it",
        &[],
        "trap 'echo told; exit 3' INT; echo begun; while :; do sleep 0.1; done",
    );
    let mandate = tree
        .outlive(&["commit", "it"])
        .stdout(Stdio::piped())
        .spawn();
    let mut mandate = mandate.expect("outlive");
    let mut said = [0; 6];
    let out = mandate.stdout.as_mut().expect("a pipe");
    out.read_exact(&mut said).expect("it says something");
    let pid = mandate.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.expect("kill").success());
    let output = mandate.wait_with_output().expect("it ends");
    assert_eq!(output.stdout, b"told\n");
    assert_eq!(output.status.code(), Some(3));
}

fn daemon_waits_for_committed_command() {
    let tree = Tree::new();
    let outside = TempDir::new_in("/var/lib").expect("another directory");
    let there = outside.path().join("there");
    let script = format!(
        "echo >begun; until [ -e go ]; do sleep 0.02; done; echo new >{}; echo after",
        there.display()
    );
    tree.create("it", &[], &script);
    let mut mandate = tree.outlive(&["commit", "it"]);
    let mandate = mandate.stdout(Stdio::piped()).spawn().expect("outlive");
    wait_until("it is mandated", || tree.file("begun").exists());
    let daemon_pid = tree.daemon_pid().expect("somebody keeps it");
    let sent = Command::new("kill").args(["-TERM", &daemon_pid]).status();
    assert!(sent.expect("kill").success());
    wait_until("nothing new is kept", || {
        let refused = tree.run(&["run", "--name", "other", "--", "true"]);
        String::from_utf8_lossy(&refused.stderr).contains("was told to end")
    });
    fs::write(tree.file("go"), "").expect("a file");
    let output = mandate.wait_with_output().expect("it ends");
    assert_eq!(output.stdout, b"after\n");
    assert!(there.exists());
}

fn name_is_reusable() {
    let tree = Tree::new();
    tree.create("it", &[], "yes | head -c 300000");
    tree.ended("it");
    let mut mandate = tree.outlive(&["commit", "it"]);
    let mandate = mandate.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut mandate = mandate.spawn().expect("outlive");
    let mut said = [0; 2];
    let mut out = mandate.stdout.take().expect("a pipe");
    out.read_exact(&mut said).expect("it says something");
    let again = tree.refused(&["commit", "it"]);
    assert!(again.contains("committed already"), "{again}");
    assert_eq!(tree.done(&["abort", "it"]), "it\n");
    tree.create("it", &[], "sleep 1000");
    drop(out);
    mandate.wait().expect("it ends");
    assert_eq!(tree.state("it"), "runs");
}

fn mistakes_are_reported() {
    let tree = Tree::new();
    for (arguments, why) in [
        (&["run"][..], "COMMAND"),
        (
            &["run", "--", "there-is-no-such-program"],
            "no directory of PATH",
        ),
        (&["commit", "nothing"], "no speculation"),
        (&["abort", "nothing"], "no speculation"),
        (&["run", "--timeout", "1", "--", "true"], "has no unit"),
        (
            &["run", "--input", "nothing", "--", "true"],
            "no speculation is called nothing",
        ),
        (
            &["run", "--tree", "/nowhere", "--", "true"],
            "no such directory",
        ),
    ] {
        let refused = tree.refused(arguments);
        assert!(refused.contains(why), "{arguments:?}: {refused}");
    }
    tree.create("it", &[], "true");
    let refused = tree.refused(&["run", "--name", "it", "--", "true"]);
    assert!(
        refused.contains("a speculation is called it already"),
        "{refused}"
    );
}
