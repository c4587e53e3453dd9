//! `/proc/<pid>/mountinfo` (proc_pid_mountinfo(5)): a mount per line,
//!
//! ```text
//! 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
//! id parent dev root point options  optional… - type source superblock-options
//! ```
//!
//! with space, tab, newline and backslash in names written as octal escapes.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The fields of a mount that this program needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MountPoint<'a> {
    /// Mount point, unescaped.
    point: Vec<u8>,
    /// Type of the filesystem.
    pub(super) filesystem: &'a [u8],
    /// Neither the mount nor the filesystem is read-only.
    pub(super) writable: bool,
}

impl MountPoint<'_> {
    /// Mount point.
    pub(super) fn into_path(self) -> PathBuf {
        OsString::from_vec(self.point).into()
    }
}

/// The mounts in `table`. Lines of another form are skipped.
pub(super) fn parse(table: &[u8]) -> impl Iterator<Item = MountPoint<'_>> {
    table.split(|&b| b == b'\n').filter_map(parse_line)
}

fn parse_line(line: &[u8]) -> Option<MountPoint<'_>> {
    let mut fields = line.split(|&b| b == b' ');
    let point = unescape(fields.nth(4)?);
    let mount_options = fields.next()?;
    // Any number of optional fields, closed by a lone hyphen.
    fields.find(|&field| field == b"-")?;
    let filesystem = fields.next()?;
    let superblock_options = fields.nth(1)?;
    Some(MountPoint {
        point,
        filesystem,
        writable: !is_read_only(mount_options) && !is_read_only(superblock_options),
    })
}

fn is_read_only(options: &[u8]) -> bool {
    options.split(|&b| b == b',').any(|option| option == b"ro")
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        match tail {
            [
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] if byte == b'\\' => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}
