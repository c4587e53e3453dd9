//! The protocol without a socket: bytes that arrived go in, bytes to send and plain text come out.

use std::{io, sync::Arc};

use snow::{Builder, HandshakeState, TransportState, params::NoiseParams};

use crate::greeting::{self, Greeting};
use crate::{ChannelError, Key, KeyRing, Refusal};

/// The length in front of each message of Noise.
const LENGTH_BYTES: usize = 2;
/// The authentication tag of each message.
const TAG_BYTES: usize = 16;
/// Both messages of the handshake: an ephemeral public key and the tag of an empty payload.
const HANDSHAKE_BYTES: usize = 32 + TAG_BYTES;
/// The longest message of Noise (section 3 of the specification).
const LONGEST: usize = 65_535;

/// Least and most bytes of a read. A buffer is filled with zeros before each read, so that it is no larger than the
/// reads before; a large read has few messages that become whole with the next read.
const SHORT_READ_BYTES: usize = 16 << 10;
const LONG_READ_BYTES: usize = 128 << 10;

enum State {
    /// The initiator waits for the responder's verdict and message.
    Asking(Box<HandshakeState>),
    /// The responder waits for greeting and first message.
    Listening(Arc<KeyRing>),
    /// The responder has answered, and waits for the confirmation: the first message may have been a recording.
    Confirming(Box<TransportState>),
    Open(Box<TransportState>),
    /// Nothing more is read.
    Failed,
}

/// One end of a channel.
///
/// Feed bytes that arrive, write [`Self::outgoing`], take plain text. After an error only the outgoing bytes are of
/// use: the bytes may tell the other end the reason.
pub struct Session {
    state: State,
    /// The key in use; the responder does not know it until the greeting has arrived.
    key: Option<Key>,
    /// Bytes that arrived and were not read.
    incoming: Vec<u8>,
    /// Size of the next read.
    read_bytes: usize,
    outgoing: Vec<u8>,
    /// Number of bytes at the beginning of `outgoing` that have been sent.
    sent: usize,
    /// Decrypted bytes that were not taken.
    plain: Vec<u8>,
}

impl Session {
    /// Most bytes that a responder keeps of an unconfirmed initiator: greeting, first message and confirmation.
    /// [`Self::wants`] returns the number of further bytes.
    pub const MOST_UNCONFIRMED: usize = greeting::LONGEST + 3 * LENGTH_BYTES + 2 * HANDSHAKE_BYTES;
    /// Most bytes of plain text in a message.
    pub const MOST_PLAIN: usize = LONGEST - TAG_BYTES;

    /// The end that connects. The first bytes are outgoing at once.
    ///
    /// # Errors
    /// [`ChannelError::Internal`].
    pub fn initiator(key: &Key) -> Result<Self, ChannelError> {
        Self::initiator_of(key, greeting::VERSION)
    }

    /// The end that connects to a responder of this version.
    pub(crate) fn initiator_of(key: &Key, version: u8) -> Result<Self, ChannelError> {
        let greeting = greeting::of(key, version);
        let builder = builder(key, version, &greeting)?;
        let mut handshake = builder.build_initiator().map_err(ChannelError::Internal)?;
        let mut message = [0; HANDSHAKE_BYTES];
        let len = handshake
            .write_message(&[], &mut message)
            .map_err(ChannelError::Internal)?;
        let mut session = Self::new(State::Asking(Box::new(handshake)), Some(key.clone()));
        session.outgoing = greeting;
        session.push(&message[..len]);
        Ok(session)
    }

    /// The end that accepts a connection, with all accepted keys.
    #[must_use]
    pub fn responder(keys: Arc<KeyRing>) -> Self {
        Self::new(State::Listening(keys), None)
    }

    const fn new(state: State, key: Option<Key>) -> Self {
        Self {
            state,
            key,
            incoming: Vec::new(),
            read_bytes: SHORT_READ_BYTES,
            outgoing: Vec::new(),
            sent: 0,
            plain: Vec::new(),
        }
    }

    /// Whether the other end has proven the possession of the key, after which messages can be sent.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// The key in use; `None` if no greeting has arrived.
    #[must_use]
    pub const fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// Number of bytes that may be fed now. The number is small until the session is open: an unconfirmed peer must
    /// cost little.
    #[must_use]
    pub fn wants(&self) -> usize {
        match self.state {
            State::Open(_) => self.read_bytes,
            State::Failed => 0,
            _ => Self::MOST_UNCONFIRMED - self.incoming.len().min(Self::MOST_UNCONFIRMED),
        }
    }

    /// Takes the next bytes of the other end, in pieces of any size.
    ///
    /// # Errors
    /// [`ChannelError`]: the channel is of no more use. Earlier plain text can still be taken.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        if matches!(self.state, State::Failed) {
            return Err(ChannelError::Truncated);
        }
        self.incoming.extend_from_slice(bytes);
        self.take_incoming()
    }

    /// Takes bytes of the other end that `read` puts into a buffer. Returns the number of bytes that `read` has put
    /// there, 0 at the end of the stream.
    ///
    /// # Errors
    /// [`ChannelError`], as [`Self::feed`]. An error of `read` changes nothing.
    pub(crate) fn read_by(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> Result<usize, ChannelError> {
        let begin = self.incoming.len();
        self.incoming.resize(begin + self.wants(), 0);
        let read = read(&mut self.incoming[begin..]);
        self.incoming
            .truncate(begin + read.as_ref().copied().unwrap_or(0));
        let len = read?;
        if len == self.read_bytes {
            self.read_bytes = (2 * len).min(LONG_READ_BYTES);
        } else if len < self.read_bytes / 16 {
            self.read_bytes = (self.read_bytes / 2).max(SHORT_READ_BYTES);
        }
        self.take_incoming()?;
        Ok(len)
    }

    fn take_incoming(&mut self) -> Result<(), ChannelError> {
        let mut read = 0;
        loop {
            match self.step(read) {
                Ok(0) => break,
                Ok(len) => read += len,
                Err(error) => {
                    self.state = State::Failed;
                    self.incoming = Vec::new();
                    return Err(error);
                }
            }
        }
        self.incoming.drain(..read);
        Ok(())
    }

    /// The other end has closed the connection.
    ///
    /// # Errors
    /// [`ChannelError::Truncated`] if that was within a message or before the session was open.
    pub const fn ended(&self) -> Result<(), ChannelError> {
        if self.is_open() && self.incoming.is_empty() {
            Ok(())
        } else {
            Err(ChannelError::Truncated)
        }
    }

    /// Sends a message: the message becomes outgoing.
    ///
    /// # Errors
    /// [`ChannelError::Truncated`] if the session is not open.
    pub fn say(&mut self, plain: &[u8]) -> Result<(), ChannelError> {
        let State::Open(transport) = &mut self.state else {
            return Err(ChannelError::Truncated);
        };
        for piece in plain.chunks(Self::MOST_PLAIN) {
            let len = piece.len() + TAG_BYTES;
            push_len(&mut self.outgoing, len);
            let begin = self.outgoing.len();
            self.outgoing.resize(begin + len, 0);
            transport
                .write_message(piece, &mut self.outgoing[begin..])
                .map_err(ChannelError::Internal)?;
        }
        Ok(())
    }

    /// Bytes to be sent.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing[self.sent..]
    }

    /// The first `len` bytes of [`Self::outgoing`] have been sent.
    ///
    /// # Panics
    /// If fewer bytes are outgoing.
    pub fn sent(&mut self, len: usize) {
        assert!(len <= self.outgoing().len(), "{len} bytes were sent");
        self.sent += len;
        // The rest is moved when it is the smaller part: a byte is moved once, however short the writes are.
        if self.sent * 2 >= self.outgoing.len() {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Takes the received plain text.
    pub fn take_plain(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.plain)
    }

    /// Reads the next message from `incoming`, from `at` on. Returns the length, or 0 if the message is incomplete.
    fn step(&mut self, at: usize) -> Result<usize, ChannelError> {
        match &mut self.state {
            State::Listening(keys) => {
                let keys = Arc::clone(keys);
                self.greeted(&keys, at)
            }
            State::Asking(_) => self.answered(at),
            State::Confirming(_) => self.confirmed(at),
            State::Open(transport) => {
                let Some(message) = framed(&self.incoming[at..]) else {
                    return Ok(0);
                };
                let before = self.plain.len();
                self.plain.resize(before + message.len(), 0);
                let len = transport
                    .read_message(message, &mut self.plain[before..])
                    .map_err(|_| ChannelError::Tampered);
                self.plain
                    .truncate(before + len.as_ref().copied().unwrap_or(0));
                len.map(|_| LENGTH_BYTES + message.len())
            }
            State::Failed => Ok(0),
        }
    }

    /// The responder reads the confirmation.
    fn confirmed(&mut self, at: usize) -> Result<usize, ChannelError> {
        let Some(message) = of_length(&self.incoming[at..], TAG_BYTES)? else {
            return Ok(0);
        };
        let State::Confirming(mut transport) = std::mem::replace(&mut self.state, State::Failed)
        else {
            return Ok(0);
        };
        let mut nothing = [0; TAG_BYTES];
        if transport.read_message(message, &mut nothing).is_err() {
            return Err(ChannelError::Tampered);
        }
        self.state = State::Open(transport);
        Ok(LENGTH_BYTES + TAG_BYTES)
    }

    /// The responder reads greeting and first message.
    fn greeted(&mut self, keys: &KeyRing, at: usize) -> Result<usize, ChannelError> {
        let arrived = &self.incoming[at..];
        let Greeting { version, name, len } = match greeting::read(arrived) {
            Ok(Some(read)) => read,
            Ok(None) => return Ok(0),
            Err(error) => {
                if matches!(error, ChannelError::UnknownVersion(_)) {
                    self.refuse(Refusal::Version(greeting::VERSION));
                }
                return Err(error);
            }
        };
        let Some(key) = keys.get(name).cloned() else {
            let name = name.to_owned();
            self.refuse(Refusal::UnknownKey);
            return Err(ChannelError::UnknownKey(name));
        };
        let (prologue, rest) = arrived.split_at(len);
        let Some(message) = of_length(rest, HANDSHAKE_BYTES)? else {
            return Ok(0);
        };
        let builder = builder(&key, version, prologue)?;
        let mut handshake = builder.build_responder().map_err(ChannelError::Internal)?;
        let mut buffer = [0; HANDSHAKE_BYTES];
        if handshake.read_message(message, &mut buffer).is_err() {
            self.refuse(Refusal::WrongKey);
            return Err(ChannelError::WrongKey(key.name().to_owned()));
        }
        let written = handshake
            .write_message(&[], &mut buffer)
            .map_err(ChannelError::Internal)?;
        self.outgoing.extend_from_slice(&greeting::verdict(None));
        self.push(&buffer[..written]);
        let transport = handshake
            .into_transport_mode()
            .map_err(ChannelError::Internal)?;
        self.state = State::Confirming(Box::new(transport));
        self.key = Some(key);
        Ok(len + LENGTH_BYTES + HANDSHAKE_BYTES)
    }

    /// The initiator reads the verdict and the second message.
    fn answered(&mut self, at: usize) -> Result<usize, ChannelError> {
        let name = self
            .key
            .as_ref()
            .map_or_else(String::new, |key| key.name().to_owned());
        let Some((verdict, rest)) =
            self.incoming[at..].split_first_chunk::<{ greeting::VERDICT }>()
        else {
            return Ok(0);
        };
        if let Some(refusal) = greeting::read_verdict(*verdict)? {
            return Err(ChannelError::Refused { name, refusal });
        }
        let Some(message) = of_length(rest, HANDSHAKE_BYTES)? else {
            return Ok(0);
        };
        let State::Asking(mut handshake) = std::mem::replace(&mut self.state, State::Failed) else {
            return Ok(0);
        };
        let mut buffer = [0; HANDSHAKE_BYTES];
        if handshake.read_message(message, &mut buffer).is_err() {
            return Err(ChannelError::NotProven(name));
        }
        let mut transport = handshake
            .into_transport_mode()
            .map_err(ChannelError::Internal)?;
        let len = transport
            .write_message(&[], &mut buffer)
            .map_err(ChannelError::Internal)?;
        self.push(&buffer[..len]);
        self.state = State::Open(Box::new(transport));
        Ok(greeting::VERDICT + LENGTH_BYTES + HANDSHAKE_BYTES)
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.outgoing
            .extend_from_slice(&greeting::verdict(Some(refusal)));
    }

    fn push(&mut self, message: &[u8]) {
        push_len(&mut self.outgoing, message.len());
        self.outgoing.extend_from_slice(message);
    }
}

fn push_len(outgoing: &mut Vec<u8>, len: usize) {
    // A message of Noise fits the length field.
    let len = u16::try_from(len).unwrap_or(u16::MAX);
    outgoing.extend_from_slice(&len.to_be_bytes());
}

fn builder<'a>(key: &'a Key, version: u8, prologue: &'a [u8]) -> Result<Builder<'a>, ChannelError> {
    let pattern = greeting::pattern(version);
    let params: NoiseParams = pattern.parse().map_err(ChannelError::Internal)?;
    Builder::new(params)
        .psk(0, key.secret())
        .and_then(|builder| builder.prologue(prologue))
        .map_err(ChannelError::Internal)
}

/// The message at the beginning of `bytes`, if the message is complete.
fn framed(bytes: &[u8]) -> Option<&[u8]> {
    let (len, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    rest.get(..usize::from(u16::from_be_bytes(*len)))
}

/// Like [`framed`], for a message of exactly this length: a responder does not wait for bytes of an unconfirmed peer.
fn of_length(bytes: &[u8], len: usize) -> Result<Option<&[u8]>, ChannelError> {
    let expected = u16::try_from(len).map_or([0; LENGTH_BYTES], u16::to_be_bytes);
    if bytes.iter().zip(&expected).any(|(a, b)| a != b) {
        return Err(ChannelError::NotOurs);
    }
    Ok(framed(bytes))
}

#[cfg(test)]
mod tests;
