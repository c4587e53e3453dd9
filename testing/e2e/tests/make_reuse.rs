//! `outlive make` beside `make`: reuse of results by several makes, or by a make that runs several times.

mod ab_builds;

use std::{
    fs,
    io::{Read as _, Write as _},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use ab_builds::{AbBuilds, make, outlive, wait_until};

/// Asks for a target that was not expected: the command of the target is taken over.
fn asked_for(builds: &AbBuilds, target: &str) {
    let said = builds.make(&[target]);
    assert!(!said.contains("revealed"), "{said}");
}

/// Two targets with the same command, which leaves no file.
const TEMPORARY_MAKEFILE: &str = "all: out one two\none two: in\n\t@echo text >temporary; rm temporary; cat in\n\
    out: in\n\tcp in $@\n";

#[test]
fn repeated_command_leaves_effects_once() {
    let mut builds = AbBuilds::new(&[("Makefile", TEMPORARY_MAKEFILE), ("in", "text\n")]);
    builds.watch(&[]);
    for number in 0..3 {
        builds.await_speculation();
        let said = builds.make(&[]);
        assert!(said.contains("revealed"), "{said}");
        builds.save("in", &format!("text {number}\n"));
    }
}

/// Another make had the result before, for a part of the targets only.
#[test]
fn removed_result_is_committed_again() {
    let mut builds = AbBuilds::new(&[("Makefile", TEMPORARY_MAKEFILE), ("in", "text\n")]);
    builds.watch(&[]);
    builds.await_speculation();
    asked_for(&builds, "one");
    asked_for(&builds, "out");
    builds.shell("rm out");
    builds.await_speculation();
    let said = builds.make(&[]);
    assert!(said.contains("revealed"), "{said}");
}

/// Two alternating requests both find results.
#[test]
fn two_makes_are_expected() {
    let makefile = "all: out\nout: in\n\tcp in $@\ntest: out\n\t@cat out\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile), ("in", "text\n")]);
    let expected = |builds: &AbBuilds| builds.status().expect("it watches")["expected"].clone();
    builds.watch(&[]);
    assert_eq!(expected(&builds), json!(["make"]));
    for _ in 0..3 {
        builds.make(&[]);
        builds.make(&["test"]);
    }
    assert_eq!(expected(&builds), json!(["make", "make test"]));
    builds.save("in", "another text\n");
    builds.await_notice();
    // The second command starts after the end of the first.
    wait_until("both are done", || {
        builds.number("running") == 0 && builds.number("finished") >= 4
    });
    let said = builds.make(&["test"]);
    assert!(said.contains("revealed"), "{said}");
    builds.make(&[]);
}

/// Another make has reused the command of an expected make: the rest of the expected make is of no use.
#[test]
fn unused_speculation_is_not_counted() {
    let makefile = "all: out\nout: in\n\tcp in $@\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile), ("in", "text\n")]);
    builds.watch(&[]);
    builds.await_speculation();
    assert_eq!(builds.number("finished"), 2);
    asked_for(&builds, "out");
    builds.await_speculation();
    // A make without work.
    assert_eq!(builds.number("finished"), 1);
}

/// Plain make would have waited as long.
#[test]
fn awaited_time_is_not_counted_as_saved() {
    let makefile = "out: in\n\tsleep 1; cp in $@\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile), ("in", "text\n")]);
    builds.watch(&[]);
    builds.await_speculation();
    let said = builds.make(&[]);
    assert!(said.contains("revealed 1 output in "), "{said}");
    // Of a second of sleep; the work took some milliseconds.
    let saved = said.trim_end().split_once("saved ");
    assert!(
        saved.is_none_or(|(_, saved)| saved.ends_with("ms")),
        "{said}"
    );
}

/// After the request the remaining commands, nested makes too, run as under plain make: in the common mounts, and
/// without low priority.
#[test]
fn command_started_after_request_is_not_concealed() {
    let mounts = "readlink /proc/self/ns/mnt; ps -o cls= -p $$$$";
    let makefile = format!(
        "all: first second third fourth\nfirst:\n\ttouch begun; until [ -e go ]; do sleep 0.05; done\n\
            second:\n\t@{mounts}; ls; echo text >out\n\
            third:\n\t@$(MAKE) -s nested\n\
            fourth:\n\t@cat out; cd . && $(MAKE) -s nested\n\
            nested:\n\t@{mounts}; cat out; rm -f gone; mkdir gone; cd gone; rmdir ../gone; ls\n\
            ifneq ($(MAKELEVEL),0)\n\
            $(info concealed: $(filter fuse fuseblk,$(file </proc/self/mountinfo)))\n\
            endif\n"
    );
    let mut builds = AbBuilds::new(&[("Makefile", &makefile)]);
    builds.watch(&[]);
    wait_until("it runs", || builds.number("running") > 1);
    let said = builds.make_waiting_command("begun");
    assert!(said.contains("went on with the rest"), "{said}");
}

/// A command that was slower than under plain make, with unknown run time, is restarted: the time to the end is that
/// of plain make.
#[test]
fn slowed_command_is_restarted_on_request() {
    let makefile = "all:\n\t@echo begun >>begun; readlink /proc/self/ns/mnt; \
        until [ -e go ]; do read line <in; done\n\techo $$line >$@\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile), ("in", "text\n")]);
    builds.watch(&[]);
    wait_until("it runs", || builds.number("running") > 1);
    // In the mounts of everybody, and once.
    let said = builds.make_waiting_command("begun");
    assert!(said.contains("went on with the rest"), "{said}");
}

/// Processor time of a process with those words in the arguments, in the kernel's ticks.
fn ticks_of(words: &str) -> u64 {
    let processes = fs::read_dir("/proc").expect("the kernel tells of processes");
    let all = processes.flatten().filter_map(|process| {
        let arguments = fs::read(process.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&arguments)
            .contains(words)
            .then_some(())?;
        let about = fs::read_to_string(process.path().join("stat")).ok()?;
        let (_, after) = about.rsplit_once(')')?;
        let mut words = after.split_whitespace().skip(11);
        let mut next = || words.next()?.parse::<u64>().ok();
        Some(next()? + next()?)
    });
    all.max().unwrap_or(0)
}

/// Ends with the test.
struct Rests(Child);

impl Rests {
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Rests {
    fn drop(&mut self) {
        self.end();
    }
}

/// A running command without slowdown is committed at its end: from the request on, the kernel asks for each name each
/// time.
#[test]
fn running_command_is_committed_at_its_end() {
    /// The command would be shown later than this without the end of the work.
    const SHOWN_LATER: Duration = Duration::from_secs(2);
    /// A fifth of a second.
    const ENOUGH_TICKS: u64 = 20;
    let mut rests = Rests(
        Command::new("sleep")
            .arg("infinity")
            .spawn()
            .expect("sleep"),
    );
    let loops = format!("while [ -e /proc/{} ]", rests.0.id());
    // A zombie stays until the parent reaps the process.
    let makefile =
        format!("all: in\n\t@echo told\n\techo text >first; {loops}; do :; done; cat in >second\n");
    let mut builds = AbBuilds::new(&[("Makefile", &*makefile), ("in", "text\n")]);
    builds.watch(&[]);
    wait_until("it works", || ticks_of(&loops) >= ENOUGH_TICKS);
    let began = Instant::now();
    let mut ours = builds.begin();
    let mut told = [0; 5];
    let out = ours.stdout.as_mut().expect("a pipe");
    out.read_exact(&mut told).expect("it is told");
    while began.elapsed() < SHOWN_LATER / 2 {
        let is_shown = builds.ours.join("first").exists();
        assert!(!is_shown || began.elapsed() > SHOWN_LATER);
        thread::sleep(Duration::from_millis(10));
    }
    rests.end();
    let mut ours = ours.wait_with_output().expect("outlive make");
    ours.stdout.splice(..0, told);
    let theirs = make().current_dir(&builds.theirs).output();
    let said = builds.same(&ours, &theirs.expect("make"), &[]);
    assert!(said.contains("went on with the rest"), "{said}");
}

/// An unexpected make reuses commands of an expected make: the message counts the commands and the saved time.
#[test]
fn results_reused_by_other_make_are_reported() {
    let makefile = "all: out\nout: in\n\tsleep 1; cp in $@\ninstall: out\n\tcp out installed\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile), ("in", "text\n")]);
    builds.watch(&[]);
    builds.await_speculation();
    let said = builds.make(&["install"]);
    let taken =
        "outlive: asked for `make install`, and `make` was expected\noutlive: took over 1 command";
    let Some(more) = said.strip_prefix(taken) else {
        panic!("{said}");
    };
    // A second of sleep, and some milliseconds of work.
    let saved = more.strip_prefix("; saved ");
    assert!(
        more == "\n" || saved.is_some_and(|it| it.ends_with("ms\n")),
        "{said}"
    );
    let said = builds.make(&["-q", "install"]);
    assert!(!said.contains("took over"), "{said}");
}

/// The user's input reaches a command that started after the request.
#[test]
fn command_started_after_request_reads_terminal() {
    let makefile = "all: in\n\t@touch begun; until [ -e go ]; do sleep 0.05; done\n\
        \t@read line; echo $$line; sh -c 'read line; echo $$line'\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile), ("in", "text\n"), ("go", "")]);
    let begin = |mut make: Command, tree: &std::path::Path| -> Child {
        make.current_dir(tree).stdin(Stdio::piped());
        let make = make.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut make = make.expect("a make");
        let mut says = make.stdin.take().expect("a pipe");
        says.write_all(b"one\ntwo\nthree\n").expect("room");
        make
    };
    let ours = |builds: &AbBuilds| {
        let mut make = outlive();
        make.arg("make");
        begin(make, &builds.ours)
    };
    builds.watch(&[]);
    // From then on the watcher expects a request with a pipe.
    assert!(ours(&builds).wait().expect("it ends").success());
    for tree in [&builds.ours, &builds.theirs] {
        fs::remove_file(tree.join("go")).expect("it was there");
        let _ = fs::remove_file(tree.join("begun"));
    }
    builds.await_notice();
    wait_until("it runs", || builds.number("running") > 1);
    let made = ours(&builds);
    wait_until("it is shown", || builds.ours.join("begun").exists());
    builds.save("go", "");
    let made = made.wait_with_output().expect("outlive make");
    let plain = begin(make(), &builds.theirs).wait_with_output();
    let said = builds.compare(&made, &plain.expect("make"));
    assert!(said.contains("went on with the rest"), "{said}");
}
