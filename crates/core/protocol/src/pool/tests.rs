use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;

use proptest::prelude::*;

use super::*;
use crate::control::{Agreed, ControlError, Decoder, Opening, encode};
use crate::properties;

fn bytes_of<M: Message>(message: &M) -> Vec<u8> {
    let mut out = Vec::new();
    encode(message, Agreed::own(M::FROM), &mut out).unwrap();
    out
}

fn pull<M: Message>(bytes: &[u8]) -> Result<Option<M>, ControlError> {
    let mut decoder = Decoder::new(Agreed::own(M::FROM));
    decoder.feed(bytes);
    decoder.pull()
}

fn hello() -> Hello {
    Hello {
        name: "web1".parse().unwrap(),
        membership: 0x0102,
        state: MembershipState::Speaks,
        address: address("10.0.0.11"),
        claim_port: NonZeroU16::new(7701).unwrap(),
        epoch: 300,
        #[cfg(feature = "next-version")]
        next: 0,
    }
}

fn config() -> Config {
    Config {
        addresses: vec![
            "10.0.0.10:80".parse().unwrap(),
            "[fd00::10]:80".parse().unwrap(),
        ],
        term_us: 250_000,
        least_term_us: 25_000,
        drift_ppm: 1000,
        queue_us: 10_000,
        quiescence_ms: 130_000,
        key: PoolKey([7; 16]),
        version_check: VersionCheck::Modified,
        store: Some(StoreSettings {
            urls: vec![url("redis://:p@10.0.0.9"), url("memcached://10.0.0.8")],
            needs_all: true,
            after_us: 5000,
        }),
        encapsulation: Some(Encapsulation::Udp),
    }
}

fn url(text: &str) -> StoreUrlText {
    let text = text.to_owned();
    StoreUrlText { text }
}

fn table() -> Table {
    let member = |name: &str, of: &str, draining| TableMember {
        name: name.parse().unwrap(),
        membership: 300,
        address: address(of),
        claim_port: NonZeroU16::MAX,
        draining,
    };
    Table {
        epoch: 300,
        kind: TableKind::Modulo,
        members: vec![
            member("web1", "10.0.0.11", false),
            member("web2", "fd00::12", true),
        ],
        granters: vec![Granter {
            balancer: BalancerId(300),
            settled: true,
        }],
    }
}

fn address(text: &str) -> MemberAddress {
    MemberAddress::new(text.parse().unwrap()).unwrap()
}

fn member_messages() -> Vec<MemberMessage> {
    vec![
        MemberMessage::Hello(hello()),
        MemberMessage::LeaseRequest {
            number: 300,
            answered: 0,
        },
        MemberMessage::Leave,
        MemberMessage::Enforces {
            epoch: 300,
            lacks: vec![BalancerId(300)],
        },
        MemberMessage::Drain,
        MemberMessage::AskMembers,
    ]
}

fn balancer_messages() -> Vec<BalancerMessage> {
    let refused = [
        Refused::OutOfOrder,
        Refused::NameTaken,
        Refused::MembershipTaken,
        Refused::AddressTaken,
        Refused::Dead,
        Refused::NeedsIpv6,
        Refused::NotOnLink,
        Refused::Full,
        Refused::NoRoute,
        Refused::OtherFamily,
    ];
    let mut all = vec![
        BalancerMessage::Config(config()),
        BalancerMessage::Lease {
            number: 300,
            term_us: 25_000,
        },
        BalancerMessage::Table(table()),
    ];
    all.extend(refused.map(|reason| BalancerMessage::Refused { reason }));
    all.push(BalancerMessage::Granter {
        balancer: BalancerId(300),
    });
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// No change of the format is made by accident.
#[cfg(not(feature = "next-version"))]
#[test]
fn encodings_of_this_version_stay_as_they_are() {
    let member = member_messages();
    let balancer = balancer_messages();
    let member = member.iter().map(|message| hex(&bytes_of(message)));
    let balancer = balancer.iter().map(|message| hex(&bytes_of(message)));
    let lines: Vec<String> = member.chain(balancer).collect();
    insta::assert_snapshot!(lines.join("\n"));
}

fn any_name() -> impl Strategy<Value = MemberName> {
    "[a-zA-Z0-9._-]{1,63}".prop_map(|name| name.parse().unwrap())
}

fn any_address() -> impl Strategy<Value = MemberAddress> {
    any::<IpAddr>().prop_filter_map("reaches one other host", |ip| MemberAddress::new(ip).ok())
}

fn any_port() -> impl Strategy<Value = NonZeroU16> {
    (1..=u16::MAX).prop_map(|port| NonZeroU16::new(port).unwrap())
}

fn any_member() -> impl Strategy<Value = TableMember> {
    let values = (
        any_name(),
        any::<u64>(),
        any_address(),
        any_port(),
        any::<bool>(),
    );
    values.prop_map(
        |(name, membership, address, claim_port, draining)| TableMember {
            name,
            membership,
            address,
            claim_port,
            draining,
        },
    )
}

fn any_from_member() -> impl Strategy<Value = MemberMessage> {
    let states = vec![
        MembershipState::New,
        MembershipState::Silent,
        MembershipState::Speaks,
    ];
    let state = prop::sample::select(states);
    prop_oneof![
        (any_member(), state).prop_map(|(member, state)| MemberMessage::Hello(Hello {
            name: member.name,
            membership: member.membership,
            state,
            address: member.address,
            claim_port: member.claim_port,
            epoch: member.membership,
            #[cfg(feature = "next-version")]
            next: 0,
        })),
        any::<(u64, u64)>()
            .prop_map(|(number, answered)| MemberMessage::LeaseRequest { number, answered }),
        Just(MemberMessage::Leave),
        Just(MemberMessage::Drain),
        (any::<u64>(), prop::collection::vec(any::<u64>(), 0..3)).prop_map(|(epoch, lacks)| {
            let lacks = lacks.into_iter().map(BalancerId).collect();
            MemberMessage::Enforces { epoch, lacks }
        }),
    ]
}

fn any_store() -> impl Strategy<Value = StoreSettings> {
    let urls = prop::collection::vec(".{0,20}".prop_map(|text| url(&text)), 0..3);
    (urls, any::<bool>(), any::<u32>()).prop_map(|(urls, needs_all, after_us)| StoreSettings {
        urls,
        needs_all,
        after_us,
    })
}

fn any_from_balancer() -> impl Strategy<Value = BalancerMessage> {
    let addresses = prop::collection::vec(any::<SocketAddr>().prop_map(canonical), 0..4);
    let checks = [
        VersionCheck::Etag,
        VersionCheck::Modified,
        VersionCheck::Length,
        VersionCheck::Off,
    ];
    let config = (
        addresses,
        any::<[u32; 5]>(),
        any::<[u8; 16]>(),
        prop::sample::select(checks.to_vec()),
        prop::option::of(any_store()),
        prop::option::of(Just(Encapsulation::Udp)),
    );
    let config = config.prop_map(
        |(addresses, numbers, key, version_check, store, encapsulation)| {
            let [term_us, least_term_us, drift_ppm, queue_us, quiescence_ms] = numbers;
            BalancerMessage::Config(Config {
                addresses,
                term_us,
                least_term_us,
                drift_ppm,
                queue_us,
                quiescence_ms,
                key: PoolKey(key),
                version_check,
                store,
                encapsulation,
            })
        },
    );
    let kinds = [TableKind::Maglev, TableKind::Modulo];
    let members = prop::collection::vec(any_member(), 0..5);
    let granters = prop::collection::vec(any::<(u64, bool)>(), 0..3);
    let kinds = prop::sample::select(kinds.to_vec());
    let table = (any::<u64>(), kinds, members, granters);
    let table = table.prop_map(|(epoch, kind, members, granters)| {
        let granters = granters.into_iter().map(|(id, settled)| Granter {
            balancer: BalancerId(id),
            settled,
        });
        BalancerMessage::Table(Table {
            epoch,
            kind,
            members,
            granters: granters.collect(),
        })
    });
    let lease = any::<(u64, u32)>();
    let lease = lease.prop_map(|(number, term_us)| BalancerMessage::Lease { number, term_us });
    let granter = any::<u64>().prop_map(|id| BalancerMessage::Granter {
        balancer: BalancerId(id),
    });
    prop_oneof![config, table, lease, granter]
}

/// Without scope and flow label, IPv4 not in the mapped form.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_message_of_a_member_is_read_as_it_was_written(message in any_from_member()) {
        prop_assert_eq!(pull(&bytes_of(&message)), Ok(Some(message)));
    }

    #[test]
    fn any_message_of_a_balancer_is_read_as_it_was_written(message in any_from_balancer()) {
        prop_assert_eq!(pull(&bytes_of(&message)), Ok(Some(message)));
    }

    #[test]
    fn any_bytes(bytes: Vec<u8>) {
        properties::pool_stream(&bytes);
    }

    #[test]
    fn any_damaged_stream(
        messages in prop::collection::vec(any_from_balancer(), 0..4),
        others in prop::collection::vec(any_from_member(), 0..3),
        size: u8,
        damage: Vec<(prop::sample::Index, u8)>,
        opening: Option<bool>,
    ) {
        let mut stream = vec![size];
        if let Some(is_member) = opening {
            let role = if is_member { Role::Member } else { Role::Balancer };
            stream.extend(Opening::of(role).encode());
        }
        others.iter().for_each(|message| stream.extend(bytes_of(message)));
        messages.iter().for_each(|message| stream.extend(bytes_of(message)));
        properties::pool_stream(&stream);
        for (at, value) in damage.into_iter().take(2) {
            let at = at.index(stream.len());
            stream[at] = value;
        }
        properties::pool_stream(&stream);
    }

    #[test]
    fn names_are_those_of_the_grammar(text in "\\PC{0,70}|[a-z0-9.]{60,66}") {
        let allowed = text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
        let is_name = allowed && (1..=63).contains(&text.len());
        prop_assert_eq!(text.parse::<MemberName>().is_ok(), is_name);
    }
}

#[test]
fn error_of_wrong_name_has_the_rule() {
    let error = "web 1".parse::<MemberName>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "\"web 1\" is no name of a member: a name has 1 to 63 letters, digits, '.', '_' or '-' (as a host name)"
    );
}

#[test]
fn address_of_no_single_host_is_refused() {
    for (text, error) in [
        (
            "0.0.0.0",
            AddressError::Unspecified as fn(IpAddr) -> AddressError,
        ),
        ("::", AddressError::Unspecified),
        ("127.0.0.1", AddressError::Loopback),
        ("::1", AddressError::Loopback),
        ("::ffff:127.0.0.1", AddressError::Loopback),
        ("224.0.0.1", AddressError::Group),
        ("ff02::1", AddressError::Group),
        ("255.255.255.255", AddressError::Group),
    ] {
        let ip: IpAddr = text.parse().unwrap();
        assert_eq!(
            MemberAddress::new(ip),
            Err(error(ip.to_canonical())),
            "{text}"
        );
    }
}

/// A member with such values would not be reachable, or be in the way of others.
#[test]
fn impossible_values_of_a_hello_are_malformed() {
    let good = bytes_of(&MemberMessage::Hello(hello()));
    assert!(pull::<MemberMessage>(&good).is_ok());
    let at = |needle: &[u8]| {
        good.windows(needle.len())
            .position(|bytes| bytes == needle)
            .unwrap()
    };
    let name = at(b"web1");
    let address = at(&[10, 0, 0, 11]);
    for (at, byte) in [(name, b' '), (address, 239)] {
        let mut bad = good.clone();
        bad[at] = byte;
        let error = pull::<MemberMessage>(&bad).unwrap_err();
        assert!(matches!(error, ControlError::Malformed(_)), "{error:?}");
    }
}

#[test]
fn stream_of_a_pool_is_not_that_of_a_logger() {
    let mut decoder = Decoder::<MemberMessage>::at_opening(STREAM_VERSIONS);
    decoder.feed(&Opening::of(Role::Asks).encode());
    assert_eq!(decoder.pull(), Err(ControlError::OtherSubject(Role::Asks)));
    let mut decoder = Decoder::<BalancerMessage>::at_opening(STREAM_VERSIONS);
    decoder.feed(&Opening::of(Role::Member).encode());
    assert_eq!(decoder.pull(), Err(ControlError::WrongWay));
}

#[test]
fn key_is_not_printed() {
    assert!(!format!("{:?}", config()).contains('7'.to_string().repeat(2).as_str()));
    assert!(!format!("{:?}", config()).contains(":p@"));
}
