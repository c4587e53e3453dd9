//! `outlive speculate`: an impossible request is refused with a reason, and loses nothing.

mod tree;

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use tree::{Tree, wait_until};

fn waits(tree: &Tree, why: &str) -> bool {
    let all = tree.all();
    all.iter()
        .any(|one| one["waiting"].to_string().contains(why))
}

#[test]
fn ambiguous_names_are_refused() {
    let tree = Tree::new();
    for name in ["", "two\nlines", "\u{1b}[2J"] {
        let said = tree.refused(&["run", "--name", name, "--", "true"]);
        assert!(said.contains("cannot be the name"), "{said}");
    }
    let said = tree.refused(&["run", "--name"]);
    assert!(said.starts_with("outlive: a value is required"), "{said}");
    assert!(tree.all().is_empty());
}

#[test]
fn unconcealable_command_is_refused() {
    let tree = Tree::new();
    fs::write(tree.file("file"), "").expect("a file");
    let file = tree.file("file").display().to_string();
    for (place, why) in [
        (&*file, "is no directory"),
        ("/", "as a whole"),
        ("/proc/self", "the kernel's"),
        ("/sys/kernel", "the kernel's"),
        ("/dev", "the kernel's"),
        ("/nowhere", "/nowhere"),
    ] {
        let said = tree.refused(&["run", "--tree", place, "--name", "it", "--", "true"]);
        assert!(
            said.starts_with("outlive: ") && said.contains(why),
            "{place}: {said}"
        );
        let nothing = tree.refused(&["commit", "--tree", place, "it"]);
        assert!(nothing.contains("has no speculation"), "{place}: {nothing}");
    }
}

#[test]
fn stale_input_is_named_by_path() {
    let tree = Tree::new();
    fs::write(tree.file("in"), "before").expect("a file");
    tree.create("it", &[], "cat in >out");
    tree.ended("it");
    let said = tree.done(&["list"]);
    assert!(said.contains("it: finished, 1 effect: sh"), "{said}");
    fs::write(tree.file("in"), "after it was read").expect("a file");
    let said = tree.refused(&["commit", "it"]);
    let told = format!(
        "{} has changed since it was read",
        tree.file("in").display()
    );
    assert!(said.contains(&told), "{said}");
    assert!(!tree.file("out").exists());
}

#[test]
fn conflicting_inputs_are_named_by_path() {
    let tree = Tree::new();
    tree.create("one", &[], "echo one >out");
    tree.create("two", &[], "echo two >out");
    tree.ended("one");
    tree.ended("two");
    let both = [
        "run", "--name", "both", "--input", "one", "--input", "two", "--", "true",
    ];
    let said = tree.refused(&both);
    assert!(
        said.contains(&tree.file("out").display().to_string()),
        "{said}"
    );
}

#[test]
fn removed_directory_keeps_control() {
    let tree = Tree::new();
    let gone = tree.file("gone");
    fs::create_dir(&gone).expect("a directory");
    let place = gone.display().to_string();
    let script = format!("cd {place}; echo text >made; echo begun; sleep 1000");
    tree.done(&[
        "run", "--tree", &place, "--name", "it", "--", "sh", "-c", &script,
    ]);
    let listed = || tree.done(&["list", "--tree", &place]);
    wait_until("it has begun", || listed().contains("1 effect"));
    fs::remove_dir_all(&gone).expect("it was there");
    assert!(listed().starts_with("it: runs"), "{}", listed());
    let said = tree.refused(&["commit", "--tree", &place, "it"]);
    assert!(
        said.contains(&place) && !said.contains("HiddenId"),
        "{said}"
    );
    assert_eq!(tree.done(&["abort", "--tree", &place, "it"]), "it\n");
    assert_eq!(listed(), "");
    assert!(!gone.exists());
}

/// The command waits for the network, and gets the response of the network after the commit.
#[test]
fn network_access_waits_for_commit() {
    let tree = Tree::new();
    let script = "exec 3<>/dev/tcp/127.0.0.1/1 || echo refused";
    tree.done(&["run", "--name", "it", "--", "bash", "-c", script]);
    wait_until("it waits", || waits(&tree, "the network"));
    assert!(tree.all()[0]["waiting"][0]["program"] == "bash");
    let mandated = tree.run(&["commit", "it"]);
    let said = String::from_utf8_lossy(&mandated.stderr);
    assert!(said.contains("refused"), "{said}");
}

/// A request to the daemon has effects outside: the request waits, too.
#[test]
fn nested_speculation_waits() {
    let tree = Tree::new();
    let outlive = std::env::var("OUTLIVE_BIN").expect("OUTLIVE_BIN says where outlive is");
    let script = format!(
        "{outlive} speculate run --name inner -- sh -c 'echo in >made'; {outlive} speculate commit inner"
    );
    tree.create("outer", &[], &script);
    wait_until("it waits", || waits(&tree, "a socket of another process"));
    assert_eq!(tree.all().len(), 1);
    tree.done(&["commit", "outer"]);
    assert_eq!(
        fs::read_to_string(tree.file("made")).expect("it was made"),
        "in\n"
    );
}

/// Program and user learn that the disk is full; earlier writes are there.
#[test]
fn full_disk_is_reported_to_program() {
    let tree = Tree::new();
    let small = tree.file("small");
    fs::create_dir(&small).expect("a directory");
    let mount = |arguments: &[&str]| {
        let mut mount = Command::new(arguments[0]);
        let done = mount.args(&arguments[1..]).arg(&small).status();
        assert!(done.expect("mount").success());
    };
    mount(&["mount", "-t", "tmpfs", "-o", "size=256k", "small"]);
    let place = small.display().to_string();
    let script = format!("cd {place}; head -c 1000000 /dev/zero >big; echo $?");
    tree.done(&[
        "run", "--tree", &place, "--name", "it", "--", "sh", "-c", &script,
    ]);
    let mandated = tree.run(&["commit", "--tree", &place, "it"]);
    let errors = String::from_utf8_lossy(&mandated.stderr);
    assert!(errors.contains("No space left"), "{errors}");
    assert_eq!(mandated.stdout, b"1\n");
    let size = fs::metadata(small.join("big")).expect("it was begun").len();
    assert!(size <= 256 << 10, "{size}");
    // The daemon ends, and closes all files there.
    wait_until("it can be unmounted", || {
        let unmounted = Command::new("umount")
            .arg(&small)
            .stderr(Stdio::null())
            .status();
        unmounted.is_ok_and(|it| it.success())
    });
}

/// Both streams with a single destination have a single order.
#[test]
fn shared_stream_stays_shared() {
    let tree = Tree::new();
    let mut create = tree.outlive(&[
        "run",
        "--name",
        "it",
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2",
    ]);
    let both = fs::File::create(tree.file("both")).expect("a file");
    create
        .stdout(both.try_clone().expect("a file"))
        .stderr(both);
    assert!(create.status().expect("outlive").success());
    tree.ended("it");
    let mandated = tree.run(&["commit", "it"]);
    assert_eq!(mandated.stdout, b"out\nerr\n");
    let errors = String::from_utf8_lossy(&mandated.stderr);
    assert!(errors.contains("its errors are in the output"), "{errors}");
}

/// Terminal input belongs to the user who commits.
#[test]
fn interactive_program_waits_for_commit() {
    let tree = Tree::new();
    let outlive = std::env::var("OUTLIVE_BIN").expect("OUTLIVE_BIN says where outlive is");
    let at_a_terminal = |arguments: &str, says: &str| {
        let mut script = Command::new("script");
        let line = format!("{outlive} speculate {arguments}");
        script
            .args(["-qec", &line, "/dev/null"])
            .current_dir(tree.path());
        let script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut script = script.expect("script");
        let mut keys = script.stdin.take().expect("a pipe");
        std::io::Write::write_all(&mut keys, says.as_bytes()).expect("room");
        let output = script.wait_with_output().expect("it ends");
        String::from_utf8_lossy(&output.stdout).replace('\r', "")
    };
    at_a_terminal(
        "run --name it -- sh -c \"read line; echo \\$line >out; test -t 1 && echo a terminal\"",
        "",
    );
    wait_until("it has begun", || tree.all().len() == 1);
    let said = at_a_terminal("commit it", "a line\n");
    assert!(said.contains("a terminal\n"), "{said}");
    let out = fs::read_to_string(Path::new(&tree.file("out"))).expect("it was made");
    assert_eq!(out, "a line\n", "{said}");
}
