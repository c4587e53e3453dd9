//! Finds lines with too many columns: prose of Markdown, and comments of Rust.

use crate::figures::{Evidence, Figures, Measure};
use crate::lexer::{Kind, Piece};
use crate::tree::{SourceFile, TextFile};

/// Columns of Markdown, outside tables and code.
const MARKDOWN_COLUMNS: usize = 160;
/// Columns of a line with a comment.
const COMMENT_COLUMNS: usize = 120;

/// Counts the long lines of a page.
pub(crate) fn page(figures: &mut Figures, page: &TextFile) {
    let mut is_code = false;
    for (number, line) in (1..).zip(page.text.lines()) {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !line.trim_start().starts_with('|') {
            count(figures, page, &page.path, number, line, MARKDOWN_COLUMNS);
        }
    }
}

/// Counts the long lines of a source's comments.
pub(crate) fn source(figures: &mut Figures, source: &SourceFile, pieces: &[Piece]) {
    let lines: Vec<&str> = source.file.text.lines().collect();
    for piece in pieces.iter().filter(|piece| piece.kind != Kind::Text) {
        for number in piece.line..=piece.line + piece.text.matches('\n').count() {
            let line = lines.get(number - 1).copied().unwrap_or_default();
            count(
                figures,
                &source.file,
                &source.krate,
                number,
                line,
                COMMENT_COLUMNS,
            );
        }
    }
}

fn count(figures: &mut Figures, file: &TextFile, key: &str, line: usize, text: &str, most: usize) {
    let columns = text.chars().count();
    if columns > most {
        let note = format!("{columns} columns, at most {most}");
        let file = file.path.clone();
        figures.count(Measure::LongLines, key, Evidence { file, line, note });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lexer::pieces;

    #[test]
    fn tables_and_code_may_be_longer() {
        let long = "ä".repeat(161);
        let text = format!("{long}\n| {long} |\n```\n{long}\n```\n{}", "a".repeat(160));
        let path = "docs/a.md".into();
        let mut figures = Figures::default();
        page(&mut figures, &TextFile { path, text });
        assert_eq!(figures.value(Measure::LongLines, "docs/a.md"), Some(1));
    }

    #[test]
    fn comments_are_short_and_code_is_not_counted() {
        let long = "a".repeat(120);
        let text = format!("// {long}\nf(\"{long}\");\n/// a\n/// {long}\n");
        let pieces = pieces(&text);
        let path = "crates/a/src/lib.rs".into();
        let file = TextFile { path, text };
        let krate = "crates/a".into();
        let mut figures = Figures::default();
        source(&mut figures, &SourceFile { file, krate }, &pieces);
        assert_eq!(figures.value(Measure::LongLines, "crates/a"), Some(2));
    }
}
