use proptest::prelude::*;

use super::*;

fn key(name: &str, byte: char) -> Key {
    let digits: String = std::iter::repeat_n(byte, 64).collect();
    Key::parse(&format!("{name}:{digits}")).unwrap()
}

fn ring(keys: &[Key]) -> Arc<KeyRing> {
    Arc::new(KeyRing::of(keys.to_vec()))
}

/// Carries the outgoing bytes of an end to the other end, in pieces of this size.
fn carry(from: &mut Session, to: &mut Session, size: usize) -> Result<(), ChannelError> {
    let bytes = from.outgoing().to_vec();
    from.sent(bytes.len());
    bytes
        .chunks(size.max(1))
        .try_for_each(|piece| to.feed(piece))
}

fn pair() -> (Session, Session) {
    let k = key("k", '1');
    (
        Session::initiator(&k).unwrap(),
        Session::responder(ring(&[k])),
    )
}

fn open_pair() -> (Session, Session) {
    let (mut a, mut b) = pair();
    carry(&mut a, &mut b, usize::MAX).unwrap();
    carry(&mut b, &mut a, usize::MAX).unwrap();
    carry(&mut a, &mut b, usize::MAX).unwrap();
    assert!(a.is_open() && b.is_open());
    (a, b)
}

#[test]
fn session_opens_after_confirmation() {
    let (mut a, mut b) = pair();
    assert!(matches!(a.say(b"early"), Err(ChannelError::Truncated)));
    carry(&mut a, &mut b, 1).unwrap();
    assert!(!a.is_open() && !b.is_open());
    assert_eq!(b.key().map(Key::name), Some("k"));
    carry(&mut b, &mut a, 1).unwrap();
    assert!(a.is_open() && !b.is_open());
    carry(&mut a, &mut b, 1).unwrap();
    assert!(b.is_open());
}

#[test]
fn payload_is_encrypted_in_each_version() {
    for version in greeting::OLDEST_VERSION..=greeting::VERSION {
        let k = key("k", '1');
        let mut a = Session::initiator_of(&k, version).unwrap();
        let mut b = Session::responder(ring(&[k]));
        carry(&mut a, &mut b, 5).unwrap();
        carry(&mut b, &mut a, 5).unwrap();
        let secret = b"the plain text that nobody else reads";
        a.say(secret).unwrap();
        assert!(!a.outgoing().windows(8).any(|w| w == &secret[..8]));
        carry(&mut a, &mut b, 7).unwrap();
        assert_eq!(b.take_plain(), secret);
    }
}

#[test]
fn short_writes_lose_no_byte() {
    let (mut a, mut b) = open_pair();
    let said: Vec<u8> = (0..200_000u32).map(|i| i.to_le_bytes()[1]).collect();
    a.say(&said[..150_000]).unwrap();
    let mut more = Some(&said[150_000..]);
    for size in [1, 7000, 20_000].into_iter().cycle() {
        let piece = a.outgoing()[..size.min(a.outgoing().len())].to_vec();
        b.feed(&piece).unwrap();
        a.sent(piece.len());
        if let Some(more) = more.take() {
            a.say(more).unwrap();
        }
        if a.outgoing().is_empty() {
            break;
        }
    }
    assert!(b.take_plain() == said);
}

#[test]
fn wrong_secret_is_reported_at_both_ends() {
    let mut a = Session::initiator(&key("k", '1')).unwrap();
    let mut b = Session::responder(ring(&[key("k", '2')]));
    let error = carry(&mut a, &mut b, 3).unwrap_err();
    assert!(matches!(error, ChannelError::WrongKey(ref name) if name == "k"));
    let error = carry(&mut b, &mut a, 1).unwrap_err();
    assert!(matches!(
        error,
        ChannelError::Refused {
            refusal: Refusal::WrongKey,
            ..
        }
    ));
    assert!(error.is_configuration());
}

#[test]
fn unknown_key_is_reported_at_both_ends() {
    let mut a = Session::initiator(&key("mine", '1')).unwrap();
    let mut b = Session::responder(ring(&[key("other", '1')]));
    let error = carry(&mut a, &mut b, 100).unwrap_err();
    assert!(matches!(error, ChannelError::UnknownKey(ref name) if name == "mine"));
    let error = carry(&mut b, &mut a, 1).unwrap_err();
    assert!(matches!(
        error,
        ChannelError::Refused {
            refusal: Refusal::UnknownKey,
            ..
        }
    ));
}

#[test]
fn every_key_of_ring_is_accepted() {
    let (new, old) = (key("new", '2'), key("old", '1'));
    for used in [&new, &old] {
        let mut a = Session::initiator(used).unwrap();
        let mut b = Session::responder(ring(&[new.clone(), old.clone()]));
        carry(&mut a, &mut b, 9).unwrap();
        carry(&mut b, &mut a, 9).unwrap();
        assert!(a.is_open());
    }
}

#[test]
fn version_mismatch_reports_our_version() {
    let (mut a, mut b) = pair();
    let mut greeting = a.outgoing().to_vec();
    greeting[4] = 9;
    assert!(matches!(
        b.feed(&greeting),
        Err(ChannelError::UnknownVersion(9))
    ));
    let error = carry(&mut b, &mut a, 1).unwrap_err();
    assert!(matches!(
        error,
        ChannelError::Refused {
            refusal: Refusal::Version(greeting::VERSION),
            ..
        }
    ));
}

#[test]
fn responder_without_key_is_detected() {
    let (mut a, mut b) = pair();
    carry(&mut a, &mut b, 100).unwrap();
    let mut answer = b.outgoing().to_vec();
    *answer.last_mut().unwrap() ^= 1;
    assert!(matches!(a.feed(&answer), Err(ChannelError::NotProven(_))));
    assert!(!a.is_open());
}

#[test]
fn replayed_handshake_is_refused() {
    let (mut a, mut b) = pair();
    let first = a.outgoing().to_vec();
    carry(&mut a, &mut b, 100).unwrap();
    carry(&mut b, &mut a, 100).unwrap();
    a.say(b"hello").unwrap();
    let second = a.outgoing().to_vec();
    carry(&mut a, &mut b, 100).unwrap();
    assert_eq!(b.take_plain(), b"hello");

    let mut again = Session::responder(ring(&[key("k", '1')]));
    again.feed(&first).unwrap();
    assert!(!again.is_open());
    assert!(matches!(again.feed(&second), Err(ChannelError::Tampered)));
    assert!(!again.is_open() && again.take_plain().is_empty());
}

#[test]
fn repeated_or_reordered_messages_are_refused() {
    for order in [[0, 0], [1, 0]] {
        let (mut a, mut b) = open_pair();
        let messages: Vec<Vec<u8>> = [b"one", b"two"]
            .iter()
            .map(|plain| {
                a.say(*plain).unwrap();
                let message = a.outgoing().to_vec();
                a.sent(message.len());
                message
            })
            .collect();
        let result = order
            .iter()
            .try_for_each(|which: &usize| b.feed(&messages[*which]));
        assert!(matches!(result, Err(ChannelError::Tampered)), "{order:?}");
    }
}

#[test]
fn stream_ends_between_messages_only() {
    let (mut a, mut b) = open_pair();
    assert!(b.ended().is_ok());
    a.say(b"cut").unwrap();
    let message = a.outgoing().to_vec();
    b.feed(&message[..message.len() - 1]).unwrap();
    assert!(matches!(b.ended(), Err(ChannelError::Truncated)));
    assert!(matches!(pair().1.ended(), Err(ChannelError::Truncated)));
}

#[test]
fn foreign_greeting_is_refused_at_once() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"OLCH\x01\x00",
        b"OLCH\x01\x21",
        b"OLCH\x01\x01/",
    ] {
        let (_, mut b) = pair();
        assert!(
            matches!(b.feed(bytes), Err(ChannelError::NotOurs)),
            "{bytes:?}"
        );
        assert_eq!(b.wants(), 0);
    }
    let (mut a, mut b) = pair();
    carry(&mut a, &mut b, 100).unwrap();
    assert!(
        matches!(b.feed(&[0xff, 0xff]), Err(ChannelError::NotOurs)),
        "a long confirmation"
    );
}

proptest! {
    #[test]
    fn fragmentation_makes_no_difference(
        said in proptest::collection::vec(0usize..200_000, 1..4),
        size in prop_oneof![1usize..100, 1_000usize..80_000],
    ) {
        let (mut a, mut b) = pair();
        carry(&mut a, &mut b, size).unwrap();
        carry(&mut b, &mut a, size).unwrap();
        let mut expected = Vec::new();
        for (n, len) in said.into_iter().enumerate() {
            let plain: Vec<u8> = (0..len).map(|i| u8::try_from((i + n) % 251).unwrap()).collect();
            a.say(&plain).unwrap();
            expected.extend(plain);
        }
        carry(&mut a, &mut b, size).unwrap();
        prop_assert!(b.take_plain() == expected);
        prop_assert!(b.ended().is_ok());
    }

    #[test]
    fn flipped_bit_is_detected(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let (mut a, mut b) = open_pair();
        a.say(b"something of importance").unwrap();
        let mut message = a.outgoing().to_vec();
        let at = at.index(message.len());
        message[at] ^= 1 << bit;
        let result = b.feed(&message);
        prop_assert!(b.take_plain().is_empty());
        // A changed length may also promise more than there is.
        prop_assert!(result.is_err() || b.ended().is_err());
    }

    #[test]
    fn changed_first_message_is_refused(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let (mut a, mut b) = pair();
        let mut bytes = a.outgoing().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        a.sent(bytes.len());
        let result = b.feed(&bytes);
        prop_assert!(result.is_err() || b.outgoing().is_empty());
    }

    #[test]
    fn arbitrary_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        crate::properties::strangers_bytes(&bytes);
    }

    #[test]
    fn arbitrary_bytes_behind_greeting_are_refused(
        size in any::<u8>(),
        name in "[k/]{0,3}",
        rest in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = vec![size];
        bytes.extend_from_slice(b"OLCH\x01");
        bytes.push(u8::try_from(name.len()).unwrap());
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(&[0, 48]);
        bytes.extend(rest);
        crate::properties::strangers_bytes(&bytes);
    }
}
