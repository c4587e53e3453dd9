//! The table of metrics of a manual page, made from the numbers for comparison in a test.

use std::collections::BTreeSet;

/// Labels that name the owner of a value, or belong to the kind of a family.
const COMMON_LABELS: [&str; 3] = ["service", "session", "le"];

/// The families of a text ([`crate::text`]) as a table in Markdown, by the names in queries. Each row has the type, the
/// labels of the present values, and the help text.
#[must_use]
pub fn table(text: &str) -> String {
    let mut table = String::from("| metric | type | labels | |\n|---|---|---|---|\n");
    let mut help = None;
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("# HELP ") {
            help = line.split_once(' ');
        } else if let (Some(line), Some((name, help))) = (line.strip_prefix("# TYPE "), help) {
            let kind = line.split(' ').next_back().unwrap_or_default();
            let suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            let labels = labels(text, name);
            table += &format!("| `{name}{suffix}` | {kind} | {labels} | {help} |\n");
        }
    }
    table
}

fn labels(text: &str, name: &str) -> String {
    let values = text.lines().filter_map(|line| line.strip_prefix(name));
    let parts = values.flat_map(|rest| rest.split(['{', ',']).skip(1));
    let names: BTreeSet<&str> = parts
        .filter_map(|part| Some(part.split_once("=\"")?.0))
        .filter(|label| !COMMON_LABELS.contains(label))
        .collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}
