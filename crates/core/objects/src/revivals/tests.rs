use alloc::vec;
use core::convert::Infallible;

use http1::version::VersionCheck;
use wire::{ChecksumMode, Flags, OptionsBuffer, SegmentSpec, TcpOption};

use super::*;
use crate::PoolKey;
use crate::isn::Slot;
use crate::judge::JudgeRules;
use crate::timestamp::index::Index;
use crate::timestamp::{ClientOptions, State, Timestamp};

const POOL: PoolKey = PoolKey([1; 16]);

/// Programs without connections.
#[derive(Default)]
struct Empty {
    to_client: Vec<Vec<u8>>,
}

impl Programs for Empty {
    type Error = Infallible;

    fn write_flow(&mut self, _: FlowKey, _: &Flow, _: bool) -> Result<bool, Infallible> {
        Ok(true)
    }

    fn flow(&mut self, _: FlowKey) -> Result<Option<Flow>, Infallible> {
        Ok(None)
    }

    fn forget_flow(&mut self, _: FlowKey) -> Result<(), Infallible> {
        Ok(())
    }

    fn forget_handshakes(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn flows(&mut self) -> Result<Vec<(FlowKey, Flow)>, Infallible> {
        Ok(Vec::new())
    }

    fn to_server(&mut self, _: u32, _: &[u8]) -> Result<(), Infallible> {
        Ok(())
    }

    fn pass_on(&mut self, _: &SegmentCopy) -> Result<(), Infallible> {
        Ok(())
    }

    fn to_client(&mut self, _: u32, packet: &[u8]) -> Result<(), Infallible> {
        self.to_client.push(packet.to_vec());
        Ok(())
    }
}

fn rules() -> Rules {
    Rules {
        key: POOL,
        judge: JudgeRules {
            check: VersionCheck::Etag,
            discard_limit: 0,
            takes_chunks: false,
        },
        incarnation: 1,
        unix_now: Duration::ZERO,
        withhold: Duration::from_secs(180),
        settled_at: Duration::ZERO,
    }
}

/// A client that waits for a stored response: an acknowledgement with an echo that says so.
fn waiting_client() -> SegmentCopy {
    let key = FlowKey::new(([10, 0, 0, 1], 40_000).into(), ([10, 0, 0, 10], 80).into());
    let options = ClientOptions::new(7, 1460).unwrap();
    let echo = Timestamp {
        index: Index::new(0),
        state: State::stored(&POOL, &key, Slot::new(3), options, 0),
    };
    let mut stamps = OptionsBuffer::new();
    let (value, echo) = (1, echo.to_wire());
    for option in [
        TcpOption::NoOperation,
        TcpOption::NoOperation,
        TcpOption::Timestamps { value, echo },
    ] {
        stamps.push(&option).unwrap();
    }
    let mut packet = Vec::new();
    let spec = SegmentSpec {
        source: key.client(),
        destination: key.server(),
        seq: SeqNumber(100),
        ack: SeqNumber(200),
        flags: Flags::ACK,
        window: 500,
        options: stamps.as_slice(),
        payload: &[],
    };
    spec.emit(&mut packet, ChecksumMode::Full).unwrap();
    SegmentCopy {
        key,
        kind: CopyKind::Unknown,
        interface: 1,
        packet_len: packet.len(),
        packet,
    }
}

/// The request of such a client is acknowledged. The client says nothing more, also if the RST is lost.
#[test]
fn client_without_record_is_reset_six_times() {
    let (mut revivals, mut programs) = (Revivals::default(), Empty::default());
    let missing = Err(PositionError::RecordMissing);
    let now = Duration::from_secs(1);
    let Ok(ended) = revivals.take(&mut programs, &rules(), &waiting_client(), missing, now);
    let reason = ended.and_then(|ended| ended.refused);
    assert_eq!(reason, Some(PositionError::RecordMissing.into()));
    assert_eq!(programs.to_client.len(), 1);
    while let Some(at) = revivals.deadline() {
        let Ok(ended) = revivals.poll(&mut programs, at);
        assert!(ended.is_empty());
    }
    assert_eq!(programs.to_client.len(), 6);
    assert_eq!(programs.to_client, vec![programs.to_client[0].clone(); 6]);
}

/// The client repeats a segment before the RST arrives.
#[test]
fn connection_is_reset_once_for_several_segments() {
    let (mut revivals, mut programs) = (Revivals::default(), Empty::default());
    let missing = Err(PositionError::RecordMissing);
    let now = Duration::from_secs(1);
    let mut ended = 0;
    for _ in 0..3 {
        let Ok(end) = revivals.take(
            &mut programs,
            &rules(),
            &waiting_client(),
            missing.clone(),
            now,
        );
        ended += usize::from(end.is_some());
    }
    assert_eq!((ended, programs.to_client.len()), (1, 3));
    // Later the port may be that of another connection.
    let later = now + REJECTION_TIME;
    let Ok(_) = revivals.poll(&mut programs, later);
    let Ok(end) = revivals.take(&mut programs, &rules(), &waiting_client(), missing, later);
    assert!(end.is_some());
}
