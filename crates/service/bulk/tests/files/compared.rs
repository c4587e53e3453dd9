//! Files that the receiver has in part.

use std::{fs, os::unix::fs::MetadataExt as _};

use bulk::sender;

use crate::host::{Host, SenderWatch, key, pattern, send, settings, source};

fn comparing(key: &channel::Key) -> sender::Settings {
    sender::Settings {
        compares: true,
        ..settings(key)
    }
}

#[test]
fn equal_parts_of_the_older_file_are_not_sent() {
    let key = key();
    let host = Host::start(&key);
    let old = pattern(20_000_003);
    let mut new = old.clone();
    new[5_000_000..5_000_100].fill(7);
    new.extend_from_slice(&[9; 100_000]);
    fs::write(host.path("image"), &old).expect("space");
    let (_directory, path) = source(&new);
    let watch = SenderWatch::new(u64::MAX);
    send(&path, vec![host.to()], &comparing(&key), &watch).expect("stored");
    assert!(fs::read(host.path("image")).expect("a file") == new);
    let present = watch.present();
    assert!(
        present[0] > 19_500_000 && present[0] < 20_000_000,
        "{present:?}"
    );
    // Without the wish for a comparison all is sent.
    fs::write(host.path("image"), &old).expect("space");
    let watch = SenderWatch::new(u64::MAX);
    send(&path, vec![host.to()], &settings(&key), &watch).expect("stored");
    assert_eq!(watch.present(), [0]);
    assert!(fs::read(host.path("image")).expect("a file") == new);
}

#[test]
fn shorter_file_loses_the_rest_of_the_older_file() {
    let key = key();
    let host = Host::start(&key);
    let new = pattern(1_000_001);
    fs::write(host.path("image"), pattern(4_000_000)).expect("space");
    let (_directory, path) = source(&new);
    let watch = SenderWatch::new(u64::MAX);
    send(&path, vec![host.to()], &comparing(&key), &watch).expect("stored");
    assert!(fs::read(host.path("image")).expect("a file") == new);
}

/// An equal file keeps its place on the disk, and gets the attributes of the source.
#[test]
fn equal_file_is_not_written() {
    let key = key();
    let host = Host::start(&key);
    let data = pattern(5_000_000);
    let (_directory, path) = source(&data);
    let watch = SenderWatch::new(u64::MAX);
    send(&path, vec![host.to()], &settings(&key), &watch).expect("stored");
    let before = fs::metadata(host.path("image")).expect("a file");
    // Size and time are those of the source: the receiver compares by itself.
    let watch = SenderWatch::new(u64::MAX);
    send(&path, vec![host.to()], &settings(&key), &watch).expect("stored");
    assert_eq!(watch.present(), [5_000_000]);
    let after = fs::metadata(host.path("image")).expect("a file");
    assert_eq!(
        (after.ino(), after.mtime_nsec()),
        (before.ino(), before.mtime_nsec())
    );
    assert!(
        !host.path(".outlive-partial").exists(),
        "nothing is left behind"
    );
    // With other bytes of the same size and time, nothing is taken for equal.
    let mut other = data.clone();
    other[4_000_000] ^= 1;
    fs::write(host.path("image"), &other).expect("space");
    let file = fs::File::options()
        .write(true)
        .open(host.path("image"))
        .expect("a file");
    file.set_modified(before.modified().expect("a time"))
        .expect("a time");
    let watch = SenderWatch::new(u64::MAX);
    send(&path, vec![host.to()], &settings(&key), &watch).expect("stored");
    assert!(fs::read(host.path("image")).expect("a file") == data);
}
