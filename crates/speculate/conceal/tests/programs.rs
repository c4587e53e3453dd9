//! Real programs, concealed. Needs root, `/dev/fuse`, a compiler and make.

mod context;

use std::{
    fs, io,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use conceal::concealment::CommitError;
use context::{AsItWas, Context, has_made, until};
use rustix::{
    fs::{XattrFlags, getxattr, setxattr},
    process::{Pid, Signal, kill_process},
};
use tempfile::TempDir;

const MAKEFILE_TEXT: &str = "
prog: a.o b.o
	cc -o $@ $^
%.o: %.c a.h
	cc -c -o $@ $<
";

fn sources(context: &Context) {
    context.write("Makefile", MAKEFILE_TEXT);
    context.write("a.h", "int b(void);\n");
    context.write("a.c", "#include \"a.h\"\n#include <stdio.h>\nint main(void) { return printf(\"%d\", b()) != 1; }\n");
    context.write("b.c", "#include \"a.h\"\nint b(void) { return 7; }\n");
}

#[test]
fn committed_build_is_visible() {
    let context = Context::new();
    sources(&context);
    let before = context.names();
    // A separate directory: other tests have files in `/tmp` for a while.
    let temporary = TempDir::new_in("/tmp").expect("a directory");
    let in_temporary = || fs::read_dir(temporary.path()).expect("it is there").count();
    let build = context.run(&format!(
        "export TMPDIR={}; make >log; touch $TMPDIR/new; ./prog >said",
        temporary.path().display()
    ));
    assert_eq!(context.names(), before, "something leaked");
    assert_eq!(in_temporary(), 0, "something leaked");
    context.commit(&build).expect("nothing has changed");
    assert!(temporary.path().join("new").exists());
    assert_eq!(in_temporary(), 1, "what the compiler needed is gone");
    let said = fs::read_to_string(context.tree().join("said"));
    assert_eq!(said.expect("it was said"), "7");
    let up_to_date = Command::new("make")
        .arg("-q")
        .current_dir(context.tree())
        .status();
    assert!(up_to_date.expect("make").success());
    let program = fs::metadata(context.tree().join("prog")).expect("it was built");
    assert_eq!(program.mode() & 0o777, 0o755);
}

#[test]
fn changed_input_refuses_commit() {
    type Change = fn(&Context);
    let changes: [Change; 4] = [
        |context| context.write("b.c", "#include \"a.h\"\nint b(void) { return 8; }\n"),
        |context| context.write("a.h", "int b(void); \n"),
        // Make has looked for this file in vain.
        |context| context.write("GNUmakefile", ""),
        |context| fs::remove_file(context.tree().join("a.c")).expect("it is there"),
    ];
    for change in changes {
        let context = Context::new();
        sources(&context);
        let build = context.run("make >/dev/null");
        change(&context);
        let committed = context.commit(&build);
        assert!(
            matches!(committed, Err(CommitError::Stale(_))),
            "{committed:?}"
        );
        assert!(!context.names().contains(&"prog".to_owned()));
    }
    let context = Context::new();
    sources(&context);
    fs::create_dir(context.tree().join("other")).expect("a directory");
    let build = context.run("make >/dev/null");
    context.write("other/nobody-has-read-this", "");
    context
        .commit(&build)
        .expect("nothing that was read has changed");
}

#[test]
fn running_program_continues_after_commit() {
    let context = Context::new();
    let (it, mut child, _) = context.begin(
        "echo one >a; exec 3>>a; mkdir d; until [ -e go ]; do sleep 0.01; done; echo two >&3; echo three >d/b",
    );
    until("it has begun", || has_made(&it, "d"));
    assert!(context.names().is_empty());
    context.commit(&it).expect("nothing has changed");
    assert_eq!(context.names(), ["a", "d"]);
    context.write("go", "");
    let ended = child.wait().expect("it ends");
    assert!(ended.success());
    let read = |name: &str| fs::read_to_string(context.tree().join(name)).expect("it is there");
    assert_eq!(read("a"), "one\ntwo\n");
    assert_eq!(read("d/b"), "three\n");
}

#[test]
fn built_program_can_be_executed() {
    let context = Context::new();
    sources(&context);
    let build = context.run("make >/dev/null; cp prog gen; ./gen >/dev/null");
    context.commit(&build).expect("nothing has changed");
    let execute = || Command::new(context.tree().join("prog")).output();
    assert_eq!(execute().expect("nobody writes to it").stdout, b"7");
    let (later, mut child, _) = context.begin(
        "./gen >said; cp gen new; ./new >>said; until [ -e go ]; do sleep 0.01; done; ./gen >>said; ./new >>said",
    );
    until("it has begun", || {
        later.with_encapsulation(|it| it.effects().len()) >= Some(2)
    });
    context.commit(&later).expect("nothing has changed");
    execute().expect("it is as it was");
    context.write("go", "");
    assert!(child.wait().expect("it ends").success());
    let said = fs::read_to_string(context.tree().join("said"));
    assert_eq!(said.expect("it was said"), "7777");
    let new = Command::new(context.tree().join("new")).output();
    assert_eq!(new.expect("nobody writes to it").stdout, b"7");
}

#[test]
fn file_made_after_commit_keeps_its_mode() {
    let context = Context::new();
    let make = "umask 0; mkdir $n.d; mkfifo $n.p; echo >$n.f";
    let (it, mut child, _) = context.begin(&format!(
        "n=1; {make}; until [ -e go ]; do sleep 0.01; done; n=2; {make}"
    ));
    until("it has begun", || {
        it.with_encapsulation(|it| it.effects().len()) >= Some(3)
    });
    context.commit(&it).expect("nothing has changed");
    context.write("go", "");
    assert!(child.wait().expect("it ends").success());
    let mode = |name: &str| fs::metadata(context.tree().join(name)).expect("it is there");
    for (name, its) in [("d", 0o777), ("p", 0o666), ("f", 0o666)] {
        for number in [1, 2] {
            let is = mode(&format!("{number}.{name}")).mode() & 0o7777;
            assert_eq!(is, its, "{number}.{name}: {is:o}");
        }
    }
}

/// How many pages of a file are not on disk (cachestat(2), Linux 6.5).
fn unsafe_pages(path: &Path) -> u64 {
    let file = fs::File::open(path).expect("it is there");
    let all = [0_u64; 2];
    let mut about = [0_u64; 5];
    // SAFETY: both are as long as the kernel's structures, and live as long as the call.
    let done = unsafe { libc::syscall(451, file.as_raw_fd(), &raw const all, &raw mut about, 0) };
    assert_eq!(done, 0, "cachestat");
    about[1] + about[2]
}

#[test]
fn synced_file_is_durable_at_commit() {
    let context = Context::new();
    let make = "head -c 300000 /dev/zero >$n";
    let (it, mut child, calls) = context.begin(&format!(
        "n=unsynced; {make}; n=before; {make}; sync before .; : >begun; until [ -e go ]; do sleep 0.01; done; n=after; {make}; sync after .; head -c 300000 /dev/zero >{0}; sync {0}",
        context.outside().display()
    ));
    until("it has begun", || has_made(&it, "begun"));
    context.commit(&it).expect("nothing has changed");
    let unsafe_pages_of = |name: &str| unsafe_pages(&context.tree().join(name));
    assert_ne!(unsafe_pages_of("unsynced"), 0, "this shows nothing here");
    assert_eq!(unsafe_pages_of("before"), 0);
    context.may_change.store(true, Ordering::Release);
    calls.release();
    context.write("go", "");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(unsafe_pages_of("after"), 0);
    assert_eq!(unsafe_pages(&context.outside()), 0);
}

#[test]
fn extended_attributes_survive_writes() {
    let context = Context::new();
    let names = ["a", "b"];
    for name in names {
        context.write(name, "1\n");
        let path = context.tree().join(name);
        setxattr(path, "user.said", name.as_bytes(), XattrFlags::empty()).expect("ext4");
    }
    let it = context.run("echo 2 >>a; echo 3 >b");
    context.commit(&it).expect("nothing has changed");
    for name in names {
        let mut said = [0_u8; 9];
        let length = getxattr(context.tree().join(name), "user.said", &mut said);
        assert_eq!(&said[..length.expect("it is said")], name.as_bytes());
    }
}

#[test]
fn file_written_after_snapshot_stays_one_file() {
    let context = Context::new();
    let (it, mut child, _) = context.begin("exec 3>>log; kill -STOP $$; echo 1 >>log; echo 2 >&3");
    until("it has begun", || {
        it.with_encapsulation(|it| it.effects().len()) >= Some(1)
    });
    let seen = it.with_encapsulation(encapsulation::Encapsulation::snapshot);
    until("it waits", || {
        let _ = kill_process(Pid::from_child(&child), Signal::CONT);
        !it.waiting().is_empty()
    });
    drop(seen);
    context.commit(&it).expect("nothing has changed");
    assert!(child.wait().expect("it ends").success());
    let log = fs::read_to_string(context.tree().join("log"));
    assert_eq!(log.expect("it is there"), "1\n2\n");
}

#[test]
fn overlong_path_waits() {
    let context = Context::new();
    let name = "n".repeat(200);
    let (it, mut child, _) = context.begin(&format!(
        "for i in $(seq 25); do mkdir {name}; cd {name}; done"
    ));
    until("it waits", || !it.waiting().is_empty());
    context.commit(&it).expect("what was done is possible");
    let _ = child.wait().expect("it ends");
    assert_eq!(context.names(), [name]);
}

#[test]
fn reader_and_writer_share_one_file() {
    let context = Context::new();
    let each = "exec 3<$f; exec 4>>$f; echo 1 >&4; cat <&3; exec 5<>$f; echo 0 >&5; exec 4>&-; cat $f; truncate -s 3 $f; cat <&5";
    let script = format!(
        ": >own; f=own; {{ {each}; }} >said; : >begun; until [ -e go ]; do sleep 0.01; done; {{ {each}; f=old; {each}; }} >>said"
    );
    let plain = context.directory.path().join("plain");
    fs::create_dir(&plain).expect("a directory");
    let (it, mut child, _) = context.begin(&script);
    until("it has begun", || has_made(&it, "begun"));
    context.commit(&it).expect("nothing has changed");
    for directory in [&context.tree(), &plain] {
        fs::write(directory.join("old"), "old").expect("a file");
        fs::write(directory.join("go"), "").expect("a file");
    }
    assert!(child.wait().expect("it ends").success());
    let mut shell = Command::new("sh");
    let done = shell
        .args(["-ec", &script])
        .current_dir(&plain)
        .status()
        .expect("sh");
    assert!(done.success());
    for name in ["own", "old", "said"] {
        let read =
            |directory: &Path| fs::read_to_string(directory.join(name)).expect("it is there");
        assert_eq!(read(&context.tree()), read(&plain), "{name}");
    }
}

#[test]
fn permitted_process_changes_surroundings() {
    let context = Context::new();
    let outside = context.outside();
    let script = format!("echo 1 >a; echo 2 >{}; echo 3 >b", outside.display());
    let (it, mut child, calls) = context.begin(&script);
    until("it waits", || !calls.waiting().is_empty());
    assert!(!outside.exists());
    assert_eq!(child.try_wait().expect("a child"), None);
    context.commit(&it).expect("nothing has changed");
    context.may_change.store(true, Ordering::Release);
    calls.release();
    assert!(child.wait().expect("it ends").success());
    assert_eq!(fs::read_to_string(&outside).expect("it was written"), "2\n");
    assert_eq!(context.names(), ["a", "b"]);
}

#[test]
fn call_held_during_release_continues() {
    let asked = Arc::new(AtomicBool::new(false));
    let asks = Arc::clone(&asked);
    let context = Context::asking(move |may_change| {
        asks.store(true, Ordering::Release);
        thread::sleep(Duration::from_millis(100));
        may_change
    });
    let (_, mut child, calls) = context.begin(&format!("echo 1 >{}", context.outside().display()));
    // The file system is the second to ask.
    calls.release();
    until("it asks", || asked.load(Ordering::Acquire));
    context.may_change.store(true, Ordering::Release);
    let around = context.world.around().clone();
    // The decision about a waiting call may ask for the waiting calls.
    let released = thread::spawn(move || around.release(|_| !around.waiting().is_empty()));
    until("all are told", || released.is_finished());
    until("it ends", || child.try_wait().expect("a child").is_some());
    assert!(context.outside().exists());
}

#[test]
fn failed_commit_freezes_the_tree() {
    let context = Context::new();
    let (it, mut child, _) =
        context.begin("echo 1 >a; echo 2 >b; exec 3<>a 4<b; kill -STOP $$
for change in 'ftruncate(3, 0)' 'copy_file_range(4, 3, 1)'; do python3 -c \"import os; os.$change\" 2>/dev/null && exit; done
echo 3 >c || :; echo 4 >d");
    let about = format!("/proc/{}/stat", child.id());
    until("it has stopped", || {
        fs::read_to_string(&about).is_ok_and(|about| about.contains(") T "))
    });
    let read = it.with_encapsulation(|it| it.inputs().clone());
    context.write("b", "mine");
    let committed = it.commit(&AsItWas(read.expect("it is concealed")));
    assert!(
        matches!(committed, Err(CommitError::Impossible { shown: 1, .. })),
        "{committed:?}"
    );
    until("it waits", || {
        let _ = kill_process(Pid::from_child(&child), Signal::CONT);
        !it.waiting().is_empty()
    });
    it.refuse(|_| true);
    until("it waits", || !it.waiting().is_empty());
    child.kill().expect("it runs");
    it.refuse(|_| true);
    child.wait().expect("it ends");
    assert_eq!(context.names(), ["a", "b"]);
    let there = ["a", "b"].map(|it| fs::read_to_string(context.tree().join(it)).ok());
    assert_eq!(there, [Some("1\n".into()), Some("mine".into())]);
}

#[test]
fn unpermitted_process_is_refused_surroundings() {
    let context = Context::new();
    let outside = context.outside();
    let script = format!("echo 1 >{} || echo refused >a", outside.display());
    let (it, mut child, calls) = context.begin(&script);
    // A call that the gate does not hold is held by the file system.
    calls.release();
    until("it waits", || !context.world.around().waiting().is_empty());
    context.world.around().refuse(|_| true);
    assert!(child.wait().expect("it ends").success());
    assert!(!outside.exists());
    context.commit(&it).expect("nothing has changed");
    assert_eq!(context.names(), ["a"]);
}

#[test]
fn surrounding_inputs_are_recorded() {
    let context = Context::new();
    fs::write(context.outside(), "1").expect("a file");
    let script = format!("cat {} >a", context.outside().display());
    let it = context.run(&script);
    let around = || {
        let fits = |all: &mut encapsulation::Encapsulation| all.check();
        context
            .world
            .around()
            .with_encapsulation(fits)
            .expect("it is one")
    };
    assert_eq!(around(), Ok(()));
    context.commit(&it).expect("nothing has changed");
    assert_eq!(
        fs::read_to_string(context.tree().join("a")).expect("it is there"),
        "1"
    );
    fs::write(context.outside(), "22").expect("a file");
    assert!(around().is_err());
}

/// With a connection, the child of a server that died before the child's exec would wait for an answer for ever, and
/// the build as well.
#[test]
fn forked_child_has_no_fuse_descriptor() {
    let context = Context::new();
    let (_concealing, view) = context
        .world
        .begin(context.world.encapsulation())
        .expect("a view");
    let connections = || {
        let open = fs::read_dir("/proc/self/fd").into_iter().flatten();
        let files = open.flatten().map(|entry| fs::read_link(entry.path()));
        files.filter(is_connection).count()
    };
    assert_ne!(connections(), 0, "this process serves file systems");
    let has_none = move || match connections() {
        0 => Ok(()),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    };
    let mut command = Command::new("true");
    let (mut child, _) = view
        .spawn_limited(&mut command, &context.tree(), has_none)
        .expect("it has none");
    assert!(child.wait().expect("it ends").success());
}

fn is_connection(file: &io::Result<PathBuf>) -> bool {
    file.as_deref()
        .is_ok_and(|file| file == Path::new("/dev/fuse"))
}
