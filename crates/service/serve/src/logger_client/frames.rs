//! Mirror frames for a logger on another machine.
//!
//! After an adoption the ring holds frames of two versions: those of the programs before are still there. And frames
//! that one logger has not confirmed go to the next logger. So frames are translated when they are sent, to the version
//! that is agreed on with that logger.

use protocol::{
    control::MAX_DATA,
    mirror::{FrameKind, MirrorFrame},
};

/// The frames in `version`, with or without digests, in pieces of at most [`MAX_DATA`] bytes.
pub(super) fn translated(mut frames: &[u8], version: u8, with_digests: bool) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut piece = Vec::with_capacity(frames.len());
    while let Ok((frame, rest)) = MirrorFrame::first(frames) {
        frames = rest;
        if frame.kind == FrameKind::Digest && !with_digests {
            continue;
        }
        let begin = piece.len();
        if let Err(error) = frame.encode(version, &mut piece) {
            tracing::warn!(%error, "a frame is not sent");
        }
        // A header may be longer in another version.
        if piece.len() > MAX_DATA {
            let last = piece.split_off(begin);
            pieces.push(std::mem::replace(&mut piece, last));
        }
    }
    // An unreadable rest is left to the logger, which counts such frames.
    for piece in [piece, frames.to_vec()] {
        if !piece.is_empty() {
            pieces.push(piece);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use protocol::mirror::{self, CloseReason};
    use wire::{FlowId, SeqNumber};

    use super::*;

    fn frame(kind: FrameKind, packet: &[u8]) -> MirrorFrame<&[u8]> {
        MirrorFrame {
            timestamp_ns: 2,
            server_nxt: SeqNumber(3),
            server_ack: SeqNumber(4),
            packet_len: u32::try_from(packet.len()).expect("short"),
            packet,
            ..MirrorFrame::of(kind, FlowId(1))
        }
    }

    fn bytes(version: u8, frames: &[MirrorFrame<&[u8]>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for frame in frames {
            frame.encode(version, &mut bytes).expect("it is whole");
        }
        bytes
    }

    fn head(packet: &[u8]) -> MirrorFrame<&[u8]> {
        let (from, asked) = (SeqNumber(5), SeqNumber(6));
        frame(FrameKind::Outstream { from, asked }, packet)
    }

    fn closed() -> MirrorFrame<&'static [u8]> {
        frame(FrameKind::Closed(CloseReason::Finished), b"")
    }

    #[test]
    fn frames_of_several_versions_become_frames_of_one() {
        let frames = [
            head(b"a head"),
            frame(FrameKind::Digest, &[7; 24]),
            closed(),
        ];
        let versions = mirror::VERSIONS.oldest()..=mirror::VERSIONS.newest();
        let of_each = versions.clone().map(|version| bytes(version, &frames));
        let all = of_each.collect::<Vec<_>>().concat();
        for version in versions.clone() {
            let same = versions.clone().map(|_| bytes(version, &frames));
            let wanted = same.collect::<Vec<_>>().concat();
            assert_eq!(translated(&all, version, true), [wanted]);
        }
    }

    #[test]
    fn logger_with_other_key_gets_no_digests() {
        let version = mirror::VERSION;
        let digest = frame(FrameKind::Digest, &[7; 24]);
        let head = head(b"a head");
        let all = bytes(version, &[digest, head, digest, closed()]);
        let kept = bytes(version, &[head, closed()]);
        assert_eq!(translated(&all, version, false), [&kept[..]]);
        let damaged = [&all[..], b"damaged"].concat();
        assert_eq!(
            translated(&damaged, version, false),
            [&kept[..], b"damaged"]
        );
    }

    #[test]
    fn translated_frames_fit_messages() {
        let (oldest, newest) = (mirror::VERSIONS.oldest(), mirror::VERSIONS.newest());
        let one = bytes(oldest, &[closed()]);
        let all = one.repeat(MAX_DATA / one.len());
        let pieces = translated(&all, newest, true);
        assert!(pieces.iter().all(|piece| piece.len() <= MAX_DATA));
        let count = MAX_DATA / one.len();
        assert_eq!(pieces.concat(), bytes(newest, &[closed()]).repeat(count));
    }

    #[test]
    fn no_frames_are_no_message() {
        assert!(translated(b"", mirror::VERSION, true).is_empty());
    }
}
