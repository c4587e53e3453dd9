//! Counts pronouns, `what` and the words of sentences in prose, without code and tables.

use std::rc::Rc;

use crate::figures::{Evidence, Figure, Figures, Measure};

const PRONOUNS: [&str; 13] = [
    "it", "its", "they", "them", "their", "one", "those", "others", "nobody", "nothing",
    "somebody", "whoever", "so",
];

/// A shorter text has no density worth a limit.
const LEAST_WORDS: usize = 60;
/// A shorter piece between full stops is a label, not a sentence.
const LEAST_SENTENCE_WORDS: usize = 3;
/// Lines kept as evidence of a group.
const KEPT_LINES: usize = 8;

/// Prose of a group of texts: a page, the comments of a crate, the error sentences.
#[derive(Debug, Default)]
pub(crate) struct Prose {
    words: usize,
    pronouns: usize,
    whats: usize,
    /// Lines with pronouns or `what`: number of hits, and the words.
    lines: Vec<(usize, usize, Evidence)>,
    /// Words of each sentence, and where the sentence begins.
    sentences: Vec<(usize, Rc<str>, usize)>,
}

impl Prose {
    /// Adds a text in Markdown that begins at a line of a file.
    pub(crate) fn markdown(&mut self, file: &Rc<str>, line: usize, text: &str) {
        for paragraph in paragraphs(line, text) {
            self.paragraph(file, &paragraph);
        }
    }

    /// Adds a string of a program: `{…}` is a word.
    pub(crate) fn sentence(&mut self, file: &Rc<str>, line: usize, text: &str) {
        let text = without_placeholders(text);
        self.markdown(file, line, &text);
    }

    fn paragraph(&mut self, file: &Rc<str>, paragraph: &Paragraph) {
        let text = clean(&paragraph.text);
        for (number, line) in (paragraph.line..).zip(text.split('\n')) {
            self.line(file, number, line);
        }
        for (start, sentence) in sentences(&text) {
            let count = words(sentence).count();
            if count >= LEAST_SENTENCE_WORDS {
                let line = paragraph.line + text[..start].matches('\n').count();
                self.sentences.push((count, file.clone(), line));
            }
        }
    }

    fn line(&mut self, file: &Rc<str>, number: usize, line: &str) {
        let (mut pronouns, mut whats) = (Vec::new(), 0);
        for word in words(line) {
            self.words += 1;
            let word = word.to_ascii_lowercase();
            if word == "what" {
                whats += 1;
            } else if PRONOUNS.contains(&&*word) {
                pronouns.push(word);
            }
        }
        self.pronouns += pronouns.len();
        self.whats += whats;
        if whats + pronouns.len() > 0 {
            let counts = (pronouns.len(), whats);
            pronouns.extend(std::iter::repeat_n("what".to_owned(), whats));
            let file = file.clone();
            let note = pronouns.join(", ");
            let line = number;
            self.lines
                .push((counts.0, counts.1, Evidence { file, line, note }));
        }
    }

    /// The figures of the group, if the group has enough words.
    pub(crate) fn add_to(mut self, figures: &mut Figures, key: &str) {
        if self.words < LEAST_WORDS {
            return;
        }
        let mut add = |measure, value, evidence| {
            let key = key.to_owned();
            figures.add(Figure {
                measure,
                key,
                value,
                evidence,
            });
        };
        self.lines
            .sort_by_key(|(pronouns, _, _)| std::cmp::Reverse(*pronouns));
        let of_pronouns = kept(self.lines.iter().filter(|(pronouns, ..)| *pronouns > 0));
        add(
            Measure::Pronouns,
            per_thousand(self.pronouns, self.words),
            of_pronouns,
        );
        self.lines
            .sort_by_key(|(_, whats, _)| std::cmp::Reverse(*whats));
        let of_what = kept(self.lines.iter().filter(|(_, whats, _)| *whats > 0));
        add(Measure::What, per_thousand(self.whats, self.words), of_what);
        self.sentences
            .sort_by_key(|(words, ..)| std::cmp::Reverse(*words));
        let longest = self.sentences.iter().take(KEPT_LINES);
        let longest = longest.map(|(words, file, line)| Evidence {
            file: file.clone(),
            line: *line,
            note: format!("{words} words in a sentence"),
        });
        add(
            Measure::MedianSentence,
            median(&self.sentences),
            longest.collect(),
        );
    }
}

fn kept<'a>(lines: impl Iterator<Item = &'a (usize, usize, Evidence)>) -> Vec<Evidence> {
    lines
        .take(KEPT_LINES)
        .map(|(.., evidence)| evidence.clone())
        .collect()
}

/// Rounded up.
fn per_thousand(count: usize, of: usize) -> u32 {
    u32::try_from((count * 1000).div_ceil(of.max(1))).unwrap_or(u32::MAX)
}

/// Of sorted sentences, rounded up.
fn median(sentences: &[(usize, Rc<str>, usize)]) -> u32 {
    let middle = sentences.len() / 2;
    let words = |at: usize| sentences.get(at).map_or(0, |(words, ..)| *words);
    let median = if sentences.len() % 2 == 1 {
        words(middle)
    } else {
        (words(middle) + words(middle.saturating_sub(1))).div_ceil(2)
    };
    u32::try_from(median).unwrap_or(u32::MAX)
}

/// A heading, an item of a list, or lines of text below each other.
#[derive(Debug, PartialEq, Eq)]
struct Paragraph {
    line: usize,
    text: String,
}

/// Splits Markdown; code blocks, tables and definitions of links are left out.
fn paragraphs(first_line: usize, text: &str) -> Vec<Paragraph> {
    let mut paragraphs: Vec<Paragraph> = Vec::new();
    let mut fence: Option<&str> = None;
    let mut is_open = false;
    for (line, text) in (first_line..).zip(text.split('\n')) {
        let bare = text.trim_start().trim_start_matches("> ");
        if let Some(mark) = fence {
            if bare.trim_end() == mark {
                fence = None;
            }
            continue;
        }
        fence = ["```", "~~~"]
            .into_iter()
            .find(|mark| bare.starts_with(mark));
        let is_left_out = fence.is_some() || bare.starts_with('|') || is_link_definition(bare);
        if is_left_out || bare.trim().is_empty() {
            is_open = false;
            continue;
        }
        let is_heading = bare.starts_with('#');
        match paragraphs.last_mut() {
            Some(last) if is_open && !is_heading && !is_item(bare) => {
                last.text.push('\n');
                last.text += bare;
            }
            _ => paragraphs.push(Paragraph {
                line,
                text: bare.to_owned(),
            }),
        }
        is_open = !is_heading;
    }
    paragraphs
}

fn is_item(line: &str) -> bool {
    let after_number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = after_number.len() < line.len() && after_number.starts_with(". ");
    is_numbered || ["- ", "* ", "+ "].iter().any(|mark| line.starts_with(mark))
}

fn is_link_definition(line: &str) -> bool {
    let label = line.strip_prefix('[');
    label.is_some_and(|rest| {
        rest.find("]: ")
            .is_some_and(|end| !rest[..end].contains(']'))
    })
}

/// Replaces code by a word, and removes the targets of links and bare addresses; line breaks stay.
fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let left_out = match c {
            '`' => code_length(rest),
            ']' if rest.starts_with("](") => rest.find(')').map(|end| end + 1),
            'h' if rest.starts_with("http://") || rest.starts_with("https://") => {
                let is_end = |c: char| c.is_whitespace() || matches!(c, ')' | '>' | ',');
                Some(rest.find(is_end).unwrap_or(rest.len()))
            }
            _ => None,
        };
        match left_out {
            Some(length) => {
                let (code, after) = rest.split_at(length);
                clean.push_str(if c == '`' { "X" } else { " " });
                clean.extend(code.chars().filter(|c| *c == '\n'));
                rest = after;
            }
            None => {
                clean.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    clean
}

/// Length of inline code with its marks, if the code ends.
fn code_length(text: &str) -> Option<usize> {
    let marks = text.len() - text.trim_start_matches('`').len();
    let mark = &text[..marks];
    let mut at = marks;
    loop {
        at += text[at..].find(mark)?;
        let run = text[at..].len() - text[at..].trim_start_matches('`').len();
        if run == marks {
            return Some(at + run);
        }
        at += run;
    }
}

fn without_placeholders(text: &str) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut depth = 0_usize;
    for c in text.chars() {
        match c {
            '{' => {
                if depth == 0 {
                    replaced.push('X');
                }
                depth += 1;
            }
            '}' => depth = depth.saturating_sub(1),
            c if depth == 0 || c == '\n' => replaced.push(c),
            _ => {}
        }
    }
    replaced
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphabetic() && c != '\'');
    words.filter(|word| !word.is_empty())
}

/// Pieces of a paragraph between the marks `.!?:;`, each with the place where the piece begins.
fn sentences(text: &str) -> Vec<(usize, &str)> {
    let mut sentences = Vec::new();
    let mut start = 0;
    for (at, mark) in text.match_indices(['.', '!', '?', ':', ';']) {
        let end = at + mark.len();
        if text[end..].starts_with(char::is_whitespace) {
            sentences.push((start, &text[start..end]));
            start = end + 1;
        }
    }
    sentences.push((start, &text[start.min(text.len())..]));
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(markdown: &str) -> Vec<(usize, String)> {
        let paragraphs = paragraphs(1, markdown).into_iter();
        paragraphs
            .map(|paragraph| (paragraph.line, paragraph.text))
            .collect()
    }

    #[test]
    fn code_blocks_tables_and_link_definitions_are_left_out() {
        let markdown = "# Head\nFirst\nline.\n\n```sh\nit it\n```\n- item\n  more\n- second\n| it | it |\n|---|---|\n> quoted\n\n[a]: https://it.it\n1. one";
        let expected = [
            (1, "# Head"),
            (2, "First\nline."),
            (8, "- item\nmore"),
            (10, "- second"),
            (13, "quoted"),
            (16, "1. one"),
        ];
        assert_eq!(
            texts(markdown),
            expected.map(|(line, text)| (line, text.to_owned()))
        );
    }

    #[test]
    fn inline_code_is_a_word_and_link_targets_are_none() {
        assert_eq!(
            clean("a `it\nits` ``b ` it`` [c](it.md) d"),
            "a X\n X [c  d"
        );
        assert_eq!(
            clean("see <https://it.it/it> and `open"),
            "see < > and `open"
        );
    }

    #[test]
    fn sentences_end_at_marks_before_white_space() {
        let text = "One two 1.5 three. Four:\nfive; six";
        let pieces: Vec<&str> = sentences(text)
            .into_iter()
            .map(|(_, piece)| piece)
            .collect();
        assert_eq!(pieces, ["One two 1.5 three.", "Four:", "five;", "six"]);
        assert_eq!(
            words("It's X, 12 b-c").collect::<Vec<_>>(),
            ["It's", "X", "b", "c"]
        );
    }

    #[test]
    fn placeholders_are_words() {
        assert_eq!(without_placeholders("{n} of {a:?}; {{b}}"), "X of X; X");
    }

    #[test]
    fn figures_have_the_worst_lines_first() {
        let mut prose = Prose::default();
        let file: Rc<str> = "a.md".into();
        let plain = "alpha beta gamma delta epsilon zeta eta theta iota kappa. ".repeat(6);
        prose.markdown(
            &file,
            1,
            &format!("{plain}\nit goes on\nthey say so to what\n"),
        );
        let mut figures = Figures::default();
        prose.add_to(&mut figures, "a.md");
        // 68 words, 3 pronouns, one `what`; six sentences of 10 words and one of 8.
        assert_eq!(figures.value(Measure::Pronouns, "a.md"), Some(45));
        assert_eq!(figures.value(Measure::What, "a.md"), Some(15));
        assert_eq!(figures.value(Measure::MedianSentence, "a.md"), Some(10));
        let pronouns = figures
            .iter()
            .find(|figure| figure.measure == Measure::Pronouns);
        let evidence = pronouns.map(|figure| figure.evidence[0].to_string());
        assert_eq!(evidence.as_deref(), Some("a.md:3  they, so, what"));
    }

    #[test]
    fn short_group_has_no_figures() {
        let mut prose = Prose::default();
        prose.sentence(&"a.rs".into(), 1, "it is what it is");
        let mut figures = Figures::default();
        prose.add_to(&mut figures, "a");
        assert_eq!(figures.iter().count(), 0);
    }

    #[test]
    fn median_of_an_even_number_is_rounded_up() {
        let file: Rc<str> = "a".into();
        let of = |lengths: &[usize]| {
            let sentences: Vec<_> = lengths.iter().map(|n| (*n, file.clone(), 1)).collect();
            median(&sentences)
        };
        assert_eq!(of(&[9, 7, 4, 3]), 6);
        assert_eq!(of(&[9, 7, 3]), 7);
        assert_eq!(of(&[]), 0);
    }
}
