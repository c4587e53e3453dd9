//! Properties that hold for every byte string. The tests of this crate and the fuzz targets run the same functions;
//! each function panics if the property does not hold.

use std::{fs, io, path::Path};

use crate::{
    manifest,
    pack::{Pack, Unpack, header},
    store::{Image, Store},
};

/// Reads any text as a manifest, both unchanged and with a correct checksum appended. Every named file is in the image,
/// and writing the parsed lines again gives the same text.
///
/// # Panics
///
/// If the property does not hold.
pub fn image_manifest(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let lines = text.strip_suffix('\n').unwrap_or(text);
    for text in [text.to_owned(), manifest::sealed(format!("{lines}\n"))] {
        let Some(noted) = manifest::parse(&text) else {
            continue;
        };
        let image = Path::new("/images/image-1");
        let mut again = Vec::new();
        for (name, (length, sum)) in &noted {
            let path = image.join(name);
            assert_eq!(path.parent(), Some(image), "{name:?}");
            assert_eq!(path.file_name(), Some(name.as_ref()));
            again.push(manifest::line(name, *length, *sum));
        }
        let mut lines: Vec<&str> = text.trim_end_matches('\n').split('\n').collect();
        lines.pop(); // the checksum
        lines.sort_unstable();
        again.sort_unstable();
        assert_eq!(again, lines);
        let files = noted
            .iter()
            .map(|(name, noted)| ((*name).to_owned(), noted.0));
        let all: u128 = noted.values().map(|noted| u128::from(noted.0)).sum();
        if let Ok(pack) = Pack::of_files(image, files.collect()) {
            assert!(u128::from(pack.length()) > all);
        }
    }
}

/// Reads any bytes as an image from another host, whole and in pieces, with the same result. Unpacking writes only into
/// the image's directory. An accepted image packs to the original bytes. The first byte of `bytes` chooses the size of
/// the pieces. A second pass appends a manifest, and reaches more code.
///
/// # Panics
///
/// If the property does not hold, or no temporary directory can be made.
pub fn packed_image(bytes: &[u8]) {
    let Some((size, stream)) = bytes.split_first() else {
        return;
    };
    let size = usize::from(*size) + 1;
    assert_eq!(unpacked(stream, size), unpacked(stream, usize::MAX));
    let Some(noted) = with_manifest(stream) else {
        return;
    };
    assert_eq!(unpacked(&noted, size), unpacked(&noted, usize::MAX));
}

/// Whether these bytes are an image.
fn unpacked(stream: &[u8], size: usize) -> bool {
    let directory = tempfile::tempdir().expect("a directory");
    let within = directory.path().join("images");
    let store = Store::new(within.clone()).expect("a store");
    let image = store.begin(1).expect("an image");
    let unpacked = unpack(&image, stream, size);
    for (directory, only) in [(directory.path(), &within), (&within, &image.directory)] {
        let found = fs::read_dir(directory).expect("it is there");
        for entry in found {
            assert_eq!(entry.expect("an entry").path(), *only);
        }
    }
    for entry in fs::read_dir(&image.directory).expect("it is there") {
        assert!(
            entry
                .expect("an entry")
                .file_type()
                .is_ok_and(|kind| kind.is_file())
        );
    }
    let Ok(image) = unpacked else {
        return false;
    };
    let pack = Pack::of(&image).expect("it can be packed");
    assert_eq!(pack.length(), stream.len() as u64);
    assert!(pack.read(0, usize::MAX).expect("it can be read") == stream);
    true
}

fn unpack(image: &Image, stream: &[u8], size: usize) -> io::Result<Image> {
    let mut unpack = Unpack::into(image.clone());
    for piece in stream.chunks(size) {
        unpack.take(piece)?;
    }
    unpack.finish()
}

/// The same files, with a manifest appended; `None` if the files are cut off or not for this host.
fn with_manifest(stream: &[u8]) -> Option<Vec<u8>> {
    let directory = tempfile::tempdir().expect("a directory");
    let image = Image {
        number: 1,
        directory: directory.path().to_owned(),
    };
    // The files have no manifest, or a wrong one: an error is fine.
    let _ = unpack(&image, stream, usize::MAX);
    manifest::write(directory.path()).ok()?;
    let text = fs::read(directory.path().join(manifest::MANIFEST_FILE)).ok()?;
    let length = u64::try_from(text.len()).ok()?;
    Some(
        [
            stream,
            &header(manifest::MANIFEST_FILE, length).ok()?,
            &text,
        ]
        .concat(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seeds of a fuzz target.
    fn seeds(target: &str) -> Vec<Vec<u8>> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds");
        let found = fs::read_dir(directory.join(target)).expect("seeds");
        found
            .map(|seed| fs::read(seed.expect("a seed").path()).expect("a seed"))
            .collect()
    }

    #[test]
    fn fuzz_seeds_hold() {
        seeds("manifest")
            .iter()
            .for_each(|seed| image_manifest(seed));
        seeds("pack").iter().for_each(|seed| packed_image(seed));
    }

    #[test]
    fn image_with_trailing_manifest_is_accepted() {
        let files = [header("a", 2).expect("a header"), b"xy".to_vec()].concat();
        let noted = with_manifest(&files).expect("files");
        assert!(unpacked(&noted, 3));
        assert!(!unpacked(&files, 3));
    }
}
