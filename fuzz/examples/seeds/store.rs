//! Records of a store, and the answers of stores.

use http1::version::ObjectVersion;
use objects::{
    PoolKey,
    isn::Slot,
    record::{
        HashName, MemberHash, Record, RecordKey, StoreKey, StoredAnswer, StoredOptions, StoredTurn,
    },
};
use wire::{FlowKey, SeqNumber};

/// Contents of records, and a sealed record.
pub(crate) fn records() -> Vec<Vec<u8>> {
    let turn = StoredTurn {
        number: 0,
        request_start: SeqNumber(1),
        request: b"GET /a HTTP/1.1\r\nHost: a\r\nRange: bytes=5-\r\n\r\n".to_vec(),
        has_range: true,
        answer: Some(StoredAnswer {
            start: SeqNumber(u32::MAX),
            header_len: 200,
            response_len: Some(5 << 30),
            first_byte: 5,
            acked: 3 << 30,
            version: ObjectVersion {
                complete_len: Some((5 << 30) + 5),
                etag: Some("\"a\"".into()),
                last_modified: Some("Mon".into()),
                content_encoding: None,
            },
        }),
    };
    let unanswered = StoredTurn {
        number: 1,
        answer: None,
        ..turn.clone()
    };
    let idle = Record {
        generation: 1,
        owner: 7,
        client_isn: SeqNumber(0),
        server_isn: SeqNumber(u32::MAX),
        slot: Slot::new(15),
        options: StoredOptions {
            window_scale: Some(7),
            segment_size: 1460,
            has_sack: true,
            has_timestamps: false,
        },
        turns: vec![],
        inputs: None,
        chunks: None,
    };
    let one = Record {
        turns: vec![turn.clone()],
        ..idle.clone()
    };
    let two = Record {
        turns: vec![turn, unanswered],
        ..idle.clone()
    };
    let pool = PoolKey([7; 16]);
    let flow = FlowKey::new(([10, 0, 0, 2], 40_000).into(), ([10, 0, 0, 10], 80).into());
    let name = StoreKey::new(
        HashName::new(flow.server(), MemberHash::of("web1", &pool)),
        flow,
    );
    let sealed = one
        .seal(&RecordKey::of(&pool), &name, [3; 24])
        .expect("within the limits");
    let mut all: Vec<Vec<u8>> = [idle, one, two]
        .iter()
        .map(|record| postcard::to_allocvec(record).expect("a record"))
        .collect();
    all.push(sealed);
    all.push(b"10.0.0.1:40000>10.0.0.10:80".to_vec());
    all.push(b"[fd00::1]:40000>[fd00::10]:80".to_vec());
    all
}

/// Replies of Redis and of memcached.
pub(crate) fn store_replies() -> Vec<Vec<u8>> {
    let all: [&[u8]; 8] = [
        b"+PONG\r\n:1\r\n:0\r\n",
        b"$3\r\nabc\r\n$-1\r\n*-1\r\n",
        b"*2\r\n$1\r\n0\r\n*2\r\n$27\r\n10.0.0.1:40000>10.0.0.10:80\r\n$1\r\nb\r\n",
        b"-OOM command not allowed when used memory > 'maxmemory'.\r\n-NOAUTH x\r\n",
        b"HD O65536\r\nNF O7\r\nNS O7\r\n",
        b"VA 2 O65536\r\nab\r\nVA 0\r\n\r\nMN\r\nEN\r\n",
        b"VERSION 1.6.18\r\nSTAT pid 7\r\nSTAT evictions on\r\nEND\r\n",
        b"SERVER_ERROR out of memory storing object\r\nERROR\r\n",
    ];
    all.map(<[u8]>::to_vec).to_vec()
}
