//! Holes of files: blasts without data are not sent.

use std::{fs::File, io};

use blast::{BlastRanges, Layout};
use rustix::{
    fs::{FallocateFlags, SeekFrom, fallocate, seek},
    io::Errno,
};

/// Blasts of a file of this size that have some data.
///
/// # Errors
/// The file cannot be examined.
pub(crate) fn blasts_with_data(file: &File, layout: &Layout, size: u64) -> io::Result<BlastRanges> {
    let mut blasts = BlastRanges::new();
    let mut position = 0;
    while position < size {
        let start = match seek(file, SeekFrom::Data(position)) {
            Ok(start) if start < size => start,
            Ok(_) | Err(Errno::NXIO) => break,
            // No support for holes, as of a device: all is data.
            Err(Errno::INVAL) => position,
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        let first = number_at(layout, start);
        blasts.insert(first, number_at(layout, end.max(start + 1) - 1) + 1);
        position = end.max(start + 1);
    }
    Ok(blasts)
}

/// Blasts below `count` that are in no range.
pub(crate) fn complement(of: &BlastRanges, count: u32) -> BlastRanges {
    let mut others = BlastRanges::new();
    let mut next = 0;
    for (first, end) in of.iter() {
        others.insert(next, first.min(count));
        next = end;
    }
    others.insert(next, count);
    others
}

/// Makes holes of the blasts of a file of this size.
///
/// # Errors
/// The file system cannot.
pub(crate) fn punch(
    file: &File,
    layout: &Layout,
    size: u64,
    blasts: &BlastRanges,
) -> io::Result<()> {
    for (first, end) in blasts.iter() {
        let start = layout.blast_position(first);
        let end = layout.blast_position(end).min(size);
        if end > start {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, flags, start, end - start)?;
        }
    }
    Ok(())
}

fn number_at(layout: &Layout, position: u64) -> u32 {
    u32::try_from(position / layout.blast_bytes()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn holes_of_a_sparse_file_are_the_blasts_without_data() {
        let layout = Layout::new(4096, 16).expect("sizes");
        let file = tempfile::tempfile().expect("a file");
        let blast = layout.blast_bytes();
        file.set_len(10 * blast).expect("a size");
        file.write_all_at(b"x", 3 * blast + 5).expect("space");
        file.write_all_at(&[1; 8192], 7 * blast - 4096)
            .expect("space");
        let with_data = blasts_with_data(&file, &layout, 10 * blast).expect("readable");
        assert_eq!(with_data.iter().collect::<Vec<_>>(), [(3, 4), (6, 8)]);
        let holes = complement(&with_data, 10);
        assert_eq!(holes.iter().collect::<Vec<_>>(), [(0, 3), (4, 6), (8, 10)]);
        let mut punched = BlastRanges::new();
        punched.insert(6, 7);
        punch(&file, &layout, 10 * blast, &punched).expect("holes");
        let with_data = blasts_with_data(&file, &layout, 10 * blast).expect("readable");
        assert_eq!(with_data.iter().collect::<Vec<_>>(), [(3, 4), (7, 8)]);
    }
}
