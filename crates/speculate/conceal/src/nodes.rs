//! What the kernel knows by number: inodes of an encapsulation's file system, and where they are.

mod changed;

use std::{
    collections::{HashMap, HashSet},
    ffi::{OsStr, OsString},
    iter,
};

use encapsulation::{Attributes, HiddenId, Identity, Kind, Stat, TreePath};

/// Node number of the root of a FUSE file system.
pub(crate) const ROOT_NODE: u64 = 1;
/// First node number for files without an inode number of their own, or with one that is taken.
const FIRST_OWN_NODE: u64 = 1 << 48;

/// One of them.
#[derive(Debug)]
struct Node {
    identity: Identity,
    /// A directory that it was found in, and its name there.
    place: (u64, OsString),
    /// Others of its names, which the kernel was told of before.
    others: Vec<(u64, OsString)>,
    /// How often the kernel was told of it, and has not forgotten it.
    lookups: u64,
    /// Of a directory: what the kernel was told last. When it has no name any more, nobody else says it.
    directory: Option<Stat>,
    /// What was set of what has no name any more, and is not ours.
    set: Attributes,
}

impl Node {
    fn places(&self) -> impl Iterator<Item = &(u64, OsString)> {
        iter::once(&self.place).chain(&self.others)
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Nodes {
    nodes: HashMap<u64, Node>,
    by_identity: HashMap<Identity, u64>,
    /// Names of which the kernel was told that there is nothing.
    absent: HashSet<(u64, OsString)>,
    next: u64,
}

impl Nodes {
    pub(crate) fn new() -> Self {
        Self {
            nodes: HashMap::new(),
            by_identity: HashMap::new(),
            absent: HashSet::new(),
            next: FIRST_OWN_NODE,
        }
    }

    /// The kernel is told of what was found there.
    pub(crate) fn count_lookup(&mut self, identity: Identity, parent: u64, name: &OsStr) -> u64 {
        let place = (parent, name.to_owned());
        if let Some(number) = self.by_identity.get(&identity).copied()
            && let Some(node) = self.nodes.get_mut(&number)
        {
            node.others.retain(|other| *other != place);
            let before = std::mem::replace(&mut node.place, place);
            if before != node.place {
                node.others.push(before);
            }
            node.lookups += 1;
            node.set = Attributes::default();
            return number;
        }
        let number = self.free_number(identity);
        let node = Node {
            identity,
            place,
            others: Vec::new(),
            lookups: 1,
            directory: None,
            set: Attributes::default(),
        };
        self.nodes.insert(number, node);
        self.by_identity.insert(identity, number);
        number
    }

    /// What the kernel is told of it.
    pub(crate) fn described(&mut self, number: u64, stat: &Stat) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.directory = (stat.kind == Kind::Directory).then_some(*stat);
        }
    }

    /// A directory that has no name any more.
    pub(crate) fn nameless(&self, number: u64) -> Option<Stat> {
        let directory = self.nodes.get(&number)?.directory?;
        Some(Stat {
            links: 0,
            ..directory
        })
    }

    /// It has no name any more: nobody else would see what is set of it.
    pub(crate) fn set(&mut self, number: u64, attributes: &Attributes) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.set = node.set.and(attributes);
        }
    }

    /// With what was set of it.
    pub(crate) fn with_set(&self, number: u64, stat: Stat) -> Stat {
        let node = self.nodes.get(&number);
        node.map_or(stat, |node| stat.with(&node.set))
    }

    /// The kernel is told that there is nothing.
    pub(crate) fn absence_sent(&mut self, parent: u64, name: &OsStr) {
        self.absent.insert((parent, name.to_owned()));
    }

    /// All that the kernel was told of names, which is forgotten here: directories, and names in them.
    pub(crate) fn all(&mut self) -> Vec<(u64, OsString)> {
        let mut all: Vec<_> = self.absent.drain().collect();
        all.extend(self.nodes.values().flat_map(Node::places).cloned());
        all
    }

    /// All that the kernel knows.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        iter::once(ROOT_NODE).chain(self.nodes.keys().copied())
    }

    /// Hidden files that the kernel knows.
    pub(crate) fn hidden(&self) -> impl Iterator<Item = HiddenId> {
        let identities = self.nodes.values().map(|node| node.identity);
        identities.filter_map(|identity| match identity {
            Identity::Hidden(id) => Some(id),
            Identity::Real { .. } => None,
        })
    }

    /// The one that it has on its own file system, where that is possible: it is what programs see.
    fn free_number(&mut self, identity: Identity) -> u64 {
        if let Identity::Real { inode, .. } = identity
            && (ROOT_NODE + 1..FIRST_OWN_NODE).contains(&inode)
            && !self.nodes.contains_key(&inode)
        {
            return inode;
        }
        self.next += 1;
        self.next
    }

    /// The kernel has forgotten it so many times.
    pub(crate) fn forget(&mut self, number: u64, times: u64) {
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        node.lookups = node.lookups.saturating_sub(times);
        if node.lookups == 0 {
            self.by_identity.remove(&node.identity);
            self.nodes.remove(&number);
        }
    }

    /// It is not where it was found last. `false`: the kernel knows of no other name of it.
    pub(crate) fn is_elsewhere(&mut self, number: u64) -> bool {
        let Some(node) = self.nodes.get_mut(&number) else {
            return false;
        };
        let other = node.others.pop();
        other.map(|other| node.place = other).is_some()
    }

    /// Where it is, if it is still where it was found.
    pub(crate) fn path(&self, number: u64) -> Option<TreePath> {
        let mut names = Vec::new();
        let mut at = number;
        while at != ROOT_NODE {
            // Directories that others have moved into each other, as it was told of them one after the other.
            if names.len() > self.nodes.len() {
                return None;
            }
            let (parent, name) = &self.nodes.get(&at)?.place;
            names.push(name);
            at = *parent;
        }
        let root = TreePath::root();
        Some(names.iter().rev().fold(root, |path, name| path.join(name)))
    }

    pub(crate) fn identity(&self, number: u64) -> Option<Identity> {
        Some(self.nodes.get(&number)?.identity)
    }

    /// What stood there stands here now; and the other way round, if they have changed places.
    pub(crate) fn moved(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), exchanged: bool) {
        for node in self.nodes.values_mut() {
            for place in iter::once(&mut node.place).chain(&mut node.others) {
                if place.0 == from.0 && place.1 == from.1 {
                    *place = (to.0, to.1.to_owned());
                } else if exchanged && place.0 == to.0 && place.1 == to.1 {
                    *place = (from.0, from.1.to_owned());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_node_within_itself_is_none() {
        let identity = |inode| Identity::Real { device: 1, inode };
        let mut nodes = Nodes::new();
        let one = nodes.count_lookup(identity(10), ROOT_NODE, "one".as_ref());
        let other = nodes.count_lookup(identity(11), one, "other".as_ref());
        assert_eq!(nodes.path(other), TreePath::new("one/other"));
        nodes.count_lookup(identity(10), other, "one".as_ref());
        assert_eq!(nodes.path(one), None);
    }
}
