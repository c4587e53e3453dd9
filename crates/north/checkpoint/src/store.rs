//! Images on disk: a directory for each, named by its number, which is drawn when it is begun.
//!
//! Which one is in use stands in the record's memory, and only once it is whole ([`north_host::Memory::is_in_image`]):
//! whenever somebody is killed, the image that is named there is whole, and all others are rests. They hold whatever
//! the server knows: nobody but their owner may look at them.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use north_host::SnapshotTail;

use crate::manifest;

/// Of an image: what is not in it.
const RETAINED_DIRECTORY: &str = "kept";

/// Images of one service.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
}

/// An image that is whole, or is being made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Its number.
    pub number: u64,
    /// Where it is.
    pub directory: PathBuf,
}

impl Store {
    /// In this directory, which is made where it is missing.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(directory: PathBuf) -> io::Result<Self> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&directory)?;
        Ok(Self { directory })
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(name(number))
    }

    /// A place for a new image.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn begin(&self, number: u64) -> io::Result<Image> {
        let directory = self.path(number);
        DirBuilder::new().mode(0o700).create(&directory)?;
        Ok(Image { number, directory })
    }

    /// The image with this number, and what belongs to it.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    pub fn find(&self, number: u64) -> io::Result<(Image, SnapshotTail)> {
        let directory = self.path(number);
        let kept = fs::read(directory.join(RETAINED_DIRECTORY))?;
        let kept = SnapshotTail::from_bytes(&kept).map_err(io::Error::other)?;
        Ok((Image { number, directory }, kept))
    }

    /// Remove all but the one with this number.
    ///
    /// # Errors
    /// One stays.
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

    /// Remove all of them, and the directory if nothing else is in it.
    ///
    /// # Errors
    /// One stays.
    pub fn remove(self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if is_image(&path) {
                fs::remove_dir_all(path)?;
            }
        }
        let _ = fs::remove_dir(&self.directory); // not if something of others is in it
        Ok(())
    }
}

impl Image {
    /// Keep this with it.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn keep(&self, kept: &SnapshotTail) -> io::Result<()> {
        let mut file = File::create_new(self.directory.join(RETAINED_DIRECTORY))?;
        file.write_all(&kept.to_bytes())
    }

    /// Is it what it was when it was made?
    ///
    /// # Errors
    /// It is not, or cannot be read.
    pub fn check(&self) -> io::Result<()> {
        manifest::check(&self.directory)
    }

    /// How large it is, bytes.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for entry in fs::read_dir(&self.directory)? {
            bytes += entry?.metadata()?.len();
        }
        Ok(bytes)
    }
}

fn name(number: u64) -> String {
    format!("image-{number:016x}")
}

/// Whether this is the name of an image, exactly as this store writes names: any other directory is foreign.
fn is_image(path: &Path) -> bool {
    let found = path.file_name().and_then(|name| name.to_str());
    let digits = found.and_then(|name| name.strip_prefix("image-"));
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.is_some_and(|number| found == Some(&name(number)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

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
