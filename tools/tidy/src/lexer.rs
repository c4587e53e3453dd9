//! Finds the comments and the strings of a Rust source.

/// Kind of a piece of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    DocComment,
    PlainComment,
    Text,
}

/// A comment without the marks, or a string without the quotes. The line breaks of the source stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) kind: Kind,
    /// Line where the piece begins, from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// Splits a source into pieces; comments of one kind on lines below each other are a single piece.
pub(crate) fn pieces(source: &str) -> Vec<Piece> {
    let mut lexer = Lexer {
        rest: source,
        line: 1,
        pieces: Vec::new(),
    };
    while lexer.step() {}
    joined(lexer.pieces)
}

fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last)
                if last.kind == piece.kind
                    && piece.kind != Kind::Text
                    && last.line + last.text.matches('\n').count() + 1 == piece.line =>
            {
                last.text.push('\n');
                last.text += &piece.text;
            }
            _ => joined.push(piece),
        }
    }
    joined
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    pieces: Vec<Piece>,
}

impl<'a> Lexer<'a> {
    /// Takes the next comment, literal, word or character. Returns whether there was more.
    fn step(&mut self) -> bool {
        let Some(first) = self.rest.chars().next() else {
            return false;
        };
        match first {
            '/' if self.rest.starts_with("//") => self.line_comment(),
            '/' if self.rest.starts_with("/*") => self.block_comment(),
            '"' => self.string(1),
            '\'' => self.character(),
            _ if first.is_alphanumeric() || first == '_' => self.word(),
            _ => {
                self.take(first.len_utf8());
            }
        }
        true
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    fn push(&mut self, kind: Kind, line: usize, text: String) {
        self.pieces.push(Piece { kind, line, text });
    }

    fn line_comment(&mut self) {
        let line = self.line;
        let end = self.rest.find('\n').unwrap_or(self.rest.len());
        let comment = self.take(end);
        let doc = match comment.strip_prefix("///") {
            Some(text) if !text.starts_with('/') => Some(text),
            _ => comment.strip_prefix("//!"),
        };
        let (kind, text) = match doc {
            Some(text) => (Kind::DocComment, text),
            None => (Kind::PlainComment, comment.trim_start_matches('/')),
        };
        self.push(
            kind,
            line,
            text.strip_prefix(' ').unwrap_or(text).to_owned(),
        );
    }

    fn block_comment(&mut self) {
        let line = self.line;
        let mut depth = 0_usize;
        let mut at = 0;
        while at < self.rest.len() {
            let rest = &self.rest.as_bytes()[at..];
            if rest.starts_with(b"/*") {
                depth += 1;
                at += 2;
            } else if rest.starts_with(b"*/") {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    break;
                }
            } else {
                at += 1;
            }
        }
        let comment = self.take(at);
        let inner = comment.trim_start_matches("/*").trim_end_matches("*/");
        let is_doc = comment.starts_with("/*!")
            || (comment.starts_with("/**") && !comment.starts_with("/***") && comment.len() > 4);
        let kind = if is_doc {
            Kind::DocComment
        } else {
            Kind::PlainComment
        };
        let marks: &[char] = &['*', '!', ' '];
        let lines = inner.split('\n').map(|line| line.trim_start_matches(marks));
        let text = lines.collect::<Vec<_>>().join("\n");
        self.push(kind, line, text);
    }

    /// A word; a word such as `br` before a quote begins a literal.
    fn word(&mut self) {
        let is_other = |c: char| !c.is_alphanumeric() && c != '_';
        let end = self.rest.find(is_other).unwrap_or(self.rest.len());
        let word = self.take(end);
        if !matches!(word, "r" | "b" | "c" | "br" | "cr") {
            return;
        }
        let unmarked = self.rest.trim_start_matches('#');
        let marks = self.rest.len() - unmarked.len();
        if !unmarked.starts_with('"') {
            return;
        }
        if word.ends_with('r') {
            self.raw_string(marks);
        } else if marks == 0 {
            self.string(1);
        }
    }

    fn raw_string(&mut self, marks: usize) {
        let line = self.line;
        self.take(marks + 1);
        let end = format!("\"{}", "#".repeat(marks));
        let length = self.rest.find(&end).unwrap_or(self.rest.len());
        let text = self.take(length).to_owned();
        self.take(end.len().min(self.rest.len()));
        self.push(Kind::Text, line, text);
    }

    /// A string with escapes, after `quotes` bytes.
    fn string(&mut self, quotes: usize) {
        let line = self.line;
        self.take(quotes);
        let mut text = String::new();
        let mut chars = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    end = at;
                    break;
                }
                '\\' => match chars.next() {
                    Some((_, 'n' | 't' | 'r' | '0')) => text.push(' '),
                    Some((_, c)) => text.push(c),
                    None => {}
                },
                c => text.push(c),
            }
        }
        self.take(end);
        self.take(1.min(self.rest.len()));
        self.push(Kind::Text, line, text);
    }

    /// A character, or the mark of a lifetime.
    fn character(&mut self) {
        let mut chars = self.rest.char_indices().skip(1);
        let length = match chars.next() {
            Some((_, '\\')) => {
                let escaped = chars.next().map_or(0, |(at, c)| at + c.len_utf8());
                self.rest[escaped..].find('\'').map(|end| escaped + end + 1)
            }
            Some(_) => chars
                .next()
                .filter(|(_, c)| *c == '\'')
                .map(|(at, _)| at + 1),
            None => None,
        };
        self.take(length.unwrap_or(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<(Kind, usize, String)> {
        let pieces = pieces(source).into_iter();
        pieces
            .map(|piece| (piece.kind, piece.line, piece.text))
            .collect()
    }

    #[test]
    fn comments_are_told_apart_and_joined() {
        let source = "//! Head.\n\n/// First,\n/// second.\nfn f() {} // aside\n//// ruler\n/* one\n * two */";
        let expected = [
            (Kind::DocComment, 1, "Head."),
            (Kind::DocComment, 3, "First,\nsecond."),
            (Kind::PlainComment, 5, "aside\nruler\none\ntwo "),
        ];
        assert_eq!(
            found(source),
            expected.map(|(k, l, t)| (k, l, t.to_owned()))
        );
    }

    #[test]
    fn strings_are_found_with_their_lines() {
        let source = "f(\"a \\\"b\\\" \\n// c\");\ng('\"', '\\'', 'x: &'static str, b\"d\", r#\"e \" f\"#, r#type);\nh(\"g \\\n   h\");\ni(\"j\");";
        let expected = [
            (Kind::Text, 1, "a \"b\"  // c"),
            (Kind::Text, 2, "d"),
            (Kind::Text, 2, "e \" f"),
            (Kind::Text, 3, "g \n   h"),
            (Kind::Text, 5, "j"),
        ];
        assert_eq!(
            found(source),
            expected.map(|(k, l, t)| (k, l, t.to_owned()))
        );
    }

    #[test]
    fn nested_comment_ends_where_the_outer_ends() {
        let expected = [
            (Kind::PlainComment, 1, "a /* b */ c ".to_owned()),
            (Kind::Text, 1, "d".to_owned()),
        ];
        assert_eq!(found("/* a /* b */ c */ \"d\""), expected);
    }
}
