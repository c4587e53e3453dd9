//! Stands in the place of make where programs are concealed: a program that begins make, also in the middle of a shell
//! script, begins the real make with the library.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    process::{Command, ExitCode},
};

use make_rpc::trailer;

const PRELOAD: &str = "LD_PRELOAD";

fn main() -> ExitCode {
    let error = begin().unwrap_or_else(|error| error);
    eprintln!("make: cannot begin: {error}");
    ExitCode::from(2)
}

/// Returns why that cannot be.
fn begin() -> io::Result<io::Error> {
    let file = fs::read("/proc/self/exe")?;
    let texts =
        trailer::read(&file).ok_or_else(|| io::Error::other("the program has no trailer"))?;
    let [runner, socket, library, make] = texts.map(OsStr::from_bytes);
    let mut preload = OsString::from(library);
    if let Some(others) = env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut arguments = env::args_os();
    let mut command = Command::new(make);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command
        .args(arguments)
        .env(PRELOAD, preload)
        .env("OUTLIVE_MAKE_RUNNER", runner)
        .env("OUTLIVE_MAKE_SOCKET", socket);
    Ok(command.exec())
}
