use objects::record::RecordKey;
use store::{
    Lookup, ScanPosition, Settings, StoreAcks, StoreClient, Stores, StoresCompletion, StoresEvent,
    StoresOutcome, StoresTicket,
};

use crate::server::{POOL, Server, flow, hash, key, record};

struct Pair {
    stores: Stores<StoreClient>,
    events: Vec<StoresEvent>,
}

impl Pair {
    fn new(urls: &[String], acks: StoreAcks) -> Self {
        let limit = std::time::Duration::from_secs(10);
        let settings = Settings {
            time_limit: limit,
            connect_limit: limit,
            ..Settings::default()
        };
        let open = |url: &String| StoreClient::open(&url.parse().unwrap(), settings).unwrap();
        let (all, key) = (urls.iter().map(open).collect(), RecordKey::of(&POOL));
        Self {
            stores: Stores::new(all, key, rand::random, acks),
            events: Vec::new(),
        }
    }

    fn wait(&mut self, ticket: StoresTicket) -> StoresOutcome {
        loop {
            let outcome = |event: &StoresEvent| match event {
                StoresEvent::Completed(StoresCompletion {
                    ticket: own,
                    outcome,
                }) if *own == ticket => Some(outcome.clone()),
                _ => None,
            };
            if let Some(outcome) = self.events.iter().find_map(outcome) {
                return outcome;
            }
            let mut fds: Vec<_> = self
                .stores
                .stores()
                .iter()
                .map(StoreClient::readiness)
                .map(|fd| rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN))
                .collect();
            rustix::event::poll(&mut fds, None).unwrap();
            self.stores.poll(&mut self.events);
        }
    }

    fn put(&mut self, member: &str, generation: u32) -> StoresOutcome {
        let ticket = self
            .stores
            .put(key(member, 1), &record(generation))
            .unwrap();
        self.wait(ticket)
    }

    fn look_up(&mut self) -> StoresOutcome {
        let ticket = self.stores.look_up(&[hash("web1"), hash("web2")], flow(1));
        self.wait(ticket)
    }
}

fn url(scheme: &str, server: &Server) -> String {
    format!("{scheme}://127.0.0.1:{}", server.port)
}

fn newest(member: &str, generation: u32) -> StoresOutcome {
    StoresOutcome::LookUp(Ok(Lookup::Found(
        key(member, 1),
        Box::new(record(generation)),
    )))
}

#[test]
fn record_survives_the_death_of_one_of_two_stores() {
    let (mut redis, memcached) = (Server::redis(&[]), Server::memcached(&["-M"]));
    let mut pair = Pair::new(
        &[url("redis", &redis), url("memcached", &memcached)],
        StoreAcks::Both,
    );
    assert_eq!(pair.look_up(), StoresOutcome::LookUp(Ok(Lookup::Missing)));
    assert_eq!(pair.put("web1", 1), StoresOutcome::Put(Ok(())));
    assert_eq!(pair.put("web2", 2), StoresOutcome::Put(Ok(())));
    assert_eq!(pair.look_up(), newest("web2", 2));
    redis.kill();
    assert_eq!(pair.look_up(), newest("web2", 2));
    assert!(matches!(pair.put("web2", 3), StoresOutcome::Put(Err(_))));
    // The living store has the record all the same: an error means that nobody knows.
    assert_eq!(pair.look_up(), newest("web2", 3));
}

#[test]
fn store_that_lost_its_records_is_behind_the_other() {
    let (mut first, second) = (Server::redis(&[]), Server::redis(&[]));
    let mut pair = Pair::new(
        &[url("redis", &first), url("redis", &second)],
        StoreAcks::First,
    );
    let mut both = Pair::new(
        &[url("redis", &first), url("redis", &second)],
        StoreAcks::Both,
    );
    assert_eq!(both.put("web1", 7), StoresOutcome::Put(Ok(())));
    assert_eq!(pair.look_up(), newest("web1", 7));
    first.restart();
    assert_eq!(pair.look_up(), newest("web1", 7));
    assert_eq!(pair.put("web2", 8), StoresOutcome::Put(Ok(())));
    assert_eq!(pair.look_up(), newest("web2", 8));
}

#[test]
fn record_of_another_pool_is_not_missing() {
    let server = Server::redis(&[]);
    let mut pair = Pair::new(&[url("redis", &server)], StoreAcks::First);
    assert_eq!(pair.put("web1", 1), StoresOutcome::Put(Ok(())));
    // The names of another pool differ; here only the secret does.
    let settings = Settings::default();
    let store = StoreClient::open(&url("redis", &server).parse().unwrap(), settings).unwrap();
    let other = RecordKey::of(&objects::PoolKey([9; 16]));
    let stores = Stores::new(vec![store], other, rand::random, StoreAcks::First);
    let mut other = Pair {
        stores,
        events: Vec::new(),
    };
    let unreadable = other.look_up();
    assert!(
        matches!(
            unreadable,
            StoresOutcome::LookUp(Err(store::Failure::Unreadable(_)))
        ),
        "{unreadable:?}"
    );
}

#[test]
fn records_of_a_dead_member_are_scanned_at_both_stores() {
    let (redis, memcached) = (Server::redis(&[]), Server::memcached(&["-M"]));
    let mut pair = Pair::new(
        &[url("redis", &redis), url("memcached", &memcached)],
        StoreAcks::Both,
    );
    assert_eq!(pair.put("web1", 1), StoresOutcome::Put(Ok(())));
    let (mut position, mut found, mut failures) =
        (Some(ScanPosition::START), Vec::new(), Vec::new());
    while let Some(at) = position {
        let ticket = pair.stores.scan(hash("web1"), at);
        let StoresOutcome::Page(page) = pair.wait(ticket) else {
            panic!("no page")
        };
        position = page.next;
        found.extend(page.records);
        failures.extend(page.failure);
    }
    assert_eq!(found, [(key("web1", 1), record(1))]);
    assert_eq!(failures, [store::Failure::Unsupported]);
    let ticket = pair.stores.delete(key("web1", 1));
    assert_eq!(pair.wait(ticket), StoresOutcome::Deleted(Ok(true)));
    assert_eq!(pair.look_up(), StoresOutcome::LookUp(Ok(Lookup::Missing)));
}
