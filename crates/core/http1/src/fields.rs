//! The fields of a head.

use alloc::vec::Vec;

use crate::head::Doubt;

/// Names and values, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields<'a>(Vec<(&'a str, &'a [u8])>);

impl<'a> Fields<'a> {
    /// All fields.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.0.iter().copied()
    }

    /// Values of a field, in order. Names are compared without case (RFC 9110, 5.1).
    pub fn values<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'a [u8]> + 's {
        let named = self.0.iter();
        named
            .filter(move |(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
    }

    /// Value of a field that occurs once. `None` without the field.
    ///
    /// # Errors
    /// The field occurs twice, or the value is no text.
    pub fn value(&self, name: &str) -> Result<Option<&'a str>, Doubt> {
        let mut values = self.values(name);
        let first = values.next();
        if values.next().is_some() {
            return Err(Doubt::RepeatedField);
        }
        first
            .map(|value| core::str::from_utf8(value).map_err(|_| Doubt::Malformed))
            .transpose()
    }

    /// Whether the field occurs.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.values(name).next().is_some()
    }
}

impl<'a> FromIterator<(&'a str, &'a [u8])> for Fields<'a> {
    fn from_iter<T: IntoIterator<Item = (&'a str, &'a [u8])>>(fields: T) -> Self {
        Self(fields.into_iter().collect())
    }
}
