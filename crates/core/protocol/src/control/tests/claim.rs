//! Messages about addresses, which are new in version 8.

use super::{round_trip::text, *};
use crate::DigestSeed;

pub(super) fn claim() -> impl Strategy<Value = Claim> {
    let address = any::<([u8; 16], u16)>().prop_map(|(octets, port)| {
        let ip = std::net::IpAddr::from(octets).to_canonical();
        std::net::SocketAddr::new(ip, port)
    });
    let v4 = any::<([u8; 4], u16)>().prop_map(std::net::SocketAddr::from);
    let addresses = prop::collection::vec(prop_oneof![address, v4], 0..4);
    let names = (text(), text());
    (any::<(u64, bool, bool)>(), names, addresses).prop_map(|(rest, names, addresses)| {
        let ((host, serves, shared), (host_name, service)) = (rest, names);
        Claim {
            host,
            serves,
            shared,
            host_name,
            service,
            addresses,
        }
    })
}

#[test]
#[rustfmt::skip]
fn the_encoding_of_a_claim_is_pinned() {
    let claim = Claim {
        host: 0x0102,
        serves: true,
        shared: false,
        host_name: "a".into(),
        service: "web".into(),
        addresses: vec!["10.0.0.1:80".parse().unwrap(), "[fd00::1]:443".parse().unwrap()],
    };
    let mut bytes = vec![56, 0, 0, 0, 8, 0x1d, 2, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, b'a', 3, 0, b'w', b'e', b'b'];
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1, 80, 0]);
    bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xbb, 1]);
    assert_eq!(bytes_of(&Request::Claim(claim)), bytes);
    let claimed = Response::Claimed { beside: "so".into() };
    assert_eq!(bytes_of(&claimed), [4, 0, 0, 0, 8, 0x98, b's', b'o']);
    let hosts = Response::Hosts { serves: "a".into(), stands_by: "b".into() };
    assert_eq!(bytes_of(&hosts), [6, 0, 0, 0, 8, 0x99, 1, 0, b'a', b'b']);
}

/// A program of version 7 reads nothing but 7, and says nothing else.
#[test]
fn all_but_what_is_new_is_said_as_the_version_before_does() {
    assert_eq!(bytes_of(&Request::FormerSummaries)[4], 7);
    assert_eq!(bytes_of(&Response::Lease(LEASE_ANSWER))[4], 7);
    assert_eq!(VERSION, 8);
    assert_eq!(
        bytes_of(&Request::DigestSeed(DigestSeed([1, 2])))[4..6],
        [8, 0x21]
    );
    assert_eq!(
        bytes_of(&Response::DigestSeed(DigestSeed([1, 2])))[4..6],
        [8, 0x9c]
    );
    // Each message has one encoding.
    let mut old = bytes_of(&Request::FormerSummaries);
    old[4] = 8;
    assert_eq!(request_error(&old), Some(ControlError::UnknownType(2)));
    let mut unknown = bytes_of(&Request::FormerSummaries);
    for version in [6, 9] {
        unknown[4] = version;
        let error = ControlError::UnknownVersion(version);
        assert_eq!(request_error(&unknown), Some(error));
    }
}

/// A host of version 7 attaches, and hears of its connections as from a logger of that version.
#[test]
#[rustfmt::skip]
fn the_version_before_is_told_what_it_knows() {
    assert_eq!(bytes_of(&Request::FormerAttach(attach()))[4..6], [7, 9]);
    assert_eq!(bytes_of(&Request::FormerSummaries), [2, 0, 0, 0, 7, 2]);
    let summaries = Response::FormerSummaries { summaries: vec![SUMMARY], last: true };
    let bytes = bytes_of(&summaries);
    assert_eq!(bytes, [
        54, 0, 0, 0, 7, 0x83, 1,
        1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0,
        1, 0, 0, 0, 0, 8, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 10, 0, 0, 0, 0, 3,
    ]);
    let doubt = SUMMARY.stable_seq;
    let understood = vec![RecordSummary { doubt, ..SUMMARY }];
    let understood = Response::FormerSummaries { summaries: understood, last: true };
    assert_eq!(pull::<Response>(&bytes), Ok(Some(understood)));
}
