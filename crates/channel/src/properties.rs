//! What holds for every byte string. The property tests of this crate and the fuzz targets run the
//! same functions; each panics if its property does not hold.

use std::sync::Arc;

use crate::{Key, KeyRing, Session};

/// A responder that is sent anything, in pieces: it takes nothing to be said, keeps little, and the
/// pieces make no difference. The first byte of `bytes` chooses the size of the pieces.
///
/// # Panics
///
/// If the property does not hold.
pub fn strangers_bytes(bytes: &[u8]) {
    let Some((size, stream)) = bytes.split_first() else {
        return;
    };
    let key = Key::generate("k").expect("the operating system has randomness");
    let keys = Arc::new(KeyRing::of(vec![key]));
    let whole = outcome(Session::responder(Arc::clone(&keys)), stream, usize::MAX);
    let pieces = outcome(Session::responder(keys), stream, usize::from(*size) + 1);
    assert_eq!(whole, pieces);
}

/// What is told to the stranger, and the error. (Of a handshake that succeeds the bytes are
/// random; a stranger's never does.)
fn outcome(mut session: Session, stream: &[u8], size: usize) -> (Vec<u8>, Option<String>) {
    let mut rest = stream;
    while !rest.is_empty() {
        let len = size.min(session.wants()).min(rest.len());
        assert!(len > 0, "it wants more until it has failed");
        let (piece, later) = rest.split_at(len);
        let result = session.feed(piece);
        assert!(!session.is_open());
        assert!(session.take_plain().is_empty());
        assert!(session.outgoing().len() <= Session::MOST_UNCONFIRMED);
        if let Err(error) = result {
            assert_eq!(session.wants(), 0);
            return (session.outgoing().to_vec(), Some(error.to_string()));
        }
        rest = later;
    }
    (session.outgoing().to_vec(), None)
}
