//! The simulated directory tree: the names that programs see, the names that are durable, and the changes between.
//!
//! A rename is one change to two names, so it happens whole or not at all. Unsynced changes survive a power failure
//! independently of each other: POSIX promises no order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};
use std::sync::Arc;

use super::inode::{Mood, Survival};
use super::rng::Rng;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    File(u64),
    Dir(u64),
}

/// The directory that paths start from.
pub(super) const ROOT: u64 = 0;

/// Changes of names that happen together; `None` removes.
#[derive(Clone, Debug)]
pub(super) struct NameOp {
    pub(super) changes: Vec<(u64, Arc<str>, Option<Node>)>,
}

type Entries = BTreeMap<Arc<str>, Node>;

#[derive(Clone, Debug, Default)]
struct Dir {
    current: Entries,
    durable: Entries,
}

#[derive(Clone, Debug)]
pub(super) struct Names {
    dirs: BTreeMap<u64, Arc<Dir>>,
    pending: Vec<Arc<NameOp>>,
}

/// Why a path leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathError {
    Missing,
    NotADirectory,
    /// Not UTF-8, `..`, or no name at all.
    Unusable,
}

impl Names {
    pub(super) fn new() -> Self {
        Names { dirs: BTreeMap::from([(ROOT, Arc::default())]), pending: Vec::new() }
    }

    /// What a path stands for.
    pub(super) fn resolve(&self, path: &Path) -> Result<Node, PathError> {
        let mut at = Node::Dir(ROOT);
        for name in parts(path) {
            let Node::Dir(dir) = at else { return Err(PathError::NotADirectory) };
            at = self.get(dir, name?).ok_or(PathError::Missing)?;
        }
        Ok(at)
    }

    /// The directory of a path, and the name in it.
    pub(super) fn parent<'p>(&self, path: &'p Path) -> Result<(u64, &'p str), PathError> {
        let mut names = parts(path).collect::<Result<Vec<_>, _>>()?;
        let last = names.pop().ok_or(PathError::Unusable)?;
        let mut dir = ROOT;
        for name in names {
            match self.get(dir, name) {
                Some(Node::Dir(d)) => dir = d,
                Some(Node::File(_)) => return Err(PathError::NotADirectory),
                None => return Err(PathError::Missing),
            }
        }
        Ok((dir, last))
    }

    /// The entry of a directory.
    pub(super) fn get(&self, dir: u64, name: &str) -> Option<Node> {
        self.dirs.get(&dir)?.current.get(name).copied()
    }

    /// The entries of a directory, by name.
    pub(super) fn list(&self, dir: u64) -> impl Iterator<Item = (&Arc<str>, Node)> {
        self.dirs.get(&dir).into_iter().flat_map(|d| d.current.iter().map(|(name, node)| (name, *node)))
    }

    pub(super) fn apply(&mut self, op: &Arc<NameOp>) {
        for change in &op.changes {
            self.set(change, |d| &mut d.current);
        }
        self.pending.push(op.clone());
    }

    /// Makes the names of a directory durable: every pending change to it, whole, and every earlier change to a name
    /// that such a change touches elsewhere.
    pub(super) fn sync_dir(&mut self, dir: u64) {
        let mut touched: BTreeSet<(u64, Arc<str>)> = BTreeSet::new();
        let mut commit = vec![false; self.pending.len()];
        for (i, op) in self.pending.iter().enumerate().rev() {
            if op.changes.iter().any(|(d, name, _)| *d == dir || touched.contains(&(*d, name.clone()))) {
                commit[i] = true;
                touched.extend(op.changes.iter().map(|(d, name, _)| (*d, name.clone())));
            }
        }
        for (op, commit) in std::mem::take(&mut self.pending).into_iter().zip(commit) {
            if commit {
                self.make_durable(&op);
            } else {
                self.pending.push(op);
            }
        }
    }

    /// The tree after power came back.
    pub(super) fn after_power_loss(&self, survival: Survival, mood: Mood) -> Names {
        let mut after = self.clone();
        for (i, op) in std::mem::take(&mut after.pending).into_iter().enumerate() {
            let kept = match survival {
                Survival::Lost => false,
                Survival::Kept | Survival::Chosen(..) => true,
                Survival::Torn | Survival::Words => {
                    Rng::of(mood.seed, &[i as u64, 0x6e61_6d65]).chance(mood.keep)
                }
            };
            if kept {
                after.make_durable(&op);
            }
        }
        for dir in after.dirs.values_mut() {
            let dir = Arc::make_mut(dir);
            dir.current = dir.durable.clone();
        }
        let live = after.live();
        after.dirs.retain(|id, _| live.contains(&Node::Dir(*id)));
        after
    }

    /// Everything that a program can reach, now or after some crash.
    pub(super) fn live(&self) -> BTreeSet<Node> {
        let pending = self.pending.iter().flat_map(|op| &op.changes).filter_map(|(_, _, node)| *node);
        self.reach(pending.chain([Node::Dir(ROOT)]), |d| d.current.values().chain(d.durable.values()))
    }

    /// Everything that a program can reach by name now.
    pub(super) fn visible(&self) -> BTreeSet<Node> {
        self.reach([Node::Dir(ROOT)], |d| d.current.values())
    }

    /// Forgets directories that are not `live`.
    pub(super) fn collect(&mut self, live: &BTreeSet<Node>) {
        self.dirs.retain(|id, _| live.contains(&Node::Dir(*id)));
    }

    fn reach<'a, I: Iterator<Item = &'a Node>>(
        &'a self,
        roots: impl IntoIterator<Item = Node>,
        entries: impl Fn(&'a Dir) -> I,
    ) -> BTreeSet<Node> {
        let mut found = BTreeSet::new();
        let mut todo: Vec<Node> = roots.into_iter().collect();
        while let Some(node) = todo.pop() {
            if let (true, Node::Dir(id)) = (found.insert(node), node) {
                todo.extend(self.dirs.get(&id).into_iter().flat_map(|d| entries(d).copied()));
            }
        }
        found
    }

    fn make_durable(&mut self, op: &NameOp) {
        for change in &op.changes {
            self.set(change, |d| &mut d.durable);
        }
    }

    fn set(
        &mut self,
        (dir, name, node): &(u64, Arc<str>, Option<Node>),
        which: impl Fn(&mut Dir) -> &mut Entries,
    ) {
        if let Some(Node::Dir(id)) = node {
            self.dirs.entry(*id).or_default();
        }
        let entries = which(Arc::make_mut(self.dirs.entry(*dir).or_default()));
        match node {
            Some(node) => entries.insert(name.clone(), *node),
            None => entries.remove(name),
        };
    }
}

/// The names on a path, from the root (absolute and relative paths both start there).
fn parts(path: &Path) -> impl Iterator<Item = Result<&str, PathError>> {
    path.components().filter_map(|c| match c {
        Component::Normal(name) => Some(name.to_str().ok_or(PathError::Unusable)),
        Component::RootDir | Component::CurDir => None,
        Component::ParentDir | Component::Prefix(_) => Some(Err(PathError::Unusable)),
    })
}
