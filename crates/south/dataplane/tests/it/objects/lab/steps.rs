//! The steps of a connection, and packets besides.

use std::net::SocketAddr;

use objects::PoolKey;
use wire::SeqNumber;

use super::*;

/// The usual steps of one connection.
impl Lab {
    pub(in crate::objects) fn syn(&self) -> Spec {
        segment(self.c, SeqNumber(0))
            .flags(SYN)
            .window(64_000)
            .options(&syn_options(10, 0, CLIENT_SCALE))
    }

    pub(in crate::objects) fn syn_ack(&self) -> Spec {
        segment(self.s, self.c + 1)
            .flags(SYN_ACK)
            .window(60_000)
            .options(&syn_options(900, 10, SERVER_SCALE))
    }

    /// The handshake, with the client's timestamps 10 and 11, and the server's 900.
    pub(in crate::objects) fn open(mut self) -> Self {
        self.shake_hands();
        self
    }

    /// The turn of this number gets no record.
    pub(in crate::objects) fn given_up(&mut self, number: u32) -> bool {
        let Some(flow) = self.model.flow(&self.key) else {
            return false;
        };
        let start = flow.turn.request_start;
        let set = self.plane.give_up_record(self.key, number, start);
        let set = set.expect("it runs");
        assert_eq!(set, self.model.give_up_record(&self.key, number, start));
        self.agree();
        set
    }

    /// The handshake of a client without timestamps.
    pub(in crate::objects) fn shake_hands_without_timestamps(&mut self) {
        let mss = &syn_options(10, 0, CLIENT_SCALE)[..4];
        self.client(self.syn().options(mss));
        let answer = self.server(self.syn_ack().options(mss));
        let ack = answer.segment().seq() + 1;
        self.client(segment(self.c + 1, ack));
    }

    pub(in crate::objects) fn shake_hands(&mut self) {
        assert_eq!(self.client(self.syn()).verdict, Verdict::Next);
        let answer = self.server(self.syn_ack());
        assert_eq!(answer.verdict, Verdict::Next);
        let (isn, value) = {
            let answer = answer.segment();
            (
                answer.seq(),
                answer.timestamps().map_or(0, |stamps| stamps.value),
            )
        };
        let third = segment(self.c + 1, isn + 1).timestamps(11, value);
        assert_eq!(self.client(third).verdict, Verdict::Next);
    }

    /// The newest timestamp that the client was sent.
    pub(in crate::objects) fn value(&self) -> u32 {
        let flow = self.flow();
        objects::timestamp::Timestamp::value(flow.echoes.parts().newest, flow.states.newest)
    }

    /// The next segment of the client: everything that was sent has arrived, and is acknowledged.
    pub(in crate::objects) fn next_of_client(&self, tsval: u32) -> Spec {
        let flow = self.flow();
        segment(flow.client.nxt, flow.server.nxt).timestamps(tsval, self.value())
    }

    /// The next segment of the server's TCP, which acknowledges everything.
    pub(in crate::objects) fn next_of_server(&self, tsval: u32) -> Spec {
        let flow = self.flow();
        let seq = flow.server.nxt - flow.server.delta;
        segment(seq, flow.client.nxt).timestamps(tsval, flow.client.tsval)
    }
}

pub(in crate::objects) const REQUEST_BYTES: &[u8] = b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n";

/// The head of a response with so many bytes of body.
pub(in crate::objects) fn head(body_len: u64) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {body_len}\r\nETag: \"v1\"\r\n\r\n").into_bytes()
}

/// A packet of another protocol.
pub(in crate::objects) fn other_packet(lab: &Lab, bytes: Vec<u8>) -> south_model::Packet {
    south_model::Packet {
        bytes,
        mark: 0,
        ifindex: lab.interface,
        checksum: ChecksumMode::Full,
    }
}

pub(in crate::objects) fn client_of(lab: &Lab) -> (SocketAddr, SocketAddr) {
    (lab.key.client(), lab.key.server())
}

/// The timestamp of a SYN-ACK of a member with this key.
pub(in crate::objects) fn agreed_value(lab: &Lab, key: PoolKey) -> u32 {
    use objects::timestamp::{ClientOptions, State};
    let (slot, options) = (objects::isn::Slot::new(5), ClientOptions::of_number(5));
    let tag = State::agreed_tag(&key, &lab.key, slot, options, lab.c + 1);
    State::Agreed { slot, options, tag }.bits().bits()
}
