//! When the reader of the mirror ring is woken: always if many bytes wait and the reader sleeps,
//! and seldom.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
};

use dataplane::{PinDirectory, Ring, Settings};
use libbpf_rs::MapHandle;
use protocol::mirror::{FrameKind, MirrorFrame};
use rustix::event::{
    PollFd, PollFlags, Timespec,
    epoll::{self, CreateFlags, Event, EventData, EventFlags},
    poll,
};
use south_model::Packet;
use wire::{FlowKey, SeqNumber};

use crate::harness::*;

/// Number of waiting bytes that wakes the reader, as in `mirror.h`.
const WAKE: usize = 256 * 1024;
const RING: u32 = 1 << 20;
const C: SeqNumber = SeqNumber(1000);
const S: SeqNumber = SeqNumber(5000);

/// The programs, open connections, and who counts wake-ups.
struct Woken {
    kernel: Kernel,
    wakes: OwnedFd,
    place: Pinned,
    _ring: MapHandle,
}

impl Woken {
    fn new() -> Self {
        let settings = Settings {
            mirror_bytes: RING,
            ..settings()
        };
        let place = Pinned::nowhere_else();
        let kernel = Kernel::pinned(&settings, &place);
        let ring = MapHandle::from_pinned_path(place.pins.pin("mirror")).expect("pinned");
        let wakes = epoll::create(CreateFlags::CLOEXEC).expect("an epoll");
        let each_time = EventFlags::IN | EventFlags::ET;
        epoll::add(&wakes, ring.as_fd(), EventData::new_u64(0), each_time).expect("it is a ring");
        Self {
            kernel,
            wakes,
            place,
            _ring: ring,
        }
    }

    /// Opens a connection; returns the client's first segment.
    fn open(&self, number: u16, payload: usize) -> Packet {
        let key = FlowKey::new(client_end(false, number), server_end(false));
        let from_client = |spec: Spec| spec.packet(key.client(), key.server());
        let mut syn = from_client(segment(C, SeqNumber(0)).flags(SYN));
        assert_eq!(self.kernel.ingress(&mut syn), Next);
        let answer = segment(S, C + 1).flags(SYN_ACK).window(60_000);
        let mut answer = answer.packet(key.server(), key.client());
        assert_eq!(self.kernel.egress(&mut answer), Next);
        assert_eq!(
            self.kernel.ingress(&mut from_client(segment(C + 1, S + 1))),
            Next
        );
        from_client(segment(C + 1, S + 1).payload(&vec![7; payload]))
    }

    fn says(&self, packet: &Packet) -> Verdict {
        let program = self.kernel.plane().program_fd("ingress");
        let mut frame = Frame::of(packet);
        frame
            .run(program.expect("it is loaded"))
            .expect("it is run")
    }

    /// Wake-ups since the last question; several may count as one.
    fn woken(&self) -> usize {
        let mut events: Vec<Event> = Vec::with_capacity(1);
        let room = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&self.wakes, room, Some(&Timespec::default())).expect("an epoll")
    }
}

/// Would a reader that polls this sleep?
fn sleeps(ring: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(ring, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).expect("it can be polled") == 0
}

/// For however long that takes.
fn sleep(ring: BorrowedFd<'_>) {
    let mut fds = [PollFd::from_borrowed_fd(ring, PollFlags::IN)];
    poll(&mut fds, None).expect("it can be polled");
}

#[test]
fn the_reader_is_woken_once_of_what_it_has_not_read() {
    let at = Woken::new();
    let packet = at.open(0, 1448);
    let frames = std::cell::Cell::new(0);
    let ring = Ring::mirror(&at.place.pins, |_| frames.set(frames.get() + 1)).expect("the ring");
    ring.consume().expect("it is read"); // the handshake
    at.woken();
    for _ in 0..5 {
        assert!(sleeps(ring.as_fd()));
        let mut wakes = 0;
        frames.set(0);
        let mut written = 0;
        while at.says(&packet) == Next {
            written += 1;
            wakes += at.woken();
        }
        sleep(ring.as_fd());
        assert!(!sleeps(ring.as_fd()), "it has not read yet");
        assert_eq!(wakes, 1, "of {written} frames, until the ring is full");
        // The reader reads a part, and as much is written again: the reader looks for more without
        // a wake-up.
        ring.consume_at_most(20).expect("it is read");
        for _ in 0..20 {
            assert_eq!(at.says(&packet), Next);
        }
        assert_eq!(at.woken(), 0);
        assert!(!sleeps(ring.as_fd()));
        ring.consume().expect("it is read");
        assert_eq!(frames.get(), written + 20);
    }
}

/// For any steps of the reader: where that many bytes wait, the reader finds the bytes or is woken.
#[test]
fn a_reader_never_sleeps_while_much_waits() {
    const STEPS: u32 = 20_000;
    let at = Woken::new();
    let packets = [1, 200, 1448, 2000].map(|payload| at.open(payload, payload.into()));
    let waits = std::cell::Cell::new(0_usize);
    let ring = Ring::mirror(&at.place.pins, |record| {
        waits.set(waits.get().saturating_sub(room(record)));
    });
    let ring = ring.expect("the ring");
    ring.consume().expect("it is read");
    waits.set(0);
    at.woken();
    let (mut wakes, mut written) = (0, 0);
    let mut random = Random(1);
    for _ in 0..STEPS {
        match random.below(1200) {
            0..2 => ring.consume().expect("it is read"),
            2..8 => {
                let most = 1 + random.below(300);
                ring.consume_at_most(most).expect("it is read");
            }
            8..40 => assert!(!sleeps(ring.as_fd()) || waits.get() < WAKE),
            _ => {
                let packet = &packets[random.below(packets.len())];
                let room = room_of(packet);
                if at.says(packet) == Next {
                    waits.set(waits.get() + room);
                    written += room;
                }
            }
        }
        wakes += at.woken();
        if waits.get() >= WAKE {
            sleep(ring.as_fd()); // for ever, if nobody woke it
        }
    }
    assert!(
        (3..=written / WAKE).contains(&wakes),
        "{wakes} wake-ups of {written} bytes"
    );
}

/// Two processors write, and send again if the ring has no space, as clients do. The reader sleeps
/// until woken. Without a wake-up, all three would wait for ever.
#[test]
fn two_writers_never_leave_the_reader_asleep() {
    const FRAMES: u32 = 20_000;
    let at = Woken::new();
    let packets = [0, 1].map(|number| at.open(number, 1448));
    let pins = &at.place.pins;
    let program = at
        .kernel
        .plane()
        .program_fd("ingress")
        .expect("it is loaded");
    let read = thread::scope(|scope| {
        let reader = scope.spawn(move || read_until_told(pins));
        let writers = packets.each_ref().map(|packet| {
            scope.spawn(move || {
                for _ in 0..FRAMES {
                    while Frame::of(packet).run(program).expect("it is run") != Next {
                        thread::yield_now();
                    }
                }
            })
        });
        for writer in writers {
            writer.join().expect("it writes");
        }
        while at.kernel.plane().barrier(1).is_err() {
            thread::yield_now();
        }
        reader.join().expect("it reads")
    });
    assert_eq!(read, 2 * FRAMES);
}

/// Segments in the ring before a barrier.
fn read_until_told(pins: &PinDirectory) -> u32 {
    let (segments, told) = (std::cell::Cell::new(0), std::cell::Cell::new(false));
    let ring = Ring::mirror(pins, |record| {
        let frame = MirrorFrame::decode(record).expect("a frame");
        match frame.kind {
            FrameKind::Instream => segments.set(segments.get() + 1),
            FrameKind::Barrier { .. } => told.set(true),
            _ => {}
        }
    });
    let ring = ring.expect("the ring");
    while !told.get() {
        sleep(ring.as_fd());
        ring.consume_at_most(256).expect("it is read");
    }
    segments.get()
}

/// Bytes of this record in the ring.
fn room(record: &[u8]) -> usize {
    (record.len() + 8).next_multiple_of(8)
}

/// Bytes that the record of this packet will take.
fn room_of(packet: &Packet) -> usize {
    let length = packet.bytes.len();
    let slots = [128, 256, 512, 1024, 2048];
    let slot = slots.into_iter().find(|slot| length <= *slot);
    let slot = slot.unwrap_or(length.next_multiple_of(4096));
    (protocol::mirror::HEADER_LEN + slot + 8).next_multiple_of(8)
}

/// Knuth's generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % end
    }
}
