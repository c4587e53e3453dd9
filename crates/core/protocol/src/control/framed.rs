//! Values in other values: each has a length, so that its type may get more fields.
//!
//! `#[serde(with = "framed")]` is for a struct, an enum with fields, or an option of these, in a struct.
//! `#[serde(with = "framed::list")]` is for lists. [`super::reader`] refuses a struct in a struct without a frame.

use core::marker::PhantomData;

use postcard::ser_flavors::Size;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::Visitor,
    ser::{Error, SerializeTuple},
};

/// The name by which [`super::reader`] knows a frame.
pub(crate) const FRAME: &str = "frame";

pub(crate) fn serialize<T: Serialize, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let len = postcard::serialize_with_flavor(value, Size::default()).map_err(S::Error::custom)?;
    // A tuple is its members, one behind the other.
    let mut frame = serializer.serialize_tuple(2)?;
    frame.serialize_element(&(len as u64))?;
    frame.serialize_element(value)?;
    frame.end()
}

pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    struct Inside<T>(PhantomData<fn() -> T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Inside<T> {
        type Value = T;

        fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            f.write_str("a frame")
        }

        fn visit_newtype_struct<D: Deserializer<'de>>(self, frame: D) -> Result<T, D::Error> {
            T::deserialize(frame)
        }
    }

    deserializer.deserialize_newtype_struct(FRAME, Inside(PhantomData))
}

/// Lists of framed elements.
pub(crate) mod list {
    use core::marker::PhantomData;

    use serde::{
        Deserialize, Deserializer, Serialize, Serializer,
        de::{Error as _, SeqAccess, Visitor},
        ser::Error as _,
    };

    /// Most bytes of memory that the elements of a list take. An element may take more than its encoding: without a
    /// limit a megabyte of empty elements would become a hundred.
    pub(crate) const LIST_BYTES_MAX: usize = 8 << 20;

    const TOO_LONG: &str = "a list is too long";

    /// A list never has more elements of this type.
    pub(crate) const fn most<T>() -> usize {
        LIST_BYTES_MAX / size_of::<T>()
    }

    pub(crate) fn check<T, S: Serializer>(len: usize) -> Result<(), S::Error> {
        match len > most::<T>() {
            true => Err(S::Error::custom(TOO_LONG)),
            false => Ok(()),
        }
    }

    struct Framed<T>(T);

    impl<T: Serialize> Serialize for Framed<&T> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            super::serialize(self.0, serializer)
        }
    }

    impl<'de, T: Deserialize<'de>> Deserialize<'de> for Framed<T> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            super::deserialize(deserializer).map(Self)
        }
    }

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        list: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        check::<T, S>(list.len())?;
        serializer.collect_seq(list.iter().map(Framed))
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        struct List<T>(PhantomData<fn() -> T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
                let mut list = Vec::new();
                while let Some(Framed(item)) = items.next_element()? {
                    if list.len() == most::<T>() {
                        return Err(A::Error::custom(TOO_LONG));
                    }
                    list.push(item);
                }
                Ok(list)
            }
        }

        deserializer.deserialize_seq(List(PhantomData))
    }
}
