//! The `outlive` command: arguments, output, exit codes. What it does is in the libraries.

#![forbid(unsafe_code)]

mod arguments;
mod config;
mod encapsulating;
mod exit;
mod lab;
mod lines;
mod logger_process;
mod logging;
mod making;
mod pages;
mod room;
mod serving;
mod talking;
mod units;

use arguments::{Arguments, Verb};
use clap::Parser;
use exit::Outcome;

/// What is told unless `OUTLIVE_LOG` says otherwise. (The FUSE library takes an answer to who is gone for an error.)
const USUAL: &str = "warn,fuser=off";

fn main() -> std::process::ExitCode {
    tracing_subscriber::fmt()
        // Where nobody reads what is told, that is no reason to panic.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .event_format(lines::Lines)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("OUTLIVE_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(USUAL)),
        )
        .init();
    let (line, file) = match config::resolve(std::env::args_os().collect()) {
        Ok(resolved) => resolved,
        Err(mistake) => {
            lines::fail(&mistake);
            return Outcome::Config.into();
        }
    };
    if line
        .iter()
        .take_while(|word| *word != "--")
        .any(|word| word == "--json")
    {
        lines::as_json();
    }
    let arguments = match Arguments::try_parse_from(line) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            let in_file = file.is_some();
            if let Some(file) = file.filter(|_| error.use_stderr()) {
                eprintln!("outlive:{}", arguments::config_hint(&file));
            }
            return if error.use_stderr() {
                Outcome::of_options(in_file).into()
            } else {
                Outcome::Done.into()
            };
        }
    };
    let outcome = match arguments.verb {
        Verb::Serve(serve) => serving::serve(*serve, false),
        Verb::Standby(serve) => serving::serve(*serve, true),
        Verb::Move(which) => talking::hand_over(&which),
        Verb::Restart(which) => talking::restart(&which),
        Verb::Status(status) => talking::status(&status),
        Verb::Events(events) => talking::events(&events),
        Verb::Check(check) => talking::check(*check),
        Verb::Clean(clean) => talking::clean(&clean),
        Verb::Key(key) => talking::key(&key),
        Verb::Logger(logger) => logging::run(&logger),
        Verb::Make(make) => making::make(make),
        Verb::Encapsulate(encapsulate) => encapsulating::encapsulate(*encapsulate),
        Verb::Man(man) => pages::man(&man.directory),
        Verb::Completions(completions) => pages::completions(completions.shell),
        Verb::Lab(verb) => return lab::run(verb),
        Verb::LoggerProcess(logger) => logger_process::run(&logger),
        Verb::Room(room) => room::run(room),
    };
    outcome.into()
}
