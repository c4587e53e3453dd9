//! Meta commands of memcached (`protocol.txt` of memcached, "Meta Commands"): commands, and replies.
//!
//! A command of one record is not quiet: an error of the store (`SERVER_ERROR`) has no opaque token, and only the order
//! tells whose error it is. A look-up in many hashes is quiet: misses have no reply, values have an opaque token, and
//! `mn` ends the look-up.

use std::io::Write as _;

use crate::dialect::ProtocolError;

/// Longest line, bytes.
const LINE_LEN_MAX: usize = 4 << 10;
/// Longest value, bytes.
const VALUE_LEN_MAX: usize = 1 << 20;

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    /// Writes a value.
    Set {
        key: &'a str,
        value: &'a [u8],
        ttl: u64,
        opaque: u64,
    },
    /// Makes an empty value, if there is none.
    Create { key: &'a str, ttl: u64, opaque: u64 },
    /// Appends to a value that is there.
    Append {
        key: &'a str,
        value: &'a [u8],
        opaque: u64,
    },
    /// Reads a value; a miss has no reply.
    GetQuietly { key: &'a str, opaque: u64 },
    /// Begins the time to live anew.
    Touch { key: &'a str, ttl: u64, opaque: u64 },
    /// Deletes a value.
    Delete { key: &'a str, opaque: u64 },
    /// Has a reply, and no other effect.
    NoOp,
    /// The version of the store.
    Version,
    /// Statistics: lines, and [`Reply::End`].
    Statistics { group: &'a str },
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Done.
    Header { opaque: Option<u64> },
    /// A value.
    Value { opaque: Option<u64>, value: Vec<u8> },
    /// No such key, to a command that reads.
    Miss,
    /// No such key, to a command that changes.
    NotFound { opaque: Option<u64> },
    /// The value was not written.
    NotStored { opaque: Option<u64> },
    /// To [`Command::NoOp`].
    NoOp,
    /// To [`Command::Version`].
    Version(String),
    /// A line of [`Command::Statistics`].
    Statistic { name: String, value: String },
    /// End of [`Command::Statistics`].
    End,
    /// An error of the store.
    ServerError(String),
    /// The store does not understand the command.
    ClientError(String),
}

impl Command<'_> {
    /// Appends the command.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let written = match *self {
            Self::Set {
                key,
                value,
                ttl,
                opaque,
            } => {
                let line = write!(out, "ms {key} {} T{ttl} O{opaque}\r\n", value.len());
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
                line
            }
            Self::Create { key, ttl, opaque } => {
                write!(out, "ms {key} 0 ME T{ttl} O{opaque}\r\n\r\n")
            }
            Self::Append { key, value, opaque } => {
                let line = write!(out, "ms {key} {} MA O{opaque}\r\n", value.len());
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
                line
            }
            Self::GetQuietly { key, opaque } => write!(out, "mg {key} v q O{opaque}\r\n"),
            Self::Touch { key, ttl, opaque } => write!(out, "mg {key} T{ttl} O{opaque}\r\n"),
            Self::Delete { key, opaque } => write!(out, "md {key} O{opaque}\r\n"),
            Self::NoOp => write!(out, "mn\r\n"),
            Self::Version => write!(out, "version\r\n"),
            Self::Statistics { group: "" } => write!(out, "stats\r\n"),
            Self::Statistics { group } => write!(out, "stats {group}\r\n"),
        };
        // A vector takes every write.
        debug_assert!(written.is_ok());
    }
}

impl Reply {
    /// The first reply, and its length. `None`: the reply is not complete.
    pub(crate) fn decode(input: &[u8]) -> Result<Option<(Self, usize)>, ProtocolError> {
        let head = &input[..input.len().min(LINE_LEN_MAX)];
        let Some(len) = head.windows(2).position(|pair| pair == b"\r\n") else {
            return match head.len() {
                LINE_LEN_MAX => Err(ProtocolError("a line without an end")),
                _ => Ok(None),
            };
        };
        let line = std::str::from_utf8(&head[..len])
            .map_err(|_| ProtocolError("a line that is no text"))?;
        let end = len + 2;
        let (code, rest) = line.split_once(' ').unwrap_or((line, ""));
        let reply = match code {
            "VA" => return Self::decode_value(input, rest, end),
            "HD" => Self::Header {
                opaque: opaque(rest)?,
            },
            "EN" => Self::Miss,
            "NF" => Self::NotFound {
                opaque: opaque(rest)?,
            },
            "NS" => Self::NotStored {
                opaque: opaque(rest)?,
            },
            "MN" => Self::NoOp,
            "VERSION" => Self::Version(rest.to_owned()),
            "STAT" => {
                let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
                Self::Statistic {
                    name: name.to_owned(),
                    value: value.to_owned(),
                }
            }
            "END" => Self::End,
            "SERVER_ERROR" => Self::ServerError(rest.to_owned()),
            "CLIENT_ERROR" | "ERROR" => Self::ClientError(line.to_owned()),
            _ => return Err(ProtocolError("an unknown reply")),
        };
        Ok(Some((reply, end)))
    }

    /// `VA <length> <flags>*`, and the value.
    fn decode_value(
        input: &[u8],
        rest: &str,
        at: usize,
    ) -> Result<Option<(Self, usize)>, ProtocolError> {
        let (len, flags) = rest.split_once(' ').unwrap_or((rest, ""));
        let len = len
            .parse::<usize>()
            .ok()
            .filter(|len| *len <= VALUE_LEN_MAX);
        let end = at + len.ok_or(ProtocolError("a length beyond the limits"))?;
        let opaque = opaque(flags)?;
        match input.get(end..end + 2) {
            None => Ok(None),
            Some(b"\r\n") => Ok(Some((
                Self::Value {
                    opaque,
                    value: input[at..end].to_vec(),
                },
                end + 2,
            ))),
            Some(_) => Err(ProtocolError("a value without an end")),
        }
    }
}

/// The opaque token among flags.
fn opaque(flags: &str) -> Result<Option<u64>, ProtocolError> {
    let token = flags.split(' ').find_map(|flag| flag.strip_prefix('O'));
    let number = token.map(|token| {
        token
            .parse()
            .map_err(|_| ProtocolError("an opaque token that was not sent"))
    });
    number.transpose()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(text: &str) -> Result<Option<(Reply, usize)>, ProtocolError> {
        Reply::decode(text.as_bytes())
    }

    #[test]
    fn replies_are_read_as_documented() {
        let all = [
            ("HD O7\r\n", Reply::Header { opaque: Some(7) }),
            ("HD\r\n", Reply::Header { opaque: None }),
            (
                "VA 2 O7 f0\r\n\r\n\r\n",
                Reply::Value {
                    opaque: Some(7),
                    value: b"\r\n".to_vec(),
                },
            ),
            (
                "VA 0\r\n\r\n",
                Reply::Value {
                    opaque: None,
                    value: Vec::new(),
                },
            ),
            ("EN\r\n", Reply::Miss),
            ("NF O7\r\n", Reply::NotFound { opaque: Some(7) }),
            ("NS O7\r\n", Reply::NotStored { opaque: Some(7) }),
            ("MN\r\n", Reply::NoOp),
            ("VERSION 1.6.18\r\n", Reply::Version("1.6.18".into())),
            (
                "STAT pid 1\r\n",
                Reply::Statistic {
                    name: "pid".into(),
                    value: "1".into(),
                },
            ),
            ("END\r\n", Reply::End),
            (
                "SERVER_ERROR out of memory\r\n",
                Reply::ServerError("out of memory".into()),
            ),
            (
                "CLIENT_ERROR bad\r\n",
                Reply::ClientError("CLIENT_ERROR bad".into()),
            ),
            ("ERROR\r\n", Reply::ClientError("ERROR".into())),
        ];
        for (text, reply) in all {
            assert_eq!(decoded(text), Ok(Some((reply, text.len()))), "{text}");
            for cut in 0..text.len() {
                assert_eq!(decoded(&text[..cut]), Ok(None), "{text} cut at {cut}");
            }
        }
    }

    #[test]
    fn other_replies_are_refused() {
        for text in [
            "VA 9999999\r\n",
            "VA x\r\n",
            "VA 1\r\nabc",
            "HD Ox\r\n",
            "HELLO\r\n",
            "\r\n",
            "\u{e9}\r",
        ] {
            let text = [text, "\r\n"].concat();
            assert!(decoded(&text).is_err(), "{text}");
        }
        assert!(Reply::decode(&[b'x'; LINE_LEN_MAX]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_have_the_properties(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            crate::properties::replies(&bytes);
        }

        /// A value with any bytes stays one value.
        #[test]
        fn set_value_has_the_length_of_its_line(value in prop::collection::vec(any::<u8>(), 0..60), opaque in any::<u64>()) {
            let mut out = Vec::new();
            Command::Set { key: "k", value: &value, ttl: 5, opaque }.encode(&mut out);
            let line = format!("ms k {} T5 O{opaque}\r\n", value.len());
            prop_assert_eq!(out, [line.as_bytes(), &value, b"\r\n"].concat());
        }
    }
}
