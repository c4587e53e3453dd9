//! Man pages and completions, made of the arguments as they are.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{arguments::Arguments, exit::Outcome};

/// Write a page for the program and one for each command.
pub(crate) fn man(directory: &Path) -> Outcome {
    let written = fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Arguments::command(), directory));
    match written {
        Ok(()) => Outcome::Done,
        Err(error) => {
            let directory = directory.display();
            eprintln!("outlive: cannot write man pages to {directory}: {error}");
            match error.kind() {
                io::ErrorKind::PermissionDenied => Outcome::NoPermission,
                _ => Outcome::Usage,
            }
        }
    }
}

/// Print a shell's completions.
pub(crate) fn completions(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "outlive", &mut script);
    match io::stdout().write_all(&script) {
        Ok(()) => Outcome::Done,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Outcome::Done,
        Err(error) => {
            eprintln!("outlive: cannot print: {error}");
            Outcome::Internal
        }
    }
}
