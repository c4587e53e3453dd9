//! The file of keys that both ends share.
//!
//! ```text
//! # comment
//! name:64 hexadecimal digits
//! ```
//!
//! A program uses the first key for its own channels, and accepts all keys. Therefore keys can be changed without an
//! interruption: add the new key on both sides, make the new key the first, remove the old key. A changed file is read
//! again ([`KeyRing::reload_if_changed`]).

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rand::{TryRngCore, rngs::OsRng};
use snow::{
    error::InitStage,
    params::HashChoice,
    resolvers::{CryptoResolver, DefaultResolver},
};

use crate::ChannelError;

/// Room for a digest of any hash of Noise.
const HASH_BYTES_MAX: usize = 64;

/// A pre-shared key and the name of the key at both ends.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    name: String,
    secret: [u8; 32],
}

impl Key {
    /// The most characters of a name.
    pub const LONGEST_NAME: usize = 32;

    /// Whether a key can be called this: 1 to [`Self::LONGEST_NAME`] letters, digits, `.`, `_`, `-`
    /// (ASCII).
    #[must_use]
    pub fn is_name(name: &str) -> bool {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
        (1..=Self::LONGEST_NAME).contains(&name.len()) && name.bytes().all(allowed)
    }

    /// A new key, from the operating system's randomness.
    ///
    /// # Errors
    /// The operating system has no randomness for us, or `name` is no name
    /// ([`io::ErrorKind::InvalidInput`]).
    pub fn generate(name: &str) -> io::Result<Self> {
        if !Self::is_name(name) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a key's name has 1 to 32 letters, digits, '.', '_' or '-'",
            ));
        }
        let mut secret = [0; 32];
        OsRng
            .try_fill_bytes(&mut secret)
            .map_err(io::Error::other)?;
        Ok(Self {
            name: name.to_owned(),
            secret,
        })
    }

    /// A name that no other key has: `key-` and 8 random hexadecimal digits.
    ///
    /// # Errors
    /// The operating system has no randomness for us.
    pub fn fresh_name() -> io::Result<String> {
        let number = OsRng.try_next_u32().map_err(io::Error::other)?;
        Ok(format!("key-{number:08x}"))
    }

    /// Name of the key.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The line of a key file with this key: **secret**.
    #[must_use]
    pub fn line(&self) -> String {
        let digits: String = self.secret.iter().map(|b| format!("{b:02x}")).collect();
        format!("{}:{digits}", self.name)
    }

    /// A secret for another purpose, which tells nothing about this key: HMAC-BLAKE2s of the label. Equal keys give
    /// equal secrets on every host, and in every version of this program.
    ///
    /// # Errors
    /// [`ChannelError::Internal`].
    pub fn derive(&self, label: &str) -> Result<[u8; 16], ChannelError> {
        let missing = || ChannelError::Internal(snow::Error::Init(InitStage::GetHashImpl));
        let hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s);
        let mut digest = [0; HASH_BYTES_MAX];
        hash.ok_or_else(missing)?
            .hmac(&self.secret, label.as_bytes(), &mut digest);
        let mut derived = [0; 16];
        derived.copy_from_slice(&digest[..16]);
        Ok(derived)
    }

    pub(crate) const fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (name, digits) = line.split_once(':')?;
        if !Self::is_name(name) || digits.len() != 64 || !digits.is_ascii() {
            return None;
        }
        let mut secret = [0; 32];
        for (byte, pair) in secret.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let digit = |c: u8| {
                char::from(c)
                    .to_digit(16)
                    .and_then(|d| u8::try_from(d).ok())
            };
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self {
            name: name.to_owned(),
            secret,
        })
    }
}

/// A file that is there must not be replaced: the other hosts have its keys.
fn advice(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::PermissionDenied => "run as root, or as the owner of the file".to_owned(),
        io::ErrorKind::NotFound => format!(
            "copy the file of the other hosts, or create the first with `outlive key > {path}; chmod 600 {path}`"
        ),
        _ => "look at the file, or copy the file of the other hosts".to_owned(),
    }
}

/// Without the secret: a secret must not get into a log.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A key file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The operating system does not let this process read the file.
    #[error("key file {path}: {error}; {}", advice(path, error))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// Other users can read or write the file.
    #[error(
        "key file {path} is open to other users than the owner (mode {mode:03o}): chmod 600 {path}"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Permissions of the file.
        mode: u32,
    },
    /// The file is a directory, a pipe or the like.
    #[error("key file {0} is not an ordinary file")]
    NotAFile(PathBuf),
    /// The file is longer than [`KeyRing::LONGEST_FILE`].
    #[error("key file {0} has more than {most} bytes", most = KeyRing::LONGEST_FILE)]
    TooLong(PathBuf),
    /// A line is neither a comment nor a key. The line is not shown: it may be a secret.
    #[error(
        "key file {path}, line {line}: not a key; each line is `name:64 hexadecimal digits` or begins with #"
    )]
    NotAKey {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
    },
    /// Two keys have the same name.
    #[error("key file {path}, line {line}: there is another key of this name")]
    Twice {
        /// The file.
        path: PathBuf,
        /// The number of the second line, from 1.
        line: usize,
    },
    /// The file has no key.
    #[error("key file {0} has no key: `outlive key` prints a key")]
    NoKey(PathBuf),
}

/// Signs of a changed file: a replacement (inode), a write (times, length), or new permissions (change time).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The keys of a key file: at least one key, each with a different name.
#[derive(Debug, Clone)]
pub struct KeyRing {
    path: PathBuf,
    keys: Vec<Key>,
    stamp: Option<Stamp>,
}

impl KeyRing {
    /// The most bytes of a key file.
    pub const LONGEST_FILE: u64 = 64 * 1024;

    /// Read a key file.
    ///
    /// # Errors
    /// [`KeyFileError`]: the file cannot be read, other users can read the file, or the file is no key file.
    pub fn load(path: &Path) -> Result<Self, KeyFileError> {
        let unreadable = |error| KeyFileError::Unreadable {
            path: path.to_owned(),
            error,
        };
        // The check comes before the open, because the open of a pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(KeyFileError::NotAFile(path.to_owned()));
        }
        let file = File::open(path).map_err(unreadable)?;
        // The metadata belongs to the open file, even if the name means another file by now.
        let metadata = file.metadata().map_err(unreadable)?;
        let mode = metadata.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyFileError::Exposed {
                path: path.to_owned(),
                mode,
            });
        }
        let mut bytes = Vec::new();
        let mut limited = file.take(Self::LONGEST_FILE + 1);
        limited.read_to_end(&mut bytes).map_err(unreadable)?;
        Ok(Self {
            path: path.to_owned(),
            keys: parse(path, &bytes)?,
            stamp: Some(Stamp::of(&metadata)),
        })
    }

    /// Keys that are in no file.
    ///
    /// # Panics
    /// If there is no key.
    #[must_use]
    pub fn of(keys: Vec<Key>) -> Self {
        assert!(!keys.is_empty(), "a key ring has at least one key");
        Self {
            path: PathBuf::new(),
            keys,
            stamp: None,
        }
    }

    /// Reads a changed file again. Returns whether the keys have changed. An unchanged file costs a single system call.
    ///
    /// # Errors
    /// [`KeyFileError`], once for each change; the old keys stay in use.
    pub fn reload_if_changed(&mut self) -> Result<bool, KeyFileError> {
        let Some(stamp) = self.stamp else {
            return Ok(false);
        };
        let found = std::fs::metadata(&self.path).ok().map(|m| Stamp::of(&m));
        if found == Some(stamp) {
            return Ok(false);
        }
        // A file that is away for a moment is being replaced.
        let Some(found) = found else {
            return Ok(false);
        };
        self.stamp = Some(found);
        let new = Self::load(&self.path)?;
        let changed = new.keys != self.keys;
        *self = new;
        Ok(changed)
    }

    /// The key to speak with.
    #[must_use]
    pub fn first(&self) -> &Key {
        &self.keys[0]
    }

    /// The key of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Whether this very key is accepted (still).
    #[must_use]
    pub fn accepts(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }
}

/// The keys in these bytes of a key file.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<Key>, KeyFileError> {
    // Before the text is parsed: the last letter may have been cut.
    if u64::try_from(bytes.len()).is_ok_and(|len| len > KeyRing::LONGEST_FILE) {
        return Err(KeyFileError::TooLong(path.to_owned()));
    }
    let mut keys: Vec<Key> = Vec::new();
    for (line, content) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        let not_a_key = || KeyFileError::NotAKey {
            path: path.to_owned(),
            line,
        };
        let content = std::str::from_utf8(content)
            .map_err(|_| not_a_key())?
            .trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let key = Key::parse(content).ok_or_else(not_a_key)?;
        if keys.iter().any(|other| other.name == key.name) {
            let path = path.to_owned();
            return Err(KeyFileError::Twice { path, line });
        }
        keys.push(key);
    }
    if keys.is_empty() {
        return Err(KeyFileError::NoKey(path.to_owned()));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests;
