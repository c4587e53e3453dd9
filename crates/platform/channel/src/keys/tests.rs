use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

use super::*;
use std::io::Write;

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    write(&path, text);
    (directory, path)
}

fn write(path: &Path, text: &str) {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn line(name: &str, digit: &str) -> String {
    format!("{name}:{}\n", digit.repeat(64))
}

#[test]
fn printed_key_is_parsed() {
    let key = Key::generate("web-1").unwrap();
    let (_dir, path) = file(&format!("# for the web\n\n  {}  \n", key.line()));
    assert_eq!(KeyRing::load(&path).unwrap().first(), &key);
    assert_ne!(Key::generate("web-1").unwrap(), key);
    assert!(Key::generate("not a name").is_err());
    assert!(Key::is_name(&Key::fresh_name().unwrap()));
}

#[test]
fn first_key_is_used_and_all_are_accepted() {
    let (_dir, path) = file(&(line("new", "aB")[..68].to_owned() + "\n" + &line("old", "0")));
    let ring = KeyRing::load(&path).unwrap();
    assert_eq!(ring.first().name(), "new");
    assert_eq!(ring.first().secret(), &[0xab; 32]);
    assert!(ring.get("old").is_some_and(|key| ring.accepts(key)));
    assert!(ring.get("other").is_none());
}

#[test]
fn secret_is_not_logged() {
    let key = Key::generate("k").unwrap();
    let digits = key.line()[2..10].to_owned();
    assert!(!format!("{key:?}").contains(&digits));
    let (_dir, path) = file(&format!("{}0\n", key.line()));
    let error = KeyRing::load(&path).unwrap_err();
    assert!(matches!(error, KeyFileError::NotAKey { line: 1, .. }));
    assert!(!error.to_string().contains(&digits));
}

#[test]
fn world_readable_key_file_is_refused_with_advice() {
    let (_dir, path) = file(&line("k", "1"));
    for mode in [0o640, 0o604, 0o620, 0o601] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let error = KeyRing::load(&path).unwrap_err();
        assert!(matches!(error, KeyFileError::Exposed { .. }), "{mode:o}");
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
}

#[test]
fn malformed_key_file_is_refused() {
    let bad = [
        ("", "no key"),
        ("# nothing\n", "no key"),
        ("k:12\n", "line 1"),
        (&line("", "1"), "line 1"),
        (&line("a b", "1"), "line 1"),
        (&line("k", "g"), "line 1"),
        (&(line("k", "1") + "# x\n" + &line("k", "2")), "line 3"),
    ];
    for (text, says) in bad {
        let (_dir, path) = file(text);
        let error = KeyRing::load(&path).unwrap_err().to_string();
        assert!(error.contains(says), "{text:?}: {error}");
    }
    let (_dir, path) = file(&"#".repeat(70_000));
    assert!(matches!(
        KeyRing::load(&path),
        Err(KeyFileError::TooLong(_))
    ));
    let directory = path.parent().unwrap();
    assert!(matches!(
        KeyRing::load(directory),
        Err(KeyFileError::NotAFile(_))
    ));
    let missing = KeyRing::load(&directory.join("none")).unwrap_err();
    assert!(missing.to_string().contains("outlive key"), "{missing}");
}

#[test]
fn changed_key_file_is_reloaded_unless_bad() {
    let (dir, path) = file(&line("k", "1"));
    let mut ring = KeyRing::load(&path).unwrap();
    assert!(!ring.reload_if_changed().unwrap());

    let new = dir.path().join("new");
    write(&new, &(line("new", "2") + &line("k", "1")));
    std::fs::rename(&new, &path).unwrap();
    assert!(ring.reload_if_changed().unwrap());
    assert_eq!(ring.first().name(), "new");

    write(&path, "rubbish");
    assert!(ring.reload_if_changed().is_err());
    assert!(!ring.reload_if_changed().unwrap(), "told once");
    assert_eq!(ring.first().name(), "new");

    std::fs::remove_file(&path).unwrap();
    assert!(!ring.reload_if_changed().unwrap());
    write(
        &path,
        &(line("new", "2") + "# only a comment\n" + &line("k", "1")),
    );
    assert!(!ring.reload_if_changed().unwrap(), "the same keys");
}

#[test]
fn overlong_key_file_is_refused() {
    for extra in 0..2 {
        let (_dir, path) = file(&("#".repeat(extra) + &"ä".repeat(40_000)));
        let error = KeyRing::load(&path).unwrap_err();
        assert!(matches!(error, KeyFileError::TooLong(_)), "{error}");
    }
}

#[test]
fn non_utf8_bytes_are_reported_by_line() {
    let path = Path::new("keys");
    let text = [line("k", "1").as_bytes(), b"# \xe4\n"].concat();
    let error = parse(path, &text).unwrap_err();
    assert!(matches!(error, KeyFileError::NotAKey { line: 2, .. }));
}

#[test]
fn fuzz_seeds_hold() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds/key_file");
    for seed in std::fs::read_dir(seeds).unwrap() {
        crate::properties::key_file(&std::fs::read(seed.unwrap().path()).unwrap());
    }
}

/// As Python's `hmac` and `hashlib.blake2s` compute the secret.
#[test]
fn derived_secret_stays_the_same() {
    let key = Key::parse(line("k", "1").trim()).unwrap();
    let hex = |label| {
        let derived = key.derive(label).unwrap();
        let digits = derived.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>()
    };
    let secret = hex("outlive pool key 1");
    assert_eq!(secret, "9320d24c5e6436ca9c993171208746b3");
    assert_ne!(hex("another purpose"), secret);
}
