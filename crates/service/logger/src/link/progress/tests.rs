use proptest::prelude::*;

use super::*;

/// A client with growing acknowledgements, over a network that reorders.
fn steps() -> impl Strategy<Value = Vec<(u32, u32, u32)>> {
    // For each step: the growth, the age of the arriving segment, and the advance of the clock.
    prop::collection::vec((0u32..1 << 30, 0u32..1 << 30, 0u32..1 << 30), 1..40)
}

proptest! {
    /// The progress is the newest arrival, over any number of wraps of the sequence space, and never goes back.
    #[test]
    fn it_is_where_the_client_is(first: u32, clock: u32, steps in steps()) {
        let first = SeqNumber(first);
        let mut progress = Progress::from(0);
        let (mut at, mut newest, mut time) = (0u64, 0u64, clock);
        for (further, old, tick) in steps {
            at += u64::from(further);
            // An overtaken segment may be older than the last arrival, but not older than the connection.
            let arrives = at - u64::from(old).min(at);
            newest = newest.max(arrives);
            time = time.wrapping_add(tick);
            let before = progress.acknowledged;
            progress.acknowledge(first, first + low_half(arrives));
            let overtaken = time.wrapping_sub(tick);
            progress.time(Timestamps { value: time, echo: overtaken });
            progress.time(Timestamps { value: overtaken, echo: overtaken });
            prop_assert!(progress.acknowledged >= before);
            prop_assert_eq!(progress.acknowledged, newest);
            prop_assert_eq!(progress.timestamps.map(|seen| seen.value), Some(time));
        }
    }

    /// For any acknowledgements the progress never goes back, and never advances by half of the sequence space at
    /// once.
    #[test]
    fn it_never_goes_back(first: u32, start in 0u64..1 << 40, acks: Vec<u32>) {
        let mut progress = Progress::from(start);
        for ack in acks {
            let before = progress.acknowledged;
            progress.acknowledge(SeqNumber(first), SeqNumber(ack));
            let advance = progress.acknowledged.checked_sub(before);
            prop_assert!(advance.is_some_and(|advance| advance < 1 << 31));
        }
    }
}

#[test]
fn an_acknowledgement_far_ahead_is_old() {
    let first = SeqNumber(10);
    let mut progress = Progress::from(5 << 32);
    progress.acknowledge(first, first + (1 << 31));
    assert_eq!(progress.acknowledged, 5 << 32);
    progress.acknowledge(first, first + ((1 << 31) - 1));
    progress.acknowledge(first, first + (u32::MAX - 1));
    progress.acknowledge(first, first + 7);
    assert_eq!(progress.acknowledged, (6 << 32) + 7);
}

#[test]
fn log_entry_is_due_at_intervals() {
    let mut progress = Progress::from(0);
    progress.acknowledge(SeqNumber(0), SeqNumber(LOG_INTERVAL_BYTES - 1));
    assert!(!progress.is_log_due());
    progress.acknowledge(SeqNumber(0), SeqNumber(LOG_INTERVAL_BYTES));
    assert!(progress.is_log_due());
    progress.on_logged();
    assert!(!progress.is_log_due());
}
