//! Bad input: `outlive` refuses with a reason and the documented exit status.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use e2e::arrange::{run_words, wait_until};
use e2e::exchange::echo_survives_a_kill;
use e2e::servers::{SERVER_PORT, test_server};
use e2e::{Answer, EVENT_TIMEOUT, Scene, binaries};

const EX_OK: i32 = 0;
const SERVER_FAILED: i32 = 1;
const EX_USAGE: i32 = 64;
const EX_UNAVAILABLE: i32 = 69;
const EX_OSERR: i32 = 71;
const NOT_NOW: i32 = 75;
const NO_PERMISSION: i32 = 77;
const EX_CONFIG: i32 = 78;

/// Runs `outlive` on the server's host until the end, with a run directory of the scene.
fn outlive(scene: &Scene, arguments: &[&str]) -> Answer {
    outlive_as(scene, &[], &binaries::outlive(), arguments)
}

/// [`outlive`] started by another program, such as a program that drops rights.
fn outlive_as(scene: &Scene, by: &[&str], outlive: &Path, arguments: &[&str]) -> Answer {
    let mut command: Command = scene.server.command("timeout");
    let limit = EVENT_TIMEOUT.as_secs().to_string();
    command
        .args(["-k", "1", &limit])
        .args(by)
        .arg(outlive)
        .args(arguments);
    let output = command
        .env("OUTLIVE_RUN_DIR", scene.run_dir())
        .output()
        .expect("it starts");
    Answer {
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Asserts an exit code, and that standard error says each of these.
#[track_caller]
fn assert_refused(answer: &Answer, code: i32, says: &[&str]) {
    assert_eq!(answer.status, Some(code), "{answer:?}");
    for word in says {
        assert!(
            answer.stderr.contains(word),
            "it does not say {word:?}: {}",
            answer.stderr
        );
    }
    assert!(!answer.stderr.contains("panicked"), "{}", answer.stderr);
}

/// Asserts that a refused `serve` left no mount, directory, program or process.
#[track_caller]
fn assert_nothing_left(scene: &Scene) {
    let run = scene.run_dir();
    assert!(!run.exists(), "{} is left", run.display());
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(
        !mounts.contains(&*run.to_string_lossy()),
        "a mount is left: {mounts}"
    );
    let pids = scene.server.pids().expect("processes");
    assert!(pids.is_empty(), "processes are left: {pids:?}");
    let disciplines = scene
        .server
        .command("tc")
        .args(["qdisc", "show"])
        .output()
        .expect("tc");
    let disciplines = String::from_utf8_lossy(&disciplines.stdout).into_owned();
    assert!(!disciplines.contains("clsact"), "{disciplines}");
}

/// Refused arguments, with the exit status and the required words of the message.
#[test]
fn bad_arguments() {
    let scene = Scene::new("arguments");
    let here = scene.ipv4(SERVER_PORT).to_string();
    let long = "n".repeat(65);
    let cases: &[(i32, &[&str], &[&str])] = &[
        (
            EX_CONFIG,
            &["--address", &here, "--", "no-such-program"],
            &["no-such-program"],
        ),
        (
            EX_CONFIG,
            &["--address", &here, "--", "/etc/passwd"],
            &["/etc/passwd"],
        ),
        (EX_CONFIG, &["--address", &here, "--", "/"], &["/"]),
        (
            EX_UNAVAILABLE,
            &["--address", "10.0.0.77:8080", "--", "true"],
            &["10.0.0.77", "10.0.0.10"],
        ),
        (
            EX_UNAVAILABLE,
            &["--address", "[fd00::77]:8080", "--", "true"],
            &["fd00::77", "fd00::10"],
        ),
        (
            EX_CONFIG,
            &["--address", "0.0.0.0:8080", "--", "true"],
            &["0.0.0.0", "--address"],
        ),
        (
            EX_CONFIG,
            &["--address", "[::]:8080", "--", "true"],
            &["[::]", "--address"],
        ),
        (
            EX_USAGE,
            &["--address", "10.0.0.10", "--", "true"],
            &["10.0.0.10"],
        ),
        (
            EX_USAGE,
            &["--address", "10.0.0.10:99999", "--", "true"],
            &["99999"],
        ),
        (EX_USAGE, &["--", "true"], &["--address"]),
        (EX_USAGE, &["--address", &here], &["COMMAND"]),
        (
            EX_CONFIG,
            &["--address", &here, "--name", "a/b", "--", "true"],
            &["a/b"],
        ),
        (
            EX_CONFIG,
            &["--address", &here, "--name", "..", "--", "true"],
            &[".."],
        ),
        (
            EX_CONFIG,
            &["--address", &here, "--name", "", "--", "true"],
            &["name"],
        ),
        (
            EX_CONFIG,
            &["--address", &here, "--name", &long, "--", "true"],
            &["name"],
        ),
        (
            EX_USAGE,
            &["--address", &here, "--ring-size", "3MiB", "--", "true"],
            &["--ring-size", "power of two"],
        ),
        (
            EX_USAGE,
            &["--address", &here, "--ring-size", "much", "--", "true"],
            &["--ring-size"],
        ),
        (
            EX_USAGE,
            &[
                "--address",
                &here,
                "--limit-per-connection",
                "3GiB",
                "--",
                "true",
            ],
            &["--limit-per-connection", "2GiB"],
        ),
        (
            EX_USAGE,
            &["--address", &here, "--limit-total", "0", "--", "true"],
            &["--limit-total"],
        ),
        (
            EX_USAGE,
            &["--address", &here, "--attach", "xdp", "--", "true"],
            &["--attach"],
        ),
        (
            EX_USAGE,
            &["--address", &here, "--quarantine-after", "0", "--", "true"],
            &["--quarantine-after"],
        ),
        (
            EX_USAGE,
            &[
                "--address",
                &here,
                "--recovery-timeout",
                "soon",
                "--",
                "true",
            ],
            &["--recovery-timeout"],
        ),
    ];
    for (code, arguments, says) in cases {
        let all = [&["serve"], *arguments].concat();
        assert_refused(&outlive(&scene, &all), *code, says);
    }
    assert_refused(&outlive(&scene, &["devour"]), EX_USAGE, &["devour"]);
    assert_refused(&outlive(&scene, &[]), EX_USAGE, &["Usage"]);
    assert_refused(&outlive(&scene, &["--help"]), EX_OK, &[]);
    assert_refused(
        &outlive(&scene, &["status", "nobody"]),
        EX_USAGE,
        &["nobody"],
    );
    assert_refused(
        &outlive(&scene, &["events", "nobody"]),
        EX_USAGE,
        &["nobody"],
    );
    assert_nothing_left(&scene);
}

#[test]
fn port_in_use() {
    let scene = Scene::new("in-use");
    let server = test_server(&scene);
    let plain = scene.plain(&server);
    let address = scene.ipv4(SERVER_PORT).to_string();
    let mut arguments = vec!["serve", "--address", &address, "--"];
    arguments.extend(server.command.iter().map(String::as_str));
    let pid = plain.main_pid().to_string();
    assert_refused(
        &outlive(&scene, &arguments),
        NOT_NOW,
        &["test-server", &pid, &address],
    );
    // A listener at the wildcard would get the connections too.
    drop(plain);
    let mut wildcard = server.clone();
    wildcard
        .command
        .truncate(server.command.len() - server.addresses.len());
    wildcard.command.push(format!("0.0.0.0:{SERVER_PORT}"));
    wildcard.addresses.truncate(1);
    let plain = scene.plain(&wildcard);
    assert_refused(&outlive(&scene, &arguments), NOT_NOW, &["test-server"]);
    drop(plain);
    assert_nothing_left(&scene);
}

#[test]
fn not_root() {
    let scene = Scene::new("not-root");
    // Another user must be able to find the program.
    let program = scene.directory().join("outlive");
    // Copied by another process: a test of this process might fork meanwhile, and a descriptor open for writing would
    // prevent the program from being run (ETXTBSY).
    let (from, to) = (binaries::outlive(), program.to_string_lossy());
    run_words(&scene.server, &["cp", &from.to_string_lossy(), &to]);
    fs::set_permissions(scene.directory(), Permissions::from_mode(0o711)).expect("rights");
    let nobody = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let address = scene.ipv4(SERVER_PORT).to_string();
    let serve = ["serve", "--address", &address, "--", "true"];
    assert_refused(
        &outlive_as(&scene, &nobody, &program, &serve),
        NO_PERMISSION,
        &["root", "NET_ADMIN"],
    );
    // The check says the same, and blames neither kernel nor anything else.
    let check = outlive_as(&scene, &nobody, &program, &["check"]);
    assert_eq!(check.status, Some(NO_PERMISSION), "{check:?}");
    let failed = check.stdout.lines().filter(|line| line.starts_with("FAIL"));
    let failed: Vec<&str> = failed.collect();
    assert_eq!(failed.len(), 1, "{check:?}");
    assert!(
        failed[0].contains("privileges: this process lacks"),
        "{check:?}"
    );
    // A directory of services that may not be listed is not an empty directory.
    let hidden = scene.directory().join("hidden");
    fs::create_dir_all(hidden.join("run/web")).expect("directories");
    fs::set_permissions(&hidden, Permissions::from_mode(0o700)).expect("rights");
    let run_dir = hidden.join("run").to_string_lossy().into_owned();
    for verb in ["status", "events", "restart", "switchover", "clean"] {
        let asked = outlive_as(&scene, &nobody, &program, &[verb, "--run-dir", &run_dir]);
        assert_refused(&asked, NO_PERMISSION, &["only root may list", &run_dir]);
    }
    let history = ["history", "--history", &run_dir];
    let asked = outlive_as(&scene, &nobody, &program, &history);
    assert_refused(&asked, NO_PERMISSION, &["only root may list"]);
    fs::remove_dir_all(&hidden).expect("removed");
    assert_nothing_left(&scene);
}

/// Root in a container: for each missing thing `check` prints the message of `serve`, and ends with the exit status
/// of `serve`.
#[test]
fn check_and_serve_report_equal_errors() {
    let scene = Scene::new("less-root");
    let address = scene.ipv4(SERVER_PORT).to_string();
    let read_only =
        "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec \"$@\"";
    // A cgroup namespace whose root is below the real root, and a mount of cgroup2 from inside, as in a container.
    let hidden = "mkdir -p $0 && echo $$ > $0/cgroup.procs && exec unshare --cgroup --mount sh -c '
        for at in $(findmnt -rnt cgroup2 -o TARGET); do umount -l $at; done
        exec \"$@\"' sh \"$@\"";
    let cgroup = below_the_root(&scene);
    let without = |capability: &str| format!("--bounding-set=-{capability}");
    let script = scene.write("begins-it", "#!/bin/sh\nexec redis-server\n");
    fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("executable");
    let script = script.to_string_lossy();
    let unshared = ["unshare", "--mount", "sh", "-c", read_only, "sh"];
    let namespace = ["sh", "-c", hidden, &cgroup];
    let require = ["--stateful", "require"];
    let cases: &[(&[&str], i32, &[&str], &str)] = &[
        (&["setpriv", &without("net_admin")], NO_PERMISSION, &[], ""),
        (&["setpriv", &without("net_raw")], NO_PERMISSION, &[], ""),
        (&["setpriv", &without("sys_admin")], NO_PERMISSION, &[], ""),
        (&unshared, EX_OSERR, &[], ""),
        (&namespace, EX_OSERR, &[], ""),
        (&[], EX_CONFIG, &require, "memcached"),
        (&[], EX_CONFIG, &require, &script),
        (&[], EX_CONFIG, &["--name", "a/b"], ""),
        (&[], EX_UNAVAILABLE, &["--address-device", "eth7"], ""),
        (&[], EX_UNAVAILABLE, &["--metrics", "10.0.0.78:9"], ""),
        (&[], EX_CONFIG, &[], "no-such-program"),
    ];
    for (by, code, options, server) in cases {
        let program = binaries::outlive();
        let server = if server.is_empty() { "sleep" } else { server };
        let asks = |verb| {
            let all = [
                &[verb, "--address", &address],
                *options,
                &["--", server, "1"],
            ];
            outlive_as(&scene, by, &program, &all.concat())
        };
        let (check, serve) = (asks("check"), asks("serve"));
        assert_eq!(check.status, Some(*code), "{options:?}: {check:?}");
        assert_eq!(serve.status, Some(*code), "{options:?}: {serve:?}");
        let failed = check.stdout.lines().filter(|line| line.starts_with("FAIL"));
        let said: Vec<&str> = failed.collect();
        let why = serve.stderr.trim_end();
        let why = why.strip_prefix("outlive: ").expect("one line");
        assert_eq!(said.len(), 1, "{check:?}");
        assert!(said[0].ends_with(why), "{said:?}, but serve says {why:?}");
        assert_nothing_left(&scene);
    }
    let _ = fs::remove_dir(cgroup);
}

/// The directory of a cgroup that is not made yet.
fn below_the_root(scene: &Scene) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let mut mounts = mounts.lines().map(|line| line.split(' '));
    let mount = mounts.find_map(|mut words| {
        let at = words.nth(1)?;
        (words.next()? == "cgroup2").then(|| at.to_owned())
    });
    let name = scene.directory().file_name().unwrap_or_default();
    format!("{}/{}", mount.expect("cgroup2"), name.to_string_lossy())
}

/// In the journal each line has a priority; and no line has the colours of a terminal.
#[test]
fn journal_lines_have_priority_and_no_colour() {
    let scene = Scene::new("journal");
    let log = scene.directory().join("log");
    let journal = format!(
        "exec 2>{}; export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/$$/fd/2); exec \"$@\"",
        log.display()
    );
    let by = ["env", "OUTLIVE_LOG=debug", "sh", "-c", &journal, "sh"];
    let program = binaries::outlive();
    let serve = ["serve", "--address", "10.0.0.77:80", "--", "true"];
    let answer = outlive_as(&scene, &by, &program, &serve);
    assert_eq!(answer.status, Some(EX_UNAVAILABLE), "{answer:?}");
    let said = fs::read_to_string(&log).expect("what it said");
    assert!(
        said.contains("<3>outlive: 10.0.0.77:80 is not an address of this host"),
        "{said}"
    );
    assert!(!said.contains('\u{1b}'), "{said}");
    // Outside the journal lines have no priority, and the error is the first line.
    let answer = outlive_as(&scene, &["env", "OUTLIVE_LOG=warn"], &program, &serve);
    assert!(
        answer.stderr.starts_with("outlive: 10.0.0.77:80"),
        "{answer:?}"
    );
    assert_eq!(answer.stderr.lines().count(), 1, "{answer:?}");
}

/// A mount that cannot be made: not even the lock is left.
#[test]
fn failed_mount_leaves_nothing() {
    let scene = Scene::new("no-mount");
    let directory = scene.run_dir().join("unlucky");
    fs::create_dir_all(&directory).expect("a directory");
    fs::write(directory.join("bpf"), "in the way").expect("a file");
    let without = "umount -l /sys/fs/bpf; exec \"$@\"";
    let by = ["unshare", "--mount", "sh", "-c", without, "sh"];
    let address = scene.ipv4(SERVER_PORT).to_string();
    let serve = [
        "serve",
        "--name",
        "unlucky",
        "--address",
        &address,
        "--",
        "true",
    ];
    let answer = outlive_as(&scene, &by, &binaries::outlive(), &serve);
    assert_refused(&answer, EX_OSERR, &["bpf"]);
    let left: Vec<_> = fs::read_dir(&directory)
        .expect("readable")
        .flatten()
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn duplicate_name() {
    let scene = Scene::new("twice");
    let server = scene.protect(&test_server(&scene));
    let other = scene.ipv4(SERVER_PORT + 1).to_string();
    let serve = [
        "serve",
        "--name",
        server.name(),
        "--address",
        &other,
        "--",
        "true",
    ];
    assert_refused(&outlive(&scene, &serve), NOT_NOW, &[server.name()]);
    // The first service continues.
    echo_survives_a_kill(&scene, &server, 1);
}

/// The server never started: `serve` protects no service, and does not retry.
#[test]
fn server_exit_before_listen() {
    let scene = Scene::new("early-end");
    let address = scene.ipv4(SERVER_PORT).to_string();
    for (script, says) in [
        ("exit 3", &["status 3", &address[..]][..]),
        ("kill -9 $$", &["SIGKILL", &address]),
        ("sleep 0.2; exit 1", &["status 1", &address]),
        // A daemon exits like this: the start is complete, and no process serves.
        ("exit 0", &[&address]),
    ] {
        let answer = outlive(
            &scene,
            &["serve", "--address", &address, "--", "sh", "-c", script],
        );
        assert_refused(&answer, SERVER_FAILED, says);
        assert_nothing_left(&scene);
    }
}

/// Local programs with root's rights send garbage to the control socket, or stay silent.
#[test]
fn garbage_on_control_socket() {
    let scene = Scene::new("control");
    let server = scene.protect(&test_server(&scene));
    let socket = scene.run_dir().join(server.name()).join("control.sock");
    let connect = || {
        let stream = UnixStream::connect(&socket).expect("the control socket");
        stream
            .set_read_timeout(Some(EVENT_TIMEOUT))
            .expect("a timeout");
        stream
            .set_write_timeout(Some(EVENT_TIMEOUT))
            .expect("a timeout");
        stream
    };
    let status_works = |when: &str| {
        let status = server.outlive("status", &["--json", server.name()]);
        assert_eq!(status.status, Some(EX_OK), "{when}: {status:?}");
        assert_eq!(status.json()[0]["stage"], "serving", "{when}");
    };
    // The first recovery opens descriptors that later recoveries use again.
    echo_survives_a_kill(&scene, &server, 1);
    let serve = server.serve_pid();
    let open_files = || fs::read_dir(format!("/proc/{serve}/fd")).map_or(0, Iterator::count);
    let before = open_files();
    let mut hanging = Vec::new();
    for nonsense in [
        &b"\n"[..],
        b"what?\n",
        b"{\"ask\":\"everything\"}\n",
        b"{\"ask\":\"status\",\"list\":[[[[\n",
        b"\xff\xfe\0\0\0\n\n\n",
        b"{\"ask\":\"status\",\"more\":1}\n",
    ] {
        let mut stream = connect();
        stream.write_all(nonsense).expect("a question");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .expect("an answer, then the end");
        assert!(
            answer.contains("error"),
            "{nonsense:?} was answered by {answer:?}"
        );
    }
    status_works("after nonsense");

    // A line without an end: `serve` closes the connection, before or after the last byte.
    let mut stream = connect();
    let _ = stream.write_all(&[b'x'; 1 << 20]);
    let hung_up = stream.read(&mut [0; 16]);
    assert!(!matches!(hung_up, Ok(1..)), "{hung_up:?}");
    for _ in 0..50 {
        let mut half = connect();
        half.write_all(b"{\"ask\":").expect("half a question");
        hanging.push(half);
        hanging.push(connect());
    }
    // Asks, and does not read the answers.
    let mut deaf = connect();
    deaf.write_all(b"{\"ask\":\"events\",\"follow\":true}\n")
        .expect("a question");
    status_works("beside those that hang");

    echo_survives_a_kill(&scene, &server, 2);
    drop((hanging, deaf));
    wait_until("all of them are let go", || open_files() <= before);
    status_works("after they have gone");
}
