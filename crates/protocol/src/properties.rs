//! What holds for every byte string. The property tests of this crate and the fuzz targets run the
//! same functions; each panics if its property does not hold.

use core::fmt::Debug;

use crate::control::{ControlError, Decoder, MAX_MESSAGE, Message, Request, Response, encode};
use crate::mirror::{HEADER_LEN, MirrorFrame};

/// A frame that can be read is encoded as the bytes that it was read from.
///
/// # Panics
///
/// If the property does not hold.
pub fn mirror_frame(bytes: &[u8]) {
    let Ok(frame) = MirrorFrame::decode(bytes) else {
        return;
    };
    let mut out = Vec::new();
    frame
        .encode(&mut out)
        .expect("a frame that was read can be written");
    assert_eq!(out.len(), HEADER_LEN + frame.packet.len());
    assert_eq!(out, bytes[..out.len()]);
}

/// Any stream, read as either direction of the control protocol: pieces of any size give the same
/// messages and the same end as the whole, and the messages are encoded as what was read. The
/// first byte of `bytes` chooses the size of the pieces.
///
/// # Panics
///
/// If the property does not hold.
pub fn control_stream(bytes: &[u8]) {
    let Some((size, stream)) = bytes.split_first() else {
        return;
    };
    let size = usize::from(*size) + 1;
    same_in_pieces::<Request>(stream, size);
    same_in_pieces::<Response>(stream, size);
}

fn same_in_pieces<M: Message + PartialEq + Debug>(stream: &[u8], size: usize) {
    let (messages, error) = read_in_pieces::<M>(stream, stream.len().max(1));
    let mut out = Vec::new();
    for message in &messages {
        encode(message, &mut out).expect("a message that was read can be written");
    }
    assert!(stream.starts_with(&out));
    let unread = stream.len() - out.len();
    assert!(error.is_some() || unread < 4 + MAX_MESSAGE);
    assert_eq!(read_in_pieces::<M>(stream, size), (messages, error));
}

/// All messages of a stream that arrives in pieces of `size` bytes, and the error that ended it.
fn read_in_pieces<M: Message>(stream: &[u8], size: usize) -> (Vec<M>, Option<ControlError>) {
    let mut decoder = Decoder::new();
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
