//! Trees.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
};

use bulk::sender::{Destination, Sender, Tree, TreeEvent, TreeReport};
use protocol::bulk::{Reason, RelativePath};
use tempfile::TempDir;

use crate::host::{Host, SenderWatch, key, pattern, settings};

/// A tree with all that a tree may have.
fn tree() -> TempDir {
    let tree = tempfile::tempdir().expect("a directory");
    let at = tree.path().join("tree");
    fs::create_dir_all(at.join("a/b/empty")).expect("directories");
    fs::write(at.join("none"), b"").expect("space");
    fs::write(at.join("a/large"), pattern(3_000_001)).expect("space");
    for number in 0..100 {
        let name = at.join(format!("a/b/small-{number:03}"));
        fs::write(name, pattern(number * 777)).expect("space");
    }
    symlink("../large", at.join("a/b/link")).expect("a link");
    fs::set_permissions(at.join("a/b"), fs::Permissions::from_mode(0o750)).expect("permissions");
    fs::set_permissions(at.join("a/large"), fs::Permissions::from_mode(0o640))
        .expect("permissions");
    tree
}

fn send_tree(
    path: &Path,
    host: &Host,
    name: Option<&str>,
    key: &channel::Key,
) -> (TreeReport, Vec<String>) {
    let (settings, watch) = (settings(key), SenderWatch::new(u64::MAX));
    let name = name.map(|name| RelativePath::new(name.as_bytes()).expect("a path"));
    let destination = Destination { name, ..host.to() };
    let mut news = Vec::new();
    let tree = Tree::open(path).expect("readable").expect("a directory");
    let report =
        Sender::new(vec![destination], &settings, &watch).send_tree(
            tree,
            &mut |event| match event {
                TreeEvent::Skipped { path, reason } => {
                    news.push(format!("{}: {reason}", path.display()))
                }
                TreeEvent::Unreadable { path, error } => {
                    news.push(format!("{}: {error}", path.display()))
                }
                TreeEvent::NotStored { name, error, .. } => news.push(format!("{name:?}: {error}")),
                TreeEvent::Begins(_) | TreeEvent::Progress(_) => {}
            },
        );
    (report, news)
}

/// Both have the same names, contents, permissions and times.
fn assert_equal(here: &Path, there: &Path) {
    let metadata = |path: &Path| {
        let it = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let is_link = it.is_symlink();
        // The time of a link is that of its making.
        let time = (!is_link).then(|| (it.mtime(), it.mtime_nsec()));
        (it.file_type(), it.mode(), time)
    };
    assert_eq!(metadata(here), metadata(there), "{there:?}");
    if here.is_symlink() {
        assert_eq!(
            fs::read_link(here).expect("a link"),
            fs::read_link(there).expect("a link")
        );
    } else if here.is_dir() {
        let names = |path: &Path| {
            let entries = fs::read_dir(path).expect("readable");
            let mut names: Vec<_> = entries
                .map(|it| it.expect("an entry").file_name())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(here), names(there), "{there:?}");
        for name in names(here) {
            assert_equal(&here.join(&name), &there.join(&name));
        }
    } else {
        assert!(
            fs::read(here).expect("readable") == fs::read(there).expect("readable"),
            "{there:?}"
        );
    }
}

#[test]
fn tree_arrives_as_it_is_and_a_second_time() {
    let (key, tree) = (key(), tree());
    let host = Host::start(&key);
    for _ in 0..2 {
        let (report, news) = send_tree(&tree.path().join("tree"), &host, None, &key);
        assert_eq!(news, Vec::<String>::new());
        let expected = TreeReport {
            files: 102,
            bytes: 3_000_001 + (0..100).map(|number| number * 777).sum::<u64>(),
            directories: 4,
            links: 1,
            skipped: 0,
            failed: 0,
        };
        assert_eq!(report, expected);
        assert_equal(&tree.path().join("tree"), &host.path("tree"));
        assert!(
            !host.path(".outlive-partial").exists(),
            "nothing is left behind"
        );
    }
}

#[test]
fn name_of_a_destination_stands_for_the_name_of_the_tree() {
    let (key, tree) = (key(), tree());
    let host = Host::start(&key);
    let (report, _) = send_tree(&tree.path().join("tree"), &host, Some("x/y"), &key);
    assert_eq!(report.failed, 0);
    assert_equal(&tree.path().join("tree"), &host.path("x/y"));
}

#[test]
fn parts_that_cannot_be_sent_are_named_and_cost_no_other_part() {
    let (key, tree) = (key(), tree());
    let host = Host::start(&key);
    let at = tree.path().join("tree");
    symlink("/etc/passwd", at.join("absolute")).expect("a link");
    symlink("../../out", at.join("out")).expect("a link");
    let _socket = std::os::unix::net::UnixListener::bind(at.join("socket")).expect("a socket");
    fs::write(at.join("bad\nname"), b"x").expect("space");
    // A directory of the receiver has the name of a file.
    fs::create_dir_all(host.path("tree/none/directory")).expect("directories");
    let (report, news) = send_tree(&at, &host, None, &key);
    assert_eq!((report.skipped, report.failed), (3, 2), "{news:?}");
    assert_eq!(report.files, 102);
    let named = ["absolute", "out", "socket", "bad", "none"];
    for name in named {
        assert!(
            news.iter().any(|news| news.contains(name)),
            "{name}: {news:?}"
        );
    }
    assert_equal(&at.join("a"), &host.path("tree/a"));
    assert!(!host.path("tree/absolute").exists() && !host.path("tree/out").exists());
}

/// As after an attempt whose last answers were lost: equal small parts count as stored.
#[test]
fn equal_parts_are_no_error_where_no_file_is_replaced() {
    let (key, tree) = (key(), tree());
    let host = Host::start_with(&key, |settings| settings.replaces = false);
    let at = tree.path().join("tree");
    for expected in [0, 1] {
        let (report, news) = send_tree(&at, &host, None, &key);
        assert_eq!(report.failed, expected, "{news:?}");
        assert!(
            news.iter().all(|news| news.contains("tree/a/large")),
            "{news:?}"
        );
    }
    fs::write(at.join("none"), b"more").expect("space");
    let (report, news) = send_tree(&at, &host, None, &key);
    assert_eq!(report.failed, 2, "{news:?}");
    assert_eq!(fs::read(host.path("tree/none")).expect("a file"), b"");
}

#[test]
fn tree_beyond_the_quota_is_refused_and_fits_when_files_are_gone() {
    let (key, tree) = (key(), tree());
    let host = Host::start_with(&key, |settings| settings.quota = Some(3_500_000));
    let at = tree.path().join("tree");
    let (report, news) = send_tree(&at, &host, None, &key);
    assert!(report.failed > 0);
    let words = Reason::NoSpace.to_string();
    assert!(
        news.iter()
            .all(|news| news.contains(&words) && news.contains("--quota")),
        "{news:?}"
    );
    for number in 0..100 {
        let _ = fs::remove_file(host.path(&format!("tree/a/b/small-{number:03}")));
        fs::remove_file(at.join(format!("a/b/small-{number:03}"))).expect("it is there");
    }
    let (report, news) = send_tree(&at, &host, None, &key);
    assert_eq!(report.failed, 0, "{news:?}");
    assert_equal(&at, &host.path("tree"));
}
