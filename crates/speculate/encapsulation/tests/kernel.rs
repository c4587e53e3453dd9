//! Random histories, each twice: concealed above a directory, and by the kernel in an equal directory. The answers of
//! the calls and the visible tree must be the same, and so must the tree after the reveal.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use encapsulation::{
    Attributes, Base, Conflict, Content, Effect, Encapsulation, HiddenId, Identity, Kind, Listing,
    New, Refused, Seen, Stat, Store, Time, TreePath, Writing,
};
use proptest::prelude::*;
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, RenameFlags, chmodat, linkat, mknodat, renameat_with},
    io::Errno,
};
use tempfile::TempDir;

/// A call of a program.
#[derive(Debug, Clone)]
enum Act {
    Create(PathBuf),
    Write(PathBuf),
    Directory(PathBuf),
    Symlink(PathBuf),
    Fifo(PathBuf),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf),
    Keep(PathBuf, PathBuf),
    Exchange(PathBuf, PathBuf),
    Unlink(PathBuf),
    RemoveDirectory(PathBuf),
    Mode(PathBuf, u32),
}

fn path() -> impl Strategy<Value = PathBuf> {
    let name = prop_oneof![3 => Just("a"), 3 => Just("b"), 2 => Just("c"), 1 => Just("d")];
    prop::collection::vec(name, 1..4).prop_map(|names| names.iter().collect())
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => path().prop_map(Act::Create),
        4 => path().prop_map(Act::Write),
        4 => path().prop_map(Act::Directory),
        1 => path().prop_map(Act::Symlink),
        1 => path().prop_map(Act::Fifo),
        2 => (path(), path()).prop_map(|(a, b)| Act::Link(a, b)),
        5 => (path(), path()).prop_map(|(a, b)| Act::Rename(a, b)),
        1 => (path(), path()).prop_map(|(a, b)| Act::Keep(a, b)),
        2 => (path(), path()).prop_map(|(a, b)| Act::Exchange(a, b)),
        3 => path().prop_map(Act::Unlink),
        2 => path().prop_map(Act::RemoveDirectory),
        2 => (path(), 0o400..=0o700u32).prop_map(|(p, mode)| Act::Mode(p, mode | 0o400)),
    ]
}

/// A real directory.
struct Real(PathBuf);

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn kind(kind: fs::FileType) -> Kind {
    match kind {
        kind if kind.is_dir() => Kind::Directory,
        kind if kind.is_file() => Kind::File,
        kind if kind.is_symlink() => Kind::Symlink,
        kind if kind.is_fifo() => Kind::Fifo,
        kind if kind.is_socket() => Kind::Socket,
        _ => Kind::Device,
    }
}

fn stat(metadata: &fs::Metadata) -> Stat {
    let time = |seconds, nanoseconds| Time {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).expect("a time"),
    };
    Stat {
        identity: Identity::Real {
            device: metadata.dev(),
            inode: metadata.ino(),
        },
        kind: kind(metadata.file_type()),
        mode: metadata.mode() & 0o7777,
        owner: (metadata.uid(), metadata.gid()),
        links: metadata.nlink(),
        size: metadata.size(),
        modified: time(metadata.mtime(), metadata.mtime_nsec()),
        changed: time(metadata.ctime(), metadata.ctime_nsec()),
    }
}

impl Base for Real {
    fn look(&self, path: &TreePath) -> Result<Seen, Errno> {
        match fs::symlink_metadata(self.0.join(path.as_path())) {
            Ok(metadata) => Ok(Seen::There(stat(&metadata))),
            Err(error) => match errno(&error) {
                Errno::NOENT | Errno::NOTDIR => Ok(Seen::Absent),
                other => Err(other),
            },
        }
    }

    fn content(&self, path: &TreePath) -> Result<Content, Errno> {
        Ok(Content::Base(path.clone()))
    }

    fn list(&self, path: &TreePath) -> Result<Listing, Errno> {
        let entries = fs::read_dir(self.0.join(path.as_path())).map_err(|error| errno(&error))?;
        let mut listing = Listing::new();
        for entry in entries {
            let entry = entry.map_err(|error| errno(&error))?;
            let found = entry.file_type().map_err(|error| errno(&error))?;
            listing.insert(entry.file_name(), kind(found));
        }
        Ok(listing)
    }
}

/// Hidden files are real ones elsewhere.
struct Hidden {
    directory: PathBuf,
    next: Mutex<u64>,
}

impl Hidden {
    fn new_id(&self) -> HiddenId {
        let mut next = self.next.lock().expect("nobody panics");
        *next += 1;
        HiddenId(*next)
    }

    fn file(&self, id: HiddenId) -> PathBuf {
        self.directory.join(id.0.to_string())
    }
}

impl Store for Hidden {
    fn stat(&self, id: HiddenId) -> Result<Stat, Errno> {
        let metadata = fs::symlink_metadata(self.file(id)).map_err(|error| errno(&error))?;
        let changed = Time::default();
        let identity = Identity::Hidden(id);
        Ok(Stat {
            identity,
            changed,
            links: 1,
            ..stat(&metadata)
        })
    }
}

/// A place with two equal directories, and a directory for hidden files.
struct Scene {
    _all: TempDir,
    below: PathBuf,
    beside: PathBuf,
    hidden: Arc<Hidden>,
}

impl Scene {
    /// The scene after earlier acts.
    fn new(before: &[Act]) -> Self {
        let all = TempDir::new().expect("a directory");
        let place = |name: &str| {
            let path = all.path().join(name);
            fs::create_dir(&path).expect("a directory");
            path
        };
        let (below, beside, hidden) = (place("below"), place("beside"), place("hidden"));
        for (number, act) in before.iter().enumerate() {
            for at in [&below, &beside] {
                let _ = by_kernel(at, act, number);
            }
        }
        let next = Mutex::new(0);
        let hidden = Arc::new(Hidden {
            directory: hidden,
            next,
        });
        Self {
            _all: all,
            below,
            beside,
            hidden,
        }
    }

    fn encapsulation(&self) -> Encapsulation {
        let base = Arc::new(Real(self.below.clone()));
        Encapsulation::new(base, Arc::clone(&self.hidden) as _)
    }
}

/// The kernel's act in `at`; a write writes `number`.
fn by_kernel(at: &Path, act: &Act, number: usize) -> Result<(), Errno> {
    let real = |path: &Path| at.join(path);
    let rename =
        |from: &Path, to: &Path, flags| renameat_with(CWD, real(from), CWD, real(to), flags);
    let mode = Mode::from_bits_truncate(0o644);
    match act {
        Act::Create(path) => {
            let new = fs::File::create_new(real(path)).map_err(|error| errno(&error))?;
            drop(new);
            fs::write(real(path), number.to_string()).map_err(|error| errno(&error))
        }
        Act::Write(path) => {
            // Only a file is written: the open of a FIFO would wait, and a link may lead elsewhere.
            let there = fs::symlink_metadata(real(path)).map_err(|error| errno(&error))?;
            match kind(there.file_type()) {
                Kind::File => fs::write(real(path), number.to_string()).map_err(|e| errno(&e)),
                Kind::Directory => Err(Errno::ISDIR),
                Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::Device => Err(Errno::INVAL),
            }
        }
        Act::Directory(path) => rustix::fs::mkdir(real(path), Mode::from_bits_truncate(0o755)),
        Act::Symlink(path) => rustix::fs::symlink("nowhere", real(path)),
        Act::Fifo(path) => mknodat(CWD, real(path), FileType::Fifo, mode, 0),
        Act::Link(from, to) => linkat(CWD, real(from), CWD, real(to), AtFlags::empty()),
        Act::Rename(from, to) => rename(from, to, RenameFlags::empty()),
        Act::Keep(from, to) => rename(from, to, RenameFlags::NOREPLACE),
        Act::Exchange(one, other) => rename(one, other, RenameFlags::EXCHANGE),
        Act::Unlink(path) => rustix::fs::unlink(real(path)),
        Act::RemoveDirectory(path) => rustix::fs::rmdir(real(path)),
        Act::Mode(path, mode) => {
            let there = fs::symlink_metadata(real(path)).map_err(|error| errno(&error))?;
            if there.is_symlink() {
                return Err(Errno::OPNOTSUPP);
            }
            chmodat(
                CWD,
                real(path),
                Mode::from_bits_truncate(*mode),
                AtFlags::empty(),
            )
        }
    }
}

/// Whether the names stand in directories: else a call does not come as far as to the file system.
fn arrives(at: &Path, act: &Act) -> bool {
    let (first, second) = match act {
        Act::Create(path) | Act::Write(path) | Act::Directory(path) | Act::Symlink(path) => {
            (path, None)
        }
        Act::Fifo(path) | Act::Unlink(path) | Act::RemoveDirectory(path) => (path, None),
        Act::Mode(path, _) => (path, None),
        Act::Link(from, to) | Act::Rename(from, to) | Act::Keep(from, to) => (from, Some(to)),
        Act::Exchange(one, other) => (one, Some(other)),
    };
    [Some(first), second].into_iter().flatten().all(|path| {
        let parent = at.join(path.parent().unwrap_or(Path::new("")));
        fs::symlink_metadata(parent).is_ok_and(|there| there.is_dir())
    })
}

/// The same, concealed.
fn concealed(
    it: &mut Encapsulation,
    hidden: &Hidden,
    act: &Act,
    number: usize,
) -> Result<(), Refused> {
    let tree = |path: &Path| TreePath::new(path).expect("within the tree");
    let now = Time {
        seconds: i64::try_from(number).expect("few"),
        nanoseconds: 0,
    };
    let new = |mode| New {
        id: hidden.new_id(),
        mode,
        owner: (0, 0),
        now,
    };
    let content = || {
        let id = hidden.new_id();
        fs::write(hidden.file(id), number.to_string()).expect("a hidden file");
        id
    };
    match act {
        Act::Create(path) => it.create(&tree(path), content(), now),
        Act::Write(path) => match it.write(&tree(path))? {
            Writing::Own(id) => {
                fs::write(hidden.file(id), number.to_string()).expect("a hidden file");
                Ok(())
            }
            Writing::Copy(found) => {
                let id = content();
                let mode = Mode::from_bits_truncate(found.stat.mode);
                chmodat(CWD, hidden.file(id), mode, AtFlags::empty()).expect("its mode");
                it.replace(&tree(path), id)
            }
        },
        Act::Directory(path) => it.make_directory(&tree(path), new(0o755)),
        Act::Symlink(path) => it.make_symlink(&tree(path), "nowhere".into(), new(0o777)),
        Act::Fifo(path) => it.make_special(&tree(path), new(0o010_644)),
        Act::Link(from, to) => it.link(&tree(from), &tree(to), now),
        Act::Rename(from, to) => it.rename(&tree(from), &tree(to), false, now),
        Act::Keep(from, to) => it.rename(&tree(from), &tree(to), true, now),
        Act::Exchange(one, other) => it.exchange(&tree(one), &tree(other), now),
        Act::Unlink(path) => it.unlink(&tree(path), now),
        Act::RemoveDirectory(path) => it.remove_directory(&tree(path), now),
        Act::Mode(path, mode) => {
            if it.look(&tree(path))?.stat.kind == Kind::Symlink {
                return Err(Errno::OPNOTSUPP.into());
            }
            let attributes = Attributes {
                mode: Some(*mode),
                ..Attributes::default()
            };
            if let Some(id) = it.set_attributes(&tree(path), &attributes)? {
                let mode = Mode::from_bits_truncate(*mode);
                chmodat(CWD, hidden.file(id), mode, AtFlags::empty()).expect("its mode");
            }
            Ok(())
        }
    }
}

type Picture = BTreeMap<PathBuf, (Kind, u32, Vec<u8>)>;

/// All that is in a real directory.
fn picture(at: &Path) -> Picture {
    let mut picture = Picture::new();
    draw(
        &Real(at.to_owned()),
        &TreePath::root(),
        &mut picture,
        &|path, kind| match kind {
            Kind::File => fs::read(at.join(path.as_path())).expect("a file"),
            Kind::Symlink => {
                let target = fs::read_link(at.join(path.as_path())).expect("a link");
                target.as_os_str().as_bytes().to_vec()
            }
            _ => Vec::new(),
        },
    );
    picture
}

/// All that an encapsulation sees.
fn seen(it: &Encapsulation, scene: &Scene) -> Picture {
    let mut picture = Picture::new();
    let looker = Looker(it.peek());
    draw(
        &it.peek(),
        &TreePath::root(),
        &mut picture,
        &|path, _| match looker.content(path) {
            Content::Base(path) => {
                let real = scene.below.join(path.as_path());
                match fs::symlink_metadata(&real)
                    .expect("it is there")
                    .file_type()
                {
                    kind if kind.is_file() => fs::read(real).expect("a file"),
                    kind if kind.is_symlink() => {
                        let target = fs::read_link(real).expect("a link");
                        target.as_os_str().as_bytes().to_vec()
                    }
                    _ => Vec::new(),
                }
            }
            Content::Hidden(id) => fs::read(scene.hidden.file(id)).unwrap_or_default(),
            Content::Target(target) => target.as_bytes().to_vec(),
            Content::Names => Vec::new(),
        },
    );
    picture
}

/// Looks without being recorded.
struct Looker(encapsulation::Snapshot);

impl Looker {
    fn content(&self, path: &TreePath) -> Content {
        self.0
            .find(path)
            .expect("no error")
            .expect("it is there")
            .content
    }
}

fn draw(
    tree: &dyn Base,
    path: &TreePath,
    picture: &mut Picture,
    content: &dyn Fn(&TreePath, Kind) -> Vec<u8>,
) {
    for (name, kind) in tree.list(path).expect("a directory") {
        let path = path.join(&name);
        let Ok(Seen::There(stat)) = tree.look(&path) else {
            panic!("{path} is listed, and not there");
        };
        assert_eq!(stat.kind, kind, "{path}");
        if kind == Kind::Directory {
            draw(tree, &path, picture, content);
        }
        let content = content(&path, kind);
        picture.insert(path.as_path().to_owned(), (kind, stat.mode, content));
    }
}

/// Carries the effects out, in order.
fn reveal(effects: &[Effect], at: &Path, hidden: &Hidden) {
    let real = |path: &TreePath| at.join(path.as_path());
    for effect in effects {
        let done = match effect {
            Effect::Create { path, id } => {
                linkat(CWD, hidden.file(*id), CWD, real(path), AtFlags::empty())
            }
            Effect::Replace { path, id } => {
                let beside = at.join("~beside");
                linkat(CWD, hidden.file(*id), CWD, &beside, AtFlags::empty())
                    .and_then(|()| rustix::fs::rename(&beside, real(path)))
            }
            Effect::Directory { path, new } => {
                rustix::fs::mkdir(real(path), Mode::from_bits_truncate(new.mode))
            }
            Effect::Symlink { path, target, .. } => {
                rustix::fs::symlink(OsString::as_os_str(target), real(path))
            }
            Effect::Special { path, new } => {
                let mode = Mode::from_bits_truncate(new.mode);
                mknodat(CWD, real(path), FileType::from_raw_mode(new.mode), mode, 0)
            }
            Effect::Link { from, to } => linkat(CWD, real(from), CWD, real(to), AtFlags::empty()),
            Effect::Rename { from, to } => rustix::fs::rename(real(from), real(to)),
            Effect::Exchange { one, other } => {
                renameat_with(CWD, real(one), CWD, real(other), RenameFlags::EXCHANGE)
            }
            Effect::Unlink { path } => rustix::fs::unlink(real(path)),
            Effect::RemoveDirectory { path } => rustix::fs::rmdir(real(path)),
            Effect::Attributes { path, attributes } => {
                let mode = Mode::from_bits_truncate(attributes.mode.unwrap_or_default());
                chmodat(CWD, real(path), mode, AtFlags::empty())
            }
        };
        done.unwrap_or_else(|error| panic!("{effect:?}: {error}"));
    }
}

/// Runs a history, or a part of a history in an encapsulation. An act that cannot be concealed is left out on both
/// sides.
fn run(
    it: &mut Encapsulation,
    scene: &Scene,
    acts: &[Act],
    from: usize,
) -> Result<(), TestCaseError> {
    for (number, act) in acts.iter().enumerate() {
        let number = 1000 + from + number;
        if !arrives(&scene.beside, act) {
            continue;
        }
        let ours = match concealed(it, &scene.hidden, act, number) {
            Err(Refused::Unconcealable(_)) => continue,
            Err(Refused::Error(errno)) => Err(errno),
            Ok(()) => Ok(()),
        };
        prop_assert_eq!(ours, by_kernel(&scene.beside, act, number), "{:?}", act);
        prop_assert_eq!(seen(it, scene), picture(&scene.beside), "after {:?}", act);
    }
    Ok(())
}

#[test]
fn open_file_is_not_replaced_by_absorb() {
    let scene = Scene::new(&[]);
    let mut it = scene.encapsulation();
    let path = TreePath::new("log").expect("a path");
    let create = Act::Create("log".into());
    concealed(&mut it, &scene.hidden, &create, 1).expect("there is none yet");
    let Ok(Writing::Own(id)) = it.write(&path) else {
        panic!("it is its own");
    };
    it.opened(id);
    let mut other = Encapsulation::new(Arc::new(it.snapshot()), Arc::clone(&scene.hidden) as _);
    concealed(&mut other, &scene.hidden, &Act::Write("log".into()), 2).expect("it is a copy");
    assert!(matches!(it.write(&path), Err(Refused::Unconcealable(_))));
    let absorbed = it.absorb(&other, Time::default());
    assert!(
        matches!(absorbed, Err(Conflict::Impossible(..))),
        "{absorbed:?}"
    );
    it.closed(id);
    assert!(matches!(it.write(&path), Ok(Writing::Copy(_))));
    assert_eq!(it.absorb(&other, Time::default()), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_equal_the_kernels(
        before in prop::collection::vec(act(), 0..30),
        acts in prop::collection::vec(act(), 0..30),
    ) {
        let scene = Scene::new(&before);
        let untouched = picture(&scene.below);
        let mut it = scene.encapsulation();
        run(&mut it, &scene, &acts, 0)?;
        prop_assert_eq!(picture(&scene.below), untouched, "something leaked");
        prop_assert_eq!(it.check(), Ok(()));
        reveal(it.effects(), &scene.below, &scene.hidden);
        prop_assert_eq!(picture(&scene.below), picture(&scene.beside));
    }

    #[test]
    fn encapsulation_above_another_is_absorbed(
        before in prop::collection::vec(act(), 0..30),
        first in prop::collection::vec(act(), 0..15),
        second in prop::collection::vec(act(), 0..15),
        third in prop::collection::vec(act(), 0..10),
    ) {
        let scene = Scene::new(&before);
        let mut it = scene.encapsulation();
        run(&mut it, &scene, &first, 0)?;
        let mut other = Encapsulation::new(Arc::new(it.snapshot()), Arc::clone(&scene.hidden) as _);
        for (number, act) in second.iter().enumerate() {
            let number = 2000 + number;
            if !arrives(&scene.beside, act) {
                continue;
            }
            if let Err(Refused::Unconcealable(_)) = concealed(&mut other, &scene.hidden, act, number) {
                continue;
            }
            let _ = by_kernel(&scene.beside, act, number);
        }
        prop_assert_eq!(it.absorb(&other, Time::default()), Ok(()));
        prop_assert_eq!(seen(&it, &scene), picture(&scene.beside));
        run(&mut it, &scene, &third, 3000)?;
        prop_assert_eq!(it.check(), Ok(()));
        reveal(it.effects(), &scene.below, &scene.hidden);
        prop_assert_eq!(picture(&scene.below), picture(&scene.beside));
    }
}
