//! Two processors at once. The model knows only one of both, so assertions hold for any order.

use std::{
    os::fd::BorrowedFd,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use protocol::mirror::FrameKind;
use rustix::thread::{CpuSet, sched_setaffinity};
use wire::{FlowId, FlowKey, SeqNumber};

use crate::harness::*;

/// One processor completes the handshake, the other processor brings the client's first input: the
/// record has the input, under the final number of the connection.
#[test]
fn a_handshake_that_two_segments_complete_opens_one_record() {
    const ROUNDS: u32 = 3000;
    if thread::available_parallelism().is_ok_and(|processors| processors.get() < 2) {
        eprintln!("needs two processors");
        return;
    }
    let kernel = Leased::new();
    let (c, s) = (SeqNumber(1000), SeqNumber(5000));
    let key = FlowKey::new(client_end(false, 0), server_end(false));
    let from_client = |spec: Spec| spec.packet(key.client(), key.server());
    let syn = segment(c, SeqNumber(0)).flags(SYN);
    let syn_ack = segment(s, c + 1).flags(SYN_ACK).window(60_000);
    let ack = from_client(segment(c + 1, s + 1));
    let first = from_client(segment(c + 1, s + 1).payload(b"first"));
    let program = kernel.plane().program_fd("ingress").expect("it is loaded");
    for round in 0..ROUNDS {
        kernel.reset();
        let mut syn = from_client(syn.clone());
        assert_eq!(kernel.ingress(&mut syn), Next);
        let mut answer = syn_ack.packet(key.server(), key.client());
        assert_eq!(kernel.egress(&mut answer), Next);
        let start = AtomicU32::new(0);
        thread::scope(|scope| {
            for (processor, packet) in [(0, &ack), (1, &first)] {
                let start = &start;
                // Each processor is first equally often, by some nanoseconds.
                let delay = (round * 7 + 100 * processor) % 200;
                scope.spawn(move || {
                    let verdict = run_on(processor as usize, program, packet, start, delay);
                    assert_eq!(verdict, Next);
                });
            }
        });
        let flows = kernel.plane().flows().expect("readable");
        let [(_, flow)] = &flows[..] else {
            panic!("one connection: {flows:?}")
        };
        let frames = kernel.take_frames();
        let at = |wanted: fn(&FrameKind) -> bool| {
            let mut ours = frames
                .iter()
                .filter(|frame| FlowId(frame.flow_id) == flow.id);
            ours.position(|frame| wanted(&frame.kind))
        };
        let opened = at(|kind| matches!(kind, FrameKind::Opened { .. }));
        let said = at(|kind| matches!(kind, FrameKind::Instream));
        assert!(
            opened.is_some() && said > opened,
            "round {round}, {:?}: {frames:?}",
            flow.id
        );
        assert_eq!(flow.client.nxt, c + 6, "round {round}");
    }
}

/// Runs the program when all other threads are ready.
fn run_on(
    processor: usize,
    program: BorrowedFd<'_>,
    packet: &south_model::Packet,
    start: &AtomicU32,
    delay: u32,
) -> Verdict {
    let mut here = CpuSet::new();
    here.set(processor);
    sched_setaffinity(None, &here).expect("it is there");
    let mut frame = Frame::of(packet);
    start.fetch_add(1, Ordering::AcqRel);
    while start.load(Ordering::Acquire) < 2 {
        std::hint::spin_loop();
    }
    for _ in 0..delay {
        std::hint::spin_loop();
    }
    frame.run(program).expect("it is run")
}
