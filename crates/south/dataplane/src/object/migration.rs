//! Migration of the maps of the former layout, under traffic.
//!
//! The old programs run all the time, and change their maps. So a migration has steps, and each step leaves a state
//! that the next `serve` can take up if this `serve` is killed there. *Former* is the directory of the old pins,
//! *staged* is a directory from which no `serve` adopts, *own* is the directory of this version.
//!
//! 1. Our object is loaded. A map with an equal definition and equal types is the old map (a ring always is). Each
//!    other map is new, and gets the entries of the old map, converted member by member. The kernel may refuse an entry
//!    while connections come and go: step 6 counts. Killed here: nothing is pinned, and the next `serve` begins anew.
//! 2. The programs of `bpf/hold.bpf.c` are pinned in *former*, and take the places of the old programs. Until step 5
//!    the hold only calls the old programs. Killed here: the hold goes on with these calls; the next migration uses the
//!    same hold.
//! 3. Our maps and programs are pinned in *staged*. Killed here: the next `serve` removes *staged*.
//! 4. Our latch is attached beside the old latch. From here on a death or a close is noted in both sets of maps. Killed
//!    here: the kernel detaches our latch with its descriptors.
//! 5. The hold begins, on all interfaces at once: no segment of the service passes. After a grace period of the kernel
//!    no old program runs. Killed here: the hold ends by itself after [`HOLD_LIMIT`], and calls the old programs, whose
//!    maps are unchanged.
//! 6. Entries that differ are copied until none differs: only the latches still change entries. When the hold is over,
//!    the copy has failed. Killed here: as in step 5.
//! 7. Our latch is pinned in *staged*, and so are the old links, by a second name. One compare-and-swap commits the
//!    hold: from here on the hold calls our programs. Killed here: the hold says which directory is right, *former*
//!    before the commit and *staged* afterwards. Before the commit a `serve` of the old layout may come, too, and
//!    removes *staged*, with our latch.
//! 8. One rename makes *staged* to *own*. Then the pins of the old latch are removed. Killed here: the next `serve`
//!    finds the committed hold, or *own*, and does the rest.
//! 9. As in each adoption, our programs take the places, now of the hold. Then *former* is removed, the hold first.
//!    Killed here: the next `serve` adopts from *own*, and removes *former*.
//!
//! The gate (`service.gated`) would be the wrong tool. Behind the shut gate the old programs still change flows and
//! fill the ring, and the latch takes no note: a death of the server, or a close by the server, in this moment would
//! be lost.
//!
//! If a step before the commit fails, the hold ends, the old programs return to their places and *staged* is removed.

mod conversion;
mod copying;
mod grace_period;
mod hold;
mod layout;
#[cfg(test)]
mod tests;

use std::{
    fs, io,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use libbpf_rs::{MapCore as _, MapHandle, Object, ObjectBuilder, Program};

use self::{
    copying::{KernelTypes, MapCopy, Pair, Pass},
    grace_period::wait_for_grace_period,
    hold::{Hold, HoldState},
};
use super::{LATCH_PROGRAMS, Maps, is_internal, latch_of, not_loaded};
use crate::{
    attach::{self, PACKET_PROGRAMS},
    error::{DataplaneError, MapContext},
    pins::{LINK_PREFIX, PinDirectory, is_of_interface},
    step::begin_step,
};

/// Why a map of the former layout cannot be taken over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrationError {
    /// The kernel knows no types of the map.
    #[error("the kernel has no types (BTF) of it")]
    NoTypes,
    /// The types cannot be read from the kernel.
    #[error("its types (BTF) cannot be read: {0}")]
    Unread(io::Error),
    /// The types are damaged, or of a newer kind.
    #[error("its types (BTF) are malformed")]
    Malformed,
    /// A type that no map of ours has.
    #[error("a type in it cannot be converted")]
    Unsupported,
    /// The own layout has no map of that name.
    #[error("this version has no map of that name, and its entries would be lost")]
    Gone,
    /// An array became shorter.
    #[error("an array in it is shorter than before, and its end would be lost")]
    Shorter,
    /// An integer became smaller.
    #[error("an integer in it is smaller than before")]
    Narrower,
    /// A member became another kind of type.
    #[error("a type in it is of another kind than before")]
    OtherKind,
    /// An error of a member.
    #[error("member {path}: {why}")]
    Member {
        /// Names from the outside in, with dots between.
        path: String,
        /// The reason.
        why: Box<MigrationError>,
    },
    /// A definition differs of a map that other processes have in use.
    #[error("the definition differs, and other processes have the map in use")]
    InUse,
}

impl MigrationError {
    fn in_member(self, name: &str) -> Self {
        match self {
            Self::Member { path, why } => Self::Member {
                path: format!("{name}.{path}"),
                why,
            },
            why => Self::Member {
                path: name.to_owned(),
                why: Box::new(why),
            },
        }
    }
}

/// Longest time for which segments are held back. Clients and server repeat segments for far longer.
const HOLD_LIMIT: Duration = Duration::from_secs(2);

/// Completes or undoes a migration whose `serve` was killed.
///
/// # Errors
/// A pin cannot be changed.
pub(super) fn settle(former: &PinDirectory, own: &PinDirectory) -> Result<(), DataplaneError> {
    let staged = own.staged();
    if hold::is_pinned(former) {
        let ended = Hold::open(former)?.end(HoldState::Expired)?;
        if ended == HoldState::Committed && staged.exists() && !own.has_pins() {
            return publish(&staged, own, former);
        }
    }
    match own.has_pins() {
        true => remove_latch(former)?,
        false => own.remove()?,
    }
    staged.remove()
}

/// Undoes an interrupted migration by the next version: the hold ends, and the next version's latch
/// and pins are removed. The next version's maps are from that moment: the latch would end
/// connections that came later.
///
/// # Errors
/// The next version has completed the migration.
pub(super) fn end_hold_of_next(own: &PinDirectory) -> Result<(), DataplaneError> {
    if hold::is_pinned(own) && Hold::open(own)?.end(HoldState::Expired)? == HoldState::Committed {
        return Err(DataplaneError::Superseded);
    }
    own.staged_by_next().remove()
}

/// After the last step of an adoption: ends the hold, and removes all programs of the former
/// layout.
///
/// # Errors
/// A pin cannot be removed.
pub(super) fn finish(
    former: Option<&PinDirectory>,
    own: &PinDirectory,
) -> Result<(), DataplaneError> {
    let former = former.filter(|former| former.exists());
    if former.is_some() || hold::is_pinned(own) {
        // A program of the hold may be about to call another on another processor.
        wait_for_grace_period()?;
    }
    if let Some(former) = former {
        // Half of a hold cannot be opened by the next adopter.
        hold::remove(former)?;
        former.remove()?;
    }
    hold::remove(own)?;
    own.staged().remove()
}

/// Our programs, loaded beside the service of the former layout.
pub(super) struct Migration {
    object: Object,
    copies: Vec<MapCopy>,
    former: PinDirectory,
    /// For how long the programs were loaded, and the maps copied.
    loaded: Duration,
}

impl Migration {
    /// Loads `object`, the new programs, beside the programs that are pinned in `former`. Pins no
    /// object.
    ///
    /// # Errors
    /// A map cannot be migrated.
    pub(super) fn load(object: &[u8], former: &PinDirectory) -> Result<Self, DataplaneError> {
        let began = Instant::now();
        let (object, copies) = load_beside(object, former)?;
        copy_early(&copies)?;
        Ok(Self {
            object,
            copies,
            former: former.clone(),
            loaded: began.elapsed(),
        })
    }

    pub(super) fn object(&self) -> &Object {
        &self.object
    }

    /// Afterwards all is pinned in `own`, and our programs run.
    ///
    /// # Errors
    /// The kernel refuses a step: then the old programs go on.
    pub(super) fn complete(mut self, own: &PinDirectory) -> Result<Object, DataplaneError> {
        let staged = own.staged();
        let held = change_over(&mut self.object, &self.copies, &self.former, &staged)
            .inspect_err(|_| undo(&self.former, &staged))?;
        publish(&staged, own, &self.former)?;
        tracing::info!(
            loaded = ?self.loaded,
            ?held,
            maps = self.copies.len(),
            "maps of the former layout were taken over"
        );
        Ok(self.object)
    }
}

/// For how long segments were held back.
#[derive(Debug)]
#[expect(
    dead_code,
    reason = "for the log, and for tests that print the figures"
)]
struct HoldDuration {
    /// In all.
    all: Duration,
    /// Of that, the grace period.
    grace_period: Duration,
}

/// Steps 2 to 7.
fn change_over(
    object: &mut Object,
    copies: &[MapCopy],
    former: &PinDirectory,
    staged: &PinDirectory,
) -> Result<HoldDuration, DataplaneError> {
    let mark = mark_of(object)?;
    let hold = Hold::prepare(former, mark)?;
    attach::replace_everywhere(former, hold.programs())?;
    stage(object, staged)?;
    let latch = latch_of(object)?;
    copy_early(copies)?; // so that little is left to be copied while segments wait
    let next = [
        attach::program(object, PACKET_PROGRAMS[0])?,
        attach::program(object, PACKET_PROGRAMS[1])?,
    ];
    let began = Instant::now();
    hold.begin([next[0].as_fd(), next[1].as_fd()], HOLD_LIMIT)?;
    wait_for_grace_period()?;
    let grace_period = began.elapsed();
    copy_until_equal(copies, began + HOLD_LIMIT)?;
    stage_links(former, staged)?;
    for (name, mut link) in latch {
        attach::pin_link(&mut link, staged, name)?;
    }
    match hold.end(HoldState::Committed)? {
        HoldState::Committed => Ok(HoldDuration {
            all: began.elapsed(),
            grace_period,
        }),
        _ => Err(DataplaneError::HeldTooLong { limit: HOLD_LIMIT }),
    }
}

/// Loads the object with the maps of `former` that are of the same layout, and new ones.
fn load_beside(
    object: &[u8],
    former: &PinDirectory,
) -> Result<(Object, Vec<MapCopy>), DataplaneError> {
    let mut open = ObjectBuilder::default()
        .open_memory(object)
        .map_err(not_loaded)?;
    let own = copying::types_of_object(&open).map_err(|why| DataplaneError::Migration {
        map: "service".to_owned(),
        why,
    })?;
    let mut kernel = KernelTypes::default();
    let mut pairs = Vec::new();
    let names: Vec<_> = open.maps().map(|map| map.name().to_owned()).collect();
    let is_ours = |name: &String| names.iter().any(|own| **own == **name);
    let mut pinned = former.names().into_iter();
    if let Some(map) = pinned.find(|name| is_map(name) && !is_ours(name)) {
        let why = MigrationError::Gone;
        return Err(DataplaneError::Migration { map, why });
    }
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let pin = former.pin(&name);
        // A map that the former layout lacks is new, and empty.
        if !is_internal(&name) && pin.exists() {
            let pinned = MapHandle::from_pinned_path(pin)
                .doing("take over a map of an earlier outlive serve")?;
            pairs.extend(Pair::of(&mut map, pinned, &mut kernel, &own)?);
        }
    }
    let object = open.load().map_err(not_loaded)?;
    let mut copies = Vec::new();
    for pair in pairs {
        let map = object.maps().find(|map| map.name() == pair.name());
        let map = map.ok_or(DataplaneError::Missing("map of its own"))?;
        let own = MapHandle::try_from(&map).doing("duplicate a map's descriptor")?;
        copies.push(pair.copied_to(own)?);
    }
    Ok((object, copies))
}

/// Is this the name of a pinned map, and of no program, link or hold?
fn is_map(name: &str) -> bool {
    !PACKET_PROGRAMS.contains(&name) && !name.starts_with(LINK_PREFIX) && !hold::is_pin(name)
}

/// Copies the maps that a repeated copy completes. The other maps are copied while segments are held back.
fn copy_early(copies: &[MapCopy]) -> Result<(), DataplaneError> {
    let mut converging = copies.iter().filter(|copy| copy.converges());
    converging.try_for_each(|copy| copy.copy().map(drop))
}

/// Copies until no entry differs. One more pass is needed if connections are closed meanwhile, or
/// if the kernel had no memory or no lock for an entry at once. `until`: the end of the hold.
fn copy_until_equal(copies: &[MapCopy], until: Instant) -> Result<(), DataplaneError> {
    let (converging, mut others): (Vec<&MapCopy>, Vec<_>) =
        copies.iter().partition(|copy| copy.converges());
    while Instant::now() < until {
        let mut incomplete = Vec::new();
        for copy in others {
            if copy.copy()?.refused > 0 {
                incomplete.push(copy);
            }
        }
        others = incomplete;
        let mut is_equal = true;
        for copy in &converging {
            is_equal &= copy.copy()? == Pass::default();
        }
        if is_equal && others.is_empty() {
            return Ok(());
        }
    }
    Err(DataplaneError::HeldTooLong { limit: HOLD_LIMIT })
}

fn mark_of(object: &Object) -> Result<u32, DataplaneError> {
    Ok(Maps::of(object)?.the_service()?.mark)
}

/// Pins our maps and programs.
fn stage(object: &mut Object, staged: &PinDirectory) -> Result<(), DataplaneError> {
    staged.remove()?;
    staged.create()?;
    let failed = |path, source| DataplaneError::Pin { path, source };
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if !is_internal(&name) {
            let path = staged.pin(&name);
            begin_step();
            let pinned = map.pin(&path).map_err(io::Error::other);
            pinned.map_err(|error| failed(path, error))?;
        }
    }
    for name in PACKET_PROGRAMS {
        let path = staged.pin(name);
        begin_step();
        let pinned = attach::program(object, name)?.pin(&path);
        pinned.map_err(|error| failed(path, io::Error::other(error)))?;
    }
    Ok(())
}

/// Gives the links on interfaces, and the programs of the hold, a second name. At the last moment: a link with two
/// names outlives a `serve` of the version before, which knows only the first name.
fn stage_links(former: &PinDirectory, staged: &PinDirectory) -> Result<(), DataplaneError> {
    let link_twice = |name: &str| {
        let path = staged.pin(name);
        begin_step();
        fs::hard_link(former.pin(name), &path)
            .map_err(|source| DataplaneError::Pin { path, source })
    };
    for name in former.names() {
        // An adoption identifies filters of the service by these programs.
        if is_of_interface(&name) || hold::HOLD_PROGRAMS.contains(&&*name) {
            link_twice(&name)?;
        }
    }
    Ok(())
}

/// Step 8.
fn publish(
    staged: &PinDirectory,
    own: &PinDirectory,
    former: &PinDirectory,
) -> Result<(), DataplaneError> {
    // The empty directory keeps the directories above, which another service that ends would remove.
    own.create()?;
    begin_step();
    fs::rename(staged.path(), own.path()).map_err(|source| DataplaneError::Pin {
        path: own.path().to_owned(),
        source,
    })?;
    remove_latch(former)?;
    if let Some(above) = staged.path().parent() {
        begin_step();
        let _ = fs::remove_dir(above); // another service may be there
    }
    Ok(())
}

/// The former latch knows only the maps of the former layout, which no other program changes any
/// more.
fn remove_latch(former: &PinDirectory) -> Result<(), DataplaneError> {
    LATCH_PROGRAMS
        .into_iter()
        .try_for_each(|name| former.unpin(&format!("{LINK_PREFIX}{name}")))
}

/// The old programs return. The next `serve` completes a step that fails here.
fn undo(former: &PinDirectory, staged: &PinDirectory) {
    let undone = (|| {
        if hold::is_pinned(former) {
            let hold = Hold::open(former)?;
            if hold.end(HoldState::Expired)? == HoldState::Committed {
                return Ok(()); // then this is no way back
            }
        }
        staged.remove()?;
        let old = PACKET_PROGRAMS.map(|name| Program::fd_from_pinned_path(former.pin(name)));
        if let [Ok(ingress), Ok(egress)] = &old {
            attach::replace_everywhere(former, [ingress.as_fd(), egress.as_fd()])?;
            wait_for_grace_period()?;
            hold::remove(former)?;
        }
        Ok::<_, DataplaneError>(())
    })();
    if let Err(error) = undone {
        tracing::warn!(%error, "the old programs go on, but are called by others");
    }
}
