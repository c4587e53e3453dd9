//! Groups the prose of the tree: pages, help, events, errors, metrics, and the comments of each crate.

use std::collections::BTreeMap;

use crate::figures::Figures;
use crate::items::Items;
use crate::lexer::{Kind, Piece};
use crate::prose::Prose;
use crate::tree::{SourceFile, TextFile};

const HELP: &str = "help texts";
const EVENTS: &str = "events and warnings";
const ERRORS: &str = "error sentences";
const METRICS: &str = "metric help";

/// Sources whose doc comments and strings are the help of `outlive`.
const HELP_SOURCES: [&str; 2] = ["crates/cli/src/arguments.rs", "crates/cli/src/arguments/"];
/// Sources whose strings are sentences of events and warnings.
const EVENT_SOURCES: [&str; 4] = [
    "crates/service/logger/src/service/events.rs",
    "crates/service/recovery/src/event.rs",
    "crates/service/serve/src/events.rs",
    "crates/service/serve/src/events/",
];
/// Sources whose strings describe metrics.
const METRIC_SOURCES: [&str; 2] = [
    "crates/service/logger/src/service/metrics.rs",
    "crates/service/serve/src/metrics.rs",
];
/// The source whose doc comments in a macro describe metrics.
const COUNTERS: &str = "crates/south/dataplane/src/object/reading.rs";
const COUNTERS_MACRO: &str = "\ncounters! {";

/// A shorter string is a name, not a sentence.
const LEAST_STRING_WORDS: usize = 3;

/// The prose of each group.
#[derive(Debug, Default)]
pub(crate) struct Words(BTreeMap<String, Prose>);

impl Words {
    pub(crate) fn page(&mut self, page: &TextFile) {
        self.group(&page.path).markdown(&page.path, 1, &page.text);
    }

    pub(crate) fn source(
        &mut self,
        source: &SourceFile,
        items: &Items,
        pieces: &[Piece],
        is_test: bool,
    ) {
        let path = &source.file.path;
        for error in &items.errors {
            self.group(ERRORS).sentence(path, error.line, &error.name);
        }
        let of = Sources::of(source, is_test);
        for piece in pieces {
            let of = if items.is_test(piece.line) {
                Sources::default()
            } else {
                of
            };
            let krate = &source.krate;
            let line = piece.line;
            let group = match piece.kind {
                Kind::DocComment if of.is_help => HELP.to_owned(),
                Kind::DocComment if of.counters.is_some_and(|first| line > first) => {
                    METRICS.to_owned()
                }
                Kind::DocComment => format!("{krate}: doc comments"),
                Kind::PlainComment => format!("{krate}: comments"),
                Kind::Text => match of.strings {
                    Some(group) if is_sentence(&piece.text) => {
                        self.group(group).sentence(path, line, &piece.text);
                        continue;
                    }
                    _ => continue,
                },
            };
            self.group(&group).markdown(path, line, &piece.text);
        }
    }

    fn group(&mut self, key: &str) -> &mut Prose {
        self.0.entry(key.to_owned()).or_default()
    }

    pub(crate) fn add_to(self, figures: &mut Figures) {
        for (key, prose) in self.0 {
            prose.add_to(figures, &key);
        }
    }
}

/// Groups of the pieces of a source, beside the comments.
#[derive(Clone, Copy, Default)]
struct Sources {
    is_help: bool,
    /// Line after which doc comments describe counters.
    counters: Option<usize>,
    /// Group of the strings.
    strings: Option<&'static str>,
}

impl Sources {
    fn of(source: &SourceFile, is_test: bool) -> Self {
        if is_test {
            return Self::default();
        }
        let path = &source.file.path;
        let is_of = |sources: &[&str]| sources.iter().any(|source| path.starts_with(source));
        let is_help = is_of(&HELP_SOURCES);
        let macro_line = || {
            let at = source.file.text.find(COUNTERS_MACRO)?;
            Some(source.file.text[..at].matches('\n').count() + 1)
        };
        let counters = if **path == *COUNTERS {
            macro_line()
        } else {
            None
        };
        let strings = if is_help {
            Some(HELP)
        } else if is_of(&EVENT_SOURCES) {
            Some(EVENTS)
        } else {
            is_of(&METRIC_SOURCES).then_some(METRICS)
        };
        Self {
            is_help,
            counters,
            strings,
        }
    }
}

/// Whether a string has words after each other: not a name, and not a list of names.
fn is_sentence(text: &str) -> bool {
    let is_list = text.split(", ").all(|name| !name.contains(' '));
    !is_list && text.split_whitespace().count() >= LEAST_STRING_WORDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Measure;
    use crate::lexer::pieces;

    #[test]
    fn names_and_lists_are_no_sentences() {
        assert!(is_sentence("the server runs"));
        assert!(!is_sentence("first_start"));
        assert!(!is_sentence("former, host, connections, lost"));
        assert!(!is_sentence("{} s"));
    }

    fn measured(path: &str, text: &str) -> Figures {
        let items = Items::parse(text).expect("the source is Rust");
        let pieces = pieces(text);
        let file = TextFile {
            path: path.into(),
            text: text.to_owned(),
        };
        let krate = "crates/service/serve".into();
        let mut words = Words::default();
        words.source(&SourceFile { file, krate }, &items, &pieces, false);
        let mut figures = Figures::default();
        words.add_to(&mut figures);
        figures
    }

    #[test]
    fn strings_of_events_are_a_group_without_strings_of_tests() {
        let plain = "the server runs and ".repeat(20);
        let test = "it it it ".repeat(30);
        let text = format!(
            "/// {plain}\nfn f() {{ g(\"{plain} it\"); }}\n#[cfg(test)]\nmod tests {{\nfn h() {{ g(\"{test}\"); }}\n}}\n"
        );
        let figures = measured("crates/service/serve/src/events.rs", &text);
        // One pronoun in 81 words.
        assert_eq!(figures.value(Measure::Pronouns, EVENTS), Some(13));
        assert_eq!(
            figures.value(Measure::Pronouns, "crates/service/serve: doc comments"),
            Some(0)
        );
        let figures = measured("crates/service/serve/src/executor.rs", &text);
        assert_eq!(figures.value(Measure::Pronouns, EVENTS), None);
    }

    #[test]
    fn error_sentences_are_a_group() {
        let plain = "the server runs and ".repeat(20);
        let text = format!("enum E {{ #[error(\"{plain} it\")] A }}");
        let figures = measured("crates/service/serve/src/error.rs", &text);
        assert_eq!(figures.value(Measure::Pronouns, ERRORS), Some(13));
    }
}
