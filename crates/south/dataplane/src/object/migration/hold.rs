//! The programs of `bpf/hold.bpf.c`, pinned beside the held programs.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, ObjectBuilder, Program,
    libbpf_sys::{bpf_prog_test_run_opts, bpf_test_run_opts},
};
use rustix::time::{ClockId, clock_gettime};

use super::MigrationError;
use crate::{
    error::{DataplaneError, MapContext, SocketContext},
    pins::PinDirectory,
    step::begin_step,
};

const HOLD_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hold.bpf.o"));

/// The states of a hold (`enum hold_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldState {
    Holds,
    Expired,
    Committed,
}

impl HoldState {
    fn of(code: u32) -> Option<Self> {
        let states = [Self::Holds, Self::Expired, Self::Committed];
        states.into_iter().find(|state| state.code() == code)
    }

    fn code(self) -> u32 {
        match self {
            Self::Holds => 0,
            Self::Expired => 1,
            Self::Committed => 2,
        }
    }
}

/// The map `hold` is pinned last: where that is, all are.
const STATE_PIN: &str = "hold";
const END_PIN: &str = "end_hold";
pub(crate) const HOLD_PROGRAMS: [&str; 2] = ["hold_ingress", "hold_egress"];
const PROGRAM_ARRAYS: [&str; 2] = ["held_ingress", "held_egress"];
/// The programs identify segments of the service by these maps of the held programs. The keys are
/// the same in all layouts.
const SERVICE_MAPS: [&str; 2] = ["endpoints", "flows"];
/// Places in the arrays.
const OLD_PROGRAM: u32 = 0;
const NEW_PROGRAM: u32 = 1;

/// Offsets in `struct hold`.
const UNTIL_BYTES: usize = 8;
const STATE_END: usize = 12;

/// The programs that hold segments of one service back.
pub(super) struct Hold {
    state: MapHandle,
    arrays: [MapHandle; 2],
    programs: [OwnedFd; 2],
    end: OwnedFd,
}

impl Hold {
    /// The hold that is pinned there.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn open(pins: &PinDirectory) -> Result<Self, DataplaneError> {
        let doing = "open the programs that hold segments back";
        let map = |name| MapHandle::from_pinned_path(pins.pin(name)).doing(doing);
        let program = |name| Program::fd_from_pinned_path(pins.pin(name)).doing(doing);
        Ok(Self {
            state: map(STATE_PIN)?,
            arrays: [map(PROGRAM_ARRAYS[0])?, map(PROGRAM_ARRAYS[1])?],
            programs: [program(HOLD_PROGRAMS[0])?, program(HOLD_PROGRAMS[1])?],
            end: program(END_PIN)?,
        })
    }

    /// Pins a hold that holds no segment yet: the hold calls the pinned programs, which run now. A
    /// hold of an interrupted migration may be on the interfaces already, and is used again.
    ///
    /// # Errors
    /// The kernel does not load the hold, or refuses a pin.
    pub(super) fn prepare(pins: &PinDirectory, mark: u32) -> Result<Self, DataplaneError> {
        let running = |name| Program::fd_from_pinned_path(pins.pin(name)).doing("find a program");
        if pins.pin(STATE_PIN).exists() {
            let hold = Self::open(pins)?;
            for (array, name) in hold.arrays.iter().zip(["ingress", "egress"]) {
                put(array, OLD_PROGRAM, running(name)?.as_fd())?; // another adoption may have replaced it
            }
            return Ok(hold);
        }
        remove(pins)?; // half of one
        let load = crate::object::not_loaded;
        let mut open = ObjectBuilder::default()
            .open_memory(HOLD_OBJECT)
            .map_err(load)?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if SERVICE_MAPS.contains(&&*name) {
                let key_size = map.key_size();
                map.reuse_pinned_map(pins.pin(&name))
                    .doing("take over the protected addresses and connections")?;
                if map.key_size() != key_size {
                    let why = MigrationError::OtherKind;
                    return Err(DataplaneError::Migration { map: name, why });
                }
            }
        }
        let mut object = open.load().map_err(load)?;
        let pinned = |name: &str| {
            let path = pins.pin(name);
            move |error| DataplaneError::Pin {
                path,
                source: io::Error::other(error),
            }
        };
        for mut program in object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            begin_step();
            program.pin(pins.pin(&name)).map_err(pinned(&name))?;
        }
        let by_pinning_order = |name: &str| name == STATE_PIN;
        let mut maps: Vec<_> = object.maps_mut().collect();
        maps.sort_by_key(|map| by_pinning_order(&map.name().to_string_lossy()));
        for map in &mut maps {
            let name = map.name().to_string_lossy().into_owned();
            let former = match &*name {
                "held_ingress" => "ingress",
                "held_egress" => "egress",
                STATE_PIN => {
                    let value = state_bytes(0, HoldState::Expired, mark);
                    map.update(&0_u32.to_ne_bytes(), &value, MapFlags::ANY)
                        .doing("prepare a hold")?;
                    begin_step();
                    map.pin(pins.pin(STATE_PIN)).map_err(pinned(STATE_PIN))?;
                    continue;
                }
                _ => continue,
            };
            put(map, OLD_PROGRAM, running(former)?.as_fd())?;
            begin_step();
            map.pin(pins.pin(&name)).map_err(pinned(&name))?;
        }
        drop(maps);
        Self::open(pins)
    }

    /// The programs for `[ingress, egress]`.
    pub(super) fn programs(&self) -> [BorrowedFd<'_>; 2] {
        [self.programs[0].as_fd(), self.programs[1].as_fd()]
    }

    /// Hold from now on, for `limit` at most; `next`: the programs for after a commit.
    ///
    /// # Errors
    /// A map cannot be written.
    pub(super) fn begin(
        &self,
        next: [BorrowedFd<'_>; 2],
        limit: Duration,
    ) -> Result<(), DataplaneError> {
        for (array, program) in self.arrays.iter().zip(next) {
            put(array, NEW_PROGRAM, program)?;
        }
        let key = 0_u32.to_ne_bytes();
        let mut value = self.value()?;
        let until = now().saturating_add(limit).as_nanos();
        let until = u64::try_from(until).unwrap_or(u64::MAX).to_ne_bytes();
        value[..UNTIL_BYTES].copy_from_slice(&until);
        // The programs may read between the writes: the end is written before the end counts.
        for state in [HoldState::Expired, HoldState::Holds] {
            value[UNTIL_BYTES..STATE_END].copy_from_slice(&state.code().to_ne_bytes());
            begin_step();
            self.state
                .update(&key, &value, MapFlags::ANY)
                .doing("hold segments back")?;
        }
        Ok(())
    }

    /// Ends the hold with or without a commit. Returns how the hold has ended.
    ///
    /// # Errors
    /// The program cannot be run.
    pub(super) fn end(&self, to: HoldState) -> Result<HoldState, DataplaneError> {
        let doing = "let segments pass again";
        let mut word = to.code().to_ne_bytes();
        let mut options = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>()
                .try_into()
                .unwrap_or_default(),
            ctx_in: word.as_mut_ptr().cast(),
            ctx_size_in: 4,
            ..Default::default()
        };
        begin_step();
        // SAFETY: the descriptor is open for as long as `self`; the kernel reads and writes the four bytes of `word`.
        let result = unsafe { bpf_prog_test_run_opts(self.end.as_raw_fd(), &raw mut options) };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result)).doing_socket(doing);
        }
        HoldState::of(u32::from_ne_bytes(word)).ok_or(DataplaneError::Missing(STATE_PIN))
    }

    fn value(&self) -> Result<Vec<u8>, DataplaneError> {
        let value = self.state.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let value = value.doing("read the state of a hold")?;
        let value = value.filter(|value| value.len() > STATE_END);
        value.ok_or(DataplaneError::Missing(STATE_PIN))
    }
}

trait SystemDoing<T> {
    fn doing_socket(self, what: &'static str) -> Result<T, DataplaneError>;
}

impl<T> SystemDoing<T> for io::Result<T> {
    fn doing_socket(self, what: &'static str) -> Result<T, DataplaneError> {
        SocketContext::doing(self, what)
    }
}

/// Removes the pins of a hold that no interface uses any more. A missing pin is no error.
///
/// # Errors
/// A pin exists and cannot be removed.
pub(super) fn remove(pins: &PinDirectory) -> Result<(), DataplaneError> {
    pin_names().try_for_each(|name| pins.unpin(name))
}

/// The map that says that all are there is the first.
fn pin_names() -> impl Iterator<Item = &'static str> {
    [STATE_PIN, END_PIN]
        .into_iter()
        .chain(PROGRAM_ARRAYS)
        .chain(HOLD_PROGRAMS)
}

/// Is this the name of a pin of a hold?
pub(super) fn is_pin(name: &str) -> bool {
    pin_names().any(|pin| pin == name)
}

/// Whether a hold is pinned.
pub(super) fn is_pinned(pins: &PinDirectory) -> bool {
    pins.pin(STATE_PIN).exists()
}

fn state_bytes(until: u64, state: HoldState, mark: u32) -> Vec<u8> {
    let parts = [state.code().to_ne_bytes(), mark.to_ne_bytes()].concat();
    [&until.to_ne_bytes()[..], &parts].concat()
}

fn put(array: &impl MapCore, place: u32, program: BorrowedFd<'_>) -> Result<(), DataplaneError> {
    let descriptor = program.as_raw_fd().to_ne_bytes();
    begin_step();
    array
        .update(&place.to_ne_bytes(), &descriptor, MapFlags::ANY)
        .doing("name a program that a hold calls")
}

/// `CLOCK_MONOTONIC`, the clock of the programs.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}
