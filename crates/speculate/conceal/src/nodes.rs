//! Nodes of a FUSE file system: inodes of an encapsulation, and their paths.

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

/// A node.
#[derive(Debug)]
struct Node {
    identity: Identity,
    /// Parent directory and name.
    place: (u64, OsString),
    /// Further names that the kernel knows.
    others: Vec<(u64, OsString)>,
    /// Number of lookups that the kernel has not forgotten (`FUSE_FORGET`).
    lookups: u64,
    /// For a directory: the last attributes sent to the kernel. A removed directory has no other source.
    directory: Option<Stat>,
    /// Attributes that were set on a file without a name that is not hidden.
    set: Attributes,
}

impl Node {
    fn places(&self) -> impl Iterator<Item = &(u64, OsString)> {
        iter::once(&self.place).chain(&self.others)
    }
}

/// All nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    nodes: HashMap<u64, Node>,
    by_identity: HashMap<Identity, u64>,
    /// Names that the kernel knows as absent.
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

    /// Counts a lookup by the kernel, and returns the node number.
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

    /// Stores attributes that were sent to the kernel.
    pub(crate) fn described(&mut self, number: u64, stat: &Stat) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.directory = (stat.kind == Kind::Directory).then_some(*stat);
        }
    }

    /// A directory without a name.
    pub(crate) fn nameless(&self, number: u64) -> Option<Stat> {
        let directory = self.nodes.get(&number)?.directory?;
        Some(Stat {
            links: 0,
            ..directory
        })
    }

    /// Stores attributes of a file without a name: only this file system shows them.
    pub(crate) fn set(&mut self, number: u64, attributes: &Attributes) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.set = node.set.and(attributes);
        }
    }

    /// Adds the stored attributes.
    pub(crate) fn with_set(&self, number: u64, stat: Stat) -> Stat {
        let node = self.nodes.get(&number);
        node.map_or(stat, |node| stat.with(&node.set))
    }

    /// Stores an absent name that was sent to the kernel.
    pub(crate) fn absence_sent(&mut self, parent: u64, name: &OsStr) {
        self.absent.insert((parent, name.to_owned()));
    }

    /// Takes all names that the kernel knows: parent directories and names.
    pub(crate) fn all(&mut self) -> Vec<(u64, OsString)> {
        let mut all: Vec<_> = self.absent.drain().collect();
        all.extend(self.nodes.values().flat_map(Node::places).cloned());
        all
    }

    /// All nodes that the kernel knows.
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

    /// The inode number of the real file if possible, because programs see the number.
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

    /// Handles `FUSE_FORGET` with this count.
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

    /// Drops the first name. `false`: the kernel knows no other name.
    pub(crate) fn is_elsewhere(&mut self, number: u64) -> bool {
        let Some(node) = self.nodes.get_mut(&number) else {
            return false;
        };
        let other = node.others.pop();
        other.map(|other| node.place = other).is_some()
    }

    /// The path of the node, if the names are still valid.
    pub(crate) fn path(&self, number: u64) -> Option<TreePath> {
        let mut names = Vec::new();
        let mut at = number;
        while at != ROOT_NODE {
            // Directories that other processes have moved into each other, one after the other.
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

    /// Moves a node to another name, or exchanges two nodes.
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
