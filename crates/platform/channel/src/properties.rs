//! Properties for all byte strings. The property tests of this crate and the fuzz targets run the same functions; each
//! function panics if the property does not hold.

use std::{path::Path, sync::Arc};

use crate::{Key, KeyFileError, KeyRing, Session, keys};

/// Reads any bytes as a key file. The accepted keys, written line by line, are read as the same keys; the names are
/// valid and distinct. An error, and the `Debug` text of a key, reveal only a line number of the file.
///
/// # Panics
///
/// If the property does not hold.
pub fn key_file(bytes: &[u8]) {
    let path = Path::new("keys");
    let lines = bytes.split(|byte| *byte == b'\n').count();
    let line = match keys::parse(path, bytes) {
        Ok(keys) => return key_ring(path, &keys),
        Err(KeyFileError::NotAKey { line, .. } | KeyFileError::Twice { line, .. }) => line,
        Err(KeyFileError::NoKey(_)) => 1,
        Err(KeyFileError::TooLong(_)) => {
            return assert!(bytes.len() as u64 > KeyRing::LONGEST_FILE);
        }
        Err(error) => panic!("{error}"),
    };
    assert!((1..=lines).contains(&line), "{line} of {lines}");
}

fn key_ring(path: &Path, keys: &[Key]) {
    let mut text = String::new();
    for (number, key) in keys.iter().enumerate() {
        assert!(Key::is_name(key.name()));
        assert!(
            keys[..number]
                .iter()
                .all(|other| other.name() != key.name())
        );
        let (name, secret) = key.line().split_once(':').map(own).expect("a line");
        assert_eq!(name, key.name());
        // A name may be anything, also a secret.
        assert!(!format!("{key:?}").replace(&name, "").contains(&secret));
        text += &format!("{}\n", key.line());
    }
    // The text can exceed the longest file by a byte, the end of the last line.
    let again = keys::parse(path, text.trim_end().as_bytes()).expect("a key file");
    assert_eq!(again, keys);
}

fn own((name, secret): (&str, &str)) -> (String, String) {
    (name.to_owned(), secret.to_owned())
}

/// A responder that receives arbitrary bytes in pieces takes no message and keeps few bytes, and the size of the pieces
/// makes no difference. The first byte of `bytes` chooses the size of the pieces.
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

/// The answer to the unconfirmed peer, and the error. (A successful handshake has random bytes; the handshake of
/// arbitrary bytes never succeeds.)
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
