//! Files from a sender to receivers, on the loopback device.

mod compared;
mod host;
mod trees;

use std::{
    fs,
    io::{Cursor, Write},
    os::unix::fs::{FileExt, MetadataExt},
    thread,
    time::Duration,
};

use bulk::{
    BulkError, receiver,
    sender::{self, CarrierChoice, Destination, Item, Sender},
};
use protocol::bulk::{Reason, RelativePath};

use crate::host::{Host, SenderWatch, Sent, key, pattern, send, settings, source};

fn reason_of(sent: Sent) -> Reason {
    match sent.expect_err("an error").pop() {
        Some((0, BulkError::Rejected { reason, .. })) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn file_arrives_under_its_name_with_its_time() {
    for carrier in [CarrierChoice::Datagrams, CarrierChoice::Stream] {
        let key = key();
        let host = Host::start(&key);
        let data = pattern(3_000_001);
        let (_directory, path) = source(&data);
        let watch = SenderWatch::new(u64::MAX);
        let mut destination = host.to();
        destination.name = Some(RelativePath::new(b"a/disk").expect("a path"));
        let settings = sender::Settings {
            carrier,
            ..settings(&key)
        };
        let report = send(&path, vec![destination], &settings, &watch).expect("stored");
        assert_eq!(report.hash, blake3::hash(&data).to_hex().as_str());
        assert!(fs::read(host.path("a/disk")).expect("a file") == data);
        let [there, here] = [host.path("a/disk"), path].map(|it| fs::metadata(it).expect("a file"));
        assert_eq!(there.mtime_nsec(), here.mtime_nsec());
        assert_eq!(there.mtime(), here.mtime());
        assert!(
            !host.path(".outlive-partial").exists(),
            "nothing is left behind"
        );
    }
}

#[test]
fn data_travels_in_the_stream_if_another_program_has_the_udp_port() {
    let key = key();
    let host = Host::start(&key);
    let _other = std::net::UdpSocket::bind(host.address).expect("a free port");
    let data = pattern(1_000_000);
    let (_directory, path) = source(&data);
    let watch = SenderWatch::new(u64::MAX);
    let automatic = sender::Settings {
        carrier: CarrierChoice::Auto,
        ..settings(&key)
    };
    send(&path, vec![host.to()], &automatic, &watch).expect("stored");
    assert!(fs::read(host.path("image")).expect("a file") == data);
    let refused = send(&path, vec![host.to()], &settings(&key), &watch);
    let refused = refused.expect_err("no port");
    assert!(
        matches!(refused[..], [(0, BulkError::NoDatagrams)]),
        "{refused:?}"
    );
}

#[test]
fn several_receivers_get_a_file_by_tcp() {
    let key = key();
    let hosts = [Host::start(&key), Host::start(&key), Host::start(&key)];
    let data = pattern(9_000_001);
    let (_directory, path) = source(&data);
    let by_tcp = sender::Settings {
        carrier: CarrierChoice::Stream,
        ..settings(&key)
    };
    // The first has a part.
    let watch = SenderWatch::new(3_000_000);
    send(&path, vec![hosts[0].to()], &by_tcp, &watch).expect_err("stopped");
    let watch = SenderWatch::new(u64::MAX);
    let retry = sender::Settings {
        retry: Duration::from_secs(60),
        ..by_tcp
    };
    let all = hosts.iter().map(Host::to).collect();
    send(&path, all, &retry, &watch).expect("stored");
    for host in &hosts {
        assert!(fs::read(host.path("image")).expect("a file") == data);
    }
    // The receiver of the part may hold its lock for a moment.
    let is_lock = |reason: &String| reason.contains("another transfer writes this name");
    let retries = watch.retries();
    assert!(retries.iter().all(is_lock), "{retries:?}");
}

#[test]
fn refusal_of_one_receiver_leaves_the_rest_by_tcp() {
    let key = key();
    let small = Host::start_with(&key, |settings| settings.size_max = Some(1_000_000));
    let large = Host::start(&key);
    let data = pattern(5_000_000);
    let (_directory, path) = source(&data);
    let by_tcp = sender::Settings {
        carrier: CarrierChoice::Stream,
        ..settings(&key)
    };
    let watch = SenderWatch::new(u64::MAX);
    let sent = send(&path, vec![small.to(), large.to()], &by_tcp, &watch);
    let failed = sent.expect_err("one refuses");
    assert!(
        matches!(
            failed[..],
            [(
                0,
                BulkError::Rejected {
                    reason: Reason::TooLarge,
                    ..
                }
            )]
        ),
        "{failed:?}"
    );
    assert!(fs::read(large.path("image")).expect("a file") == data);
    assert!(!small.path("image").exists());
}

/// Both receivers are one host: each has its own name, key and connections.
#[test]
fn host_gets_a_file_under_two_names_by_tcp() {
    let key = key();
    let host = Host::start(&key);
    let data = pattern(5_000_000);
    let (_directory, path) = source(&data);
    let by_tcp = sender::Settings {
        carrier: CarrierChoice::Stream,
        ..settings(&key)
    };
    let named = |name: &str| {
        let mut destination = host.to();
        destination.name = Some(RelativePath::new(name.as_bytes()).expect("a path"));
        destination
    };
    let watch = SenderWatch::new(u64::MAX);
    send(&path, vec![named("a"), named("b")], &by_tcp, &watch).expect("stored");
    for name in ["a", "b"] {
        assert!(fs::read(host.path(name)).expect("a file") == data);
    }
    assert_eq!(watch.retries(), [""; 0]);
}

#[test]
fn file_that_becomes_shorter_is_an_error_by_tcp() {
    let key = key();
    let host = Host::start(&key);
    let (_directory, path) = source(&pattern(20_000_000));
    let by_tcp = sender::Settings {
        carrier: CarrierChoice::Stream,
        rate_max: Some(10_000_000),
        ..settings(&key)
    };
    let watch = SenderWatch::new(u64::MAX);
    let outcome = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(&path, vec![host.to()], &by_tcp, &watch));
        while watch.position.load(std::sync::atomic::Ordering::Relaxed) < 2_000_000 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let file = fs::File::options().write(true).open(&path);
        file.and_then(|it| it.set_len(3_000_000)).expect("shorter");
        sending.join().expect("no panic")
    });
    let failed = outcome.expect_err("the source has changed");
    assert!(
        matches!(failed[..], [(0, BulkError::SourceChanged)]),
        "{failed:?}"
    );
    assert!(!host.path("image").exists());
}

#[test]
fn sender_hears_how_many_packets_were_predicted() {
    let key = key();
    let host = Host::start(&key);
    let (_directory, path) = source(&pattern(3_000_000));
    let watch = SenderWatch::new(u64::MAX);
    let report = send(&path, vec![host.to()], &settings(&key), &watch).expect("stored");
    let (arrived, predicted) = (report.arrived, report.predicted);
    assert_eq!(arrived, report.packets.1, "each packet counts once");
    assert!(
        predicted > 0 && predicted <= arrived,
        "{predicted} of {arrived}"
    );
}

#[test]
fn empty_file_arrives() {
    let key = key();
    let host = Host::start(&key);
    let (_directory, path) = source(b"");
    let watch = SenderWatch::new(u64::MAX);
    send(&path, vec![host.to()], &settings(&key), &watch).expect("stored");
    assert_eq!(fs::read(host.path("image")).expect("a file"), b"");
}

#[test]
fn stopped_transfer_resumes_where_it_was() {
    for carrier in [CarrierChoice::Datagrams, CarrierChoice::Stream] {
        let key = key();
        let host = Host::start(&key);
        let data = pattern(40_000_000);
        let (_directory, path) = source(&data);
        let settings = sender::Settings {
            carrier,
            ..settings(&key)
        };
        let watch = SenderWatch::new(10_000_000);
        let stopped = send(&path, vec![host.to()], &settings, &watch).expect_err("stopped");
        assert!(
            matches!(stopped[..], [(0, BulkError::Stopped)]),
            "{stopped:?}"
        );
        assert!(
            !host.path("image").exists(),
            "no part is visible under the name"
        );
        let watch = SenderWatch::new(u64::MAX);
        // The receiver may hold the lock of the unfinished file for a moment.
        let retry = sender::Settings {
            retry: Duration::from_secs(60),
            ..settings
        };
        send(&path, vec![host.to()], &retry, &watch).expect("stored");
        assert!(
            watch.present().iter().any(|present| *present >= 9_000_000),
            "{:?}",
            watch.present()
        );
        assert!(fs::read(host.path("image")).expect("a file") == data);
    }
}

#[test]
fn changed_source_is_never_mixed_with_an_older_part() {
    let key = key();
    let host = Host::start(&key);
    let data = pattern(20_000_000);
    let (_directory, path) = source(&data);
    let watch = SenderWatch::new(10_000_000);
    send(&path, vec![host.to()], &settings(&key), &watch).expect_err("stopped");
    let mut other = data.clone();
    other[1_000_000] ^= 1;
    fs::write(&path, &other).expect("space");
    let watch = SenderWatch::new(u64::MAX);
    let retry = sender::Settings {
        retry: Duration::from_secs(60),
        ..settings(&key)
    };
    send(&path, vec![host.to()], &retry, &watch).expect("stored");
    assert!(fs::read(host.path("image")).expect("a file") == other);
}

#[test]
fn holes_are_not_sent_and_stay_holes() {
    let key = key();
    let host = Host::start(&key);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disk");
    let size = 1 << 30;
    let file = fs::File::create_new(&path).expect("a file");
    file.set_len(size).expect("a size");
    file.write_all_at(&pattern(100_000), 300 << 20)
        .expect("space");
    let watch = SenderWatch::new(u64::MAX);
    let report = send(&path, vec![host.to()], &settings(&key), &watch).expect("stored");
    assert!(report.packets.0 < 1000, "{report:?}");
    let there = fs::metadata(host.path("disk")).expect("a file");
    assert_eq!(there.len(), size);
    assert!(there.blocks() * 512 < 4 << 20, "{} blocks", there.blocks());
    let mut part = vec![0; 100_000];
    let there = fs::File::open(host.path("disk")).expect("a file");
    there.read_exact_at(&mut part, 300 << 20).expect("bytes");
    assert!(part == pattern(100_000));
}

#[test]
fn rejection_of_one_receiver_does_not_concern_another() {
    let key = key();
    let hosts = [
        Host::start(&key),
        Host::start_with(&key, |settings| settings.size_max = Some(1000)),
        Host::start(&key),
    ];
    let data = pattern(5_000_000);
    let (_directory, path) = source(&data);
    let watch = SenderWatch::new(u64::MAX);
    let to = hosts.iter().map(Host::to).collect();
    let failed = send(&path, to, &settings(&key), &watch).expect_err("a limit");
    let reasons: Vec<_> = failed
        .iter()
        .map(|(receiver, error)| (*receiver, error.code()))
        .collect();
    assert_eq!(reasons, [(1, "rejected")]);
    for host in [&hosts[0], &hosts[2]] {
        assert!(fs::read(host.path("image")).expect("a file") == data);
    }
    assert!(!hosts[1].path("image").exists());
}

#[test]
fn stream_of_unknown_length_arrives() {
    let key = key();
    let host = Host::start(&key);
    let data = pattern(1_000_003);
    let watch = SenderWatch::new(u64::MAX);
    let name = RelativePath::new(b"log").expect("a path");
    let mut item = Item::stream(Box::new(Cursor::new(data.clone())), name);
    let settings = settings(&key);
    let sent = Sender::new(vec![host.to()], &settings, &watch).send(&mut item);
    assert_eq!(sent.expect("stored").size, 1_000_003);
    assert!(fs::read(host.path("log")).expect("a file") == data);
}

#[test]
fn taken_name_and_limit_are_rejected() {
    let key = key();
    let host = Host::start_with(&key, |settings| {
        settings.replaces = false;
        settings.size_max = Some(2000);
    });
    fs::write(host.path("image"), b"older").expect("space");
    let (_directory, path) = source(&pattern(1000));
    let watch = SenderWatch::new(u64::MAX);
    let sent = send(&path, vec![host.to()], &settings(&key), &watch);
    assert_eq!(reason_of(sent), Reason::Taken);
    fs::write(&path, pattern(2001)).expect("space");
    let sent = send(&path, vec![host.to()], &settings(&key), &watch);
    assert_eq!(reason_of(sent), Reason::TooLarge);
    let mut item = Item::stream(
        Box::new(Cursor::new(pattern(2001))),
        RelativePath::new(b"x").expect("a path"),
    );
    let settings = settings(&key);
    let sent = Sender::new(vec![host.to()], &settings, &watch).send(&mut item);
    assert_eq!(reason_of(sent), Reason::TooLarge);
    assert_eq!(fs::read(host.path("image")).expect("a file"), b"older");
    assert!(
        host.events()
            .iter()
            .any(|it| matches!(it, receiver::Event::Rejected { .. }))
    );
}

#[test]
fn wrong_key_and_missing_receiver_are_different_faults() {
    let host = Host::start(&key());
    let (_directory, path) = source(b"data");
    let watch = SenderWatch::new(u64::MAX);
    let mine = settings(&key());
    let failed = send(&path, vec![host.to()], &mine, &watch).expect_err("another key");
    assert_eq!(failed[0].1.fault(), bulk::Fault::Permission, "{failed:?}");
    let closed = Destination {
        address: "127.0.0.1:1".parse().expect("an address"),
        name: None,
    };
    let failed = send(&path, vec![closed], &mine, &watch).expect_err("nobody listens");
    assert_eq!(failed[0].1.fault(), bulk::Fault::Missing, "{failed:?}");
}

#[test]
fn file_that_changes_while_it_is_sent_is_not_stored() {
    let key = key();
    let host = Host::start(&key);
    let (_directory, path) = source(&pattern(1_000_000));
    let mut item = Item::open(&path).expect("a file");
    let mut file = fs::File::options()
        .append(true)
        .open(&path)
        .expect("a file");
    file.write_all(b"more").expect("space");
    let watch = SenderWatch::new(u64::MAX);
    let settings = settings(&key);
    let failed = Sender::new(vec![host.to()], &settings, &watch).send(&mut item);
    let failed = failed.expect_err("another file");
    assert_eq!(failed[0].1.code(), "source_changed");
    assert!(!host.path("image").exists());
}

/// The first of two files is there when the sender ends in the middle of the second.
#[test]
fn receiver_for_one_sender_waits_for_an_unfinished_file() {
    for carrier in [CarrierChoice::Datagrams, CarrierChoice::Stream] {
        let key = key();
        let mut host = Host::start_once(&key);
        let data = pattern(20_000_000);
        let (directory, large) = source(&data);
        let small = directory.path().join("first");
        fs::write(&small, b"small").expect("space");
        let settings = sender::Settings {
            carrier,
            ..settings(&key)
        };
        let watch = SenderWatch::new(2_000_000);
        let mut sender = Sender::new(vec![host.to()], &settings, &watch);
        sender
            .send(&mut Item::open(&small).expect("a file"))
            .expect("stored");
        let stopped = sender.send(&mut Item::open(&large).expect("a file"));
        stopped.expect_err("the sender is stopped");
        drop(sender);
        // Another file is no reason to end, either.
        let whole = SenderWatch::new(u64::MAX);
        send(&small, vec![host.to()], &settings, &whole).expect("stored");
        // Some of the receiver's looks for connections that have ended.
        thread::sleep(Duration::from_millis(300));
        let watch = SenderWatch::new(u64::MAX);
        send(&large, vec![host.to()], &settings, &watch).expect("the receiver is there");
        host.await_end();
        assert!(fs::read(host.path("image")).expect("a file") == data);
    }
}

#[test]
fn fifo_is_refused_without_a_wait() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("fifo");
    let owner = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &path, kind, owner, 0).expect("a FIFO");
    let Err(error) = Item::open(&path) else {
        panic!("a FIFO is no file");
    };
    assert!(error.to_string().contains("standard input"), "{error}");
}

/// The answers of both would come from one port.
#[test]
fn two_names_at_one_host_are_served_by_tcp() {
    let key = key();
    let host = Host::start(&key);
    let data = pattern(3_000_000);
    let (_directory, path) = source(&data);
    let automatic = sender::Settings {
        carrier: CarrierChoice::Auto,
        ..settings(&key)
    };
    let names = ["a", "b"].map(|name| Destination {
        address: host.address,
        name: Some(RelativePath::new(name.as_bytes()).expect("a path")),
    });
    let watch = SenderWatch::new(u64::MAX);
    send(&path, names.into(), &automatic, &watch).expect("stored");
    for name in ["a", "b"] {
        assert!(fs::read(host.path(name)).expect("a file") == data);
    }
    assert!(!watch.lacked_datagrams());
}
