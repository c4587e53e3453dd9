//! Results of committed programs, compared with the real results. Needs root and `/dev/fuse`.

mod context;

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, symlink},
    process::Command,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

use conceal::concealment::{CommitError, Concealment};
use context::{AsItWas, Context, until};
use encapsulation::{Base as _, Encapsulation, Seen, Time, TreePath};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount},
    process::{Pid, Signal, kill_process},
    thread::{UnshareFlags, unshare_unsafe},
};

#[test]
fn empty_directory_keeps_its_time() {
    let context = Context::new();
    let it = context.run("mkdir obj; sleep 0.05; : >stamp");
    thread::sleep(Duration::from_millis(50));
    context.commit(&it).expect("nothing has changed");
    let modified = |name: &str| {
        let there = fs::metadata(context.tree().join(name)).expect("it is there");
        there.modified().expect("a time")
    };
    assert!(modified("obj") < modified("stamp"));
}

/// Acts on another directory with a file, and checks that the act leaves the directory unchanged.
fn elsewhere(context: &Context, act: impl FnOnce(&std::path::Path)) {
    let at = context.outside();
    fs::create_dir(&at).expect("a directory");
    fs::write(at.join("old"), "").expect("a file");
    let picture = || {
        let names = fs::read_dir(&at).expect("it is there");
        let names: Vec<_> = names.map(|name| name.expect("a name").path()).collect();
        let old =
            fs::metadata(at.join("old")).map(|old| (old.mode(), old.ctime(), old.ctime_nsec()));
        (names, old.expect("it is there"))
    };
    let before = picture();
    act(&at);
    assert_eq!(picture(), before);
}

#[test]
fn open_directory_differs_from_renamed_path() {
    let context = Context::new();
    let build = context.tree().join("build");
    fs::create_dir(&build).expect("a directory");
    fs::write(build.join("old"), "").expect("a file");
    let acts = [
        "echo >new",
        "mkdir d",
        "mkfifo p",
        "ln -s a s",
        "ln old l",
        "mv old m",
        "chmod 700 old",
        "touch -d 2000-01-01 old",
        "echo >>old",
        "rm old",
    ];
    let acts = acts.map(|act| format!("{act} || :; "));
    let script = format!("cd build; : >begun; kill -STOP $$; {}", acts.concat());
    let (it, mut child, _) = context.begin(&script);
    until("it has begun", || {
        it.with_encapsulation(|it| it.effects().len()) >= Some(1)
    });
    context.commit(&it).expect("nothing has changed");
    elsewhere(&context, |at| {
        fs::rename(&build, context.tree().join("moved")).expect("it is there");
        symlink(at, &build).expect("it is gone");
        until("it ends", || {
            let _ = kill_process(Pid::from_child(&child), Signal::CONT);
            child.try_wait().expect("a child").is_some()
        });
    });
}

#[test]
fn path_turned_symlink_is_not_followed() {
    for act in [
        "chmod 700 d/old",
        "echo >d/new",
        "mkdir d/new",
        "echo >>d/old",
        "rm d/old",
    ] {
        for link in ["d", "d/old"] {
            let context = Context::new();
            let link = context.tree().join(link);
            fs::create_dir(context.tree().join("d")).expect("a directory");
            context.write("d/old", "");
            let it = context.run(act);
            let read = it.with_encapsulation(|it| it.inputs().clone());
            elsewhere(&context, |at| {
                fs::rename(&link, context.tree().join("moved")).expect("it is there");
                let to = if link.ends_with("d") {
                    at.to_owned()
                } else {
                    at.join("old")
                };
                symlink(to, &link).expect("it is gone");
                let _ = it.commit(&AsItWas(read.expect("it is concealed")));
            });
        }
    }
}

/// Runs the test in a thread with separate mounts.
fn apart(test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let test = scope.spawn(|| {
            // SAFETY: the thread has a separate file system context, and hands on no part of the context.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }.expect("root");
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            mount_change("/", private).expect("mounts of its own");
            test();
        });
        test.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn surroundings_without_tmpfile_can_change() {
    apart(|| {
        let context = Context::new();
        let at = context.outside();
        fs::create_dir(&at).expect("a directory");
        mount("mqueue", &at, "mqueue", MountFlags::empty(), None).expect("root");
        fs::write(at.join("old"), "").expect("a queue");
        let script = format!("cd {}; touch new; rm old; touch new", at.display());
        let (it, mut child, calls) = context.begin(&script);
        until("it waits", || !calls.waiting().is_empty());
        context.commit(&it).expect("nothing has changed");
        context.may_change.store(true, Ordering::Release);
        calls.release();
        assert!(child.wait().expect("it ends").success());
        assert!(at.join("new").exists() && !at.join("old").exists());
        unmount(&at, UnmountFlags::DETACH).expect("it is mounted");
    });
}

/// Runs a script above the present tree of another encapsulation.
fn above(context: &Context, it: &Concealment, script: &str) -> Concealment {
    let snapshot = it.with_encapsulation(Encapsulation::snapshot);
    let base = Arc::new(snapshot.expect("it is one"));
    let hidden = Arc::clone(context.world.hidden());
    context.run_in(Encapsulation::new(base, hidden as _), script)
}

#[test]
fn absorbed_move_shows_current_content() {
    let context = Context::new();
    let (it, mut child, _) = context.begin(
        "mkdir tmp; echo 1 >tmp/a; cat tmp/a; [ ! -e tmp/b ]; : >begun; kill -STOP $$; cat out/a out/b >said",
    );
    until("it has begun", || {
        it.with_encapsulation(|it| it.effects().len()) >= Some(3)
    });
    let other = above(
        &context,
        &it,
        "mv tmp out; rm out/a; echo two >out/a; echo three >out/b",
    );
    let absorbed = other.with_encapsulation(|other| {
        let absorb = |it: &mut Encapsulation| it.absorb(other, Time::default());
        assert_eq!(it.with_encapsulation(absorb), Some(Ok(())));
        other.effects().to_vec()
    });
    it.changed(&absorbed.expect("it is one"));
    until("it ends", || {
        let _ = kill_process(Pid::from_child(&child), Signal::CONT);
        child.try_wait().expect("a child").is_some()
    });
    context.commit(&it).expect("nothing has changed");
    let said = fs::read_to_string(context.tree().join("said"));
    assert_eq!(said.expect("it was said"), "two\nthree\n");
}

#[test]
fn redating_spares_foreign_changes() {
    let context = Context::new();
    let made = context.run("echo 1 >f");
    let dated = above(&context, &made, "touch -c f");
    let read = above(&context, &dated, "cat f");
    let late = above(&context, &dated, "cat f");
    for it in [made, dated, read] {
        context.commit(&it).expect("nothing has changed");
    }
    context.write("f", "2\n");
    assert!(context.commit(&late).is_err());
}

#[test]
fn open_file_shows_foreign_writes() {
    let context = Context::new();
    context.write("log", "1");
    let size = "stat -L -c %s /dev/fd/3 >>said";
    let (it, mut child, _) = context.begin(&format!(
        "exec 3<log; {size}; : >begun; until [ -e go ]; do sleep 0.01; done; {size}"
    ));
    until("it has begun", || {
        it.with_encapsulation(|it| it.effects().len()) >= Some(2)
    });
    context.commit(&it).expect("nothing has changed");
    context.write("log", "12");
    context.write("go", "");
    assert!(child.wait().expect("it ends").success());
    let said = fs::read_to_string(context.tree().join("said"));
    assert_eq!(said.expect("it was said"), "1\n2\n");
}

#[test]
fn unlinked_file_has_attributes() {
    let context = Context::new();
    for name in ["f1", "f2"] {
        context.write(name, "");
    }
    for name in ["d1", "d2"] {
        fs::create_dir(context.tree().join(name)).expect("a directory");
    }
    let gone = "for d in $n.d d$n; do (cd $d; rmdir ../$d; stat -c %F,%h .); done; : >$n.f; for f in $n.f f$n; do exec 3<$f; rm $f; chmod 604 /dev/fd/3; stat -L -c %a /dev/fd/3; done";
    let (it, mut child, _) = context.begin(&format!(
        "mkdir 1.d 2.d; n=1; {{ {gone}; }} >said; : >begun; until [ -e go ]; do sleep 0.01; done; n=2; {{ {gone}; }} >>said"
    ));
    until("it has begun or ended", || {
        let begun = TreePath::new("0/begun").expect("a path");
        let seen = it.with_encapsulation(|it| it.peek().look(&begun));
        matches!(seen, Some(Ok(Seen::There(_)))) || child.try_wait().expect("a child").is_some()
    });
    context.commit(&it).expect("nothing has changed");
    context.write("go", "");
    assert!(child.wait().expect("it ends").success());
    let said = fs::read_to_string(context.tree().join("said"));
    let each = "directory,0\ndirectory,0\n604\n604\n";
    assert_eq!(said.expect("it was said"), each.repeat(2));
}

#[test]
fn future_date_leaves_others_redated() {
    let context = Context::new();
    let began = Instant::now();
    let it = context.run(": >a; mkdir d; ln -s a s; touch -d tomorrow lease");
    let took = began.elapsed();
    context.write("saved", "");
    // Longer than the run took, by more than a tick of the file clock: the distances of times must stay.
    thread::sleep(took + Duration::from_millis(50));
    it.date_now(Time::default());
    context.commit(&it).expect("nothing has changed");
    let modified = |name: &str| {
        let there = fs::symlink_metadata(context.tree().join(name)).expect("it is there");
        there.modified().expect("a time")
    };
    for name in ["a", "d", "s"] {
        assert!(modified(name) > modified("saved"), "{name}");
    }
    assert!(modified("lease") > SystemTime::now());
}

#[test]
fn reread_directory_is_current() {
    let context = Context::new();
    let script = r#"
        opendir D, "." or die; readdir D; open F, ">new" or die; rewinddir D;
        print grep { $_ eq "new" } readdir D;
    "#;
    let it = context.run(&format!("perl -e '{script}' >said"));
    context.commit(&it).expect("nothing has changed");
    let said = fs::read_to_string(context.tree().join("said"));
    assert_eq!(said.expect("it was said"), "new");
}

#[test]
fn free_space_equals_real_trees() {
    apart(|| {
        let context = Context::new();
        let (within, around) = (context.tree().join("m"), context.outside());
        for at in [&within, &around] {
            fs::create_dir(at).expect("a directory");
            mount("tmpfs", at, "tmpfs", MountFlags::empty(), Some(c"size=1m")).expect("root");
        }
        let told = format!(": >m/f; stat -f -c %b m m/f {0} .", around.display());
        let it = context.run(&format!("{{ {told}; }} >said"));
        context.commit(&it).expect("nothing has changed");
        let plain = Command::new("sh")
            .args(["-ec", &told])
            .current_dir(context.tree())
            .output();
        let said = fs::read(context.tree().join("said")).expect("it was said");
        assert_eq!(said, plain.expect("sh").stdout);
        for at in [&within, &around] {
            unmount(at, UnmountFlags::DETACH).expect("it is mounted");
        }
    });
}

/// Two encapsulations that have absorbed a third encapsulation. Commits the first, acts, and commits the second.
fn committed_twice(since: impl FnOnce(&Context)) -> (Context, Result<usize, CommitError>) {
    let context = Context::new();
    let made = context.run("echo made >out");
    let above = || {
        let above = context.run(":");
        above.with_encapsulation(|above| {
            let absorbed = made.with_encapsulation(|made| above.absorb(made, Time::default()));
            absorbed
                .expect("it is concealed")
                .expect("nothing is there yet");
        });
        above
    };
    let (one, other) = (above(), above());
    context.commit(&one).expect("nothing has changed");
    since(&context);
    let committed = context.commit(&other);
    (context, committed)
}

#[test]
fn relinked_file_is_committed_as_own_file() {
    let (context, committed) = committed_twice(|context| {
        let [out, kept] = ["out", "kept"].map(|name| context.tree().join(name));
        fs::rename(out, kept).expect("it is there");
    });
    committed.expect("it is as it was");
    for name in ["out", "kept"] {
        let path = context.tree().join(name);
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "made\n");
        assert_eq!(fs::metadata(&path).expect("it is there").nlink(), 1);
    }
    let (context, committed) = committed_twice(|context| {
        fs::remove_file(context.tree().join("out")).expect("it is there");
    });
    committed.expect("it is as it was");
    let out = fs::read_to_string(context.tree().join("out"));
    assert_eq!(out.expect("it is there"), "made\n");
}

#[test]
fn foreign_write_to_committed_file_refuses_commit() {
    let (context, committed) = committed_twice(|context| {
        thread::sleep(Duration::from_millis(20));
        let [out, kept] = ["out", "kept"].map(|name| context.tree().join(name));
        let mut file = fs::File::options().append(true).open(&out).expect("a file");
        file.write_all(b"more\n").expect("room");
        fs::rename(out, kept).expect("it is there");
    });
    assert!(
        matches!(committed, Err(CommitError::Stale(_))),
        "{committed:?}"
    );
    assert!(!context.tree().join("out").exists());
}

/// A file made from another encapsulation's file is not older than that file, however long the other encapsulation ran
/// on.
#[test]
fn derived_file_is_not_older_than_source() {
    let context = Context::new();
    let since = Time::default();
    let one = context.run("echo one >one");
    let other = context.run("echo other >other; sleep 0.3; : >temporary; sleep 0.3; rm temporary");
    for it in [&one, &other] {
        it.date_now(since);
        context.commit(it).expect("nothing has changed");
    }
    let modified = |name: &str| {
        let there = fs::metadata(context.tree().join(name)).expect("it is there");
        there.modified().expect("a time")
    };
    assert!(modified("one") <= modified("other"));
}
