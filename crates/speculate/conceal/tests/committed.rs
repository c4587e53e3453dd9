//! What is there when programs have been mandated, beside what they would have made. Needs root and `/dev/fuse`.

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
fn an_empty_directory_is_as_old_as_it_was_when_it_was_made() {
    let ground = Context::new();
    let it = ground.run("mkdir obj; sleep 0.05; : >stamp");
    thread::sleep(Duration::from_millis(50));
    ground.commit(&it).expect("nothing has changed");
    let modified = |name: &str| {
        let there = fs::metadata(ground.tree().join(name)).expect("it is there");
        there.modified().expect("a time")
    };
    assert!(modified("obj") < modified("stamp"));
}

/// Another directory, with a file in it, and that it is as it was.
fn elsewhere(ground: &Context, act: impl FnOnce(&std::path::Path)) {
    let at = ground.outside();
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
fn who_goes_on_in_a_directory_does_not_where_its_name_leads_then() {
    let ground = Context::new();
    let build = ground.tree().join("build");
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
    let (it, mut child, _) = ground.begin(&script);
    until("it has begun", || {
        it.with_encapsulation(|it| it.effects().len()) >= Some(1)
    });
    ground.commit(&it).expect("nothing has changed");
    elsewhere(&ground, |at| {
        fs::rename(&build, ground.tree().join("moved")).expect("it is there");
        symlink(at, &build).expect("it is gone");
        until("it ends", || {
            let _ = kill_process(Pid::from_child(&child), Signal::CONT);
            child.try_wait().expect("a child").is_some()
        });
    });
}

#[test]
fn what_has_become_a_symbolic_link_is_not_followed() {
    for act in [
        "chmod 700 d/old",
        "echo >d/new",
        "mkdir d/new",
        "echo >>d/old",
        "rm d/old",
    ] {
        for link in ["d", "d/old"] {
            let ground = Context::new();
            let link = ground.tree().join(link);
            fs::create_dir(ground.tree().join("d")).expect("a directory");
            ground.write("d/old", "");
            let it = ground.run(act);
            let read = it.with_encapsulation(|it| it.inputs().clone());
            elsewhere(&ground, |at| {
                fs::rename(&link, ground.tree().join("moved")).expect("it is there");
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

/// In a thread with mounts of its own.
fn apart(test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let test = scope.spawn(|| {
            // SAFETY: the thread that works has a file system context of its own; nothing of it is handed on.
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
fn file_systems_around_need_no_files_without_names() {
    apart(|| {
        let ground = Context::new();
        let at = ground.outside();
        fs::create_dir(&at).expect("a directory");
        mount("mqueue", &at, "mqueue", MountFlags::empty(), None).expect("root");
        fs::write(at.join("old"), "").expect("a queue");
        let script = format!("cd {}; touch new; rm old; touch new", at.display());
        let (it, mut child, calls) = ground.begin(&script);
        until("it waits", || !calls.waiting().is_empty());
        ground.commit(&it).expect("nothing has changed");
        ground.may_change.store(true, Ordering::Release);
        calls.release();
        assert!(child.wait().expect("it ends").success());
        assert!(at.join("new").exists() && !at.join("old").exists());
        unmount(&at, UnmountFlags::DETACH).expect("it is mounted");
    });
}

/// A script, run above what another one has made so far.
fn above(ground: &Context, it: &Concealment, script: &str) -> Concealment {
    let snapshot = it.with_encapsulation(Encapsulation::snapshot);
    let base = Arc::new(snapshot.expect("it is one"));
    let hidden = Arc::clone(ground.world.hidden());
    ground.run_in(Encapsulation::new(base, hidden as _), script)
}

#[test]
fn who_has_taken_up_a_move_sees_what_was_moved_as_it_is() {
    let ground = Context::new();
    let (it, mut child, _) = ground.begin(
        "mkdir tmp; echo 1 >tmp/a; cat tmp/a; [ ! -e tmp/b ]; : >begun; kill -STOP $$; cat out/a out/b >said",
    );
    until("it has begun", || {
        it.with_encapsulation(|it| it.effects().len()) >= Some(3)
    });
    let other = above(
        &ground,
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
    ground.commit(&it).expect("nothing has changed");
    let said = fs::read_to_string(ground.tree().join("said"));
    assert_eq!(said.expect("it was said"), "two\nthree\n");
}

#[test]
fn a_date_is_no_change_of_what_others_have_made() {
    let ground = Context::new();
    let made = ground.run("echo 1 >f");
    let dated = above(&ground, &made, "touch -c f");
    let read = above(&ground, &dated, "cat f");
    let late = above(&ground, &dated, "cat f");
    for it in [made, dated, read] {
        ground.commit(&it).expect("nothing has changed");
    }
    ground.write("f", "2\n");
    assert!(ground.commit(&late).is_err());
}

#[test]
fn who_has_a_file_open_is_told_of_what_others_write_to_it() {
    let ground = Context::new();
    ground.write("log", "1");
    let size = "stat -L -c %s /dev/fd/3 >>said";
    let (it, mut child, _) = ground.begin(&format!(
        "exec 3<log; {size}; : >begun; until [ -e go ]; do sleep 0.01; done; {size}"
    ));
    until("it has begun", || {
        it.with_encapsulation(|it| it.effects().len()) >= Some(2)
    });
    ground.commit(&it).expect("nothing has changed");
    ground.write("log", "12");
    ground.write("go", "");
    assert!(child.wait().expect("it ends").success());
    let said = fs::read_to_string(ground.tree().join("said"));
    assert_eq!(said.expect("it was said"), "1\n2\n");
}

#[test]
fn what_has_no_name_any_more_has_attributes() {
    let ground = Context::new();
    for name in ["f1", "f2"] {
        ground.write(name, "");
    }
    for name in ["d1", "d2"] {
        fs::create_dir(ground.tree().join(name)).expect("a directory");
    }
    let gone = "for d in $n.d d$n; do (cd $d; rmdir ../$d; stat -c %F,%h .); done; : >$n.f; for f in $n.f f$n; do exec 3<$f; rm $f; chmod 604 /dev/fd/3; stat -L -c %a /dev/fd/3; done";
    let (it, mut child, _) = ground.begin(&format!(
        "mkdir 1.d 2.d; n=1; {{ {gone}; }} >said; : >begun; until [ -e go ]; do sleep 0.01; done; n=2; {{ {gone}; }} >>said"
    ));
    until("it has begun or ended", || {
        let begun = TreePath::new("0/begun").expect("a path");
        let seen = it.with_encapsulation(|it| it.peek().look(&begun));
        matches!(seen, Some(Ok(Seen::There(_)))) || child.try_wait().expect("a child").is_some()
    });
    ground.commit(&it).expect("nothing has changed");
    ground.write("go", "");
    assert!(child.wait().expect("it ends").success());
    let said = fs::read_to_string(ground.tree().join("said"));
    let each = "directory,0\ndirectory,0\n604\n604\n";
    assert_eq!(said.expect("it was said"), each.repeat(2));
}

#[test]
fn what_is_of_tomorrow_does_not_keep_the_rest_from_being_dated() {
    let ground = Context::new();
    let began = Instant::now();
    let it = ground.run(": >a; mkdir d; ln -s a s; touch -d tomorrow lease");
    let took = began.elapsed();
    ground.write("saved", "");
    // Longer than that took, by more than a tick of the file clock: distances stay as they are.
    thread::sleep(took + Duration::from_millis(50));
    it.date_now(Time::default());
    ground.commit(&it).expect("nothing has changed");
    let modified = |name: &str| {
        let there = fs::symlink_metadata(ground.tree().join(name)).expect("it is there");
        there.modified().expect("a time")
    };
    for name in ["a", "d", "s"] {
        assert!(modified(name) > modified("saved"), "{name}");
    }
    assert!(modified("lease") > SystemTime::now());
}

#[test]
fn a_directory_that_is_read_again_is_read_as_it_is_then() {
    let ground = Context::new();
    let script = r#"
        opendir D, "." or die; readdir D; open F, ">new" or die; rewinddir D;
        print grep { $_ eq "new" } readdir D;
    "#;
    let it = ground.run(&format!("perl -e '{script}' >said"));
    ground.commit(&it).expect("nothing has changed");
    let said = fs::read_to_string(ground.tree().join("said"));
    assert_eq!(said.expect("it was said"), "new");
}

#[test]
fn there_is_as_much_room_as_where_it_is() {
    apart(|| {
        let ground = Context::new();
        let (within, around) = (ground.tree().join("m"), ground.outside());
        for at in [&within, &around] {
            fs::create_dir(at).expect("a directory");
            mount("tmpfs", at, "tmpfs", MountFlags::empty(), Some(c"size=1m")).expect("root");
        }
        let told = format!(": >m/f; stat -f -c %b m m/f {0} .", around.display());
        let it = ground.run(&format!("{{ {told}; }} >said"));
        ground.commit(&it).expect("nothing has changed");
        let plain = Command::new("sh")
            .args(["-ec", &told])
            .current_dir(ground.tree())
            .output();
        let said = fs::read(ground.tree().join("said")).expect("it was said");
        assert_eq!(said, plain.expect("sh").stdout);
        for at in [&within, &around] {
            unmount(at, UnmountFlags::DETACH).expect("it is mounted");
        }
    });
}

/// Two that have taken over what a third one has made; the tree when the first one has been mandated, and something
/// was done since.
fn committed_twice(since: impl FnOnce(&Context)) -> (Context, Result<usize, CommitError>) {
    let ground = Context::new();
    let made = ground.run("echo made >out");
    let above = || {
        let above = ground.run(":");
        above.with_encapsulation(|above| {
            let absorbed = made.with_encapsulation(|made| above.absorb(made, Time::default()));
            absorbed
                .expect("it is concealed")
                .expect("nothing is there yet");
        });
        above
    };
    let (one, other) = (above(), above());
    ground.commit(&one).expect("nothing has changed");
    since(&ground);
    let committed = ground.commit(&other);
    (ground, committed)
}

#[test]
fn what_had_a_name_before_is_shown_as_a_file_of_its_own() {
    let (ground, committed) = committed_twice(|ground| {
        let [out, kept] = ["out", "kept"].map(|name| ground.tree().join(name));
        fs::rename(out, kept).expect("it is there");
    });
    committed.expect("it is as it was");
    for name in ["out", "kept"] {
        let path = ground.tree().join(name);
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "made\n");
        assert_eq!(fs::metadata(&path).expect("it is there").nlink(), 1);
    }
    let (ground, committed) = committed_twice(|ground| {
        fs::remove_file(ground.tree().join("out")).expect("it is there");
    });
    committed.expect("it is as it was");
    let out = fs::read_to_string(ground.tree().join("out"));
    assert_eq!(out.expect("it is there"), "made\n");
}

#[test]
fn what_somebody_has_written_to_is_not_shown_for_what_was_made() {
    let (ground, committed) = committed_twice(|ground| {
        thread::sleep(Duration::from_millis(20));
        let [out, kept] = ["out", "kept"].map(|name| ground.tree().join(name));
        let mut file = fs::File::options().append(true).open(&out).expect("a file");
        file.write_all(b"more\n").expect("room");
        fs::rename(out, kept).expect("it is there");
    });
    assert!(
        matches!(committed, Err(CommitError::Stale(_))),
        "{committed:?}"
    );
    assert!(!ground.tree().join("out").exists());
}

/// What is made of what another one has made is not older, however long the other one took for the rest.
#[test]
fn what_is_made_of_another_is_not_older() {
    let ground = Context::new();
    let since = Time::default();
    let one = ground.run("echo one >one");
    let other = ground.run("echo other >other; sleep 0.3; : >temporary; sleep 0.3; rm temporary");
    for it in [&one, &other] {
        it.date_now(since);
        ground.commit(it).expect("nothing has changed");
    }
    let modified = |name: &str| {
        let there = fs::metadata(ground.tree().join(name)).expect("it is there");
        there.modified().expect("a time")
    };
    assert!(modified("one") <= modified("other"));
}
