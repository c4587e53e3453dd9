//! Invalidation of names and attributes in the kernel's cache.
//!
//! `FUSE_NOTIFY_INVAL_ENTRY` without flags would remove the name: from processes in such a directory, with all mounts
//! below. Here names only expire.

use std::{ffi::OsStr, fs::File, io::Write as _};

/// `FUSE_NOTIFY_INVAL_INODE`
const INVALID_INODE: i32 = 2;
/// `FUSE_NOTIFY_INVAL_ENTRY`
const INVALID_ENTRY: i32 = 3;
/// `FUSE_EXPIRE_ONLY`, since Linux 6.2.
const EXPIRE_ONLY: u32 = 1;

/// The FUSE device of a mounted file system.
#[derive(Debug)]
pub(crate) struct CacheInvalidator(File);

impl CacheInvalidator {
    pub(crate) fn new(device: File) -> Self {
        Self(device)
    }

    /// Expires a name in a directory.
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

    /// Expires the attributes of a node; cached content stays.
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
        // Errors do not matter: an unknown name is not cached, and an unmounted file system has no cache.
        let _ = (&self.0).write(&[header.as_flattened(), words].concat());
    }
}
