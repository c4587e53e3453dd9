//! A host without any state inherits the records of an earlier instance from the logger.

use logger::{
    durable::RETRY,
    link::{Inherited, NotYet, SILENCE},
};
use proptest::prelude::*;
use protocol::{
    control::{Attach, Recorded, Request},
    link::KeySet,
};
use rand::{Rng, seq::SliceRandom};
use wire::FlowId;

use crate::{
    host::{self, Host},
    lives::{KEEP, Logger, NEW, OLD, listens, newborn, peer, served, upload},
};

#[test]
fn a_new_life_inherits_records_and_not_keys() {
    let mut logger = Logger::new();
    let from = peer(1, 1000);
    let mut host = served(&mut logger, OLD, from, &[5000, 100]);
    upload(&mut logger, &mut host, from);
    logger.ask(OLD, &Request::HoldTurns { hold: true });
    let before = logger.connections(OLD);
    logger.now += SILENCE;
    let again = peer(1, 2000);
    let inherited = logger.inherit(&newborn(NEW), again);
    let expected = Inherited {
        instance: OLD,
        connections: 2,
    };
    assert_eq!(inherited, Ok(Some(expected)));
    let (kept, keys) = logger.attach(&newborn(NEW), again);
    assert!(kept);
    assert_ne!(keys.up, host.keys.up);
    assert_eq!(logger.connections(NEW), before);
    let session = logger.sessions.get(NEW).expect("there");
    assert!(!session.journal().turns_are_held());
    assert_eq!(session.statistics().datagrams, 0);
    // The old instance is not accepted from any address.
    host.connect(3, 100);
    let old_keys = host.open(&host.connections[&FlowId(3)]);
    logger.take(from, std::slice::from_ref(&old_keys));
    assert_eq!(logger.sessions.strangers(), 1);
    logger.take(again, &[old_keys]);
    let session = logger.sessions.get(NEW).expect("there");
    assert_eq!(session.statistics().bad_tags, 1);
    assert_eq!(session.active_at(), None);
    logger.write_all();
    assert!(logger.out.datagrams().is_empty());
    // The new instance is accepted like a fresh instance.
    host.use_keys(keys);
    upload(&mut logger, &mut host, again);
    // The new instance keeps the number and the records.
    assert_eq!(logger.inherit(&newborn(NEW), again), Ok(None));
    assert!(logger.attach(&newborn(NEW), again).0);
    let (kept, _) = logger.attach(&host::attach(OLD, 3000), peer(1, 3000));
    assert!(!kept, "the old number is nobody's");
}

#[test]
fn what_is_inherited_is_so_in_the_log() {
    let mut logger = Logger::new();
    let from = peer(1, 1000);
    let mut host = served(&mut logger, OLD, from, &[5000, 100]);
    upload(&mut logger, &mut host, from);
    let beginnings = |all: &[Recorded]| all.iter().map(|c| c.beginning).collect::<Vec<_>>();
    let before = beginnings(&logger.connections(OLD));
    // The logger was restarted together with the host: no sign of life has arrived.
    let mut instance = OLD;
    for life in 1..4 {
        logger.restart();
        let newer = newborn(instance - 2);
        let again = peer(1, 1000);
        let inherited = logger.inherit(&newer, again).expect("nobody was heard");
        assert_eq!(inherited.map(|earlier| earlier.instance), Some(instance));
        let (kept, keys) = logger.attach(&newer, again);
        assert!(kept);
        host.use_keys(keys);
        instance = newer.instance;
        host.connect(life + 2, 4000);
        upload(&mut logger, &mut host, again);
    }
    logger.restart();
    assert_eq!(logger.sessions.iter().count(), 1);
    let all = logger.connections(instance);
    assert_eq!(beginnings(&all[..2]), before);
    assert_eq!(all.len(), 5);
    for connection in host.connections.values() {
        assert!(logger.read(instance, connection) == connection.data);
    }
}

/// An heir reports recorded bytes to clients: the records must survive the logger.
#[test]
fn what_is_still_being_written_is_not_inherited() {
    let mut logger = Logger::new();
    let from = peer(1, 1000);
    let mut host = served(&mut logger, OLD, from, &[100]);
    let datagrams = host.datagrams(700, 3000);
    logger.take(from, &datagrams);
    logger.now += SILENCE;
    for _ in 0..2 {
        let refused = logger.inherit_now(&newborn(NEW), peer(1, 2000));
        assert!(
            matches!(refused, Err(NotYet::StillWritten { .. })),
            "{refused:?}"
        );
    }
    logger.write_all();
    let inherited = logger.inherit_now(&newborn(NEW), peer(1, 2000));
    assert!(matches!(inherited, Ok(Some(_))), "{inherited:?}");
}

/// The progress is written when there is no other work, and no ACK depends on the progress.
#[test]
fn how_far_clients_have_heard_is_not_waited_for() {
    let mut logger = Logger::new();
    let from = peer(1, 1000);
    let host = served(&mut logger, OLD, from, &[100]);
    logger.take(from, &[listens(&host, FlowId(1), 100_000, 1, 1)]);
    logger.now += SILENCE;
    let inherited = logger.inherit_now(&newborn(NEW), peer(1, 2000));
    assert!(matches!(inherited, Ok(Some(_))), "{inherited:?}");
}

#[test]
fn who_was_heard_of_a_moment_ago_is_not_inherited_from() {
    let mut logger = Logger::new();
    let from = peer(1, 1000);
    let host = served(&mut logger, OLD, from, &[100]);
    let moment = SILENCE / 4;
    let again = peer(1, 2000);
    let refused = |logger: &mut Logger| {
        logger.now += moment;
        let still_served = logger.inherit(&newborn(NEW), again).expect_err("it lives");
        let NotYet::StillServed { instance, ago, .. } = &still_served else {
            panic!("{still_served}");
        };
        assert_eq!((*instance, *ago), (OLD, moment));
        let told = still_served.to_string();
        for part in ["test", "192.0.2.1", "0000000000000009", "250 ms"] {
            assert!(told.contains(part), "{told}");
        }
        logger.now += SILENCE;
    };
    refused(&mut logger);
    let listening = listens(&host, FlowId(1), 0, 1, 1);
    logger.take(from, &[listening]);
    refused(&mut logger);
    let now = logger.now;
    logger
        .sessions
        .get_mut(OLD)
        .expect("there")
        .on_activity(now);
    refused(&mut logger);
    // No record has changed: the old instance continues.
    let listening = listens(&host, FlowId(1), 70_000, 2, 2);
    logger.take(from, &[listening]);
    assert_eq!(logger.connections(OLD)[0].acknowledged, 70_000);
    logger.now += SILENCE;
    assert!(
        logger
            .inherit(&newborn(NEW), again)
            .is_ok_and(|earlier| earlier.is_some())
    );
}

#[test]
fn nobody_inherits_from_others() {
    let mut logger = Logger::new();
    let from = peer(1, 1000);
    served(&mut logger, OLD, from, &[100]);
    logger.now += SILENCE;
    for _ in 0..2 {
        let another = Attach {
            service: "another".into(),
            ..newborn(NEW)
        };
        assert_eq!(logger.inherit(&another, from), Ok(None));
        assert_eq!(logger.inherit(&newborn(NEW), peer(2, 1000)), Ok(None));
        let not_so = host::attach(NEW, 1000);
        assert_eq!(logger.inherit(&not_so, from), Ok(None));
        // Another host behind the same address, with a different key.
        logger.key = "theirs".into();
        assert_eq!(logger.inherit(&newborn(NEW), from), Ok(None));
        logger.key = "ours".into();
        assert_eq!(logger.connections(OLD).len(), 1);
        logger.restart();
    }
    // A service that has ended leaves no records.
    logger.sessions.end(OLD);
    assert_eq!(logger.inherit(&newborn(NEW), from), Ok(None));
}

/// A service whose key is replaced attaches with the new key, and so does the next instance.
#[test]
fn a_key_that_was_replaced_is_the_key() {
    let mut logger = Logger::new();
    let from = peer(1, 1000);
    served(&mut logger, OLD, from, &[100]);
    logger.key = "a newer one".into();
    assert!(logger.attach(&host::attach(OLD, 1000), from).0);
    logger.now += SILENCE;
    logger.write_all();
    for _ in 0..2 {
        logger.key = "ours".into();
        assert_eq!(logger.inherit(&newborn(NEW), from), Ok(None));
        logger.restart();
    }
    logger.key = "a newer one".into();
    let inherited = logger.inherit(&newborn(NEW), from);
    assert!(matches!(inherited, Ok(Some(_))), "{inherited:?}");
}

#[test]
fn the_newest_of_several_lives_is_inherited_from() {
    for restarted in [false, true] {
        let mut logger = Logger::new();
        let from = peer(1, 1000);
        // The instance numbers are in no order.
        for (instance, connections) in [(30, 1), (10, 3), (20, 2)] {
            served(&mut logger, instance, from, &vec![10; connections]);
            logger.sessions.detach(instance, logger.now);
        }
        let again = host::attach(10, 1000);
        assert!(logger.attach(&again, from).0);
        logger.now += SILENCE;
        if restarted {
            logger.restart();
        }
        let inherited = logger.inherit(&newborn(NEW), from);
        let expected = Inherited {
            instance: 10,
            connections: 3,
        };
        assert_eq!(inherited, Ok(Some(expected)));
        logger.attach(&newborn(NEW), from);
        assert_eq!(logger.connections(30).len(), 1);
        assert_eq!(logger.connections(20).len(), 2);
        let forgotten = logger.sessions.tidy(logger.now + KEEP, &mut logger.out);
        let forgotten: Vec<u64> = forgotten.iter().map(|gone| gone.instance).collect();
        assert_eq!(forgotten, [20, 30]);
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Connect(u16),
    Traffic,
    Write,
    /// The oldest connection ends.
    Close,
    /// The host of the service restarts.
    Reboot,
    /// The logger restarts, or logger and host do.
    Die {
        both: bool,
    },
    /// The storage fails; a new log begins later.
    Fail,
    Later,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0u16..5000).prop_map(Step::Connect),
        8 => Just(Step::Traffic),
        8 => Just(Step::Write),
        1 => Just(Step::Close),
        2 => Just(Step::Reboot),
        1 => any::<bool>().prop_map(|both| Step::Die { both }),
        1 => Just(Step::Fail),
        1 => Just(Step::Later),
    ]
}

/// A logger, and a serving host that keeps the connections over several instances, as if a recovery took no time.
struct World {
    logger: Logger,
    host: Host,
    instance: u64,
    next_flow: u64,
    /// All acknowledged bytes are durable.
    durable: bool,
}

impl World {
    fn attach(&mut self) {
        let (attach, from) = (newborn(self.instance), peer(1, 1000));
        self.logger.now += SILENCE;
        self.logger.inherit(&attach, from).expect("it was silent");
        let (_, keys) = self.logger.attach(&attach, from);
        self.host.down = KeySet::EMPTY;
        self.host.use_keys(keys);
        self.check();
    }

    /// All acknowledged bytes are recorded for the current instance.
    fn check(&mut self) {
        assert_eq!(self.logger.sessions.iter().count(), 1);
        let opened: Vec<_> = self
            .host
            .connections
            .values()
            .filter(|c| c.opened)
            .collect();
        for connection in opened {
            let read = self.logger.read(self.instance, connection);
            assert!(connection.data.starts_with(&read));
            assert!(read.len() >= connection.stable.min(connection.data.len()));
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Connect(len) => {
                self.next_flow += 1;
                self.host.connect(self.next_flow, usize::from(len));
            }
            Step::Traffic => {
                let mut datagrams = self.host.datagrams(700, 3000);
                datagrams.extend(self.host.datagrams(700, 3000));
                datagrams.shuffle(&mut self.host.random);
                self.logger.take(peer(1, 1000), &datagrams);
            }
            Step::Write => self.logger.write(),
            Step::Close => {
                if let Some((flow, _)) = self.host.connections.pop_first() {
                    self.logger.close(self.instance, flow);
                }
            }
            Step::Reboot => {
                // Instance numbers are in no order.
                self.instance = self.host.random.random();
                self.attach();
            }
            Step::Die { both } if self.durable => {
                let random = &mut self.host.random;
                self.logger.die(|below| random.random_range(0..below));
                if both {
                    self.instance = self.host.random.random();
                }
                self.attach();
            }
            Step::Die { .. } => {}
            Step::Fail => {
                self.durable = false;
                self.logger.log.storage().fail_after(Some(0));
            }
            Step::Later => {
                self.logger.log.storage().fail_after(None);
                self.logger.now += RETRY;
                self.logger.order();
            }
        }
        self.logger.tell(&mut self.host);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Host and logger may die at any step: each instance inherits the records.
    #[test]
    fn records_go_from_life_to_life(seed: u64, steps in prop::collection::vec(step(), 1..150)) {
        let mut logger = Logger::new();
        let (_, keys) = logger.attach(&newborn(1), peer(1, 1000));
        let host = Host::new(keys, seed);
        let mut world = World { logger, host, instance: 1, next_flow: 0, durable: true };
        for step in steps {
            world.step(step);
        }
        // The disk works again, and all records get into the log.
        world.step(Step::Later);
        for _ in 0..3000 {
            world.step(Step::Traffic);
            world.logger.write_all();
            world.logger.tell(&mut world.host);
            if world.host.is_recorded() {
                break;
            }
        }
        prop_assert!(world.host.is_recorded());
        world.logger.now += RETRY;
        world.logger.write_all();
        world.durable = true;
        world.step(Step::Die { both: true });
    }
}
