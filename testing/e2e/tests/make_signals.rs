//! `outlive make`: signals, killed processes, and processes that hang.

mod ab_builds;

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{Read as _, Write as _},
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            net::{SocketAddr, UnixListener},
            process::ExitStatusExt as _,
        },
    },
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ab_builds::{AFTER_MAKE, AbBuilds, EVENT_TIMEOUT, outlive, wait_until};

fn send(signal: &str, to: &Child) {
    let pid = to.id().to_string();
    let sent = Command::new("kill").args([signal, &pid]).status();
    assert!(sent.expect("kill").success());
}

/// The socket at which `outlive make` requests the results of a tree.
fn in_the_place_of_a_watcher(tree: &Path) -> UnixListener {
    let mut sum = DefaultHasher::new();
    tree.hash(&mut sum);
    let user = rustix::process::getuid().as_raw();
    let name = format!("outlive-make/{user}/{:016x}", sum.finish());
    let address = SocketAddr::from_abstract_name(name).expect("a name");
    UnixListener::bind_addr(&address).expect("nobody listens")
}

/// The request waits for a watcher that checks results, which may take a while.
#[test]
fn early_interrupt_ends_request() {
    let builds = AbBuilds::new(&[("Makefile", "out:\n\techo made >$@\n")]);
    let watcher = in_the_place_of_a_watcher(&builds.ours);
    let mut make = outlive();
    make.arg("make").current_dir(&builds.ours);
    let mut make = make.stdin(Stdio::null()).spawn().expect("outlive make");
    let (asks_whether_there_is_one, _) = watcher.accept().expect("it asks");
    drop(asks_whether_there_is_one);
    let (mut asker, _) = watcher.accept().expect("it asks for a make");
    let mut length = [0; 5];
    asker
        .read_exact(&mut length)
        .expect("its streams, and a length");
    let [_, length @ ..] = length;
    let mut asked = vec![0; usize::try_from(u32::from_be_bytes(length)).expect("it is short")];
    asker.read_exact(&mut asked).expect("a request");
    send("-INT", &make);
    let mut passed_on = [0];
    asker.read_exact(&mut passed_on).expect("it is passed on");
    assert_eq!(passed_on, [2]);
    // `Reply::PlainRun` in postcard: no variables, no message to the user, and no process with other mounts.
    let reply = [0, 0, 0, 0];
    let length = u32::try_from(reply.len()).expect("it is short");
    asker.write_all(&length.to_be_bytes()).expect("it listens");
    asker.write_all(&reply).expect("it listens");
    let ended = make.wait().expect("it ends");
    assert_eq!(ended.signal(), Some(2), "{ended}");
    assert!(!builds.ours.join("out").exists());
}

#[test]
fn ended_watcher_is_reported() {
    let builds = AbBuilds::new(&[("Makefile", "out:\n\techo made >$@\n")]);
    let watcher = in_the_place_of_a_watcher(&builds.ours);
    let make = builds.begin();
    let (asks_whether_there_is_one, _) = watcher.accept().expect("it asks");
    drop(asks_whether_there_is_one);
    let (asker, _) = watcher.accept().expect("it asks for a make");
    drop((asker, watcher));
    let said = make.wait_with_output().expect("outlive make");
    let said = String::from_utf8_lossy(&said.stderr);
    assert_eq!(
        said,
        "outlive: who watches does not answer (it has ended): this is plain make\n"
    );
    assert!(builds.ours.join("out").exists());
}

/// A command of plain make would wait, and die of the signal.
#[test]
fn request_to_hung_watcher_is_interruptible() {
    let makefile = format!(
        "{AFTER_MAKE}all:\n\t@$(after_make) yes | head -c 1000000; touch begun; while :; do sleep 0.05; done\n"
    );
    let mut builds = AbBuilds::new(&[("Makefile", &makefile)]);
    builds.watch(&[]);
    wait_until("it runs", || builds.number("running") > 1);
    let mut make = builds.begin();
    wait_until("it is shown", || builds.ours.join("begun").exists());
    send("-TERM", &make);
    let began = Instant::now();
    let ended = loop {
        if let Some(ended) = make.try_wait().expect("a child") {
            break ended;
        }
        if began.elapsed() > EVENT_TIMEOUT {
            drop(make.stdout.take());
            panic!("it waits for who does not listen");
        }
        thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(ended.signal(), Some(15), "{ended}");
}

/// Such a command has none of the mounts that identify concealed commands.
#[test]
fn signal_reaches_command_started_after_request() {
    let makefile = format!(
        "{AFTER_MAKE}all:\n\ttouch begun; until [ -e go ]; do sleep 0.05; done\n\
            \t@$(after_make) echo $$$$ >more; while :; do sleep 0.05; done\n"
    );
    let mut builds = AbBuilds::new(&[("Makefile", &makefile)]);
    builds.watch(&[]);
    wait_until("it runs", || builds.number("running") > 1);
    let mut make = builds.begin();
    wait_until("it is shown", || builds.ours.join("begun").exists());
    builds.save("go", "");
    wait_until("it goes on", || builds.ours.join("more").exists());
    send("-INT", &make);
    let ended = make.wait().expect("outlive make");
    assert_eq!(ended.signal(), Some(2), "{ended}");
    // Another make may run by now: the tree has changed, and no request has come yet.
    let shell = fs::read_to_string(builds.ours.join("more")).expect("its number");
    wait_until("the command ends", || {
        !Path::new("/proc").join(shell.trim()).exists()
    });
}

/// A killed request cannot notify the running commands.
#[test]
fn commands_end_with_killed_request() {
    let makefile = "all:\n\t-timeout -s KILL 0.5 $(MAKE) long\n\techo done >$@\nlong:\n\twhile :; do :; done\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile)]);
    builds.watch(&[]);
    builds.await_speculation();
    let mut make = builds.begin();
    assert!(make.wait().expect("it ends").success());
    let done = fs::read_to_string(builds.ours.join("all"));
    assert_eq!(done.expect("it was made"), "done\n");
    wait_until("nothing is left", || builds.number("running") == 0);
}

/// Command lines that contain that path.
fn with(words: &Path) -> Vec<String> {
    let all = fs::read_dir("/proc").expect("it is there").flatten();
    let all = all.map(|process| fs::read(process.path().join("cmdline")).unwrap_or_default());
    let all = all.map(|arguments| String::from_utf8_lossy(&arguments).replace('\0', " "));
    let words = words.display().to_string();
    all.filter(|arguments| arguments.contains(&words)).collect()
}

/// Speculative commands end with a killed watcher.
#[test]
fn speculative_commands_end_with_killed_watcher() {
    let makefile = "all:\n\t@: $(CURDIR); while :; do :; done\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile)]);
    builds.watch(&[]);
    wait_until("it runs", || !with(&builds.ours).is_empty());
    let mut watcher = builds.watcher.take().expect("it watches");
    watcher.kill().expect("it was there");
    watcher.wait().expect("it ends");
    wait_until("it ends, too", || with(&builds.ours).is_empty());
}

/// Descriptors of a shell, which a speculative command does not have.
#[test]
fn extra_descriptors_are_unchanged() {
    let makefile = "all: nested\n\t@echo said >&3\nnested:\n\t@exec 3>f; $(MAKE) -s deep; cat f\ndeep:\n\t@echo deep >&3\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile)]);
    builds.watch_for_shell("");
    builds.await_speculation();
    builds.shell("$M 3>../said; cat ../said");
    builds.shell("$M; $M nested");
    for _ in 0..8 {
        // From now on the watcher expects this request.
        builds.shell("$M nested");
    }
    builds.save("touched", "");
    builds.await_speculation();
    let said = builds.shell("$M nested");
    assert!(said.contains("revealed"), "{said}");
}
