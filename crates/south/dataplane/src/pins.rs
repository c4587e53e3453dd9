//! Pins of programs, links and maps, which outlive the process of `serve`.
//!
//! `<bpffs>/outlive/replay-v<layout>/<service>/`: mode and layout version are parts of the path. So
//! a later version of `outlive` never adopts maps of an unknown layout. Maps of the former layout
//! are migrated (`object/migration.rs`).

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{error::DataplaneError, step::begin_step};

/// Version of the layout of `bpf/intf` (`LAYOUT_VERSION` there; a test compares the two). The feature `next-version`
/// builds the version after this.
pub const LAYOUT_VERSION: u32 = 15 + if cfg!(feature = "next-version") { 1 } else { 0 };

/// The oldest layout that any version of this program adopts: of older layouts, the meaning of members has changed
/// under the same name.
const FIRST_ADOPTED_LAYOUT: u32 = 15;

/// The oldest layout that this version adopts: the former layout.
const OLDEST_LAYOUT: u32 = if LAYOUT_VERSION > FIRST_ADOPTED_LAYOUT {
    LAYOUT_VERSION - 1
} else {
    LAYOUT_VERSION
};

/// The format, for lists of versions.
pub const FORMAT: types::Format = types::Format {
    name: "BPF maps",
    version: LAYOUT_VERSION,
    oldest: OLDEST_LAYOUT,
};

/// Directory of the mode `replay`, without the version.
const LAYOUT_PREFIX: &str = "replay-v";
/// The same while pins are not complete.
const STAGED_PREFIX: &str = "staged-v";

/// Most addresses of a service, each port of a range counted (`MOST_ADDRESSES` in `bpf/intf`; a test compares the
/// two).
pub const MOST_ADDRESSES: usize = 1024;

/// Services that may end one after another while the directory of another service is made.
const MOST_ENDS: u32 = 100;

/// The directory that holds the pins of one service.
#[derive(Debug, Clone)]
pub struct PinDirectory(PathBuf);

impl PinDirectory {
    /// The directory of `service` under a mounted bpffs. Nothing is created.
    #[must_use]
    pub fn new(bpffs: &Path, service: &str) -> Self {
        Self(
            bpffs
                .join("outlive")
                .join(format!("{LAYOUT_PREFIX}{LAYOUT_VERSION}"))
                // bpffs keeps names with a dot for itself; no service's name has a colon.
                .join(service.replace('.', ":")),
        )
    }

    /// A directory whose path is known.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// The directory of the same service in the layout before, if this version adopts that layout.
    #[must_use]
    pub fn former(&self) -> Option<Self> {
        let has_former = OLDEST_LAYOUT < LAYOUT_VERSION;
        has_former.then(|| self.beside(&format!("{LAYOUT_PREFIX}{OLDEST_LAYOUT}")))
    }

    /// Where pins are made that no `serve` adopts yet.
    pub(crate) fn staged(&self) -> Self {
        self.beside(&format!("{STAGED_PREFIX}{}", self.layout()))
    }

    /// The same of the layout after ours, from an adopter that was killed.
    pub(crate) fn staged_by_next(&self) -> Self {
        self.beside(&format!("{STAGED_PREFIX}{}", self.layout() + 1))
    }

    /// The version in the path.
    fn layout(&self) -> u32 {
        let directory = self.0.parent().and_then(Path::file_name);
        let version = directory.and_then(|name| name.to_str()?.strip_prefix(LAYOUT_PREFIX));
        let version = version.and_then(|version| version.parse().ok());
        version.unwrap_or(LAYOUT_VERSION)
    }

    /// The directory of the same service in another directory of the mode.
    pub(crate) fn beside(&self, directory: &str) -> Self {
        let name = self.0.file_name().unwrap_or_default();
        let all = self.0.parent().and_then(Path::parent);
        Self(all.unwrap_or(Path::new("")).join(directory).join(name))
    }

    /// Names of the pins.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    /// Is a link to an interface pinned there?
    pub(crate) fn has_interface_links(&self) -> bool {
        self.names().iter().any(|name| is_of_interface(name))
    }

    /// Is something pinned there, not only a directory made?
    pub(crate) fn has_pins(&self) -> bool {
        !self.names().is_empty()
    }

    /// Directories of the same service whose pins this version can adopt or remove: this version's
    /// directory first.
    #[must_use]
    pub fn all(&self) -> Vec<Self> {
        let mut all = vec![self.clone(), self.staged(), self.staged_by_next()];
        all.extend(self.former());
        all
    }

    /// Is there something that this version can adopt?
    #[must_use]
    pub fn can_be_adopted(&self) -> bool {
        self.exists() || self.former().is_some_and(|former| former.exists())
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Path of the pin called `name`.
    #[must_use]
    pub fn pin(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Removes a pin. A missing pin is no error.
    pub(crate) fn unpin(&self, name: &str) -> Result<(), DataplaneError> {
        let path = self.pin(name);
        if !path.exists() {
            return Ok(());
        }
        begin_step();
        fs::remove_file(&path).map_err(|source| DataplaneError::Pin { path, source })
    }

    /// Gives a pin another name, in one step: a pin with that name is gone afterwards.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), DataplaneError> {
        let path = self.pin(to);
        begin_step();
        fs::rename(self.pin(from), &path).map_err(|source| DataplaneError::Pin { path, source })
    }

    /// Is anything pinned?
    #[must_use]
    pub fn exists(&self) -> bool {
        self.0.exists()
    }

    /// Layouts in which other versions of this program have pinned `service` under this bpffs, and which this version
    /// cannot adopt.
    #[must_use]
    pub fn other_layouts(bpffs: &Path, service: &str) -> Vec<u32> {
        let service = service.replace('.', ":");
        let mut versions: Vec<u32> = fs::read_dir(bpffs.join("outlive"))
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.path().join(&service).exists())
            .filter_map(|entry| {
                entry
                    .file_name()
                    .to_str()?
                    .strip_prefix(LAYOUT_PREFIX)?
                    .parse()
                    .ok()
            })
            .filter(|version| !(OLDEST_LAYOUT..=LAYOUT_VERSION).contains(version))
            .collect();
        versions.sort_unstable();
        versions
    }

    pub(crate) fn create(&self) -> Result<(), DataplaneError> {
        begin_step();
        let mut made = fs::create_dir_all(&self.0);
        // Another service that ends removes the empty directories above, also between two steps here: a directory is
        // missing then, or `create_dir_all` finds one that is gone when it looks at it. Each repetition needs another
        // ending service; a bound ends the loop on a broken bpffs.
        for _ in 0..MOST_ENDS {
            match &made {
                Err(error) if is_of_an_end(error) => made = fs::create_dir_all(&self.0),
                _ => break,
            }
        }
        made.map_err(|source| DataplaneError::Pin {
            path: self.0.clone(),
            source,
        })
    }

    /// Removes all pins of the service, links first (no program runs with half of the maps), and
    /// the directories above if empty. Missing pins are no error.
    ///
    /// # Errors
    /// A pin exists and cannot be removed.
    pub fn remove(&self) -> Result<(), DataplaneError> {
        let failed = |path: &Path, source| DataplaneError::Pin {
            path: path.to_owned(),
            source,
        };
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(&self.0, error)),
        };
        let mut pins: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        pins.sort_by_key(|path| !is_link(path));
        for pin in pins {
            begin_step();
            fs::remove_file(&pin).map_err(|error| failed(&pin, error))?;
        }
        let mut directory = Some(self.0.as_path());
        for _ in 0..3 {
            let Some(path) = directory else { break };
            begin_step();
            if fs::remove_dir(path).is_err() {
                break; // another service lives there
            }
            directory = path.parent();
        }
        Ok(())
    }
}

/// Names of the services that have pins under this bpffs.
#[must_use]
pub fn pinned_services(bpffs: &Path) -> Vec<String> {
    let directory = bpffs
        .join("outlive")
        .join(format!("{LAYOUT_PREFIX}{LAYOUT_VERSION}"));
    let mut names: Vec<String> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .map(|name| name.replace(':', "."))
        .collect();
    names.sort();
    names
}

fn is_of_an_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists
    )
}

// bpffs keeps names with a dot for itself.
pub(crate) const LINK_PREFIX: &str = "link_";
/// Prefix of pins that take the places of other pins when an adoption ends.
pub(crate) const NEXT_PREFIX: &str = "next_";

/// Is this the name of a link to an interface?
pub(crate) fn is_of_interface(name: &str) -> bool {
    let program = name.strip_prefix(LINK_PREFIX);
    program.is_some_and(|name| name.starts_with("ingress_") || name.starts_with("egress_"))
}

fn is_link(path: &Path) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with(LINK_PREFIX))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn directory_of_a_service_is_made_while_others_end() {
        let bpffs = tempfile::tempdir().unwrap();
        let of = |service| PinDirectory::new(bpffs.path(), service);
        thread::scope(|scope| {
            for service in ["one", "two"] {
                scope.spawn(move || {
                    for _ in 0..2_000 {
                        of(service).create().expect("a directory");
                        of(service).remove().expect("no directory");
                    }
                });
            }
        });
    }

    #[test]
    fn a_service_of_another_layout_is_found() {
        let bpffs = tempfile::tempdir().unwrap();
        let pin = |version: u32, service: &str| {
            let path = bpffs
                .path()
                .join(format!("outlive/{LAYOUT_PREFIX}{version}/{service}"));
            fs::create_dir_all(path).unwrap();
        };
        let found = || PinDirectory::other_layouts(bpffs.path(), "web.1");
        assert!(found().is_empty());
        pin(LAYOUT_VERSION, "web:1");
        pin(LAYOUT_VERSION + 1, "another");
        assert!(found().is_empty());
        pin(LAYOUT_VERSION + 2, "web:1");
        assert_eq!(found(), [LAYOUT_VERSION + 2]);
    }
}
