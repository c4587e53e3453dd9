//! The timestamp of the paper (TRODS 4.2): index 7 bits, objectISN 5 bits, objectID 20 bits.
//!
//! The index counts packets, and 128 packets may be outstanding. PAWS accepts values that are ahead by less than half
//! of the space, 64 packets: a loss with more packets in flight makes the client refuse all packets behind the loss.
//! `tests/plane/paws.rs` finds that.

/// Outstanding packets, and entries of the table that keeps round trips right.
pub const MAX_OUTSTANDING: u8 = 128;
const INDEX_SHIFT: u32 = 25;

/// The server's timestamps behind the last 128 packets.
#[derive(Debug, Clone)]
pub struct PaperTable {
    tsvals: [u32; MAX_OUTSTANDING as usize],
    next: u8,
}

impl Default for PaperTable {
    fn default() -> Self {
        Self {
            tsvals: [0; MAX_OUTSTANDING as usize],
            next: 0,
        }
    }
}

impl PaperTable {
    /// The value of the next packet. `object` is objectISN and objectID, 25 bits.
    pub fn assign(&mut self, tsval: u32, object: u32) -> u32 {
        let index = self.next;
        self.next = (index + 1) % MAX_OUTSTANDING;
        self.tsvals[usize::from(index)] = tsval;
        (u32::from(index) << INDEX_SHIFT) | (object & ((1 << INDEX_SHIFT) - 1))
    }

    /// The server's TSval of the packet with this value.
    #[must_use]
    pub const fn on_echo(&self, value: u32) -> u32 {
        self.tsvals[(value >> INDEX_SHIFT) as usize]
    }
}
