use super::*;

const TERM: Duration = Duration::from_millis(100);
const TERMS: Terms = Terms {
    term: TERM,
    least: TERM,
    longest: Duration::from_millis(500),
    drift: crate::terms::NONE,
    queue: Duration::from_millis(10),
    forget: Duration::from_secs(5),
};
const INCARNATION: u64 = 77;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A granter, and requests with the right numbers.
struct World {
    granter: Granter,
    number: u64,
    /// Whether the newest lease named a standby; left out of comparisons.
    standby: bool,
    former: Former,
    /// After how many µs a standby was told to ask again.
    again_us: u32,
}

const STANDBY: Standing = Standing::Standby { effective_in: None };

fn holds(epoch: u32, leased: bool) -> Standing {
    Standing::Holds {
        epoch,
        speaks: true,
        leased,
        answered: u64::MAX,
    }
}

impl World {
    fn new(memory: Memory) -> Self {
        Self {
            granter: Granter::new(INCARNATION, memory, TERMS, ms(0)),
            number: 0,
            standby: false,
            former: Former::Unknown,
            again_us: 0,
        }
    }

    fn request(&mut self, host: u64, standing: Standing) -> LeaseRequest {
        self.number += 1;
        LeaseRequest {
            instance: 100 + host,
            host,
            number: self.number,
            life: INCARNATION,
            preference: 0,
            standing,
            service: "web".into(),
        }
    }

    fn say(&mut self, now: u64, request: &LeaseRequest) -> Option<Verdict> {
        let decision = self.granter.decide(ms(now), request);
        decision.answer.map(|answer| match answer.verdict {
            Verdict::Lease {
                epoch,
                term_us,
                standby,
                former,
            } => {
                (self.standby, self.former) = (standby, former);
                Verdict::Lease {
                    epoch,
                    term_us,
                    standby: false,
                    former: Former::Unknown,
                }
            }
            Verdict::Standby {
                epoch,
                effective,
                again_us,
            } => {
                self.again_us = again_us;
                standby(epoch, effective)
            }
            verdict => verdict,
        })
    }

    /// The answer to a host that the granter knows.
    fn ask(&mut self, now: u64, host: u64, standing: Standing) -> Verdict {
        let mut request = self.request(host, standing);
        if self.say(now, &request) == Some(Verdict::Wait) {
            request.number += 1;
            self.number += 1;
            return self.say(now, &request).unwrap();
        }
        request.number += 1;
        self.number += 1;
        self.say(now, &request).unwrap()
    }
}

const fn lease(epoch: u32) -> Verdict {
    Verdict::Lease {
        epoch,
        term_us: 100_000,
        standby: false,
        former: Former::Unknown,
    }
}

const fn standby(epoch: u32, effective: bool) -> Verdict {
    Verdict::Standby {
        epoch,
        effective,
        again_us: 0,
    }
}

#[test]
fn standby_learns_lease_end() {
    let mut world = World::new(Memory::Kept(vec![]));
    world.ask(0, 1, Standing::First);
    world.ask(5, 1, holds(1, true));
    // The end of a free holder is unknown.
    world.ask(6, 2, STANDBY);
    assert_eq!(world.again_us, 0);
    world.ask(10, 1, holds(1, true));
    // 10 + 100 + 10
    for (now, left) in [(20, 100_000), (119, 1_000)] {
        world.ask(now, 2, STANDBY);
        assert_eq!(world.again_us, left);
    }
    assert_eq!(world.ask(120, 2, STANDBY), lease(2));
}

/// A steady holder has shorter leases. No other host has the next epoch before the end of the last lease, nor before
/// the end of an earlier, longer lease.
#[test]
fn short_lease_is_waited_out() {
    let mut world = World::new(Memory::Kept(vec![]));
    world.granter.terms.least = ms(30);
    world.ask(0, 1, Standing::First);
    let mut now = 0;
    let mut granted = Vec::new();
    let mut ask = |world: &mut World, now: u64| {
        world.ask(now, 2, STANDBY);
        let Verdict::Lease { term_us, .. } = world.ask(now, 1, holds(1, true)) else {
            panic!("there is a standby");
        };
        granted.push((now, u64::from(term_us).div_ceil(1000)));
        u64::from(term_us) / 1000
    };
    let mut term = 100;
    while term > 30 {
        now += term / 3;
        term = ask(&mut world, now);
        assert!(now < 60_000, "it stays long");
    }
    let over = |granted: &[(u64, u64)]| {
        let all = granted.iter().map(|(at, term)| at + term + 10);
        all.max().expect("some")
    };
    // A late request gives a long lease again; the next request, without lateness, no longer shortens the lease.
    now += 25;
    assert!((80..=90).contains(&ask(&mut world, now)));
    now += 1;
    ask(&mut world, now);
    let over = over(&granted);
    let effective = standby(1, true);
    assert_eq!(world.ask(over - 1, 2, STANDBY), effective);
    assert!(matches!(
        world.ask(over, 2, STANDBY),
        Verdict::Lease { epoch: 2, .. }
    ));
}

/// The holder, or the path, stood still: the next lease is longer, for any holder.
#[test]
fn false_suspicion_lengthens_leases() {
    let mut world = World::new(Memory::Kept(vec![]));
    world.granter.terms.least = ms(30);
    world.ask(0, 1, Standing::First);
    world.ask(1, 2, STANDBY);
    world.ask(2, 1, holds(1, true));
    assert_eq!(world.ask(200, 2, STANDBY), lease(2));
    let steady = |world: &mut World, from: u64| {
        let mut term = 0;
        for number in 0..2000 {
            let now = from + number * 10;
            world.ask(now, 3, STANDBY);
            let asked = world.ask(now, 2, holds(2, true));
            let Verdict::Lease { term_us, .. } = asked else {
                panic!("{asked:?} at {now}");
            };
            term = term_us;
        }
        term
    };
    assert_eq!(steady(&mut world, 210), 30_000);
    let superseded = Verdict::Superseded { epoch: 2 };
    assert_eq!(world.ask(20_205, 1, holds(1, true)), superseded);
    assert!(steady(&mut world, 20_210) > 90_000);
}

#[test]
fn lease_is_required_with_standby_only() {
    let mut world = World::new(Memory::Kept(vec![]));
    assert_eq!(world.ask(0, 1, Standing::First), lease(1));
    let free = Verdict::Free { epoch: 1 };
    assert_eq!(world.ask(10, 1, holds(1, true)), free);
    // No standby takes over from a free holder.
    let idle = standby(1, false);
    assert_eq!(world.ask(3000, 2, STANDBY), idle);
    assert_eq!(world.ask(3010, 1, holds(1, false)), lease(1));
    assert_eq!(world.ask(3020, 2, STANDBY), idle);
    assert_eq!(world.ask(3030, 1, holds(1, true)), lease(1));
    let effective = standby(1, true);
    // 3030 + 100 + 10
    assert_eq!(world.ask(3139, 2, STANDBY), effective);
    assert_eq!(world.ask(3140, 2, STANDBY), lease(2));
    let superseded = Verdict::Superseded { epoch: 2 };
    assert_eq!(world.ask(3150, 1, holds(1, true)), superseded);
    // The other is gone for long: no standby.
    assert_eq!(
        world.ask(9000, 2, holds(2, true)),
        Verdict::Free { epoch: 2 }
    );
}

#[test]
fn stale_lease_confirmation_is_ignored() {
    let mut world = World::new(Memory::Kept(vec![]));
    world.ask(0, 1, Standing::First);
    assert_eq!(world.ask(10, 1, holds(1, true)), Verdict::Free { epoch: 1 });
    world.ask(20, 2, STANDBY);
    // The holder has a lease by an earlier answer; the later answer may still be under way.
    let early = Standing::Holds {
        epoch: 1,
        speaks: true,
        leased: true,
        answered: 1,
    };
    assert_eq!(world.ask(30, 1, early), lease(1));
    let idle = standby(1, false);
    assert_eq!(world.ask(1000, 2, STANDBY), idle);
}

#[test]
fn returning_holder_keeps_epoch() {
    let mut world = World::new(Memory::Kept(vec![]));
    world.ask(0, 2, STANDBY);
    assert_eq!(world.ask(0, 1, Standing::First), lease(1));
    assert_eq!(world.ask(90, 1, holds(1, true)), lease(1));
    assert_eq!(world.ask(4000, 1, holds(1, true)), lease(1));
    assert_eq!(world.ask(4110, 2, STANDBY), lease(2));
    assert_eq!(world.former, Former::Other);
}

#[test]
fn released_epoch_is_granted_once() {
    let mut world = World::new(Memory::Kept(vec![]));
    assert_eq!(world.ask(0, 1, Standing::First), lease(1));
    world.ask(0, 2, STANDBY);
    world.ask(0, 1, holds(1, true));
    let superseded = Verdict::Superseded { epoch: 1 };
    let released = Standing::Released { epoch: 1 };
    let late = world.request(1, holds(1, true));
    assert_eq!(world.ask(10, 1, released), superseded);
    // Packets and requests of the holder may be under way.
    assert_eq!(world.say(11, &late), None);
    assert!(matches!(world.ask(15, 2, STANDBY), Verdict::Standby { .. }));
    assert_eq!(world.ask(22, 2, STANDBY), lease(2));
    assert_eq!(world.former, Former::GivenUp);
    assert_eq!(
        world.ask(23, 1, holds(1, true)),
        Verdict::Superseded { epoch: 2 }
    );
}

#[test]
fn preferred_standby_comes_first() {
    let mut world = World::new(Memory::Kept(vec![]));
    world.ask(0, 1, Standing::First);
    world.ask(0, 2, STANDBY);
    world.ask(0, 1, holds(1, true));
    let preferred = |world: &mut World, now| {
        let mut request = world.request(3, STANDBY);
        request.preference = 0;
        world.say(now, &request)
    };
    preferred(&mut world, 0);
    preferred(&mut world, 100);
    let other = |world: &mut World, now| {
        let mut request = world.request(2, STANDBY);
        request.preference = 1;
        world.say(now, &request)
    };
    let idle = Some(standby(1, true));
    assert_eq!(other(&mut world, 150), idle);
    let mut both = (world.granter.clone(), world.number);
    assert_eq!(preferred(&mut world, 160), Some(lease(2)));
    // If the preferred standby had died instead:
    core::mem::swap(&mut world.granter, &mut both.0);
    assert_eq!(other(&mut world, 199), idle);
    assert_eq!(other(&mut world, 200), Some(lease(2)));
}

#[test]
fn new_instance_releases_old_epoch() {
    let mut world = World::new(Memory::Kept(vec![]));
    world.ask(0, 1, Standing::First);
    assert_eq!(world.ask(10, 1, holds(1, true)), Verdict::Free { epoch: 1 });
    let mut again = world.request(1, STANDBY);
    again.instance = 999;
    assert_eq!(world.say(5000, &again), Some(Verdict::Wait));
    again.number += 1;
    assert_eq!(world.say(5000, &again), Some(lease(2)));
    assert_eq!(world.former, Former::Same, "it has not handed over");
    // A delayed request of the former instance:
    world.number += 10;
    assert_eq!(
        world.ask(5001, 1, holds(1, false)),
        Verdict::Superseded { epoch: 2 }
    );
}

#[test]
fn epoch_of_new_instance_is_lost() {
    let mut world = World::new(Memory::Kept(vec![]));
    world.ask(0, 1, Standing::First);
    world.ask(0, 2, STANDBY);
    world.ask(0, 1, holds(1, true));
    // The other host takes over at the moment in which this host comes back as another instance.
    let mut again = world.request(1, Standing::Standby { effective_in: None });
    (again.instance, again.preference) = (999, 1000);
    assert_eq!(world.say(10, &again), Some(Verdict::Wait));
    again.number += 1;
    world.say(10, &again);
    world.number += 10;
    assert_eq!(world.ask(11, 2, STANDBY), lease(2));
    assert_eq!(world.former, Former::Other);
}

#[test]
fn restored_granter_equals_running_granter() {
    let mut world = World::new(Memory::Kept(vec![]));
    world.ask(0, 1, Standing::First);
    world.ask(0, 2, STANDBY);
    world.ask(0, 1, holds(1, true));
    let records = world.granter.records();
    let [record] = &records[..] else {
        panic!("{records:?}");
    };
    assert!(record.leased && record.term == TERM && record.holder == Some((1, 101)));
    let mut world = World::new(Memory::Kept(records));
    // All grants before the death are over at 110; the granter waits for the holder as long as a granter without
    // memory.
    let effective = standby(1, true);
    assert_eq!(world.ask(509, 2, STANDBY), effective);
    assert_eq!(world.ask(510, 2, STANDBY), lease(2));
}

#[test]
fn holder_learns_of_standby() {
    let mut world = World::new(Memory::Lost);
    world.ask(1000, 1, Standing::First);
    world.ask(1000, 1, holds(1, true));
    assert!(!world.standby);
    world.ask(1000, 2, STANDBY);
    assert_eq!(world.ask(1050, 1, holds(1, true)), lease(1));
    assert!(world.standby);
    // The standby is silent, or gives the role up.
    world.ask(1200, 1, holds(1, true));
    assert!(!world.standby);
    world.ask(1210, 2, STANDBY);
    world.ask(1220, 2, Standing::Released { epoch: 0 });
    world.ask(1230, 1, holds(1, true));
    assert!(!world.standby);
    assert!(world.granter.is_over("web", 102) && !world.granter.is_over("web", 101));
}

#[test]
fn unleased_holder_learns_of_no_standby() {
    let mut world = World::new(Memory::Kept(vec![]));
    assert_eq!(world.ask(0, 1, Standing::First), lease(1));
    assert_eq!(world.ask(10, 1, holds(1, true)), Verdict::Free { epoch: 1 });
    assert_eq!(world.ask(3000, 2, STANDBY), standby(1, false));
    // The granter does not know yet whether the host receives this lease: if the host died now, no host would take
    // over.
    assert_eq!(world.ask(3010, 1, holds(1, false)), lease(1));
    assert!(!world.standby);
    assert_eq!(world.ask(3020, 2, STANDBY), standby(1, false));
    assert_eq!(world.ask(3030, 1, holds(1, true)), lease(1));
    assert!(world.standby);
    assert_eq!(world.ask(3040, 2, STANDBY), standby(1, true));
}

#[test]
fn changes_are_stored_before_answer() {
    let mut world = World::new(Memory::Kept(vec![]));
    let request = world.request(1, Standing::First);
    assert_eq!(world.granter.decide(ms(0), &request).record, None);
    let request = world.request(1, Standing::First);
    let decision = world.granter.decide(ms(0), &request);
    assert_eq!(decision.record.as_ref(), world.granter.records().first());
    assert!(decision.record.is_some_and(|record| record.leased));
    let request = world.request(1, holds(1, true));
    let decision = world.granter.decide(ms(0), &request);
    assert!(decision.record.is_some_and(|record| !record.leased));
    let request = world.request(1, holds(1, false));
    assert_eq!(world.granter.decide(ms(0), &request).record, None);
}

#[test]
fn lost_memory_believes_speakers_only() {
    let mut world = World::new(Memory::Lost);
    let knows = Standing::Standby {
        effective_in: Some(4),
    };
    let silent = Standing::Holds {
        epoch: 3,
        speaks: false,
        leased: true,
        answered: 0,
    };
    assert_eq!(world.ask(0, 2, knows), Verdict::Wait);
    assert_eq!(world.ask(0, 1, silent), Verdict::Wait);
    let mut other = World {
        granter: world.granter.clone(),
        number: world.number,
        standby: false,
        former: Former::Unknown,
        again_us: 0,
    };
    assert_eq!(other.ask(1, 1, holds(5, true)), lease(5));
    // The holder stays leased, even without a standby.
    assert_eq!(other.ask(60_000, 1, holds(5, true)), lease(5));
    // 500 + 10
    assert_eq!(world.ask(509, 2, knows), Verdict::Wait);
    assert_eq!(world.ask(510, 2, knows), lease(5));
    assert_eq!(world.ask(511, 1, silent), Verdict::Superseded { epoch: 5 });
}

/// The silent holder has the server and the connections.
#[test]
fn lost_memory_prefers_silent_holder() {
    let mut world = World::new(Memory::Lost);
    let knows = |epoch| Standing::Standby {
        effective_in: Some(epoch),
    };
    let silent = Standing::Holds {
        epoch: 4,
        speaks: false,
        leased: true,
        answered: 0,
    };
    assert_eq!(world.ask(420, 9, silent), Verdict::Wait);
    for now in [500, 510, 519] {
        assert_eq!(world.ask(now, 2, knows(4)), Verdict::Wait);
        assert_eq!(world.ask(now, 3, Standing::First), Verdict::Wait);
    }
    let copy = |world: &World| World {
        granter: world.granter.clone(),
        number: world.number,
        standby: false,
        former: Former::Unknown,
        again_us: 0,
    };
    // The silent holder asks in time, although other standbys are preferred.
    let mut asks = copy(&world);
    assert_eq!(asks.ask(519, 9, silent), lease(5));
    assert_eq!(asks.ask(519, 2, knows(4)), standby(5, true));
    // The silent holder does not ask any more.
    let mut dies = copy(&world);
    assert_eq!(dies.ask(520, 2, knows(4)), lease(5));
    // Another host has served since: the silent holder was superseded without knowing.
    let mut older = copy(&world);
    assert_eq!(older.ask(515, 2, knows(5)), lease(6));
    assert_eq!(older.ask(516, 9, silent), Verdict::Superseded { epoch: 6 });
}

#[test]
fn lost_memory_refuses_unaware_standby() {
    let mut world = World::new(Memory::Lost);
    assert_eq!(world.ask(10_000, 2, STANDBY), Verdict::Wait);
    let mut soon = World::new(Memory::Lost);
    assert_eq!(soon.ask(509, 2, Standing::First), Verdict::Wait);
    assert_eq!(soon.ask(510, 2, Standing::First), lease(1));
    // No effective standby was ever announced: the holder may be free.
    assert_eq!(soon.ask(520, 2, holds(1, true)), Verdict::Free { epoch: 1 });
}

#[test]
fn stale_and_repeated_requests_are_ignored() {
    let mut world = World::new(Memory::Lost);
    world.ask(0, 1, STANDBY);
    let mut old = world.request(1, holds(3, true));
    old.life = INCARNATION + 1;
    assert_eq!(world.say(0, &old), Some(Verdict::Wait));
    let speaks = world.request(1, holds(3, true));
    assert_eq!(world.say(0, &speaks), Some(lease(3)));
    assert_eq!(world.say(50, &speaks), None);
}

#[test]
fn logger_speech_delays_grant() {
    let mut world = World::new(Memory::Kept(vec![]));
    assert_eq!(world.ask(0, 1, Standing::First), lease(1));
    assert_eq!(world.ask(10, 1, holds(1, true)), Verdict::Free { epoch: 1 });
    // The end of a free holder is unknown.
    assert_eq!(world.granter.unserved_since("web", ms(60_000)), None);
    world.ask(60_010, 2, STANDBY);
    assert_eq!(world.ask(60_020, 1, holds(1, true)), lease(1));
    assert_eq!(world.granter.unserved_since("web", ms(60_129)), None);
    let since = Some(ms(60_130));
    assert_eq!(world.granter.unserved_since("web", ms(61_500)), since);
    world.granter.record_speech("web", ms(61_500));
    for (host, standing) in [(1, holds(1, true)), (2, STANDBY)] {
        let request = world.request(host, standing);
        assert_eq!(world.say(61_509, &request), None);
    }
    let request = world.request(2, STANDBY);
    assert_eq!(world.say(61_510, &request), Some(lease(2)));
    assert_eq!(world.granter.unserved_since("web", ms(61_510)), None);
    assert_eq!(world.granter.unserved_since("other", ms(61_510)), None);
}

/// A former incarnation may have sent packets at the moment of death.
#[test]
fn restarted_logger_waits_for_own_packets() {
    let record = Record {
        service: "web".into(),
        epoch: 3,
        holder: Some((1, 101)),
        leased: true,
        term: TERM,
    };
    let mut world = World::new(Memory::Kept(vec![record]));
    let request = world.request(1, holds(3, true));
    assert_eq!(world.say(0, &request), Some(Verdict::Wait));
    let request = world.request(1, holds(3, true));
    assert_eq!(world.say(9, &request), None);
    let request = world.request(1, holds(3, true));
    assert_eq!(world.say(10, &request), Some(Verdict::Free { epoch: 3 }));
}

/// By the operator's word, and not while the host is heard.
#[test]
fn released_host_holds_no_epoch() {
    let mut world = World::new(Memory::Kept(vec![]));
    assert_eq!(world.granter.give_up(ms(0), "web"), Err(StillHeld::Unknown));
    assert_eq!(world.ask(0, 1, Standing::First), lease(1));
    let free = world.ask(10, 1, holds(1, false));
    assert_eq!(free, Verdict::Free { epoch: 1 });
    assert!(matches!(
        world.ask(5000, 2, STANDBY),
        Verdict::Standby {
            effective: false,
            ..
        }
    ));
    let still = world.granter.give_up(ms(10_009), "web");
    assert!(
        matches!(still, Err(StillHeld::Heard { itself: true, .. })),
        "{still:?}"
    );
    let (epoch, record) = world.granter.give_up(ms(10_010), "web").unwrap();
    assert_eq!((epoch, record.holder, record.leased), (1, None, true));
    assert_eq!(
        world.granter.give_up(ms(10_010), "web"),
        Err(StillHeld::NotHeld)
    );
    assert_eq!(world.ask(10_011, 2, STANDBY), lease(2));
    assert_eq!(world.former, Former::Other, "it has not handed over");
    // Whatever comes back is told.
    assert_eq!(
        world.ask(10_020, 1, holds(1, false)),
        Verdict::Superseded { epoch: 2 }
    );

    // A restarted logger may not have heard the holder yet, and waits for the end of the lease.
    let record = Record {
        holder: Some((1, 1)),
        leased: true,
        term: ms(100),
        ..record
    };
    let mut world = World::new(Memory::Kept(vec![record]));
    let still = world.granter.give_up(ms(9_000), "web");
    assert!(
        matches!(still, Err(StillHeld::Heard { itself: false, .. })),
        "{still:?}"
    );
    assert!(world.granter.give_up(ms(10_000), "web").is_ok());
}
