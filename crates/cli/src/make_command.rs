//! `outlive make`.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use ::make::{
    command::Command,
    engine::Engine,
    environment::Environment,
    guard, input,
    link::{self, Gain, Reply, Request},
    preflight,
    preload::{self, Preload},
    repositories, runner,
    watch::Watch,
};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    process::getuid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::{
    arguments::Make,
    commands::{json, line},
    exit::Outcome,
    speculate_command::program_at,
};

/// Where the kernel shows itself, and where memory is that programs share.
const KERNELS: [&str; 3] = ["/proc", "/sys", "/dev"];
const SHARED_MEMORY: &str = "/dev/shm";

/// Interval between two looks at whether a build has ended.
const BUILD_POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn make(arguments: Make) -> Outcome {
    let directory = match env::current_dir() {
        Ok(directory) => directory,
        Err(error) => {
            eprintln!("outlive: there is no current directory: {error}");
            return Outcome::Usage;
        }
    };
    if arguments.status || arguments.stop {
        return request_watcher(&directory, &arguments);
    }
    let command = match make_command(arguments.arguments) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("outlive: cannot find make: {error}");
            return Outcome::Usage;
        }
    };
    match arguments.watch {
        true => watch(&directory, command),
        false => build(&directory, command),
    }
}

/// The make that this shell would run.
fn make_command(arguments: Vec<OsString>) -> io::Result<Command> {
    let program = program_at(OsStr::new("make"))?;
    let mut all = vec![OsString::from("make")];
    all.extend(arguments);
    runner::command(program.into(), all)
}

fn build(directory: &Path, command: Command) -> Outcome {
    let Some((_, socket)) = runner::engine_around(directory, getuid().as_raw()) else {
        if let Some(tree) = runner::watched_by_root(directory) {
            eprintln!(
                "outlive: {} is watched by root, for root only: this is plain make",
                tree.display()
            );
        }
        return failed(&runner::become_it(&command, &[]));
    };
    match runner::run(&socket, command, Request::Make) {
        Ok((status, gain)) => {
            eprintln!("outlive: {}", gain_message(gain));
            runner::end_as(status)
        }
        Err(error) => failed(&error),
    }
}

fn failed(error: &io::Error) -> Outcome {
    eprintln!("outlive: cannot run make: {error}");
    Outcome::Failed
}

/// `revealed 31 outputs in 4 ms; saved 5.3 s`
fn gain_message(gain: Gain) -> String {
    let Gain {
        effects,
        took,
        saved,
        was_running,
        ..
    } = gain;
    let (took, saved) = (Duration::from_micros(took), Duration::from_micros(saved));
    let outputs = if effects == 1 { "output" } else { "outputs" };
    let how = if was_running {
        ", and went on with the rest"
    } else {
        ""
    };
    let gained = match saved.as_millis() {
        0 => String::new(),
        _ => format!("; saved {saved:.1?}"),
    };
    format!("revealed {effects} {outputs} in {took:.1?}{how}{gained}")
}

fn request_watcher(directory: &Path, arguments: &Make) -> Outcome {
    let Some((tree, socket)) = runner::engine_around(directory, getuid().as_raw()) else {
        eprintln!(
            "outlive: nobody watches {}: start `outlive make --watch` there",
            directory.display()
        );
        return Outcome::Failed;
    };
    if arguments.stop {
        return stop(&tree, &socket);
    }
    match link::ask(&socket, &Request::Status) {
        Ok(Reply::Status(standing)) if arguments.json => {
            json(&standing);
            Outcome::Done
        }
        Ok(Reply::Status(standing)) => {
            line(&format!(
                "{}: {} running, {} finished and not asked for yet",
                tree.display(),
                standing.running,
                standing.finished
            ));
            if !standing.expected.is_empty() {
                line(&format!("expected: {}", standing.expected.join(", then ")));
            }
            for waits in standing.waiting {
                let (process, program) = (waits.process, &waits.program);
                line(&format!(
                    "process {process} ({program}) waits until it is asked for: {waits}"
                ));
            }
            Outcome::Done
        }
        Ok(_) => Outcome::Done,
        Err(error) => no_answer(&tree, &error),
    }
}

fn stop(tree: &Path, socket: &str) -> Outcome {
    match link::stop(socket) {
        Ok(0) => Outcome::Done,
        Ok(own) => {
            eprintln!(
                "outlive: {own} of your makes and their commands in {} still run, or have left something running: the watcher ends when they do",
                tree.display()
            );
            Outcome::Done
        }
        Err(error) => no_answer(tree, &error),
    }
}

fn no_answer(tree: &Path, error: &io::Error) -> Outcome {
    eprintln!(
        "outlive: who watches {} does not answer: {}",
        tree.display(),
        link::why(error)
    );
    Outcome::Failed
}

/// A cache directory of a tool: the variable with the path, the usual place, and the variable with the parent
/// directory, if another variable than `HOME` names the parent.
struct Cache {
    variable: Option<&'static str>,
    among: Option<(&'static str, &'static str)>,
    at_home: &'static str,
}

/// Each cache is sound with missing or old entries: a tool checks each entry, and makes missing entries anew (see
/// `docs/make.md`).
const CACHES: [Cache; 6] = [
    Cache {
        variable: Some("CCACHE_DIR"),
        among: Some(("XDG_CACHE_HOME", "ccache")),
        at_home: ".cache/ccache",
    },
    Cache {
        variable: None,
        among: None,
        at_home: ".ccache",
    },
    Cache {
        variable: Some("CARGO_HOME"),
        among: None,
        at_home: ".cargo",
    },
    Cache {
        variable: Some("GOCACHE"),
        among: Some(("XDG_CACHE_HOME", "go-build")),
        at_home: ".cache/go-build",
    },
    // How often each of Go's programs was run: a part of each.
    Cache {
        variable: None,
        among: Some(("XDG_CONFIG_HOME", "go/telemetry")),
        at_home: ".config/go/telemetry",
    },
    Cache {
        variable: Some("npm_config_cache"),
        among: None,
        at_home: ".npm",
    },
];

/// The possible caches.
fn caches(environment: &Environment) -> impl Iterator<Item = PathBuf> {
    let variable = |name| environment.get(name).map(PathBuf::from);
    CACHES.iter().flat_map(move |cache| {
        let among = |(name, rest)| Some(variable(name)?.join(rest));
        let at_home = variable("HOME").map(|home| home.join(cache.at_home));
        let all = [
            cache.variable.and_then(variable),
            cache.among.and_then(among),
            at_home,
        ];
        all.into_iter().flatten()
    })
}

/// Makes a file without a name in the directory; the file is gone at once. Concealed files are such files.
fn nameless_in(directory: &Path) -> Result<(), Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).map(drop)
}

/// The reason why changes of that directory cannot be concealed.
pub(crate) fn unfit(tree: &Path) -> Option<String> {
    let place = tree.display();
    let is_kernels = |root: &&Path| tree.starts_with(root) && !tree.starts_with(SHARED_MEMORY);
    if !tree.is_dir() {
        return Some(format!("{place} is no directory"));
    }
    if tree == Path::new("/") {
        return Some(
            "the root directory cannot be concealed as a whole: choose the directory of a project"
                .into(),
        );
    }
    if let Some(root) = KERNELS.iter().copied().map(Path::new).find(is_kernels) {
        return Some(format!(
            "{place} cannot be concealed: what is in {} is the kernel's",
            root.display()
        ));
    }
    let error = nameless_in(tree).err()?;
    let error = io::Error::from(error);
    Some(format!(
        "{place} cannot be concealed: files without a name (O_TMPFILE) cannot be made there ({error}); ext4, XFS, Btrfs and tmpfs have them"
    ))
}

/// Directories whose changes are concealed: the tree, the directory of the tree's git repository, and the directories
/// of temporary files and caches.
pub(crate) fn concealed(tree: &Path, environment: &Environment) -> Vec<PathBuf> {
    let mut all = vec![tree.to_owned(), "/tmp".into(), "/var/tmp".into()];
    let temporary = environment.get("TMPDIR");
    all.extend(temporary.map(PathBuf::from));
    all.extend(caches(environment).filter(|cache| nameless_in(cache).is_ok()));
    all.extend(repositories::git_directory_of(tree));
    all.retain(|path| path.is_absolute());
    // With resolved paths: the same directory by two names would be concealed twice.
    let all = all.iter().filter_map(|path| path.canonicalize().ok());
    let mut all: Vec<_> = all.filter(|path| path.is_dir()).collect();
    let whole = all.clone();
    all.retain(|path| {
        !whole
            .iter()
            .any(|other| path != other && path.starts_with(other))
    });
    all.sort();
    all.dedup();
    all
}

fn watch(directory: &Path, command: Command) -> Outcome {
    input::leave_terminal();
    runner::close_inherited_in_children();
    let user = getuid().as_raw();
    let tree = match directory.canonicalize() {
        Ok(tree) => tree,
        Err(error) => return failed(&error),
    };
    if let Some(why) = unfit(&tree).filter(|_| preflight::look().is_ok()) {
        eprintln!("outlive: {why}");
        return Outcome::Unsupported;
    }
    let socket = runner::socket_of(runner::MAKE, &tree, user);
    let listener = match link::listen(&socket) {
        Ok(listener) => listener,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            eprintln!(
                "outlive: {} is watched already: `outlive make --stop` ends that",
                tree.display()
            );
            return Outcome::Usage;
        }
        Err(error) => return failed(&error),
    };
    match anticipate(&tree, command, (socket, listener)) {
        Ok(()) => Outcome::Done,
        Err(why) => {
            eprintln!("outlive: {why}");
            Outcome::Unsupported
        }
    }
}

/// A flag that is set when this process is told to end. Signals that this process ignores stay ignored here, but not in
/// the commands, which belong to the user.
pub(crate) fn stop_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let heeded = link::unignored_signals(&[SIGHUP, SIGINT, SIGQUIT, SIGTERM]);
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        let flag = match heeded.contains(&signal) {
            true if signal == SIGQUIT => continue,
            true => Arc::clone(&stop),
            false => Arc::default(),
        };
        signal_hook::flag::register(signal, flag)?;
    }
    Ok(stop)
}

fn anticipate(
    tree: &Path,
    command: Command,
    (socket, listener): (String, std::os::unix::net::UnixListener),
) -> Result<(), Box<dyn std::error::Error>> {
    // The later steps would fail for the same reason, with a less clear error.
    preflight::look()?;
    // This call must come before the first thread.
    guard::begin()?;
    let runtime = preload::place(env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))?;
    let make = Path::new(&command.program);
    let preload = Preload::new(&runtime, socket, make)?;
    let watch = Watch::over(tree)?;
    let engine = Engine::new(&concealed(tree, &command.environment), preload, command)?;
    let serving = Arc::clone(&engine);
    thread::spawn(move || serving.listen(&listener));
    let stop = stop_signals()?;
    supervise::limits::raise();
    eprintln!("outlive: watching {}", tree.display());
    let (mut building, mut saved, mut is_more_expected) = (None, true, false);
    while !stop.load(std::sync::atomic::Ordering::Acquire) && !engine.is_over() {
        saved |= watch.wait(BUILD_POLL_INTERVAL);
        if saved && !engine.is_busy() {
            // A directory may be gone, for now: the next save is another chance.
            match engine.anticipate() {
                Ok(job) => building = Some(job),
                Err(error) => tracing::warn!("nothing is done until the next save: {error}"),
            }
            saved = false;
        }
        let ended = building.as_ref().and_then(|job| job.progress().ended);
        if let (Some((status, took)), Some(job)) = (ended, building.take_if(|_| ended.is_some())) {
            tracing::info!("job {} ended: {status:?} after {took:?}", job.id);
            engine.tidy();
            is_more_expected = true;
        }
        if is_more_expected && building.is_none() && !saved && !engine.is_busy() {
            building = engine.anticipate_more().unwrap_or_else(|error| {
                tracing::warn!("no more is done until the next save: {error}");
                None
            });
            is_more_expected = building.is_some();
        }
    }
    engine.end();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn directories_are_concealed_once() {
        // Not in `/tmp`, because all directories below `/tmp` are concealed with `/tmp`.
        let all = tempfile::TempDir::new_in("/dev/shm").expect("a directory");
        let place = |name: &str| all.path().join(name);
        for name in ["tree", "tree/in", "cache", "other"] {
            fs::create_dir(place(name)).expect("a directory");
        }
        symlink(place("other"), place("link")).expect("a link");
        let concealed = |cache: &str, temporary: &str| {
            let variables = [("CCACHE_DIR", cache), ("TMPDIR", temporary)];
            let variables = variables.map(|(name, path)| (name, place(path)));
            let mut concealed = concealed(&place("tree"), &variables.into_iter().collect());
            concealed.retain(|path| path.starts_with(all.path()));
            concealed
        };
        let places = |names: &[&str]| names.iter().map(|name| place(name)).collect::<Vec<_>>();
        assert_eq!(
            concealed("tree/../cache", "link"),
            places(&["cache", "other", "tree"])
        );
        assert_eq!(concealed("other", "link"), places(&["other", "tree"]));
        assert_eq!(concealed("link/../tree/in", "nothing"), places(&["tree"]));
    }

    #[test]
    fn caches_at_home_are_concealed() {
        let all = tempfile::TempDir::new_in("/dev/shm").expect("a directory");
        let place = |name: &str| all.path().join(name);
        let kept = [
            "home/.cargo",
            "home/.cache/go-build",
            "home/.config/go/telemetry",
            "home/.npm",
            "elsewhere/ccache",
            "cargo",
        ];
        for name in kept.iter().chain(&["tree", "home/.config/other"]) {
            fs::create_dir_all(place(name)).expect("a directory");
        }
        let concealed = |variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|(name, path)| (*name, place(path)));
            let all_of_them = concealed(&place("tree"), &variables.collect());
            let own = all_of_them
                .iter()
                .filter_map(|path| path.strip_prefix(all.path()).ok());
            own.map(|path| path.display().to_string())
                .collect::<Vec<_>>()
        };
        let usual = concealed(&[("HOME", "home")]);
        let at_home = [
            "home/.cache/go-build",
            "home/.cargo",
            "home/.config/go/telemetry",
            "home/.npm",
            "tree",
        ];
        assert_eq!(usual, at_home);
        let told = [("XDG_CACHE_HOME", "elsewhere"), ("CARGO_HOME", "cargo")];
        assert_eq!(concealed(&told), ["cargo", "elsewhere/ccache", "tree"]);
    }

    #[test]
    fn unfit_tree_is_refused() {
        for place in ["/", "/proc/self", "/sys", "/dev", "/etc/passwd"] {
            assert!(unfit(Path::new(place)).is_some(), "{place}");
        }
        let tree = tempfile::TempDir::new_in("/dev/shm").expect("a directory");
        assert_eq!(unfit(tree.path()), None);
    }
}
