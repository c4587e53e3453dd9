//! Datagrams to the logger, and effects of acknowledgements, after the end of the lease.

use super::*;
use crate::lease::other;

#[test]
fn a_syn_ack_neither_leaves_nor_comes_back_too_late() {
    let mut linked = Linked::new(AckStrategy::Eager);
    linked.both.client(linked.both.syn());
    linked.both.lease(Some(false));
    let syn_ack = linked.both.syn_ack();
    let fenced = linked.both.server(syn_ack);
    assert_eq!(fenced.verdict, Verdict::Withheld);
    assert_eq!(linked.both.counted("link_opens"), 0);
    linked.both.lease(Some(true));
    linked.answer();
    linked.both.lease(Some(false));
    assert_eq!(linked.logged(1, &[]).verdict, Verdict::Drop);
    linked.both.lease(None);
    assert_eq!(linked.logged(1, &[]).verdict, Verdict::Redirect);
}

#[test]
fn the_loggers_word_becomes_no_ack_too_late_but_counts() {
    let strategies = [
        AckStrategy::Lazy,
        AckStrategy::Eager,
        AckStrategy::Conditional,
    ];
    for strategy in strategies {
        let mut linked = Linked::new(strategy).open();
        linked.says(1, b"hello");
        linked.server_acks(6);
        linked.both.lease(Some(false));
        assert_eq!(linked.logged(4, &[]).verdict, Verdict::Drop);
        assert_eq!(linked.both.flow().log.stable, linked.both.c + 4);
        assert_eq!(linked.both.counted("acks_made"), 0);
        linked.both.lease(Some(true));
        let out = linked.logged(6, &[]);
        assert_eq!((out.verdict, told(&out).0), (Verdict::Redirect, 6));
    }
}

#[test]
fn what_is_recorded_is_recorded_and_the_logger_is_spoken_to() {
    for v6 in [false, true] {
        let mut linked = Linked::over(AckStrategy::Eager, v6, v6).open();
        linked.both.lease(Some(false));
        linked.probe();
        assert_eq!(linked.says(1, b"hello"), Verdict::Next);
        assert_eq!(linked.both.copies().len(), 1);
        assert_eq!(linked.server_acks(6).verdict, Verdict::Withheld);
        // The protected address may be the address of the link.
        let (ours, logger) = (linked.both.key.server().ip(), linked.link.remote.ip());
        let to_logger = other(ours, logger, 17, &[0; 8]);
        assert_eq!(linked.both.egress(to_logger).verdict, Verdict::Next);
        let client = linked.both.key.client().ip();
        let to_client = other(ours, client, 17, &[0; 8]);
        assert_eq!(linked.both.egress(to_client).verdict, Verdict::Drop);
        assert_eq!(linked.both.counted("fenced"), 2);
    }
}

#[test]
fn who_needs_a_lease_serves_nobody_without_a_record() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.both.lease(Some(true));
    linked.both.link_up(false);
    assert_eq!(linked.says(1, b"hello"), Verdict::Drop);
    assert_eq!(linked.both.flow().unprotected, None);
    linked.both.link_up(true);
    assert_eq!(linked.says(1, b"hello"), Verdict::Next);
    assert_eq!(linked.both.copies().len(), 1);
    linked.both.link_up(false);
    linked.both.lease(None);
    assert_eq!(linked.says(6, b"again"), Verdict::Next);
    assert_eq!(
        linked.both.flow().unprotected,
        Some(UnprotectedReason::LoggerLost)
    );

    let mut linked = Linked::new(AckStrategy::Eager);
    linked.both.client(linked.both.syn());
    linked.both.lease(Some(true));
    linked.both.link_up(false);
    let syn_ack = linked.both.syn_ack();
    assert_eq!(linked.both.server(syn_ack).verdict, Verdict::Withheld);
    linked.both.link_up(true);
    linked.answer();
}
