//! Messages on a byte stream that arrives in pieces of any size.

use core::marker::PhantomData;

use postcard::ser_flavors::Flavor;
use serde::{Serialize, de::DeserializeOwned};

use super::opening::{Agreed, Opening, Role};
use super::reader::{self, ReadError};
use super::{ControlError, MAX_MESSAGE};
use crate::Versions;

/// The length field.
const LENGTH: usize = 4;

/// One direction of a control stream: [`super::Request`] or [`super::Response`], [`crate::pool::MemberMessage`] or
/// [`crate::pool::BalancerMessage`].
pub trait Message: Serialize + DeserializeOwned {
    /// The end that sends these messages.
    const FROM: Role;

    /// The version that brought this message's current meaning: the kind of the message, or a value
    /// of an enum in the message.
    fn since(&self) -> u8;
}

/// Appends a message to `out`, for a stream with these terms.
///
/// # Errors
///
/// [`ControlError::NotSpoken`], [`ControlError::TooLong`] and [`ControlError::ListTooLong`]; nothing is appended then.
pub fn encode<M: Message>(
    message: &M,
    agreed: Agreed,
    out: &mut Vec<u8>,
) -> Result<(), ControlError> {
    let (since, agreed) = (message.since(), agreed.version());
    if since > agreed {
        return Err(ControlError::NotSpoken { since, agreed });
    }
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
    // No other error is possible: memory grows, and all types are known.
    postcard::serialize_with_flavor(message, Appended(out))
        .map_err(|_| ControlError::ListTooLong)?;
    let len = out.len() - length_at - LENGTH;
    let field = u32::try_from(len).ok().filter(|_| len <= MAX_MESSAGE);
    let field = field.ok_or(ControlError::TooLong(len))?;
    out[length_at..length_at + LENGTH].copy_from_slice(&field.to_le_bytes());
    Ok(())
}

/// Bytes behind those that are there.
struct Appended<'a>(&'a mut Vec<u8>);

impl Flavor for Appended<'_> {
    type Output = ();

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Cuts a byte stream into messages. The decoder holds the bytes that were fed and not yet pulled:
/// feed the bytes of one read, pull until there is no message, read on. The decoder then holds less
/// than one message. A message that is too long is refused as soon as the length is there.
#[derive(Debug)]
pub struct Decoder<M> {
    buffer: Vec<u8>,
    /// Bytes at the beginning of the buffer that were pulled.
    pulled: usize,
    state: State,
    message: PhantomData<fn() -> M>,
}

#[derive(Debug)]
enum State {
    /// The opening of the peer comes next; this end speaks these versions.
    Opening(Versions),
    Open(Agreed),
    /// From then on the stream makes no sense.
    Failed(ControlError),
}

impl<M: Message> Decoder<M> {
    /// A decoder behind the opening.
    #[must_use]
    pub const fn new(agreed: Agreed) -> Self {
        Self::in_state(State::Open(agreed))
    }

    /// A decoder at the beginning of a stream, for an end that speaks `ours`.
    #[must_use]
    pub const fn at_opening(ours: Versions) -> Self {
        Self::in_state(State::Opening(ours))
    }

    const fn in_state(state: State) -> Self {
        Self {
            buffer: Vec::new(),
            pulled: 0,
            state,
            message: PhantomData,
        }
    }

    /// Appends the next bytes of the stream. After an error the bytes are dropped.
    pub fn feed(&mut self, bytes: &[u8]) {
        if !matches!(self.state, State::Failed(_)) {
            self.buffer.drain(..self.pulled);
            self.pulled = 0;
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The terms of the stream; `None`: the opening has not arrived.
    ///
    /// # Errors
    ///
    /// [`ControlError`]. After [`ControlError::NoCommonVersion`] an end that answers still sends its [`Opening`], so
    /// that the peer can name both ranges, too.
    pub fn open(&mut self) -> Result<Option<Agreed>, ControlError> {
        let ours = match &self.state {
            State::Opening(ours) => *ours,
            State::Open(agreed) => return Ok(Some(*agreed)),
            State::Failed(error) => return Err(error.clone()),
        };
        let opening = Opening::read(M::FROM, &self.buffer[self.pulled..]);
        let agreed = opening.and_then(|opening| {
            let agreed = opening.map(|opening| Agreed::on(ours, opening.versions));
            agreed.transpose()
        });
        if let Some(agreed) = agreed.map_err(|error| self.fail(error))? {
            self.pulled += Opening::LEN;
            self.state = State::Open(agreed);
            return Ok(Some(agreed));
        }
        Ok(None)
    }

    /// The terms of the stream, if [`Decoder::open`] or [`Decoder::pull`] has found the opening.
    #[must_use]
    pub const fn agreed(&self) -> Option<Agreed> {
        match &self.state {
            State::Open(agreed) => Some(*agreed),
            State::Opening(_) | State::Failed(_) => None,
        }
    }

    /// The next message; `None` if no whole message has arrived.
    ///
    /// # Errors
    ///
    /// [`ControlError`], from then on always the same: the stream has to be closed.
    pub fn pull(&mut self) -> Result<Option<M>, ControlError> {
        let Some(agreed) = self.open()? else {
            return Ok(None);
        };
        self.next_message(agreed).map_err(|error| self.fail(error))
    }

    /// Whether the stream may end here: no byte of an unfinished message has arrived, and there was
    /// no error.
    #[must_use]
    pub fn is_at_boundary(&self) -> bool {
        !matches!(self.state, State::Failed(_)) && self.pulled == self.buffer.len()
    }

    fn fail(&mut self, error: ControlError) -> ControlError {
        self.state = State::Failed(error.clone());
        self.buffer = Vec::new();
        self.pulled = 0;
        error
    }

    fn next_message(&mut self, agreed: Agreed) -> Result<Option<M>, ControlError> {
        let unread = &self.buffer[self.pulled..];
        let Some((length, rest)) = unread.split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        // A length beyond the address space is too long in any case.
        let len = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if len > MAX_MESSAGE {
            return Err(ControlError::TooLong(len));
        }
        let Some(bytes) = rest.get(..len) else {
            return Ok(None);
        };
        let message: M = reader::message(bytes, agreed.peer())?;
        let (since, agreed) = (message.since(), agreed.version());
        if since > agreed {
            return Err(ControlError::NotSpoken { since, agreed });
        }
        self.pulled += LENGTH + len;
        Ok(Some(message))
    }
}

impl From<ReadError> for ControlError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::UnknownMessage(number) => Self::UnknownMessage(number),
            ReadError::Malformed(why) => Self::Malformed(why),
        }
    }
}
