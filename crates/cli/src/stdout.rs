//! Lines on standard error, which a server shares with its `serve`.

use std::{
    env, fmt,
    io::{self, Write},
    os::fd::AsFd,
    sync::{
        LazyLock,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::fs::fstat;
use serve::{JSON_VERSION, Priority};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

/// Standard error is the journal, as `JOURNAL_STREAM` says (systemd.exec(5)): there a line may begin with its priority.
static JOURNAL: LazyLock<bool> = LazyLock::new(|| {
    let stream = env::var("JOURNAL_STREAM").unwrap_or_default();
    let stat = fstat(io::stderr().as_fd());
    stat.is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
});

/// `<3>`, as in sd-daemon(3); empty if no journal removes the prefix.
fn prefix(priority: Priority) -> String {
    if *JOURNAL {
        format!("<{}>", priority.number())
    } else {
        String::new()
    }
}

/// Writes a line by a single `write`. Between two writes, output of the server could appear, and a reader of JSON
/// events would not find the line. A missing reader must not end this process.
pub(crate) fn say(priority: Priority, line: &str) {
    let line = format!("{}{line}\n", prefix(priority));
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Text in which each control character is escaped. A name that a peer has chosen cannot end a line, begin another, or
/// speak to a terminal.
pub(crate) fn in_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// Whether all is told as JSON (`--json`).
static JSON: AtomicBool = AtomicBool::new(false);

/// From here on errors are told as JSON, too.
pub(crate) fn as_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// Whether errors are told as JSON.
pub(crate) fn are_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Reports why a command was not carried out; the code is a single word for scripts.
pub(crate) fn fail(code: &str, why: &dyn fmt::Display) {
    let line = match are_json() {
        true => {
            let error = serde_json::json!({
                "version": JSON_VERSION, "error": why.to_string(), "code": code
            });
            error.to_string()
        }
        false => format!("outlive: {why}"),
    };
    say(Priority::Error, &line);
}

/// As [`fail`], for names of files, which may have any character.
pub(crate) fn fail_in_one_line(code: &str, why: &str) {
    match are_json() {
        true => fail(code, &why),
        false => fail(code, &in_one_line(why)),
    }
}

/// Log lines of the libraries, in the same format, and without colours.
pub(crate) struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (priority, word) = match *event.metadata().level() {
            Level::ERROR => (Priority::Error, "error: "),
            Level::WARN => (Priority::Warning, "warning: "),
            Level::INFO => (Priority::Info, ""),
            Level::DEBUG | Level::TRACE => (Priority::Debug, "debug: "),
        };
        write!(to, "{}outlive: {word}", prefix(priority))?;
        context.field_format().format_fields(to.by_ref(), event)?;
        writeln!(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let named = "service \u{1b}[2Jweb\n<3>outlive: \u{9b}all is lost";
        let line = r"service \u{1b}[2Jweb\n<3>outlive: \u{9b}all is lost";
        assert_eq!(in_one_line(named), line);
        assert_eq!(in_one_line("für 10 µs"), "für 10 µs");
    }
}
