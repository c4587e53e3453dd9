//! Compares the table of crates in `docs/ARCHITECTURE.md` with the manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use toml::de::{DeTable, DeValue};

use crate::figures::{Evidence, Figures, Measure};
use crate::tree::{TextFile, Tree};

const PAGE: &str = "docs/ARCHITECTURE.md";
/// Heading of the last column, by which the table is found.
const USES_HEADING: &str = "uses |";
/// Folders whose crates have a row of their own. Rows of other folders describe groups.
const FOLDER: &str = "crates/";

/// Counts the rows with other dependencies than the manifest has, and the crates without a row.
///
/// # Errors
/// A manifest cannot be read.
pub(crate) fn compare(figures: &mut Figures, tree: &Tree) -> Result<()> {
    let Some(page) = tree.pages.iter().find(|page| &*page.path == PAGE) else {
        return Ok(());
    };
    let mut manifests = manifests(&tree.root)?;
    let mut count = |line, note: String| {
        let file = page.path.clone();
        figures.count(Measure::CrateTable, PAGE, Evidence { file, line, note });
    };
    for row in rows(page) {
        let Some(uses) = manifests.remove(&row.name) else {
            count(row.line, format!("no manifest has the name {}", row.name));
            continue;
        };
        for missing in uses.difference(&row.uses) {
            count(row.line, format!("{} uses {missing}", row.name));
        }
        for surplus in row.uses.difference(&uses) {
            count(row.line, format!("{} does not use {surplus}", row.name));
        }
    }
    for name in manifests.keys() {
        count(1, format!("{name} has no row"));
    }
    Ok(())
}

struct Row {
    line: usize,
    name: String,
    uses: BTreeSet<String>,
}

/// The rows below `crates/`.
fn rows(page: &TextFile) -> Vec<Row> {
    let lines = (1..).zip(page.text.lines());
    let mut table = lines.skip_while(|(_, line)| !line.trim_end().ends_with(USES_HEADING));
    table.next();
    let mut rows = Vec::new();
    let mut folder = "";
    for (line, text) in table.take_while(|(_, text)| text.starts_with('|')) {
        let cells: Vec<&str> = text.trim_matches('|').split('|').map(str::trim).collect();
        let [first, name, .., uses] = cells[..] else {
            continue;
        };
        if let Some(named) = first.strip_prefix('`') {
            folder = named;
        }
        let Some(name) = quoted(name).next().filter(|_| folder.starts_with(FOLDER)) else {
            continue;
        };
        // "; builds `…`": a library that is compiled for the crate, and not linked.
        let linked = uses.split(';').next().unwrap_or_default();
        rows.push(Row {
            line,
            name: name.to_owned(),
            uses: quoted(linked).map(str::to_owned).collect(),
        });
    }
    rows
}

/// Words in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Names of the crates below `crates/`, with the names of their dependencies among these.
fn manifests(root: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut all = BTreeMap::new();
    let crates = root.join(FOLDER);
    for directory in directories(&crates)? {
        for directory in [directory.clone()]
            .into_iter()
            .chain(directories(&directory)?)
        {
            let path = directory.join("Cargo.toml");
            if path.is_file() {
                let (name, uses) = manifest(&path).with_context(|| path.display().to_string())?;
                all.insert(name, uses);
            }
        }
    }
    let names: BTreeSet<String> = all.keys().cloned().collect();
    for uses in all.values_mut() {
        uses.retain(|name| names.contains(name));
    }
    Ok(all)
}

fn directories(of: &Path) -> Result<Vec<std::path::PathBuf>> {
    let entries = fs::read_dir(of).with_context(|| of.display().to_string())?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let paths: Vec<_> = paths.collect::<Result<_, _>>()?;
    Ok(paths.into_iter().filter(|path| path.is_dir()).collect())
}

fn manifest(path: &Path) -> Result<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(path)?;
    let manifest = DeTable::parse(&text).map_err(|error| anyhow!("{}", error.message()))?;
    let table = |name| match manifest.get_ref().get(name).map(toml::Spanned::get_ref) {
        Some(DeValue::Table(table)) => Some(table),
        _ => None,
    };
    let package = table("package").and_then(|package| package.get("name"));
    let Some(DeValue::String(name)) = package.map(toml::Spanned::get_ref) else {
        bail!("no package name");
    };
    let uses = table("dependencies").into_iter().flatten();
    let uses = uses.map(|(name, _)| name.get_ref().to_string());
    Ok((name.to_string(), uses.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(page: &str) -> Vec<String> {
        let root = tempfile::tempdir().expect("a directory");
        let crates = [
            ("crates/top", "top", "south.workspace = true\nclap = \"4\""),
            ("crates/low/south", "south", ""),
        ];
        for (directory, name, uses) in crates {
            let directory = root.path().join(directory);
            fs::create_dir_all(&directory).expect("a directory");
            let text = format!("[package]\nname = \"{name}\"\n[dependencies]\n{uses}");
            fs::write(directory.join("Cargo.toml"), text).expect("a manifest");
        }
        let tree = Tree {
            root: root.path().to_owned(),
            pages: vec![TextFile {
                path: PAGE.into(),
                text: format!("| folder | crate | job | uses |\n|---|---|---|---|\n{page}"),
            }],
            sources: Vec::new(),
        };
        let mut figures = Figures::default();
        compare(&mut figures, &tree).expect("manifests");
        let figures = figures.iter().flat_map(|figure| &figure.evidence);
        figures.map(|evidence| evidence.note.clone()).collect()
    }

    #[test]
    fn table_of_the_manifests_passes() {
        let page = "| `crates` | `top` | a | `south`; builds `south` |\n| `crates/low` | `south` | a | – |\n\
                    | `tools` | `x`, `y` | b | `top` |";
        assert_eq!(compared(&page.replace("`crates`", "`crates/top`")), [""; 0]);
    }

    #[test]
    fn each_difference_from_the_manifests_is_found() {
        let page = "| `crates/top` | `top` | a | – |\n| `crates/low` | `old` | a | – |\n";
        assert_eq!(
            compared(page),
            [
                "top uses south",
                "no manifest has the name old",
                "south has no row"
            ]
        );
        let page = "| `crates/top` | `top` | a | `south` |\n| | `south` | a | `top` |\n";
        assert_eq!(compared(page), ["south does not use top"]);
    }
}
