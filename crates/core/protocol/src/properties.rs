//! Properties that hold for every byte string. The property tests of this crate and the fuzz
//! targets run the same functions; each function panics if the property does not hold.

use core::{cmp::Ordering, fmt::Debug};

use wire::{FlowId, FlowKey};

use crate::blast::{Acknowledgement, PacketHeader};
use crate::bulk::{ReceiverMessage, SenderMessage};
use crate::control::{
    Agreed, ControlError, Decoder, MAX_MESSAGE, Message, Opening, Request, Response, encode,
};
use crate::link::{
    ACK_LEN, Ack, Determinants, Head, KeySet, KeySlot, Kind, LinkKey, OPEN_LEN, Open, Probe,
    ProbeKind, STABLE_LEN, SegmentFlags, SegmentKind, SegmentView, Signer, Stable, heads_digest,
    seal, seal_head, seal_said,
};
use crate::mirror::{self, MirrorFrame};
use crate::pool::{BalancerMessage, MemberMessage};
use crate::{Digest, Versions};

/// A parsed frame is encoded as the same bytes. In another version, the frame has the same values,
/// except for fields that only one of the versions has.
///
/// # Panics
///
/// If the property does not hold.
pub fn mirror_frame(bytes: &[u8]) {
    let Ok((frame, rest)) = MirrorFrame::first(bytes) else {
        return;
    };
    let (own, _) = bytes.split_at(bytes.len() - rest.len());
    let version = own[4];
    for other in mirror::VERSIONS.oldest()..=mirror::VERSIONS.newest() {
        let mut out = Vec::new();
        frame
            .encode(other, &mut out)
            .expect("a frame that was read can be written");
        assert_eq!(out.len(), mirror::header_len(other) + frame.packet.len());
        let again = MirrorFrame::decode(&out).expect("a frame that was written can be read");
        match other.cmp(&version) {
            Ordering::Equal => assert_eq!(out, own),
            Ordering::Greater => assert_eq!(again, frame),
            Ordering::Less => {
                let mut back = Vec::new();
                let written = again.encode(other, &mut back);
                written.expect("a frame that was read can be written");
                assert_eq!(back, out);
            }
        }
    }
}

/// Any stream, read as either direction of the control protocol, of a peer of the same version, of a newer and of an
/// older peer: pieces of any size give the same messages and the same end as the whole. The messages of a peer of the
/// same version are encoded as what was read; the messages of other peers are read again as they are. The first byte of
/// `bytes` chooses the size of the pieces. The stream may also begin with an opening.
///
/// # Panics
///
/// If the property does not hold.
pub fn control_stream(bytes: &[u8]) {
    let Some((size, stream)) = bytes.split_first() else {
        return;
    };
    let size = usize::from(*size) + 1;
    from_any_peer::<Request>(stream, size);
    from_any_peer::<Response>(stream, size);
}

/// Like [`control_stream`], for both directions of the stream of a bulk transfer.
///
/// # Panics
///
/// If the property does not hold.
pub fn bulk_stream(bytes: &[u8]) {
    let Some((size, stream)) = bytes.split_first() else {
        return;
    };
    let size = usize::from(*size) + 1;
    from_any_peer::<SenderMessage>(stream, size);
    from_any_peer::<ReceiverMessage>(stream, size);
}

/// Like [`control_stream`], for both directions of the stream of a pool.
///
/// # Panics
///
/// If the property does not hold.
pub fn pool_stream(bytes: &[u8]) {
    let Some((size, stream)) = bytes.split_first() else {
        return;
    };
    let size = usize::from(*size) + 1;
    from_any_peer::<MemberMessage>(stream, size);
    from_any_peer::<BalancerMessage>(stream, size);
}

fn from_any_peer<M: Message + PartialEq + Debug>(stream: &[u8], size: usize) {
    let ours = M::FROM.versions();
    let newest = ours.newest();
    let newer = Versions::new(newest, newest + 1).expect("a range");
    let older = Versions::only(newest);
    let agreed = |ours, theirs| Agreed::on(ours, theirs).expect("they agree");
    for agreed in [
        Agreed::own(M::FROM),
        agreed(ours, newer),
        agreed(newer, older),
    ] {
        same_in_pieces::<M>(stream, agreed, size);
    }
    opened::<M>(stream, size);
}

fn same_in_pieces<M: Message + PartialEq + Debug>(stream: &[u8], agreed: Agreed, size: usize) {
    let whole = || Decoder::<M>::new(agreed);
    let (messages, error) = read_in_pieces(whole(), stream, stream.len().max(1));
    let mut out = Vec::new();
    for message in &messages {
        encode(message, agreed, &mut out).expect("a message that was read can be written");
    }
    let own = Agreed::own(M::FROM);
    if agreed == own {
        assert!(stream.starts_with(&out));
        let unread = stream.len() - out.len();
        assert!(error.is_some() || unread < 4 + MAX_MESSAGE);
    }
    let own = Decoder::<M>::new(own);
    let again = read_in_pieces(own, &out, out.len().max(1));
    assert_eq!((&again.0, again.1), (&messages, None));
    let pieces = read_in_pieces(whole(), stream, size);
    assert_eq!(pieces, (messages, error));
}

/// The opening is read as it is written, and a stream without an opening has no messages.
fn opened<M: Message + PartialEq + Debug>(stream: &[u8], size: usize) {
    let (messages, error) =
        read_in_pieces(Decoder::<M>::at_opening(M::FROM.versions()), stream, size);
    match Opening::read(M::FROM, stream) {
        Ok(Some(opening)) => assert!(stream.starts_with(&opening.encode())),
        Ok(None) => assert!(stream.len() < Opening::LEN && messages.is_empty() && error.is_none()),
        Err(wrong) => assert_eq!((messages, error), (Vec::new(), Some(wrong))),
    }
}

/// All messages of a stream that arrives in pieces of `size` bytes, and the error that ended it.
fn read_in_pieces<M: Message>(
    mut decoder: Decoder<M>,
    stream: &[u8],
    size: usize,
) -> (Vec<M>, Option<ControlError>) {
    let mut messages = Vec::new();
    for piece in stream.chunks(size) {
        decoder.feed(piece);
        loop {
            match decoder.pull() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}

/// Any bytes as a datagram of the log link. A signed datagram is encoded as the same bytes; a
/// SEGMENT made of a packet has the data of that packet.
///
/// # Panics
///
/// If the property does not hold.
pub fn link_datagram(bytes: &[u8]) {
    let key = LinkKey([7; 16]);
    let mut keys = KeySet::EMPTY;
    keys.put(KeySlot::Zero, key);
    keys.put(KeySlot::One, key);
    match Kind::of(bytes) {
        Err(_) => {}
        Ok(Kind::Segment) => {
            segment(bytes, &keys);
            for kind in [SegmentKind::Turn, SegmentKind::Noted] {
                sealed(bytes, kind, &key, &keys);
            }
        }
        Ok(Kind::Open) => {
            let read =
                |datagram: &[u8]| Some(Open::decode(datagram, &keys).ok()?.encode(&key).to_vec());
            signed(bytes, OPEN_LEN, &key, read);
        }
        Ok(Kind::Ack) => {
            let read =
                |datagram: &[u8]| Some(Ack::decode(datagram, &keys).ok()?.encode(&key).to_vec());
            signed(bytes, ACK_LEN, &key, read);
        }
        Ok(Kind::Determinants) => determinants(bytes, &key, &keys),
        Ok(Kind::Stable) => {
            let read =
                |datagram: &[u8]| Some(Stable::decode(datagram, &keys).ok()?.encode(&key).to_vec());
            signed(bytes, STABLE_LEN, &key, read);
        }
        Ok(kind) => {
            let kind = match kind {
                Kind::Probe => ProbeKind::Probe,
                _ => ProbeKind::Probed,
            };
            let read =
                |datagram: &[u8]| Some(Probe::decode(kind, datagram, &keys).ok()?.encode(&key));
            signed(bytes, Probe::len(bytes), &key, read);
        }
    }
}

/// `read` returns the first `len` bytes if the tag is right, otherwise `None`.
fn signed(bytes: &[u8], len: usize, key: &LinkKey, read: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    let _ = read(bytes);
    let Some(datagram) = bytes.get(..len) else {
        return;
    };
    let mut datagram = datagram.to_vec();
    let tag = key.tag(&datagram[..len - 8]);
    datagram[len - 8..].copy_from_slice(&tag.to_le_bytes());
    if let Some(again) = read(&datagram) {
        assert_eq!(again, datagram);
    }
}

/// A DETERMINANTS with a right tag is encoded as the same bytes.
fn determinants(bytes: &[u8], key: &LinkKey, keys: &KeySet) {
    let _ = (
        Determinants::decode(bytes, keys),
        Determinants::instance(bytes),
    );
    let mut datagram = bytes.to_vec();
    let Some(signed) = datagram.len().checked_sub(8) else {
        return;
    };
    let tag = key.tag(&datagram[..signed]);
    datagram[signed..].copy_from_slice(&tag.to_le_bytes());
    if let Ok(read) = Determinants::decode(&datagram, keys) {
        let mut again = datagram.clone();
        Determinants::room(&mut again).copy_from_slice(read.bytes);
        Determinants::seal(&read.at, key, &mut again);
        assert_eq!(again, datagram);
    }
}

/// A stranger's SEGMENT has no right tag, and is read without a panic.
fn segment(bytes: &[u8], keys: &KeySet) {
    let Ok(segment) = SegmentView::parse(bytes) else {
        return;
    };
    let is_noted = segment.flags().kind == SegmentKind::Noted;
    let behind = segment
        .noted()
        .map(|noted| segment.base_seq().0.wrapping_sub(noted.0));
    let window = u32::from(segment.segment().window());
    assert_eq!(behind, is_noted.then_some(window));
    let flow = FlowId(u64::from(segment.flow_low()));
    let nobody = ([0, 0, 0, 0], 0).into();
    let _ = segment.verify(keys, flow) && segment.is_undamaged(&FlowKey::new(nobody, nobody));
}

fn signer(key: &LinkKey) -> Signer<'_> {
    Signer {
        version: crate::link::VERSION,
        slot: KeySlot::One,
        key,
    }
}

/// A head with a part of the payload verifies as well.
fn cut(bytes: &[u8], key: &LinkKey, keys: &KeySet) {
    let flow = FlowId(7);
    let (after, keep) = (
        wire::SeqNumber(77),
        u16::try_from(bytes.len() / 2).unwrap_or(u16::MAX),
    );
    let says = Head {
        after,
        keep,
        whole: 9,
        asked: wire::SeqNumber(78),
    };
    let mut datagram = Vec::new();
    seal_head(bytes, flow, says, signer(key), &mut datagram).expect("a packet");
    let packet = wire::IpPacket::parse(bytes).expect("it was sealed");
    let whole = wire::Segment::of(&packet).expect("it was sealed");
    let head = SegmentView::parse(&datagram).expect("it was sealed");
    assert!(head.verify(keys, flow));
    assert_eq!((head.after(), head.segment().seq()), (after, whole.seq()));
    let kept = head.segment().payload();
    let (kept, _) = kept
        .split_last_chunk::<4>()
        .expect("it says what was asked");
    let asked = head.asked().map(|asked| asked.distance_from(whole.ack()));
    assert!(asked.is_some_and(|ahead| ahead.is_some_and(|ahead| ahead < 1 << 24)));
    let (begin, known, more) = head.head();
    assert!(kept.ends_with(known) && known.len() <= 9);
    assert_eq!(
        begin.0.wrapping_sub(whole.seq().0) as usize,
        kept.len() - known.len()
    );
    assert_eq!(known.len() + more as usize, 9);
    assert_eq!(
        kept,
        &whole.payload()[..usize::from(keep).min(whole.payload().len())]
    );
}

/// A digest in the place of the payload verifies as well.
fn told(bytes: &[u8], key: &LinkKey, keys: &KeySet) {
    let flow = FlowId(7);
    let mut digest = [0; Digest::LEN];
    for (to, from) in digest.iter_mut().zip(bytes) {
        *to = *from;
    }
    let digest = Digest::from_bytes(digest);
    let mut datagram = Vec::new();
    let says = (digest, wire::SeqNumber(77));
    seal_said(bytes, flow, says, signer(key), &mut datagram).expect("a packet");
    let told = SegmentView::parse(&datagram).expect("it was sealed");
    assert!(told.verify(keys, flow));
    assert_eq!((told.said(), told.after()), (Some(digest), says.1));
}

/// Any TCP packet becomes a SEGMENT that verifies and is as damaged as the packet was. The SEGMENT
/// carries the end of the newest head or the noted position: as far before the packet as the bytes
/// choose.
fn sealed(bytes: &[u8], kind: SegmentKind, key: &LinkKey, keys: &KeySet) {
    let flow = FlowId(0x0102_0304_0506_0708);
    let flags = SegmentFlags {
        version: crate::link::VERSION,
        kind,
        unfinished: false,
        slot: KeySlot::One,
    };
    let packet = wire::IpPacket::parse(bytes).ok();
    let segment = packet.and_then(|packet| wire::Segment::of(&packet).ok());
    let place = segment.map_or(wire::SeqNumber(5), |segment| {
        segment.seq() - u32::from(segment.checksum())
    });
    let mut datagram = Vec::new();
    if seal(bytes, flow, (flags, place), key, &mut datagram).is_err() {
        assert!(datagram.is_empty());
        return;
    }
    cut(bytes, key, keys);
    told(bytes, key, keys);
    let packet = wire::IpPacket::parse(bytes).expect("it was sealed");
    let before = wire::Segment::of(&packet).expect("it was sealed");
    let after = SegmentView::parse(&datagram).expect("it was sealed");
    assert!(after.verify(keys, flow));
    assert_eq!(after.flags(), flags);
    assert_eq!(after.base_seq(), before.seq());
    match kind {
        SegmentKind::Noted => assert_eq!(after.noted(), Some(place)),
        _ => assert_eq!((after.noted(), after.heads()), (None, heads_digest(place))),
    }
    assert_eq!(after.segment().seq(), before.seq());
    assert_eq!(after.segment().payload(), before.payload());
    let address = |ip| core::net::SocketAddr::new(ip, 0);
    let (client, server) = (packet.source(), packet.destination());
    let addresses = FlowKey::new(address(client), address(server));
    let valid = wire::ChecksumState::of(client, server, packet.payload());
    assert_eq!(
        after.is_undamaged(&addresses),
        valid == wire::ChecksumState::Valid
    );
}

/// A datagram that is read as a packet or as an acknowledgement of a bulk transfer is written as the same bytes.
///
/// # Panics
///
/// If the property does not hold.
pub fn blast_datagram(bytes: &[u8]) {
    if let Ok(header) = PacketHeader::decode(bytes) {
        let out = header.encode(bytes[2]);
        assert_eq!(out, bytes[..out.len()]);
    }
    if let Ok(acknowledgement) = Acknowledgement::decode(bytes) {
        let mut out = Vec::new();
        acknowledgement.encode(bytes[2], &mut out);
        assert_eq!(out, bytes);
    }
}
