//! Giving the host addresses, in a network namespace of the test's own.

use std::net::{IpAddr, TcpListener};
use std::thread;
use std::time::Duration;

use crate::common::eventually;
use nix::sched::{CloneFlags, unshare};
use supervise::{Addresses, HostAddress, address_is_local};

const LIFETIME: Duration = Duration::from_secs(600);

/// Runs on a separate thread, on a host without any address, which has the device 1 (`lo`).
fn elsewhere(work: impl FnOnce(&mut Addresses) + Send) {
    let run = || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
        work(&mut Addresses::open().expect("netlink"));
    };
    thread::scope(|scope| scope.spawn(run).join().expect("the test's thread"));
}

fn both() -> [IpAddr; 2] {
    ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().expect("an address"))
}

#[test]
fn address_is_added_used_kept_and_removed() {
    elsewhere(|addresses| {
        let lo = Addresses::device("lo").unwrap().expect("a device");
        assert_eq!(addresses.list().unwrap(), []);
        for ip in both() {
            for _ in 0..2 {
                addresses.hold(ip, lo, LIFETIME).unwrap();
                let ours = HostAddress {
                    ip,
                    device: lo,
                    permanent: false,
                };
                assert_eq!(addresses.list().unwrap(), [ours]);
            }
            assert!(address_is_local(ip).unwrap());
            // At once: an IPv6 address that is still looked at for duplicates could not be bound.
            TcpListener::bind((ip, 0)).expect("a listener");
            assert!(addresses.remove(ip, lo).unwrap());
            assert!(!addresses.remove(ip, lo).unwrap());
        }
    });
}

#[test]
fn new_address_receives_soon() {
    elsewhere(|addresses| {
        let up = ["link", "set", "lo", "up"];
        let status = std::process::Command::new("ip").args(up).status();
        assert!(status.expect("ip").success());
        for ip in both() {
            assert!(!addresses.is_received(ip).unwrap());
            addresses.hold(ip, 1, LIFETIME).unwrap();
            eventually("it is received", || addresses.is_received(ip).unwrap());
            assert!(addresses.remove(ip, 1).unwrap());
            assert!(!addresses.is_received(ip).unwrap());
        }
    });
}

#[test]
fn unrefreshed_address_expires() {
    elsewhere(|addresses| {
        for ip in both() {
            addresses.hold(ip, 1, Duration::ZERO).unwrap();
        }
        eventually("they go", || addresses.list().unwrap().is_empty());
    });
}

#[test]
fn permanent_address_is_distinguished() {
    elsewhere(|addresses| {
        addresses.hold(both()[0], 1, Duration::MAX).unwrap();
        assert!(!addresses.list().unwrap()[0].permanent);
        let change = ["address", "change", "192.0.2.1/32", "dev", "lo"];
        let status = std::process::Command::new("ip").args(change).status();
        assert!(status.expect("ip").success());
        assert!(addresses.list().unwrap()[0].permanent);
    });
}

#[test]
fn missing_device_has_no_addresses() {
    elsewhere(|addresses| {
        assert_eq!(Addresses::device("none-such").unwrap(), None);
        for ip in both() {
            let error = addresses.hold(ip, 77, LIFETIME).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
            assert!(!addresses.remove(ip, 77).unwrap());
        }
    });
}

#[test]
fn neighbour_is_on_the_link_of_a_device() {
    elsewhere(|addresses| {
        for words in [
            "link set lo up",
            "link add v0 type veth peer name v1",
            "address add 192.0.2.1/24 dev v0",
            "address add 2001:db8::1/64 dev v0 nodad",
            "link set v0 up",
            "link set v1 up",
            "route add 198.51.100.0/24 via 192.0.2.9",
        ] {
            let status = std::process::Command::new("ip")
                .args(words.split(' '))
                .status();
            assert!(status.expect("ip").success(), "{words}");
        }
        let device = Addresses::device("v0").unwrap();
        for (to, found) in [
            ("192.0.2.2", device),
            ("2001:db8::2", device),
            ("192.0.2.1", None),
            ("198.51.100.1", None),
            ("203.0.113.1", None),
        ] {
            let to = to.parse().expect("an address");
            assert_eq!(addresses.device_of_neighbour(to).unwrap(), found, "{to}");
        }
        for (to, source) in [
            ("192.0.2.2", Some("192.0.2.1")),
            ("198.51.100.1", Some("192.0.2.1")),
            ("2001:db8::2", Some("2001:db8::1")),
            ("192.0.2.1", None),
            ("203.0.113.1", None),
        ] {
            let route = addresses.route_to(to.parse().expect("an address")).unwrap();
            let wanted = source.map(|source| supervise::Route {
                device: device.expect("v0"),
                source: source.parse().expect("an address"),
            });
            assert_eq!(route, wanted, "{to}");
        }
    });
}
