//! Messages on a byte stream that arrives in pieces of any size.

use core::marker::PhantomData;

use super::{ControlError, MAX_MESSAGE, OLDEST, VERSION};

/// The length field.
const LENGTH: usize = 4;
/// Version and type, which the length counts.
const HEADER: usize = 2;

/// One direction of the control protocol: [`super::Request`] or [`super::Response`].
pub trait Message: Sized {
    /// The type of this message, as on the stream.
    fn type_code(&self) -> u8;

    /// Whether messages in this direction can have this type.
    fn is_known(type_code: u8) -> bool;

    /// The version of the protocol in which messages of this type became what they are: the one that they bear.
    fn version(type_code: u8) -> u8;

    /// Appends the body.
    ///
    /// # Errors
    ///
    /// [`ControlError::TooLong`]; what was appended by then is of no use.
    fn encode_body(&self, out: &mut Vec<u8>) -> Result<(), ControlError>;

    /// Reads a body of this type.
    ///
    /// # Errors
    ///
    /// [`ControlError::UnknownType`] or [`ControlError::Malformed`].
    fn decode_body(type_code: u8, body: &[u8]) -> Result<Self, ControlError>;
}

/// Appends a message to `out`.
///
/// # Errors
///
/// [`ControlError::TooLong`], and nothing is appended.
pub fn encode<M: Message>(message: &M, out: &mut Vec<u8>) -> Result<(), ControlError> {
    let start = out.len();
    let result = append(message, out);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

fn append<M: Message>(message: &M, out: &mut Vec<u8>) -> Result<(), ControlError> {
    let length_at = out.len();
    out.extend_from_slice(&[0; LENGTH]);
    let type_code = message.type_code();
    out.extend_from_slice(&[M::version(type_code), type_code]);
    message.encode_body(out)?;
    let len = out.len() - length_at - LENGTH;
    let field = u32::try_from(len).ok().filter(|_| len <= MAX_MESSAGE);
    let field = field.ok_or(ControlError::TooLong(len))?;
    out[length_at..length_at + LENGTH].copy_from_slice(&field.to_le_bytes());
    Ok(())
}

/// Cuts a byte stream into messages. It holds what was fed and not yet pulled: feed what one read
/// of the stream gave, pull until there is no message, read on. It then holds less than one
/// message, and refuses a message that is too long as soon as its length is there.
#[derive(Debug)]
pub struct Decoder<M> {
    buffer: Vec<u8>,
    /// Bytes at the beginning of the buffer that were pulled.
    pulled: usize,
    /// What went wrong: from then on the stream makes no sense.
    failed: Option<ControlError>,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> Decoder<M> {
    /// A decoder at the beginning of a stream.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            buffer: Vec::new(),
            pulled: 0,
            failed: None,
            message: PhantomData,
        }
    }

    /// Takes the next bytes of the stream. After an error they are dropped.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.buffer.drain(..self.pulled);
            self.pulled = 0;
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The next message; `None` if it has not arrived as a whole.
    ///
    /// # Errors
    ///
    /// [`ControlError`], from then on always the same: the stream has to be closed.
    pub fn pull(&mut self) -> Result<Option<M>, ControlError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let result = self.next_message();
        if let Err(error) = result {
            self.failed = Some(error);
            self.buffer = Vec::new();
            self.pulled = 0;
        }
        result
    }

    /// Whether the stream may end here: nothing of an unfinished message has arrived, and there
    /// was no error.
    #[must_use]
    pub fn is_at_boundary(&self) -> bool {
        self.failed.is_none() && self.pulled == self.buffer.len()
    }

    fn next_message(&mut self) -> Result<Option<M>, ControlError> {
        let unread = &self.buffer[self.pulled..];
        let Some((length, rest)) = unread.split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        // A length beyond the address space is too long in any case.
        let len = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if len > MAX_MESSAGE {
            return Err(ControlError::TooLong(len));
        }
        if len < HEADER {
            return Err(ControlError::TooShort(len));
        }
        check_header::<M>(rest)?;
        let Some([_, type_code, body @ ..]) = rest.get(..len) else {
            return Ok(None);
        };
        let message = M::decode_body(*type_code, body)?;
        self.pulled += LENGTH + len;
        Ok(Some(message))
    }
}

impl<M: Message> Default for Decoder<M> {
    fn default() -> Self {
        Self::new()
    }
}

/// Checks what has arrived of version and type, so that a stranger is not waited for.
fn check_header<M: Message>(arrived: &[u8]) -> Result<(), ControlError> {
    match arrived {
        [version, ..] if !(OLDEST..=VERSION).contains(version) => {
            Err(ControlError::UnknownVersion(*version))
        }
        [_, type_code, ..] if !M::is_known(*type_code) => {
            Err(ControlError::UnknownType(*type_code))
        }
        [version, type_code, ..] if *version != M::version(*type_code) => {
            Err(ControlError::UnknownType(*type_code))
        }
        _ => Ok(()),
    }
}
