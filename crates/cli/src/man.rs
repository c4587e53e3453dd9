//! Man pages and completions, made from the arguments.

mod roff;
mod sections;
mod services;

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::{arguments::Arguments, exit::Outcome, stdout};

/// Commands for administrators (section 8); the other commands are in section 1.
const OF_SYSTEM: [&str; 12] = [
    "outlive-serve",
    "outlive-standby",
    "outlive-logger",
    "outlive-objects",
    "outlive-balance",
    "outlive-switchover",
    "outlive-restart",
    "outlive-status",
    "outlive-events",
    "outlive-history",
    "outlive-check",
    "outlive-clean",
];

/// Write a page for the program and a page for each command, each to the directory of its section.
pub(crate) fn man(directory: &Path) -> Outcome {
    let mut program = Arguments::command().disable_help_subcommand(true);
    program.build();
    let written = write(&program, directory)
        .and_then(|()| {
            save(
                directory,
                "outlive.toml",
                "5",
                roff::toml(&program).as_bytes(),
            )
        })
        .and_then(|()| save(directory, "outlive-events", "7", roff::events().as_bytes()));
    match written {
        Ok(()) => Outcome::Done,
        Err(error) => {
            let directory = directory.display();
            stdout::fail(
                "not_written",
                &format_args!("cannot write man pages to {directory}: {error}"),
            );
            match error.kind() {
                io::ErrorKind::PermissionDenied => Outcome::NoPermission,
                _ => Outcome::Usage,
            }
        }
    }
}

fn write(command: &Command, directory: &Path) -> io::Result<()> {
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        write(verb, directory)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    let is_of_system = OF_SYSTEM.iter().any(|one| name.starts_with(one));
    let section = if is_of_system { "8" } else { "1" };
    let mut page = Vec::new();
    let man = clap_mangen::Man::new(command.clone()).section(section);
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    page.extend_from_slice(roff::synopsis(command, name).as_bytes());
    man.render_description_section(&mut page)?;
    let mut options = Vec::new();
    man.render_options_section(&mut options)?;
    page.extend_from_slice(roff::options(&String::from_utf8_lossy(&options)).as_bytes());
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend_from_slice(sections::of(name).as_bytes());
    page.extend_from_slice(see_also(name).as_bytes());
    save(directory, name, section, &page)
}

fn save(directory: &Path, name: &str, section: &str, page: &[u8]) -> io::Result<()> {
    let directory = directory.join(format!("man{section}"));
    fs::create_dir_all(&directory)?;
    fs::write(directory.join(format!("{name}.{section}")), page)
}

/// The section SEE ALSO: pages of related commands.
fn see_also(name: &str) -> String {
    let pages = match name {
        "outlive" => &[
            "outlive-serve(8)",
            "outlive-standby(8)",
            "outlive-logger(8)",
            "outlive-check(8)",
            "outlive-status(8)",
            "outlive-make(1)",
            "outlive-speculate(1)",
            "outlive-lab(1)",
        ][..],
        "outlive-logger-release" => &["outlive-logger(8)", "outlive-standby(8)"],
        "outlive-lab" => &[
            "outlive-lab-up(1)",
            "outlive-lab-exec(1)",
            "outlive-lab-down(1)",
            "outlive-serve(8)",
        ],
        _ if name.starts_with("outlive-lab") => &["outlive-lab(1)", "outlive-serve(8)"],
        "outlive-make" | "outlive-speculate" => {
            &["outlive-make(1)", "outlive-speculate(1)", "make(1)"]
        }
        "outlive-man" | "outlive-completions" | "outlive-key" => {
            &["outlive(1)", "outlive-logger(8)"]
        }
        "outlive-events" | "outlive-history" => &[
            "outlive-events(7)",
            "outlive-events(8)",
            "outlive-history(8)",
            "outlive-status(8)",
        ],
        _ => &[
            "outlive-serve(8)",
            "outlive-standby(8)",
            "outlive-logger(8)",
            "outlive-check(8)",
            "outlive-status(8)",
            "outlive-history(8)",
            "outlive.toml(5)",
            "outlive-events(7)",
        ],
    };
    let others = pages
        .iter()
        .filter_map(|page| page.strip_suffix(')')?.split_once('('));
    let others = others.filter(|(page, section)| {
        (*page, *section) != (name, "8") && (*page, *section) != (name, "1")
    });
    let named = others.map(|(page, section)| format!(".BR {} ({section})", roff::plain(page)));
    format!(
        ".SH \"SEE ALSO\"\n{}\n",
        named.collect::<Vec<_>>().join(",\n")
    )
}

/// Print the completions of a shell.
pub(crate) fn completions(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "outlive", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    let script = services::known_to(shell, script);
    match io::stdout().write_all(script.as_bytes()) {
        Ok(()) => Outcome::Done,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Outcome::Done,
        Err(error) => {
            stdout::fail("not_written", &format_args!("cannot print: {error}"));
            Outcome::Internal
        }
    }
}
