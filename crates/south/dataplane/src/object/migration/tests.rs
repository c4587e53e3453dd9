//! On real maps: the object with `OUTLIVE_NEXT_VERSION` is the former version here, so members go.

use std::{
    net::{SocketAddr, SocketAddrV4},
    os::fd::{AsRawFd as _, BorrowedFd},
    path::Path,
    sync::OnceLock,
};

use libbpf_rs::{
    Link as BpfLink, MapFlags,
    libbpf_sys::{bpf_prog_test_run_opts, bpf_test_run_opts},
    query::LinkInfo,
};

use super::*;
use crate::{
    abi::{self, Abi},
    attach::{AttachMode, Attachment},
    interfaces::{Interface, ethernet_interfaces},
    link::Link,
    object::test_namespace::{alone, compiled},
    pins::LAYOUT_VERSION,
};

/// Bytes of the members that only the other object has.
const ADDED_BYTES: usize = 8;

/// The object of another layout.
fn other_object() -> &'static [u8] {
    static COMPILED_OBJECT: OnceLock<Vec<u8>> = OnceLock::new();
    COMPILED_OBJECT.get_or_init(|| compiled("bpf/replay.bpf.c", &["-DOUTLIVE_NEXT_VERSION"]))
}

/// A network namespace with a loopback, a service of the other layout on it, and the places of its pins.
struct Former {
    object: Object,
    interface: Interface,
    former: PinDirectory,
    own: PinDirectory,
    _attachment: Attachment,
}

impl Former {
    fn pinned(bpffs: &Path, mode: AttachMode, max_flows: u32) -> Self {
        let own = PinDirectory::new(bpffs, "web");
        let former = own.beside(&format!("replay-v{}", LAYOUT_VERSION - 1));
        let mut open = ObjectBuilder::default()
            .open_memory(other_object())
            .unwrap();
        for mut map in open.maps_mut() {
            let entries = match map.name().to_str() {
                Some("mirror") => 1 << 16,
                Some("flows") => max_flows,
                Some("read_cursors") => 1,
                _ => continue,
            };
            map.set_max_entries(entries).unwrap();
        }
        let mut object = open.load().unwrap();
        former.create().unwrap();
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if !is_internal(&name) {
                map.pin(former.pin(&name)).unwrap();
            }
        }
        for name in PACKET_PROGRAMS {
            let path = former.pin(name);
            attach::program(&object, name).unwrap().pin(path).unwrap();
        }
        for (name, mut link) in latch_of(&object).unwrap() {
            attach::pin_link(&mut link, &former, name).unwrap();
        }
        let interface = ethernet_interfaces().unwrap().remove(0);
        let link = Link::of(&interface).unwrap();
        let attachment =
            Attachment::new(&object, interface.clone(), &link, false, mode, &former, &[]);
        Self {
            object,
            interface,
            former,
            own,
            _attachment: attachment.unwrap(),
        }
    }

    fn migrate(&self) -> Result<Object, DataplaneError> {
        Migration::load(abi::OBJECT, &self.former)?.complete(&self.own)
    }

    fn put(&self, map: &str, key: &[u8], value: &[u8]) {
        let map = MapHandle::from_pinned_path(self.former.pin(map)).unwrap();
        map.update(key, value, MapFlags::ANY).unwrap();
    }

    /// Number of the program that sees packets which arrive.
    fn running(&self) -> u32 {
        let pin = format!("{LINK_PREFIX}ingress_{}", self.interface.index);
        let places = [&self.former, &self.own].map(|pins| pins.pin(&pin));
        let pin = places.iter().find(|pin| pin.exists());
        match pin {
            Some(pin) => {
                let link = BpfLink::open(pin).unwrap();
                LinkInfo::from_fd(link.as_fd()).unwrap().prog_id
            }
            None => {
                let program = attach::program(&self.object, "ingress").unwrap();
                attach::program_in_filter("ingress", &self.interface, program.as_fd()).unwrap()
            }
        }
    }

    /// The error of a migration, which fails.
    fn refusal(&self) -> DataplaneError {
        match self.migrate() {
            Ok(_) => panic!("it was migrated"),
            Err(error) => error,
        }
    }

    /// The migration fails with an error of these texts, and the former programs run on.
    fn assert_refused(&self, texts: &[&str]) {
        let error = self.refusal().to_string();
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
        assert_eq!(self.running(), ingress_of(&self.object));
    }
}

fn id_of(pins: &PinDirectory, map: &str) -> u32 {
    let map = MapHandle::from_pinned_path(pins.pin(map)).unwrap();
    libbpf_rs::MapInfo::new(map.as_fd()).unwrap().info.id
}

fn id(program: &Program<'_>) -> u32 {
    Program::id_from_fd(program.as_fd()).unwrap()
}

fn ingress_of(object: &Object) -> u32 {
    let program = object.progs().find(|program| program.name() == "ingress");
    id(&program.unwrap())
}

/// A value of the other layout: zeros before the end.
fn other(size: usize, end: &[u8]) -> Vec<u8> {
    let mut value = vec![0; size + ADDED_BYTES - end.len()];
    value.extend_from_slice(end);
    value
}

fn service_bytes(mark: u32, gated: u8) -> Vec<u8> {
    let own = abi::service {
        mark,
        gated,
        digest_rate: 7,
        next_flow_id: 99,
        ..Default::default()
    };
    let at = std::mem::offset_of!(abi::service, next_flow_id);
    let (before, after) = own.as_bytes().split_at(at);
    [before, &[0xff; ADDED_BYTES], after].concat()
}

#[test]
fn maps_of_other_layout_are_copied_and_programs_replaced() {
    for mode in [AttachMode::Tcx, AttachMode::Clsact] {
        alone(|bpffs| {
            let service = Former::pinned(bpffs, mode, 16);
            service.put("service", &[0; 4], &service_bytes(0x5000_0000, 1));
            service.put("addresses", &[3; 16], &[1]);
            let key = [5; size_of::<abi::flow_key>()];
            // Two members more: in the flow, and in a half.
            let syn_options = [9; 40];
            let flow = other(size_of::<abi::flow>() + ADDED_BYTES, &syn_options);
            service.put("flows", &key, &flow);
            let before = ["mirror", "events", "addresses", "expected"]
                .map(|map| id_of(&service.former, map));
            let object = service.migrate().expect("it migrates");
            let maps = Maps::of(&object).unwrap();
            let state = maps.the_service().unwrap();
            assert_eq!(
                (state.mark, state.gated, state.digest_rate),
                (0x5000_0000, 1, 7)
            );
            assert_eq!(state.next_flow_id, 99);
            let found = maps.flows.lookup(&key, MapFlags::ANY).unwrap().unwrap();
            let found = abi::flow::from_bytes(&found).unwrap();
            assert_eq!(found.syn_options, syn_options);
            assert_eq!(maps.flows.max_entries(), 16);
            let after =
                ["mirror", "events", "addresses", "expected"].map(|map| id_of(&service.own, map));
            assert_eq!(before, after, "the same maps");
            assert_ne!(
                id_of(&service.former, "flows"),
                id_of(&service.own, "flows")
            );
            assert!(!service.own.staged().exists());
            // As an adoption goes on.
            let link = Link::of(&service.interface).unwrap();
            let adopted =
                Attachment::adopt(&object, service.interface.clone(), &link, &service.own, &[]);
            assert!(adopted.unwrap().is_some());
            finish(Some(&service.former), &service.own).unwrap();
            assert!(!service.former.exists());
            assert_eq!(service.running(), ingress_of(&object));
            let mut names = service.own.names();
            names.retain(|name| name.contains("hold") || name.contains("held"));
            assert!(names.is_empty(), "{names:?}");
        });
    }
}

#[test]
fn failed_migration_returns_to_old_programs() {
    for mode in [AttachMode::Tcx, AttachMode::Clsact] {
        alone(|bpffs| {
            let service = Former::pinned(bpffs, mode, 16);
            let old = ingress_of(&service.object);
            assert_eq!(service.running(), old);
            // No object can be pinned under a name that belongs to a directory.
            let in_the_way = service.former.pin("link_egress_0");
            fs::create_dir(&in_the_way).unwrap();
            let error = service.refusal();
            assert!(matches!(error, DataplaneError::Pin { .. }), "{error}");
            assert_eq!(service.running(), old);
            assert!(!service.own.staged().exists() && !service.own.exists());
            assert!(!hold::is_pinned(&service.former));
            fs::remove_dir(&in_the_way).unwrap();
            service.migrate().expect("the next time");
        });
    }
}

#[test]
fn map_in_use_of_another_definition_is_refused() {
    alone(|bpffs| {
        let service = Former::pinned(bpffs, AttachMode::Auto, 16);
        let pin = service.former.pin("events");
        fs::remove_file(&pin).unwrap();
        // Another ring than the programs have.
        let mut options = libbpf_rs::libbpf_sys::bpf_map_create_opts::default();
        options.sz = size_of_val(&options).try_into().unwrap();
        let kind = libbpf_rs::MapType::RingBuf;
        let mut ring = MapHandle::create(kind, Some("events"), 0, 0, 1 << 16, &options).unwrap();
        ring.pin(&pin).unwrap();
        service.assert_refused(&["map events", "in use"]);
    });
}

#[test]
fn map_that_no_program_has_any_more_is_refused() {
    alone(|bpffs| {
        let service = Former::pinned(bpffs, AttachMode::Auto, 16);
        let (pin, renamed) = ("digest_keys", "keys_of_digests");
        fs::rename(service.former.pin(pin), service.former.pin(renamed)).unwrap();
        service.assert_refused(&["map keys_of_digests", "no map of that name"]);
    });
}

#[test]
fn copy_is_given_up_when_hold_is_over() {
    alone(|bpffs| {
        let service = Former::pinned(bpffs, AttachMode::Auto, 16);
        let (_object, copies) = load_beside(abi::OBJECT, &service.former).unwrap();
        let is_over = Instant::now();
        let given_up = copy_until_equal(&copies, is_over);
        assert!(
            matches!(given_up, Err(DataplaneError::HeldTooLong { .. })),
            "{given_up:?}"
        );
        copy_until_equal(&copies, is_over + Duration::from_secs(600)).expect("in time");
    });
}

#[test]
fn migration_that_was_killed_before_its_commit_is_undone() {
    alone(|bpffs| {
        let service = Former::pinned(bpffs, AttachMode::Auto, 16);
        {
            let (mut object, _) = load_beside(abi::OBJECT, &service.former).unwrap();
            let hold = Hold::prepare(&service.former, 0).unwrap();
            attach::replace_everywhere(&service.former, hold.programs()).unwrap();
            stage(&mut object, &service.own.staged()).unwrap();
            let next = [0, 1].map(|at| attach::program(&object, PACKET_PROGRAMS[at]).unwrap());
            let next = [next[0].as_fd(), next[1].as_fd()];
            hold.begin(next, HOLD_LIMIT).unwrap();
            stage_links(&service.former, &service.own.staged()).unwrap();
        }
        settle(&service.former, &service.own).unwrap();
        assert!(!service.own.exists() && !service.own.staged().exists());
        let hold = Hold::open(&service.former).unwrap();
        assert_eq!(hold.end(HoldState::Holds).unwrap(), HoldState::Expired);
        drop(hold);
        service.migrate().expect("again");
    });
}

#[test]
fn migration_that_was_killed_after_its_commit_is_completed() {
    alone(|bpffs| {
        let service = Former::pinned(bpffs, AttachMode::Auto, 16);
        {
            let (mut object, copies) = load_beside(abi::OBJECT, &service.former).unwrap();
            let staged = service.own.staged();
            change_over(&mut object, &copies, &service.former, &staged).unwrap();
        }
        settle(&service.former, &service.own).unwrap();
        assert!(service.own.has_pins() && !service.own.staged().exists());
        // A kill after that has the same result.
        settle(&service.former, &service.own).unwrap();
        assert!(service.own.has_pins());
    });
}

#[test]
fn hold_without_end_expires() {
    alone(|bpffs| {
        let service = Former::pinned(bpffs, AttachMode::Auto, 16);
        let hold = Hold::prepare(&service.former, 0).unwrap();
        let next = PACKET_PROGRAMS.map(|name| attach::program(&service.object, name).unwrap());
        let next = [next[0].as_fd(), next[1].as_fd()];
        hold.begin(next, Duration::ZERO).unwrap();
        assert_eq!(hold.end(HoldState::Committed).unwrap(), HoldState::Expired);
        hold.begin(next, HOLD_LIMIT).unwrap();
        assert_eq!(
            hold.end(HoldState::Committed).unwrap(),
            HoldState::Committed
        );
        assert_eq!(hold.end(HoldState::Expired).unwrap(), HoldState::Committed);
        let refused = end_hold_of_next(&service.former);
        assert!(
            matches!(refused, Err(DataplaneError::Superseded)),
            "{refused:?}"
        );
    });
}

/// A segment in an Ethernet frame.
fn frame(source: SocketAddrV4, destination: SocketAddrV4) -> Vec<u8> {
    let ethernet = [&[0; 12][..], &[8, 0]].concat();
    let mut ip = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0].to_vec();
    ip.extend([source, destination].map(|end| end.ip().octets()).concat());
    let ports = [source, destination].map(|end| end.port().to_be_bytes());
    let tcp = [&ports.concat()[..], &[0; 8], &[5 << 4, 0x10], &[0; 6]].concat();
    [ethernet, ip, tcp].concat()
}

/// The verdict of a program about a frame.
fn verdict(program: BorrowedFd<'_>, frame: &[u8]) -> u32 {
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>().try_into().unwrap(),
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len().try_into().unwrap(),
        ..Default::default()
    };
    // SAFETY: the kernel reads the given number of bytes of `frame`, which lives, and writes none.
    let result = unsafe { bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    assert_eq!(result, 0);
    options.retval
}

#[test]
fn hold_keeps_segments_of_endpoints_and_connections_alone() {
    const TCX_NEXT: u32 = u32::MAX;
    const TCX_DROP: u32 = 2;
    /// To no interface: withheld.
    const TCX_REDIRECT: u32 = 7;
    const FIRST_MARK: u32 = 0x5000_0000;
    let at = |text: &str| text.parse::<SocketAddrV4>().unwrap();
    let client = at("10.0.0.9:1234");
    let (endpoint, other_service) = (at("10.0.0.1:80"), at("10.0.0.1:22"));
    let (upstream, own_port) = (at("10.0.0.7:5432"), at("10.0.0.1:40000"));
    alone(|bpffs| {
        let service = Former::pinned(bpffs, AttachMode::Auto, 16);
        service.put(
            "endpoints",
            abi::endpoint::from(SocketAddr::V4(endpoint)).as_bytes(),
            &[1],
        );
        let key = abi::flow_key {
            client: abi::mapped((*upstream.ip()).into()),
            server: abi::mapped((*own_port.ip()).into()),
            client_port: upstream.port().to_be(),
            server_port: own_port.port().to_be(),
        };
        let flow = other(size_of::<abi::flow>() + ADDED_BYTES, &[]);
        service.put("flows", key.as_bytes(), &flow);
        service.put("service", &[0; 4], &service_bytes(FIRST_MARK, 0));
        let hold = Hold::prepare(&service.former, FIRST_MARK).unwrap();
        let next = PACKET_PROGRAMS.map(|name| attach::program(&service.object, name).unwrap());
        let next = [next[0].as_fd(), next[1].as_fd()];
        hold.begin(next, Duration::MAX).unwrap();
        let [ingress, egress] = hold.programs();
        let cases = [
            (client, endpoint, TCX_DROP, TCX_REDIRECT),
            (upstream, own_port, TCX_DROP, TCX_REDIRECT),
            (client, other_service, TCX_NEXT, TCX_NEXT),
            (client, own_port, TCX_NEXT, TCX_NEXT),
            (upstream, other_service, TCX_NEXT, TCX_NEXT),
        ];
        for (peer, local, arriving, leaving) in cases {
            let case = format!("{peer} {local}");
            assert_eq!(verdict(ingress, &frame(peer, local)), arriving, "{case}");
            assert_eq!(verdict(egress, &frame(local, peer)), leaving, "{case}");
        }
    });
}

/// Prints for how long segments are held back with ten thousand connections.
#[test]
fn ten_thousand_flows_are_copied() {
    const FLOW_COUNT: u32 = 10_000;
    alone(|bpffs| {
        let service = Former::pinned(bpffs, AttachMode::Auto, FLOW_COUNT);
        let mut key = [0; size_of::<abi::flow_key>()];
        for number in 0..FLOW_COUNT {
            key[..4].copy_from_slice(&number.to_ne_bytes());
            let flow = other(size_of::<abi::flow>() + ADDED_BYTES, &number.to_ne_bytes());
            service.put("flows", &key, &flow);
        }
        let (mut object, copies) = load_beside(abi::OBJECT, &service.former).unwrap();
        copy_early(&copies).unwrap();
        let staged = service.own.staged();
        let held = change_over(&mut object, &copies, &service.former, &staged).unwrap();
        println!("{FLOW_COUNT} flows: {held:?}");
        let flows = Maps::of(&object).unwrap().flows;
        assert_eq!(flows.keys().count(), FLOW_COUNT as usize);
    });
}
