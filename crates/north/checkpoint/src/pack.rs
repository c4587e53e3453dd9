//! An image as a single byte stream for the transfer to another host: the files in a row, the manifest last.
//!
//! ```text
//! u16    length of the name
//! u64    length of the file
//! bytes  name
//! bytes  file
//! ```

use std::{
    fs::File,
    io::{self, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use crc32fast::Hasher;

use crate::{
    manifest::{self, Sum},
    store::Image,
};

/// Size of the two lengths of a header.
const LENGTHS_BYTES: usize = 2 + 8;

/// A complete image for reading.
#[derive(Debug)]
pub struct Pack {
    files: Vec<Packed>,
    length: u64,
}

/// A file of the image.
#[derive(Debug)]
struct Packed {
    /// Start in the pack.
    begin: u64,
    /// End in the pack.
    end: u64,
    header: Vec<u8>,
    path: PathBuf,
}

impl Packed {
    /// Reads bytes of the file from offset `from` of the pack, as many as remain and fit into `into`. Returns the
    /// number of bytes.
    fn read(&self, from: u64, into: &mut [u8]) -> io::Result<usize> {
        let at = from - self.begin;
        let header = usize::try_from(at)
            .ok()
            .and_then(|at| self.header.get(at..));
        if let Some(rest) = header.filter(|rest| !rest.is_empty()) {
            let length = rest.len().min(into.len());
            into[..length].copy_from_slice(&rest[..length]);
            return Ok(length);
        }
        let left = usize::try_from(self.end - from).unwrap_or(usize::MAX);
        let length = left.min(into.len());
        let file = File::open(&self.path)?;
        file.read_exact_at(&mut into[..length], at - self.header.len() as u64)?;
        Ok(length)
    }
}

impl Pack {
    /// Packs an image.
    ///
    /// # Errors
    /// The manifest cannot be read.
    pub fn of(image: &Image) -> io::Result<Self> {
        Self::of_files(&image.directory, manifest::files(&image.directory)?)
    }

    /// Packs these files of a directory; each file comes with a length.
    pub(crate) fn of_files(directory: &Path, named: Vec<(String, u64)>) -> io::Result<Self> {
        let mut files = Vec::new();
        let mut begin = 0;
        for (name, length) in named {
            let header = header(&name, length)?;
            let whole = length.checked_add(header.len() as u64);
            let end = whole.and_then(|whole| whole.checked_add(begin));
            let end = end.ok_or_else(|| malformed("an image is too long".to_owned()))?;
            files.push(Packed {
                begin,
                end,
                header,
                path: directory.join(&name),
            });
            begin = end;
        }
        Ok(Self {
            files,
            length: begin,
        })
    }

    /// Length of the pack, bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// At most `most` bytes from this offset, fewer at the end.
    ///
    /// # Errors
    /// A file cannot be read, or is shorter than before.
    pub fn read(&self, from: u64, most: usize) -> io::Result<Vec<u8>> {
        let left = usize::try_from(self.length.saturating_sub(from)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; most.min(left)];
        let mut filled = 0;
        while filled < bytes.len() {
            let at = from + filled as u64;
            let next = self.files.partition_point(|file| file.end <= at);
            let file = self.files.get(next).ok_or(io::ErrorKind::UnexpectedEof)?;
            filled += file.read(at, &mut bytes[filled..])?;
        }
        Ok(bytes)
    }
}

fn malformed(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

pub(crate) fn header(name: &str, length: u64) -> io::Result<Vec<u8>> {
    let named = u16::try_from(name.len()).map_err(io::Error::other)?;
    let lengths = [&named.to_le_bytes()[..], &length.to_le_bytes()];
    Ok([&lengths.concat(), name.as_bytes()].concat())
}

/// An image that arrives from another host.
#[derive(Debug)]
pub struct Unpack {
    image: Image,
    /// Received bytes of an incomplete header.
    header: Vec<u8>,
    /// The file that is being written.
    file: Option<Arriving>,
    /// The files up to now.
    taken: Vec<(String, Sum)>,
}

/// A file of an image that arrives.
#[derive(Debug)]
struct Arriving {
    file: File,
    name: String,
    length: u64,
    /// Number of missing bytes.
    left: u64,
    /// Of the bytes before.
    hasher: Hasher,
}

impl Arriving {
    /// Writes bytes of the file. Returns the bytes behind the file.
    fn take<'a>(&mut self, bytes: &'a [u8]) -> io::Result<&'a [u8]> {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let (now, rest) = bytes.split_at(left.min(bytes.len()));
        self.file.write_all(now)?;
        self.hasher.update(now);
        self.left -= now.len() as u64;
        Ok(rest)
    }

    fn into_taken(self) -> (String, Sum) {
        (self.name, (self.length, self.hasher.finalize()))
    }
}

impl Unpack {
    /// Unpacks into this directory, which must be empty.
    #[must_use]
    pub fn into(image: Image) -> Self {
        Self {
            image,
            header: Vec::new(),
            file: None,
            taken: Vec::new(),
        }
    }

    /// Writes the next bytes.
    ///
    /// # Errors
    /// The bytes are not a pack, or a file cannot be written.
    pub fn take(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            bytes = match &mut self.file {
                Some(file) => file.take(bytes)?,
                None => self.take_header(bytes)?,
            };
            let whole = self.file.take_if(|file| file.left == 0);
            self.taken.extend(whole.map(Arriving::into_taken));
        }
        Ok(())
    }

    /// Takes bytes of a header. Returns the rest.
    fn take_header<'a>(&mut self, bytes: &'a [u8]) -> io::Result<&'a [u8]> {
        let missing = match self.header.split_first_chunk::<2>() {
            Some((named, _)) => LENGTHS_BYTES + usize::from(u16::from_le_bytes(*named)),
            None => 2,
        } - self.header.len();
        let (now, rest) = bytes.split_at(missing.min(bytes.len()));
        self.header.extend_from_slice(now);
        if let Some((named, more)) = self.header.split_first_chunk::<2>()
            && let Some((length, name)) = more.split_first_chunk()
            && name.len() == usize::from(u16::from_le_bytes(*named))
        {
            let (name, length) = (plain(name)?.to_owned(), u64::from_le_bytes(*length));
            if length > manifest::MAX_FILE_BYTES {
                return Err(malformed(format!("an image has a file of {length} bytes")));
            }
            let file = File::create_new(self.image.directory.join(&name))?;
            self.file = Some(Arriving {
                file,
                name,
                length,
                left: length,
                hasher: Hasher::new(),
            });
            self.header.clear();
        }
        Ok(rest)
    }

    /// Ends the transfer, and checks the image.
    ///
    /// # Errors
    /// The image is incomplete, or differs from the manifest.
    pub fn finish(self) -> io::Result<Image> {
        if self.file.is_some() || !self.header.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        manifest::check_arrived(&self.image.directory, &self.taken)?;
        Ok(self.image)
    }
}

/// Checks the name of a file: the name must stay in the image's directory.
fn plain(name: &[u8]) -> io::Result<&str> {
    let text = std::str::from_utf8(name).ok();
    let plain = text.filter(|name| manifest::is_name(name) || *name == manifest::MANIFEST_FILE);
    plain.ok_or_else(|| {
        let name = String::from_utf8_lossy(name);
        malformed(format!("an image has a file {name:?}"))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::Store;

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::new(directory.path().to_owned()).expect("a store");
        (directory, store)
    }

    fn packed() -> (tempfile::TempDir, Vec<u8>) {
        let (directory, store) = store();
        let image = store.begin(1).expect("an image");
        let pages: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        for (name, bytes) in [("pages", &pages[..]), ("empty", b""), ("a b", b"kept")] {
            fs::write(image.directory.join(name), bytes).expect("written");
        }
        manifest::write(&image.directory).expect("noted");
        fs::write(image.directory.join("restore.log"), "of a try").expect("written");
        let pack = Pack::of(&image).expect("a pack");
        let all = pack.read(0, usize::MAX).expect("read");
        assert_eq!(all.len() as u64, pack.length());
        for from in [0, 1, 9, 10, 11, 500, all.len() - 3, all.len()] {
            for most in [0, 1, 7, 5000, usize::MAX] {
                let piece = pack.read(from as u64, most).expect("read");
                assert!(piece == all[from..][..most.min(all.len() - from)]);
            }
        }
        (directory, all)
    }

    #[test]
    fn image_survives_transfer_in_any_pieces() {
        let (_kept, all) = packed();
        for piece in [1, 7, 1000, 65_536, all.len()] {
            let (_directory, store) = store();
            let mut unpack = Unpack::into(store.begin(1).expect("an image"));
            for bytes in all.chunks(piece) {
                unpack.take(bytes).expect("taken");
            }
            let image = unpack.finish().expect("whole");
            let pack = Pack::of(&image).expect("a pack");
            assert!(pack.read(0, usize::MAX).expect("read") == all);
            assert!(!image.directory.join("restore.log").exists());
        }
    }

    #[test]
    fn truncated_or_changed_image_is_refused() {
        let (_kept, all) = packed();
        let is_image = |bytes: &[u8]| {
            let (_directory, store) = store();
            let mut unpack = Unpack::into(store.begin(1).expect("an image"));
            unpack.take(bytes).and_then(|()| unpack.finish()).is_ok()
        };
        assert!(is_image(&all));
        for cut in (0..all.len())
            .step_by(4099)
            .chain(all.len() - 30..all.len())
        {
            assert!(!is_image(&all[..cut]), "cut at {cut}");
        }
        for at in (0..all.len()).step_by(10_007) {
            let mut changed = all.clone();
            changed[at] ^= 1;
            assert!(!is_image(&changed), "changed at {at}");
        }
    }

    #[test]
    fn paths_outside_directory_are_refused() {
        for name in ["../x", "/x", "..", ".", "", "a/b", "a/", "a\n", "a\0"] {
            let (directory, store) = store();
            let mut unpack = Unpack::into(store.begin(1).expect("an image"));
            let bytes = header(name, 1).expect("a header");
            assert!(
                unpack.take(&[&bytes[..], b"x"].concat()).is_err(),
                "{name:?}"
            );
            assert!(!directory.path().join("x").exists());
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let files = |lengths: &[u64]| {
            let named = lengths.iter().map(|length| ("a".to_owned(), *length));
            Pack::of_files(directory.path(), named.collect())
        };
        files(&[manifest::MAX_FILE_BYTES]).expect("it could be");
        assert!(files(&[manifest::MAX_FILE_BYTES; 3]).is_err());
        assert!(files(&[u64::MAX]).is_err());
        for length in [manifest::MAX_FILE_BYTES + 1, u64::MAX] {
            let mut unpack = Unpack::into(Image {
                number: 1,
                directory: directory.path().to_owned(),
            });
            let bytes = header("a", length).expect("a header");
            assert!(unpack.take(&bytes).is_err(), "{length}");
        }
    }

    #[test]
    fn file_outside_manifest_is_refused() {
        let (_kept, all) = packed();
        let (_directory, store) = store();
        let mut unpack = Unpack::into(store.begin(1).expect("an image"));
        let more = header("more", 1).expect("a header");
        for bytes in [&all[..], &more, b"x"] {
            unpack.take(bytes).expect("taken");
        }
        assert!(unpack.finish().is_err());
    }
}
