//! The `outlive` command: arguments, output, exit codes. The work is in the libraries.

#![forbid(unsafe_code)]
// These macros panic when the reader is gone: `commands::line` does not.
#![deny(clippy::print_stdout)]

mod arguments;
mod balance_command;
mod bulk_command;
mod commands;
mod config;
mod exit;
mod lab;
mod logger_command;
mod logger_process;
mod make_command;
mod man;
mod objects_command;
mod sandbox;
mod serve_command;
mod speculate_command;
mod stdout;
mod units;
mod version;

use std::{ffi::OsString, path::Path};

use arguments::{Arguments, Verb};
use clap::{
    Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};
use exit::Outcome;

/// Log filter, unless `OUTLIVE_LOG` is set. (The FUSE library logs an error for each reply to a process that has
/// ended.)
const USUAL: &str = "warn,fuser=off";

/// Handles `--json` among the words before the server's command.
fn heed_json(line: &[OsString]) {
    let mut words = line.iter().take_while(|word| *word != "--");
    if words.any(|word| word == "--json") {
        stdout::as_json();
    }
}

/// A hint for a word that may begin the server's command.
fn command_hint(error: &clap::Error) -> Option<String> {
    let word = match error.get(ContextKind::InvalidArg)? {
        ContextValue::String(word) => word,
        _ => return None,
    };
    let is_word = error.kind() == ErrorKind::UnknownArgument && !word.starts_with('-');
    let takes_command = error.to_string().contains("-- <COMMAND>");
    (is_word && takes_command)
        .then(|| format!(" (a command and its arguments come last, behind `--`: -- {word} ...)"))
}

/// Arguments that are none, or `--help`.
fn not_parsed(error: &clap::Error, file: Option<&Path>) -> Outcome {
    if !error.use_stderr() {
        let _ = error.print();
        return Outcome::Done;
    }
    let hint = file
        .map(arguments::config_hint)
        .or_else(|| command_hint(error));
    if stdout::are_json() {
        let words = error.to_string();
        // The rest of the text is for people: usage, and the place of the help.
        let said = words.split("\n\n").next().unwrap_or_default();
        let said = said.strip_prefix("error: ").unwrap_or(said);
        let hint = hint.unwrap_or_default();
        stdout::fail("usage", &format_args!("{said}{hint}"));
    } else {
        let said = error.render().to_string();
        let said = said.strip_prefix("error: ").unwrap_or(&said);
        eprint!("outlive: {said}");
        if let Some(hint) = &hint {
            eprintln!("outlive:{hint}");
        }
    }
    Outcome::of_options(file.is_some())
}

fn main() -> std::process::ExitCode {
    serve::begins();
    tracing_subscriber::fmt()
        // A missing reader of the log is no reason to panic.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .event_format(stdout::Lines)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("OUTLIVE_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(USUAL)),
        )
        .init();
    let given: Vec<OsString> = std::env::args_os().collect();
    heed_json(&given);
    let (line, file) = match config::resolve(given) {
        Ok(resolved) => resolved,
        Err(mistake) => {
            stdout::fail("config_file", &mistake);
            return Outcome::Config.into();
        }
    };
    heed_json(&line);
    let arguments = match Arguments::try_parse_from(line) {
        Ok(arguments) => arguments,
        Err(error) => return not_parsed(&error, file.as_deref()).into(),
    };
    let outcome = match arguments.verb {
        Verb::Serve(serve) => serve_command::serve(*serve, false),
        Verb::Standby(serve) => serve_command::serve(*serve, true),
        Verb::Switchover(which) => commands::switch_over(&which),
        Verb::Restart(which) => commands::restart(&which),
        Verb::Status(status) => commands::status(&status),
        Verb::Events(events) => commands::events(&events),
        Verb::History(history) => commands::history(&history),
        Verb::Check(check) => commands::check(*check),
        Verb::Clean(clean) => commands::clean(&clean),
        Verb::Key(key) => commands::key(&key),
        Verb::Logger(logger) => logger_command::run(&logger),
        Verb::Objects(objects) => objects_command::run(*objects),
        Verb::Balance(balance) => balance_command::run(&balance),
        Verb::Send(send) => bulk_command::send(&send),
        Verb::Receive(receive) => bulk_command::receive(&receive),
        Verb::Make(make) => make_command::make(make),
        Verb::Speculate(speculate) => speculate_command::speculate(*speculate),
        Verb::Version(options) => version::version(&options),
        Verb::Man(man) => man::man(&man.directory),
        Verb::Completions(completions) => man::completions(completions.shell),
        Verb::Lab(verb) => return lab::run(verb),
        Verb::LoggerProcess(logger) => logger_process::run(&logger),
        Verb::Room(room) => sandbox::run(room),
    };
    outcome.into()
}
