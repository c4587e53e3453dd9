use proptest::prelude::*;

use super::Answers;

fn places(answers: Answers) -> [u64; 3] {
    [answers.oldest, answers.next, answers.newest]
}

#[test]
fn oldest_next_and_newest_positions_are_known() {
    let mut answers = Answers::from(1);
    for at in [1, 100, 100, 5000, 70, 6000] {
        answers.begins(at);
    }
    assert_eq!(places(answers), [1, 100, 6000]);
    answers.recorded(100);
    assert_eq!(places(answers), [1, 100, 6000], "nothing of the next one");
    answers.recorded(4196);
    assert_eq!(places(answers), [100, 4196, 6000], "one was forgotten");
    answers.recorded(5100);
    assert_eq!(places(answers), [4196, 5100, 6000]);
    answers.recorded(6000);
    assert_eq!(places(answers), [5100, 6000, 6000]);
    answers.recorded(6001);
    assert_eq!(places(answers), [6000; 3]);
}

#[test]
fn possible_response_begins_at_record_end() {
    let mut answers = Answers::from(1);
    answers.recorded(4097);
    answers = Answers {
        oldest: 1,
        next: 1,
        newest: 1,
        ..answers
    };
    answers.may_have_begun(9000);
    assert_eq!(places(answers), [1, 4097, 9000]);
    let mut answers = Answers::from(100);
    answers.may_have_begun(9000);
    assert_eq!(places(answers), [100, 100, 9000], "nothing is recorded");
    answers.begins(9500);
    assert_eq!(places(answers), [100, 100, 9500]);
}

#[test]
fn reordered_output_is_not_complete() {
    let mut answers = Answers::from(1);
    answers.begins(100);
    answers.begins(200);
    assert!(!answers.recorded_after(150, 240), "the second is not here");
    assert_eq!(answers.places(), [1, 100, 200, 1]);
    assert!(answers.recorded_after(1, 50));
    assert!(answers.recorded_after(50, 150));
    assert!(answers.recorded_after(150, 240));
    assert!(!answers.recorded_after(150, 240), "again");
    assert_eq!(answers.places(), [200, 200, 200, 240]);
}

#[test]
fn positions_before_request_are_dropped() {
    let mut answers = Answers::from(1);
    answers.begins(50);
    answers.begins(90);
    answers.forget_before(50);
    assert_eq!(places(answers), [50, 50, 90]);
    answers.forget_before(200);
    assert_eq!(places(answers), [200; 3]);
}

/// Recorded bytes of each response.
const HEAD_BYTES: u64 = 40;

/// The question of a recovery: has the client received more than is recorded, from either place on?
fn misses(answers: Answers, heard: u64, recorded: u64) -> bool {
    [answers.oldest, answers.next]
        .iter()
        .any(|at| heard.saturating_sub(*at).min(HEAD_BYTES) > recorded.saturating_sub(*at))
}

proptest! {
    /// Responses of any lengths, each requested after the client received the response before; heads arrive in order,
    /// later. Whenever a client has received part of a response whose head is not whole, `misses` tells.
    #[test]
    fn received_heads_are_never_missing(
        lengths in prop::collection::vec(1u64..120, 1..12),
        steps in prop::collection::vec((any::<bool>(), 1u64..60), 1..60),
    ) {
        let mut starts = vec![1];
        for length in &lengths {
            starts.push(starts[starts.len() - 1] + length);
        }
        let heads: Vec<(u64, u64)> = starts
            .windows(2)
            .map(|pair| (pair[0], pair[1].min(pair[0] + HEAD_BYTES)))
            .collect();
        let (mut answers, mut heard, mut asked) = (Answers::from(1), 1u64, 1usize);
        let (mut recorded, mut coming) = (0u64, heads.iter().copied().peekable());
        for (client, len) in steps {
            if client {
                heard = (heard + len).min(starts[asked]);
                if heard == starts[asked] && asked < lengths.len() {
                    answers.begins(heard);
                    asked += 1;
                }
            } else if let Some((start, end)) = coming.peek().copied()
                && start < starts[asked]
            {
                recorded = (recorded.max(start) + len).min(end);
                answers.recorded(recorded);
                if recorded == end {
                    coming.next();
                }
            }
            let missing = heads
                .iter()
                .any(|(start, end)| heard > *start && recorded < (*end).min(heard));
            prop_assert!(!missing || misses(answers, heard, recorded));
            // When all heads are here, no head seems to be missing.
            let whole = heads[..asked].last().is_some_and(|(_, end)| recorded == *end);
            prop_assert!(!whole || !misses(answers, heard, recorded));
        }
    }
}
