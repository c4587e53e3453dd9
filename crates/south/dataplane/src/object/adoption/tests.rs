//! An adopter is killed before each of its steps, and another adopter follows. The programs do nothing; pins, links,
//! filters and maps are the kernel's.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    thread,
};

use libbpf_rs::{Link as BpfLink, MapHandle, query::LinkInfo};

use super::*;
use crate::{
    attach::{detach_clsact, program_in_filter},
    interfaces::ethernet_interfaces,
    object::{
        latch_of,
        test_namespace::{alone, compiled},
    },
    pins::LAYOUT_VERSION,
    step::kill::killed_after,
};

const FLOW_KEY: [u8; size_of::<abi::flow_key>()] = [5; size_of::<abi::flow_key>()];
/// The last member of a flow, in both layouts.
const SYN_OPTIONS: [u8; 40] = [9; 40];
/// Interface that the service was not on when its `serve` died.
const LATE_INTERFACE: &str = "late";

/// The interfaces, and where the pins of both layouts are.
struct Host {
    interfaces: Vec<(Interface, Link)>,
    mode: AttachMode,
    before: PinDirectory,
    own: PinDirectory,
}

/// A version of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// The former layout: the object with `OUTLIVE_NEXT_VERSION` takes this place, so members go.
    Before,
    Own,
}

/// The step after the killed adopter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Successor {
    Adopter(Version),
    /// `outlive clean`.
    Cleaner,
}

impl Version {
    fn object(self) -> &'static [u8] {
        static OBJECTS: [OnceLock<Vec<u8>>; 2] = [OnceLock::new(), OnceLock::new()];
        let source = "tests/bpf/adoption.bpf.c";
        match self {
            Self::Before => {
                OBJECTS[0].get_or_init(|| compiled(source, &["-DOUTLIVE_NEXT_VERSION"]))
            }
            Self::Own => OBJECTS[1].get_or_init(|| compiled(source, &[])),
        }
    }

    fn pins(self, host: &Host) -> &PinDirectory {
        match self {
            Self::Before => &host.before,
            Self::Own => &host.own,
        }
    }

    fn former(self, host: &Host) -> Option<&PinDirectory> {
        (self == Self::Own).then_some(&host.before)
    }

    /// As `serve` does; `None`: another version has to come.
    fn adopt(self, host: &Host) -> Option<Object> {
        let (pins, former) = (self.pins(host), self.former(host));
        if self == Self::Before && host.own.exists() {
            return None; // `PinDirectory::other_layouts`
        }
        let loaded = match Loaded::from(self.object(), pins, former) {
            Err(DataplaneError::Superseded) => return None,
            loaded => loaded.expect("the programs are loaded"),
        };
        let object = loaded.complete(pins).expect("the maps are taken over");
        for (interface, link) in &host.interfaces {
            let adopted = Attachment::adopt(&object, interface.clone(), link, pins, &[]);
            if adopted.expect("the interface is adopted").is_none() {
                host.attach(&object, interface, link, pins);
            }
        }
        take_places(&object, pins, former).expect("the latch is adopted");
        Some(object)
    }
}

impl Host {
    fn new(bpffs: &Path, mode: AttachMode) -> Self {
        let pair = ["link", "add", LATE_INTERFACE, "type", "veth"];
        let status = Command::new("ip").args(pair).status();
        assert!(status.unwrap().success());
        let with_details = |interface: Interface| {
            let link = Link::of(&interface).unwrap();
            (interface, link)
        };
        let own = PinDirectory::new(bpffs, "web");
        Self {
            interfaces: ethernet_interfaces()
                .unwrap()
                .into_iter()
                .filter(|interface| ["lo", LATE_INTERFACE].contains(&&*interface.name))
                .map(with_details)
                .collect(),
            mode,
            before: own.beside(&format!("replay-v{}", LAYOUT_VERSION - 1)),
            own,
        }
    }

    fn attach(&self, object: &Object, interface: &Interface, link: &Link, pins: &PinDirectory) {
        let (interface, mode) = (interface.clone(), self.mode);
        Attachment::new(object, interface, link, false, mode, pins, &[]).expect("it is attached");
    }

    /// A service of the layout before, whose `serve` is dead.
    fn begin_service(&self) {
        let load = ObjectBuilder::default();
        let mut open = { load }.open_memory(Version::Before.object()).unwrap();
        for mut map in open.maps_mut() {
            let entries = match map.name().to_str() {
                Some("mirror") => 1 << 12,
                Some("flows" | "read_cursors") => 1,
                _ => continue,
            };
            map.set_max_entries(entries).unwrap();
        }
        let mut object = open.load().unwrap();
        self.before.create().unwrap();
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if !is_internal(&name) {
                map.pin(self.before.pin(&name)).unwrap();
            }
        }
        for name in PACKET_PROGRAMS {
            pin_program(&object, name, &self.before, name).unwrap();
        }
        let mut flow = vec![0; size_in(&self.before, "flows") - SYN_OPTIONS.len()];
        flow.extend(SYN_OPTIONS);
        let flows = MapHandle::from_pinned_path(self.before.pin("flows")).unwrap();
        flows.update(&FLOW_KEY, &flow, MapFlags::ANY).unwrap();
        let (interface, link) = &self.interfaces[0];
        self.attach(&object, interface, link, &self.before);
        for (name, mut link) in latch_of(&object).unwrap() {
            attach::pin_link(&mut link, &self.before, name).unwrap();
        }
    }

    /// All objects are as an adopter of that version leaves them, and no other object is pinned.
    fn assert_adopted(&self, version: Version, object: &Object, case: &str) {
        let pins = version.pins(self);
        let mut expected: BTreeSet<String> = object
            .maps()
            .map(|map| map.name().to_string_lossy().into_owned())
            .filter(|name| !is_internal(name))
            .chain(PACKET_PROGRAMS.map(str::to_owned))
            .chain(LATCH_PROGRAMS.map(|name| format!("{LINK_PREFIX}{name}")))
            .collect();
        for (interface, _) in &self.interfaces {
            for name in PACKET_PROGRAMS {
                let pin = format!("{LINK_PREFIX}{name}_{}", interface.index);
                let running = match self.mode {
                    AttachMode::Clsact => {
                        let program = attach::program(object, name).unwrap();
                        program_in_filter(name, interface, program.as_fd())
                    }
                    _ => Some(program_in_link(&pins.pin(&pin))),
                };
                assert_eq!(running, Some(id_in(object, name)), "{case}: {name}");
                if self.mode != AttachMode::Clsact {
                    expected.insert(pin);
                }
            }
        }
        for name in LATCH_PROGRAMS {
            let running = program_in_link(&pins.pin(&format!("{LINK_PREFIX}{name}")));
            assert_eq!(running, id_in(object, name), "{case}: {name}");
        }
        let found: BTreeSet<String> = pins.names().into_iter().collect();
        assert_eq!(found, expected, "{case}");
        assert_eq!(self.directories(), [pins.path()], "{case}");
        let flows = MapHandle::from_pinned_path(pins.pin("flows")).unwrap();
        let flow = flows.lookup(&FLOW_KEY, MapFlags::ANY).unwrap();
        assert!(flow.unwrap().ends_with(&SYN_OPTIONS), "{case}");
    }

    /// Directories with pins, of all layouts.
    fn directories(&self) -> Vec<PathBuf> {
        let entries = |path: &Path| {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let all = self.own.path().ancestors().nth(2).unwrap();
        entries(all)
            .iter()
            .flat_map(|layout| entries(layout))
            .collect()
    }

    /// As `outlive clean` of our version.
    fn clean(&self, case: &str) {
        for pins in self.own.all().into_iter().chain([self.before.clone()]) {
            detach_clsact(&pins).unwrap();
            pins.remove().unwrap();
        }
        assert!(self.directories().is_empty(), "{case}");
        let object = ObjectBuilder::default();
        let open = { object }.open_memory(Version::Own.object()).unwrap();
        let object = open.load().unwrap();
        for (interface, _) in &self.interfaces {
            for name in PACKET_PROGRAMS {
                let any = attach::program(&object, name).unwrap();
                let found = program_in_filter(name, interface, any.as_fd());
                assert_eq!(found, None, "{case}: {name} on {}", interface.name);
            }
        }
    }
}

fn size_in(pins: &PinDirectory, map: &str) -> usize {
    let map = MapHandle::from_pinned_path(pins.pin(map)).unwrap();
    map.value_size() as usize
}

fn program_in_link(pin: &Path) -> u32 {
    let link = BpfLink::open(pin).unwrap();
    LinkInfo::from_fd(link.as_fd()).unwrap().prog_id
}

fn id_in(object: &Object, name: &'static str) -> u32 {
    let program = attach::program(object, name).unwrap();
    Program::id_from_fd(program.as_fd()).unwrap()
}

/// Returns the number of steps of an adopter that is not killed.
fn kill_at_each_step(host: &Host, killed: Version, successor: Successor) -> u32 {
    let mut refusals = 0;
    for steps in 0.. {
        let case = format!("{killed:?} killed after {steps} steps, then {successor:?}");
        host.begin_service();
        let survivor = killed_after(steps, || killed.adopt(host));
        if let Some(object) = survivor {
            host.assert_adopted(killed, &object.unwrap(), &case);
            host.clean(&case);
            let refused =
                (killed, successor) == (Version::Own, Successor::Adopter(Version::Before));
            assert_eq!(refusals > 0, refused);
            return steps;
        }
        if let Successor::Adopter(version) = successor {
            // A death seldom comes alone: this successor is killed as well, in each case at another step.
            let _ = killed_after(steps * 7 % 29, || version.adopt(host));
            match version.adopt(host) {
                Some(object) => host.assert_adopted(version, &object, &case),
                None => refusals += 1,
            }
            // The newest version can always follow.
            let object = Version::Own.adopt(host).unwrap();
            host.assert_adopted(Version::Own, &object, &case);
        }
        host.clean(&case);
    }
    unreachable!("an adoption ends")
}

/// Each successor in separate namespaces, at the same time: the test mostly waits for the kernel.
fn kill_with_each_successor(mode: AttachMode, killed: Version) {
    let adopters = [Version::Before, Version::Own].map(Successor::Adopter);
    thread::scope(|scope| {
        for successor in adopters.into_iter().chain([Successor::Cleaner]) {
            scope.spawn(move || {
                alone(|bpffs| {
                    let steps = kill_at_each_step(&Host::new(bpffs, mode), killed, successor);
                    println!("{mode:?}, {killed:?}, {successor:?}: {steps} steps");
                });
            });
        }
    });
}

#[test]
fn adopter_with_links_killed_at_any_step_is_succeeded() {
    kill_with_each_successor(AttachMode::Tcx, Version::Before);
}

#[test]
fn adopter_with_filters_killed_at_any_step_is_succeeded() {
    kill_with_each_successor(AttachMode::Clsact, Version::Before);
}

#[test]
fn migration_with_links_killed_at_any_step_is_succeeded() {
    kill_with_each_successor(AttachMode::Tcx, Version::Own);
}

#[test]
fn migration_with_filters_killed_at_any_step_is_succeeded() {
    kill_with_each_successor(AttachMode::Clsact, Version::Own);
}
