//! Memory layout of a value, from BTF (Linux, Documentation/bpf/btf.rst). Pure.

use super::MigrationError;

const BTF_MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
/// Deeper than any structure of ours: types of a damaged BTF may name each other in a circle.
const MOST_NESTED_TYPES: u32 = 32;

/// The memory of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layout {
    /// An integer, an enumeration or a truth value of `size` bytes.
    Integer { size: usize, signed: bool },
    /// `count` values of the same layout.
    Array { element: Box<Self>, count: usize },
    /// Named members, in `size` bytes.
    Structure { size: usize, members: Vec<Member> },
    /// Members that share memory: the valid member is unknown here.
    Union { size: usize, members: Vec<Member> },
    /// Bytes without a known type.
    Untyped { size: usize },
}

/// A member of a structure or union.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Bytes from the beginning of the structure.
    pub(crate) offset: usize,
    pub(crate) layout: Layout,
}

impl Layout {
    /// Length of a value, bytes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Integer { size, .. }
            | Self::Structure { size, .. }
            | Self::Union { size, .. }
            | Self::Untyped { size } => *size,
            Self::Array { element, count } => element.size().saturating_mul(*count),
        }
    }
}

/// All types of a BTF, by number.
#[derive(Debug)]
pub(crate) struct Types(Vec<Type>);

#[derive(Debug)]
enum Type {
    Integer {
        size: usize,
        signed: bool,
    },
    Array {
        element: u32,
        count: u32,
    },
    Structure {
        size: usize,
        members: Vec<Field>,
    },
    Union {
        size: usize,
        members: Vec<Field>,
    },
    /// Another name, `const` or `volatile`.
    Alias(u32),
    /// No type of a value in a map of ours.
    Other,
}

#[derive(Debug)]
struct Field {
    name: String,
    of: u32,
    bits: u32,
    is_bitfield: bool,
}

impl Types {
    /// Parses a BTF of the kernel or the compiler, in the byte order of this machine.
    ///
    /// # Errors
    /// The bytes are not a BTF.
    pub(crate) fn parse(raw: &[u8]) -> Result<Self, MigrationError> {
        let word = |at: usize| word(raw, at);
        if raw.get(..2) != Some(&BTF_MAGIC.to_ne_bytes()) || raw.len() < HEADER_BYTES {
            return Err(MigrationError::Malformed);
        }
        let header = word(4)?;
        let section = |offset: usize, length: usize| {
            let start = header.checked_add(offset)?;
            raw.get(start..start.checked_add(length)?)
        };
        let types = section(word(8)?, word(12)?).ok_or(MigrationError::Malformed)?;
        let strings = section(word(16)?, word(20)?).ok_or(MigrationError::Malformed)?;
        let mut rest = Reader(types);
        let mut found = vec![Type::Other]; // number 0 is `void`
        while !rest.0.is_empty() {
            found.push(rest.next_type(strings)?);
        }
        Ok(Self(found))
    }

    /// The layout of type `number`.
    ///
    /// # Errors
    /// There is no such type, or values of the type do not lie in a map of ours.
    pub(crate) fn layout(&self, number: u32) -> Result<Layout, MigrationError> {
        self.layout_within(number, MOST_NESTED_TYPES)
    }

    fn layout_within(&self, number: u32, depth: u32) -> Result<Layout, MigrationError> {
        let found = usize::try_from(number).ok().and_then(|at| self.0.get(at));
        let found = found.ok_or(MigrationError::Malformed)?;
        let depth = depth.checked_sub(1).ok_or(MigrationError::Malformed)?;
        let members = |fields: &[Field]| -> Result<Vec<Member>, MigrationError> {
            let member = |field: &Field| self.member(field, depth);
            fields.iter().map(member).collect()
        };
        Ok(match found {
            Type::Integer { size, signed } => Layout::Integer {
                size: *size,
                signed: *signed,
            },
            Type::Array { element, count } => Layout::Array {
                element: Box::new(self.layout_within(*element, depth)?),
                count: usize::try_from(*count).map_err(|_| MigrationError::Malformed)?,
            },
            Type::Structure { size, members: all } => Layout::Structure {
                size: *size,
                members: members(all)?,
            },
            Type::Union { size, members: all } => Layout::Union {
                size: *size,
                members: members(all)?,
            },
            Type::Alias(other) => self.layout_within(*other, depth)?,
            Type::Other => return Err(MigrationError::Unsupported),
        })
    }

    /// A member without a name cannot be found again, and none of ours is a part of a byte.
    fn member(&self, field: &Field, depth: u32) -> Result<Member, MigrationError> {
        if field.name.is_empty() || field.is_bitfield || !field.bits.is_multiple_of(8) {
            return Err(MigrationError::Unsupported);
        }
        Ok(Member {
            name: field.name.clone(),
            offset: usize::try_from(field.bits / 8).map_err(|_| MigrationError::Malformed)?,
            layout: self.layout_within(field.of, depth)?,
        })
    }
}

/// The 32-bit word at an offset.
fn word(bytes: &[u8], at: usize) -> Result<usize, MigrationError> {
    let end = at.checked_add(4).ok_or(MigrationError::Malformed)?;
    let word = bytes.get(at..end).and_then(|bytes| bytes.first_chunk());
    let word = word.ok_or(MigrationError::Malformed)?;
    usize::try_from(u32::from_ne_bytes(*word)).map_err(|_| MigrationError::Malformed)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn next_word(&mut self) -> Result<u32, MigrationError> {
        let (word, rest) = self
            .0
            .split_first_chunk()
            .ok_or(MigrationError::Malformed)?;
        self.0 = rest;
        Ok(u32::from_ne_bytes(*word))
    }

    fn skip_words(&mut self, count: u32) -> Result<(), MigrationError> {
        (0..count).try_for_each(|_| self.next_word().map(drop))
    }

    /// The kinds of `linux/btf.h`.
    fn next_type(&mut self, strings: &[u8]) -> Result<Type, MigrationError> {
        let _name = self.next_word()?;
        let info = self.next_word()?;
        let size_or_type = self.next_word()?;
        let (count, flag) = (info & 0xffff, info >> 31 != 0);
        let size = usize::try_from(size_or_type).map_err(|_| MigrationError::Malformed)?;
        Ok(match (info >> 24) & 0x1f {
            1 => {
                let encoding = self.next_word()?;
                let signed = encoding >> 24 & 1 != 0;
                // The number of bits, and of the first of these.
                let is_whole = Some(encoding & 0x00ff_00ff) == size_or_type.checked_mul(8);
                if is_whole {
                    Type::Integer { size, signed }
                } else {
                    Type::Other
                }
            }
            3 => {
                let (element, _index, count) =
                    (self.next_word()?, self.next_word()?, self.next_word()?);
                Type::Array { element, count }
            }
            kind @ (4 | 5) => {
                let member = |_| self.next_member(strings, flag);
                let members = (0..count).map(member).collect::<Result<_, _>>()?;
                match kind {
                    4 => Type::Structure { size, members },
                    _ => Type::Union { size, members },
                }
            }
            kind @ (6 | 19) => {
                self.skip_words(count * if kind == 6 { 2 } else { 3 })?;
                Type::Integer { size, signed: flag }
            }
            8..=11 | 18 => Type::Alias(size_or_type),
            2 | 7 | 12 | 16 => Type::Other,
            13 => self.skip_words(count * 2).map(|()| Type::Other)?,
            14 | 17 => self.skip_words(1).map(|()| Type::Other)?,
            15 => self.skip_words(count * 3).map(|()| Type::Other)?,
            _ => return Err(MigrationError::Malformed), // of unknown length
        })
    }

    fn next_member(&mut self, strings: &[u8], flag: bool) -> Result<Field, MigrationError> {
        let name = self.next_word()?;
        let of = self.next_word()?;
        let place = self.next_word()?;
        // With the flag, the highest byte is the number of bits, if the member is not whole bytes.
        let (bits, is_bitfield) = match flag {
            true => (place & 0x00ff_ffff, place >> 24 != 0),
            false => (place, false),
        };
        let name = usize::try_from(name).ok().and_then(|at| strings.get(at..));
        let name = name.and_then(|bytes| bytes.split(|byte| *byte == 0).next());
        let name = name.and_then(|bytes| std::str::from_utf8(bytes).ok());
        Ok(Field {
            name: name.ok_or(MigrationError::Malformed)?.to_owned(),
            of,
            bits,
            is_bitfield,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A BTF of these types, each with words behind the head, and these strings.
    fn btf(types: &[&[u32]], strings: &[u8]) -> Vec<u8> {
        let words: Vec<u8> = types
            .concat()
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap().to_ne_bytes();
        let header = u32::try_from(HEADER_BYTES).unwrap().to_ne_bytes();
        let parts: [&[u8]; 9] = [
            &BTF_MAGIC.to_ne_bytes(),
            &[1, 0],
            &header,
            &[0; 4],
            &length(&words),
            &length(&words),
            &length(strings),
            &words,
            strings,
        ];
        parts.concat()
    }

    const SHORT_INTEGER: [u32; 4] = [0, 1 << 24, 2, 16];

    #[test]
    fn types_of_btf_become_layouts() {
        let array = [0, 3 << 24, 0, 1, 1, 3];
        let structure = [0, 4 << 24 | 2, 8, 1, 1, 0, 3, 4, 16];
        let alias = [0, 8 << 24, 2];
        let raw = btf(&[&SHORT_INTEGER, &array, &structure, &alias], b"\0a\0bc\0");
        let types = Types::parse(&raw).unwrap();
        let short = Layout::Integer {
            size: 2,
            signed: false,
        };
        let member = |name: &str, offset, layout| Member {
            name: name.to_owned(),
            offset,
            layout,
        };
        let array = Layout::Array {
            element: Box::new(short.clone()),
            count: 3,
        };
        let members = vec![member("a", 0, short), member("bc", 2, array)];
        let found = types.layout(3).unwrap();
        assert_eq!(found, Layout::Structure { size: 8, members });
    }

    #[test]
    fn bitfield_is_refused() {
        let structure = [0, 1 << 31 | 4 << 24 | 1, 4, 1, 1, 3 << 24];
        let types = Types::parse(&btf(&[&SHORT_INTEGER, &structure], b"\0a\0")).unwrap();
        assert!(matches!(types.layout(2), Err(MigrationError::Unsupported)));
    }

    #[test]
    fn circle_of_types_is_refused() {
        let types = Types::parse(&btf(&[&[0, 8 << 24, 1]], b"\0")).unwrap();
        assert!(matches!(types.layout(1), Err(MigrationError::Malformed)));
    }

    #[test]
    fn damaged_btf_is_refused_without_panic() {
        let structure = [0, 4 << 24 | 2, 8, 1, 1, 0, 3, 1, 16];
        let whole = btf(&[&SHORT_INTEGER, &structure], b"\0a\0bc\0");
        for length in 0..whole.len() {
            let _ = Types::parse(&whole[..length]);
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            if let Ok(types) = Types::parse(&damaged) {
                let _ = (types.layout(1), types.layout(2), types.layout(u32::MAX));
            }
        }
    }
}
