//! `outlive make` beside `make`: the same project twice, and after each step the same in both.

mod ab_builds;

use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, SystemTime},
};

use tempfile::TempDir;

use ab_builds::{AbBuilds, outlive, wait_until};

/// Number of timings for each test of timing: `OUTLIVE_TIMINGS`, by default 40.
fn timings() -> u64 {
    let wanted = std::env::var("OUTLIVE_TIMINGS").ok();
    wanted.and_then(|wanted| wanted.parse().ok()).unwrap_or(40)
}

/// Another one for each number, up to that.
fn delay(number: u64, longest: Duration) -> Duration {
    longest.mul_f64((number * 389 % 1000) as f64 / 1000.0)
}

/// Files that are made of others, twice.
const COPY_MAKEFILE: &str = "out: a.mid b.mid\n\tcat $^ >$@\n%.mid: %.in\n\tcat $< >$@\n";

/// A program of three files.
const PROGRAM_FILES: [(&str, &str); 4] = [
    (
        "Makefile",
        "CFLAGS = -O1\nprog: a.o b.o\n\tcc -o $@ $^\n%.o: %.c a.h\n\tcc $(CFLAGS) -c -o $@ $<\nclean:\n\trm -f *.o prog\n",
    ),
    ("a.h", "int b(void);\n"),
    ("a.c", "#include \"a.h\"\nint main(void) { return b(); }\n"),
    ("b.c", "#include \"a.h\"\nint b(void) { return 7; }\n"),
];

#[test]
fn absent_watcher_means_plain_make() {
    let builds = AbBuilds::new(&PROGRAM_FILES);
    assert_eq!(builds.make(&[]), "");
    assert_eq!(builds.make(&["clean"]), "");
    assert_eq!(builds.make(&["nothing-of-the-kind"]), "");
}

#[test]
fn finished_build_is_committed() {
    let mut builds = AbBuilds::new(&PROGRAM_FILES);
    builds.watch(&[]);
    builds.await_speculation();
    assert!(!builds.ours.join("a.o").exists(), "something leaked");
    let said = builds.make(&[]);
    assert!(said.contains("revealed"), "{said}");
    // And again, without any work.
    builds.await_speculation();
    let said = builds.make(&[]);
    assert!(said.contains("revealed 0 outputs"), "{said}");
    builds.save("b.c", "#include \"a.h\"\nint b(void) { return 8; }\n");
    builds.await_speculation();
    let said = builds.make(&[]);
    assert!(said.contains("revealed"), "{said}");
    builds.save("a.h", "int b(void); /* changed */\n");
    builds.await_speculation();
    builds.make(&[]);
}

#[test]
fn unexpected_target_is_built_on_request() {
    let mut builds = AbBuilds::new(&PROGRAM_FILES);
    builds.watch(&[]);
    builds.await_speculation();
    // The speculation has run these commands, but for another request.
    builds.make(&["b.o"]);
    builds.make(&["CFLAGS=-O2", "prog"]);
    builds.make(&["clean"]);
    builds.make(&["nothing-of-the-kind"]);
    builds.make(&["-n"]);
    builds.make(&["-B"]);
}

#[test]
fn failing_build_fails() {
    let mut builds = AbBuilds::new(&PROGRAM_FILES);
    builds.watch(&[]);
    builds.save("b.c", "this is no C\n");
    builds.await_speculation();
    let said = builds.make(&[]);
    assert!(said.contains("revealed"), "{said}");
    builds.save("b.c", "#include \"a.h\"\nint b(void) { return 8; }\n");
    builds.await_speculation();
    let said = builds.make(&[]);
    assert!(said.contains("revealed"), "{said}");
}

#[test]
fn unfinished_build_continues_on_request() {
    let makefile = "all: one two three\none two:\n\t@echo making $@\n\techo $@ >$@\n\
        three:\n\tuntil [ -e go ]; do sleep 0.05; done\n\techo $@ >$@\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile)]);
    builds.watch(&[]);
    wait_until("two are done", || builds.number("finished") >= 4);
    assert!(!builds.ours.join("one").exists(), "something leaked");
    let said = builds.make_waiting_command("two");
    assert!(said.contains("went on with the rest"), "{said}");
}

/// Each output ends with the time of the build.
#[test]
fn save_ends_stale_commands_only() {
    let makefile = "all: a.out b.out\n%.out: %.in\n\tcat $< >$@; date +%s%N >>$@\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile), ("a.in", "1\n"), ("b.in", "1\n")]);
    builds.watch(&[]);
    builds.await_speculation();
    let saved = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let saved = saved.expect("a time").as_nanos();
    builds.save("b.in", "2\n");
    builds.await_speculation();
    let said = builds.begin().wait_with_output().expect("outlive make");
    let errors = String::from_utf8_lossy(&said.stderr);
    assert!(errors.contains("revealed"), "{errors}");
    let made = |name: &str, content: &str| -> u128 {
        let text = fs::read_to_string(builds.ours.join(name)).expect("it was made");
        let (said, when) = text.split_once('\n').expect("two lines");
        assert_eq!(said, content);
        when.trim().parse().expect("a time")
    };
    assert!(made("a.out", "1") < saved, "it was done again");
    assert!(made("b.out", "2") > saved);
}

/// The build uses the last saved content.
#[test]
fn save_during_build_at_any_time() {
    let mut builds = AbBuilds::new(&[
        ("Makefile", COPY_MAKEFILE),
        ("a.in", "a\n"),
        ("b.in", "b\n"),
    ]);
    builds.watch(&[]);
    for number in 0..timings() {
        builds.save("a.in", &format!("first {number}\n"));
        thread::sleep(delay(number, Duration::from_millis(150)));
        builds.save("a.in", &format!("second {number}\n"));
        if number % 2 == 0 {
            builds.await_speculation();
        }
        builds.make(&[]);
        let out = fs::read_to_string(builds.ours.join("out")).expect("it was made");
        assert_eq!(out, format!("second {number}\nb\n"));
    }
}

/// The result belongs to the content before the save or after the save, and later to the present content.
#[test]
fn save_during_request_at_any_time() {
    let mut builds = AbBuilds::new(&[
        ("Makefile", COPY_MAKEFILE),
        ("a.in", "a\n"),
        ("b.in", "b\n"),
    ]);
    builds.watch(&[]);
    for number in 0..timings() {
        builds.save("b.in", &format!("before {number}\n"));
        if number % 2 == 0 {
            builds.await_speculation();
        }
        let make = builds.begin();
        thread::sleep(delay(number, Duration::from_millis(40)));
        builds.save("b.in", &format!("after {number}\n"));
        let said = make.wait_with_output().expect("it ends");
        assert!(said.status.success(), "{said:?}");
        let read = |name| fs::read_to_string(builds.ours.join(name)).expect("it was made");
        let (out, mid) = (read("out"), read("b.mid"));
        assert!(
            ["before", "after"]
                .iter()
                .any(|when| out.ends_with(&format!("{when} {number}\n"))),
            "{out}"
        );
        // A make that runs commands itself, or continues alone, goes by times only: a file saved during the reading
        // stays unnoticed.
        let own = String::from_utf8_lossy(&said.stderr);
        let is_plain = !own.contains("revealed") || own.contains("went on with the rest");
        let modified = |name| {
            fs::metadata(builds.ours.join(name))
                .and_then(|it| it.modified())
                .expect("it is there")
        };
        if is_plain && mid.starts_with("before") && modified("b.mid") >= modified("b.in") {
            builds.save("b.in", &format!("after {number}\n"));
        }
        let again = outlive().arg("make").current_dir(&builds.ours).output();
        assert!(again.expect("outlive make").status.success());
        let out = fs::read_to_string(builds.ours.join("out")).expect("it was made");
        assert!(
            out.ends_with(&format!("after {number}\n")),
            "{number}: {out}"
        );
    }
}

/// Half done, or finished, or not begun.
#[test]
fn request_at_any_time() {
    let mut builds = AbBuilds::new(&[
        ("Makefile", COPY_MAKEFILE),
        ("a.in", "a\n"),
        ("b.in", "b\n"),
    ]);
    builds.watch(&[]);
    for number in 0..timings() {
        builds.save("a.in", &format!("{number}\n"));
        builds.save("b.in", &format!("{number}\n"));
        thread::sleep(delay(number, Duration::from_millis(250)));
        builds.make(&[]);
    }
}

#[test]
fn stopped_watcher_builds_no_more() {
    let mut builds = AbBuilds::new(&[("Makefile", "out: in\n\tcp in out\n"), ("in", "text")]);
    for _ in 0..4 {
        builds.watch(&[]);
        let mut stop = outlive();
        stop.args(["make", "--stop"]).current_dir(&builds.ours);
        assert!(stop.status().expect("outlive make --stop").success());
        let mut watcher = builds.watcher.take().expect("it watched");
        assert!(watcher.wait().expect("it ends").success());
    }
}

/// make compares timestamps: a result is not older than a file that was saved before the request.
#[test]
fn early_results_have_fresh_timestamps() {
    let makefile = "all: made there d/one link\nmade: dep\n\techo made >$@\nthere: dep\n\ttouch $@\n\
        d/one: dep\n\tmkdir -p d; echo one >$@\nlink: dep\n\tln -sfn nowhere $@\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile), ("dep", "1"), ("there", "")]);
    builds.watch(&[]);
    for number in 0..3 {
        builds.await_speculation();
        builds.save("dep", &format!("{number}"));
        builds.await_speculation();
        let said = builds.make(&[]);
        assert!(said.contains("revealed"), "{said}");
    }
    // An unexpected request takes over the results.
    builds.save("dep", "now");
    builds.await_speculation();
    builds.save("dep", "later");
    builds.make(&["made", "there"]);
}

/// A background process of a command sees later effects, and does not concern other users.
#[test]
fn background_processes_belong_to_build() {
    let makefile = "all: begun\n\tuntil [ -e answer ]; do sleep 0.01; done; cat answer >$@\n\
        begun:\n\t(until [ -e question ]; do sleep 0.01; done; echo yes >answer) >/dev/null 2>&1 & echo began\n\ttouch begun question\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile)]);
    builds.watch(&[]);
    // A command does not wait for background processes of an earlier command: such a process ends at the request.
    wait_until("it has begun", || builds.number("finished") > 0);
    let said = builds.make(&[]);
    assert!(said.contains("went on with the rest"), "{said}");
}

/// A signal to a command that waits for a concealed command ends both.
#[test]
fn signal_reaches_concealed_command() {
    let makefile = "all:\n\t-timeout 0.5 $(MAKE) long\n\techo done >$@\nlong:\n\tsleep 100\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile)]);
    builds.watch(&[]);
    builds.await_speculation();
    let said = outlive().arg("make").current_dir(&builds.ours).output();
    assert!(said.expect("outlive make").status.success());
    assert!(builds.ours.join("all").exists());
}

/// make reads the output of a shell until all writers have closed the pipe.
#[test]
fn background_process_of_shell_does_not_block_request() {
    let makefile =
        "X := $(shell sleep 1 >/dev/null 2>&1 & echo one)\nout: in\n\tcat in >$@; echo $(X) >>$@\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile), ("in", "text")]);
    builds.watch(&[]);
    builds.await_speculation();
    builds.make(&[]);
    for number in 0..3 {
        builds.save("in", &format!("text {number}"));
        builds.make(&[]);
    }
}

/// An unfinished command belongs to the user after the request: effects elsewhere happen, `^C` reaches the command,
/// and `--stop` lets the command end.
#[test]
fn unfinished_command_becomes_the_users() {
    let outside = TempDir::new_in("/var/lib").expect("another directory");
    let there = outside.path().join("there");
    let makefile = format!(
        "all: a b\na:\n\techo a >$@\nb:\n\techo there >{0}; until [ -e go ]; do sleep 0.05; done; cat {0} >$@\n",
        there.display()
    );
    let mut builds = AbBuilds::new(&[("Makefile", &makefile)]);
    builds.watch(&[]);
    builds.await_waiting_command();
    assert!(!there.exists() && !builds.ours.join("a").exists());
    let mut first = builds.begin();
    wait_until("it is done elsewhere", || there.exists());
    let pid = first.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.expect("kill").success());
    let ended = first.wait().expect("it ends");
    assert!(
        !ended.success() && !builds.ours.join("b").exists(),
        "{ended}"
    );
    // Once more, and the watcher is to end meanwhile.
    fs::remove_file(&there).expect("it was there");
    builds.save("touched", "so that it is built again\n");
    builds.await_waiting_command();
    let second = builds.begin();
    wait_until("it is done elsewhere again", || there.exists());
    let mut stop = outlive();
    let stop = stop
        .args(["make", "--stop"])
        .current_dir(&builds.ours)
        .output();
    let stop = stop.expect("outlive make --stop");
    assert!(stop.status.success(), "{stop:?}");
    // The watcher reports the end after ending all its processes.
    let said = String::from_utf8_lossy(&stop.stderr);
    assert!(said.contains("of your makes"), "{said}");
    builds.save("go", "");
    let output = second.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        fs::read_to_string(builds.ours.join("b")).expect("it was made"),
        "there\n"
    );
}

/// Where the kernel shares processors among sessions, speculative commands get the idle rest.
#[test]
fn request_precedes_speculation() {
    let nice = "sed 's/.* //' /proc/self/autogroup";
    let Ok(usual) = fs::read_to_string("/proc/self/autogroup") else {
        return;
    };
    // The engine sets how nice a session is soon after the session has begun, or was asked for.
    let makefile = format!(
        "out: in\n\tuntil [ $$({nice}) = 19 ]; do sleep 0.02; done; {nice} >unasked\n\
         \tuntil [ -e go ] && [ $$({nice}) != 19 ]; do sleep 0.02; done; {nice} >asked\n\techo >$@\n"
    );
    let mut builds = AbBuilds::new(&[("Makefile", &makefile), ("in", "")]);
    builds.watch(&[]);
    // Commands of the lowest priority are slow on a busy machine.
    wait_until("the first command has ended", || {
        builds.number("finished") > 0
    });
    let make = builds.begin();
    wait_until("it is shown", || builds.ours.join("unasked").exists());
    builds.save("go", "");
    let output = make.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let said = |name| fs::read_to_string(builds.ours.join(name)).expect("it was made");
    assert_eq!(said("unasked"), "19\n");
    // The kernel reports no niceness of a session that began with the boot: such a session is as nice as a new
    // session.
    let usual = usual.rsplit(' ').next().filter(|usual| !usual.is_empty());
    assert_eq!(said("asked"), usual.unwrap_or("0\n"));
}
