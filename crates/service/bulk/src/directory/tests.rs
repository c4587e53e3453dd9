use std::{
    fs,
    io::Write,
    os::unix::fs::{PermissionsExt, symlink},
};

use super::*;

fn path(text: &str) -> RelativePath {
    RelativePath::new(text.as_bytes()).expect("a path")
}

const PLAIN: Attributes = Attributes {
    permissions: 0o4755,
    modified_ns: 1_500_000_000_000_000_007,
    is_durable: true,
    replaces: true,
};

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let names = entries.map(|it| it.expect("an entry").file_name().display().to_string());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn file_appears_when_it_is_whole() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = Directory::open(root.path()).expect("a directory");
    let name = path("a/b/image");
    let partial = directory.partial(&name, true).expect("a part");
    (&partial.file).write_all(b"data").expect("space");
    // Not even the directories.
    assert_eq!(names(root.path()), [STAGING_NAME]);
    directory.commit(&partial, &name, PLAIN).expect("a name");
    let file = root.path().join("a/b/image");
    assert_eq!(fs::read(&file).expect("a file"), b"data");
    let metadata = fs::metadata(&file).expect("a file");
    assert_eq!(
        metadata.permissions().mode() & 0o7000,
        0,
        "no set-user-ID bit"
    );
    let modified = metadata.modified().expect("a time");
    let since = modified
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970");
    assert_eq!(since.as_nanos(), u128::from(PLAIN.modified_ns));
    assert_eq!(names(root.path()), ["a"]);
}

#[test]
fn part_of_an_earlier_attempt_is_found_and_locked() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = Directory::open(root.path()).expect("a directory");
    let first = directory.partial(&path("image"), true).expect("a part");
    (&first.file).write_all(b"half").expect("space");
    let busy = directory
        .partial(&path("image"), true)
        .expect_err("one writer a name");
    assert_eq!(busy.reason, Reason::Busy);
    directory
        .partial(&path("images"), true)
        .expect("another name");
    drop(first);
    let second = directory.partial(&path("image"), true).expect("a part");
    assert_eq!(second.file.metadata().expect("a file").len(), 4);
    directory.discard(&second);
    assert!(
        names(&root.path().join(STAGING_NAME))
            .iter()
            .all(|it| it.starts_with("images"))
    );
}

#[test]
fn name_never_leads_through_a_link_or_a_file() {
    let root = tempfile::tempdir().expect("a directory");
    let outside = tempfile::tempdir().expect("a directory");
    symlink(outside.path(), root.path().join("link")).expect("a link");
    fs::write(root.path().join("file"), b"x").expect("a file");
    fs::create_dir(root.path().join("directory")).expect("a directory");
    let directory = Directory::open(root.path()).expect("a directory");
    for (name, reason) in [
        ("link/image", Reason::Place),
        ("link/a/image", Reason::Place),
        ("file/image", Reason::Place),
        ("directory", Reason::Taken),
        (".outlive-partial", Reason::Place),
        (".outlive-partial/image", Reason::Place),
    ] {
        let refused = directory.partial(&path(name), true).expect_err("no place");
        assert_eq!(refused.reason, reason, "{name}: {refused:?}");
    }
    assert_eq!(names(outside.path()), Vec::<String>::new());
}

#[test]
fn link_is_replaced_and_not_followed() {
    let root = tempfile::tempdir().expect("a directory");
    let outside = tempfile::NamedTempFile::new().expect("a file");
    symlink(outside.path(), root.path().join("image")).expect("a link");
    let directory = Directory::open(root.path()).expect("a directory");
    let name = path("image");
    let partial = directory.partial(&name, true).expect("a part");
    (&partial.file).write_all(b"data").expect("space");
    let kept = Attributes {
        replaces: false,
        ..PLAIN
    };
    let taken = directory.commit(&partial, &name, kept).expect_err("taken");
    assert_eq!(taken.reason, Reason::Taken);
    directory.commit(&partial, &name, PLAIN).expect("a name");
    assert_eq!(fs::read(outside.path()).expect("a file"), b"");
    assert!(
        fs::symlink_metadata(root.path().join("image"))
            .expect("a file")
            .is_file()
    );
}

#[test]
fn part_expires_unless_a_transfer_has_it() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = Directory::open(root.path()).expect("a directory");
    let kept = directory.partial(&path("kept"), true).expect("a part");
    drop(directory.partial(&path("left"), true).expect("a part"));
    let day = Duration::from_secs(86_400);
    let now = SystemTime::now();
    assert_eq!(directory.expire(day, now).expect("readable"), 0);
    assert_eq!(directory.expire(day, now + 2 * day).expect("readable"), 1);
    drop(kept);
    assert_eq!(directory.expire(day, now + 2 * day).expect("readable"), 1);
    assert_eq!(names(root.path()), Vec::<String>::new());
}

#[test]
fn expiry_opens_no_link_and_no_fifo() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = Directory::open(root.path()).expect("a directory");
    let staging = root.path().join(STAGING_NAME);
    fs::create_dir(&staging).expect("a directory");
    let outside = root.path().join("outside");
    fs::write(&outside, b"x").expect("space");
    std::os::unix::fs::symlink(&outside, staging.join("x.link")).expect("a link");
    let fifo = staging.join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
    fs::write(staging.join("part"), b"x").expect("space");
    let later = SystemTime::now() + Duration::from_secs(3600);
    let removed = directory.expire(Duration::from_secs(60), later);
    assert_eq!(removed.expect("readable"), 1);
    assert_eq!(names(&staging), ["fifo"]);
    assert!(outside.exists());
}

#[test]
fn bytes_of_unfinished_files_and_files_below_count_as_used() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = Directory::open(root.path()).expect("a directory");
    fs::create_dir(root.path().join("a")).expect("a directory");
    fs::write(root.path().join("a/file"), [0; 10]).expect("space");
    std::os::unix::fs::symlink("/", root.path().join("a/link")).expect("a link");
    let partial = directory.partial(&path("b/c"), true).expect("a part");
    partial.resize(5).expect("space");
    assert_eq!(directory.used_bytes(), 15);
}
