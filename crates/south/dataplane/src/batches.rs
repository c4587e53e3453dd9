//! Reading a hash map in pieces.
//!
//! The kernel hands out whole hash buckets. So a batch that is not full need not be the last: only
//! `ENOENT` marks the last. (libbpf-rs takes a batch that is not full for the last. A buffer for
//! all entries that a map can hold would do, too, but the allocation takes tens of milliseconds,
//! while clients wait.)

use std::{os::fd::AsRawFd, ptr};

use libbpf_rs::{Error, MapCore, libbpf_sys};

/// Entries for which there is room at first.
pub(crate) const ROOM: usize = 1024;

/// Calls `see` with the key and the value of each entry, except for entries that come or go
/// meanwhile.
pub(crate) fn each_entry(
    map: &impl MapCore,
    mut room: usize,
    mut see: impl FnMut(&[u8], &[u8]),
) -> Result<(), Error> {
    let size = |size: u32| usize::try_from(size).unwrap_or(usize::MAX);
    let (key_size, value_size) = (size(map.key_size()), size(map.value_size()));
    let (mut keys, mut values) = (vec![0; room * key_size], vec![0; room * value_size]);
    // The bucket from which to go on.
    let mut bucket: Option<u32> = None;
    loop {
        let mut next = 0_u32;
        let mut count = u32::try_from(room).unwrap_or(u32::MAX);
        let from = bucket.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: the buffers have space for `count` keys and as many values; the position in a
        // hash map is a `u32`. All buffers belong to this function, and live until the call
        // returns.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                from.cast(),
                (&raw mut next).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                ptr::null(),
            )
        };
        let last = match -result {
            0 => false,
            libc::ENOENT => true,
            libc::ENOSPC => {
                // One bucket has more entries than the buffer.
                room *= 2;
                keys.resize(room * key_size, 0);
                values.resize(room * value_size, 0);
                continue;
            }
            error => return Err(Error::from_raw_os_error(error)),
        };
        let entries = keys
            .chunks_exact(key_size)
            .zip(values.chunks_exact(value_size));
        for (key, value) in entries.take(size(count)) {
            see(key, value);
        }
        if last {
            return Ok(());
        }
        bucket = Some(next);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use libbpf_rs::{MapFlags, MapHandle, MapType};

    use super::*;

    #[test]
    fn all_entries_are_read_however_little_room_there_is() {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>()
                .try_into()
                .unwrap(),
            ..Default::default()
        };
        let map = MapHandle::create(MapType::Hash, Some("batches"), 4, 8, 4096, &options).unwrap();
        let mut expected = BTreeMap::new();
        for entries in [0_u32, 1, 3000] {
            for key in 0..entries {
                let value = u64::from(key) * 7;
                let bytes = value.to_ne_bytes();
                map.update(&key.to_ne_bytes(), &bytes, MapFlags::ANY)
                    .unwrap();
                expected.insert(key.to_ne_bytes().to_vec(), bytes.to_vec());
            }
            // Some buckets have more than one entry; all buckets together fit into the last size.
            for room in [1, 2, 7, 1024, 4096] {
                let mut found = BTreeMap::new();
                each_entry(&map, room, |key, value| {
                    let before = found.insert(key.to_vec(), value.to_vec());
                    assert_eq!(before, None, "{key:?} twice");
                })
                .unwrap();
                assert_eq!(found, expected, "room for {room}");
            }
        }
    }
}
