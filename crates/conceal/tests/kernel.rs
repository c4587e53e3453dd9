//! Random histories of real calls, each twice: in a concealing file system and in a directory that is alike. What a
//! call answers has to be the same, and so has what is there: before, after, and whenever it is mandated. Needs root.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use conceal::{filesystem::Concealing, real::Real, store::Hidden};
use encapsulation::Encapsulation;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use proptest::prelude::*;
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, RenameFlags, linkat, mknodat, renameat_with},
    io::Errno,
    mount::{MountPropagationFlags, mount_change},
    thread::UnshareFlags,
};
use tempfile::TempDir;

/// Files that are held open at a time.
const SLOTS: usize = 3;

/// What a program does.
#[derive(Debug, Clone)]
enum Act {
    Create(PathBuf, u32),
    Write(PathBuf),
    Append(PathBuf),
    Truncate(PathBuf, u64),
    Open(usize, PathBuf, bool),
    WriteOpen(usize, u64),
    ReadOpen(usize),
    CutOpen(usize, u64),
    Close(usize),
    Directory(PathBuf),
    Symlink(PathBuf, PathBuf),
    Fifo(PathBuf),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf, u32),
    Unlink(PathBuf),
    RemoveDirectory(PathBuf),
    Mode(PathBuf, u32),
    Times(PathBuf, i64),
    Through(PathBuf),
    Mandate,
}

fn path() -> impl Strategy<Value = PathBuf> {
    let name = prop_oneof![3 => Just("a"), 3 => Just("b"), 2 => Just("c"), 1 => Just("d")];
    prop::collection::vec(name, 1..4).prop_map(|names| names.iter().collect())
}

fn act() -> impl Strategy<Value = Act> {
    let flags = prop_oneof![4 => Just(0u32), 1 => Just(1), 1 => Just(2)];
    prop_oneof![
        4 => (path(), 0o600..0o700u32).prop_map(|(p, m)| Act::Create(p, m)),
        3 => path().prop_map(Act::Write),
        2 => path().prop_map(Act::Append),
        2 => (path(), 0..20u64).prop_map(|(p, n)| Act::Truncate(p, n)),
        4 => (0..SLOTS, path(), any::<bool>()).prop_map(|(s, p, w)| Act::Open(s, p, w)),
        3 => (0..SLOTS, 0..20u64).prop_map(|(s, at)| Act::WriteOpen(s, at)),
        3 => (0..SLOTS).prop_map(Act::ReadOpen),
        1 => (0..SLOTS, 0..20u64).prop_map(|(s, at)| Act::CutOpen(s, at)),
        2 => (0..SLOTS).prop_map(Act::Close),
        4 => path().prop_map(Act::Directory),
        1 => (path(), path()).prop_map(|(a, b)| Act::Symlink(a, b)),
        1 => path().prop_map(Act::Fifo),
        2 => (path(), path()).prop_map(|(a, b)| Act::Link(a, b)),
        5 => (path(), path(), flags).prop_map(|(a, b, f)| Act::Rename(a, b, f)),
        3 => path().prop_map(Act::Unlink),
        2 => path().prop_map(Act::RemoveDirectory),
        2 => (path(), 0o600..=0o700u32).prop_map(|(p, mode)| Act::Mode(p, mode)),
        1 => (path(), 1..1000i64).prop_map(|(p, at)| Act::Times(p, at)),
        1 => path().prop_map(Act::Through),
        1 => Just(Act::Mandate),
    ]
}

/// One of the two.
struct Side {
    at: PathBuf,
    open: [Option<File>; SLOTS],
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Side {
    fn new(at: &Path) -> Self {
        let at = at.to_owned();
        let open = [const { None }; SLOTS];
        Self { at, open }
    }

    fn is_file(&self, path: &Path) -> Result<(), Errno> {
        let there = fs::symlink_metadata(self.at.join(path)).map_err(errno)?;
        if there.is_file() {
            Ok(())
        } else {
            Err(Errno::INVAL)
        }
    }

    /// Does it; what it answers.
    fn act(&mut self, act: &Act, number: usize) -> Result<Vec<u8>, Errno> {
        let at = self.at.clone();
        let real = |path: &Path| at.join(path);
        let words = format!("<{number}>");
        let done = |()| Vec::new();
        match act {
            Act::Create(path, mode) => {
                let new = File::options()
                    .write(true)
                    .create_new(true)
                    .mode(*mode)
                    .open(real(path));
                new.and_then(|mut new| new.write_all(words.as_bytes()))
                    .map(done)
                    .map_err(errno)
            }
            Act::Write(path) => {
                self.is_file(path)?;
                fs::write(real(path), words).map(done).map_err(errno)
            }
            Act::Append(path) => {
                self.is_file(path)?;
                let file = File::options().append(true).open(real(path));
                file.and_then(|mut file| file.write_all(words.as_bytes()))
                    .map(done)
                    .map_err(errno)
            }
            Act::Truncate(path, size) => {
                self.is_file(path)?;
                let file = File::options().write(true).open(real(path));
                file.and_then(|file| file.set_len(*size))
                    .map(done)
                    .map_err(errno)
            }
            Act::Open(slot, path, write) => {
                self.is_file(path)?;
                let file = File::options().read(true).write(*write).open(real(path));
                self.open[*slot] = Some(file.map_err(errno)?);
                Ok(Vec::new())
            }
            Act::WriteOpen(slot, at) => match &self.open[*slot] {
                Some(file) => file
                    .write_all_at(words.as_bytes(), *at)
                    .map(done)
                    .map_err(errno),
                None => Ok(Vec::new()),
            },
            Act::ReadOpen(slot) => match &mut self.open[*slot] {
                Some(file) => {
                    let mut content = Vec::new();
                    file.seek(SeekFrom::Start(0)).map_err(errno)?;
                    file.read_to_end(&mut content).map_err(errno)?;
                    let length = file.metadata().map_err(errno)?.len();
                    content.extend(length.to_be_bytes());
                    Ok(content)
                }
                None => Ok(Vec::new()),
            },
            Act::CutOpen(slot, size) => match &self.open[*slot] {
                Some(file) => file.set_len(*size).map(done).map_err(errno),
                None => Ok(Vec::new()),
            },
            Act::Close(slot) => {
                self.open[*slot] = None;
                Ok(Vec::new())
            }
            Act::Directory(path) => {
                rustix::fs::mkdir(real(path), Mode::from_bits_truncate(0o755)).map(done)
            }
            Act::Symlink(target, path) => rustix::fs::symlink(target, real(path)).map(done),
            Act::Fifo(path) => {
                let mode = Mode::from_bits_truncate(0o644);
                mknodat(CWD, real(path), FileType::Fifo, mode, 0).map(done)
            }
            Act::Link(from, to) => {
                linkat(CWD, real(from), CWD, real(to), AtFlags::empty()).map(done)
            }
            Act::Rename(from, to, flags) => {
                let flags = RenameFlags::from_bits_retain(*flags);
                renameat_with(CWD, real(from), CWD, real(to), flags).map(done)
            }
            Act::Unlink(path) => rustix::fs::unlink(real(path)).map(done),
            Act::RemoveDirectory(path) => rustix::fs::rmdir(real(path)).map(done),
            Act::Mode(path, mode) => {
                let there = fs::symlink_metadata(real(path)).map_err(errno)?;
                if there.is_symlink() {
                    return Ok(Vec::new());
                }
                let mode = fs::Permissions::from_mode(*mode);
                fs::set_permissions(real(path), mode)
                    .map(done)
                    .map_err(errno)
            }
            Act::Times(path, seconds) => {
                let at = rustix::fs::Timespec {
                    tv_sec: *seconds,
                    tv_nsec: 7,
                };
                let times = rustix::fs::Timestamps {
                    last_access: at,
                    last_modification: at,
                };
                let follow = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::utimensat(CWD, real(path), &times, follow).map(done)
            }
            // Through symbolic links, whatever they lead to.
            Act::Through(path) => {
                let there = fs::metadata(real(path)).map_err(errno)?;
                Ok(if there.is_file() {
                    fs::read(real(path)).map_err(errno)?
                } else {
                    vec![]
                })
            }
            Act::Mandate => Ok(Vec::new()),
        }
    }

    /// All that is there, by the kernel.
    fn picture(&self) -> Picture {
        let mut picture = Picture::new();
        draw(&self.at, Path::new(""), &mut picture);
        picture
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    mode: u32,
    links: u64,
    content: Vec<u8>,
    set_time: Option<i64>,
}

type Picture = BTreeMap<PathBuf, Seen>;

fn draw(at: &Path, below: &Path, picture: &mut Picture) {
    for entry in fs::read_dir(at.join(below)).expect("a directory") {
        let entry = entry.expect("an entry");
        let path = below.join(entry.file_name());
        let there = fs::symlink_metadata(entry.path()).expect("it is there");
        assert_eq!(
            there.file_type(),
            entry.file_type().expect("its kind"),
            "{path:?}"
        );
        let content = match there.file_type() {
            kind if kind.is_file() => fs::read(entry.path()).expect("a file"),
            kind if kind.is_symlink() => fs::read_link(entry.path())
                .expect("a link")
                .into_os_string()
                .into_encoded_bytes(),
            _ => Vec::new(),
        };
        let directory = there.is_dir();
        let seen = Seen {
            mode: there.mode(),
            links: if directory { 0 } else { there.nlink() },
            content,
            // Times that were not set are those of the moment.
            set_time: (there.mtime() < 1000 && !directory).then(|| there.mtime()),
        };
        picture.insert(path.clone(), seen);
        if directory {
            draw(at, &path, picture);
        }
    }
}

/// A concealing file system over a directory, in a mount namespace of the calling thread.
struct Mounted {
    system: Concealing,
    session: Option<BackgroundSession>,
    below: Side,
}

impl Mounted {
    fn over(path: &Path, below: &Path) -> Self {
        let real = Arc::new(Real::open(path).expect("the tree"));
        let hidden = Arc::new(Hidden::new(Arc::clone(&real)));
        let it = Encapsulation::new(Arc::clone(&real) as _, Arc::clone(&hidden) as _);
        let system = Concealing::new(it, real, hidden);
        let mut config = Config::default();
        config.mount_options = vec![MountOption::DefaultPermissions, MountOption::NoDev];
        config.acl = SessionACL::All;
        let session = Session::new(system.clone(), path, &config).expect("a mount");
        let session = Some(session.spawn().expect("a thread"));
        let below = Side::new(below);
        Self {
            system,
            session,
            below,
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            session.umount_and_join().expect("nobody uses it");
        }
    }
}

fn history(before: &[Act], acts: &[Act]) -> Result<(), TestCaseError> {
    let all = TempDir::new_in("/dev/shm").expect("a directory");
    let place = |name: &str| {
        let path = all.path().join(name);
        fs::create_dir(&path).expect("a directory");
        path
    };
    let (tree, beside, again) = (place("tree"), place("beside"), place("again"));
    // What is mounted over the one name does not hide the other.
    rustix::mount::mount_bind(&tree, &again).expect("the same tree under another name");
    let mut ours = Side::new(&tree);
    let mut theirs = Side::new(&beside);
    for (number, act) in before.iter().enumerate() {
        let _ = (ours.act(act, number), theirs.act(act, number));
    }
    ours.open = [const { None }; SLOTS];
    theirs.open = [const { None }; SLOTS];
    let mounted = Mounted::over(&tree, &again);
    let outcome = compare(&mounted, &mut ours, &mut theirs, acts);
    ours.open = [const { None }; SLOTS];
    drop(mounted);
    rustix::mount::unmount(&again, rustix::mount::UnmountFlags::empty()).expect("not in use");
    outcome
}

fn compare(
    mounted: &Mounted,
    ours: &mut Side,
    theirs: &mut Side,
    acts: &[Act],
) -> Result<(), TestCaseError> {
    let untouched = mounted.below.picture();
    let mandate = || {
        mounted
            .system
            .mandate()
            .map_err(|error| TestCaseError::fail(error.to_string()))
    };
    let mut revealed = false;
    for (number, act) in acts.iter().enumerate() {
        if matches!(act, Act::Mandate) && !revealed {
            prop_assert_eq!(
                mounted.below.picture(),
                untouched.clone(),
                "something leaked"
            );
            mandate()?;
            revealed = true;
        }
        let number = 1000 + number;
        let answer = ours.act(act, number);
        if answer == Err(Errno::PERM) && !matches!(act, Act::Link(..)) {
            // It cannot be concealed.
            continue;
        }
        prop_assert_eq!(&answer, &theirs.act(act, number), "{:?}", act);
        prop_assert_eq!(ours.picture(), theirs.picture(), "after {:?}", act);
        if revealed {
            prop_assert_eq!(
                mounted.below.picture(),
                theirs.picture(),
                "below, after {:?}",
                act
            );
        }
    }
    if !revealed {
        mandate()?;
    }
    prop_assert_eq!(
        mounted.below.picture(),
        theirs.picture(),
        "when all is over"
    );
    Ok(())
}

/// In a thread with mounts of its own.
fn apart(test: impl FnOnce() -> Result<(), TestCaseError> + Send) -> Result<(), TestCaseError> {
    thread::scope(|scope| {
        let test = scope.spawn(|| {
            // SAFETY: the thread that works has a file system context of its own; nothing of it is handed on.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }
                .expect("root");
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            mount_change("/", private).expect("mounts of its own");
            test()
        });
        test.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_programs_do_is_what_it_would_be(
        before in prop::collection::vec(act(), 0..30),
        acts in prop::collection::vec(act(), 0..40),
    ) {
        apart(|| history(&before, &acts))?;
    }
}
