//! Two successive versions of a protocol: each version reads the messages of the other.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::*;
use crate::Versions;

/// The version before.
mod v1 {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub(super) struct Inner {
        pub(super) a: u32,
    }

    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub(super) struct Item {
        #[serde(with = "framed")]
        pub(super) inner: Inner,
        pub(super) b: u8,
    }

    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub(super) enum Talk {
        List {
            #[serde(with = "framed::list")]
            items: Vec<Item>,
            #[serde(with = "framed::list")]
            pairs: Vec<(u32, u32)>,
            #[serde(with = "framed")]
            maybe: Option<Inner>,
            last: bool,
        },
        Single(Inner),
    }

    impl Message for Talk {
        const FROM: Role = Role::Asks;

        fn since(&self) -> u8 {
            1
        }
    }
}

/// The version after it.
mod v2 {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub(super) struct Inner {
        pub(super) a: u32,
        #[serde(default)]
        pub(super) text: String,
        #[serde(default)]
        pub(super) number: Option<u64>,
    }

    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub(super) struct Item {
        #[serde(with = "framed")]
        pub(super) inner: Inner,
        pub(super) b: u8,
        #[serde(default, with = "framed")]
        pub(super) more: Option<Inner>,
    }

    /// A tuple that has become a struct.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub(super) struct Pair {
        pub(super) from: u32,
        pub(super) to: u32,
        #[serde(default)]
        pub(super) weight: u32,
    }

    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub(super) enum Talk {
        List {
            #[serde(with = "framed::list")]
            items: Vec<Item>,
            #[serde(with = "framed::list")]
            pairs: Vec<Pair>,
            #[serde(with = "framed")]
            maybe: Option<Inner>,
            last: bool,
            #[serde(default)]
            total: u64,
        },
        Single(Inner),
        New {
            token: u64,
        },
    }

    impl Message for Talk {
        const FROM: Role = Role::Asks;

        fn since(&self) -> u8 {
            match self {
                Self::New { .. } => 2,
                Self::List { .. } | Self::Single(_) => 1,
            }
        }
    }
}

const FIRST: Versions = Versions::only(1);

fn both() -> Versions {
    Versions::new(1, 2).unwrap()
}

/// The message that a reader of `ours` decodes from a message of a writer of `theirs`.
fn across<A: Message, B: Message>(
    written: &A,
    theirs: Versions,
    ours: Versions,
) -> Result<B, ControlError> {
    let mut bytes = Opening {
        role: Role::Asks,
        versions: theirs,
    }
    .encode()
    .to_vec();
    encode(written, Agreed::on(theirs, ours)?, &mut bytes)?;
    let mut decoder = Decoder::<B>::at_opening(ours);
    decoder.feed(&bytes);
    let message = decoder.pull()?.expect("the message is whole");
    assert!(decoder.is_at_boundary());
    Ok(message)
}

fn first() -> v1::Talk {
    let item = |a, b| v1::Item {
        inner: v1::Inner { a },
        b,
    };
    v1::Talk::List {
        items: vec![item(1, 2), item(300, 4)],
        pairs: vec![(5, 6), (700, 8)],
        maybe: Some(v1::Inner { a: 9 }),
        last: true,
    }
}

fn second(text: &str, number: Option<u64>, more: bool, weight: u32, total: u64) -> v2::Talk {
    let inner = |a| v2::Inner {
        a,
        text: text.into(),
        number,
    };
    let item = |a, b| v2::Item {
        inner: inner(a),
        b,
        more: more.then(|| inner(77)),
    };
    let pair = |from, to| v2::Pair { from, to, weight };
    v2::Talk::List {
        items: vec![item(1, 2), item(300, 4)],
        pairs: vec![pair(5, 6), pair(700, 8)],
        maybe: Some(inner(9)),
        last: true,
        total,
    }
}

#[test]
fn fields_of_a_newer_peer_are_ignored() {
    let long = "longer than a frame of one byte ".repeat(9);
    for said in [
        second("text", Some(1), true, 9, 10),
        second(&long, None, false, 0, 0),
    ] {
        assert_eq!(across(&said, both(), FIRST), Ok(first()));
    }
    let inner = v2::Inner {
        a: 1,
        text: "text".into(),
        number: None,
    };
    let single = v1::Talk::Single(v1::Inner { a: 1 });
    assert_eq!(across(&v2::Talk::Single(inner), both(), FIRST), Ok(single));
}

#[test]
fn fields_that_an_older_peer_does_not_know_are_zero() {
    let known = second("", None, false, 0, 0);
    assert_eq!(across(&first(), FIRST, both()), Ok(known));
    let single = v1::Talk::Single(v1::Inner { a: 1 });
    let known = v2::Talk::Single(v2::Inner {
        a: 1,
        text: String::new(),
        number: None,
    });
    assert_eq!(across(&single, FIRST, both()), Ok(known));
}

#[test]
fn same_version_is_read_strictly() {
    let said = second("text", Some(1), true, 9, 10);
    assert_eq!(across(&said, both(), both()), Ok(said.clone()));
    let shorter = across::<_, v2::Talk>(&first(), FIRST, FIRST);
    assert_eq!(shorter, Err(malformed("it ends within a field")));
    let longer = across::<_, v1::Talk>(&said, both(), both());
    assert_eq!(longer, Err(malformed("bytes behind the last field")));
}

/// A newer peer says all that this end knows, and an older peer no more than that.
#[test]
fn leniency_has_one_direction() {
    let shorter = across::<_, v2::Talk>(&first(), both(), FIRST);
    assert_eq!(shorter, Err(malformed("it ends within a field")));
    let said = second("text", Some(1), true, 9, 10);
    let longer = across::<_, v1::Talk>(&said, FIRST, both());
    assert_eq!(longer, Err(malformed("bytes behind the last field")));
}

#[test]
fn field_without_default_must_be_there_from_an_older_peer() {
    let agreed = Agreed::on(both(), FIRST).unwrap();
    let read = |bytes: &[u8]| {
        let mut decoder = Decoder::<v2::Talk>::new(agreed);
        decoder.feed(&message(bytes));
        decoder.pull().map(|message| message.expect("it is whole"))
    };
    assert!(read(&[1, 7]).is_ok());
    assert!(matches!(read(&[1]), Err(ControlError::Malformed(_))));
    // A number that is cut off is not a number that is missing.
    assert_eq!(read(&[1, 0x87]), Err(malformed("it ends within a field")));
    assert_eq!(
        read(&[1, 7, 3, b'a']),
        Err(malformed("it ends within a field"))
    );
}

#[test]
fn new_message_is_said_to_peers_that_know_it() {
    let new = v2::Talk::New { token: 7 };
    assert_eq!(across(&new, both(), both()), Ok(new.clone()));
    let error = ControlError::NotSpoken {
        since: 2,
        agreed: 1,
    };
    assert_eq!(
        across::<_, v1::Talk>(&new, both(), FIRST),
        Err(error.clone())
    );
    // A peer that says it all the same is not heard.
    let mut bytes = Vec::new();
    let agreed = Agreed::on(both(), both()).unwrap();
    encode(&new, agreed, &mut bytes).unwrap();
    let mut knows = Decoder::<v2::Talk>::new(Agreed::on(both(), FIRST).unwrap());
    knows.feed(&bytes);
    assert_eq!(knows.pull(), Err(error));
    let mut knows_not = Decoder::<v1::Talk>::new(Agreed::on(FIRST, both()).unwrap());
    knows_not.feed(&bytes);
    assert_eq!(knows_not.pull(), Err(ControlError::UnknownMessage(2)));
}

/// A message with a struct in a struct, without a frame between them.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Unframed {
    inner: v1::Inner,
}

impl Message for Unframed {
    const FROM: Role = Role::Asks;

    fn since(&self) -> u8 {
        1
    }
}

#[test]
fn struct_without_a_frame_is_noticed() {
    let inner = v1::Inner { a: 1 };
    let error = pull::<Unframed>(&bytes_of(&Unframed { inner }));
    assert_eq!(error, Err(malformed("a struct in a struct is not framed")));
}

fn is_read_or_refused<M: Message + DeserializeOwned>(agreed: Agreed, bytes: &[u8]) {
    let mut decoder = Decoder::<M>::new(agreed);
    decoder.feed(&message(bytes));
    let _ = decoder.pull();
}

proptest! {
    #[test]
    fn any_bytes_of_any_peer(kind in 0u8..3, mut bytes in prop::collection::vec(0u8..9, 0..40)) {
        bytes.insert(0, kind);
        for (ours, theirs) in [(both(), FIRST), (both(), both()), (FIRST, both())] {
            let agreed = Agreed::on(ours, theirs).unwrap();
            is_read_or_refused::<v1::Talk>(agreed, &bytes);
            is_read_or_refused::<v2::Talk>(agreed, &bytes);
        }
    }
}
