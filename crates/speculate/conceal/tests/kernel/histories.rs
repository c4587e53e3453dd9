//! Both go through the same history.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use conceal::{base_tree::BaseTree, concealment::Concealment, store::Hidden};
use encapsulation::Encapsulation;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use proptest::prelude::*;
use rustix::{
    io::Errno,
    mount::{MountPropagationFlags, mount_change},
    thread::UnshareFlags,
};
use tempfile::TempDir;

use crate::{
    acts::{Act, MOUNT_NAME, SLOT_COUNT},
    side::Side,
};

/// A concealing file system over a directory, in a mount namespace of the calling thread.
pub(crate) struct Mounted {
    system: Concealment,
    session: Option<BackgroundSession>,
    below: Side,
    real: Arc<BaseTree>,
    at: PathBuf,
    over: Arc<AtomicBool>,
}

impl Mounted {
    fn over(path: &Path, below: &Path) -> Self {
        let real = Arc::new(BaseTree::open(&[path.to_owned()]).expect("the tree"));
        let hidden = Arc::new(Hidden::new(Arc::clone(&real)));
        let it = Encapsulation::new(Arc::clone(&real) as _, Arc::clone(&hidden) as _);
        let system = Concealment::new(it, Arc::clone(&real), hidden);
        let mut config = Config::default();
        config.mount_options = vec![MountOption::DefaultPermissions, MountOption::NoDev];
        config.acl = SessionACL::All;
        let session = Session::new(system.clone(), path, &config).expect("a mount");
        let session = Some(session.spawn().expect("a thread"));
        // The directory itself, mounted over the same directory in the tree.
        rustix::mount::mount_bind(path.join("0"), path).expect("it is there");
        let below = Side::new(below);
        // A call that cannot be concealed would wait: the test refuses such calls.
        let over = Arc::new(AtomicBool::new(false));
        let (refusing, ended) = (system.clone(), Arc::clone(&over));
        thread::spawn(move || {
            while !ended.load(Ordering::Acquire) {
                refusing.refuse(|_| true);
                thread::sleep(Duration::from_micros(200));
            }
        });
        Self {
            system,
            session,
            below,
            real,
            at: path.to_owned(),
            over,
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let at = &self.at;
            rustix::mount::unmount(at, rustix::mount::UnmountFlags::empty()).expect("not in use");
            session.umount_and_join().expect("nobody uses it");
            self.over.store(true, Ordering::Release);
        }
    }
}

pub(crate) fn history(before: &[Act], acts: &[Act]) -> Result<(), TestCaseError> {
    history_with(before, acts, |_| {})
}

/// Runs a history after other acts in both directories.
pub(crate) fn history_with(
    before: &[Act],
    acts: &[Act],
    besides: impl Fn(&Path),
) -> Result<(), TestCaseError> {
    let all = TempDir::new_in("/dev/shm").expect("a directory");
    let place = |name: &str| {
        let path = all.path().join(name);
        fs::create_dir(&path).expect("a directory");
        path
    };
    let (tree, beside, again) = (place("tree"), place("beside"), place("again"));
    let mut ours = Side::new(&tree);
    let mut theirs = Side::new(&beside);
    for (number, act) in before.iter().enumerate() {
        let _ = (ours.act(act, number), theirs.act(act, number));
    }
    ours.open = [const { None }; SLOT_COUNT];
    theirs.open = [const { None }; SLOT_COUNT];
    besides(&tree);
    besides(&beside);
    // A mount over the first name does not hide the second name.
    rustix::mount::mount_bind_recursive(&tree, &again).expect("the same tree under another name");
    let mounted = Mounted::over(&tree, &again);
    let outcome = compare(&mounted, &mut ours, &mut theirs, acts);
    ours.open = [const { None }; SLOT_COUNT];
    drop(mounted);
    rustix::mount::unmount(&again, rustix::mount::UnmountFlags::DETACH).expect("it is mounted");
    for within in [tree.join(MOUNT_NAME), beside.join(MOUNT_NAME)] {
        let _ = rustix::mount::unmount(within, rustix::mount::UnmountFlags::empty());
    }
    outcome
}

pub(crate) fn compare(
    mounted: &Mounted,
    ours: &mut Side,
    theirs: &mut Side,
    acts: &[Act],
) -> Result<(), TestCaseError> {
    let untouched = mounted.below.picture();
    let commit = || {
        mounted
            .system
            .commit(&*mounted.real)
            .map_err(|error| TestCaseError::fail(error.to_string()))
    };
    let mut revealed = false;
    for (number, act) in acts.iter().enumerate() {
        if matches!(act, Act::Commit) && !revealed {
            prop_assert_eq!(
                mounted.below.picture(),
                untouched.clone(),
                "something leaked"
            );
            commit()?;
            revealed = true;
        }
        let number = 1000 + number;
        let answer = ours.act(act, number);
        if answer == Err(Errno::PERM) && !matches!(act, Act::Link(..)) {
            // The call cannot be concealed.
            continue;
        }
        prop_assert_eq!(&answer, &theirs.act(act, number), "{:?}", act);
        prop_assert_eq!(ours.picture(), theirs.picture(), "after {:?}", act);
        if revealed {
            prop_assert_eq!(
                mounted.below.picture(),
                theirs.picture(),
                "below, after {:?}",
                act
            );
        }
    }
    if !revealed {
        commit()?;
    }
    prop_assert_eq!(
        mounted.below.picture(),
        theirs.picture(),
        "when all is over"
    );
    Ok(())
}

/// Runs the test in a thread with separate mounts.
pub(crate) fn apart(
    test: impl FnOnce() -> Result<(), TestCaseError> + Send,
) -> Result<(), TestCaseError> {
    thread::scope(|scope| {
        let test = scope.spawn(|| {
            // SAFETY: the thread has a separate file system context, and hands on no part of the context.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }
                .expect("root");
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            mount_change("/", private).expect("mounts of its own");
            test()
        });
        test.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A single history that random tests rarely draw.
pub(crate) fn one(before: &[Act], acts: &[Act]) {
    apart(|| history(before, acts)).expect("it is as it would be");
}
