/// A set of packets of one blast.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PacketSet {
    words: Vec<u64>,
    /// Packets of the blast.
    capacity: u16,
    len: u16,
}

const WORD_BITS: u16 = 64;

impl PacketSet {
    /// No packet of a blast of `capacity` packets.
    #[must_use]
    pub fn empty(capacity: u16) -> Self {
        let words = vec![0; usize::from(capacity.div_ceil(WORD_BITS))];
        Self {
            words,
            capacity,
            len: 0,
        }
    }

    /// All packets of a blast of `capacity` packets.
    #[must_use]
    pub fn full(capacity: u16) -> Self {
        let mut set = Self::empty(capacity);
        set.words.fill(u64::MAX);
        if let Some(last) = set.words.last_mut() {
            *last >>= (WORD_BITS - capacity % WORD_BITS) % WORD_BITS;
        }
        set.len = capacity;
        set
    }

    /// Packets of the blast, in the set or not.
    #[must_use]
    pub const fn capacity(&self) -> u16 {
        self.capacity
    }

    /// Packets in the set.
    #[must_use]
    pub const fn len(&self) -> u16 {
        self.len
    }

    /// No packet is in the set.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All packets of the blast are in the set.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.len == self.capacity
    }

    /// Whether the packet is in the set. A packet beyond the blast is not.
    #[must_use]
    pub fn contains(&self, packet: u16) -> bool {
        let word = self.words.get(word_of(packet)).copied().unwrap_or(0);
        word & bit_of(packet) != 0
    }

    /// Adds a packet. Returns whether the packet is new.
    ///
    /// # Panics
    /// If the blast has no such packet.
    pub fn insert(&mut self, packet: u16) -> bool {
        assert!(packet < self.capacity, "the blast has the packet");
        let is_new = !self.contains(packet);
        self.words[word_of(packet)] |= bit_of(packet);
        self.len += u16::from(is_new);
        is_new
    }

    /// Takes a packet out. Returns whether the packet was there.
    pub fn remove(&mut self, packet: u16) -> bool {
        let is_there = self.contains(packet);
        if is_there {
            self.words[word_of(packet)] &= !bit_of(packet);
            self.len -= 1;
        }
        is_there
    }

    /// Takes all packets out.
    pub fn clear(&mut self) {
        self.words.fill(0);
        self.len = 0;
    }

    /// Keeps the packets that are in both sets. Returns the number of packets that went.
    pub fn intersect(&mut self, other: &Self) -> u16 {
        let before = self.len;
        let others = other.words.iter().copied().chain(std::iter::repeat(0));
        for (word, other) in self.words.iter_mut().zip(others) {
            *word &= other;
        }
        self.count();
        before - self.len
    }

    /// Adds all packets of a set of the same blast.
    ///
    /// # Panics
    /// If the blasts have different numbers of packets.
    pub fn union(&mut self, other: &Self) {
        assert_eq!(self.capacity, other.capacity, "the same blast");
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
        self.count();
    }

    /// The first packet of the set that is not below `packet`.
    #[must_use]
    pub fn first_from(&self, packet: u16) -> Option<u16> {
        let mut at = word_of(packet);
        let mut word = *self.words.get(at)? & !(bit_of(packet) - 1);
        while word == 0 {
            at += 1;
            word = *self.words.get(at)?;
        }
        let below = u32::try_from(at).ok()? * u32::from(WORD_BITS);
        u16::try_from(below + word.trailing_zeros()).ok()
    }

    /// The highest packet of the set.
    #[must_use]
    pub fn last(&self) -> Option<u16> {
        let (at, word) = self.words.iter().enumerate().rfind(|(_, w)| **w != 0)?;
        let below = u32::try_from(at).ok()? * u32::from(WORD_BITS);
        u16::try_from(below + word.ilog2()).ok()
    }

    /// The packets of the set, ascending.
    #[must_use]
    pub fn iter(&self) -> Packets<'_> {
        Packets { set: self, next: 0 }
    }

    /// Appends the set: 8 packets in a byte, the first packet in the lowest bit.
    pub(super) fn write_bytes(&self, out: &mut Vec<u8>) {
        let end = out.len() + usize::from(self.capacity.div_ceil(8));
        for word in &self.words {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.truncate(end);
    }

    /// Reads `capacity` packets. `None` if a packet beyond the blast is in the set.
    pub(super) fn from_bytes(capacity: u16, bytes: &[u8]) -> Option<Self> {
        let mut set = Self::empty(capacity);
        for (word, bytes) in set.words.iter_mut().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(padded);
        }
        let allowed = Self::full(capacity);
        let is_within = |(word, allowed): (&u64, &u64)| word & !allowed == 0;
        if !set.words.iter().zip(&allowed.words).all(is_within) {
            return None;
        }
        set.count();
        Some(set)
    }

    fn count(&mut self) {
        let ones: u32 = self.words.iter().map(|word| word.count_ones()).sum();
        // At most `capacity`: no bit beyond is ever set.
        self.len = u16::try_from(ones).unwrap_or(self.capacity);
    }
}

fn word_of(packet: u16) -> usize {
    usize::from(packet / WORD_BITS)
}

const fn bit_of(packet: u16) -> u64 {
    1 << (packet % WORD_BITS)
}

/// [`PacketSet::iter`].
#[derive(Debug)]
pub struct Packets<'a> {
    set: &'a PacketSet,
    next: u16,
}

impl Iterator for Packets<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        let packet = self.set.first_from(self.next)?;
        self.next = packet + 1;
        Some(packet)
    }
}

impl<'a> IntoIterator for &'a PacketSet {
    type Item = u16;
    type IntoIter = Packets<'a>;

    fn into_iter(self) -> Packets<'a> {
        self.iter()
    }
}
