//! Measures the tree and holds the limits of `limits.toml`: words, names, structure, constants and columns.
//!
//! A figure above its limit fails the run. A limit only gets lower: `tidy --update` lowers the limits to the figures
//! of the tree.

#![forbid(unsafe_code)]

mod columns;
mod crate_table;
mod figures;
mod items;
mod lexer;
mod limits;
mod names;
mod prose;
mod survey;
mod tree;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use figures::{Figure, Figures};
use limits::Limits;
use tree::Tree;

/// Measure the words, names, structure, constants and columns of the tree, and compare each figure with its limit
///
/// Exit status: 0 if no figure is above its limit, 1 if a figure is, 2 if the tree cannot be measured.
#[derive(Debug, Parser)]
#[command(name = "tidy", max_term_width = 100, after_help = AFTER_HELP)]
struct Arguments {
    /// Lower the limits to the figures of the tree, and remove the limits that are no longer needed
    ///
    /// No limit is ever raised: a figure above its limit is an error, and the file stays as before.
    #[arg(long)]
    update: bool,
    /// Print every figure that is above its house limit, with the limit that holds
    #[arg(long)]
    list: bool,
    /// Checkout to measure [default: the checkout around the working directory]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
House limits:
  pages, help, events, errors, comments   30 pronouns and 2 \"what\" per 1,000 words,
                                          a median sentence of 18 words
  structs and their inherent methods      15 fields, 40 methods, methods in 3 files
  words that the house replaces           no type, function, module or file with such a name
  constants                               no number or duration with a name of one word
  columns                                 160 in Markdown (without tables and code), 120 in comments
  table of crates in ARCHITECTURE.md      as the manifests

tools/tidy/limits.toml lists the figures that are above a house limit for historical reasons.";

/// Evidence printed for a figure above its limit.
const PRINTED_LINES: usize = 8;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tidy: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether all figures are within their limits.
fn run(arguments: &Arguments) -> Result<bool> {
    let tree = match &arguments.root {
        Some(root) => Tree::read(root)?,
        None => Tree::around(&std::env::current_dir().context("no working directory")?)?,
    };
    let figures = survey::measure(&tree)?;
    let file = tree.root.join(limits::FILE);
    let limits = Limits::read(&file)?;
    if arguments.list {
        list(&figures, limits.as_ref());
        return Ok(true);
    }
    let Some(limits) = limits else {
        anyhow::ensure!(
            arguments.update,
            "{} is missing: tidy --update writes the file anew, from the figures of the tree",
            limits::FILE
        );
        return Limits::first(&figures).write(&file).map(|()| true);
    };
    let above = limits.above(&figures);
    for (figure, limit) in &above {
        print(figure, *limit);
    }
    if !above.is_empty() {
        let refused = if arguments.update {
            "; no limit is raised, and limits.toml is unchanged"
        } else {
            ""
        };
        println!("figures above their limits: {}{refused}", above.len());
        return Ok(false);
    }
    let lower = limits.lowered(&figures);
    if arguments.update {
        println!("limits lowered or removed: {}", limits.differences(&lower));
        lower.write(&file)?;
    } else if lower != limits {
        let count = limits.differences(&lower);
        println!("{count} limits can be lowered: tidy --update");
    }
    Ok(true)
}

fn print(figure: &Figure, limit: u32) {
    println!("{}, limit {limit}", figure.sentence());
    for evidence in figure.evidence.iter().take(PRINTED_LINES) {
        println!("    {evidence}");
    }
    if figure.evidence.len() > PRINTED_LINES {
        println!("    … and {} more", figure.evidence.len() - PRINTED_LINES);
    }
}

fn list(figures: &Figures, limits: Option<&Limits>) {
    for figure in figures.iter() {
        if figure.value <= figure.measure.house_limit() {
            continue;
        }
        match limits {
            Some(limits) => println!("{}, limit {}", figure.sentence(), limits.of(figure)),
            None => println!("{}, no limit yet", figure.sentence()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn limits_of_a_tree_only_get_lower() {
        let tree = tempfile::tempdir().expect("a directory");
        let root = tree.path();
        for directory in ["docs", "tools/tidy"] {
            fs::create_dir_all(root.join(directory)).expect("a directory");
        }
        let write = |pronouns: usize| {
            let text = "server ".repeat(100 - pronouns) + &"it ".repeat(pronouns);
            fs::write(root.join("README.md"), text).expect("a page");
        };
        let tidy = |update| {
            let root = Some(root.to_owned());
            let list = false;
            run(&Arguments { update, list, root })
        };
        let limit = || {
            let text = fs::read_to_string(root.join(limits::FILE)).expect("limits");
            let limit = text
                .lines()
                .find_map(|line| line.strip_prefix("\"README.md\" = "));
            limit.map(str::to_owned)
        };
        write(10);
        assert!(tidy(false).is_err(), "there is no file yet");
        assert!(tidy(true).is_ok_and(|passed| passed));
        // The sentence of 100 words has the same limit in another table.
        assert_eq!(limit().as_deref(), Some("100"));
        assert!(tidy(false).is_ok_and(|passed| passed));
        write(11);
        assert!(tidy(false).is_ok_and(|passed| !passed));
        assert!(tidy(true).is_ok_and(|passed| !passed));
        assert_eq!(limit().as_deref(), Some("100"));
        write(5);
        assert!(tidy(false).is_ok_and(|passed| passed));
        assert_eq!(limit().as_deref(), Some("100"));
        assert!(tidy(true).is_ok_and(|passed| passed));
        assert_eq!(limit().as_deref(), Some("50"));
        write(3);
        assert!(tidy(true).is_ok_and(|passed| passed));
        write(4);
        assert!(
            tidy(true).is_ok_and(|passed| !passed),
            "the house limit holds"
        );
    }
}
