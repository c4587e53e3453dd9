//! Measures a tree: all figures, with the lines that make them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use anyhow::{Result, anyhow};

use crate::columns;
use crate::crate_table;
use crate::figures::{Evidence, Figure, Figures, Measure};
use crate::items::{Items, Kind, Named};
use crate::lexer::pieces;
use crate::names::{self, Replaced};
use crate::tree::{SourceFile, TextFile, Tree};
use crate::words::Words;

/// Measures all pages and sources.
///
/// # Errors
/// If a source is no Rust, or a manifest cannot be read.
pub(crate) fn measure(tree: &Tree) -> Result<Figures> {
    let mut figures = Figures::default();
    let mut words = Words::default();
    for page in &tree.pages {
        words.page(page);
        columns::page(&mut figures, page);
    }
    let mut parsed = Vec::new();
    for source in &tree.sources {
        let items = Items::parse(&source.file.text);
        let items = items.map_err(|error| anyhow!("{}: {error}", source.file.path))?;
        parsed.push((source, items));
    }
    let test_files = test_files(&parsed);
    let mut types = Types::default();
    for (source, items) in &parsed {
        let is_test = source.is_test() || test_files.contains(&*source.file.path);
        let pieces = pieces(&source.file.text);
        words.source(source, items, &pieces, is_test);
        columns::source(&mut figures, source, &pieces);
        replaced_names(&mut figures, source, items);
        for constant in &items.constants {
            let evidence = evidence(&source.file, constant.line, &constant.name);
            figures.count(Measure::Constants, &source.krate, evidence);
        }
        if !is_test {
            types.add(source, items);
        }
    }
    words.add_to(&mut figures);
    types.add_to(&mut figures);
    crate_table::compare(&mut figures, tree)?;
    Ok(figures)
}

fn evidence(file: &TextFile, line: usize, note: &str) -> Evidence {
    let file = file.path.clone();
    let note = note.to_owned();
    Evidence { file, line, note }
}

/// Files of modules that only tests have: `mod model;` after `#[cfg(test)]`.
fn test_files(parsed: &[(&SourceFile, Items)]) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for (source, items) in parsed {
        let path = &*source.file.path;
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let directory = match name {
            "lib.rs" | "main.rs" | "mod.rs" => directory.to_owned(),
            name => format!("{directory}/{}", name.trim_end_matches(".rs")),
        };
        for module in &items.test_files {
            files.insert(format!("{directory}/{module}.rs"));
            files.insert(format!("{directory}/{module}/mod.rs"));
        }
    }
    files
}

fn replaced_names(figures: &mut Figures, source: &SourceFile, items: &Items) {
    let mut count = |replaced: &Replaced, line: usize, name: &str| {
        let Replaced { word, standard } = replaced;
        let evidence = evidence(&source.file, line, &format!("{name}: {standard}"));
        figures.count(Measure::Names, word, evidence);
    };
    let path = &source.file.path;
    let file = path.rsplit('/').next().unwrap_or(path);
    names::of_file(file).for_each(|replaced| count(replaced, 1, file));
    for Named { name, line, value } in &items.definitions {
        let mut count = |replaced: &Replaced| count(replaced, *line, name);
        match value {
            Kind::Type => names::of_type(name).for_each(&mut count),
            Kind::Function | Kind::Module => names::of_function(name).for_each(&mut count),
        }
    }
}

/// Fields, methods and files of types, by crate and name.
#[derive(Default)]
struct Types(BTreeMap<String, Type>);

#[derive(Default)]
struct Type {
    fields: Vec<Count>,
    methods: Vec<Count>,
}

/// Of a struct or an impl.
struct Count {
    file: Rc<str>,
    line: usize,
    count: usize,
}

impl Types {
    fn add(&mut self, source: &SourceFile, items: &Items) {
        let count = |named: &Named<usize>| Count {
            file: source.file.path.clone(),
            line: named.line,
            count: named.value,
        };
        let mut of = |named: &Named<usize>, list: fn(&mut Type) -> &mut Vec<Count>| {
            let key = format!("{}::{}", source.crate_name(), named.name);
            list(self.0.entry(key).or_default()).push(count(named));
        };
        for named in &items.structs {
            of(named, |of| &mut of.fields);
        }
        for named in &items.impls {
            of(named, |of| &mut of.methods);
        }
    }

    fn add_to(self, figures: &mut Figures) {
        for (key, Type { fields, methods }) in self.0 {
            // Types that merely share a name: the widest.
            let widest = fields.iter().map(|of| of.count).max().unwrap_or(0);
            let number: usize = methods.iter().map(|of| of.count).sum();
            let files: BTreeSet<&str> = methods.iter().map(|of| &*of.file).collect();
            let mut add = |measure, value: usize, evidence: Vec<Evidence>| {
                let key = key.clone();
                let value = u32::try_from(value).unwrap_or(u32::MAX);
                figures.add(Figure {
                    measure,
                    key,
                    value,
                    evidence,
                });
            };
            add(Measure::Fields, widest, places(&fields, "fields"));
            add(Measure::Methods, number, places(&methods, "methods"));
            add(Measure::ImplFiles, files.len(), places(&methods, "methods"));
        }
    }
}

fn places(counts: &[Count], unit: &str) -> Vec<Evidence> {
    let mut counts: Vec<&Count> = counts.iter().collect();
    counts.sort_by_key(|of| std::cmp::Reverse(of.count));
    let places = counts.into_iter().map(|of| Evidence {
        file: of.file.clone(),
        line: of.line,
        note: format!("{} {unit}", of.count),
    });
    places.collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn tree(sources: &[(&str, &str)]) -> Tree {
        let sources = sources.iter().map(|(path, text)| SourceFile {
            file: TextFile {
                path: (*path).into(),
                text: (*text).to_owned(),
            },
            krate: "crates/a".into(),
        });
        Tree {
            root: PathBuf::new(),
            pages: Vec::new(),
            sources: sources.collect(),
        }
    }

    #[test]
    fn methods_of_all_files_are_counted_together() {
        let tree = tree(&[
            (
                "crates/a/src/lib.rs",
                "struct A { a: u8 }\nimpl A { fn f() {} }\n#[cfg(test)] mod model;",
            ),
            (
                "crates/a/src/more.rs",
                "impl A { fn g() {} fn h() {} }\nimpl A { fn i() {} }",
            ),
            ("crates/a/src/model.rs", "impl A { fn j() {} }"),
            ("crates/a/src/more/tests.rs", "impl A { fn k() {} }"),
        ]);
        let figures = measure(&tree).expect("the sources are Rust");
        let value = |measure| figures.value(measure, "a::A");
        assert_eq!(value(Measure::Fields), Some(1));
        assert_eq!(value(Measure::Methods), Some(4));
        assert_eq!(value(Measure::ImplFiles), Some(2));
    }

    #[test]
    fn names_and_constants_are_counted_in_all_code() {
        let tree = tree(&[
            (
                "crates/a/src/kinship.rs",
                "fn heed() {}\nconst MOST: u64 = 1;\nstruct Told;",
            ),
            (
                "crates/a/tests/b.rs",
                "fn heed_more() { const MOST: u8 = 1; }",
            ),
        ]);
        let figures = measure(&tree).expect("the sources are Rust");
        assert_eq!(figures.value(Measure::Names, "heed"), Some(2));
        assert_eq!(figures.value(Measure::Names, "kinship"), Some(1));
        assert_eq!(figures.value(Measure::Names, "Told"), Some(1));
        assert_eq!(figures.value(Measure::Constants, "crates/a"), Some(2));
    }

    #[test]
    fn source_that_is_no_rust_is_an_error() {
        let error = measure(&tree(&[("crates/a/src/lib.rs", "fn {")]));
        assert!(error.is_err_and(|error| error.to_string().starts_with("crates/a/src/lib.rs: ")));
    }
}
