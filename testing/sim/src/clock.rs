//! The timestamp clocks of hosts (RFC 7323 5.4). `smoltcp` takes a plain function as a clock, so the virtual time is a
//! variable of the thread, which each run sets before the first read. The clocks of sockets that continue another
//! socket's clock (`TCP_TIMESTAMP` of Linux) work the same way.

use std::cell::Cell;

use smoltcp::wire::TcpTimestampGenerator;

use crate::MS;

thread_local! {
    static MILLISECONDS: Cell<u32> = const { Cell::new(0) };
    static AHEAD: [Cell<u32>; OWN_CLOCKS.len()] = const { [const { Cell::new(0) }; OWN_CLOCKS.len()] };
}

/// Virtual time passes.
pub(crate) fn set(now: u64) {
    let milliseconds = now / MS % (1 << 32);
    MILLISECONDS.set(u32::try_from(milliseconds).unwrap_or(u32::MAX));
}

fn reading<const OFFSET: u32>() -> u32 {
    MILLISECONDS.get().wrapping_add(OFFSET)
}

/// Different clocks: a clock starts low, another is about to pass the middle of the number space, and a third the end.
pub(crate) const CLOCKS: [TcpTimestampGenerator; 4] = [
    reading::<1>,
    reading::<0x7fff_fe00>,
    reading::<0xffff_fe00>,
    reading::<0x1234_5678>,
];

fn own<const PLACE: usize>() -> u32 {
    AHEAD.with(|ahead| MILLISECONDS.get().wrapping_add(ahead[PLACE].get()))
}

const OWN_CLOCKS: [TcpTimestampGenerator; 12] = [
    own::<0>, own::<1>, own::<2>, own::<3>, own::<4>, own::<5>, own::<6>, own::<7>, own::<8>,
    own::<9>, own::<10>, own::<11>,
];

/// The clock at this place, which shows `stamp` now. An earlier user of the place loses the clock.
pub(crate) fn going_on(place: usize, stamp: u32) -> TcpTimestampGenerator {
    let place = place % OWN_CLOCKS.len();
    AHEAD.with(|ahead| ahead[place].set(stamp.wrapping_sub(MILLISECONDS.get())));
    OWN_CLOCKS[place]
}
