use std::net::{Ipv4Addr, SocketAddr};

use super::*;

fn key(port: u16) -> FlowKey {
    let at = |host, port| SocketAddr::from((Ipv4Addr::new(10, 0, 0, host), port));
    FlowKey::new(at(1, port), at(2, 80))
}

#[test]
fn sockets_with_unsent_data_are_orphans() {
    let (finishing, none) = (BTreeSet::from([key(1)]), BTreeSet::new());
    for state in [
        TcpState::Established,
        TcpState::SynReceived,
        TcpState::FinWait1,
        TcpState::CloseWait,
        TcpState::LastAck,
        TcpState::Closing,
    ] {
        assert!(is_orphan(key(2), state, &finishing, &none), "{state:?}");
        assert!(!is_orphan(key(1), state, &finishing, &none), "{state:?}");
    }
}

#[test]
fn listeners_and_waiting_sockets_are_no_orphans() {
    for state in [TcpState::Listen, TcpState::FinWait2, TcpState::TimeWait] {
        let none = BTreeSet::new();
        assert!(!is_orphan(key(2), state, &none, &none), "{state:?}");
    }
}

#[test]
fn socket_half_closed_in_replay_is_orphan() {
    let unended = BTreeSet::from([key(1)]);
    for state in [TcpState::FinWait1, TcpState::FinWait2] {
        assert!(
            is_orphan(key(1), state, &BTreeSet::new(), &unended),
            "{state:?}"
        );
    }
}
