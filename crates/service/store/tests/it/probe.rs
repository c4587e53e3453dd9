use store::{Failure, Probe, Product, Settings, StoreUrl, probe};

use crate::server::Server;

fn ask(scheme: &str, server: &Server) -> Result<Probe, Failure> {
    let url: StoreUrl = format!("{scheme}://127.0.0.1:{}", server.port)
        .parse()
        .unwrap();
    probe(&url, Settings::default())
}

#[test]
fn redis_tells_version_and_eviction() {
    let keeps = Server::redis(&["--maxmemory-policy", "noeviction"]);
    let about = ask("redis", &keeps).unwrap();
    assert_eq!(
        (about.product, about.evicts(), about.memory_limit),
        (Product::Redis, Some(false), None)
    );
    assert!(
        about
            .version
            .is_some_and(|version| version.split('.').count() == 3)
    );
    assert!(!about.round_trip.is_zero());
    let evicts = Server::redis(&["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"]);
    let about = ask("valkey", &evicts).unwrap();
    assert_eq!(
        (about.eviction.as_deref(), about.evicts()),
        (Some("allkeys-lru"), Some(true))
    );
    assert_eq!(about.memory_limit, Some(64 << 20));
}

#[test]
fn memcached_tells_version_and_eviction() {
    let keeps = Server::memcached(&["-M", "-m", "16"]);
    let about = ask("memcached", &keeps).unwrap();
    assert_eq!(
        (about.product, about.evicts(), about.memory_limit),
        (Product::Memcached, Some(false), Some(16 << 20))
    );
    assert!(
        about
            .version
            .is_some_and(|version| version.starts_with("1."))
    );
    let evicts = ask("memcached", &Server::memcached(&[])).unwrap();
    assert_eq!(evicts.evicts(), Some(true));
}

#[test]
fn program_with_another_protocol_is_no_store() {
    let (redis, memcached) = (Server::redis(&[]), Server::memcached(&[]));
    for refused in [ask("redis", &memcached), ask("memcached", &redis)] {
        assert!(
            matches!(refused, Err(Failure::Unreachable(_))),
            "{refused:?}"
        );
    }
}

#[test]
fn absent_store_cannot_be_reached() {
    let mut server = Server::redis(&[]);
    server.kill();
    assert!(matches!(
        ask("redis", &server),
        Err(Failure::Unreachable(_))
    ));
}
