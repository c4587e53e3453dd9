//! Hashes of blasts, by which two hosts compare their bytes, and of all data.

use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::Receiver,
    },
};

use blast::Layout;
use protocol::bulk::{BlastHash, ContentHash};

/// Bytes of a read.
const READ_LEN: usize = 256 << 10;

/// The hash of a blast of a file of this size.
///
/// # Errors
/// The file cannot be read, or is shorter.
pub(crate) fn of_blast(
    file: &File,
    layout: &Layout,
    size: u64,
    blast: u32,
) -> io::Result<BlastHash> {
    let start = layout.blast_position(blast);
    let end = (start + layout.blast_bytes()).min(size);
    let mut hasher = blake3::Hasher::new();
    update(&mut hasher, file, start..end, &AtomicBool::new(false))?;
    Ok(BlastHash(*hasher.finalize().as_bytes()))
}

/// The hash of all data, as far as the data is there: `below` tells positions below which all is, up to `size`. `None`:
/// nobody tells any more, or `gives_up` is set.
///
/// # Errors
/// The file cannot be read, or is shorter.
pub(crate) fn of_growing(
    file: &File,
    size: u64,
    below: &Receiver<u64>,
    gives_up: &AtomicBool,
) -> io::Result<Option<ContentHash>> {
    let mut hasher = blake3::Hasher::new();
    let mut done = 0;
    while done < size {
        let Ok(mut end) = below.recv() else {
            return Ok(None);
        };
        // Several threads tell: a lower position may come behind a higher one.
        end = below.try_iter().fold(end, u64::max);
        if !update(&mut hasher, file, done..end.min(size), gives_up)? {
            return Ok(None);
        }
        done = done.max(end.min(size));
    }
    Ok(Some(ContentHash(*hasher.finalize().as_bytes())))
}

/// False: `gives_up` was set.
fn update(
    hasher: &mut blake3::Hasher,
    file: &File,
    range: Range<u64>,
    gives_up: &AtomicBool,
) -> io::Result<bool> {
    let mut buffer = vec![0; READ_LEN];
    let mut position = range.start;
    while position < range.end {
        if gives_up.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let most = usize::try_from(range.end - position).unwrap_or(READ_LEN);
        let len = most.min(READ_LEN);
        file.read_exact_at(&mut buffer[..len], position)?;
        hasher.update(&buffer[..len]);
        position += u64::try_from(len).unwrap_or(0);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::{io::Write, sync::mpsc};

    use super::*;

    #[test]
    fn file_is_hashed_to_the_highest_reported_position() {
        let data: Vec<u8> = (0..700_000_u32).map(|it| it.to_le_bytes()[1]).collect();
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &data).unwrap();
        let size = data.len() as u64;
        let (tell, below) = std::sync::mpsc::channel();
        for position in [5, size, 300_000] {
            tell.send(position).unwrap();
        }
        drop(tell);
        let hash = of_growing(&file, size, &below, &AtomicBool::new(false)).unwrap();
        assert_eq!(hash, Some(ContentHash(*blake3::hash(&data).as_bytes())));
    }

    #[test]
    fn hash_of_a_growing_file_is_the_hash_of_the_file() {
        let data: Vec<u8> = (0..1_000_003_u32).map(|n| n.to_le_bytes()[0]).collect();
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&data).expect("space");
        let size = u64::try_from(data.len()).expect("a size");
        let (tell, below) = mpsc::channel();
        let never = AtomicBool::new(false);
        for position in [5, 5, 300_000, size] {
            tell.send(position).expect("a reader");
        }
        let hash = of_growing(&file, size, &below, &never).expect("readable");
        assert_eq!(hash, Some(ContentHash(*blake3::hash(&data).as_bytes())));
        drop(tell);
        assert_eq!(
            of_growing(&file, size, &below, &never).expect("readable"),
            None
        );
        assert_eq!(
            of_growing(&file, 0, &below, &never).expect("readable"),
            Some(ContentHash(*blake3::hash(b"").as_bytes()))
        );
        let layout = Layout::new(1000, 300).expect("sizes");
        let last = of_blast(&file, &layout, size, 3).expect("readable");
        assert_eq!(last.0, *blake3::hash(&data[900_000..]).as_bytes());
    }
}
