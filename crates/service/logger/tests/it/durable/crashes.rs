//! Death of the logger at any step, and failures of the storage.

use super::*;

#[derive(Debug, Clone, Copy)]
enum Step {
    Connect(u16),
    Traffic,
    Write,
    /// The oldest connection ends.
    Close,
    Hold(bool),
    Answer,
    Note,
    Die {
        with_host: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0u16..5000).prop_map(Step::Connect),
        8 => Just(Step::Traffic),
        8 => Just(Step::Write),
        1 => Just(Step::Close),
        1 => any::<bool>().prop_map(Step::Hold),
        3 => Just(Step::Answer),
        2 => Just(Step::Note),
        1 => any::<bool>().prop_map(|with_host| Step::Die { with_host }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// The logger may die at any step: all acknowledged bytes are there afterwards.
    #[test]
    fn what_was_acknowledged_outlives_the_logger(
        seed: u64,
        turn: bool,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(seed, if turn { ReplayMode::Request } else { ReplayMode::Connection });
        for step in steps.into_iter().chain([Step::Die { with_host: true }]) {
            match step {
                Step::Connect(len) => drop(world.connect(usize::from(len))),
                Step::Traffic => world.traffic(),
                Step::Write => world.write(),
                Step::Close => {
                    if let Some(flow) = world.host.connections.keys().next().copied() {
                        world.close(flow);
                    }
                }
                Step::Hold(hold) => drop(world.ask(&Request::HoldTurns { hold })),
                Step::Answer => world.answer(),
                // A server without state between requests has no read cursors.
                Step::Note if turn => {}
                Step::Note => world.note(),
                Step::Die { with_host } => world.die(with_host),
            }
        }
        // The next logger records the rest.
        for _ in 0..3000 {
            if world.host.is_recorded() {
                break;
            }
            world.traffic();
            world.write_all();
        }
        prop_assert!(world.host.is_recorded());
        world.die(true);
    }

    /// The storage fails at any step: no ACK waits for the storage. After the repair all records get into a new
    /// log.
    #[test]
    fn a_storage_that_fails_holds_nothing_up(
        seed: u64,
        fails_after in 0u64..200,
        closes: bool,
    ) {
        let mut world = World::new(seed, ReplayMode::Connection);
        world.log.storage().fail_after(Some(fails_after));
        for _ in 0..4 {
            world.connect(4000);
        }
        let mut rounds = 0;
        while !world.host.is_recorded() {
            rounds += 1;
            prop_assert!(rounds < 3000, "it is held up");
            world.traffic();
            world.write();
        }
        world.write_all();
        if closes {
            world.close(FlowId(1));
        }
        if !world.durable {
            prop_assert!(matches!(world.told[..], [Change::Volatile(_)]));
            world.now += RETRY;
            world.connect(3000);
            while !world.host.is_recorded() || !world.durable {
                world.traffic();
                world.write();
            }
            prop_assert_eq!(world.told.last(), Some(&Change::Durable));
        }
        world.write_all();
        world.die(true);
        prop_assert!(world.host.is_recorded());
    }
}

proptest! {
    /// Foreign entries with right checksums, after entries of a logger: reading does not panic, and may report
    /// damage.
    #[test]
    fn any_entries_are_read(
        foreign in prop::collection::vec((0u8..40, 0u64..3, any::<Vec<u8>>()), 1..20),
    ) {
        let mut world = World::new(1, ReplayMode::Request);
        for _ in 0..2 {
            world.connect(2000);
        }
        for _ in 0..4 {
            world.traffic();
            world.write_all();
        }
        let mut batch = wal::Batch::default();
        for (kind, flow, bytes) in foreign {
            batch.add(|out| {
                out.push(kind);
                out.extend_from_slice(&INSTANCE.to_le_bytes());
                out.extend_from_slice(&flow.to_le_bytes());
                out.extend_from_slice(&bytes);
            });
        }
        world.log.append(&mut batch).expect("room");
        let mut storage = world.log.storage().clone();
        storage.restart();
        let mut sessions = Sessions::new(AckPolicy::EachBatch, 1 << 30, KEEP);
        prop_assert!(restore(storage, &mut sessions, SEGMENT).is_ok());
    }
}
