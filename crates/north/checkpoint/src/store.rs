//! Images on disk: a directory for each image, named by a random number.
//!
//! The memory of the record names the image in use, and only after the image is complete
//! ([`north_host::Memory::is_in_image`]). At any death the named image is complete, and all other images are
//! leftovers. Images contain all data of the server: only the owner has access.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use north_host::SnapshotTail;

use crate::manifest;

/// File of an image with the [`SnapshotTail`].
const RETAINED_DIRECTORY: &str = "kept";
/// Beginnings of the names of directories: of an image, and of an image that is not needed yet.
const IMAGE_PREFIX: &str = "image-";
const ARRIVAL_PREFIX: &str = "arrival-";

/// Images of one service.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
}

/// An image, complete or in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Number of the image.
    pub number: u64,
    /// Directory of the image.
    pub directory: PathBuf,
}

impl Store {
    /// Opens the store in this directory, and makes a missing directory.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new(directory: PathBuf) -> io::Result<Self> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&directory)?;
        Ok(Self { directory })
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(name(number))
    }

    /// Makes the directory of a new image.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn begin(&self, number: u64) -> io::Result<Image> {
        let directory = self.path(number);
        DirBuilder::new().mode(0o700).create(&directory)?;
        Ok(Image { number, directory })
    }

    /// A place for an image that comes from another host before it is needed. An earlier arrival is removed.
    ///
    /// # Errors
    /// The directory cannot be made, or a file of the earlier arrival cannot be removed.
    pub fn begin_arrival(&self, number: u64) -> io::Result<Image> {
        self.remove_arrivals()?;
        let directory = self
            .directory
            .join(format!("{ARRIVAL_PREFIX}{number:016x}"));
        DirBuilder::new().mode(0o700).create(&directory)?;
        Ok(Image { number, directory })
    }

    /// The arrived image becomes an image of the store.
    ///
    /// # Errors
    /// There is no such arrival.
    pub fn take_arrival(&self, number: u64) -> io::Result<()> {
        let arrival = format!("{ARRIVAL_PREFIX}{number:016x}");
        fs::rename(self.directory.join(arrival), self.path(number))
    }

    /// Bytes that images may still get.
    ///
    /// # Errors
    /// The file system does not tell.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.directory)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Removes what has arrived and is not needed.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove_arrivals(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if is_arrival(&path) {
                fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    }

    /// The image with this number, and the snapshot tail.
    ///
    /// # Errors
    /// The image does not exist, or cannot be read.
    pub fn find(&self, number: u64) -> io::Result<(Image, SnapshotTail)> {
        let directory = self.path(number);
        let kept = fs::read(directory.join(RETAINED_DIRECTORY))?;
        let kept = SnapshotTail::from_bytes(&kept).map_err(io::Error::other)?;
        Ok((Image { number, directory }, kept))
    }

    /// Removes all images except the image with this number.
    ///
    /// # Errors
    /// An image cannot be removed.
    pub fn remove_others(&self, number: u64) -> io::Result<()> {
        let keep = self.path(number);
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path != keep && is_image(&path) {
                fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    }

    /// Removes all images, and the directory if nothing else remains.
    ///
    /// # Errors
    /// An image cannot be removed.
    pub fn remove(self) -> io::Result<()> {
        self.remove_arrivals()?;
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if is_image(&path) {
                fs::remove_dir_all(path)?;
            }
        }
        let _ = fs::remove_dir(&self.directory); // fails if foreign files remain
        Ok(())
    }
}

impl Image {
    /// Stores the snapshot tail with the image.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&self, kept: &SnapshotTail) -> io::Result<()> {
        let mut file = File::create_new(self.directory.join(RETAINED_DIRECTORY))?;
        file.write_all(&kept.to_bytes())
    }

    /// Compares the image with the manifest.
    ///
    /// # Errors
    /// The image has changed, or cannot be read.
    pub fn check(&self) -> io::Result<()> {
        manifest::check(&self.directory)
    }

    /// Size of the image, bytes.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for entry in fs::read_dir(&self.directory)? {
            bytes += entry?.metadata()?.len();
        }
        Ok(bytes)
    }
}

fn name(number: u64) -> String {
    format!("{IMAGE_PREFIX}{number:016x}")
}

/// Whether this is the name of an image, exactly as this store writes names: any other directory is foreign.
fn is_image(path: &Path) -> bool {
    has_number_after(path, IMAGE_PREFIX)
}

fn is_arrival(path: &Path) -> bool {
    has_number_after(path, ARRIVAL_PREFIX)
}

fn has_number_after(path: &Path, prefix: &str) -> bool {
    let found = path.file_name().and_then(|name| name.to_str());
    let digits = found.and_then(|name| name.strip_prefix(prefix));
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.is_some_and(|number| found == Some(&format!("{prefix}{number:016x}")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn arrival_is_an_image_once_it_is_taken() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::new(directory.path().join("images")).expect("a store");
        let kept = SnapshotTail::default();
        for number in [3, 4] {
            let arrival = store.begin_arrival(number).expect("a place");
            arrival.keep(&kept).expect("kept");
        }
        store.remove_others(0).expect("removed");
        assert!(
            store.take_arrival(3).is_err(),
            "another image has arrived since"
        );
        assert!(store.find(4).is_err(), "it is not taken");
        store.take_arrival(4).expect("it has arrived");
        assert_eq!(store.find(4).expect("it is there").1, kept);
        store.begin_arrival(5).expect("a place");
        store.remove().expect("removed");
        assert!(!directory.path().join("images").exists());
    }

    #[test]
    fn unused_images_are_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = directory.path().join("images");
        let store = Store::new(at.clone()).expect("a store");
        let kept = SnapshotTail::default();
        for number in [1, u64::MAX, 7] {
            let image = store.begin(number).expect("an image");
            let mode = fs::metadata(&image.directory).expect("it is there");
            assert_eq!(mode.permissions().mode() & 0o777, 0o700);
            assert!(store.find(number).is_err(), "it is not whole");
            image.keep(&kept).expect("kept");
        }
        let others = ["image-of-somebody", "image-7", "image-+000000000000007"];
        for name in others {
            fs::write(at.join(name), "else").expect("written");
        }
        store.remove_others(7).expect("removed");
        assert!(store.find(1).is_err() && store.find(u64::MAX).is_err());
        assert_eq!(store.find(7).expect("it is there").1, kept);
        store.remove().expect("removed");
        assert_eq!(
            fs::read_dir(&at).expect("it is there").count(),
            others.len()
        );
    }
}
