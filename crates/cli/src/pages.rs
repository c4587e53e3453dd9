//! Man pages and completions, made of the arguments as they are.

mod roff;
mod services;

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::{arguments::Arguments, exit::Outcome, lines};

/// Commands of the system's administration; the others are everybody's.
const OF_SYSTEM: [&str; 10] = [
    "outlive-serve",
    "outlive-standby",
    "outlive-logger",
    "outlive-move",
    "outlive-restart",
    "outlive-status",
    "outlive-events",
    "outlive-history",
    "outlive-check",
    "outlive-clean",
];

/// What each page ends with. The exit codes are those of `exit.rs`.
const EXIT_STATUS: &str = r#".SH "EXIT STATUS"
.TP
.B 0
Done.
.TP
.B 1
The server ended before it listened, or what was asked about failed.
.TP
.B 64
The command line is wrong, or names a service that there is not.
.TP
.B 69
Something is not there, and may be later: an address, a network device, a logger.
.TP
.B 70
A fault of outlive.
.TP
.B 71
This host or kernel cannot do it.
.TP
.B 75
Something is in the way, and may not be later: a port in use, another serve.
.TP
.B 77
No permission: capabilities are missing, or the logger does not know the key.
.TP
.B 78
The configuration is wrong, or asks for what cannot be.
"#;
const FILES: &str = r#".SH FILES
.TP
.I /run/outlive/NAME/
Socket, lock and notes of a service (\-\-run\-dir, OUTLIVE_RUN_DIR).
.TP
.I /etc/outlive/NAME.toml
Options of outlive@NAME.service (\-\-config).
.TP
.I /etc/outlive/logger.toml
Options of outlive\-logger.service.
.TP
.I /var/lib/outlive/history/NAME/events.jsonl
What has happened to a service (\-\-history).
.SH ENVIRONMENT
.TP
.B OUTLIVE_LOG
What is told beside the events: error, warn (the default), info, debug.
.TP
.B OUTLIVE_RUN_DIR
As \-\-run\-dir.
"#;

fn examples(page: &str) -> &'static str {
    match page {
        "outlive-serve" => {
            r#".SH EXAMPLES
.nf
outlive serve \-\-address 10.0.0.10:80 \-\- nginx \-g 'daemon off;'
outlive serve \-\-config /etc/outlive/web.toml \-\-name web
.fi
"#
        }
        "outlive-logger" => {
            r#".SH EXAMPLES
.nf
(umask 077; outlive key > keys)
outlive logger \-\-listen 10.0.0.9:7600 \-\-key\-file keys \-\-dir /var/lib/outlive
outlive logger release web \-\-logger 10.0.0.9:7600 \-\-key\-file keys
.fi
"#
        }
        "outlive-history" => {
            r#".SH EXAMPLES
.nf
outlive history web \-\-since 12h
outlive history web \-\-json | jq 'select(.event == "asked")'
.fi
"#
        }
        "outlive-check" => {
            r#".SH EXAMPLES
.nf
outlive check \-\-address 10.0.0.10:80 \-\- nginx \-g 'daemon off;'
outlive check \-\-config /etc/outlive/web.toml \-\-name web
.fi
"#
        }
        _ => "",
    }
}

/// Write a page for the program and one for each command, by their sections.
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
            let why = format_args!("cannot write man pages to {directory}: {error}");
            lines::fail("not_written", &why);
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
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if is_of_system || name == "outlive" {
        for more in [EXIT_STATUS, FILES, examples(name)] {
            page.extend_from_slice(more.as_bytes());
        }
    }
    page.extend_from_slice(see_also(name).as_bytes());
    save(directory, name, section, &page)
}

fn save(directory: &Path, name: &str, section: &str, page: &[u8]) -> io::Result<()> {
    let directory = directory.join(format!("man{section}"));
    fs::create_dir_all(&directory)?;
    fs::write(directory.join(format!("{name}.{section}")), page)
}

/// The pages that belong to this one.
fn see_also(name: &str) -> String {
    let pages = match name {
        "outlive" => &[
            "outlive-serve(8)",
            "outlive-logger(8)",
            "outlive-make(1)",
            "outlive-lab(1)",
        ][..],
        "outlive-logger-release" => &["outlive-logger(8)", "outlive-standby(8)"],
        _ if name.starts_with("outlive-lab") => &["outlive-lab(1)", "outlive-serve(8)"],
        "outlive-make" | "outlive-encapsulate" => {
            &["outlive-make(1)", "outlive-encapsulate(1)", "make(1)"]
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

/// Print a shell's completions.
pub(crate) fn completions(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "outlive", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    let script = services::known_to(shell, script);
    match io::stdout().write_all(script.as_bytes()) {
        Ok(()) => Outcome::Done,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Outcome::Done,
        Err(error) => {
            lines::fail("not_written", &format_args!("cannot print: {error}"));
            Outcome::Internal
        }
    }
}
