//! Times of acknowledgements.

use super::*;

#[test]
fn a_batch_is_acknowledged_once_for_each_flow() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.connect(1, 5000);
    link.connect(2, 5000);
    for at in [0, 1000, 2000] {
        link.send(1, at, 1000);
        link.send(2, at, 1000);
    }
    let acks = link.settle(NOW);
    let told: Vec<_> = acks.iter().map(|ack| ack.flow.0).collect();
    assert_eq!(told, [1, 2]);
    assert_eq!(link.host.connections[&FlowId(1)].stable, 3000);
    assert!(link.settle(NOW).is_empty());
}

#[test]
fn each_frame_is_acknowledged_if_asked_for() {
    let mut link = Link::new(AckPolicy::EachFrame, 1);
    link.connect(1, 5000);
    for at in [0, 1000, 2000] {
        link.send(1, at, 1000);
    }
    assert_eq!(link.settle(NOW).len(), 3);
}

#[test]
fn acknowledgements_can_be_put_off() {
    let mut link = Link::new(AckPolicy::After(Duration::from_millis(5)), 1);
    link.connect(1, 5000);
    assert_eq!(link.sessions.due_at(), None);
    link.send(1, 0, 1000);
    let due = NOW + Duration::from_millis(5);
    assert_eq!(link.sessions.due_at(), Some(due));
    assert!(link.settle(due - Duration::from_nanos(1)).is_empty());
    assert_eq!(link.settle(due).len(), 1);
    assert_eq!(link.sessions.due_at(), None);
}

/// RFC 5681, 4.2: a duplicate acknowledgement for each segment beyond a hole, and an immediate ACK for a segment
/// that fills a hole. RFC 2018, 4: the block of the newest arrival first.
#[test]
fn holes_are_told_at_once() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.connect(1, 20_000);
    let tell = |link: &mut Link, at| {
        link.send(1, at, 1000);
        // Before the end of the batch.
        let acks = link.out.datagrams().iter();
        let acks = acks.map(|ack| link.host.hear(ack.bytes()));
        assert_eq!(acks.count(), 1);
        link.out.clear();
        let connection = &link.host.connections[&FlowId(1)];
        (connection.stable, connection.ranges.clone())
    };
    assert_eq!(tell(&mut link, 2000), (0, vec![(2000, 3000)]));
    assert_eq!(tell(&mut link, 3000), (0, vec![(2000, 4000)]));
    let two = vec![(6000, 7000), (2000, 4000)];
    assert_eq!(tell(&mut link, 6000), (0, two));
    let three = vec![(9000, 10_000), (6000, 7000), (2000, 4000)];
    assert_eq!(tell(&mut link, 9000), (0, three));
    let three = vec![(4000 - 2000, 5000), (9000, 10_000), (6000, 7000)];
    assert_eq!(tell(&mut link, 4000), (0, three));
    let newest = vec![(12_000, 13_000), (2000, 5000), (9000, 10_000)];
    assert_eq!(tell(&mut link, 12_000), (0, newest));
    assert_eq!(tell(&mut link, 0).0, 1000);
    let filled = tell(&mut link, 1000);
    assert_eq!(filled.0, 5000);
    assert!(filled.1.contains(&(12_000, 13_000)));
    assert!(link.settle(NOW).is_empty(), "nothing is left to be told");
}
