//! The timestamp clocks of hosts (RFC 7323 5.4). `smoltcp` takes a plain function for one, so the
//! virtual time lies in a variable of the thread, which each run sets before anything reads it.

use std::cell::Cell;

use smoltcp::wire::TcpTimestampGenerator;

use crate::MS;

thread_local! {
    static MILLISECONDS: Cell<u32> = const { Cell::new(0) };
}

/// Virtual time passes.
pub(crate) fn set(now: u64) {
    let milliseconds = now / MS % (1 << 32);
    MILLISECONDS.set(u32::try_from(milliseconds).unwrap_or(u32::MAX));
}

fn reading<const OFFSET: u32>() -> u32 {
    MILLISECONDS.get().wrapping_add(OFFSET)
}

/// Clocks that differ: one begins low, one is about to pass through the middle of the number
/// space and one through its end.
pub(crate) const CLOCKS: [TcpTimestampGenerator; 4] = [
    reading::<1>,
    reading::<0x7fff_fe00>,
    reading::<0xffff_fe00>,
    reading::<0x1234_5678>,
];
