//! Preloaded into make: a runner begins the commands of make.
//!
//! GNU make begins each command of a recipe, and each command of `$(shell)`, by `posix_spawn`. The runner is a
//! [copy](spawning) of make that has the streams, signals and environment of the command. If a copy is impossible, the
//! runner is a program, `RUNNER make-command SOCKET PROGRAM ARGUMENTS…`, begun as make would begin the command. The
//! library removes its own variables before make reads the environment. A make that executes make again, for a new
//! makefile, gets the variables back. If a command cannot be begun here, or if the runner is gone, make begins the
//! command itself and prints the error.

use std::{
    env,
    ffi::{CStr, CString, OsStr, OsString, c_char, c_int},
    fs,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    ptr,
    sync::OnceLock,
};

pub mod spawning;

use spawning::{StartedRunner, copied};

use make_rpc::link;

use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

const RUNNER: &str = "OUTLIVE_MAKE_RUNNER";
const SOCKET: &str = "OUTLIVE_MAKE_SOCKET";
const TELLS: &str = "OUTLIVE_MAKE_TELLS";
const PRELOAD: &str = "LD_PRELOAD";

/// Settings from the environment, at the start of make.
struct ShimSettings {
    runner: CString,
    socket: CString,
    /// `LD_PRELOAD` with this library.
    preload: OsString,
    /// The make of a user: at the end the user reads which commands were taken over.
    reports_taken: bool,
}

static SETTINGS: OnceLock<Option<ShimSettings>> = OnceLock::new();

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    let settings = || {
        let text = |name| CString::new(env::var_os(name)?.into_vec()).ok();
        let settings = ShimSettings {
            runner: text(RUNNER)?,
            socket: text(SOCKET)?,
            preload: env::var_os(PRELOAD)?,
            reports_taken: env::var_os(TELLS).is_some(),
        };
        let others = settings.preload.clone().into_vec();
        let others = others
            .splitn(2, |byte| *byte == b':')
            .nth(1)
            .map(<[u8]>::to_vec);
        // SAFETY: this is before `main`, and no other thread is there yet.
        unsafe { env::remove_var(RUNNER) };
        // SAFETY: as above.
        unsafe { env::remove_var(SOCKET) };
        // SAFETY: as above.
        unsafe { env::remove_var(TELLS) };
        match others {
            // SAFETY: as above.
            Some(others) => unsafe { env::set_var(PRELOAD, OsString::from_vec(others)) },
            // SAFETY: as above.
            None => unsafe { env::remove_var(PRELOAD) },
        }
        Some(settings)
    };
    SETTINGS.get_or_init(settings);
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;

/// Runs at the end of make, after all output of make. Copies of make end in another way.
extern "C" fn at_end() {
    let Some(Some(settings)) = SETTINGS.get() else {
        return;
    };
    if !settings.reports_taken || spawning::is_copy() {
        return;
    }
    if let Ok(socket) = settings.socket.to_str()
        && let Ok(link::Reply::Taken(taken)) = link::ask(socket, &link::Request::Taken)
        && taken.commands > 0
    {
        eprintln!("outlive: {taken}");
    }
}

type Spawn = unsafe extern "C" fn(
    *mut pid_t,
    *const c_char,
    *const posix_spawn_file_actions_t,
    *const posix_spawnattr_t,
    *const *mut c_char,
    *const *mut c_char,
) -> c_int;

type Execvp = unsafe extern "C" fn(*const c_char, *const *const c_char) -> c_int;

/// The C library's own function of this name.
fn own(name: &CStr) -> *mut libc::c_void {
    // SAFETY: the name ends with a zero.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Whether the program can be begun, as far as can be seen.
fn is_program(path: &CStr) -> bool {
    let file = fs::metadata(OsStr::from_bytes(path.to_bytes()));
    // SAFETY: the path ends with a zero.
    file.is_ok_and(|file| file.is_file()) && unsafe { libc::access(path.as_ptr(), libc::X_OK) } == 0
}

/// The strings of an argument list.
///
/// # Safety
/// The list ends with a null; list and words stay.
unsafe fn arguments_of<'a>(list: *const *mut c_char) -> impl Iterator<Item = &'a CStr> {
    let at = move |place| {
        // SAFETY: the entries before this entry are not null.
        let words = unsafe { list.add(place) };
        // SAFETY: the list has not ended.
        let words = unsafe { *words };
        // SAFETY: the entry is a string of the list, which ends with a zero.
        (!words.is_null()).then(|| unsafe { CStr::from_ptr(words) })
    };
    (0..).map_while(at)
}

/// Begins the runner, which begins the program.
///
/// # Safety
/// As `posix_spawn(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    let own = own(c"posix_spawn");
    if own.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the pointer is the C library's function of that name, and not null.
    let spawn = unsafe { std::mem::transmute::<*mut libc::c_void, Spawn>(own) };
    // SAFETY: the caller's own arguments.
    let plainly = || unsafe { spawn(pid, path, actions, attributes, arguments, environment) };
    let Some(Some(settings)) = SETTINGS.get() else {
        return plainly();
    };
    // SAFETY: the argument is a path, which ends with a zero.
    let program = unsafe { CStr::from_ptr(path) };
    if !is_program(program) {
        return plainly();
    }
    let begun = settings.socket.to_str().ok().map(|socket| StartedRunner {
        socket,
        path: OsStr::from_bytes(program.to_bytes()),
        arguments,
        environment,
    });
    if let Some(process) = begun.and_then(|begun| copied(&begun, actions, attributes)) {
        if !pid.is_null() {
            // SAFETY: the caller's own number.
            unsafe { *pid = process };
        }
        return 0;
    }
    let verb = c"make-command";
    let mut all = vec![
        settings.runner.as_ptr().cast_mut(),
        verb.as_ptr().cast_mut(),
        settings.socket.as_ptr().cast_mut(),
        path.cast_mut(),
    ];
    // SAFETY: the caller's own list.
    all.extend(unsafe { arguments_of(arguments) }.map(|it| it.as_ptr().cast_mut()));
    all.push(ptr::null_mut());
    let runner = settings.runner.as_ptr();
    // SAFETY: the caller's own words, and a list that ends with a null and lives until the call returns.
    match unsafe { spawn(pid, runner, actions, attributes, all.as_ptr(), environment) } {
        0 => 0,
        _ => plainly(),
    }
}

/// A make that begins itself anew is told again.
///
/// # Safety
/// As `execvp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
    if let Some(Some(settings)) = SETTINGS.get()
        && !spawning::is_copy()
    {
        let text = |words: &CString| OsString::from_vec(words.as_bytes().to_vec());
        // SAFETY: make has a single thread.
        unsafe { env::set_var(RUNNER, text(&settings.runner)) };
        // SAFETY: as above.
        unsafe { env::set_var(SOCKET, text(&settings.socket)) };
        if settings.reports_taken {
            // SAFETY: as above.
            unsafe { env::set_var(TELLS, "1") };
        }
        // SAFETY: as above.
        unsafe { env::set_var(PRELOAD, &settings.preload) };
    }
    let own = own(c"execvp");
    if own.is_null() {
        return -1;
    }
    // SAFETY: the pointer is the C library's function of that name, and not null.
    let execvp = unsafe { std::mem::transmute::<*mut libc::c_void, Execvp>(own) };
    // SAFETY: the caller's own arguments.
    unsafe { execvp(file, arguments) }
}
