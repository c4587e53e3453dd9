//! Encoded data decodes to the same data, and malformed data is no record.

use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::{
    handover::{ClientPosition, Ends, Entry, Message, StreamOffsets, UpstreamPosition},
    layout::{Claimed, Destination, DestinationCell, Serving},
    passed_connections::Passed,
    *,
};

fn any_call() -> impl Strategy<Value = Call> {
    prop::sample::select(&Call::ALL[..])
}

fn write(record: &Record<'_>) -> Vec<u8> {
    let mut header = [0; HEADER_MAX];
    let length = record.header().write(&mut header);
    let mut bytes = header[..length].to_vec();
    bytes.extend_from_slice(record.payload);
    bytes
}

proptest! {
    #[test]
    fn record_round_trip(
        call in any_call(),
        fd: u32,
        outcome in -4095i64..i64::MAX,
        payload in prop::collection::vec(any::<u8>(), 0..300),
        follows in prop::collection::vec(any::<u8>(), 0..20),
        exact: bool,
    ) {
        let outcome = if exact { i64::try_from(payload.len()).expect("short") } else { outcome };
        let record = Record { call, fd, outcome, payload: &payload };
        let mut bytes = write(&record);
        let length = bytes.len();
        bytes.extend(follows);
        prop_assert_eq!(Record::read(&bytes), Ok((record, length)));
        for cut in 0..length {
            prop_assert_eq!(Record::read(&bytes[..cut]), Err(DecodeError::CutOff));
        }
    }

    #[test]
    fn decoded_tail_encodes_equal(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Ok((record, length)) = Record::read(&bytes) {
            let again = write(&record);
            // A length may be given although the outcome implies the length. Such a record is longer, and equal.
            prop_assert!(again.len() <= length);
            prop_assert_eq!(Record::read(&again), Ok((record, again.len())));
        }
    }

    #[test]
    fn file_identity_round_trip(inode: u64, size: u64, modified: u64) {
        let identity = Identity { inode, size, modified };
        let bytes = identity.to_bytes();
        prop_assert_eq!(Identity::from_bytes(&bytes), Some(identity));
        prop_assert_eq!(Identity::from_bytes(&bytes[1..]), None);
    }

    #[test]
    fn ready_list_round_trip(
        list in prop::collection::vec((any::<u32>(), any::<u32>()), 0..20),
    ) {
        let list: Vec<Ready> = list.into_iter().map(|(fd, events)| Ready { fd, events }).collect();
        let mut room = [0; 20 * ReadyWriter::MAX_EACH];
        let mut writer = ReadyWriter::new(&mut room);
        for ready in &list {
            prop_assert!(writer.push(*ready));
        }
        let bytes = writer.bytes();
        prop_assert_eq!(ReadyReader::new(bytes).collect::<Vec<_>>(), list);
    }

    /// A replay of the ticks reads the same clocks, however the real clocks run, also backwards.
    #[test]
    fn replayed_clock_equals_recorded_clock(
        steps in prop::collection::vec((0u64..50_000, -3i64..3, any::<bool>()), 1..200),
    ) {
        let (mut clock, mut again) = (Clock::default(), Clock::default());
        let (mut monotonic, mut time_of_day) = (5_000_000_000, 1_700_000_000_000_000_000u64);
        let mut last = 0;
        let mut was_set = false;
        for (passes, set, which) in steps {
            monotonic += passes;
            time_of_day = (time_of_day + passes).wrapping_add_signed(set / 2 * 1_000_000_000);
            was_set |= set / 2 != 0;
            if clock.is_due(monotonic) {
                was_set = false;
                let tick = clock.tick(monotonic, time_of_day);
                let mut payload = [0; 8];
                let bytes = write(&tick.record(&mut payload));
                let (record, _) = Record::read(&bytes).expect("a record");
                prop_assert!(again.replay(&Tick::from_record(&record).expect("a tick")));
            }
            if which {
                let read = clock.monotonic();
                prop_assert_eq!(read, again.monotonic());
                prop_assert!(read > last);
                prop_assert!(read.abs_diff(monotonic) <= Clock::GRAIN + 1000);
                last = read;
            } else {
                let read = clock.time_of_day();
                prop_assert_eq!(read, again.time_of_day());
                prop_assert!(was_set || read.abs_diff(time_of_day) <= Clock::GRAIN + 1000 + 20_000 + 200);
            }
        }
        prop_assert_eq!(clock, again);
    }

    /// In the next incarnation the clocks continue, by as much as the time of day has passed.
    #[test]
    fn clock_continues_in_next_incarnation(down in 0u64..1_000_000_000_000, booted in 0u64..1_000_000_000_000) {
        let mut clock = Clock::default();
        clock.tick(77_000_000, 1_700_000_000_000_000_000);
        let stood = clock.monotonic();
        clock.go_on(booted, 1_700_000_000_000_000_000 + down);
        prop_assert_eq!(clock.is_due(booted), down >= Clock::GRAIN);
        clock.tick(booted, 1_700_000_000_000_000_000 + down);
        let now = clock.monotonic();
        prop_assert!(now > stood);
        prop_assert!((now - stood).abs_diff(down) <= 1001);
    }
}

#[test]
fn small_request_takes_few_bytes() {
    let turn = Record {
        call: Call::Epoll,
        fd: 5,
        outcome: 1,
        payload: &[24],
    };
    let tick = Tick {
        reads: 4,
        advance: 31,
        wall: None,
    };
    let read = Record {
        call: Call::Read,
        fd: 12,
        outcome: 31,
        payload: &[0; 31],
    };
    let mut room = [0; 8];
    let all = write(&turn).len() + write(&tick.record(&mut room)).len() + write(&read).len();
    assert!(all - 31 <= 12, "{all} - 31 bytes");
}

#[test]
fn stream_ends_at_malformed_record() {
    let good = write(&Record {
        call: Call::Value,
        fd: 0,
        outcome: 7,
        payload: &[],
    });
    let bytes = [&good[..], &[0x3f, 0, 0]].concat();
    let records: Vec<_> = Records::new(&bytes).collect();
    assert_eq!(records.len(), 2);
    assert_eq!(records[1], Err(DecodeError::UnknownCall(0x3f)));
}

#[test]
fn page_layout_is_stable() {
    use core::mem::{align_of, offset_of, size_of};
    use layout::{Page, Process};
    assert_eq!(size_of::<Process>(), 64);
    assert_eq!(offset_of!(Page, processes), 192);
    // In all versions.
    assert_eq!(offset_of!(Page, magic), 0);
    assert_eq!(offset_of!(Page, version), 8);
    assert_eq!((offset_of!(Page, mode), layout::Mode::Off as u32), (12, 1));
    assert_eq!(
        (offset_of!(Page, hold), layout::Hold::Never as u32),
        (16, 0)
    );
    assert_eq!(align_of::<Page>(), 4096);
    assert!(size_of::<Page>() < 1 << 36);
}

#[test]
fn revoked_position_is_not_settled() {
    let settled = layout::Settled::default();
    settled.advance(|known| known + 4);
    assert_eq!(settled.number(), 5);
    settled.advance(|known| {
        settled.take_back();
        known + 1
    });
    assert_eq!(settled.number(), 1, "what was seen then says nothing now");
    settled.advance(|known| known + 2);
    assert_eq!(settled.number(), 3);
    settled.take_back();
    assert_eq!(settled.number(), 1);
}

#[test]
fn syn_identifies_connection() {
    let tcp = [
        0x1f, 0x90, 0, 80, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0, 0x50, 0xc2,
    ];
    let v4 = |words: u8| {
        let mut packet = vec![0; usize::from(words) * 4];
        (packet[0], packet[9]) = (0x40 | words, 6);
        packet.extend(tcp);
        packet
    };
    let mut v6 = vec![0; 40];
    (v6[0], v6[6]) = (0x60, 6);
    v6.extend(tcp);
    for packet in [v4(5), v4(15), v6.clone()] {
        assert_eq!(Which::of_syn(&packet), Which::Isn(0xdead_beef));
    }
    // An extension header, no IP, another protocol, no SYN, and packets that are cut off.
    v6[6] = 60;
    let (mut udp, mut answer) = (v4(5), v4(5));
    (udp[9], answer[33]) = (17, 0x12);
    for packet in [&v6[..], &[0x70; 60], &udp, &answer, &v4(5)[..33], &[]] {
        assert_eq!(Which::of_syn(packet), Which::Unknown);
    }
}

proptest! {
    #[test]
    fn accepted_connection_round_trip(
        peer in prop::collection::vec(any::<u8>(), 0..=28),
        local in prop::collection::vec(any::<u8>(), 0..=28),
        (kind, number) in (0..3_usize, any::<u32>()),
        cut in 0..70_usize,
    ) {
        let which = [Which::Unknown, Which::Isn(number), Which::Flow(number.into())][kind];
        let accepted = AcceptedConnection { which, peer: &peer, local: &local };
        let mut payload = vec![0; accepted.length()];
        accepted.write(&mut payload);
        prop_assert_eq!(AcceptedConnection::read(&payload), Some(accepted));
        // No payload makes the reader panic.
        let _ = AcceptedConnection::read(&payload[..cut.min(payload.len())]);
    }

    #[test]
    fn handover_entry_round_trip(
        (connection, process) in any::<(u32, u32)>(),
        (instream, outstream, serial) in any::<(u64, u64, u64)>(),
        (is_shut, is_closed, is_local) in any::<(bool, bool, bool)>(),
        ends in prop::array::uniform32(any::<u8>()),
        bytes in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut both = Ends::default();
        both.0[..32].copy_from_slice(&ends);
        let which = Which::from_u64(instream ^ outstream);
        let position = ClientPosition { ends: both, instream, outstream, is_shut, is_closed, which };
        let upstream = UpstreamPosition { serial, is_local, instream, outstream, is_shut, is_closed };
        let entries = [
            Entry::Output { connection, offset: outstream, bytes: &bytes },
            Entry::ClientPosition { connection, process, position },
            Entry::UpstreamPosition { connection, process, position: upstream },
            Entry::Began { connection, ends: both },
            Entry::Open { connection, fd: connection, ends: both },
            Entry::Served {
                connection,
                from: StreamOffsets { instream: serial, outstream },
                to: StreamOffsets { instream, outstream: serial },
            },
        ];
        let mut all = Vec::new();
        for entry in &entries {
            all.extend(entry.header());
            if let Entry::Output { bytes, .. } = entry {
                all.extend_from_slice(bytes);
            }
        }
        let mut rest = &all[..];
        for entry in entries {
            let (read, length) = Entry::read(rest).expect("an entry");
            prop_assert_eq!(read, entry);
            rest = &rest[length..];
        }
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn message_round_trip((process, connections, serial) in any::<(u32, u32, u64)>()) {
        let all = [
            Message::Replayed { process, connections },
            Message::Opened { process, serial },
            Message::Closed { process, serial },
            Message::Paused { process },
        ];
        for message in all {
            let bytes = message.to_bytes();
            prop_assert_eq!(Message::from_bytes(&bytes), Some(message));
            prop_assert_eq!(Message::from_bytes(&bytes[1..]), None);
        }
    }

    #[test]
    fn destination_round_trip(
        ip: [u8; 16], up: [u8; 16], down: [u8; 16],
        (port, scope, datagram, version, slot, instance) in any::<(u16, u32, u16, u8, u8, u64)>(),
    ) {
        let there = Destination { ip, port, scope, datagram, version, slot, instance, up, down };
        let shipping = DestinationCell::default();
        prop_assert_eq!(shipping.get(), None);
        shipping.set(&there);
        let (turn, got) = shipping.get().unwrap();
        prop_assert_eq!(got, there);
        shipping.set(&Destination::default());
        prop_assert!(shipping.generation() != turn);
        prop_assert_eq!(shipping.get().map(|(_, got)| got), Some(Destination::default()));
    }
}

#[test]
fn connection_has_one_owner_at_a_time() {
    let serving = std::boxed::Box::<Serving>::default();
    let place = |instream| StreamOffsets {
        instream,
        outstream: 3,
    };
    for connection in [0, 7] {
        assert_eq!(serving.claim(connection, 1), Claimed::Own);
        serving.let_go(connection, 1, place(0));
        assert_eq!(serving.claim(connection, 2), Claimed::From(place(0)));
        serving.let_go(connection, 2, place(1));
        assert_eq!(serving.claim(connection, 1), Claimed::From(place(1)));
        assert_eq!(serving.claim(connection, 1), Claimed::Own);
        assert_eq!(serving.claim(connection, 2), Claimed::No);
        serving.let_go(connection, 2, place(9));
        assert_eq!(serving.claim(connection, 0), Claimed::No);
        serving.let_go(connection, 1, place(5));
        // Of several replays the furthest position counts.
        serving.let_go(connection, 3, place(4));
        assert_eq!(serving.claim(connection, 2), Claimed::From(place(5)));
        assert_eq!(serving.claim(connection, 1), Claimed::No);
        serving.let_go(connection, 2, place(6));
        serving.let_go(connection, 1, place(8));
        assert_eq!(serving.claim(connection, 2), Claimed::From(place(8)));
    }
    // A second connection with the same index overwrites the first.
    let other = 7 + (1 << 16);
    assert_eq!(serving.claim(other, 4), Claimed::Own);
    assert_eq!(serving.claim(7, 5), Claimed::Own);
    serving.clear(8);
    assert_eq!(serving.claim(7, 1), Claimed::Own);
}

proptest! {
    #[test]
    fn passed_connection_arrives_once(
        (number, sender, serial, is_held) in any::<(u32, u32, u64, bool)>(),
        (one, other) in (prop::array::uniform29(any::<u8>()), prop::array::uniform29(any::<u8>())),
        inode in 1u64..,
    ) {
        let passing = std::boxed::Box::<layout::Passing>::default();
        let which = Which::from_u64(serial ^ inode);
        let passed = Passed { number, sender, serial, is_held, which, ends: [one, other] };
        prop_assert_eq!(passing.take(inode), None);
        prop_assert!(passing.send(inode, &passed) && !passing.send(inode, &passed));
        prop_assert!(passing.is_under_way(sender) && !passing.is_under_way(sender ^ 1));
        prop_assert_eq!(passing.take(inode ^ 1), None);
        prop_assert_eq!(passing.take(inode), Some(passed));
        prop_assert_eq!(passing.take(inode), None);
        prop_assert!(!passing.is_under_way(sender));
    }
}

#[test]
fn passed_connection_table_has_limit() {
    let passing = std::boxed::Box::<layout::Passing>::default();
    let passed = Passed {
        number: 1,
        sender: 2,
        serial: 3,
        is_held: true,
        which: Which::Isn(5),
        ends: [[4; 29]; 2],
    };
    let sent = (1..2000)
        .filter(|inode| passing.send(*inode, &passed))
        .count();
    assert_eq!(sent, 1024);
    assert!(passing.take(7).is_some() && passing.send(3000, &passed));
    passing.clear();
    assert!(!passing.is_under_way(2));
}

proptest! {
    /// A deadline by this clock comes at the right time on a host with another uptime.
    #[test]
    fn deadline_uses_kernel_clock(
        stood in 0..u64::MAX / 8,
        kernels in 0..u64::MAX / 8,
        passed in 0..1u64 << 60,
        wait in 0..1u64 << 60,
    ) {
        let mut clock = Clock::default();
        let wall = 1 << 60;
        let _ = clock.tick(stood, stood + wall);
        let stands = clock.monotonic();
        prop_assert_eq!(clock.until(stands + 1 + wait, false), wait);
        let day = clock.time_of_day();
        prop_assert_eq!(clock.until(day + 1 + wait, true), wait);
        clock.go_on(kernels, day + passed);
        let _ = clock.tick(kernels, 0);
        let now = clock.monotonic();
        let at = clock.kernels(now + wait);
        prop_assert!(at.abs_diff(kernels + wait) <= 1000, "{at} for {}", kernels + wait);
    }
}
