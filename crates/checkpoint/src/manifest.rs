//! Is an image what it was when it was made? CRIU makes a process of one that was cut off.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

use crc32fast::Hasher;

/// The lengths and checksums of all other files.
const MANIFEST: &str = "manifest";

/// Note what is in this directory: an image is whole from then on.
pub(crate) fn write(directory: &Path) -> io::Result<()> {
    let mut text = String::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (length, sum) = sum(&entry.path())?;
        let name = entry.file_name().into_string();
        let name = name.map_err(|_| io::Error::other("a file of an image has a strange name"))?;
        let _ = writeln!(text, "{sum:08x} {length} {name}"); // a String takes it
    }
    let _ = writeln!(text, "{:08x}", crc32fast::hash(text.as_bytes()));
    fs::write(directory.join(MANIFEST), text)
}

/// The files that belong to the image in this directory, and their lengths; the one that says so is the last.
pub(crate) fn files(directory: &Path) -> io::Result<Vec<(String, u64)>> {
    let text = fs::read_to_string(directory.join(MANIFEST))?;
    let noted = parse(&text).ok_or_else(|| torn(MANIFEST))?;
    let noted = noted.into_iter();
    let mut files: Vec<_> = noted
        .map(|(name, (length, _))| (name.to_owned(), length))
        .collect();
    files.push((MANIFEST.to_owned(), text.len() as u64));
    Ok(files)
}

/// Are all that were noted as they were?
pub(crate) fn check(directory: &Path) -> io::Result<()> {
    let text = fs::read_to_string(directory.join(MANIFEST))?;
    let noted = parse(&text).ok_or_else(|| torn(MANIFEST))?;
    for (name, then) in noted {
        if sum(&directory.join(name))? != then {
            return Err(torn(name));
        }
    }
    Ok(())
}

fn torn(file: &str) -> io::Error {
    let what = format!("{file:?} of the image is not what it was when that was made");
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn parse(text: &str) -> Option<BTreeMap<&str, (u64, u32)>> {
    let (files, last) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let own = u32::from_str_radix(last, 16).ok()?;
    let all = &text[..=files.len()];
    if crc32fast::hash(all.as_bytes()) != own {
        return None;
    }
    let file = |line: &'_ str| -> Option<(u32, u64)> {
        let mut parts = line.splitn(3, ' ');
        let sum = u32::from_str_radix(parts.next()?, 16).ok()?;
        Some((sum, parts.next()?.parse().ok()?))
    };
    let lines = files.lines().map(|line| {
        let (sum, length) = file(line)?;
        Some((line.splitn(3, ' ').nth(2)?, (length, sum)))
    });
    lines.collect()
}

/// Length and checksum of a file.
fn sum(path: &Path) -> io::Result<(u64, u32)> {
    let mut file = File::open(path)?;
    let (mut hasher, mut length) = (Hasher::new(), 0);
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok((length, hasher.finalize())),
            read => {
                hasher.update(&piece[..read]);
                length += read as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_changed_is_noticed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let fill = || {
            fs::write(path("pages"), "0123456789").expect("written");
            fs::write(path("two words"), "").expect("written");
        };
        fill();
        assert!(check(directory.path()).is_err(), "nothing was noted");
        write(directory.path()).expect("noted");
        fs::write(path("restore.log"), "later").expect("written");
        check(directory.path()).expect("it is as it was");
        for (name, content) in [
            ("pages", "01234"),
            ("pages", "012345678_"),
            ("two words", "x"),
        ] {
            fs::write(path(name), content).expect("written");
            assert!(check(directory.path()).is_err(), "{name}: {content}");
            fill();
            check(directory.path()).expect("as it was again");
        }
        fs::remove_file(path("two words")).expect("removed");
        assert!(check(directory.path()).is_err());
        fill();
        let noted = fs::read_to_string(path(MANIFEST)).expect("it is there");
        for cut in 0..noted.len() {
            fs::write(path(MANIFEST), &noted[..cut]).expect("written");
            assert!(check(directory.path()).is_err(), "cut at {cut}");
        }
    }
}
