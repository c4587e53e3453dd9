use supervise::local_addresses;

use super::*;

const START_TIME: Duration = Duration::from_secs(1);
const DEVICE_INDEX: u32 = 2;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn missing_device_is_refused() {
    check("lo").unwrap();
    for name in [
        "none-such",
        "",
        "../net/lo",
        "..",
        "a name that is too long",
    ] {
        assert!(check(name).is_err(), "{name}");
    }
}

#[test]
fn present_addresses_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let here: SocketAddr = "127.0.0.1:80".parse().unwrap();
    // Not even with a stored list, which may date from before the reboot of the host.
    let noted = StoredAddresses {
        device: "lo".into(),
        addresses: vec![here.ip()],
    };
    for stored in [StoredAddresses::default(), noted] {
        write(directory.path(), &stored).unwrap();
        let own = VirtualAddresses::bring_up(directory.path(), "lo", &[here], START_TIME).unwrap();
        assert!(own.is_none());
        write(directory.path(), &stored).unwrap();
        assert_eq!(take_down(directory.path()).unwrap(), 0);
        assert!(local_addresses().unwrap().iter().any(|l| l.ip == here.ip()));
    }
}

#[test]
fn new_and_leftover_addresses_are_managed() {
    let wanted = ["10.0.0.1:80", "[::ffff:10.0.0.1]:81", "[fd00::1]:80"];
    let wanted = wanted.map(|text| text.parse::<SocketAddr>().unwrap());
    let both = [ip("10.0.0.1"), ip("fd00::1")];
    assert_eq!(managed(&wanted, &[], &[], DEVICE_INDEX), both, "each once");

    let there = |device, permanent| {
        both.map(|ip| HostAddress {
            ip,
            device,
            permanent,
        })
    };
    let left = there(DEVICE_INDEX, false);
    assert_eq!(managed(&wanted, &left, &both, DEVICE_INDEX), both);
    assert_eq!(managed(&wanted, &left, &both[..1], DEVICE_INDEX), both[..1]);
    assert_eq!(managed(&wanted, &left[1..], &both, DEVICE_INDEX), both);
    assert!(managed(&wanted, &left, &[], DEVICE_INDEX).is_empty());
    assert!(managed(&wanted, &there(DEVICE_INDEX, true), &both, DEVICE_INDEX).is_empty());
    assert!(managed(&wanted, &there(3, false), &both, DEVICE_INDEX).is_empty());
}

#[test]
fn invalid_file_changes_no_address() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(FILE), "rubbish").unwrap();
    assert!(take_down(directory.path()).is_err());
}
