//! Names of files below a receiver's directory, checked before any other part sees them.

use core::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::control::values;

/// A path below a directory: names of files with `/` between. No component is empty, `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelativePath(Vec<u8>);

/// A path that leads, or could lead, out of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Empty, or too long.
    #[error("a name has 1 to {most} bytes, not {0}", most = RelativePath::LEN_MAX)]
    Length(usize),
    /// An empty component: also an absolute path, or a slash at the end.
    #[error("a name is relative, and has no empty component")]
    EmptyComponent,
    /// `.` or `..`.
    #[error("a name has no component `.` or `..`")]
    Dots,
    /// A component is too long for a file system.
    #[error("a component of a name has at most {most} bytes, not {0}", most = RelativePath::COMPONENT_LEN_MAX)]
    ComponentLength(usize),
    /// A control character, such as a line break.
    #[error("a name has no control characters")]
    Control,
    /// The target of a link is absolute, leads out of the directory, or has `..` behind a name.
    #[error("the target of a link leads out of the directory, or may do so")]
    LinkTarget,
}

impl RelativePath {
    /// Longest path, bytes.
    pub const LEN_MAX: usize = 4000;
    /// Longest component, bytes (`NAME_MAX` of Linux).
    pub const COMPONENT_LEN_MAX: usize = 255;

    /// Checks a path.
    ///
    /// # Errors
    /// [`PathError`].
    pub fn new(path: &[u8]) -> Result<Self, PathError> {
        if path.is_empty() || path.len() > Self::LEN_MAX {
            return Err(PathError::Length(path.len()));
        }
        for component in path.split(|byte| *byte == b'/') {
            match component {
                [] => return Err(PathError::EmptyComponent),
                b"." | b".." => return Err(PathError::Dots),
                _ if component.len() > Self::COMPONENT_LEN_MAX => {
                    return Err(PathError::ComponentLength(component.len()));
                }
                _ if component.iter().any(u8::is_ascii_control) => return Err(PathError::Control),
                _ => {}
            }
        }
        Ok(Self(path.to_vec()))
    }

    /// The path.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The directories above the file, and the name of the file.
    #[must_use]
    pub fn split(&self) -> (Option<&[u8]>, &[u8]) {
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (Some(&self.0[..slash]), &self.0[slash + 1..]),
            None => (None, &self.0),
        }
    }

    /// Checks the target of a symbolic link that lies at this path: `..` at the beginning alone, and not more often
    /// than there are directories above the link. A name before `..` could be a link itself, which leads elsewhere.
    ///
    /// # Errors
    /// [`PathError`].
    pub fn check_link(&self, target: &[u8]) -> Result<(), PathError> {
        if target.is_empty() || target.len() > Self::LEN_MAX {
            return Err(PathError::Length(target.len()));
        }
        if target.iter().any(u8::is_ascii_control) {
            return Err(PathError::Control);
        }
        let above = self.0.iter().filter(|byte| **byte == b'/').count();
        let components: Vec<&[u8]> = target.split(|byte| *byte == b'/').collect();
        let is_up = |component: &&&[u8]| **component == b"..";
        let ups = components.iter().take_while(is_up).count();
        let is_name = |component: &&[u8]| !component.is_empty() && *component != b"..";
        match ups <= above && components[ups..].iter().all(is_name) {
            true => Ok(()),
            false => Err(PathError::LinkTarget),
        }
    }

    /// A path below this one.
    ///
    /// # Errors
    /// [`PathError::Length`].
    pub fn join(&self, below: &Self) -> Result<Self, PathError> {
        let path = [self.0.as_slice(), b"/", &below.0].concat();
        match path.len() {
            ..=Self::LEN_MAX => Ok(Self(path)),
            len => Err(PathError::Length(len)),
        }
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl Serialize for RelativePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        values::bytes::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for RelativePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let path = values::bytes::deserialize(deserializer)?;
        Self::new(&path).map_err(D::Error::custom)
    }
}
