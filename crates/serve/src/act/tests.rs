use std::net::{Ipv4Addr, SocketAddr};

use super::*;

fn key(port: u16) -> FlowKey {
    let at = |host, port| SocketAddr::from((Ipv4Addr::new(10, 0, 0, host), port));
    FlowKey::new(at(1, port), at(2, 80))
}

#[test]
fn orphans_are_the_sockets_that_have_something_to_say_and_nobody_to_say_it_for() {
    let finishing = BTreeSet::from([key(1)]);
    for state in [
        TcpState::Established,
        TcpState::SynReceived,
        TcpState::FinWait1,
        TcpState::CloseWait,
        TcpState::LastAck,
        TcpState::Closing,
    ] {
        assert!(is_orphan(key(2), state, &finishing), "{state:?}");
        assert!(!is_orphan(key(1), state, &finishing), "{state:?}");
    }
}

#[test]
fn listeners_and_sockets_that_only_wait_are_no_orphans() {
    for state in [TcpState::Listen, TcpState::FinWait2, TcpState::TimeWait] {
        assert!(!is_orphan(key(2), state, &BTreeSet::new()), "{state:?}");
    }
}
