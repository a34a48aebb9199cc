//! Ordered traversal: a path from the root to the current leaf, which each step changes at its end.
//!
//! A path outlives the pin under which it was made. What it notes of each node is the version; a later step trusts a
//! noted node only if, pinned again, it finds the same version there (memory keeps its type and versions never repeat,
//! see [`crate::art::pool`]), and searches from the root otherwise. Nodes that a step comes to itself it need not check:
//! while it is pinned they show all that was there when it began.

use std::cmp::Ordering as Order;

use crate::art::lock::VersionLock;
use crate::art::node::NodeRef;
use crate::art::{Art, Word};

/// Which way to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// To larger keys.
    Up,
    /// To smaller keys.
    Down,
}

/// A node on the path. `place` says where the path goes on: 0 at the key that ends here, `b + 1` below byte `b`.
#[derive(Clone, Debug)]
struct Stop {
    node: Word,
    version: u64,
    place: usize,
}

/// The nodes above the current leaf, root first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path {
    stops: Vec<Stop>,
    /// The first so many stops were noted under an earlier pin.
    unchecked: usize,
}

impl Path {
    fn push(&mut self, node: Word, seen: NodeRef<'_>, place: usize) {
        let version = seen.header().lock.peek();
        self.stops.push(Stop { node, version, place });
    }

    /// Leads nowhere, and keeps `bytes` of memory at most.
    pub(crate) fn rest(&mut self, bytes: usize) {
        self.clear();
        self.stops.shrink_to(bytes / size_of::<Stop>());
    }

    fn clear(&mut self) {
        self.stops.clear();
        self.unchecked = 0;
    }
}

impl Art {
    /// The leaf of the first key at or after `key` (`Up`), or the last at or before it (`Down`); [`Word::EMPTY`] if
    /// there is none.
    pub(crate) fn seek(&self, path: &mut Path, key: &[u8], way: Way) -> Word {
        let _guard = self.domain.pin();
        self.seek_pinned(path, key, way)
    }

    /// The leaf of the smallest key (`Up`) or the largest (`Down`).
    pub(crate) fn seek_end(&self, path: &mut Path, way: Way) -> Word {
        let _guard = self.domain.pin();
        path.clear();
        self.descend(path, self.root, way)
    }

    /// The leaf after the current one in the direction of `way`. `leaf` is the current one, to which `path` leads.
    pub(crate) fn step(&self, path: &mut Path, leaf: Word, way: Way) -> Word {
        let _guard = self.domain.pin();
        path.unchecked = path.stops.len();
        match self.advance(path, way) {
            Some(next) => next,
            None => {
                let Some(key) = self.key(leaf) else { return Word::EMPTY };
                // The key is still there, for nothing is ever deleted; the path to it is now one of this pin.
                self.seek_pinned(path, key, way);
                self.advance(path, way).unwrap_or(Word::EMPTY)
            }
        }
    }

    fn seek_pinned(&self, path: &mut Path, key: &[u8], way: Way) -> Word {
        path.clear();
        let mut word = self.root;
        let mut depth = 0;
        loop {
            let node = self.node(word);
            let Some(&byte) = key.get(depth) else {
                let here = node.header().here();
                return match way {
                    Way::Up => self.descend(path, word, Way::Up),
                    Way::Down if here.is_empty() => self.advance_checked(path, Way::Down),
                    Way::Down => {
                        path.push(word, node, 0);
                        here
                    }
                };
            };
            path.push(word, node, usize::from(byte) + 1);
            let child = node.find(byte);
            let below = depth + 1;
            let order = if child.is_empty() {
                return self.advance_checked(path, way);
            } else if let Some(other) = self.leaf_key(child) {
                match other.cmp(key) {
                    Order::Equal => return child,
                    order => order,
                }
            } else {
                let header = self.node(child).header();
                // SAFETY: the node was reached from the root by a pinned thread, and `self` outlives the call.
                let (same, order) = unsafe { header.compare_path(key, below) };
                if order == Order::Equal {
                    word = child;
                    depth = below + same;
                    continue;
                }
                order
            };
            // All below the child is on one side of the key.
            return match (order, way) {
                (Order::Less, Way::Up) | (Order::Greater, Way::Down) => self.advance_checked(path, way),
                _ => self.descend(path, child, way),
            };
        }
    }

    /// [`Art::advance`] over stops of this pin, which need no check.
    fn advance_checked(&self, path: &mut Path, way: Way) -> Word {
        debug_assert_eq!(path.unchecked, 0);
        self.advance(path, way).unwrap_or(Word::EMPTY)
    }

    /// Goes from where the path ends to the next leaf. `None` if a node on the way has changed since it was noted;
    /// [`Word::EMPTY`] at the end.
    fn advance(&self, path: &mut Path, way: Way) -> Option<Word> {
        loop {
            let count = path.stops.len();
            let Some(stop) = path.stops.last_mut() else { return Some(Word::EMPTY) };
            let node = self.node(stop.node);
            if count <= path.unchecked {
                let version = node.header().lock.peek();
                if version != stop.version || !VersionLock::is_settled(version) {
                    return None;
                }
                path.unchecked = count - 1;
            }
            let next = match way {
                Way::Up => node.at_or_after(stop.place),
                Way::Down => node.before(stop.place.saturating_sub(1)),
            };
            if let Some((byte, child)) = next {
                stop.place = usize::from(byte) + 1;
                if child.is_leaf() {
                    self.prefetch_after(path, way, false);
                    return Some(child);
                }
                return Some(self.descend(path, child, way));
            }
            if way == Way::Down && stop.place > 0 {
                let here = node.header().here();
                if !here.is_empty() {
                    stop.place = 0;
                    return Some(here);
                }
            }
            path.stops.pop();
        }
    }

    /// Goes down from `word` to its first leaf (`Up`) or last (`Down`). Only an empty root has none.
    fn descend(&self, path: &mut Path, mut word: Word, way: Way) -> Word {
        loop {
            if word.is_leaf() || word.is_empty() {
                return word;
            }
            let node = self.node(word);
            let here = node.header().here();
            let (place, child) = match way {
                Way::Up if !here.is_empty() => (0, here),
                Way::Up => node.at_or_after(0).map_or((0, Word::EMPTY), |(b, w)| (usize::from(b) + 1, w)),
                Way::Down => node.before(256).map_or((0, here), |(b, w)| (usize::from(b) + 1, w)),
            };
            path.push(word, node, place);
            if child.is_leaf() {
                self.prefetch_after(path, way, true);
            }
            word = child;
        }
    }

    /// Loads ahead what the steps after the leaf that `path` leads to will need: the next leaf and, for the last leaf of a node, the first
    /// one of the node beside. That node itself comes near when this one is `entered`. Stops of an earlier pin may be other nodes by now
    /// (of the same kind, see [`crate::art::pool`]): then something else is asked for.
    fn prefetch_after(&self, path: &Path, way: Way, entered: bool) {
        let (stop, above) = match &path.stops[..] {
            [.., above, stop] => (stop, Some(above)),
            [stop] => (stop, None),
            [] => return,
        };
        let next = self.beside(stop, way);
        if let Some(word) = next {
            self.prefetch_word(word);
        }
        if next.is_some() && !entered {
            return;
        }
        let Some(word) = above.and_then(|above| self.beside(above, way)) else { return };
        if entered || word.is_leaf() {
            self.prefetch_word(word);
        } else if let Some(first) = self.first_below(word, way) {
            self.prefetch_word(first);
        }
    }

    /// What hangs behind a stop's place.
    fn beside(&self, stop: &Stop, way: Way) -> Option<Word> {
        let node = self.node(stop.node);
        let beside = match way {
            Way::Up => node.at_or_after(stop.place),
            Way::Down => node.before(stop.place.saturating_sub(1)),
        };
        beside.map(|(_, word)| word)
    }

    /// What the way through a node begins with.
    fn first_below(&self, word: Word, way: Way) -> Option<Word> {
        let node = self.node(word);
        let here = Some(node.header().here()).filter(|here| way == Way::Up && !here.is_empty());
        let child = || match way {
            Way::Up => node.at_or_after(0),
            Way::Down => node.before(256),
        };
        here.or_else(|| child().map(|(_, word)| word))
    }

    fn prefetch_word(&self, word: Word) {
        if word.is_leaf() {
            word.prefetch_record();
        } else {
            self.node(word).prefetch(None);
        }
    }
}
