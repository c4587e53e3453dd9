//! The measures of an upload from a capture on the client: section V.B of the paper.
//!
//! Throughput: for each outstream packet, the time since the client's first SYN and the acknowledged bytes; the slope
//! of a straight line through these points. Latency: for each instream packet with new data, the time from the first
//! transmission to the acknowledgement.

use std::time::Duration;

use lab::TcpSegment;

/// An upload.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Upload {
    /// Seconds since the SYN, and bytes acknowledged at that point: an entry for each outstream packet, until the
    /// whole upload is acknowledged.
    pub(super) acknowledged: Vec<(f64, f64)>,
    /// Seconds from sending to acknowledgement, an entry for each packet with new data.
    pub(super) latencies: Vec<f64>,
    /// Bytes that the client sent.
    pub(super) bytes: u32,
    /// Instream packets without new data.
    pub(super) again: usize,
}

impl Upload {
    /// The first connection to `port` in a client's capture; `None` when there is none.
    pub(super) fn of(packets: &[(Duration, TcpSegment)], port: u16) -> Option<Self> {
        let (began, syn) = packets
            .iter()
            .find(|(_, segment)| segment.destination == port && segment.is_syn())?;
        let mut reader = Reader {
            first: syn.sequence.wrapping_add(1),
            waiting: Vec::new(),
            upload: Self::default(),
        };
        let all = sent(packets, port, syn.source, reader.first);
        for (time, segment) in packets {
            let at = time.saturating_sub(*began).as_secs_f64();
            if (segment.source, segment.destination) == (syn.source, port) {
                reader.instream(at, segment);
            } else if (segment.source, segment.destination) == (port, syn.source) {
                reader.outstream(at, segment, all);
                if reader.is_done(all) {
                    break;
                }
            }
        }
        reader.upload.bytes = all;
        Some(reader.upload)
    }

    /// Whether the client sent `bytes` bytes, and all are acknowledged.
    pub(super) fn is_whole(&self, bytes: u32) -> bool {
        let acknowledged = self.acknowledged.last().map_or(0.0, |(_, bytes)| *bytes);
        self.bytes == bytes && acknowledged >= f64::from(bytes)
    }
}

/// The end of the data that the client sent.
fn sent(packets: &[(Duration, TcpSegment)], port: u16, client: u16, first: u32) -> u32 {
    let instream = packets
        .iter()
        .map(|(_, segment)| segment)
        .filter(|segment| (segment.source, segment.destination) == (client, port))
        .filter(|segment| segment.payload > 0);
    instream
        .map(|segment| end(segment, first))
        .max()
        .unwrap_or(0)
}

/// Where a segment's data ends, in bytes from the first.
fn end(segment: &TcpSegment, first: u32) -> u32 {
    let length = u32::try_from(segment.payload).unwrap_or(u32::MAX);
    segment.sequence.wrapping_sub(first).saturating_add(length)
}

struct Reader {
    /// The sequence number of the first byte.
    first: u32,
    /// New data without acknowledgement: the end, and the time of sending; in order.
    waiting: Vec<(u32, f64)>,
    upload: Upload,
}

impl Reader {
    fn instream(&mut self, at: f64, segment: &TcpSegment) {
        if segment.payload == 0 || segment.is_syn() {
            return;
        }
        let end = end(segment, self.first);
        let last = self.waiting.last().map_or(0, |(end, _)| *end);
        if end > last.max(self.acknowledged()) {
            self.waiting.push((end, at));
        } else {
            self.upload.again += 1;
        }
    }

    fn outstream(&mut self, at: f64, segment: &TcpSegment, all: u32) {
        if !segment.is_ack() {
            return;
        }
        // A FIN takes a number, but is no byte; and before the end of the handshake no byte is acknowledged.
        let acknowledged = segment.acknowledgment.wrapping_sub(self.first).min(all);
        let points = &mut self.upload.acknowledged;
        points.push((at, f64::from(acknowledged)));
        let done = self
            .waiting
            .partition_point(|(end, _)| *end <= acknowledged);
        let latencies = self.waiting.drain(..done).map(|(_, sent)| at - sent);
        self.upload.latencies.extend(latencies);
    }

    fn acknowledged(&self) -> u32 {
        let last = self.upload.acknowledged.last();
        // Made of a whole number that is at most 2³² - 1.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        last.map_or(0, |(_, bytes)| *bytes as u32)
    }

    fn is_done(&self, all: u32) -> bool {
        all > 0 && self.acknowledged() == all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;
    const FIN: u8 = 0x01;
    const MS: Duration = Duration::from_millis(1);

    /// From the client, whose first sequence number is just before the wrap.
    fn to(at: u32, flags: u8, offset: u32, payload: usize) -> (Duration, TcpSegment) {
        let segment = TcpSegment {
            version: 4,
            source: 5000,
            destination: 80,
            sequence: 0xffff_ff00u32.wrapping_add(offset),
            acknowledgment: 900,
            flags,
            payload,
        };
        (Duration::from_secs(1000) + at * MS, segment)
    }

    /// From the server, acknowledging everything before `offset`.
    fn from(at: u32, flags: u8, offset: u32) -> (Duration, TcpSegment) {
        let segment = TcpSegment {
            version: 4,
            source: 80,
            destination: 5000,
            sequence: 899,
            acknowledgment: 0xffff_ff00u32.wrapping_add(offset),
            flags,
            payload: 0,
        };
        (Duration::from_secs(1000) + at * MS, segment)
    }

    #[test]
    fn points_and_latencies_equal_capture() {
        // Sequence offset 0 is the SYN, and the first byte has offset 1.
        let packets = [
            to(0, SYN, 0, 0),
            from(2, SYN | ACK, 1),
            to(3, ACK, 1, 0),
            to(4, ACK, 1, 1000),
            to(5, ACK, 1001, 1000),
            from(9, ACK, 1001),
            to(10, ACK, 2001, 500),
            // The second, once more.
            to(30, ACK, 1001, 1000),
            from(34, ACK, 2501),
            to(35, ACK | FIN, 2501, 0),
            from(36, ACK | FIN, 2502),
        ];
        let upload = Upload::of(&packets, 80).unwrap();
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        let points = [(0.002, 0.0), (0.009, 1000.0), (0.034, 2500.0)];
        assert_eq!(upload.acknowledged.len(), points.len(), "{upload:?}");
        for (seen, known) in upload.acknowledged.iter().zip(points) {
            assert!(
                close(seen.0, known.0) && close(seen.1, known.1),
                "{upload:?}"
            );
        }
        let latencies = [0.005, 0.029, 0.024];
        assert_eq!(upload.latencies.len(), latencies.len());
        for (seen, known) in upload.latencies.iter().zip(latencies) {
            assert!(close(*seen, known), "{upload:?}");
        }
        assert_eq!((upload.bytes, upload.again), (2500, 1));
        assert!(upload.is_whole(2500));
        assert!(!upload.is_whole(2501));
    }

    #[test]
    fn stalled_upload_is_incomplete() {
        let packets = [
            to(0, SYN, 0, 0),
            from(2, SYN | ACK, 1),
            to(4, ACK, 1, 1000),
            to(4, ACK, 1001, 1000),
            from(9, ACK, 1001),
        ];
        let upload = Upload::of(&packets, 80).unwrap();
        assert_eq!(upload.latencies.len(), 1);
        assert!(!upload.is_whole(2000));
        assert_eq!(Upload::of(&packets[1..], 80), None, "no SYN");
    }
}
