//! `outlive make` beside `make`: places of the project and of temporary files, and few descriptors.

mod ab_builds;

use std::{fs, path::Path, process::Command};

use tempfile::TempDir;

use ab_builds::{AbBuilds, outlive, tree_contents, without_make_variables};

const COPY_MAKEFILE: [(&str, &str); 2] = [
    (
        "Makefile",
        // Other tests may do the same at the same time.
        "out: in\n\tcp in out; t=$$(mktemp) && echo temporary >$$t && rm $$t\n\t@$(MAKE) -s again\nagain:\n\t@cat out\n",
    ),
    ("in", "text\n"),
];

/// With these variables.
fn is_revealed(mut builds: AbBuilds, variables: &[(&str, &Path)]) {
    let with = |mut command: Command| {
        command.envs(variables.iter().copied());
        command
    };
    let mut watch = with(outlive());
    watch.args(["make", "--watch"]);
    builds.spawn_watcher(watch);
    builds.await_speculation();
    let run = |mut command: Command, tree: &Path| {
        let output = command.current_dir(tree).output();
        output.expect("a make")
    };
    let mut ours = with(outlive());
    ours.arg("make");
    let ours = run(ours, &builds.ours);
    let theirs = run(with(ab_builds::make()), &builds.theirs);
    let said = builds.compare(&ours, &theirs);
    assert!(said.contains("revealed"), "{said}");
    assert_eq!(tree_contents(&builds.ours), tree_contents(&builds.theirs));
}

/// As in many containers: the runtime directory is concealed itself.
#[test]
fn runtime_directory_in_tmp() {
    let runtime = TempDir::new_in("/tmp").expect("a directory");
    is_revealed(
        AbBuilds::new(&COPY_MAKEFILE),
        &[("XDG_RUNTIME_DIR", runtime.path())],
    );
}

/// Each command has its own copy of the rest of that directory.
#[test]
fn tree_in_shared_memory() {
    let temporary = TempDir::new_in("/dev/shm").expect("a directory");
    let temporary = [("TMPDIR", temporary.path())];
    is_revealed(AbBuilds::new(&COPY_MAKEFILE), &temporary);
    is_revealed(AbBuilds::new_in("/dev/shm", &COPY_MAKEFILE), &[]);
    is_revealed(AbBuilds::new_in("/dev/shm", &COPY_MAKEFILE), &temporary);
}

/// The watcher has a higher descriptor limit than its commands, with a descriptor for each concealed file.
#[test]
fn more_files_than_descriptors() {
    let makefile = "all: $(addprefix out/,$(shell seq 120))\nout/%: | out\n\t@echo $* >$@\nout:\n\tmkdir out\n\
        limit:\n\t@ulimit -Sn\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile)]);
    let few = |program: &Path, arguments: &[&str]| {
        let mut command = without_make_variables(Command::new("prlimit"));
        command.arg("--nofile=96:20000").arg(program);
        command.args(arguments);
        command
    };
    let program = outlive().get_program().to_owned();
    let program = Path::new(&program);
    builds.spawn_watcher(few(program, &["make", "--watch", "all", "limit"]));
    builds.await_speculation();
    let mut ours = few(program, &["make", "all", "limit"]);
    let mut theirs = few(Path::new("make"), &["all", "limit"]);
    let ours = ours.current_dir(&builds.ours).output().expect("outlive");
    let theirs = theirs.current_dir(&builds.theirs).output().expect("make");
    let said = builds.compare(&ours, &theirs);
    assert!(said.contains("revealed 121 outputs"), "{said}");
    assert_eq!(tree_contents(&builds.ours), tree_contents(&builds.theirs));
    let said = String::from_utf8_lossy(&ours.stdout);
    assert!(said.ends_with("96\n"), "{said}");
    let log = fs::read_to_string(builds.log()).expect("what it says");
    assert!(!log.contains("WARN"), "{log}");
}

/// As in many containers: the session leader is in no visible namespace, and has no process number.
#[test]
fn separate_pid_namespace() {
    let tree = TempDir::new_in("/var/lib").expect("a directory");
    // The shell of the namespace is in a group that has no number there, either.
    let script = "set -e
        $0 speculate run --name it -- sh -c 'echo text >new; /bin/kill -s CONT -- -77777; true'
        ! cat new 2>/dev/null
        $0 speculate commit it
        cat new";
    let mut inside = without_make_variables(Command::new("unshare"));
    inside.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    inside
        .args(["sh", "-c", script])
        .arg(outlive().get_program());
    let output = inside.current_dir(tree.path()).output().expect("unshare");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "it\ntext\n");
}

/// Each missing requirement gives status 3 and advice.
#[test]
fn missing_requirement_is_reported() {
    use std::os::unix::fs::PermissionsExt as _;

    e2e::handle_signals();
    let tree = TempDir::new_in("/var/lib").expect("a directory");
    let all = fs::Permissions::from_mode(0o777);
    fs::set_permissions(tree.path(), all).expect("it is ours");
    fs::write(tree.path().join("Makefile"), "all:\n\techo made\n").expect("a file");
    let no_device = "mount -t tmpfs none /dev && exec \"$@\"";
    let places: [(&[&str], &str); 3] = [
        (
            &[
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
            ],
            "takes root",
        ),
        (&["unshare", "--user", "--map-root-user"], "user namespace"),
        (
            &["unshare", "--mount", "sh", "-c", no_device, "sh"],
            "/dev/fuse",
        ),
    ];
    for (place, why) in places {
        for asked in [
            &["make", "--watch"][..],
            &["speculate", "run", "--", "/bin/true"],
        ] {
            let mut command = without_make_variables(Command::new(place[0]));
            command.args(&place[1..]);
            command.arg(outlive().get_program()).args(asked);
            let output = command.current_dir(tree.path()).output();
            let output = output.expect("a program");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains(why), "{place:?} {asked:?}: {said}");
            assert_eq!(
                output.status.code(),
                Some(71),
                "{place:?} {asked:?}: {said}"
            );
        }
        // Without a watcher `outlive make` is plain make.
        let mut make = without_make_variables(Command::new(place[0]));
        make.args(&place[1..])
            .arg(outlive().get_program())
            .arg("make");
        let output = make.current_dir(tree.path()).output().expect("a program");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "echo made\nmade\n");
    }
}
