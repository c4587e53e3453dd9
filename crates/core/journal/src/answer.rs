//! Whether output of the server is a response.
//!
//! The record does not know the protocol of a connection. Any output of a server is a response to the client, except
//! for the interim responses of HTTP/1.x (RFC 9112, 4 and RFC 9110, 15.2). An interim response is a head without
//! content, and precedes the response. A client waits for `100 Continue` in the middle of a request; a request that
//! began behind `100 Continue` would begin in the middle of a request.
//!
//! Output that cannot be told apart counts as interim: the request is then longer than necessary, and still right.
//! `101 Switching Protocols` counts as interim too, because the meaning of the following bytes depends on the
//! response.

/// How an interim response begins; `None` is any character, the minor version.
const BEGINNING: [Option<u8>; 10] = [
    Some(b'H'),
    Some(b'T'),
    Some(b'T'),
    Some(b'P'),
    Some(b'/'),
    Some(b'1'),
    Some(b'.'),
    None,
    Some(b' '),
    Some(b'1'),
];
const NAME: &[u8] = b"HTTP/1.";

/// Whether `said` begins with output that is not an interim response, if need be after complete interim responses.
pub(crate) fn is_answer(said: &[u8]) -> bool {
    let mut rest = said;
    loop {
        let differs = |(byte, expected): (&u8, &Option<u8>)| expected.is_some_and(|e| e != *byte);
        if rest.iter().zip(&BEGINNING).any(differs) {
            return true;
        }
        match interim_len(rest) {
            Some(len) => rest = &rest[len..],
            None => return false,
        }
    }
}

/// Whether `said` ends with an interim response, or with bytes that may become an interim response. (Each possible
/// beginning counts: a header field may look like an interim response.)
pub(crate) fn ends_with_interim(said: &[u8]) -> bool {
    let begins = |(at, name): (usize, &[u8])| name == NAME && !is_answer(&said[at..]);
    (1..NAME.len()).any(|len| said.ends_with(&NAME[..len]))
        || said.windows(NAME.len()).enumerate().any(begins)
}

/// The length of the interim response at the beginning of `said`. `None`: the response is incomplete or malformed, or
/// changes the protocol.
fn interim_len(said: &[u8]) -> Option<usize> {
    let code = said.get(BEGINNING.len() - 1..BEGINNING.len() + 3)?;
    let formed = matches!(code, [b'1', b'0'..=b'9', b'0'..=b'9', b' ' | b'\r']);
    if !formed || code.starts_with(b"101") {
        return None;
    }
    let mut from = 0;
    loop {
        let line = said.get(from..)?;
        let end = line.iter().position(|byte| matches!(byte, b'\r' | b'\n'))?;
        if !line[end..].starts_with(b"\r\n") {
            return None;
        }
        from += end + 2;
        if end == 0 {
            return Some(from);
        }
    }
}

#[cfg(test)]
mod tests;
