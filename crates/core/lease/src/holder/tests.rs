use super::*;
use crate::Drift;

const INCARNATION: u64 = 5;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn terms() -> Terms {
    Terms {
        term: ms(300),
        least: ms(300),
        drift: Drift::new(100_000).unwrap(),
        ..Terms::default()
    }
}

fn holder(first: bool) -> Holder {
    Holder::new("web".into(), (1, 2), 3, first, terms())
}

fn answer(request: &LeaseRequest, verdict: Verdict) -> LeaseAnswer {
    LeaseAnswer {
        instance: request.instance,
        number: request.number,
        life: INCARNATION,
        verdict,
    }
}

const LEASE: Verdict = Verdict::Lease {
    epoch: 7,
    term_us: 300_000,
    standby: true,
    former: Former::GivenUp,
};
const FREE: Verdict = Verdict::Free { epoch: 7 };

/// A holder that knows the logger.
fn introduced(first: bool) -> Holder {
    let mut holder = holder(first);
    let request = holder.ask(ms(0)).unwrap();
    assert_eq!((request.life, request.preference), (0, 3));
    holder.on_answer(ms(0), &answer(&request, Verdict::Wait));
    holder
}

#[test]
fn lease_counts_from_request() {
    let mut holder = introduced(false);
    let request = holder.ask(ms(1000)).unwrap();
    assert_eq!(request.life, INCARNATION);
    assert_eq!(holder.asks_at(), ms(1000) + terms().term / 16);
    assert_eq!(holder.speech(), Speech::Silent);
    assert!(holder.on_answer(ms(1200), &answer(&request, LEASE)));
    assert_eq!(holder.asks_at(), ms(1100));
    // A tenth for the drift.
    assert_eq!(holder.speech(), Speech::Until(ms(1270)));
    assert_eq!(holder.epoch(), Some(7));
    assert_eq!(holder.former(), Former::GivenUp);
    assert!(holder.speech().at(ms(1269)) && !holder.speech().at(ms(1270)));
    let standing = holder.ask(ms(1280)).unwrap().standing;
    let said = Standing::Holds {
        epoch: 7,
        speaks: false,
        leased: true,
        answered: request.number,
    };
    assert_eq!(standing, said);
}

#[test]
fn only_newest_answer_counts_once() {
    let mut holder = introduced(true);
    let requests = [0, 100, 200, 300].map(|at| holder.ask(ms(1000 + at)).unwrap());
    holder.on_answer(ms(1300), &answer(&requests[2], LEASE));
    assert_eq!(holder.speech(), Speech::Until(ms(1470)));
    for old in [0, 1, 2] {
        for verdict in [FREE, LEASE, Verdict::Superseded { epoch: 9 }] {
            assert!(!holder.on_answer(ms(1310), &answer(&requests[old], verdict)));
        }
    }
    let mut stranger = answer(&requests[3], FREE);
    stranger.instance += 1;
    assert!(!holder.on_answer(ms(1310), &stranger));
    stranger = answer(&requests[3], FREE);
    stranger.number += 1;
    assert!(!holder.on_answer(ms(1310), &stranger));
    assert_eq!(holder.speech(), Speech::Until(ms(1470)));
    assert!(holder.on_answer(ms(1310), &answer(&requests[3], FREE)));
    assert_eq!(holder.speech(), Speech::Free);
}

#[test]
fn answers_of_earlier_logger_are_ignored() {
    let mut holder = introduced(true);
    let (first, second) = (holder.ask(ms(0)).unwrap(), holder.ask(ms(1)).unwrap());
    let mut other = answer(&first, Verdict::Wait);
    other.life = INCARNATION + 1;
    assert!(!holder.on_answer(ms(2), &other));
    // Answers of the first logger after that logger's death.
    assert!(!holder.on_answer(ms(3), &answer(&second, FREE)));
    assert_eq!(holder.speech(), Speech::Silent);
    assert_eq!(holder.asks_at(), Duration::ZERO);
    assert_eq!(holder.ask(ms(3)).unwrap().life, INCARNATION + 1);
}

#[test]
fn late_lease_does_not_silence_free_holder() {
    let mut holder = introduced(true);
    let request = holder.ask(ms(0)).unwrap();
    holder.on_answer(ms(0), &answer(&request, FREE));
    let request = holder.ask(ms(100)).unwrap();
    assert!(!holder.on_answer(ms(370), &answer(&request, LEASE)));
    assert_eq!(holder.speech(), Speech::Free);
    let request = holder.ask(ms(400)).unwrap();
    assert!(matches!(
        request.standing,
        Standing::Holds {
            leased: false,
            speaks: true,
            ..
        }
    ));
    assert!(holder.on_answer(ms(669), &answer(&request, LEASE)));
    assert_eq!(holder.speech(), Speech::Until(ms(670)));
}

#[test]
fn resumed_holder_keeps_enforced_speech() {
    let mut dead = introduced(true);
    let request = dead.ask(ms(100)).unwrap();
    let mut next = holder(false).resumed(7, Speech::Until(ms(150)));
    let asked = next.ask(ms(120)).unwrap();
    assert!(asked.number > request.number);
    let said = Standing::Holds {
        epoch: 7,
        speaks: true,
        leased: true,
        answered: 0,
    };
    assert_eq!(asked.standing, said);
    assert!(!next.on_answer(ms(130), &answer(&request, FREE)));
    assert_eq!(next.speech(), Speech::Until(ms(150)));
}

#[test]
fn released_epoch_does_not_return() {
    let mut holder = introduced(true);
    let request = holder.ask(ms(0)).unwrap();
    holder.on_answer(ms(0), &answer(&request, LEASE));
    let request = holder.ask(ms(10)).unwrap();
    holder.release();
    assert_eq!(holder.speech(), Speech::Silent);
    assert!(!holder.on_answer(ms(20), &answer(&request, LEASE)));
    assert_eq!(holder.speech(), Speech::Silent);
    let request = holder.ask(ms(30)).unwrap();
    assert_eq!(request.standing, Standing::Released { epoch: 7 });
    let over = Verdict::Superseded { epoch: 8 };
    assert!(holder.on_answer(ms(40), &answer(&request, over)));
    assert_eq!((holder.superseded(), holder.ask(ms(50))), (Some(8), None));
}

const fn standby(epoch: u32, effective: bool, again_us: u32) -> Verdict {
    Verdict::Standby {
        epoch,
        effective,
        again_us,
    }
}

#[test]
fn standby_asks_often_and_at_lease_end() {
    let mut holder = introduced(false);
    let often = terms().eager_interval();
    let request = holder.ask(ms(100)).unwrap();
    assert_eq!(holder.asks_at(), ms(100) + often);
    holder.on_answer(ms(101), &answer(&request, standby(3, true, 200_000)));
    assert_eq!(holder.asks_at(), ms(100) + often);
    let request = holder.ask(ms(110)).unwrap();
    holder.on_answer(ms(111), &answer(&request, standby(3, true, 500)));
    assert_eq!(holder.asks_at(), ms(111) + Duration::from_micros(500));
    // Until the next answer with a time.
    holder.ask(ms(112)).unwrap();
    assert_eq!(holder.asks_at(), ms(112) + often);
}

#[test]
fn standby_remembers_effective_epoch() {
    let mut holder = introduced(false);
    for (verdict, knows) in [
        ((3, false), None),
        ((4, true), Some(4)),
        ((5, false), Some(4)),
    ] {
        let (epoch, effective) = verdict;
        let request = holder.ask(ms(0)).unwrap();
        holder.on_answer(ms(0), &answer(&request, standby(epoch, effective, 0)));
        let standing = holder.ask(ms(1)).unwrap().standing;
        assert_eq!(
            standing,
            Standing::Standby {
                effective_in: knows
            }
        );
    }
}
