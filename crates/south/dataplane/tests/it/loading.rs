//! Errors of the loader, and definitions on which both languages must agree.

use std::{fs, os::fd::AsRawFd as _};

use dataplane::{Dataplane, DataplaneError, LAYOUT_VERSION, MOST_ADDRESSES, Settings};
use libbpf_rs::{MapCore as _, MapHandle};
use north_abi::read_cursors::{READ_CURSOR_PROBES, READ_CURSORS, ReadCursor};

use crate::harness::*;

fn refused(settings: &Settings) -> DataplaneError {
    let place = Pinned::nowhere_else();
    let Err(error) = Dataplane::load(settings, place.pins.clone()) else {
        panic!("{settings:?} was accepted");
    };
    assert!(!place.pins.exists(), "nothing is pinned");
    error
}

/// In the headers that both languages share.
fn defined(name: &str) -> Option<usize> {
    let headers = [
        include_str!("../../bpf/intf/read_cursor.h"),
        include_str!("../../bpf/intf/service.h"),
        include_str!("../../bpf/intf/endpoint.h"),
    ];
    let mut lines = headers.iter().flat_map(|header| header.lines());
    let line = lines.find_map(|line| line.strip_prefix("#define ")?.strip_prefix(name));
    line.and_then(|number| number.trim().parse().ok())
}

#[test]
fn the_layout_has_one_version_and_room_for_so_many_addresses() {
    assert_eq!(defined("LAYOUT_VERSION "), Some(LAYOUT_VERSION as usize));
    assert_eq!(defined("MOST_ADDRESSES "), Some(MOST_ADDRESSES));
}

#[test]
fn read_cursors_have_one_layout_for_processes_and_programs() {
    assert_eq!(defined("READ_CURSORS "), Some(READ_CURSORS));
    assert_eq!(defined("READ_CURSOR_PROBES "), Some(READ_CURSOR_PROBES));
    for (read_cursors, most) in [(Some(0), READ_CURSORS), (None, 1)] {
        let place = Pinned::nowhere_else();
        let settings = Settings {
            link: true,
            read_cursors,
            ..settings()
        };
        let _kernel = Kernel::pinned(&settings, &place);
        let table = MapHandle::from_pinned_path(place.pins.pin("read_cursors")).expect("pinned");
        assert_eq!(table.value_size() as usize, size_of::<ReadCursor>());
        assert_eq!(table.max_entries() as usize, most);
    }
}

#[test]
fn the_mirror_frame_has_one_header() {
    let header = include_str!("../../bpf/intf/mirror.h");
    let number = |name: &str| {
        let line = header
            .lines()
            .find_map(|line| line.strip_prefix(&format!("#define {name} ")));
        let text = line.and_then(|line| line.split(' ').next());
        let text = text.expect("it is defined").trim_start_matches("0x");
        u32::from_str_radix(text, 16).expect("a number")
    };
    assert_eq!(number("MIRROR_MAGIC"), protocol::mirror::MAGIC);
    assert_eq!(
        number("MIRROR_VERSION"),
        u32::from(protocol::mirror::VERSION) - u32::from(cfg!(feature = "next-version"))
    );
}

#[test]
fn this_kernel_loads_the_programs() {
    dataplane::probe().expect("it does, or no other test here could pass");
}

/// Each start waits for the verifier. The number is the same each time on one kernel, and differs
/// between kernels.
#[test]
fn the_verifier_follows_few_instructions() {
    let kernel = Kernel::load(&settings());
    for name in ["ingress", "egress"] {
        let program = kernel.plane().program_fd(name).expect("it is loaded");
        let fd = program.as_raw_fd();
        let told = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).expect("it is open");
        let followed = told
            .lines()
            .find_map(|line| line.strip_prefix("verified_insns:"));
        let followed: u32 = followed
            .expect("Linux 5.16")
            .trim()
            .parse()
            .expect("a number");
        assert!(followed < 100_000, "{followed} in {name}");
    }
}

/// Between the two sizes, libbpf rounds up to a size for the kernel.
#[test]
fn a_ring_of_no_size_or_of_too_large_a_one_is_refused() {
    for mirror_bytes in [0, u32::MAX] {
        let error = refused(&Settings {
            mirror_bytes,
            ..settings()
        });
        let text = error.to_string();
        assert!(matches!(error, DataplaneError::Load { .. }), "{text}");
        assert!(text.contains("does not load the data plane"), "{text}");
    }
    let odd = Both::with(&Settings {
        mirror_bytes: 4097,
        ..settings()
    });
    assert!(odd.kernel.plane().barrier(1).is_ok());
}

#[test]
fn a_table_without_room_is_refused() {
    let error = refused(&Settings {
        max_flows: 0,
        ..settings()
    });
    assert!(matches!(error, DataplaneError::Load { .. }), "{error}");
}

#[test]
fn pins_of_another_instance_are_not_overwritten() {
    let place = Pinned::nowhere_else();
    let first = Kernel::pinned(&settings(), &place);
    let Err(error) = Dataplane::load(&settings(), place.pins.clone()) else {
        panic!("it was loaded twice");
    };
    assert!(matches!(error, DataplaneError::Pin { .. }), "{error}");
    assert!(error.to_string().contains("cannot pin in"), "{error}");
    first.plane().heartbeat().expect("the first one goes on");
    assert!(place.pins.pin("flows").exists());
}
