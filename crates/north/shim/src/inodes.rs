//! A set of files, by inode.

/// At most `MOST` inodes, each once.
pub(crate) struct Inodes<const MOST: usize> {
    inodes: [u64; MOST],
    count: usize,
}

impl<const MOST: usize> Default for Inodes<MOST> {
    fn default() -> Self {
        Self {
            inodes: [0; MOST],
            count: 0,
        }
    }
}

impl<const MOST: usize> Inodes<MOST> {
    /// Adds an inode. `false`: the set is full.
    pub(crate) fn add(&mut self, inode: u64) -> bool {
        if self.has(inode) {
            return true;
        }
        let place = self.inodes.get_mut(self.count);
        let fits = place.map(|place| *place = inode).is_some();
        self.count += usize::from(fits);
        fits
    }

    pub(crate) fn forget(&mut self, inode: u64) {
        if let Some(place) = self.all().iter().position(|known| *known == inode) {
            self.count -= 1;
            self.inodes.swap(place, self.count);
        }
    }

    pub(crate) fn all(&self) -> &[u64] {
        &self.inodes[..self.count]
    }

    /// 0 is no file.
    pub(crate) fn has(&self, inode: u64) -> bool {
        inode != 0 && self.all().contains(&inode)
    }
}
