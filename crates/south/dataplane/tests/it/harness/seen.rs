//! State of the model in the form of the kernel.

use south_model::{MirrorFrame, SouthSide};

use super::kernel::RingFrame;

pub(super) fn as_frame(frame: MirrorFrame) -> RingFrame {
    RingFrame {
        kind: frame.kind,
        flow_id: frame.flow_id.0,
        server_nxt: frame.server_nxt,
        server_ack: frame.server_ack,
        packet_len: frame.packet_len,
        unfinished: frame.unfinished,
        packet: frame.packet,
        version: 0,
        room: 0,
    }
}

pub(super) fn model_counters(model: &SouthSide) -> [(&'static str, u64); 24] {
    let c = model.counters();
    [
        ("mirrored", c.mirrored),
        ("mirror_full", c.mirror_full),
        ("heads", c.heads),
        ("heads_lost", c.heads_lost),
        ("gated_out", c.gated_out),
        ("gated_in", c.gated_in),
        ("self_acks", c.self_acks),
        ("translated_out", c.translated_out),
        ("translated_in", c.translated_in),
        ("untracked", c.untracked),
        ("stripped", c.stripped),
        ("table_full", c.table_full),
        ("events_lost", c.events_lost),
        ("link_acks", c.link_acks),
        ("link_forged", c.link_forged),
        ("link_heads", c.link_heads),
        ("link_opens", c.link_opens),
        ("acks_clamped", c.acks_clamped),
        ("acks_withheld", c.acks_withheld),
        ("acks_made", c.acks_made),
        ("fenced", c.fenced),
        ("mirror_skipped", c.mirror_skipped),
        ("replay_held", c.replay_held),
        ("sampled", c.sampled),
    ]
}
