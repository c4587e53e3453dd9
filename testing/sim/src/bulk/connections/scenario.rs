//! A run by connections, drawn from a seed.

use blast::{Flaws, Layout};
use rand::{Rng, SeedableRng, rngs::SmallRng};

use crate::failure::Seeded;

/// Most bytes of a transfer.
const SIZE_MAX: u64 = 100_000;
/// Header and tag of a packet, bytes.
const PACKET_OVERHEAD: u64 = 40;
/// Calls of both ends until as many bytes have arrived as the largest call carries, about.
const STEPS_PER_CALL: u64 = 5;

/// A mistake in a transfer by connections. The run must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionFlaw {
    /// The sender sends blasts that the receiver has.
    PresentSent,
    /// The receiver takes a blast that another connection has begun.
    WrittenTwice,
    /// A blast counts as whole from its first packet on.
    BegunCounted,
}

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A connection breaks: both ends hear of it.
    Reset(usize),
    /// A connection ends early, and the receiver takes this for the end by the sender.
    Cut(usize),
    /// A wrong sender sends blasts on this connection that another connection has begun.
    Doubled(usize),
    SenderKilled,
    ReceiverKilled,
    /// The receiver's host loses power: blasts that its disk has not written have any content.
    PowerLost,
}

/// A run.
#[derive(Debug, Clone)]
pub struct ConnectionScenario {
    seed: u64,
    pub(super) layout: Layout,
    pub(super) size: u64,
    /// Connections that the sender opens.
    pub(super) connections: usize,
    /// Bytes that the sockets of both ends of a connection hold.
    pub(super) socket_bytes: usize,
    /// Most bytes of a call.
    pub(super) call_bytes: usize,
    /// Connections of a hundred that cannot be made.
    pub(super) refused: u32,
    /// Faults, by step.
    pub(super) faults: Vec<(u64, Fault)>,
    flaw: Option<ConnectionFlaw>,
}

impl ConnectionScenario {
    /// The run with this seed.
    ///
    /// # Panics
    /// A layout that is drawn is no layout.
    #[must_use]
    pub fn drawn_from(seed: u64) -> Self {
        let rng = &mut SmallRng::seed_from_u64(seed ^ 0x636f_6e6e_6563_7400);
        let packet_bytes = rng.random_range(1..=900);
        let packets = rng.random_range(1..=12);
        let layout = match Layout::new(packet_bytes, packets) {
            Ok(layout) => layout,
            Err(error) => panic!("{packet_bytes} and {packets}: {error}"),
        };
        let blasts = rng.random_range(0..60);
        let size = rng.random_range(0..=layout.blast_bytes() * blasts);
        let size = size.min(SIZE_MAX);
        let connections = rng.random_range(1..=5);
        let (socket_bytes, call_bytes) = (rng.random_range(1..20_000), rng.random_range(1..3000));
        let call = u64::try_from(call_bytes.min(socket_bytes)).unwrap_or(1);
        let packet_count = size.div_ceil(u64::from(packet_bytes));
        let bytes = size + packet_count * PACKET_OVERHEAD;
        let last = (bytes / call + 1) * STEPS_PER_CALL;
        let count = rng.random_range(0..6);
        let faults = (0..count).map(|_| {
            let connection = rng.random_range(0..connections);
            let fault = match rng.random_range(0..6) {
                0 => Fault::Doubled(connection),
                5 => Fault::Reset(connection),
                1 => Fault::Cut(connection),
                2 => Fault::SenderKilled,
                3 => Fault::ReceiverKilled,
                _ => Fault::PowerLost,
            };
            (rng.random_range(0..last), fault)
        });
        let mut faults: Vec<_> = faults.collect();
        faults.sort_by_key(|(step, _)| *step);
        Self {
            seed,
            layout,
            size,
            connections,
            socket_bytes,
            call_bytes,
            refused: if rng.random() { 30 } else { 0 },
            faults,
            flaw: None,
        }
    }

    /// The same run with a mistake.
    #[must_use]
    pub const fn flawed(mut self, flaw: ConnectionFlaw) -> Self {
        self.flaw = Some(flaw);
        self
    }

    pub(super) fn flaws(&self) -> Flaws {
        let has = |flaw| self.flaw == Some(flaw);
        Flaws {
            sends_present: has(ConnectionFlaw::PresentSent),
            takes_claimed: has(ConnectionFlaw::WrittenTwice),
            counts_begun: has(ConnectionFlaw::BegunCounted),
            ..Flaws::default()
        }
    }
}

impl Seeded for ConnectionScenario {
    fn seed(&self) -> u64 {
        self.seed
    }
}
