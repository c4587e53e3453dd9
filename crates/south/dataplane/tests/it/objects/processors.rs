//! Segments of one connection in the hands of two processors at a time.

use std::thread;

use objects::flow::Phase;

use super::{lab::*, turns::asked};
use crate::harness::*;

const SEGMENT_COUNT: u32 = 60;
const SEGMENT_BYTES: u32 = 1000;
const CONNECTION_COUNT: u16 = 40;

/// A client's softirq and its process acknowledge a download, each on a processor of its own: each byte counts once,
/// and the turn ends once, at the end.
#[test]
fn acknowledgements_on_two_processors_count_once() {
    if thread::available_parallelism().map_or(1, usize::from) < 2 {
        return;
    }
    alone(|lab| {
        let mut lab = lab;
        for _ in 0..CONNECTION_COUNT {
            lab.clear();
            lab = asked(lab);
            let body_len = u64::from(SEGMENT_COUNT * SEGMENT_BYTES);
            let head = head(body_len);
            lab.server(lab.next_of_server(901).payload(&head));
            for segment in 0..SEGMENT_COUNT {
                let payload = vec![b'x'; usize::try_from(SEGMENT_BYTES).expect("a size")];
                lab.server(lab.next_of_server(902 + segment).payload(&payload));
            }
            let head_len = u32::try_from(head.len()).expect("a size");
            let first = lab.first() + head_len;
            let acks: Vec<Spec> = (0..=SEGMENT_COUNT)
                .map(|segment| {
                    let mut spec = lab.next_of_client(14);
                    spec.ack = first + segment * SEGMENT_BYTES;
                    spec
                })
                .collect();
            let before_last = lab.race(&acks[..acks.len() - 1]);
            assert_eq!(before_last.turn.phase, Phase::Body);
            let counted = u64::from(head_len + (SEGMENT_COUNT - 1) * SEGMENT_BYTES);
            assert_eq!(before_last.turn.acked, counted);
            let at_end = lab.race(&acks[acks.len() - 1..]);
            assert_eq!((at_end.turn.phase, at_end.turn.number), (Phase::Idle, 1));
            assert_eq!(at_end.turn.acked, counted + u64::from(SEGMENT_BYTES));
        }
    });
}
