//! The beginning of a stream.

use super::*;
use crate::Versions;

fn versions(oldest: u8, newest: u8) -> Versions {
    Versions::new(oldest, newest).unwrap()
}

fn opening(role: Role, versions: Versions) -> Vec<u8> {
    Opening { role, versions }.encode().to_vec()
}

#[test]
fn opening_has_a_fixed_layout() {
    let bytes = opening(Role::Asks, versions(9, 10));
    assert_eq!(bytes, *b"OLctl\x01\x09\x0a");
    let bytes = opening(Role::Answers, versions(1, 255));
    assert_eq!(bytes, *b"OLctl\x02\x01\xff");
}

#[test]
fn opening_that_arrives_in_pieces_is_awaited() {
    let stream = [
        opening(Role::Asks, versions(9, 10)),
        bytes_of(&Request::Summaries),
    ]
    .concat();
    for len in 0..stream.len() {
        let mut decoder = Decoder::<Request>::at_opening(Versions::only(9));
        decoder.feed(&stream[..len]);
        assert_eq!(decoder.pull(), Ok(None));
        assert_eq!(decoder.agreed().is_some(), len >= Opening::LEN);
        decoder.feed(&stream[len..]);
        let agreed = decoder.open().unwrap().expect("the opening is there");
        assert_eq!(agreed.version(), 9);
        assert_eq!(decoder.pull(), Ok(Some(Request::Summaries)));
        assert!(decoder.is_at_boundary());
    }
}

#[test]
fn stranger_is_refused_at_first_wrong_byte() {
    for stranger in [
        &b"GET / HTTP/1.1"[..],
        b"OLc_",
        // The first code of no role.
        b"OLctl\x07",
        b"OLctl\x01\x00\x09",
        b"OLctl\x01\x0a\x09",
        // A request of version 8.
        &[5, 0, 0, 0, 7, 1, b'w', b'e', b'b'],
    ] {
        let mut decoder = Decoder::<Request>::at_opening(VERSIONS);
        decoder.feed(stranger);
        assert_eq!(decoder.pull(), Err(ControlError::NoOpening));
        decoder.feed(&opening(Role::Asks, VERSIONS));
        assert_eq!(decoder.open(), Err(ControlError::NoOpening));
    }
}

#[test]
fn stream_connected_the_wrong_way_is_noticed() {
    let mut decoder = Decoder::<Request>::at_opening(VERSIONS);
    decoder.feed(&opening(Role::Answers, VERSIONS)[..6]);
    assert_eq!(decoder.pull(), Err(ControlError::WrongWay));
    let mut decoder = Decoder::<Response>::at_opening(VERSIONS);
    decoder.feed(&opening(Role::Asks, VERSIONS)[..6]);
    assert_eq!(decoder.pull(), Err(ControlError::WrongWay));
}

#[test]
fn stream_about_another_subject_is_refused_with_its_name() {
    let mut decoder = Decoder::<Request>::at_opening(VERSIONS);
    decoder.feed(&Opening::of(Role::Member).encode());
    let error = decoder.pull().unwrap_err();
    assert_eq!(error, ControlError::OtherSubject(Role::Member));
    assert_eq!(
        error.to_string(),
        "the peer speaks about a pool and its balancer: the address is that of another program of outlive"
    );
}

#[test]
fn ends_without_common_version_name_both_ranges() {
    let (ours, theirs) = (versions(9, 10), versions(11, 12));
    let mut decoder = Decoder::<Response>::at_opening(ours);
    decoder.feed(&opening(Role::Answers, theirs));
    let error = decoder.pull().unwrap_err();
    assert_eq!(error, ControlError::NoCommonVersion { ours, theirs });
    assert_eq!(
        error.to_string(),
        "this program speaks versions 9 to 10 of the control stream, the peer versions 11 to 12: upgrade the older program, one version at a time"
    );
}

#[test]
fn both_ends_agree_on_the_same_version() {
    for (ours, theirs, version) in [
        (versions(9, 9), versions(9, 10), 9),
        (versions(9, 10), versions(10, 11), 10),
        (versions(9, 9), versions(9, 9), 9),
    ] {
        for (ours, theirs) in [(ours, theirs), (theirs, ours)] {
            let agreed = Agreed::on(ours, theirs).unwrap();
            assert_eq!(agreed.version(), version);
        }
    }
}
