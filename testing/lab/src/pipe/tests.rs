use std::time::Duration;

use proptest::prelude::*;

use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);

/// Offers numbered frames of `length` bytes, `gap` apart, and returns when each came out.
fn pass(pipe: &mut Pipe, frames: u32, gap: Duration, length: usize) -> Vec<(Duration, u32)> {
    let mut out = Vec::new();
    let mut now = Duration::ZERO;
    let number = |frame: &[u8]| u32::from_be_bytes(frame[..4].try_into().unwrap());
    for n in 0..frames {
        while let Some(at) = pipe.next_deadline().filter(|at| *at <= now) {
            out.push((at, number(&pipe.due(at).unwrap())));
        }
        let mut frame = vec![0; length];
        frame[..4].copy_from_slice(&n.to_be_bytes());
        for _ in 0..pipe.offer(now, &frame, 0) {
            out.push((now, n));
        }
        now += gap;
    }
    while let Some(at) = pipe.next_deadline() {
        out.push((at, number(&pipe.due(at).unwrap())));
    }
    out
}

fn numbers(out: &[(Duration, u32)]) -> Vec<u32> {
    out.iter().map(|(_, n)| *n).collect()
}

#[test]
fn unimpaired_pipe_has_no_delay() {
    let mut pipe = Pipe::new(Impairment::with_seed(1), false, 0);
    assert_eq!(pipe.offer(MILLISECOND, b"frame", 0), 1);
    assert_eq!(pipe.next_deadline(), None);
}

#[test]
fn loss_matches_share_and_seed() {
    let run = |seed, stream| {
        let mut pipe = Pipe::new(Impairment::with_seed(seed).loss(10.0), false, stream);
        numbers(&pass(&mut pipe, 10_000, MILLISECOND, 60))
    };
    let survivors = run(7, 0);
    assert!(
        (8_800..9_200).contains(&survivors.len()),
        "{}",
        survivors.len()
    );
    assert_eq!(survivors, run(7, 0));
    assert_ne!(survivors, run(8, 0));
    assert_ne!(survivors, run(7, 1));
}

#[test]
fn zero_and_full_loss_are_exact() {
    let mut none = Pipe::new(Impairment::with_seed(1).loss(0.0), false, 0);
    assert_eq!(pass(&mut none, 1000, MILLISECOND, 60).len(), 1000);
    let mut all = Pipe::new(Impairment::with_seed(1).loss(100.0), false, 0);
    assert_eq!(pass(&mut all, 1000, MILLISECOND, 60).len(), 0);
    let mut twice = Pipe::new(Impairment::with_seed(1).duplicate(100.0), false, 0);
    assert_eq!(pass(&mut twice, 1000, MILLISECOND, 60).len(), 2000);
}

#[test]
fn delay_is_exact() {
    let mut pipe = Pipe::new(Impairment::with_seed(1).delay(5 * MILLISECOND), false, 0);
    let out = pass(&mut pipe, 3, MILLISECOND, 60);
    assert_eq!(
        out,
        [
            (5 * MILLISECOND, 0),
            (6 * MILLISECOND, 1),
            (7 * MILLISECOND, 2)
        ]
    );
}

#[test]
fn reordered_frames_are_delayed_exactly() {
    let held = 10 * MILLISECOND + MILLISECOND / 2;
    let mut pipe = Pipe::new(Impairment::with_seed(3).reorder(20.0, held), false, 0);
    let out = pass(&mut pipe, 1000, MILLISECOND, 60);
    assert_eq!(out.len(), 1000);
    let late = out
        .iter()
        .filter(|(at, n)| *at == *n * MILLISECOND + held)
        .count();
    let on_time = out.iter().filter(|(at, n)| *at == *n * MILLISECOND).count();
    assert_eq!(late + on_time, 1000);
    assert!((150..250).contains(&late), "{late}");
    assert!(!numbers(&out).is_sorted());
}

#[test]
fn rate_holds_after_burst_with_bounded_queue() {
    // 976 bytes with 24 bytes of overhead take 8 ms at 1 Mbit/s.
    let mut pipe = Pipe::new(Impairment::with_seed(1).rate(1_000_000), false, 0);
    let out = pass(&mut pipe, 1000, MILLISECOND, 976);
    assert!(numbers(&out).is_sorted());
    let end = out.last().unwrap().0;
    let sent = u32::try_from(out.len()).unwrap();
    assert!(
        out.len() < 1000,
        "an offer of eight times the rate overflows"
    );
    assert!(
        8 * MILLISECOND * (sent - 4) <= end,
        "{sent} frames in {end:?}"
    );
    // No frame waits longer than the depth of the queue.
    assert!(
        out.iter()
            .all(|(at, n)| *at - *n * MILLISECOND < 400 * MILLISECOND)
    );
    // And the line is never idle: 46,140 bytes wait at the end.
    assert!(sent >= 1000 / 8 + 46);
}

#[test]
fn frame_slower_than_queue_passes() {
    let mut pipe = Pipe::new(Impairment::with_seed(1).rate(8), false, 0);
    assert_eq!(pass(&mut pipe, 1, MILLISECOND, 100).len(), 1);
}

#[test]
fn cut_loses_frames_in_flight() {
    let slow = Impairment::with_seed(1).delay(5 * MILLISECOND);
    let mut pipe = Pipe::new(slow.clone(), false, 0);
    assert_eq!(pipe.offer(MILLISECOND, b"frame", 0), 0);
    pipe.set(&slow, true);
    assert_eq!(pipe.next_deadline(), None);
    assert_eq!(pipe.offer(MILLISECOND, b"frame", 0), 0);
    pipe.set(&slow, false);
    assert_eq!(pipe.offer(MILLISECOND, b"frame", 0), 0);
    assert_eq!(pipe.next_deadline(), Some(6 * MILLISECOND));
}

proptest! {
    #[test]
    fn order_survives_delay_and_rate_change(
        steps in prop::collection::vec((0u64..5000, 0u64..20_000, prop::option::of(1_000u64..1_000_000_000)), 1..60),
    ) {
        let mut pipe = Pipe::new(Impairment::with_seed(1), false, 0);
        let mut now = Duration::ZERO;
        let mut out = Vec::new();
        for (n, (gap, delay, rate)) in steps.iter().enumerate() {
            now += Duration::from_micros(*gap);
            while let Some(frame) = pipe.due(now) {
                out.push(frame);
            }
            let mut impairment = Impairment::with_seed(1).delay(Duration::from_micros(*delay));
            impairment.rate = *rate;
            pipe.set(&impairment, false);
            let frame = vec![u8::try_from(n).unwrap()];
            for _ in 0..pipe.offer(now, &frame, 0) {
                out.push(frame.clone());
            }
        }
        while let Some(frame) = pipe.due(Duration::MAX) {
            out.push(frame);
        }
        prop_assert!(out.is_sorted());
        prop_assert_eq!(out.len(), steps.len());
    }
}
