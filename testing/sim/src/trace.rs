//! The events of a run, line by line on standard error, when `OUTLIVE_SIM_TRACE` is set. The trace does not change the
//! run.

use std::{fmt::Display, sync::OnceLock};

use wire::{IpPacket, Segment};

fn wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| std::env::var_os("OUTLIVE_SIM_TRACE").is_some())
}

/// Something happens.
pub(crate) fn note<T: Display>(now: u64, what: impl FnOnce() -> T) {
    if wanted() {
        eprintln!("{:>12} us  {}", now / 1000, what());
    }
}

/// A packet passes.
pub(crate) fn packet(now: u64, place: &str, bytes: &[u8]) {
    note(now, || {
        let Ok(packet) = IpPacket::parse(bytes) else {
            return format!("{place}: no packet");
        };
        let Ok(segment) = Segment::of(&packet) else {
            return format!("{place}: no segment");
        };
        let (source, destination) = (segment.source_port(), segment.destination_port());
        let stamps = segment.timestamps().map_or_else(String::new, |stamps| {
            format!(" stamps {} {}", stamps.value, stamps.echo)
        });
        format!(
            "{place}: {source} > {destination} seq {} ack {} flags {:02x} window {} payload {}{stamps}",
            segment.seq(),
            segment.ack(),
            segment.flags().bits(),
            segment.window(),
            segment.payload_len(),
        )
    });
}
