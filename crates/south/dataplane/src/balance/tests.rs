use std::process::Command;

use super::*;
use crate::{interfaces::ethernet_interfaces, object::test_namespace::alone};

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.expect("ip runs").success(), "ip {arguments}");
}

fn interface(name: &str) -> Interface {
    let all = ethernet_interfaces().expect("a list");
    let found = all.into_iter().find(|interface| interface.name == name);
    found.expect("the interface")
}

fn start(bpffs: &Path) -> Balance {
    let settings = BalanceSettings {
        addresses: vec!["10.0.0.10:80".parse().expect("an address")],
        key: [7; 16],
        encapsulates: false,
    };
    Balance::start(&settings, balance_pins(bpffs, "pool")).expect("the program loads")
}

fn filters() -> String {
    let output = Command::new("tc")
        .args(["filter", "show", "dev", "v0", "ingress"])
        .output();
    String::from_utf8(output.expect("tc runs").stdout).expect("text")
}

fn adopted_and_removed(mode: AttachMode) {
    alone(|bpffs| {
        ip("link add v0 type veth peer name v1");
        let interface = interface("v0");
        let mut balance = start(bpffs);
        balance
            .attach_interface(&interface, mode)
            .expect("attached");
        drop(balance);
        let balance = start(bpffs);
        assert_eq!(balance.interfaces, BTreeSet::from([interface.index]));
        assert_eq!(
            filters().contains(BALANCE_PROGRAM),
            mode == AttachMode::Clsact
        );
        balance.remove().expect("removed");
        assert_eq!(filters(), "");
        assert_eq!(pinned_balancers(bpffs), [""; 0]);
    });
}

#[test]
fn place_at_tcx_is_adopted_and_removed() {
    adopted_and_removed(AttachMode::Tcx);
}

#[test]
fn place_at_clsact_is_adopted_and_removed() {
    adopted_and_removed(AttachMode::Clsact);
}

#[test]
fn link_of_an_interface_that_is_gone_is_made_anew() {
    alone(|bpffs| {
        ip("link add v0 index 77 type veth peer name v1");
        let mut balance = start(bpffs);
        let mode = AttachMode::Tcx;
        balance
            .attach_interface(&interface("v0"), mode)
            .expect("attached");
        drop(balance);
        ip("link del v0");
        ip("link add v0 index 77 type veth peer name v1");
        let mut balance = start(bpffs);
        assert_eq!(balance.interfaces, BTreeSet::new());
        balance
            .attach_interface(&interface("v0"), mode)
            .expect("attached");
        balance.remove().expect("removed");
    });
}

#[test]
fn pins_of_another_layout_are_removed() {
    alone(|bpffs| {
        let other = bpffs.join("outlive/balance-v999/pool");
        let settings = BalanceSettings {
            addresses: Vec::new(),
            key: [7; 16],
            encapsulates: false,
        };
        Balance::start(&settings, PinDirectory::at(other.clone())).expect("the program loads");
        assert!(other.exists());
        start(bpffs).remove().expect("removed");
        assert!(!other.exists());
    });
}
