//! The files of the tree, with the crate of each source file.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result};

/// Where source is.
const CODE: [&str; 4] = ["crates", "fuzz", "testing", "tools"];
/// Where pages are, beside the root itself.
const PAGES: &str = "docs";
const ROOT_PAGES: [&str; 4] = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
];

/// A text file.
#[derive(Debug, Clone)]
pub(crate) struct TextFile {
    /// From the root, with `/`.
    pub(crate) path: Rc<str>,
    pub(crate) text: String,
}

/// A file of Rust.
#[derive(Debug, Clone)]
pub(crate) struct SourceFile {
    pub(crate) file: TextFile,
    /// Directory of the crate, from the root.
    pub(crate) krate: Rc<str>,
}

impl SourceFile {
    /// Name of the crate's directory.
    pub(crate) fn crate_name(&self) -> &str {
        self.krate.rsplit('/').next().unwrap_or(&self.krate)
    }

    /// Whether the path says that all of the file is test code.
    pub(crate) fn is_test(&self) -> bool {
        let inside = self.file.path.strip_prefix(&*self.krate);
        let mut parts = inside.unwrap_or(&self.file.path).split('/');
        parts.any(|part| matches!(part, "tests" | "benches" | "tests.rs"))
    }
}

/// All pages and sources of a checkout.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) pages: Vec<TextFile>,
    pub(crate) sources: Vec<SourceFile>,
}

impl Tree {
    /// Reads the checkout around a directory.
    ///
    /// # Errors
    /// If there is no checkout, or a file cannot be read.
    pub(crate) fn around(directory: &Path) -> Result<Self> {
        let mut around = directory.ancestors();
        let root =
            around.find(|root| root.join("Cargo.lock").is_file() && root.join(PAGES).is_dir());
        Self::read(
            root.with_context(|| format!("{} is in no checkout of outlive", directory.display()))?,
        )
    }

    /// Reads a checkout.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut tree = Self {
            root: root.to_owned(),
            pages: Vec::new(),
            sources: Vec::new(),
        };
        for page in ROOT_PAGES {
            if root.join(page).is_file() {
                tree.pages.push(text(root, page.to_owned())?);
            }
        }
        tree.walk(PAGES, None)?;
        for directory in CODE {
            tree.walk(directory, None)?;
        }
        Ok(tree)
    }

    fn walk(&mut self, directory: &str, krate: Option<&Rc<str>>) -> Result<()> {
        let path = self.root.join(directory);
        if !path.is_dir() {
            return Ok(());
        }
        let own = path
            .join("Cargo.toml")
            .is_file()
            .then(|| Rc::from(directory));
        let krate = own.as_ref().or(krate);
        let mut entries = Vec::new();
        for entry in fs::read_dir(&path).with_context(|| directory.to_owned())? {
            let entry = entry.with_context(|| directory.to_owned())?;
            let kind = entry.file_type().with_context(|| directory.to_owned())?;
            if let Ok(name) = entry.file_name().into_string() {
                entries.push((format!("{directory}/{name}"), kind));
            }
        }
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (path, kind) in entries {
            if kind.is_dir() && !path.ends_with("/target") && !path.contains("/.") {
                self.walk(&path, krate)?;
            } else if kind.is_file() && path.ends_with(".rs") {
                if let Some(krate) = krate {
                    let file = text(&self.root, path)?;
                    let krate = krate.clone();
                    self.sources.push(SourceFile { file, krate });
                }
            } else if kind.is_file() && directory.starts_with(PAGES) && path.ends_with(".md") {
                self.pages.push(text(&self.root, path)?);
            }
        }
        Ok(())
    }
}

fn text(root: &Path, path: String) -> Result<TextFile> {
    let text = fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
    let path = path.into();
    Ok(TextFile { path, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_code_is_known_by_its_path() {
        let is_test = |path: &str, krate: &str| {
            let path = path.into();
            let text = String::new();
            let file = TextFile { path, text };
            let krate = krate.into();
            SourceFile { file, krate }.is_test()
        };
        assert!(is_test(
            "crates/core/lease/src/holder/tests.rs",
            "crates/core/lease"
        ));
        assert!(is_test(
            "crates/core/lease/tests/pair.rs",
            "crates/core/lease"
        ));
        assert!(!is_test(
            "crates/core/lease/src/lib.rs",
            "crates/core/lease"
        ));
        assert!(is_test("testing/e2e/tests/clients.rs", "testing/e2e"));
        assert!(!is_test("testing/e2e/src/lib.rs", "testing/e2e"));
    }
}
