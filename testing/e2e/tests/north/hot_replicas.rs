//! Hot replicas of other servers than redis: no client sees the takeover.

use std::{sync::Arc, thread, time::Duration};

use e2e::{
    Seed,
    exchange::assert_untouched,
    pair::{FailOver, Pair, addresses, at_addresses},
    servers::{Authority, SERVER_PORT, chat_server, lighttpd_tls, mosquitto, streamer},
};

use super::{
    hot_standby::{await_replica, fail_over_hot, with_follower},
    mosquitto::{QOS_LEVELS, Subscriber, publish},
    streamer::{STREAM_COUNT, read_all},
    tls::use_all,
    websocket::run_clients,
};

/// The service goes from host to host, and each time who has followed goes on.
fn goes_from_host_to_host(pair: &mut Pair, label: &str) {
    let seed = &mut Seed::choose(label);
    await_replica(pair, 1);
    for way in [FailOver::PowerOff, FailOver::Switchover, FailOver::PowerOff] {
        thread::sleep(Duration::from_millis(seed.between(100, 800) as u64));
        fail_over_hot(pair, way);
    }
}

#[test]
fn mosquitto_delivers_each_message_once_by_replica() {
    const MESSAGE_COUNT: usize = 1500;
    let label = "hot-mosquitto";
    let mut pair = with_follower(label, |scene| {
        at_addresses(scene, mosquitto(scene), Some("mosquitto.conf"))
    });
    let (scene, to) = (&Arc::clone(&pair.scene), addresses()[0]);
    let recording = scene.record(SERVER_PORT);
    let subscribers = QOS_LEVELS.map(|quality| Subscriber::of(scene, to, quality, MESSAGE_COUNT));
    thread::scope(|scope| {
        let publishers = QOS_LEVELS
            .map(|quality| scope.spawn(move || publish(scene, to, quality, MESSAGE_COUNT)));
        goes_from_host_to_host(&mut pair, label);
        for publisher in publishers {
            publisher.join().expect("a publisher");
        }
    });
    let expected: Vec<String> = (1..=MESSAGE_COUNT)
        .map(|number| number.to_string())
        .collect();
    for (quality, subscriber) in QOS_LEVELS.iter().zip(&subscribers) {
        assert_eq!(subscriber.ends(), expected, "quality {quality}");
    }
    pair.first.assert_none_of("connection_reset");
    assert_untouched(recording, 6);
    pair.stop();
}

#[test]
fn asyncio_streams_continue_on_replica() {
    let label = "hot-streamer";
    let mut pair = with_follower(label, |scene| at_addresses(scene, streamer(scene), None));
    let scene = &Arc::clone(&pair.scene);
    let recording = scene.record(SERVER_PORT);
    read_all(scene, addresses()[0], || {
        goes_from_host_to_host(&mut pair, label);
    });
    pair.first.assert_none_of("connection_reset");
    assert_untouched(recording, STREAM_COUNT);
    pair.stop();
}

#[test]
fn chat_with_tls_continues_on_replica() {
    let label = "hot-room";
    let mut authority = None;
    let mut pair = with_follower(label, |scene| {
        let server = chat_server(scene, Some(authority.insert(Authority::new(scene))));
        at_addresses(scene, server, None)
    });
    let scene = &Arc::clone(&pair.scene);
    run_clients(scene, addresses()[0], authority.as_ref(), || {
        goes_from_host_to_host(&mut pair, label);
    });
    pair.first.assert_none_of("connection_reset");
    pair.stop();
}

#[test]
fn lighttpd_tls_sessions_continue_on_replica() {
    let label = "hot-lighttpd";
    let mut authority = None;
    let mut pair = with_follower(label, |scene| {
        let server = lighttpd_tls(scene, authority.insert(Authority::new(scene)));
        at_addresses(scene, server, Some("lighttpd.conf"))
    });
    let scene = &Arc::clone(&pair.scene);
    let authority = authority.expect("it was made");
    use_all(scene, addresses()[0], &authority, || {
        goes_from_host_to_host(&mut pair, label);
    });
    pair.first.assert_none_of("connection_reset");
    pair.stop();
}
