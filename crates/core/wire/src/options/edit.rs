//! Changes of options in place. The length of the options never changes, so neither the length of the header nor the
//! place of the payload changes.

use super::{Span, kind, span_at, two_words};

/// The length of a timestamps option, kind and length bytes included.
const TIMESTAMPS_LEN: usize = 10;

/// Puts new values into the timestamps option. Returns whether there was such an option. (Several timestamps options
/// are all changed: receivers differ in which option they believe.)
pub fn replace_timestamps(options: &mut [u8], value: u32, echo: u32) -> bool {
    let values = two_words(value, echo);
    let is_timestamps = |span: &Span| span.kind == kind::TIMESTAMPS && span.len == TIMESTAMPS_LEN;
    edit(options, is_timestamps, |option| {
        option[2..].copy_from_slice(&values);
    }) > 0
}

/// Overwrites all options of these kinds by "no operation" and returns the number of overwritten options. The padding
/// kinds, 0 and 1, are no options to strip and are ignored. Options behind a malformed option stay: no receiver reads
/// these options.
pub fn strip(options: &mut [u8], kinds: &[u8]) -> usize {
    let is_listed = |span: &Span| span.kind > kind::NO_OPERATION && kinds.contains(&span.kind);
    edit(options, is_listed, |option| {
        option.fill(kind::NO_OPERATION);
    })
}

/// Applies `change` to the bytes of each option that `wanted` selects, up to the end of the list or the first
/// malformed option. Returns the number of changed options.
fn edit(options: &mut [u8], wanted: impl Fn(&Span) -> bool, change: impl Fn(&mut [u8])) -> usize {
    let mut changed = 0;
    let mut offset = 0;
    while let Some(Ok(span)) = span_at(options, offset) {
        if span.kind == kind::END_OF_LIST {
            break;
        }
        offset += span.len;
        if wanted(&span) {
            change(&mut options[span.offset..offset]);
            changed += 1;
        }
    }
    changed
}
