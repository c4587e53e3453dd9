//! Figures of the tree, each with the lines that make the figure.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

/// Kind of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Measure {
    /// Pronouns per 1,000 words, rounded up.
    Pronouns,
    /// `what` per 1,000 words, rounded up.
    What,
    /// Words of the median sentence, rounded up.
    MedianSentence,
    /// Definitions with a word that the house replaces.
    Names,
    /// Fields of a struct.
    Fields,
    /// Inherent methods of a type.
    Methods,
    /// Files with an inherent impl of a type.
    ImplFiles,
    /// Constants of a crate with a name of one word.
    Constants,
    /// Lines of Markdown, or lines of comments of a crate, with too many columns.
    LongLines,
    /// Differences of the table of crates from the manifests.
    CrateTable,
}

impl Measure {
    pub(crate) const ALL: [Self; 10] = [
        Self::Pronouns,
        Self::What,
        Self::MedianSentence,
        Self::Names,
        Self::Fields,
        Self::Methods,
        Self::ImplFiles,
        Self::Constants,
        Self::LongLines,
        Self::CrateTable,
    ];

    /// Name of the table in `limits.toml`.
    pub(crate) const fn table(self) -> &'static str {
        match self {
            Self::Pronouns => "pronouns",
            Self::What => "what",
            Self::MedianSentence => "median-sentence",
            Self::Names => "names",
            Self::Fields => "fields",
            Self::Methods => "methods",
            Self::ImplFiles => "impl-files",
            Self::Constants => "constants",
            Self::LongLines => "long-lines",
            Self::CrateTable => "crate-table",
        }
    }

    /// Limit of a figure that `limits.toml` does not list.
    pub(crate) const fn house_limit(self) -> u32 {
        match self {
            Self::Pronouns => 30,
            Self::What => 2,
            Self::MedianSentence => 18,
            Self::Names | Self::Constants | Self::LongLines | Self::CrateTable => 0,
            Self::Fields => 15,
            Self::Methods => 40,
            Self::ImplFiles => 3,
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Pronouns => "pronouns per 1,000 words",
            Self::What => "\"what\" per 1,000 words",
            Self::MedianSentence => "words in the median sentence",
            Self::Names => "definitions",
            Self::Fields => "fields",
            Self::Methods => "inherent methods",
            Self::ImplFiles => "files with inherent impls",
            Self::Constants => "constants without unit or purpose in the name",
            Self::LongLines => "lines with too many columns",
            Self::CrateTable => "differences from the manifests",
        }
    }
}

/// A line that contributes to a figure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Evidence {
    pub(crate) file: Rc<str>,
    pub(crate) line: usize,
    pub(crate) note: String,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}  {}", self.file, self.line, self.note)
    }
}

/// A measured number, with the worst lines first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Figure {
    pub(crate) measure: Measure,
    pub(crate) key: String,
    pub(crate) value: u32,
    pub(crate) evidence: Vec<Evidence>,
}

impl Figure {
    pub(crate) fn sentence(&self) -> String {
        let Self {
            measure,
            key,
            value,
            ..
        } = self;
        let unit = measure.unit();
        match measure {
            Measure::Names => format!("names with `{key}`, {unit}: {value}"),
            _ => format!("{key}, {unit}: {value}"),
        }
    }
}

/// All figures of a tree.
#[derive(Debug, Default)]
pub(crate) struct Figures(BTreeMap<(Measure, String), Figure>);

impl Figures {
    pub(crate) fn add(&mut self, figure: Figure) {
        self.0.insert((figure.measure, figure.key.clone()), figure);
    }

    /// Counts one more, and keeps the line.
    pub(crate) fn count(&mut self, measure: Measure, key: &str, evidence: Evidence) {
        let figure = self.0.entry((measure, key.to_owned()));
        let figure = figure.or_insert_with(|| Figure {
            measure,
            key: key.to_owned(),
            value: 0,
            evidence: Vec::new(),
        });
        figure.value += 1;
        figure.evidence.push(evidence);
    }

    pub(crate) fn value(&self, measure: Measure, key: &str) -> Option<u32> {
        let figure = self.0.get(&(measure, key.to_owned()));
        figure.map(|figure| figure.value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Figure> {
        self.0.values()
    }
}
