//! The limits of `limits.toml`: read, compared, lowered, written.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use toml::de::{DeTable, DeValue};

use crate::figures::{Figure, Figures, Measure};

/// The file, from the root of the tree.
pub(crate) const FILE: &str = "tools/tidy/limits.toml";

const HEAD: &str = "\
# Limits of `tidy` for figures that are above the house limit (tidy --help). A figure that is not listed has the house limit.
# Limits only get lower. `tidy --update` lowers limits to the figures of the tree, removes the limits that are no longer needed,
# and refuses to raise a limit: improve the text or the code instead.
";

/// Limits above the house limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Limits(BTreeMap<(Measure, String), u32>);

impl Limits {
    /// Reads the file; `None` if the file is missing.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a file of limits.
    pub(crate) fn read(file: &Path) -> Result<Option<Self>> {
        match fs::read_to_string(file) {
            Ok(text) => Self::parse(&text).context(FILE).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(anyhow!(error).context(FILE)),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let tables = DeTable::parse(text).map_err(|error| anyhow!("{}", error.message()))?;
        let mut limits = BTreeMap::new();
        for (name, table) in tables.get_ref() {
            let name = name.get_ref();
            let measure = Measure::ALL.into_iter().find(|m| m.table() == &**name);
            let measure = measure.with_context(|| format!("[{name}] is no measure"))?;
            let DeValue::Table(table) = table.get_ref() else {
                bail!("{name} is no table");
            };
            for (key, value) in table {
                let key = key.get_ref();
                let limit = match value.get_ref() {
                    DeValue::Integer(number) => number.as_str().parse().ok(),
                    _ => None,
                };
                let limit = limit.with_context(|| format!("{name}: {key} is no number"))?;
                limits.insert((measure, key.to_string()), limit);
            }
        }
        Ok(Self(limits))
    }

    /// The limits of a tree without a file: each figure that is above the house limit.
    pub(crate) fn first(figures: &Figures) -> Self {
        let above = figures
            .iter()
            .filter(|figure| figure.value > figure.measure.house_limit());
        Self(
            above
                .map(|figure| ((figure.measure, figure.key.clone()), figure.value))
                .collect(),
        )
    }

    /// The limit of a figure: the limit of the file, or the house limit.
    pub(crate) fn of(&self, figure: &Figure) -> u32 {
        let own = self.0.get(&(figure.measure, figure.key.clone()));
        own.copied().unwrap_or_else(|| figure.measure.house_limit())
    }

    /// Figures above their limits, each with the limit.
    pub(crate) fn above<'a>(&self, figures: &'a Figures) -> Vec<(&'a Figure, u32)> {
        let all = figures.iter().map(|figure| (figure, self.of(figure)));
        all.filter(|(figure, limit)| figure.value > *limit)
            .collect()
    }

    /// The limits after an update: none is higher than before, and none is within the house limit.
    pub(crate) fn lowered(&self, figures: &Figures) -> Self {
        let lowered = self.0.iter().filter_map(|((measure, key), limit)| {
            let value = figures.value(*measure, key)?;
            let needed = value > measure.house_limit();
            needed.then(|| ((*measure, key.clone()), value.min(*limit)))
        });
        Self(lowered.collect())
    }

    /// Number of limits that `lower` lowers or lacks.
    pub(crate) fn differences(&self, lower: &Self) -> usize {
        let changed = self
            .0
            .iter()
            .filter(|(key, limit)| lower.0.get(key) != Some(limit));
        changed.count()
    }

    /// Writes the file, sorted.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        fs::write(file, self.text()).context(FILE)
    }

    fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        let mut written = None;
        for ((measure, key), limit) in &self.0 {
            if written != Some(measure) {
                let _ = write!(text, "\n[{}]\n", measure.table());
                written = Some(measure);
            }
            let _ = writeln!(text, "\"{key}\" = {limit}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(of: &[(Measure, &str, u32)]) -> Figures {
        let mut figures = Figures::default();
        for (measure, key, value) in of {
            figures.add(Figure {
                measure: *measure,
                key: (*key).to_owned(),
                value: *value,
                evidence: Vec::new(),
            });
        }
        figures
    }

    fn limits(of: &[(Measure, &str, u32)]) -> Limits {
        let limits = of
            .iter()
            .map(|(m, key, limit)| ((*m, (*key).to_owned()), *limit));
        Limits(limits.collect())
    }

    #[test]
    fn first_limits_are_the_figures_above_the_house_limits() {
        let tree = figures(&[
            (Measure::Pronouns, "README.md", 31),
            (Measure::Pronouns, "SECURITY.md", 30),
            (Measure::Names, "heed", 2),
        ]);
        let expected = limits(&[
            (Measure::Pronouns, "README.md", 31),
            (Measure::Names, "heed", 2),
        ]);
        assert_eq!(Limits::first(&tree), expected);
    }

    #[test]
    fn update_lowers_limits_and_removes_unneeded_limits() {
        let before = limits(&[
            (Measure::Pronouns, "README.md", 50),
            (Measure::Pronouns, "docs/plain.md", 40),
            (Measure::Pronouns, "docs/removed.md", 40),
            (Measure::Methods, "serve::Service", 159),
        ]);
        let tree = figures(&[
            (Measure::Pronouns, "README.md", 45),
            (Measure::Pronouns, "docs/plain.md", 30),
            (Measure::Methods, "serve::Service", 159),
        ]);
        assert!(before.above(&tree).is_empty());
        let after = before.lowered(&tree);
        let expected = limits(&[
            (Measure::Pronouns, "README.md", 45),
            (Measure::Methods, "serve::Service", 159),
        ]);
        assert_eq!(after, expected);
        assert_eq!(before.differences(&after), 3);
    }

    #[test]
    fn figure_above_its_limit_is_refused() {
        let before = limits(&[(Measure::Fields, "serve::Service", 40)]);
        let tree = figures(&[(Measure::Fields, "serve::Service", 41)]);
        let above: Vec<(String, u32)> = before
            .above(&tree)
            .into_iter()
            .map(|(figure, limit)| (figure.sentence(), limit))
            .collect();
        assert_eq!(above, [("serve::Service, fields: 41".to_owned(), 40)]);
        assert_eq!(before.lowered(&tree), before);
    }

    #[test]
    fn new_entry_has_the_house_limit() {
        let before = Limits::default();
        let within = figures(&[(Measure::Pronouns, "docs/new.md", 30)]);
        assert!(before.above(&within).is_empty());
        assert_eq!(before.lowered(&within), before);
        let above = figures(&[(Measure::Pronouns, "docs/new.md", 31)]);
        assert_eq!(before.above(&above).len(), 1);
    }

    #[test]
    fn written_limits_are_read_again() {
        let written = limits(&[
            (Measure::Names, "*_of.rs", 6),
            (Measure::Pronouns, "docs/b.md", 31),
            (Measure::Pronouns, "docs/a.md", 32),
        ]);
        let text = written.text();
        let tables =
            "\n[pronouns]\n\"docs/a.md\" = 32\n\"docs/b.md\" = 31\n\n[names]\n\"*_of.rs\" = 6\n";
        assert_eq!(text.strip_prefix(HEAD), Some(tables));
        assert_eq!(Limits::parse(&text).ok(), Some(written));
        assert!(Limits::parse("[pronoun]\n\"a\" = 1").is_err());
        assert!(Limits::parse("[names]\n\"a\" = \"1\"").is_err());
    }
}
