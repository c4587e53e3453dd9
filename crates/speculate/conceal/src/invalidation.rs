//! Telling the kernel that a name is to be looked up again, and attributes are to be asked for.
//!
//! What the library offers for that (`FUSE_NOTIFY_INVAL_ENTRY` without flags) takes the name away: from who is in such
//! a directory, and with all that is mounted below. Here it is only said that what is known of it is old.

use std::{ffi::OsStr, fs::File, io::Write as _};

/// `FUSE_NOTIFY_INVAL_INODE`
const INVALID_INODE: i32 = 2;
/// `FUSE_NOTIFY_INVAL_ENTRY`
const INVALID_ENTRY: i32 = 3;
/// `FUSE_EXPIRE_ONLY`, since Linux 6.2.
const EXPIRE_ONLY: u32 = 1;

/// The kernel's side of a file system.
#[derive(Debug)]
pub(crate) struct CacheInvalidator(File);

impl CacheInvalidator {
    pub(crate) fn new(device: File) -> Self {
        Self(device)
    }

    /// What that name in the directory of this number stands for is to be asked for again.
    pub(crate) fn expire(&self, parent: u64, name: &OsStr) {
        let name = name.as_encoded_bytes();
        let Ok(length) = u32::try_from(name.len()) else {
            return;
        };
        // `struct fuse_notify_inval_entry_out`, the name and a zero.
        let mut words = Vec::with_capacity(name.len() + 17);
        words.extend(parent.to_ne_bytes());
        words.extend(length.to_ne_bytes());
        words.extend(EXPIRE_ONLY.to_ne_bytes());
        words.extend(name);
        words.push(0);
        self.say(INVALID_ENTRY, &words);
    }

    /// What the attributes of this number are is to be asked again; what was read of it stays.
    pub(crate) fn outdate(&self, number: u64) {
        // `struct fuse_notify_inval_inode_out`: an offset below 0 is for attributes alone.
        let words = [number.to_ne_bytes(), (-1_i64).to_ne_bytes(), [0; 8]];
        self.say(INVALID_INODE, &words.concat());
    }

    fn say(&self, what: i32, words: &[u8]) {
        let Ok(length) = u32::try_from(words.len() + 16) else {
            return;
        };
        // `struct fuse_out_header`
        let header = [length.to_ne_bytes(), what.to_ne_bytes(), [0; 4], [0; 4]];
        // What it does not know it need not forget; and who is gone knows nothing.
        let _ = (&self.0).write(&[header.as_flattened(), words].concat());
    }
}
