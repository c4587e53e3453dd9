//! Random histories of real calls, each twice: in a concealing file system and in an equal directory. The answers of
//! the calls must be the same, and so must the trees: before, after, and at each commit. Needs root.

mod acts;
mod histories;
mod side;

use std::{
    fs,
    path::{Path, PathBuf},
};

use proptest::prelude::*;
use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};

use acts::{Act, MOUNT_NAME, act};
use histories::{apart, history, history_with, one};

#[test]
fn file_without_first_name_changes_under_second() {
    let path = PathBuf::from;
    let before = [
        Act::Create(path("a"), 0o600),
        Act::Link(path("a"), path("b")),
    ];
    let both = Act::Through(path("a"));
    let unlinked = |then| Act::Then(Box::new(Act::Unlink(path("b"))), Box::new(then));
    let made_anew = |then| {
        let create = Act::Create(path("b"), 0o600);
        unlinked(Act::Then(Box::new(create), Box::new(then)))
    };
    for then in [Act::Times(path("a"), 7), Act::Cut(path("a"), 1)] {
        one(&before, &[both.clone(), unlinked(then.clone())]);
        one(&before, &[both.clone(), made_anew(then.clone())]);
        one(&before, &[both.clone(), Act::Commit, made_anew(then)]);
    }
}

#[test]
fn directory_times_equal_the_kernels() {
    let path = PathBuf::from;
    let (in_it, also) = (path("d/a"), path("d/b"));
    let made = [Act::Directory(path("d")), Act::Create(in_it.clone(), 0o600)];
    let dated = [&made[..], &[Act::Times(path("d"), 7)]].concat();
    for then in [
        Act::Append(in_it.clone()),
        Act::Create(also.clone(), 0o600),
        Act::Mode(path("d"), 0o700),
        Act::Rename(path("d"), path("e"), 0),
        Act::Rename(in_it.clone(), path("a"), 0),
        Act::Unlink(in_it),
    ] {
        let again = Act::Times(path("d"), 8);
        one(&dated, &[then.clone(), again.clone()]);
        one(&dated, std::slice::from_ref(&then));
        one(&[], &[&dated[..], &[then.clone(), again]].concat());
        one(&[], &[&dated[..], &[then]].concat());
    }
}

#[test]
fn open_unlinked_file_has_attributes() {
    let path = PathBuf::from;
    let before = [Act::Create(path("b"), 0o600)];
    let acts = [
        Act::Commit,
        Act::Open(1, path("b"), false),
        Act::Unlink(path("b")),
        Act::ReadOpen(1),
        Act::ModeOpen(1, 0o640),
        Act::Create(path("b"), 0o600),
        Act::ReadOpen(1),
        Act::ModeOpen(1, 0o604),
    ];
    one(&before, &acts);
    one(&[], &[&before[..], &acts].concat());
}

#[test]
fn replaced_symlink_leads_nowhere() {
    let path = PathBuf::from;
    let acts = [
        Act::Unlink(path("a")),
        Act::Directory(path("a")),
        Act::Create(path("a/a"), 0o600),
    ];
    for target in ["a", "/proc"] {
        one(&[Act::Symlink(path(target), path("a"))], &acts);
    }
}

#[test]
fn hard_links_of_fifo_share_attributes() {
    let path = PathBuf::from;
    let acts = [
        Act::Fifo(path("a")),
        Act::Link(path("a"), path("b")),
        Act::Times(path("b"), 1),
        Act::Directory(path("a")),
    ];
    one(&[], &acts);
}

/// Mounts a file system, or a directory from beside, with a file.
fn mount_within(at: &Path, is_own: bool, flags: MountFlags) {
    let from = at.with_extension("from");
    let at = at.join(MOUNT_NAME);
    fs::create_dir(&at).expect("a directory");
    if is_own {
        mount("tmpfs", &at, "tmpfs", MountFlags::empty(), None).expect("root");
    } else {
        fs::create_dir(&from).expect("a directory");
        mount_bind(&from, &at).expect("root");
    }
    fs::write(at.join("f"), "f").expect("a file");
    mount_remount(&at, flags | MountFlags::BIND, c"").expect("it is mounted");
}

#[test]
fn inner_mount_is_its_own_file_system() {
    let path = PathBuf::from;
    let within = |name: &str| path(MOUNT_NAME).join(name);
    let before = [Act::Create(path("a"), 0o600), Act::Directory(path("d"))];
    let acts = [
        Act::Directory(within("e")),
        Act::Directory(within("e/f")),
        Act::Directory(path("d/e")),
        Act::Create(within("e/f/g"), 0o600),
        Act::Mode(within("f"), 0o640),
        Act::Times(within("f"), 7),
        Act::Rename(path("a"), within("e/a"), 0),
        Act::Rename(within("f"), path("d/e/f"), 0),
        Act::Rename(path("a"), within("f"), 2),
        Act::Link(path("a"), within("e/a")),
        Act::RemoveDirectory(path(MOUNT_NAME)),
        Act::Rename(path(MOUNT_NAME), path("n"), 0),
        Act::Rename(path("d"), path(MOUNT_NAME), 0),
        Act::Rename(path("d"), path(MOUNT_NAME), 2),
        Act::Rename(path("a"), path("d/a"), 0),
        Act::Cut(within("f"), 1),
        Act::Append(within("f")),
        Act::Unlink(within("f")),
    ];
    let (writable, read_only) = (MountFlags::empty(), MountFlags::RDONLY);
    let kinds = [
        (true, writable),
        (true, read_only),
        (false, writable),
        (false, read_only),
    ];
    for (is_own, flags) in kinds {
        let mounts = |at: &Path| mount_within(at, is_own, flags);
        apart(|| history_with(&before, &acts, mounts)).expect("it is as it would be");
    }
}

#[test]
fn longest_names_work() {
    let path = PathBuf::from;
    let names = [255, 256, 300].map(|length| path("d").join("n".repeat(length)));
    let acts = names.iter().flat_map(|name| {
        let name = || name.clone();
        [
            Act::Symlink(path("a"), name()),
            Act::Through(name()),
            Act::Rename(path("d/a"), name(), 0),
            Act::Link(path("d/a"), name()),
            Act::Directory(name()),
        ]
    });
    let begin = [Act::Directory(path("d")), Act::Create(path("d/a"), 0o600)];
    one(&[], &begin.into_iter().chain(acts).collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_calls_equal_the_kernels(
        before in prop::collection::vec(act(), 0..30),
        acts in prop::collection::vec(act(), 0..40),
    ) {
        apart(|| history(&before, &acts))?;
    }
}
