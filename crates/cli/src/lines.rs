//! Lines on standard error, which a server shares with its `serve`.

use std::io::{self, Write};

/// Tells a line, by one `write`: of two, what a server says would come in between, and who
/// reads events as JSON would not find this one. That nobody reads it must not end us.
pub(crate) fn say(mut line: String) {
    line.push('\n');
    let _ = io::stderr().write_all(line.as_bytes());
}
