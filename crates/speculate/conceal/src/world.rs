//! The mounts of concealed programs: some trees are concealed, and reads of all surrounding files are recorded.
//!
//! A single file system serves the surroundings for all programs of a [`World`], because then the kernel's cache of
//! names serves all programs. Each encapsulation has a separate file system for the trees ([`World::begin`]).

use std::{
    ffi::CString,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt as _, net::UnixStream, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Sender, channel},
    },
    thread::{self, JoinHandle},
};

use encapsulation::Encapsulation;
use fuser::{Config, Session, SessionACL};
use rustix::{
    fs::{Mode, OFlags},
    mount::{
        MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
        mount_change, unmount,
    },
    process::{chdir, pivot_root},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

use crate::{
    base_tree::BaseTree,
    concealment::Concealment,
    fuse_descriptors,
    invalidation::CacheInvalidator,
    members::{self, Members},
    preflight::{self, Missing},
    store::Hidden,
    syscall_gate::{self, Devices, KnownSockets, SyscallGate},
};

/// Directory in which the new root is assembled. Every system has this directory, and the finished root covers the
/// place.
const STAGING_DIRECTORY: &str = "/tmp";
/// File systems of the kernel, which all programs see.
const OF_THE_KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Files of programs with shared memory: private to each encapsulation.
const SHARED_MEMORY: &str = "/dev/shm";

/// Reason of a world that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// A precondition is missing on this machine.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// A call of the kernel failed.
    #[error("cannot {what}: {errno}")]
    Refused {
        /// The attempted step.
        what: &'static str,
        /// The error of the kernel.
        errno: rustix::io::Errno,
    },
}

trait ResultExt<T> {
    fn to(self, what: &'static str) -> Result<T, WorldError>;
}

impl<T> ResultExt<T> for Result<T, rustix::io::Errno> {
    fn to(self, what: &'static str) -> Result<T, WorldError> {
        self.map_err(|errno| WorldError::Refused { what, errno })
    }
}

impl<T> ResultExt<T> for io::Result<T> {
    fn to(self, what: &'static str) -> Result<T, WorldError> {
        self.map_err(|error| {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
            WorldError::Refused { what, errno }
        })
    }
}

/// Mounts that the encapsulations have in common.
#[derive(Debug)]
pub struct World {
    place: Arc<ViewTemplate>,
    around: Concealment,
    everything: Arc<BaseTree>,
    /// The mounts of the next encapsulation, made in advance.
    spare: Mutex<Option<JoinHandle<Result<SpareView, WorldError>>>>,
}

/// A view without a process yet.
type SpareView = (Concealment, View);

/// The parts of a view.
#[derive(Debug)]
struct ViewTemplate {
    root: Root,
    /// The concealed trees.
    real: Arc<BaseTree>,
    hidden: Arc<Hidden>,
    known: KnownSockets,
}

/// The root directory of all views, and the file system around the concealed trees.
#[derive(Debug)]
struct Root {
    namespace: OwnedFd,
    /// The device of that file system.
    device: u64,
    /// The directories on which views mount the concealed trees. Open directories stay in the kernel's cache of names.
    _mount_points: Vec<OwnedFd>,
}

/// The mounts of an encapsulation. The mounts exist as long as this value and the last process.
#[derive(Debug)]
pub struct View {
    namespace: OwnedFd,
    members: Members,
    known: KnownSockets,
    devices: Devices,
}

impl World {
    /// A world in which these directories are concealed. Processes with the permission of `may_change` may change the
    /// rest. No directory may be within another one. Sockets with `known` abstract names can be connected. The first
    /// file of each pair of `instead` is seen in the place of the second one.
    ///
    /// # Errors
    /// The mounts cannot be made, or [something is missing](preflight).
    pub fn new(
        concealed: &[PathBuf],
        may_change: Arc<dyn Fn(u32) -> bool + Send + Sync>,
        known: &[Vec<u8>],
        instead: &[(&Path, &Path)],
    ) -> Result<Self, WorldError> {
        preflight::look()?;
        untouched_buffers();
        let real = Arc::new(BaseTree::open(concealed).to("open what is to be concealed")?);
        let hidden = Arc::new(Hidden::new(Arc::clone(&real)));
        let all = Arc::new(BaseTree::open(&["/".into()]).to("open the root directory")?);
        let none = Arc::new(Hidden::new(Arc::clone(&all)));
        let read = Encapsulation::new(Arc::clone(&all) as _, Arc::clone(&none) as _);
        let around = Concealment::around(read, Arc::clone(&all), none, may_change);
        let mut mount_points: Vec<_> = real.places().map(|(_, place)| place).collect();
        if mount_points.is_empty() {
            mount_points.push(Path::new(STAGING_DIRECTORY));
        }
        let root = apart(|servers| new_root(around.clone(), instead, &mount_points, servers))?;
        let place = ViewTemplate {
            root,
            real,
            hidden,
            known: known.into(),
        };
        Ok(Self {
            place: Arc::new(place),
            around,
            everything: all,
            spare: Mutex::default(),
        })
    }

    /// The surroundings: the reads of all programs, and waiting changes.
    #[must_use]
    pub fn around(&self) -> &Concealment {
        &self.around
    }

    /// All real files.
    #[must_use]
    pub fn everything(&self) -> &Arc<BaseTree> {
        &self.everything
    }

    /// The real trees that are concealed.
    #[must_use]
    pub fn real(&self) -> &Arc<BaseTree> {
        &self.place.real
    }

    /// The hidden files of the trees.
    #[must_use]
    pub fn hidden(&self) -> &Arc<Hidden> {
        &self.place.hidden
    }

    /// An encapsulation above the real trees.
    #[must_use]
    pub fn encapsulation(&self) -> Encapsulation {
        self.place.encapsulation()
    }

    /// The file system of an encapsulation, and mounts with that file system. The mounts of the next encapsulation
    /// are made meanwhile.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub fn begin(&self, encapsulation: Encapsulation) -> Result<SpareView, WorldError> {
        let place = Arc::clone(&self.place);
        let making = thread::Builder::new().name("spare".into());
        let next = making.spawn(move || place.spare()).ok();
        let spare = std::mem::replace(
            &mut *self.spare.lock().unwrap_or_else(PoisonError::into_inner),
            next,
        );
        // An attempt that failed in advance may succeed now.
        let spare = spare.and_then(|it| it.join().ok()?.ok());
        let (concealment, view) = spare.map_or_else(|| self.place.spare(), Ok)?;
        concealment.begin(encapsulation);
        Ok((concealment, view))
    }

    /// Waits for the mounts that are being made; no encapsulation begins any more. This process could not
    /// end meanwhile: the thread that makes the mounts waits for answers of file systems that this process
    /// serves, and the kernel lets a killed thread wait for an answer for ever, as long as the thread
    /// itself keeps the device of the file system open.
    pub fn end(&self) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(making) = spare.take() {
            // Neither the mounts nor the error matter any more.
            drop(making.join());
        }
    }
}

impl ViewTemplate {
    fn encapsulation(&self) -> Encapsulation {
        Encapsulation::new(Arc::clone(&self.real) as _, Arc::clone(&self.hidden) as _)
    }

    fn spare(&self) -> Result<SpareView, WorldError> {
        let (real, hidden) = (Arc::clone(&self.real), Arc::clone(&self.hidden));
        let concealment = Concealment::spare(self.encapsulation(), real, hidden);
        Ok((concealment.clone(), self.view(concealment)?))
    }

    /// Mounts with that file system.
    fn view(&self, concealment: Concealment) -> Result<View, WorldError> {
        let (namespace, own) = apart(|servers| {
            let mounts = LinkNameSpaceType::Mount;
            move_into_link_name_space(self.root.namespace.as_fd(), Some(mounts))
                .to("enter mounts")?;
            own_mounts()?;
            let memory = Path::new(SHARED_MEMORY);
            if memory.is_dir() {
                let flags = MountFlags::NOSUID | MountFlags::NODEV;
                mount("tmpfs", memory, "tmpfs", flags, Some(c"mode=1777"))
                    .to("mount shared memory")?;
                self.make_places_in(memory)?;
            }
            self.cover(concealment, servers)?;
            Ok((this_namespace()?, self.own_devices()?))
        })?;
        Ok(View {
            members: Members::of(&namespace).to("look at its mounts")?,
            namespace,
            known: Arc::clone(&self.known),
            devices: Devices {
                around: self.root.device,
                own,
            },
        })
    }

    /// Makes mount points for the concealed trees: the base alone is empty there.
    fn make_places_in(&self, empty: &Path) -> Result<(), WorldError> {
        let places = self.real.places().map(|(_, place)| place);
        let mut places = places.filter(|place| place.starts_with(empty));
        places
            .try_for_each(fs::create_dir_all)
            .to("make what is concealed in shared memory")
    }

    /// The file systems of this encapsulation alone.
    fn own_devices(&self) -> Result<Vec<u64>, WorldError> {
        let memory = Path::new(SHARED_MEMORY);
        let memory = memory.is_dir().then_some(memory);
        let tree = self.real.places().next();
        let tree = tree.map_or(Path::new(STAGING_DIRECTORY), |(_, place)| place);
        let own = memory
            .into_iter()
            .chain([tree])
            .map(syscall_gate::device_of);
        own.collect::<Result<_, _>>()
            .to("look at what is concealed")
    }

    /// Mounts the file system over the trees that it conceals.
    fn cover(&self, concealment: Concealment, servers: &Servers) -> Result<(), WorldError> {
        let places: Vec<_> = self.real.places().collect();
        let Some((_, first)) = places.first() else {
            return serve(concealment, Path::new(STAGING_DIRECTORY), servers);
        };
        serve(concealment, first, servers)?;
        let open = |(name, _): &(_, _)| opened(&first.join(name), OFlags::DIRECTORY);
        let directories = places.iter().map(open).collect::<Result<Vec<_>, _>>();
        let directories = directories.to("open what is concealed")?;
        for (directory, (_, place)) in directories.iter().zip(&places) {
            mount_bind(path_of(directory), *place).to("mount what is concealed")?;
        }
        Ok(())
    }
}

impl View {
    /// The processes in these mounts.
    #[must_use]
    pub fn members(&self) -> Members {
        self.members
    }

    /// Starts the command in these mounts and in that directory, with the lowest priority ([`Members::hurry`]).
    ///
    /// # Errors
    /// The errors of [`Command::spawn`], and of the directory.
    pub fn spawn(
        &self,
        command: &mut Command,
        directory: &Path,
    ) -> io::Result<(Child, SyscallGate)> {
        self.spawn_limited(command, directory, || Ok(()))
    }

    /// As [`Self::spawn`]. `limited` sets limits that would be too narrow for the earlier steps. The call is made
    /// between fork and exec, and must not allocate.
    ///
    /// # Errors
    /// The errors of [`Self::spawn`].
    pub fn spawn_limited(
        &self,
        command: &mut Command,
        directory: &Path,
        limited: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<(Child, SyscallGate)> {
        let namespace = self.namespace.try_clone()?;
        let directory = CString::new(directory.as_os_str().as_bytes())?;
        let (ours, theirs) = UnixStream::pair()?;
        let enter = move || {
            fuse_descriptors::close_copies()?;
            let mounts = LinkNameSpaceType::Mount;
            move_into_link_name_space(namespace.as_fd(), Some(mounts))?;
            chdir(&*directory)?;
            // System V IPC objects are private to the command.
            // SAFETY: the call does not change files or memory.
            unsafe { unshare_unsafe(UnshareFlags::NEWIPC) }?;
            syscall_gate::install(theirs.as_fd())?;
            limited()
        };
        // SAFETY: the closure makes some system calls between fork and exec, and allocates no memory.
        unsafe { command.pre_exec(enter) };
        let mut child = command.spawn()?;
        // The priority is lowered only now: before the exec the watcher waits for the child, and the child needs its
        // priority.
        if members::may_hurry() {
            members::rest(child.id());
        }
        let (known, devices) = (Arc::clone(&self.known), self.devices.clone());
        let outside = SyscallGate::of(&ours, self.members, known, devices).inspect_err(|_| {
            // The process would be left without an owner.
            let _ = child.kill();
            let _ = child.wait();
        })?;
        Ok((child, outside))
    }
}

/// The root directory of a world: the real files, through a file system that records lookups.
///
/// A single thread looks up the mount points here, before any other thread can. From Linux 6.16 on, if two threads look
/// up a new name together, the second thread may remove the name from the kernel's cache: `fuse_dentry_revalidate`
/// reads `d_time`, and `fuse_lookup` sets `d_time` when other threads can see the name already. A mount on that name,
/// or below, then fails with ENOENT.
fn new_root(
    around: Concealment,
    instead: &[(&Path, &Path)],
    mount_points: &[&Path],
    servers: &Servers,
) -> Result<Root, WorldError> {
    own_mounts()?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).to("keep mounts to itself")?;
    // Before a mount covers the place.
    let open = |(file, _): &(&Path, _)| opened(file, OFlags::empty());
    let files = instead.iter().map(open).collect::<Result<Vec<_>, _>>();
    let files = files.to("open what stands in the place of a program")?;
    let stage = Path::new(STAGING_DIRECTORY);
    serve(around, stage, servers)?;
    let device = rustix::fs::stat(stage)
        .to("look at the root directory")?
        .st_dev;
    read_ahead(device);
    mount_bind(stage.join("0"), stage).to("mount the root directory")?;
    for path in OF_THE_KERNEL {
        let there = stage.join(path.trim_start_matches('/'));
        mount_bind_recursive(path, there).to("mount the kernel's file systems")?;
    }
    for (file, (_, of)) in files.iter().zip(instead) {
        let there = stage.join(of.strip_prefix("/").unwrap_or(of));
        mount_bind(path_of(file), there).to("mount what stands in the place of a program")?;
    }
    chdir(stage).to("enter the root directory")?;
    pivot_root(".", ".").to("change the root directory")?;
    unmount(".", UnmountFlags::DETACH).to("leave the old root directory")?;
    let mount_points = mount_points
        .iter()
        .map(|place| opened(place, OFlags::DIRECTORY));
    let mount_points = mount_points.collect::<Result<_, _>>();
    Ok(Root {
        namespace: this_namespace()?,
        device,
        _mount_points: mount_points.to("look up what is to be concealed")?,
    })
}

/// Raises the read-ahead of the kernel to the largest request of FUSE: compilers are large, and each request takes
/// time.
fn read_ahead(device: u64) {
    const READ_AHEAD_KIB: &str = "1024";
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    // A kernel that refuses sends more requests.
    let _ = fs::write(
        format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"),
        READ_AHEAD_KIB,
    );
}

/// Lets glibc map large zeroed memory, whose pages the kernel makes at the first touch.
///
/// Each file system has a buffer of 16 MiB, most of which is never used. After the first free of such a buffer, glibc
/// would keep the next ones, and write 16 MiB of zeros for each command.
fn untouched_buffers() {
    const MMAP_THRESHOLD_BYTES: libc::c_int = 128 << 10;
    // SAFETY: this sets a number, under the allocator's own lock.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) };
}

/// Mounts the file system there, and answers until the mount is gone or an answering thread has panicked.
fn serve(concealment: Concealment, at: &Path, servers: &Servers) -> Result<(), WorldError> {
    let device = File::options()
        .read(true)
        .write(true)
        .open(preflight::FUSE_DEVICE);
    let device = OwnedFd::from(device.to("open /dev/fuse")?);
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,allow_other",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    let data = CString::new(data).map_err(io::Error::from).to("mount")?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("outlive", at, "fuse", flags, Some(data.as_c_str())).to("mount a FUSE file system")?;
    let kernel = device.try_clone().to("mount a FUSE file system")?;
    concealment.set_invalidator(CacheInvalidator::new(kernel.into()));
    let begun = servers.begin(concealment, device);
    begun.to("serve a FUSE file system")
}

/// Opens the place itself, independent of later mounts over the path.
fn opened(path: &Path, flags: OFlags) -> Result<OwnedFd, rustix::io::Errno> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

fn path_of(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

fn own_mounts() -> Result<(), WorldError> {
    // SAFETY: the thread has a separate root and directory (`apart`), and hands on no value that depends on mounts.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.to("have mounts of its own")
}

fn this_namespace() -> Result<OwnedFd, WorldError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let path = "/proc/thread-self/ns/mnt";
    rustix::fs::open(path, flags, Mode::empty()).to("open its mounts")
}

/// Starts the threads that serve file systems, in the real mounts: a thread in the mounts of its own file system would
/// wait for itself.
struct Servers(Sender<(Concealment, OwnedFd, Sender<io::Result<()>>)>);

impl Servers {
    fn begin(&self, concealment: Concealment, device: OwnedFd) -> io::Result<()> {
        let (answer, answered) = channel();
        let gone = |_| io::Error::other("the thread that serves file systems has ended");
        self.0
            .send((concealment, device, answer))
            .map_err(|_| io::Error::other("the thread that serves file systems has ended"))?;
        answered.recv().map_err(gone)?
    }
}

/// Runs a closure in a thread with separate root, directory and mounts.
fn apart<T: Send>(
    work: impl FnOnce(&Servers) -> Result<T, WorldError> + Send,
) -> Result<T, WorldError> {
    let (ask, asked) = channel();
    thread::scope(|scope| {
        let work = scope.spawn(move || {
            // SAFETY: no other code runs in this thread, and the thread ends with this closure.
            unsafe { unshare_unsafe(UnshareFlags::FS) }.to("have a root directory of its own")?;
            work(&Servers(ask))
        });
        for (concealment, device, answer) in asked {
            let session = Session::from_fd(concealment, device, SessionACL::All, Config::default());
            // A placeholder of a started server would keep the device open, and with that the waiting processes after
            // the end of all answers.
            let begun = session.and_then(Session::spawn).map(drop);
            // The sender waits for the result.
            let _ = answer.send(begun);
        }
        let panicked = |panic| std::panic::resume_unwind(panic);
        work.join().unwrap_or_else(panicked)
    })
}

impl AsFd for View {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }
}
