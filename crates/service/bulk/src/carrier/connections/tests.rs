use std::{net::TcpListener, sync::atomic::AtomicBool, thread};

use blast::BlastRanges;
use proptest::prelude::*;

use super::{
    super::{MemorySink, MemorySource},
    *,
};

const KEY: PacketKey = PacketKey::Secret([3; 16]);

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

fn bytes(size: usize) -> Vec<u8> {
    let noise = (0..u64::MAX).map(|it| (it.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8);
    noise.take(size).collect()
}

fn transfer(packet_bytes: u32, packets: u32, size: usize) -> Connected {
    Connected {
        key: KEY,
        layout: Layout::new(packet_bytes, packets).unwrap(),
        size: size as u64,
    }
}

fn queue(transfer: &Connected, present: &BlastRanges) -> Mutex<Queue> {
    Mutex::new(Queue::new(transfer.layout, transfer.size, present.clone()).unwrap())
}

fn arrivals(transfer: &Connected, present: &BlastRanges) -> Mutex<Arrivals> {
    Mutex::new(Arrivals::new(transfer.layout, transfer.size, present.clone()).unwrap())
}

/// A sink that several threads share.
struct SharedSink<'a>(&'a Mutex<MemorySink>);

impl Sink for SharedSink<'_> {
    fn write(&mut self, position: u64, payloads: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.0.lock().unwrap().write(position, payloads)
    }
}

/// Sends the missing blasts on so many connections. Returns the bytes of the sink.
fn transmit(transfer: &Connected, data: &[u8], present: &BlastRanges, count: usize) -> Vec<u8> {
    let queue = queue(transfer, present);
    let arrivals = arrivals(transfer, present);
    let pace = Pace::new(None);
    let sink = Mutex::new(MemorySink(vec![0; data.len()]));
    let never = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..count {
            let (near, far) = connection();
            let (queue, pace, never, arrivals, sink) = (&queue, &pace, &never, &arrivals, &sink);
            scope.spawn(move || {
                let mut source = MemorySource(data.to_vec());
                send_blasts(&near, transfer, (queue, pace), &mut source, never).unwrap();
            });
            scope.spawn(move || {
                let mut sink = SharedSink(sink);
                let transfer = (&transfer.key, arrivals);
                receive_blasts(&far, transfer, &mut sink, Placement::Copied, never).unwrap();
            });
        }
    });
    let arrivals = arrivals.into_inner().unwrap();
    assert!(arrivals.is_whole());
    assert_eq!(arrivals.position(), transfer.size);
    sink.into_inner().unwrap().0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn missing_blasts_arrive_whatever_the_sizes_are(
        packet_bytes in 1..900_u32,
        packets in 1..5_u32,
        size in 0..9000_usize,
        count in 1..4_usize,
        whole in prop::collection::vec((0..40_u32, 0..5_u32), 0..3),
    ) {
        let data = bytes(size);
        let transfer = transfer(packet_bytes, packets, size);
        let mut present = BlastRanges::new();
        for (first, len) in whole {
            present.insert(first, first + len);
        }
        let blast_bytes = transfer.layout.blast_bytes();
        let arrived = transmit(&transfer, &data, &present, count);
        for (at, byte) in arrived.iter().enumerate() {
            let blast = u32::try_from(at as u64 / blast_bytes).unwrap();
            let expected = if present.contains(blast) { 0 } else { data[at] };
            prop_assert_eq!(*byte, expected, "byte {}", at);
        }
    }
}

/// Receives these bytes. Returns the outcome, and whether the sink has been written.
fn outcome_of(transfer: &Connected, stream: &[u8]) -> (Result<(), BulkError>, bool) {
    let (mut near, far) = connection();
    near.write_all(stream).unwrap();
    drop(near);
    let arrivals = arrivals(transfer, &BlastRanges::new());
    let mut sink = MemorySink::default();
    let never = AtomicBool::new(false);
    let key_and_arrivals = (&transfer.key, &arrivals);
    let received = receive_blasts(&far, key_and_arrivals, &mut sink, Placement::Copied, &never);
    (received, !sink.0.is_empty())
}

fn sealed(transfer: &Connected, blast: u32) -> Vec<u8> {
    let mut source = MemorySource(bytes(usize::try_from(transfer.size).unwrap()));
    let mut sealed = Vec::new();
    let cipher = Cipher::new(&transfer.key);
    seal_blast(transfer, blast, &cipher, &mut source, &mut sealed).unwrap();
    sealed
}

#[test]
fn stream_of_no_correct_sender_is_an_error() {
    let transfer = transfer(100, 3, 1000);
    let first = sealed(&transfer, 0);
    let packet_len = PACKET_HEADER_LEN + 100 + TAG_LEN;
    let twice = [&first[..], &first[..]].concat();
    let behind_end = {
        let other = Connected {
            size: 5000,
            ..transfer
        };
        sealed(&other, 9)
    };
    let cases: [(&str, Vec<u8>, bool); 6] = [
        ("no header", vec![7; 400], false),
        ("a blast twice", twice, true),
        (
            "a packet in the middle",
            first[packet_len..].to_vec(),
            false,
        ),
        (
            "a packet is missing",
            [&first[..packet_len], &first[2 * packet_len..]].concat(),
            true,
        ),
        ("a blast behind the end", behind_end, false),
        (
            "an end in a packet",
            first[..packet_len + 50].to_vec(),
            true,
        ),
    ];
    for (name, stream, has_written) in cases {
        let (received, written) = outcome_of(&transfer, &stream);
        assert!(
            matches!(received, Err(BulkError::OutOfOrder | BulkError::Closed)),
            "{name}: {received:?}"
        );
        assert_eq!(written, has_written, "{name}");
    }
    let (received, _) = outcome_of(&transfer, &first);
    assert!(received.is_ok());
}

#[test]
fn changed_byte_is_never_written() {
    let transfer = transfer(100, 1, 100);
    let blast = sealed(&transfer, 0);
    for at in 0..blast.len() {
        let mut changed = blast.clone();
        changed[at] ^= 0x10;
        let (received, written) = outcome_of(&transfer, &changed);
        assert!(received.is_err() && !written, "byte {at}");
    }
    let mut other = transfer;
    other.key = PacketKey::Secret([4; 16]);
    let (received, written) = outcome_of(&other, &blast);
    assert!(matches!(received, Err(BulkError::Forged)) && !written);
}

#[test]
fn payload_is_received_in_its_place() {
    let data = bytes(100_000);
    let transfer = transfer(4096, 4, data.len());
    let queue = queue(&transfer, &BlastRanges::new());
    let arrivals = arrivals(&transfer, &BlastRanges::new());
    let (near, far) = connection();
    let never = AtomicBool::new(false);
    let mut sink = MemorySink(vec![0; data.len()]);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut source = MemorySource(data.clone());
            let pace = Pace::new(None);
            send_blasts(&near, &transfer, (&queue, &pace), &mut source, &never).unwrap();
        });
        let key_and_arrivals = (&transfer.key, &arrivals);
        receive_blasts(&far, key_and_arrivals, &mut sink, Placement::Placed, &never).unwrap();
    });
    assert!(sink.0 == data);
}

#[test]
fn rate_holds_for_all_connections_together() {
    let pace = Pace::new(Some(1000));
    assert!(pace.wait_after(1000) > Duration::from_millis(900));
    assert!(pace.wait_after(1000) > Duration::from_millis(1900));
    assert_eq!(Pace::new(None).wait_after(1 << 30), Duration::ZERO);
}

#[test]
fn stop_ends_both_ends_that_wait() {
    let data = bytes(64 << 20);
    let transfer = transfer(32 << 10, 8, data.len());
    let stop = AtomicBool::new(false);
    let (near, far) = connection();
    let (idle, quiet) = connection();
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let queue = queue(&transfer, &BlastRanges::new());
            let mut source = MemorySource(data.clone());
            // Nobody reads: the socket is full before the end.
            send_blasts(
                &near,
                &transfer,
                (&queue, &Pace::new(None)),
                &mut source,
                &stop,
            )
        });
        let receiving = scope.spawn(|| {
            let arrivals = arrivals(&transfer, &BlastRanges::new());
            let mut sink = MemorySink::default();
            let key_and_arrivals = (&transfer.key, &arrivals);
            receive_blasts(
                &quiet,
                key_and_arrivals,
                &mut sink,
                Placement::Copied,
                &stop,
            )
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for end in [sending, receiving] {
            assert!(matches!(end.join().unwrap(), Err(BulkError::Stopped)));
        }
    });
    drop((far, idle));
}

/// The bytes of the first may be hashed already.
#[test]
fn blast_that_another_connection_has_begun_is_refused() {
    let transfer = transfer(100, 3, 1000);
    let blast = sealed(&transfer, 0);
    let packet_len = PACKET_HEADER_LEN + 100 + TAG_LEN;
    let arrivals = arrivals(&transfer, &BlastRanges::new());
    let never = AtomicBool::new(false);
    let [begun, whole] = [&blast[..packet_len], &blast[..]].map(|bytes| {
        let (mut near, far) = connection();
        near.write_all(bytes).unwrap();
        (near, far)
    });
    let receive = |far: &TcpStream| {
        let mut sink = MemorySink::default();
        let key_and_arrivals = (&transfer.key, &arrivals);
        let received = receive_blasts(far, key_and_arrivals, &mut sink, Placement::Copied, &never);
        (received, sink.0.len())
    };
    drop(begun.0);
    let (received, len) = receive(&begun.1);
    assert!(matches!(received, Err(BulkError::Closed)) && len == 100);
    let (received, len) = receive(&whole.1);
    assert!(matches!(received, Err(BulkError::OutOfOrder)) && len == 0);
}

/// Keeps the highest position.
#[derive(Default)]
struct PositionWatch(Mutex<u64>);

impl Supervisor for PositionWatch {
    fn is_stopped(&self) -> bool {
        false
    }

    fn on_progress(&self, progress: Progress) {
        let mut highest = locked(&self.0);
        *highest = progress.position.max(*highest);
    }
}

/// Without the news, the receiver would wait for data that is there.
#[test]
fn blast_before_a_wrong_header_counts() {
    let transfer = transfer(100, 3, 300);
    let stream = [&sealed(&transfer, 0)[..], &[7; PACKET_HEADER_LEN]].concat();
    let arrivals = arrivals(&transfer, &BlastRanges::new());
    let (mut sink, watch) = (MemorySink::default(), PositionWatch::default());
    let received = receive_from(
        &mut &stream[..],
        (&transfer.key, &arrivals),
        &mut sink,
        Placement::Copied,
        &watch,
    );
    assert!(
        matches!(received, Err(BulkError::OutOfOrder)),
        "{received:?}"
    );
    assert!(locked(&arrivals).is_whole());
    assert_eq!(*locked(&watch.0), 300);
}
