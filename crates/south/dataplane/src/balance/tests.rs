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
    start_with(bpffs, None)
}

fn start_with(bpffs: &Path, xdp: Option<XdpMode>) -> Balance {
    let settings = BalanceSettings {
        addresses: vec!["10.0.0.10:80".parse().expect("an address")],
        key: [7; 16],
        encapsulates: false,
        xdp,
    };
    Balance::start(&settings, balance_pins(bpffs, "pool")).expect("the program loads")
}

fn filters(direction: &str) -> String {
    let output = Command::new("tc")
        .args(["filter", "show", "dev", "v0", direction])
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
            filters("ingress").contains(FORWARDER.name),
            mode == AttachMode::Clsact
        );
        balance.remove().expect("removed");
        assert_eq!(filters("ingress"), "");
        assert_eq!(pinned_balancers(bpffs), [""; 0]);
    });
}

/// The program that learns link-layer addresses for XDP.
fn watch_is_adopted_and_removed(mode: AttachMode) {
    alone(|bpffs| {
        ip("link add v0 type veth peer name v1");
        let interface = interface("v0");
        let native = Some(XdpMode::Native);
        let balance = start_with(bpffs, native);
        let attached = NEIGHBOUR_WATCH.attach(&balance.object, &interface, mode, &balance.pins);
        attached.expect("attached");
        drop(balance);
        let mut balance = start_with(bpffs, native);
        balance.attach_xdp(&interface).expect("attached");
        let shown = filters("egress");
        let shown = { shown.lines() }.filter(|line| line.contains(NEIGHBOUR_WATCH.name));
        assert_eq!(shown.count(), usize::from(mode == AttachMode::Clsact));
        let links = balance.pins.names().into_iter();
        let links = links.filter(|name| name.starts_with("link_balance_egress_"));
        assert_eq!(links.count(), usize::from(mode == AttachMode::Tcx));
        drop(balance);
        let balance = start(bpffs);
        assert_eq!(filters("egress"), "");
        let pins = balance.pins.names();
        assert!(!pins.iter().any(|name| name.contains("egress")), "{pins:?}");
        balance.remove().expect("removed");
    });
}

#[test]
fn watch_at_tcx_is_adopted_and_removed() {
    watch_is_adopted_and_removed(AttachMode::Tcx);
}

#[test]
fn watch_at_clsact_is_adopted_and_removed() {
    watch_is_adopted_and_removed(AttachMode::Clsact);
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
            xdp: None,
        };
        Balance::start(&settings, PinDirectory::at(other.clone())).expect("the program loads");
        assert!(other.exists());
        start(bpffs).remove().expect("removed");
        assert!(!other.exists());
    });
}

/// The mode of XDP on the interface, as `ip` tells it.
fn xdp_of(interface: &str) -> &'static str {
    let output = Command::new("ip")
        .args(["link", "show", "dev", interface])
        .output();
    let shown = String::from_utf8(output.expect("ip runs").stdout).expect("text");
    match () {
        () if shown.contains("xdpgeneric") => "generic",
        () if shown.contains("xdp") => "native",
        () => "none",
    }
}

#[test]
fn place_at_xdp_is_adopted_in_its_mode_and_removed() {
    alone(|bpffs| {
        ip("link add v0 type veth peer name v1");
        let interface = interface("v0");
        let pins = balance_pins(bpffs, "pool");
        let links = || {
            let names = pins.names().into_iter();
            let mut links: Vec<String> = names.filter(|name| name.starts_with("link_")).collect();
            links.sort();
            links
        };
        for (mode, name) in [(XdpMode::Native, "native"), (XdpMode::Generic, "generic")] {
            let mut balance = start_with(bpffs, Some(mode));
            assert_eq!(balance.xdp_interfaces(), [""; 0]);
            balance.attach_xdp(&interface).expect("attached");
            assert_eq!(xdp_of("v0"), name);
            drop(balance);
            let before = links();
            let mut balance = start_with(bpffs, Some(mode));
            assert_eq!(balance.xdp_interfaces(), ["v0"]);
            balance.attach_xdp(&interface).expect("there already");
            assert_eq!(links(), before);
            balance.retain_xdp(&[]).expect("detached");
            assert_eq!(xdp_of("v0"), "none");
            balance.attach_xdp(&interface).expect("attached");
        }
        let balance = start(bpffs);
        assert_eq!(xdp_of("v0"), "none");
        assert_eq!(links(), [""; 0]);
        drop(balance);
        let mut balance = start_with(bpffs, Some(XdpMode::Native));
        balance.attach_xdp(&interface).expect("attached");
        balance.remove().expect("removed");
        assert_eq!(xdp_of("v0"), "none");
    });
}

#[test]
fn interface_without_native_xdp_is_refused_by_name() {
    alone(|bpffs| {
        ip("link add br0 type bridge");
        let bridge = interface("br0");
        let mut balance = start_with(bpffs, Some(XdpMode::Native));
        let refused = balance.attach_xdp(&bridge).expect_err("no driver");
        assert!(
            matches!(refused, DataplaneError::NoNativeXdp { .. }),
            "{refused}"
        );
        let text = refused.to_string();
        assert!(text.starts_with("br0 takes no program"), "{text}");
        assert!(text.contains("--forward tc"), "{text}");
        assert_eq!(xdp_of("br0"), "none");
        let mut generic = start_with(bpffs, Some(XdpMode::Generic));
        generic.attach_xdp(&bridge).expect("attached");
        assert_eq!(xdp_of("br0"), "generic");
        let mut other = Balance::start(
            &BalanceSettings {
                addresses: Vec::new(),
                key: [7; 16],
                encapsulates: false,
                xdp: Some(XdpMode::Generic),
            },
            balance_pins(bpffs, "other"),
        )
        .expect("the program loads");
        let refused = other.attach_xdp(&bridge).expect_err("the place is taken");
        assert!(
            matches!(refused, DataplaneError::XdpTaken { .. }),
            "{refused}"
        );
        generic.remove().expect("removed");
    });
}
