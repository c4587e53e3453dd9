//! The kernel's knowledge of changed names.

use std::{
    collections::{HashMap, HashSet},
    ffi::{OsStr, OsString},
};

use encapsulation::{Effect, TreePath};

use super::{Nodes, ROOT_NODE};

impl Nodes {
    /// Names in the kernel's cache that the effects have changed: node number of the directory, and name.
    pub(crate) fn changed(&self, effects: &[Effect]) -> Vec<(u64, OsString)> {
        let known = Known::of(self);
        let (mut places, mut moves) = (Vec::new(), Moves::default());
        for effect in effects {
            for (parent, name) in effect.paths().filter_map(TreePath::split) {
                let directories = known.all(&moves.before(parent));
                places.extend(directories.into_iter().map(|it| (it, name.to_owned())));
            }
            match effect {
                Effect::Rename { from, to } => moves.add(&known, from, to),
                Effect::Exchange { one, other } => {
                    moves.add(&known, one, other);
                    moves.add(&known, other, one);
                }
                _ => {}
            }
            moves.time += 1;
        }
        places
    }
}

/// Node numbers by present and earlier names.
struct Known<'a> {
    names: HashMap<(u64, &'a OsStr), Vec<u64>>,
    /// Nodes with names below.
    directories: HashSet<u64>,
}

impl<'a> Known<'a> {
    fn of(nodes: &'a Nodes) -> Self {
        let mut names = HashMap::<_, Vec<_>>::new();
        let mut directories: HashSet<_> = nodes.absent.iter().map(|(parent, _)| *parent).collect();
        for (number, node) in &nodes.nodes {
            for (parent, name) in node.places() {
                names.entry((*parent, &**name)).or_default().push(*number);
                directories.insert(*parent);
            }
        }
        Self { names, directories }
    }

    /// The nodes that have this path, or had this path before.
    fn all(&self, path: &TreePath) -> Vec<u64> {
        path.names().fold(vec![ROOT_NODE], |parents, name| {
            let there = parents
                .iter()
                .map(|parent| self.names.get(&(*parent, name)));
            there.flatten().flatten().copied().collect()
        })
    }
}

/// Moved directories so far. The paths of an effect are valid after all earlier effects; the kernel's knowledge is from
/// the time before all effects.
#[derive(Default)]
struct Moves<'a> {
    time: usize,
    /// Time, source and destination of each move.
    all: Vec<(usize, &'a TreePath, &'a TreePath)>,
}

impl<'a> Moves<'a> {
    /// Records a move only if the kernel knows names below: most moves are moves of files.
    fn add(&mut self, known: &Known<'_>, from: &'a TreePath, to: &'a TreePath) {
        let moved = known.all(&self.before(from.clone()));
        if moved.iter().any(|it| known.directories.contains(it)) {
            self.all.push((self.time, from, to));
        }
    }

    /// The path before the moves.
    fn before(&self, mut path: TreePath) -> TreePath {
        let mut until = self.time;
        for (time, from, to) in self.all.iter().rev() {
            if *time < until && path.is_within(to) {
                let below = path.names().skip(to.names().count());
                path = below.fold((*from).clone(), |path, name| path.join(name));
                until = *time;
            }
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use encapsulation::Identity;

    use super::*;

    #[test]
    fn moved_directory_keeps_known_names() {
        let path = |path| TreePath::new(path).expect("a path");
        let mut nodes = Nodes::new();
        let mut count_lookup = |parent, name: &str, inode| {
            nodes.count_lookup(Identity::Real { device: 1, inode }, parent, name.as_ref())
        };
        let (a, b) = (
            count_lookup(ROOT_NODE, "a", 10),
            count_lookup(ROOT_NODE, "b", 11),
        );
        let (c, _) = (count_lookup(a, "c", 12), count_lookup(b, "d", 13));
        nodes.absence_sent(c, "e".as_ref());
        let unlink = |of| Effect::Unlink { path: path(of) };
        let (one, other) = (path("a"), path("b"));
        let (from, to) = (path("b/c"), path("f"));
        let changed = nodes.changed(&[
            Effect::Exchange { one, other },
            unlink("b/x"),
            unlink("a/x"),
            Effect::Rename { from, to },
            unlink("f/e"),
        ]);
        let names = [
            (ROOT_NODE, "a"),
            (ROOT_NODE, "b"),
            (a, "x"),
            (b, "x"),
            (a, "c"),
            (ROOT_NODE, "f"),
            (c, "e"),
        ];
        let names = names.map(|(parent, name)| (parent, OsString::from(name)));
        assert_eq!(changed, names);
    }
}
