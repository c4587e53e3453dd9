//! What the kernel knows by number: inodes of an encapsulation's file system, and where they are.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
};

use encapsulation::{Identity, TreePath};

/// The number that the kernel has for the root of a file system.
pub(crate) const ROOT: u64 = 1;
/// Numbers for what has none on its own file system, or one that is taken, begin here.
const OWN: u64 = 1 << 48;

/// One of them.
#[derive(Debug)]
struct Node {
    identity: Option<Identity>,
    /// A directory that it was found in, and its name there.
    place: (u64, OsString),
    /// How often the kernel was told of it, and has not forgotten it.
    lookups: u64,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Nodes {
    nodes: HashMap<u64, Node>,
    by_identity: HashMap<Identity, u64>,
    next: u64,
}

impl Nodes {
    pub(crate) fn new() -> Self {
        Self {
            nodes: HashMap::new(),
            by_identity: HashMap::new(),
            next: OWN,
        }
    }

    /// The kernel is told of what was found there.
    pub(crate) fn told(&mut self, identity: Identity, parent: u64, name: &OsStr) -> u64 {
        let place = (parent, name.to_owned());
        if let Some(number) = self.by_identity.get(&identity).copied()
            && let Some(node) = self.nodes.get_mut(&number)
        {
            node.place = place;
            node.lookups += 1;
            return number;
        }
        let number = self.free_number(identity);
        let identity_of_node = Some(identity);
        let node = Node {
            identity: identity_of_node,
            place,
            lookups: 1,
        };
        self.nodes.insert(number, node);
        self.by_identity.insert(identity, number);
        number
    }

    /// The one that it has on its own file system, where that is possible: it is what programs see.
    fn free_number(&mut self, identity: Identity) -> u64 {
        if let Identity::Real { inode, .. } = identity
            && (ROOT + 1..OWN).contains(&inode)
            && !self.nodes.contains_key(&inode)
        {
            return inode;
        }
        self.next += 1;
        self.next
    }

    /// The kernel has forgotten it so many times.
    pub(crate) fn forgotten(&mut self, number: u64, times: u64) {
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        node.lookups = node.lookups.saturating_sub(times);
        if node.lookups == 0 {
            if let Some(identity) = node.identity {
                self.by_identity.remove(&identity);
            }
            self.nodes.remove(&number);
        }
    }

    /// Where it is, if it is still where it was found.
    pub(crate) fn path(&self, number: u64) -> Option<TreePath> {
        let mut names = Vec::new();
        let mut at = number;
        while at != ROOT {
            let (parent, name) = &self.nodes.get(&at)?.place;
            names.push(name);
            at = *parent;
        }
        let root = TreePath::root();
        Some(names.iter().rev().fold(root, |path, name| path.join(name)))
    }

    pub(crate) fn identity(&self, number: u64) -> Option<Identity> {
        self.nodes.get(&number)?.identity
    }

    /// What stood there stands here now; and the other way round, if they have changed places.
    pub(crate) fn moved(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), exchanged: bool) {
        for node in self.nodes.values_mut() {
            if node.place.0 == from.0 && node.place.1 == from.1 {
                node.place = (to.0, to.1.to_owned());
            } else if exchanged && node.place.0 == to.0 && node.place.1 == to.1 {
                node.place = (from.0, from.1.to_owned());
            }
        }
    }
}
