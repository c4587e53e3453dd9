//! From the bytes of one layout to the bytes of another, member by member. Pure.

use super::{
    MigrationError,
    layout::{Layout, Member},
};

/// Moves the bytes of a value to the places of another layout. Bytes that no transfer writes are 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conversion {
    transfers: Vec<Transfer>,
    /// Length of a value of the other layout, bytes.
    size: usize,
    is_identity: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Transfer {
    Copy {
        from: usize,
        to: usize,
        length: usize,
    },
    /// An integer that grew.
    Widen {
        from: usize,
        to: usize,
        sizes: [usize; 2],
        signed: bool,
    },
}

impl Conversion {
    /// From values of one layout to values of the other: members of a structure are the same if the
    /// names are, an array or an integer may have grown. A member that only the new layout has is
    /// 0.
    ///
    /// # Errors
    /// A member is of another kind, an integer or an array is smaller than before, or members of a union differ.
    pub(crate) fn between(old: &Layout, new: &Layout) -> Result<Self, MigrationError> {
        let mut transfers = Vec::new();
        add_transfers(&mut transfers, (old, 0), (new, 0))?;
        Ok(Self {
            transfers: joined(transfers),
            size: new.size(),
            is_identity: old == new,
        })
    }

    /// The same layout: bytes stay unchanged.
    pub(crate) fn is_identity(&self) -> bool {
        self.is_identity
    }

    /// The value in the new layout. Bytes that are missing are 0.
    pub(crate) fn apply(&self, value: &[u8]) -> Vec<u8> {
        let mut converted = vec![0; self.size];
        for transfer in &self.transfers {
            transfer.apply(value, &mut converted);
        }
        converted
    }
}

impl Transfer {
    fn apply(&self, value: &[u8], converted: &mut [u8]) {
        let (from, to, bytes) = match *self {
            Self::Copy { from, to, length } => (value.get(from..from + length), to, None),
            Self::Widen {
                from,
                to,
                sizes: [old, new],
                signed,
            } => {
                let old = value.get(from..from + old);
                (old, to, old.map(|old| widened(old, new, signed)))
            }
        };
        let bytes = bytes.as_deref().or(from);
        let Some(bytes) = bytes else { return };
        if let Some(place) = converted.get_mut(to..to + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }
}

fn add_transfers(
    transfers: &mut Vec<Transfer>,
    (old, from): (&Layout, usize),
    (new, to): (&Layout, usize),
) -> Result<(), MigrationError> {
    if old == new {
        let length = old.size();
        transfers.push(Transfer::Copy { from, to, length });
        return Ok(());
    }
    match (old, new) {
        (Layout::Integer { size: old, signed }, Layout::Integer { size: new, .. }) => {
            if new < old {
                return Err(MigrationError::Narrower);
            }
            transfers.push(match old == new {
                true => Transfer::Copy {
                    from,
                    to,
                    length: *old,
                },
                false => Transfer::Widen {
                    from,
                    to,
                    sizes: [*old, *new],
                    signed: *signed,
                },
            });
            Ok(())
        }
        (
            Layout::Array {
                element: old,
                count: had,
            },
            Layout::Array {
                element: new,
                count: has,
            },
        ) => match has < had {
            true => Err(MigrationError::Shorter),
            false => (0..*had).try_for_each(|at| {
                let (from, to) = (from + at * old.size(), to + at * new.size());
                add_transfers(transfers, (old, from), (new, to))
            }),
        },
        (Layout::Structure { members: old, .. }, Layout::Structure { members: new, .. }) => {
            for Member {
                name,
                offset,
                layout,
            } in new
            {
                let Some(before) = old.iter().find(|member| member.name == *name) else {
                    continue;
                };
                let old = (&before.layout, from + before.offset);
                add_transfers(transfers, old, (layout, to + offset))
                    .map_err(|error| error.in_member(name))?;
            }
            Ok(())
        }
        _ => Err(MigrationError::OtherKind),
    }
}

/// Joins adjacent copies into one transfer.
fn joined(transfers: Vec<Transfer>) -> Vec<Transfer> {
    let mut joined: Vec<Transfer> = Vec::with_capacity(transfers.len());
    for transfer in transfers {
        match (joined.last_mut(), &transfer) {
            (
                Some(Transfer::Copy { from, to, length }),
                Transfer::Copy {
                    from: next_from,
                    to: next_to,
                    length: more,
                },
            ) if *from + *length == *next_from && *to + *length == *next_to => *length += more,
            _ => joined.push(transfer),
        }
    }
    joined
}

/// The integer in more bytes, in the byte order of this machine.
fn widened(value: &[u8], size: usize, signed: bool) -> Vec<u8> {
    let little = cfg!(target_endian = "little");
    let highest = if little { value.last() } else { value.first() };
    let is_negative = signed && highest.is_some_and(|byte| byte & 0x80 != 0);
    let filling = vec![if is_negative { 0xff } else { 0 }; size.saturating_sub(value.len())];
    match little {
        true => [value, &filling].concat(),
        false => [&filling, value].concat(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn integer(size: usize) -> Layout {
        Layout::Integer {
            size,
            signed: false,
        }
    }

    fn signed(size: usize) -> Layout {
        Layout::Integer { size, signed: true }
    }

    fn array(element: Layout, count: usize) -> Layout {
        Layout::Array {
            element: Box::new(element),
            count,
        }
    }

    /// Members back to back.
    fn structure(members: &[(&str, Layout)]) -> Layout {
        let mut size = 0;
        let mut placed = Vec::new();
        for (name, layout) in members {
            placed.push(Member {
                name: (*name).to_owned(),
                offset: size,
                layout: layout.clone(),
            });
            size += layout.size();
        }
        Layout::Structure {
            size,
            members: placed,
        }
    }

    fn converted(old: &Layout, new: &Layout, value: &[u8]) -> Vec<u8> {
        Conversion::between(old, new).expect("it can").apply(value)
    }

    #[test]
    fn structure_that_grew_has_zeros_in_new_members() {
        let old = structure(&[("a", integer(1)), ("b", integer(1))]);
        let new = structure(&[("a", integer(1)), ("new", integer(2)), ("b", integer(1))]);
        assert_eq!(converted(&old, &new, &[1, 2]), [1, 0, 0, 2]);
    }

    #[test]
    fn member_that_moved_keeps_its_value() {
        let old = structure(&[("a", integer(1)), ("b", integer(2))]);
        let new = structure(&[("b", integer(2)), ("a", integer(1))]);
        assert_eq!(converted(&old, &new, &[1, 2, 3]), [2, 3, 1]);
    }

    #[test]
    fn member_that_is_gone_is_dropped() {
        let old = structure(&[("a", integer(1)), ("gone", integer(4)), ("b", integer(1))]);
        let new = structure(&[("a", integer(1)), ("b", integer(1))]);
        assert_eq!(converted(&old, &new, &[1, 9, 9, 9, 9, 2]), [1, 2]);
    }

    #[test]
    fn nested_structure_is_converted_by_its_own_names() {
        let half = structure(&[("x", integer(1)), ("y", integer(1))]);
        let grown = structure(&[("new", integer(1)), ("y", integer(1)), ("x", integer(1))]);
        let old = structure(&[("first", half.clone()), ("x", integer(1)), ("second", half)]);
        let new = structure(&[
            ("first", grown.clone()),
            ("x", integer(1)),
            ("second", grown),
        ]);
        assert_eq!(
            converted(&old, &new, &[1, 2, 3, 4, 5]),
            [0, 2, 1, 3, 0, 5, 4]
        );
    }

    #[test]
    fn array_that_grew_keeps_its_elements() {
        let (two, three) = (array(integer(1), 2), array(integer(1), 3));
        assert_eq!(converted(&two, &three, &[1, 2]), [1, 2, 0]);
        let refused = Conversion::between(&three, &two);
        assert!(matches!(refused, Err(MigrationError::Shorter)));
        let old = array(structure(&[("a", integer(1))]), 2);
        let new = array(structure(&[("new", integer(1)), ("a", integer(1))]), 3);
        assert_eq!(converted(&old, &new, &[1, 2]), [0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn integer_that_grew_keeps_its_value_and_sign() {
        let value = 0x8001_u16;
        let bytes = converted(&integer(2), &integer(8), &value.to_ne_bytes());
        assert_eq!(bytes, u64::from(value).to_ne_bytes());
        let value = -2_i16;
        let bytes = converted(&signed(2), &signed(4), &value.to_ne_bytes());
        assert_eq!(bytes, i32::from(value).to_ne_bytes());
    }

    #[test]
    fn change_that_loses_a_meaning_is_refused_and_named() {
        let of = |layout| structure(&[("half", structure(&[("a", layout)]))]);
        let refused = |old, new| {
            let error = Conversion::between(&of(old), &of(new)).expect_err("it cannot");
            error.to_string()
        };
        let narrower = refused(integer(4), integer(2));
        assert!(narrower.contains("half.a"), "{narrower}");
        assert!(narrower.contains("smaller"), "{narrower}");
        let kind = refused(integer(4), array(integer(1), 4));
        assert!(kind.contains("another kind"), "{kind}");
        let one_of = |name: &str| Layout::Union {
            size: 4,
            members: vec![Member {
                name: name.to_owned(),
                offset: 0,
                layout: integer(4),
            }],
        };
        let union = refused(one_of("a"), one_of("b"));
        assert!(union.contains("another kind"), "{union}");
        let bytes = refused(Layout::Untyped { size: 1 }, Layout::Untyped { size: 2 });
        assert!(bytes.contains("another kind"), "{bytes}");
    }

    fn layouts() -> impl Strategy<Value = Layout> {
        let leaf = (0_u32..4, any::<bool>()).prop_map(|(power, signed)| Layout::Integer {
            size: 1 << power,
            signed,
        });
        leaf.prop_recursive(3, 24, 5, |inner| {
            let one = ("[a-f]", inner.clone());
            let members = prop::collection::btree_map(one.0, one.1, 1..5).prop_shuffle_members();
            prop_oneof![
                (inner, 1_usize..4).prop_map(|(element, count)| array(element, count)),
                members,
            ]
        })
    }

    trait Shuffled {
        fn prop_shuffle_members(self) -> BoxedStrategy<Layout>;
    }

    impl<S: Strategy<Value = BTreeMap<String, Layout>> + 'static> Shuffled for S {
        fn prop_shuffle_members(self) -> BoxedStrategy<Layout> {
            let listed = self.prop_map(|members| members.into_iter().collect::<Vec<_>>());
            let shuffled = listed.prop_shuffle();
            let placed = shuffled.prop_map(|members| {
                let named: Vec<_> = members
                    .iter()
                    .map(|(name, layout)| (name.as_str(), layout.clone()))
                    .collect();
                structure(&named)
            });
            placed.boxed()
        }
    }

    /// The integers of a value by path: a conversion must keep these.
    fn integers(layout: &Layout, value: &[u8], path: &str, all: &mut BTreeMap<String, i128>) {
        match layout {
            Layout::Integer { size, signed } => {
                let mut bytes = widened(&value[..*size], 16, *signed);
                bytes.truncate(16);
                let number = i128::from_ne_bytes(bytes.try_into().unwrap());
                all.insert(path.to_owned(), number);
            }
            Layout::Array { element, count } => {
                for at in 0..*count {
                    let value = &value[at * element.size()..];
                    integers(element, value, &format!("{path}[{at}]"), all);
                }
            }
            Layout::Structure { members, .. } => {
                for member in members {
                    let value = &value[member.offset..];
                    let path = format!("{path}.{}", member.name);
                    integers(&member.layout, value, &path, all);
                }
            }
            Layout::Union { .. } | Layout::Untyped { .. } => unreachable!("not made here"),
        }
    }

    proptest! {
        #[test]
        fn conversion_to_the_same_layout_keeps_all_bytes(
            layout in layouts(), seed in prop::collection::vec(any::<u8>(), 4096)
        ) {
            let value = &seed[..layout.size().min(4096)];
            let conversion = Conversion::between(&layout, &layout).unwrap();
            prop_assert!(conversion.is_identity());
            prop_assert_eq!(&conversion.apply(value)[..value.len()], value);
        }

        /// An integer with the same path keeps the number (modulo the sign that the new layout
        /// reads); other integers are 0.
        #[test]
        fn converted_integers_are_those_of_the_same_path(
            old in layouts(), new in layouts(), seed in prop::collection::vec(any::<u8>(), 65536)
        ) {
            let Ok(conversion) = Conversion::between(&old, &new) else { return Ok(()) };
            let value = &seed[..old.size()];
            let bytes = conversion.apply(value);
            prop_assert_eq!(bytes.len(), new.size());
            let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
            integers(&old, value, "", &mut before);
            integers(&new, &bytes, "", &mut after);
            for (path, number) in after {
                let expected = before.get(&path).copied().unwrap_or(0);
                let is_same = number == expected || number.wrapping_sub(expected).trailing_zeros() >= 8;
                prop_assert!(is_same, "{}: {} became {}", path, expected, number);
            }
        }
    }
}
