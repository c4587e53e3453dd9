use std::time::Duration;

use super::*;
use crate::{MARK_CLIENT_SPACE, Settings, south::Event, testing::*};
use wire::{Flags, FlowId, SeqNumber};

const MAIN: u32 = 42;

fn exit(tgid: u32, exit_code: u32) -> Exit {
    Exit {
        in_service: true,
        tgid,
        exit_code,
        last_thread: true,
        group_exit: false,
    }
}

fn latched(settings: Settings, exit: Exit) -> bool {
    let mut lab = Lab::with(settings, 1, 2, false);
    lab.south.main_process(MAIN);
    lab.south.process_exit(exit, lab.now);
    let service = lab.south.service();
    let death = Event {
        at: Duration::from_nanos(lab.now),
        incarnation: 1,
        kind: EventKind::Death {
            pid: exit.tgid,
            status: exit.exit_code,
        },
    };
    assert_eq!(service.gated_ns, if service.gated { lab.now } else { 0 });
    let gated = service.gated;
    assert_eq!(lab.events(), if gated { vec![death] } else { vec![] });
    gated
}

#[test]
fn what_is_a_crash() {
    let policies = [CrashOn::Main, CrashOn::Signal, CrashOn::AnyFailure];
    for (tgid, code, by_policy) in [
        (MAIN, 9, [true, true, true]),
        (MAIN, 13, [true, true, true]),
        (MAIN, 0x80 | 11, [true, true, true]),
        (MAIN, 1 << 8, [true, true, true]),
        (MAIN, 0, [false, false, false]),
        (7, 9, [false, true, true]),
        (7, 13, [false, false, false]),
        (7, 1 << 8, [false, false, true]),
        (7, 0, [false, false, false]),
    ] {
        let crashes = policies.map(|crash_on| {
            let settings = Settings {
                crash_on,
                ..settings()
            };
            latched(settings, exit(tgid, code))
        });
        assert_eq!(crashes, by_policy, "{tgid} {code:#x}");
    }
}

#[test]
fn a_thread_is_not_its_process_and_a_stranger_is_not_ours() {
    let killed = exit(MAIN, 9);
    assert!(!latched(
        settings(),
        Exit {
            last_thread: false,
            ..killed
        }
    ));
    assert!(latched(
        settings(),
        Exit {
            last_thread: false,
            group_exit: true,
            ..killed
        }
    ));
    assert!(!latched(
        settings(),
        Exit {
            in_service: false,
            ..killed
        }
    ));
}

#[test]
fn a_service_that_is_stopping_gated_or_abandoned_does_not_crash() {
    let mut lab = Lab::new();
    lab.south.stopping(true);
    lab.south.process_exit(exit(MAIN, 9), lab.now);
    assert_eq!((lab.south.service().gated, lab.events().len()), (false, 0));
    let mut lab = Lab::new();
    lab.crash();
    lab.south.process_exit(exit(MAIN, 9), lab.now + 5);
    assert_eq!(
        (lab.south.service().gated_ns, lab.events().len()),
        (lab.now, 0)
    );
    let mut lab = Lab::new();
    lab.south.process_exit(exit(MAIN, 9), lab.now + 11 * SECOND);
    assert!(!lab.south.service().gated);
}

#[test]
fn listening_on_a_protected_port_is_told() {
    for (address, told) in [
        ("10.0.0.10:80", true),
        ("0.0.0.0:80", true),
        ("[::]:80", true),
        ("[::ffff:10.0.0.10]:80", true),
        ("0.0.0.0:81", false),
        ("127.0.0.1:80", false),
    ] {
        let mut lab = Lab::new();
        let key = FlowKey::new("0.0.0.0:0".parse().unwrap(), address.parse().unwrap());
        let change = SocketChange {
            key,
            new_state: SocketState::Listen,
        };
        lab.south.socket_state(change, lab.now);
        let kinds: Vec<_> = lab.events().iter().map(|event| event.kind).collect();
        assert_eq!(
            kinds,
            if told {
                vec![EventKind::Listening]
            } else {
                vec![]
            },
            "{address}"
        );
    }
}

fn change(lab: &mut Lab, new_state: SocketState) {
    let key = lab.key;
    lab.south
        .socket_state(SocketChange { key, new_state }, lab.now);
}

#[test]
fn what_a_living_server_closes_passes_the_gate() {
    for state in [
        SocketState::FinWait1,
        SocketState::LastAck,
        SocketState::Closing,
    ] {
        let mut lab = Lab::new().open();
        change(&mut lab, state);
        lab.crash();
        let fin = segment(lab.s + 1, lab.c + 1).flags(FIN_ACK);
        assert_eq!(lab.server(fin).verdict, crate::Verdict::Next);
    }
}

#[test]
fn what_the_dead_close_does_not() {
    let mut lab = Lab::new().open();
    lab.crash();
    lab.mirrored();
    for state in [
        SocketState::FinWait1,
        SocketState::Close,
        SocketState::Other,
    ] {
        change(&mut lab, state);
    }
    assert!(!lab.flow().server_closing);
    lab.south.new_incarnation();
    lab.south
        .splice(lab.key, FlowId(1), lab.c, lab.s, lab.s, lab.now)
        .unwrap();
    change(&mut lab, SocketState::Close);
    assert!(!lab.flow().server_closing, "still splicing");
    assert_eq!(lab.mirrored(), []);
}

#[test]
fn a_closed_connection_is_forgotten_at_once_or_by_the_sweep() {
    let closed = FrameKind::Closed(CloseReason::Finished);
    let mut lab = Lab::new().open();
    lab.mirrored();
    change(&mut lab, SocketState::Other);
    assert!(!lab.flow().server_closing);
    change(&mut lab, SocketState::Close);
    assert_eq!(lab.south.flow(&lab.key), None);
    assert_eq!(lab.mirrored()[0].kind, closed);
    let mut lab = Lab::new().open();
    lab.crash();
    lab.splice(SeqNumber(9));
    lab.mirrored();
    change(&mut lab, SocketState::Close);
    lab.now += 1;
    change(&mut lab, SocketState::Close);
    assert_eq!(lab.flow().closed_ns, lab.now - 1);
    assert_eq!(lab.mirrored().len(), 1);
}

/// A new connection that the server resets while others are recovered: without a RST, the client
/// would wait for ever.
#[test]
fn a_new_connection_that_is_reset_in_a_recovery_is_told_so() {
    let mut lab = Lab::new();
    lab.crash();
    lab.south.new_incarnation();
    let mut lab = lab.open();
    change(&mut lab, SocketState::Close);
    let rst = || segment(SeqNumber(5001), SeqNumber(1001)).flags(Flags::RST | Flags::ACK);
    assert_eq!(lab.server(rst()).verdict, crate::Verdict::Next);
    // A RST to an unknown connection is still dropped.
    lab.now += SECOND;
    lab.south.sweep(0, lab.now);
    assert_eq!(lab.south.flow(&lab.key), None);
    assert_eq!(lab.server(rst()).verdict, crate::Verdict::Drop);
}

#[test]
fn a_server_that_has_not_read_all_is_heard_and_an_answer_to_a_straggler_is_not() {
    for orderly in [false, true] {
        let mut lab = Lab::new().open();
        lab.crash();
        lab.splice(SeqNumber(9));
        if orderly {
            change(&mut lab, SocketState::LastAck);
        }
        change(&mut lab, SocketState::Close);
        assert_eq!(lab.flow().was_reset, !orderly);
        let rst = segment(SeqNumber(10), lab.c + 1).flags(Flags::RST);
        let verdict = lab.server(rst).verdict;
        assert_eq!(verdict == crate::Verdict::Next, !orderly, "{verdict:?}");
    }
}

/// A connection of a later life, which has yet to be given the ten bytes that the client was told the server had.
fn in_a_replay() -> Lab {
    let mut lab = Lab::new().open();
    lab.client(segment(lab.c + 1, lab.s + 1).payload(b"ten bytes."));
    lab.server(segment(lab.s + 1, lab.c + 11));
    lab.crash();
    lab.splice(SeqNumber(9));
    lab
}

#[test]
fn a_server_that_half_closes_in_a_replay_is_given_the_rest() {
    let mut lab = in_a_replay();
    change(&mut lab, SocketState::HalfClosed);
    let half = |lab: &Lab| (lab.flow().server_closing, lab.flow().half_closed);
    assert_eq!(half(&lab), (false, true));
    let (c, s) = (lab.c, lab.s);
    let rest = || {
        let rest = segment(c + 1, s + 1).payload(b"ten bytes.");
        rest.mark(MARK + MARK_CLIENT_SPACE)
    };
    assert_eq!(lab.client(rest()).verdict, crate::Verdict::Next);
    change(&mut lab, SocketState::FinWait1);
    assert_eq!(half(&lab), (true, false), "closed since");
    assert_eq!(lab.client(rest()).verdict, crate::Verdict::Drop);
}

#[test]
fn a_half_close_in_a_replay_is_an_orderly_end_when_the_socket_is_gone() {
    let mut lab = in_a_replay();
    change(&mut lab, SocketState::HalfClosed);
    change(&mut lab, SocketState::Close);
    let flow = lab.flow();
    assert!(flow.server_closing && !flow.was_reset && flow.closed_ns != 0);
}

#[test]
fn a_server_that_dies_after_a_half_close_in_its_replay_is_not_heard() {
    let mut lab = in_a_replay();
    change(&mut lab, SocketState::HalfClosed);
    lab.crash();
    let fin = segment(SeqNumber(10), lab.c + 1).flags(FIN_ACK);
    assert_eq!(lab.server(fin).verdict, crate::Verdict::Drop);
    lab.splice(SeqNumber(9));
    assert!(!lab.flow().half_closed, "another socket");
}

#[test]
fn a_half_close_of_the_first_life_is_an_end() {
    let mut lab = Lab::new().open();
    change(&mut lab, SocketState::HalfClosed);
    assert!(lab.flow().server_closing && !lab.flow().half_closed);
}
