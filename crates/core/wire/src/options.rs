//! TCP options (RFC 9293, 3.1; RFC 7323; RFC 2018).
//!
//! Options are read as in the receiving kernel, because the reading of the server's TCP counts. The walk ends at an
//! "end of list", at the end of the bytes, or with an error at an option whose length is below 2 or reaches beyond the
//! end; options before the error count. An option of a known kind with the length of another kind does not end the
//! walk: such an option is [`TcpOption::Unknown`] and has no meaning, as in the kernel.

mod edit;
mod syn;

pub use edit::{replace_timestamps, strip};
pub use syn::SynOptions;

use crate::{SeqNumber, be16, be32};

/// The most bytes of options that a TCP header has room for.
pub const MAX_OPTIONS: usize = 40;

/// The largest window scale; a larger scale is read as 14 (RFC 7323, 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// The numbers of the option kinds (IANA, "TCP Option Kind Numbers").
pub mod kind {
    /// End of the option list: padding follows.
    pub const END_OF_LIST: u8 = 0;
    /// A byte of padding between options.
    pub const NO_OPERATION: u8 = 1;
    /// Maximum segment size.
    pub const MAX_SEGMENT_SIZE: u8 = 2;
    /// Window scale.
    pub const WINDOW_SCALE: u8 = 3;
    /// Selective acknowledgement permitted.
    pub const SACK_PERMITTED: u8 = 4;
    /// Selective acknowledgement.
    pub const SACK: u8 = 5;
    /// Timestamps.
    pub const TIMESTAMPS: u8 = 8;
    /// Multipath TCP (RFC 8684).
    pub const MULTIPATH: u8 = 30;
    /// Fast Open cookie (RFC 7413).
    pub const FAST_OPEN: u8 = 34;
    /// Experiment 2 (RFC 6994), once used by Fast Open.
    pub const EXPERIMENT: u8 = 254;
}

/// The walk over the options cannot go on: an option has an impossible length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("TCP option {kind} at offset {offset} has a length that is below 2 or beyond the end")]
pub struct OptionError {
    /// The kind of the option.
    pub kind: u8,
    /// The offset of the option in the option bytes.
    pub offset: usize,
}

/// The values of the timestamps option (RFC 7323, 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the echoed value, valid only with the ACK bit.
    pub echo: u32,
}

/// A received run of bytes that is not yet covered by the cumulative acknowledgement
/// (RFC 2018, 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SackBlock {
    /// The first sequence number of the run.
    pub left: SeqNumber,
    /// The sequence number after the last number of the run.
    pub right: SeqNumber,
}

/// The blocks of a selective acknowledgement: 1 to 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [SackBlock; Self::MAX],
    len: usize,
}

impl SackBlocks {
    /// The most blocks that fit in a header.
    pub const MAX: usize = 4;

    /// These blocks in this order, or `None` if there are none or more than four.
    #[must_use]
    pub fn new(blocks: &[SackBlock]) -> Option<Self> {
        let mut array = [*blocks.first()?; Self::MAX];
        array.get_mut(..blocks.len())?.copy_from_slice(blocks);
        Some(Self {
            blocks: array,
            len: blocks.len(),
        })
    }

    /// The blocks, in the order of the option.
    #[must_use]
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..self.len]
    }

    /// Reads the blocks from the data of the option.
    fn parse(data: &[u8]) -> Option<Self> {
        let (chunks, []) = data.as_chunks::<8>() else {
            return None;
        };
        let read = |chunk: &[u8; 8]| SackBlock {
            left: SeqNumber(be32(chunk, 0)),
            right: SeqNumber(be32(chunk, 4)),
        };
        let mut blocks = [read(chunks.first()?); Self::MAX];
        for (block, chunk) in blocks.get_mut(..chunks.len())?.iter_mut().zip(chunks) {
            *block = read(chunk);
        }
        Some(Self {
            blocks,
            len: chunks.len(),
        })
    }
}

/// A TCP option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpOption<'a> {
    /// The list ends here, padding follows.
    EndOfList,
    /// A byte of padding.
    NoOperation,
    /// The largest segment that the sender can receive, in bytes (RFC 9293, 3.7.1).
    MaxSegmentSize(u16),
    /// The shift of the sender's windows (RFC 7323, 2.2), at most [`MAX_WINDOW_SCALE`].
    WindowScale(u8),
    /// The sender understands selective acknowledgements (RFC 2018, 2).
    SackPermitted,
    /// A selective acknowledgement (RFC 2018, 3).
    Sack(SackBlocks),
    /// Timestamps (RFC 7323, 3.2).
    Timestamps {
        /// TSval: the sender's clock.
        value: u32,
        /// TSecr: the echoed value.
        echo: u32,
    },
    /// Any other option, kept as it is.
    Unknown {
        /// The kind.
        kind: u8,
        /// The bytes behind kind and length.
        data: &'a [u8],
    },
}

impl<'a> TcpOption<'a> {
    /// Reads the option of this kind with this data.
    fn from_parts(kind: u8, data: &'a [u8]) -> Self {
        match (kind, data) {
            (kind::MAX_SEGMENT_SIZE, [_, _]) => Self::MaxSegmentSize(be16(data, 0)),
            (kind::WINDOW_SCALE, [shift]) => Self::WindowScale((*shift).min(MAX_WINDOW_SCALE)),
            (kind::SACK_PERMITTED, []) => Self::SackPermitted,
            (kind::TIMESTAMPS, [_, _, _, _, _, _, _, _]) => Self::Timestamps {
                value: be32(data, 0),
                echo: be32(data, 4),
            },
            (kind::SACK, _) => match SackBlocks::parse(data) {
                Some(blocks) => Self::Sack(blocks),
                None => Self::Unknown { kind, data },
            },
            _ => Self::Unknown { kind, data },
        }
    }
}

/// Where an option stands in the option bytes.
#[derive(Debug, Clone, Copy)]
struct Span {
    kind: u8,
    offset: usize,
    /// With kind and length bytes; 1 for the two kinds that have no length.
    len: usize,
}

/// The option that begins at `offset`; `None` at the end of the bytes.
fn span_at(options: &[u8], offset: usize) -> Option<Result<Span, OptionError>> {
    let (&kind, rest) = options.get(offset..)?.split_first()?;
    if matches!(kind, kind::END_OF_LIST | kind::NO_OPERATION) {
        let len = 1;
        return Some(Ok(Span { kind, offset, len }));
    }
    let len = rest.first().map_or(0, |len| usize::from(*len));
    if len < 2 || len > 1 + rest.len() {
        return Some(Err(OptionError { kind, offset }));
    }
    Some(Ok(Span { kind, offset, len }))
}

/// The options of a header, in order. The iteration ends after an "end of list" and after an error.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Options<'a> {
    /// The options in these bytes.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<TcpOption<'a>, OptionError>;

    fn next(&mut self) -> Option<Self::Item> {
        let span = match span_at(self.bytes, self.offset)? {
            Ok(span) => span,
            Err(error) => {
                self.offset = self.bytes.len();
                return Some(Err(error));
            }
        };
        self.offset = span.offset + span.len;
        Some(Ok(match span.kind {
            kind::END_OF_LIST => {
                self.offset = self.bytes.len();
                TcpOption::EndOfList
            }
            kind::NO_OPERATION => TcpOption::NoOperation,
            kind => TcpOption::from_parts(kind, &self.bytes[span.offset + 2..self.offset]),
        }))
    }
}

/// An option does not fit into the rest of the 40 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the TCP options do not fit into 40 bytes")]
pub struct OptionsFull;

/// Options that are being written.
#[derive(Debug, Clone)]
pub struct OptionsBuffer {
    bytes: [u8; MAX_OPTIONS],
    len: usize,
}

impl OptionsBuffer {
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            bytes: [0; MAX_OPTIONS],
            len: 0,
        }
    }

    /// The written options, without padding.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Appends an option. The caller aligns options by [`TcpOption::NoOperation`].
    ///
    /// # Errors
    ///
    /// [`OptionsFull`]; no byte is written.
    pub fn push(&mut self, option: &TcpOption<'_>) -> Result<(), OptionsFull> {
        match *option {
            TcpOption::EndOfList => self.append(&[kind::END_OF_LIST]),
            TcpOption::NoOperation => self.append(&[kind::NO_OPERATION]),
            TcpOption::MaxSegmentSize(mss) => {
                self.append_option(kind::MAX_SEGMENT_SIZE, &mss.to_be_bytes())
            }
            TcpOption::WindowScale(shift) => {
                self.append_option(kind::WINDOW_SCALE, &[shift.min(MAX_WINDOW_SCALE)])
            }
            TcpOption::SackPermitted => self.append_option(kind::SACK_PERMITTED, &[]),
            TcpOption::Sack(blocks) => {
                let mut data = [[0; 8]; SackBlocks::MAX];
                for (chunk, block) in data.iter_mut().zip(blocks.as_slice()) {
                    *chunk = two_words(block.left.0, block.right.0);
                }
                self.append_option(kind::SACK, data[..blocks.len].as_flattened())
            }
            TcpOption::Timestamps { value, echo } => {
                self.append_option(kind::TIMESTAMPS, &two_words(value, echo))
            }
            TcpOption::Unknown { kind, data } => self.append_option(kind, data),
        }
    }

    fn append_option(&mut self, kind: u8, data: &[u8]) -> Result<(), OptionsFull> {
        let len = u8::try_from(data.len() + 2).map_err(|_| OptionsFull)?;
        if self.len + usize::from(len) > MAX_OPTIONS {
            return Err(OptionsFull);
        }
        self.append(&[kind, len])?;
        self.append(data)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), OptionsFull> {
        let end = self.len + bytes.len();
        let room = self.bytes.get_mut(self.len..end).ok_or(OptionsFull)?;
        room.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }
}

impl Default for OptionsBuffer {
    fn default() -> Self {
        Self::new()
    }
}

/// Two words in network byte order, as in the timestamps option and in a SACK block.
fn two_words(first: u32, second: u32) -> [u8; 8] {
    (u64::from(first) << 32 | u64::from(second)).to_be_bytes()
}

#[cfg(test)]
mod tests;
