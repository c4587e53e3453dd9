//! Finds the items of a source: definitions, fields, inherent methods, constants, and the sentences of errors.

use proc_macro2::{Span, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};

/// The kinds of definitions whose names are compared with the words of the house.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Type,
    Function,
    Module,
}

/// A named thing, at a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named<T> {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) value: T,
}

/// The items of a source.
#[derive(Debug, Default)]
pub(crate) struct Items {
    pub(crate) definitions: Vec<Named<Kind>>,
    /// Structs, each with the number of fields; without test code.
    pub(crate) structs: Vec<Named<usize>>,
    /// Inherent impls, each with the number of methods; without test code.
    pub(crate) impls: Vec<Named<usize>>,
    /// Constants with a name of one word that are a number or a duration.
    pub(crate) constants: Vec<Named<()>>,
    /// Sentences of `#[error("…")]`.
    pub(crate) errors: Vec<Named<()>>,
    /// First and last lines of modules of test code.
    tests: Vec<(usize, usize)>,
    /// Modules of test code that are files of their own.
    pub(crate) test_files: Vec<String>,
    depth_of_tests: usize,
}

const NUMBERS: [&str; 15] = [
    "Duration", "f32", "f64", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32",
    "u64", "u128", "usize",
];

impl Items {
    /// Parses a source.
    ///
    /// # Errors
    /// If the source is no Rust.
    pub(crate) fn parse(source: &str) -> syn::Result<Self> {
        let mut items = Self::default();
        items.visit_file(&syn::parse_file(source)?);
        Ok(items)
    }

    pub(crate) fn is_test(&self, line: usize) -> bool {
        let mut tests = self.tests.iter();
        tests.any(|(first, last)| (*first..=*last).contains(&line))
    }

    fn define(&mut self, ident: &syn::Ident, value: Kind) {
        self.definitions.push(named(ident, value));
    }
}

fn named<T>(ident: &syn::Ident, value: T) -> Named<T> {
    let name = ident.to_string();
    let line = line(ident.span());
    Named { name, line, value }
}

fn line(span: Span) -> usize {
    span.start().line
}

/// Whether the attributes have `#[cfg(test)]`, or `cfg(any(test, …))`.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else {
            return false;
        };
        if !list.path.is_ident("cfg") {
            return false;
        }
        let list = list.parse_args_with(Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated);
        list.is_ok_and(|list| list.iter().any(is_test_predicate))
    })
}

fn is_test_predicate(meta: &syn::Meta) -> bool {
    match meta {
        syn::Meta::List(list) if list.path.is_ident("any") || list.path.is_ident("all") => {
            let inner =
                list.parse_args_with(Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated);
            inner.is_ok_and(|inner| inner.iter().any(is_test_predicate))
        }
        meta => meta.path().is_ident("test"),
    }
}

/// Last segment of the path of a type.
fn type_name(of: &syn::Type) -> Option<&syn::Ident> {
    match of {
        syn::Type::Path(path) => path.path.segments.last().map(|segment| &segment.ident),
        _ => None,
    }
}

impl Items {
    fn constant(&mut self, ident: &syn::Ident, of: &syn::Type) {
        let is_number =
            type_name(of).is_some_and(|name| NUMBERS.iter().any(|number| name == number));
        let name = ident.to_string();
        if is_number && !name.contains('_') {
            self.constants.push(named(ident, ()));
        }
    }
}

impl<'ast> Visit<'ast> for Items {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let is_test = is_for_tests(&item.attrs);
        if let Some((braces, _)) = &item.content {
            self.define(&item.ident, Kind::Module);
            if is_test {
                let last = braces.span.close().end().line;
                self.tests.push((line(item.mod_token.span), last));
            }
        } else if is_test {
            self.test_files.push(item.ident.to_string());
        }
        self.depth_of_tests += usize::from(is_test);
        visit::visit_item_mod(self, item);
        self.depth_of_tests -= usize::from(is_test);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.define(&item.ident, Kind::Type);
        if self.depth_of_tests == 0 {
            self.structs.push(named(&item.ident, item.fields.len()));
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.define(&item.ident, Kind::Type);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.define(&item.ident, Kind::Type);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.define(&item.sig.ident, Kind::Function);
        visit::visit_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.define(&item.sig.ident, Kind::Function);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let methods = || {
            item.items.iter().filter_map(|item| match item {
                syn::ImplItem::Fn(method) => Some(method),
                _ => None,
            })
        };
        // The methods of a trait have the names that the trait gives.
        if item.trait_.is_none() {
            for method in methods() {
                self.define(&method.sig.ident, Kind::Function);
            }
            let is_test = self.depth_of_tests > 0 || is_for_tests(&item.attrs);
            if let (false, Some(name)) = (is_test, type_name(&item.self_ty)) {
                self.impls.push(named(name, methods().count()));
            }
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(&item.ident, &item.ty);
        visit::visit_item_const(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constant(&item.ident, &item.ty);
        visit::visit_impl_item_const(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        let syn::Meta::List(list) = &attribute.meta else {
            return;
        };
        if !list.path.is_ident("error") || self.depth_of_tests > 0 {
            return;
        }
        let first = list.tokens.clone().into_iter().next();
        if let Some(TokenTree::Literal(literal)) = first {
            let line = line(literal.span());
            if let syn::Lit::Str(sentence) = syn::Lit::new(literal) {
                let name = sentence.value();
                self.errors.push(Named {
                    name,
                    line,
                    value: (),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
        struct Wide { a: u8, b: u8, c: u8 }
        struct Pair(u8, u8);
        impl Wide { fn heed(&self) {} const MOST: usize = 3; fn second() { const LOOK: Duration = X; } }
        impl<T> a::Wide<T> { fn third() {} }
        impl Display for Wide { fn fmt(&self) {} }
        const REPLY_TIMEOUT: Duration = X;
        const NAME: &str = "";
        mod inner { pub enum Happening { A } trait Told {} }
        #[derive(Error)]
        enum Failure {
            #[error("first {0}, \
                     more")]
            A(u8),
            #[error(transparent)]
            B,
        }
        #[cfg(test)]
        mod model;
        #[cfg(test)]
        mod tests {
            struct Unseen { a: u8 }
            impl Unseen { fn f() {} }
            #[test]
            fn kept() {}
        }
    "#;

    fn items() -> Items {
        Items::parse(SOURCE).expect("the source is Rust")
    }

    fn names<T: Copy>(of: &[Named<T>]) -> Vec<(&str, T)> {
        of.iter().map(|named| (&*named.name, named.value)).collect()
    }

    #[test]
    fn fields_and_methods_are_counted_without_tests_and_traits() {
        let items = items();
        assert_eq!(names(&items.structs), [("Wide", 3), ("Pair", 2)]);
        assert_eq!(names(&items.impls), [("Wide", 2), ("Wide", 1)]);
    }

    #[test]
    fn definitions_have_kinds() {
        let items = items();
        let definitions = names(&items.definitions);
        let named = |name: &str| {
            definitions
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, kind)| *kind)
        };
        assert_eq!(named("Happening"), Some(Kind::Type));
        assert_eq!(named("Told"), Some(Kind::Type));
        assert_eq!(named("heed"), Some(Kind::Function));
        assert_eq!(named("kept"), Some(Kind::Function));
        assert_eq!(named("inner"), Some(Kind::Module));
        assert_eq!(named("fmt"), None);
        assert_eq!(named("model"), None);
    }

    #[test]
    fn constants_of_one_word_are_numbers_or_durations() {
        let items = items();
        let constants = items.constants.iter();
        let lines: Vec<_> = constants
            .map(|constant| (&*constant.name, constant.line))
            .collect();
        assert_eq!(lines, [("MOST", 4), ("LOOK", 4)]);
    }

    #[test]
    fn error_sentences_are_strings() {
        assert_eq!(names(&items().errors), [("first {0}, more", ())]);
    }

    #[test]
    fn test_code_is_known_by_its_lines() {
        let items = items();
        assert_eq!(items.test_files, ["model"]);
        assert!(items.is_test(21) && items.is_test(26));
        assert!(!items.is_test(19));
    }
}
