//! `outlive make` beside `make`: input, output and exit of commands.

mod ab_builds;

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{
        fs::PermissionsExt as _,
        process::{CommandExt as _, ExitStatusExt as _},
    },
    path::Path,
    process::{Child, ChildStdin, Command, Output, Stdio},
};

use tempfile::TempDir;

use ab_builds::{
    AFTER_MAKE, AbBuilds, EVENT_TIMEOUT, make, outlive, tree_contents, wait_until,
    without_make_variables,
};

/// make deletes the unfinished target then, and names the signal.
#[test]
fn signal_death_is_passed_on() {
    let makefile = "%:\n\t@echo half >$@; kill -$* $$$$\n";
    let signals = ["TERM", "INT", "HUP", "QUIT", "SEGV", "PIPE", "KILL", "USR1"];
    let mut builds = AbBuilds::new(&[("Makefile", makefile)]);
    builds.watch_for_shell("-k TERM QUIT SEGV PIPE KILL");
    builds.await_speculation();
    let said = builds.shell("ulimit -c 0; $M -k TERM QUIT SEGV PIPE KILL");
    assert!(said.contains("revealed"), "{said}");
    for signal in signals {
        builds.shell(&format!("ulimit -c 0; $M {signal}"));
    }
}

/// A shell continues the loop without knowledge of the signal.
#[test]
fn interrupt_ends_surrounding_loop() {
    let makefile = format!(
        "{AFTER_MAKE}all:\n\t@$(after_make) echo here >>begun; while :; do sleep 0.05; done\n"
    );
    let mut builds = AbBuilds::new(&[("Makefile", &makefile)]);
    builds.watch(&[]);
    wait_until("it runs", || builds.number("running") > 1);
    let program = outlive().get_program().to_owned();
    let mut shell = without_make_variables(Command::new("bash"));
    shell.args(["-c", "for number in 1 2 3; do \"$0\" make; done"]);
    shell
        .arg(program)
        .current_dir(&builds.ours)
        .process_group(0);
    shell.stdin(Stdio::null()).stdout(Stdio::null());
    let mut shell = shell.spawn().expect("bash");
    let begun = || fs::read_to_string(builds.ours.join("begun")).unwrap_or_default();
    wait_until("it is shown", || !begun().is_empty());
    let group = format!("-{}", shell.id());
    let sent = Command::new("kill").args(["-INT", "--", &group]).status();
    assert!(sent.expect("kill").success());
    let ended = shell.wait().expect("it ends");
    assert_eq!(ended.signal(), Some(2), "{ended}");
    assert_eq!(begun(), "here\n");
}

/// Starts that make, and ends the make as soon as the second command runs.
fn interrupted(mut make: Command, tree: &Path, (signal, whom): (&str, &str)) -> Output {
    make.current_dir(tree).process_group(0).stdin(Stdio::null());
    make.stdout(Stdio::piped()).stderr(Stdio::piped());
    let make = make.spawn().expect("a make");
    let begun = tree.join("begun");
    wait_until("it is shown", || begun.exists());
    let whom = format!("{whom}{}", make.id());
    let sent = Command::new("kill").args([signal, "--", &whom]).status();
    assert!(sent.expect("kill").success());
    fs::remove_file(begun).expect("it is there");
    make.wait_with_output().expect("it ends")
}

/// Interrupts of an unfinished or not yet started build, by a terminal (to the whole foreground) or by `kill`.
#[test]
fn interrupted_build_leaves_same_files_as_make() {
    let makefile = "all: one two\none: in\n\tcat in >$@\n\
        two: one\n\techo half >$@; echo >new; mv new begun; exec sleep 1000\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile), ("in", "")]);
    builds.watch(&[]);
    let endings = [("-INT", "-"), ("-TERM", ""), ("-HUP", "-"), ("-QUIT", "-")];
    for (number, ending) in endings.into_iter().enumerate() {
        for arguments in [&["all"][..], &["-s", "two"]] {
            builds.save("in", &format!("{number} {arguments:?}"));
            if arguments == ["all"] {
                wait_until("it runs", || builds.number("running") > 1);
            }
            let (mut ours, mut theirs) = (outlive(), make());
            ours.arg("make").args(arguments);
            theirs.args(arguments);
            let ours = interrupted(ours, &builds.ours, ending);
            let theirs = interrupted(theirs, &builds.theirs, ending);
            // Other output and the exit status depend on the child that gets the signal first.
            assert_eq!(ours.stdout, theirs.stdout, "{ending:?} {arguments:?}");
            let is_deleted = |output: &Output| {
                String::from_utf8_lossy(&output.stderr).contains("Deleting file 'two'")
            };
            assert_eq!(
                is_deleted(&ours),
                is_deleted(&theirs),
                "{ours:?} {theirs:?}"
            );
            assert!(
                !ours.status.success() && !theirs.status.success(),
                "{ours:?}"
            );
            assert_eq!(
                tree_contents(&builds.ours),
                tree_contents(&builds.theirs),
                "{ending:?} {arguments:?}"
            );
        }
    }
}

/// Into a single pipe, and into a single file.
#[test]
fn stdout_and_stderr_keep_order() {
    let makefile = "all:\n\t@for n in 1 2 3; do echo $$n; echo $$n >&2; done; cat in\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile), ("in", "text\n")]);
    builds.watch_for_shell("");
    for script in ["$M 2>&1 | cat", "$M >../said 2>&1; cat ../said", "$M"] {
        builds.shell(script);
        // By now the watcher knows how the build is requested.
        builds.save("in", "another text\n");
        builds.await_speculation();
        let said = builds.shell(script);
        assert!(said.contains("revealed"), "{script}: {said}");
    }
}

/// `nohup`, and background processes of a shell. (The C library uses the signals 32 and 33 for itself.)
#[test]
fn ignored_signals_stay_ignored() {
    let makefile = "all:\n\t@grep SigIgn /proc/self/status | grep -o '.......$$'; kill -HUP $$PPID; sleep 0.2; echo on\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile)]);
    let script = "trap '' HUP QUIT; $M -s";
    builds.shell(script);
    builds.watch(&["nothing"]);
    builds.shell(script);
}

/// Make says why, once.
#[test]
fn unstartable_command_is_reported_by_make() {
    let makefile = "%:\n\t@./$*\n";
    let files = [
        ("Makefile", makefile),
        ("odd", "#!/nothing/interprets/this\n"),
        ("bare", "echo a shell reads this\n"),
        ("plain/file", "no program\n"),
    ];
    let mut builds = AbBuilds::new(&files);
    for tree in [&builds.ours, &builds.theirs] {
        for name in ["odd", "bare"] {
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(tree.join(name), mode).expect("a program");
        }
    }
    // Targets that are there would be made already.
    let targets = "-B -k nothing plain plain/file odd bare";
    builds.watch_for_shell(targets);
    builds.await_speculation();
    let said = builds.shell(&format!("$M {targets}"));
    assert!(said.contains("revealed"), "{said}");
    builds.shell(&format!("touch new; $M {targets}"));
}

/// Waits until the first command has printed a name.
fn has_begun(make: &mut Child) {
    let mut line = [0; 2];
    let said = make.stdout.as_mut().expect("a pipe");
    said.read_exact(&mut line).expect("it says something");
    assert_eq!(&line, b"a\n");
}

/// After removal of the runner.
#[test]
fn build_continues_without_runner() {
    let makefile = "all: a b\na b:\n\t@echo $@; until [ -e go ]; do sleep 0.05; done\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile)]);
    let runtime = builds.directory.path().join("runtime");
    fs::create_dir(&runtime).expect("a directory");
    watch_with(&mut builds, &runtime);
    let mut make = outlive();
    make.args(["make", "-B"]).current_dir(&builds.ours);
    let make = make.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut make = make.stderr(Stdio::piped()).spawn().expect("outlive make");
    has_begun(&mut make);
    fs::remove_dir_all(&runtime).expect("it was there");
    builds.save("go", "");
    let said = make.wait_with_output().expect("it ends");
    assert!(said.status.success(), "{said:?}");
    assert_eq!(String::from_utf8_lossy(&said.stdout), "b\n");
    assert_eq!(String::from_utf8_lossy(&said.stderr), "");
}

/// A killed watcher prints no text, and nor do the commands of a continued build.
#[test]
fn build_continues_without_watcher() {
    let makefile = "all: a b c\na b c:\n\t@echo $@; until [ -e go ]; do sleep 0.05; done\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile)]);
    builds.watch(&["nothing"]);
    let mut make = outlive();
    make.arg("make")
        .current_dir(&builds.ours)
        .stdin(Stdio::null());
    let make = make.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut make = make.expect("outlive make");
    has_begun(&mut make);
    let mut watcher = builds.watcher.take().expect("it watches");
    watcher.kill().expect("it was there");
    watcher.wait().expect("it ends");
    builds.save("go", "");
    let said = make.wait_with_output().expect("it ends");
    assert!(said.status.success(), "{said:?}");
    assert_eq!(String::from_utf8_lossy(&said.stdout), "b\nc\n");
    assert_eq!(String::from_utf8_lossy(&said.stderr), "");
}

/// With `-j` all commands except a single command have a pipe without a writer as standard input.
#[test]
fn parallel_readers_get_empty_stdin() {
    let makefile = "all: a b c\na b c:\n\t@cat >$@; sleep 0.2; wc -c <$@\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile)]);
    builds.watch_for_shell("-j3");
    builds.shell("sleep 2 | $M -j3");
    builds.save("touched", "");
    builds.shell("sleep 2 | $M -B -j3");
}

/// Runs a script in a shell with a terminal and job control; returns the terminal and the keyboard.
fn at_a_terminal(builds: &AbBuilds, script: &str) -> (Child, ChildStdin) {
    let mut terminal = without_make_variables(Command::new("timeout"));
    let script = format!("bash -mc '{script}'");
    let limit = EVENT_TIMEOUT.as_secs().to_string();
    terminal.args([&*limit, "script", "-qec", &script, "/dev/null"]);
    terminal.env("O", outlive().get_program());
    terminal.current_dir(&builds.ours);
    let terminal = terminal.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut terminal = terminal.spawn().expect("script");
    let keys = terminal.stdin.take().expect("a pipe");
    (terminal, keys)
}

/// The watcher may be a job of the shell that has the terminal.
#[test]
fn typed_input_reaches_reader() {
    let makefile = "out:\n\t@read line; echo $$line >out\n";
    let builds = AbBuilds::new(&[("Makefile", makefile)]);
    let script = "unset SHLVL; M=\"env -u SHLVL $O make\"; $M --watch & until $O make --status | grep \"2 running\"; do sleep 0.1; done; $M; cat out; $O make --stop; wait";
    let (terminal, mut keys) = at_a_terminal(&builds, script);
    keys.write_all(b"a line\n").expect("room");
    let said = terminal.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&said.stdout);
    assert!(said.contains("went on with the rest"), "{said}");
    let out = fs::read_to_string(builds.ours.join("out")).expect("it was made");
    assert_eq!(out, "a line\n", "{said}");
}

/// A watcher in the foreground is interrupted, as any program.
#[test]
fn interrupt_reaches_foreground_watcher() {
    let builds = AbBuilds::new(&[("Makefile", "all:\n\techo all\n")]);
    let script = "$O make --watch 2>&1; echo over";
    let (mut terminal, mut keys) = at_a_terminal(&builds, script);
    let mut said = BufReader::new(terminal.stdout.take().expect("a pipe"));
    let mut line = String::new();
    // From this line on the watcher heeds signals.
    while !line.contains("watching") {
        line.clear();
        assert_ne!(said.read_line(&mut line).expect("text"), 0, "it has ended");
    }
    keys.write_all(&[3]).expect("room");
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("text");
    let ended = terminal.wait().expect("it ends");
    assert_ne!(ended.code(), Some(124), "it was killed: {rest}");
}

/// A directory mounted `noexec`.
struct WithoutPrograms(TempDir);

impl WithoutPrograms {
    fn new() -> Self {
        let directory = TempDir::new_in("/var/lib").expect("a directory");
        let mut mount = Command::new("mount");
        let mount = mount
            .args(["-t", "tmpfs", "-o", "noexec", "none"])
            .arg(directory.path());
        assert!(mount.status().expect("mount").success());
        Self(directory)
    }
}

impl Drop for WithoutPrograms {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn watch_with(builds: &mut AbBuilds, runtime: &Path) {
    let mut watch = outlive();
    watch
        .args(["make", "--watch"])
        .env("XDG_RUNTIME_DIR", runtime);
    builds.spawn_watcher(watch);
}

#[test]
fn noexec_directory_is_untouched() {
    let makefile = "out:\n\t@$(MAKE) -s in\n\tcat in >$@\nin:\n\techo in >$@\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile)]);
    let place = WithoutPrograms::new();
    watch_with(&mut builds, place.0.path());
    builds.await_speculation();
    let is_empty = fs::read_dir(place.0.path())
        .expect("a directory")
        .next()
        .is_none();
    assert!(is_empty, "something is in it");
    let mut make = outlive();
    make.arg("make").env("XDG_RUNTIME_DIR", place.0.path());
    let said = make
        .current_dir(&builds.ours)
        .output()
        .expect("outlive make");
    let errors = String::from_utf8_lossy(&said.stderr);
    assert!(errors.contains("revealed"), "{errors}");
    builds.make(&["-B"]);
    drop(builds);
}

#[test]
fn leftovers_of_killed_watchers_are_removed() {
    let mut builds = AbBuilds::new(&[("Makefile", "all:\n\techo all\n")]);
    let runtime = builds.directory.path().join("runtime");
    fs::create_dir(&runtime).expect("a directory");
    // No process has a number like this.
    let stale = ["outlive-make-4194305", "outlive-make-4194305.so"];
    let others = ["outlive-make-1", "outlive-make-x", "outlive-make"];
    for name in stale.iter().chain(&others) {
        fs::write(runtime.join(name), "").expect("a file");
    }
    watch_with(&mut builds, &runtime);
    let is_there = |name: &&&str| runtime.join(name).exists();
    assert_eq!(stale.iter().filter(is_there).count(), 0);
    assert_eq!(others.iter().filter(is_there).count(), 3);
}
