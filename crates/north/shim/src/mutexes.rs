//! The mutexes that the first thread holds.
//!
//! A sleeping helper may wait for a mutex of the first thread, and continues after the unlock. The shim therefore
//! knows which mutexes were held while the helpers came to rest. Some programs hold a mutex for ever (redis: the
//! mutex of its modules).

use core::cell::Cell;

/// Locked mutexes that are tracked. A helper may wait for any mutex beyond.
const TRACKED_MUTEXES_MAX: usize = 16;

#[derive(Clone, Copy)]
struct Mutex {
    /// 0: no mutex.
    address: usize,
    /// Number of locks, for a recursive mutex.
    depth: u32,
    /// Held since before the helpers came to rest.
    is_old: bool,
}

impl Mutex {
    const NONE: Self = Self {
        address: 0,
        depth: 0,
        is_old: false,
    };
}

thread_local! {
    static HELD: [Cell<Mutex>; TRACKED_MUTEXES_MAX] = const { [const { Cell::new(Mutex::NONE) }; TRACKED_MUTEXES_MAX] };
}

/// The first thread has locked this mutex.
#[inline]
pub(crate) fn taken(address: usize) {
    HELD.with(|held| {
        let place = find(held, address).or_else(|| find(held, 0));
        if let Some(place) = place {
            let mutex = place.get();
            place.set(Mutex {
                address,
                depth: mutex.depth.saturating_add(1),
                ..mutex
            });
        }
    });
}

/// The first thread has unlocked this mutex. Returns whether a resting helper may have waited for the mutex.
#[inline]
pub(crate) fn given_back(address: usize) -> bool {
    HELD.with(|held| {
        let Some(place) = find(held, address) else {
            return true;
        };
        let mutex = place.get();
        place.set(match mutex.depth {
            0 | 1 => Mutex::NONE,
            more => Mutex {
                depth: more - 1,
                ..mutex
            },
        });
        mutex.is_old && mutex.depth <= 1
    })
}

fn find(held: &[Cell<Mutex>; TRACKED_MUTEXES_MAX], address: usize) -> Option<&Cell<Mutex>> {
    held.iter().find(|place| place.get().address == address)
}

/// Whether the first thread holds a mutex that was locked after the helpers came to rest.
pub(crate) fn any_is_new() -> bool {
    HELD.with(|held| {
        let mut held = held.iter().map(Cell::get);
        held.any(|mutex| mutex.address != 0 && !mutex.is_old)
    })
}

/// The helpers have come to rest.
pub(crate) fn all_are_old() {
    HELD.with(|held| {
        for place in held {
            let mutex = place.get();
            place.set(Mutex {
                is_old: mutex.address != 0,
                ..mutex
            });
        }
    });
}
