//! The manifest of an image: lengths and checksums of the files. CRIU itself would restore a truncated image.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

use crc32fast::Hasher;

/// File with the lengths and checksums of all other files.
pub(crate) const MANIFEST_FILE: &str = "manifest";
/// Longest file of a file system.
pub(crate) const MAX_FILE_BYTES: u64 = i64::MAX.cast_unsigned();

/// Length and checksum of a file.
pub(crate) type Sum = (u64, u32);

/// Writes the manifest of this directory: from then on the image is complete.
pub(crate) fn write(directory: &Path) -> io::Result<()> {
    let mut text = String::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (length, sum) = sum(&entry.path())?;
        let name = entry.file_name().into_string();
        let name = name.ok().filter(|name| is_name(name));
        let name = name.ok_or_else(|| io::Error::other("a file of an image has a strange name"))?;
        text.push_str(&line(&name, length, sum));
        text.push('\n');
    }
    fs::write(directory.join(MANIFEST_FILE), sealed(text))
}

/// The manifest's line for a file.
pub(crate) fn line(name: &str, length: u64, sum: u32) -> String {
    format!("{sum:08x} {length} {name}")
}

/// The lines of a manifest, followed by the checksum of these lines.
pub(crate) fn sealed(lines: String) -> String {
    let sum = crc32fast::hash(lines.as_bytes());
    lines + &format!("{sum:08x}\n")
}

/// Whether a file of an image can have this name. A manifest may come from another host: a name with a directory would
/// make this host read, and send, a file outside of the image.
pub(crate) fn is_name(name: &str) -> bool {
    let is_plain = Path::new(name).file_name() == Some(name.as_ref());
    is_plain && !name.contains(['\n', '\0']) && name != MANIFEST_FILE
}

/// Files of the image in this directory, with lengths; the manifest is the last.
pub(crate) fn files(directory: &Path) -> io::Result<Vec<(String, u64)>> {
    let text = fs::read_to_string(directory.join(MANIFEST_FILE))?;
    let noted = parse(&text).ok_or_else(|| torn(MANIFEST_FILE))?;
    let noted = noted.into_iter();
    let mut files: Vec<_> = noted
        .map(|(name, (length, _))| (name.to_owned(), length))
        .collect();
    files.push((MANIFEST_FILE.to_owned(), text.len() as u64));
    Ok(files)
}

/// Compares the files with the manifest.
pub(crate) fn check(directory: &Path) -> io::Result<()> {
    let text = fs::read_to_string(directory.join(MANIFEST_FILE))?;
    let noted = parse(&text).ok_or_else(|| torn(MANIFEST_FILE))?;
    for (name, then) in noted {
        if sum(&directory.join(name))? != then {
            return Err(torn(name));
        }
    }
    Ok(())
}

/// Compares files that have arrived in this directory with the manifest, which must be the last of these files. The
/// manifest has no checksum for an additional file: such a file could contain anything.
pub(crate) fn check_arrived(directory: &Path, arrived: &[(String, Sum)]) -> io::Result<()> {
    let text = fs::read_to_string(directory.join(MANIFEST_FILE))?;
    let noted = parse(&text).ok_or_else(|| torn(MANIFEST_FILE))?;
    let (last, files) = arrived.split_last().ok_or(io::ErrorKind::UnexpectedEof)?;
    let names = files.iter().map(|(name, _)| name.as_str());
    if last.0 != MANIFEST_FILE || !names.eq(noted.keys().copied()) {
        let words = "an image has other files than it names";
        return Err(io::Error::new(io::ErrorKind::InvalidData, words));
    }
    let changed = files.iter().zip(noted.values());
    match changed.into_iter().find(|((_, now), then)| now != *then) {
        Some(((name, _), _)) => Err(torn(name)),
        None => Ok(()),
    }
}

fn torn(file: &str) -> io::Error {
    let what = format!("{file:?} of the image has changed since the checkpoint");
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The files that a manifest names, with lengths and checksums. The encoding is unique: each line has the form that
/// [`write`] writes, and a file has a single line.
pub(crate) fn parse(text: &str) -> Option<BTreeMap<&str, Sum>> {
    let (files, _) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    if sealed(text[..=files.len()].to_owned()) != text {
        return None;
    }
    let mut noted = BTreeMap::new();
    for whole in files.split('\n') {
        let mut parts = whole.splitn(3, ' ');
        let sum = u32::from_str_radix(parts.next()?, 16).ok()?;
        let length = parts.next()?.parse().ok()?;
        let name = parts.next()?;
        let is_good = is_name(name) && length <= MAX_FILE_BYTES && line(name, length, sum) == whole;
        if !is_good || noted.insert(name, (length, sum)).is_some() {
            return None;
        }
    }
    Some(noted)
}

fn sum(path: &Path) -> io::Result<Sum> {
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
    fn any_change_of_image_is_detected() {
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
        let noted = fs::read_to_string(path(MANIFEST_FILE)).expect("it is there");
        for cut in 0..noted.len() {
            fs::write(path(MANIFEST_FILE), &noted[..cut]).expect("written");
            assert!(check(directory.path()).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn foreign_or_duplicate_paths_are_refused() {
        let is_manifest = |lines: &str| parse(&sealed(format!("{lines}\n"))).is_some();
        assert!(is_manifest("0000002a 7 a b"));
        let longest = format!("0000002a {MAX_FILE_BYTES} a");
        assert!(is_manifest(&longest));
        for bad in [
            "0000002a 7 ../a",
            "0000002a 7 /etc/shadow",
            "0000002a 7 a/",
            "0000002a 7 .",
            "0000002a 7 ..",
            "0000002a 7 ",
            "0000002a 7 a\0",
            "0000002a 7 manifest",
            "0000002a 7 a\n0000002b 8 a",
            "0000002a 18446744073709551615 a",
            "0000002a 9223372036854775808 a",
            "0000002A 7 a",
            "+000002a 7 a",
            "2a 7 a",
            "0000002a +7 a",
            "0000002a 07 a",
            "0000002a 7",
        ] {
            assert!(!is_manifest(bad), "{bad:?}");
        }
        // A name keeps every byte up to the newline.
        let text = sealed("0000002a 7 a\r\n".to_owned());
        assert!(parse(&text).is_some_and(|noted| noted.contains_key("a\r")));
    }
}
