//! Messages between a member of a pool and the balancer.

use std::num::NonZeroU16;

use protocol::{
    control::{Agreed, Message, Opening, Role, encode},
    pool::{
        BalancerId, BalancerMessage, Config, Granter, Hello, MemberAddress, MemberMessage,
        MembershipState, PoolKey, Refused, Table, TableKind, TableMember, VersionCheck,
    },
};

fn bytes_of<M: Message>(message: &M) -> Vec<u8> {
    let mut out = Vec::new();
    encode(message, Agreed::own(M::FROM), &mut out).expect("a message");
    out
}

fn member(name: &str, address: &str) -> TableMember {
    TableMember {
        name: name.parse().expect("a name"),
        membership: 7,
        address: MemberAddress::new(address.parse().expect("an address")).expect("a host"),
        claim_port: NonZeroU16::MAX,
        draining: false,
    }
}

pub(crate) fn pool_messages() -> Vec<Vec<u8>> {
    let TableMember {
        name,
        membership,
        address,
        claim_port,
        ..
    } = member("web1", "10.0.0.11");
    let members = [
        MemberMessage::Hello(Hello {
            name,
            membership,
            state: MembershipState::New,
            address,
            claim_port,
            epoch: 300,
        }),
        MemberMessage::LeaseRequest {
            number: 300,
            answered: 1,
        },
        MemberMessage::Leave,
        MemberMessage::Drain,
        MemberMessage::Enforces {
            epoch: 300,
            lacks: vec![BalancerId(7)],
        },
    ];
    let balancers = [
        BalancerMessage::Config(Config {
            addresses: vec!["10.0.0.10:80".parse().expect("an address")],
            term_us: 250_000,
            least_term_us: 25_000,
            drift_ppm: 1000,
            queue_us: 10_000,
            quiescence_ms: 130_000,
            key: PoolKey([7; 16]),
            version_check: VersionCheck::Etag,
            store: None,
            encapsulation: None,
        }),
        BalancerMessage::Lease {
            number: 300,
            term_us: 25_000,
        },
        BalancerMessage::Table(Table {
            epoch: 300,
            kind: TableKind::Maglev,
            members: vec![member("web1", "10.0.0.11"), member("web2", "fd00::12")],
            granters: vec![Granter {
                balancer: BalancerId(7),
                settled: true,
            }],
        }),
        BalancerMessage::Refused {
            reason: Refused::Dead,
        },
        BalancerMessage::Granter {
            balancer: BalancerId(7),
        },
    ];
    let opening = |role| Opening::of(role).encode().to_vec();
    let mut all: Vec<Vec<u8>> = members.iter().map(bytes_of).collect();
    all.extend(balancers.iter().map(bytes_of));
    all.push([opening(Role::Member), bytes_of(&members[0])].concat());
    all.push([opening(Role::Balancer), bytes_of(&balancers[0])].concat());
    all
}
