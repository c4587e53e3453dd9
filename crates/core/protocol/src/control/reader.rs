//! Reads values: the format of `postcard`, and stricter than `postcard`'s own reader.
//!
//! `postcard` writes the fields of a value one after the other, without names and without an end. A reader of this
//! crate knows the end of each struct, because the struct is a whole message or is framed ([`super::framed`]). So the
//! reader can tell a field that the peer does not know from a field that is cut off. A field that is newer than the
//! oldest version has `#[serde(default)]`; serde fills such a field when a struct ends before the field.
//!
//! | newest version of the peer | bytes behind the last known field | end before the last known field |
//! |---|---|---|
//! | same | error | error |
//! | newer | ignored | error |
//! | older | error | default of the missing fields, where each missing field has a default; otherwise error |
//!
//! A number has one encoding, the shortest. No length is believed: memory is taken for bytes that have arrived.

use core::fmt;

use serde::de::{
    self, DeserializeSeed, EnumAccess, IntoDeserializer, SeqAccess, VariantAccess, Visitor,
};

use super::framed::FRAME;
use super::opening::Peer;

/// Why bytes are no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReadError {
    /// No message has this number.
    UnknownMessage(u32),
    /// Anything else, in words.
    Malformed(String),
}

impl ReadError {
    fn malformed(why: &str) -> Self {
        Self::Malformed(why.to_owned())
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownMessage(number) => write!(f, "no message has the number {number}"),
            Self::Malformed(why) => f.write_str(why),
        }
    }
}

impl core::error::Error for ReadError {}

impl de::Error for ReadError {
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self::Malformed(why.to_string())
    }
}

/// Bytes of a message or of a frame in a message.
#[derive(Debug)]
pub(super) struct Reader<'de> {
    rest: &'de [u8],
    peer: Peer,
    /// No byte of the frame was read yet: a struct that begins here ends at the end of the frame.
    at_frame_start: bool,
    /// The next number of a variant is that of a message.
    at_message: bool,
}

/// Reads a whole message.
pub(super) fn message<'de, T: de::Deserialize<'de>>(
    bytes: &'de [u8],
    peer: Peer,
) -> Result<T, ReadError> {
    let mut reader = Reader {
        rest: bytes,
        peer,
        at_frame_start: true,
        at_message: true,
    };
    let value = T::deserialize(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

impl<'de> Reader<'de> {
    fn finish(&self) -> Result<(), ReadError> {
        match self.rest.is_empty() || self.peer == Peer::Newer {
            true => Ok(()),
            false => Err(ReadError::malformed("bytes behind the last field")),
        }
    }

    fn take(&mut self, len: usize) -> Result<&'de [u8], ReadError> {
        let Some((bytes, rest)) = self.rest.split_at_checked(len) else {
            return Err(ReadError::malformed("it ends within a field"));
        };
        self.rest = rest;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, ReadError> {
        Ok(self.take(1)?[0])
    }

    /// A number in groups of seven bits, the lowest first; the highest bit of a byte says that another byte follows.
    fn number(&mut self) -> Result<u64, ReadError> {
        let mut number = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let group = u64::from(byte & 0x7f);
            if (group << shift) >> shift != group {
                break;
            }
            number |= group << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(ReadError::malformed("a number is longer than necessary"));
                }
                return Ok(number);
            }
        }
        Err(ReadError::malformed("a number is too large"))
    }

    fn number_of<N: TryFrom<u64>>(&mut self) -> Result<N, ReadError> {
        N::try_from(self.number()?).map_err(|_| ReadError::malformed("a number is too large"))
    }

    /// Bytes behind a length.
    fn bytes(&mut self) -> Result<&'de [u8], ReadError> {
        // A length beyond the address space is beyond the message.
        let len = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        self.take(len)
    }

    fn text(&mut self) -> Result<&'de str, ReadError> {
        core::str::from_utf8(self.bytes()?)
            .map_err(|_| ReadError::malformed("the text is not UTF-8"))
    }

    fn truth(&mut self) -> Result<bool, ReadError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ReadError::malformed("a truth value is neither 0 nor 1")),
        }
    }

    /// Fields up to the end of the frame.
    fn fields<V: Visitor<'de>>(&mut self, count: usize, visitor: V) -> Result<V::Value, ReadError> {
        // A mistake of ours, which no test of a message would miss.
        if !core::mem::take(&mut self.at_frame_start) {
            return Err(ReadError::malformed("a struct in a struct is not framed"));
        }
        let ends_early = self.peer == Peer::Older;
        visitor.visit_seq(Items {
            reader: self,
            left: count,
            ends_early,
        })
    }

    /// Exactly `count` items.
    fn items<V: Visitor<'de>>(&mut self, count: usize, visitor: V) -> Result<V::Value, ReadError> {
        self.at_frame_start = false;
        visitor.visit_seq(Items {
            reader: self,
            left: count,
            ends_early: false,
        })
    }
}

struct Items<'r, 'de> {
    reader: &'r mut Reader<'de>,
    left: usize,
    /// The end of the frame is the end of the items.
    ends_early: bool,
}

impl<'de> SeqAccess<'de> for Items<'_, 'de> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ReadError> {
        if self.left == 0 || (self.ends_early && self.reader.rest.is_empty()) {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    /// No announced length is passed on.
    fn size_hint(&self) -> Option<usize> {
        None
    }
}

/// Types that no message has.
macro_rules! absent {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ReadError> {
            Err(ReadError::malformed("messages have no values of this kind"))
        })*
    };
}

impl<'de> de::Deserializer<'de> for &mut Reader<'de> {
    type Error = ReadError;

    absent! {
        deserialize_any deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_f32 deserialize_f64 deserialize_char deserialize_map
        deserialize_identifier deserialize_ignored_any
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_bool(self.truth()?)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_u8(self.byte()?)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_u16(self.number_of()?)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_u32(self.number_of()?)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_u64(self.number()?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_borrowed_str(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_borrowed_bytes(self.bytes()?)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.truth()? {
            true => visitor.visit_some(self),
            false => visitor.visit_none(),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_unit()
    }

    /// A frame: a length, and bytes that hold a value.
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        if name != FRAME {
            return visitor.visit_newtype_struct(self);
        }
        let mut frame = Reader {
            rest: self.bytes()?,
            peer: self.peer,
            at_frame_start: true,
            at_message: false,
        };
        let value = visitor.visit_newtype_struct(&mut frame)?;
        frame.finish()?;
        Ok(value)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let count = self.number_of()?;
        self.items(count, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.items(len, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.items(len, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.fields(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_enum(self)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

impl<'de> EnumAccess<'de> for &mut Reader<'de> {
    type Error = ReadError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), ReadError> {
        let is_message = core::mem::take(&mut self.at_message);
        let number: u32 = self.number_of()?;
        let known: Result<_, ReadError> = seed.deserialize(number.into_deserializer());
        let variant = known.map_err(|_| match is_message {
            true => ReadError::UnknownMessage(number),
            false => ReadError::Malformed(format!("no value has the number {number}")),
        })?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for &mut Reader<'de> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, ReadError> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, ReadError> {
        self.items(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.fields(fields.len(), visitor)
    }
}
