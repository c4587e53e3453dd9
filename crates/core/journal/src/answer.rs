//! Is what the server said an answer?
//!
//! The record does not know what protocol it holds, and whatever a server says answers the client:
//! except for the interim responses of HTTP/1.x (RFC 9112, 4 and RFC 9110, 15.2). Each is a head
//! without content, and precedes the answer. `100 Continue` is what a client waits for in the
//! middle of its request; a turn that began behind it would begin in the middle of a request.
//!
//! What cannot be told counts as interim: the turn is then longer than it needs to be, and still
//! right. So does `101 Switching Protocols`, for what follows it depends on it.

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

/// Whether `said` holds, at its beginning, something that is not an interim response: it may stand
/// behind interim responses that are complete.
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

/// Whether an interim response, or what may become one, is the last that is seen in `said`. (Each
/// place that may be its beginning counts: a field of its head may look like another one.)
pub(crate) fn ends_with_interim(said: &[u8]) -> bool {
    let begins = |(at, name): (usize, &[u8])| name == NAME && !is_answer(&said[at..]);
    (1..NAME.len()).any(|len| said.ends_with(&NAME[..len]))
        || said.windows(NAME.len()).enumerate().any(begins)
}

/// The length of the interim response at the beginning of `said`; `None` if it is not complete, or
/// not formed as it should be, or changes the protocol.
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
