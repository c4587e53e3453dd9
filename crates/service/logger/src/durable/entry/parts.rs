//! Parts of an entry.

use wire::SeqNumber;

pub(super) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

pub(super) fn numbers<const N: usize>(bytes: &mut &[u8]) -> Option<[SeqNumber; N]> {
    let mut numbers = [SeqNumber(0); N];
    for number in &mut numbers {
        *number = self::number(bytes)?;
    }
    Some(numbers)
}

pub(super) fn number(bytes: &mut &[u8]) -> Option<SeqNumber> {
    take(bytes).map(|number| SeqNumber(u32::from_le_bytes(number)))
}

pub(super) fn truth(bytes: &mut &[u8]) -> Option<bool> {
    match take(bytes)? {
        [0] => Some(false),
        [1] => Some(true),
        _ => None,
    }
}

/// The optional value; `None` is encoded as zeros.
pub(super) fn known<T>(is_known: bool, numbers: [SeqNumber; 2], value: T) -> Option<Option<T>> {
    match is_known {
        true => Some(Some(value)),
        false => (numbers == [SeqNumber(0); 2]).then_some(None),
    }
}
