//! Ordered traversal: a path from the root to the current leaf, which each step changes at its end.
//!
//! A path outlives the pin under which it was made. What it notes of each node is the version; a later step trusts a
//! noted node only if, pinned again, it finds the same version there (memory keeps its type and versions never repeat,
//! see [`crate::art::pool`]), and searches from the root otherwise. Nodes that a step comes to itself it need not check:
//! while it is pinned they show all that was there when it began.

use std::cmp::Ordering as Order;

use crate::art::lock::VersionLock;
use crate::art::node::NodeRef;
use crate::art::reclaim::Guard;
use crate::art::{Art, Place, Word};

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
    /// A record that said where it goes was damaged.
    doubtful: bool,
}

/// Where a seek has come.
#[derive(Clone, Copy, Debug)]
enum SeekPlace {
    /// To a node that so many bytes of the key lead to.
    Node(Word, usize),
    /// To what hangs below a node at the key's next byte; so many bytes lead there at least.
    Child(Word, usize),
    /// To a leaf, or the end.
    There(Word),
}

/// [`Art::seek`] upwards in steps, each of which asks the processor for what the next one looks at. Keeps its thread pinned.
pub(crate) struct Seeking<'a> {
    art: &'a Art,
    _guard: Guard<'a>,
    at: SeekPlace,
}

impl<'a> Seeking<'a> {
    pub(crate) fn new(art: &'a Art, path: &mut Path) -> Self {
        path.clear();
        Seeking { art, _guard: art.domain.pin(), at: SeekPlace::Node(art.root, 0) }
    }

    /// Goes a node further; whether there is more to come before all is near that the leaf's readers look at first. Path and
    /// key are those of the steps before.
    #[inline]
    pub(crate) fn step(&mut self, path: &mut Path, key: &[u8]) -> bool {
        let before = self.at;
        if let SeekPlace::There(_) = before {
            return false;
        }
        self.at = self.art.seek_on(path, key, Way::Up, before);
        if let SeekPlace::Node(..) = self.at {
            self.at = self.art.seek_on(path, key, Way::Up, self.at);
        }
        match (before, self.at) {
            // That leaf was asked for already.
            (SeekPlace::Child(child, _), SeekPlace::There(leaf)) if leaf == child => false,
            _ => self.art.announce(path, self.at, key),
        }
    }

    /// Takes what steps are left.
    #[inline]
    pub(crate) fn finish(self, path: &mut Path, key: &[u8]) -> Word {
        self.art.seek_there(path, key, Way::Up, self.at)
    }
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
        self.doubtful = false;
    }

    /// Whether a record that said where it goes was damaged, so that it may lead anywhere.
    #[inline]
    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubtful
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
                path.doubtful |= !self.is_sound(|| self.newest_of(leaf));
                self.advance(path, way).unwrap_or(Word::EMPTY)
            }
        }
    }

    fn seek_pinned(&self, path: &mut Path, key: &[u8], way: Way) -> Word {
        path.clear();
        self.seek_there(path, key, way, SeekPlace::Node(self.root, 0))
    }

    /// Goes on with a seek to its end.
    fn seek_there(&self, path: &mut Path, key: &[u8], way: Way, mut at: SeekPlace) -> Word {
        loop {
            match self.seek_on(path, key, way, at) {
                SeekPlace::There(leaf) => return leaf,
                next => at = next,
            }
        }
    }

    /// One step of a seek from a node, or to what was found there.
    #[inline]
    fn seek_on(&self, path: &mut Path, key: &[u8], way: Way, at: SeekPlace) -> SeekPlace {
        match at {
            SeekPlace::Node(word, depth) => self.seek_from(path, key, way, (word, depth)),
            SeekPlace::Child(child, below) => self.seek_to(path, key, way, (child, below)),
            SeekPlace::There(_) => at,
        }
    }

    #[inline]
    fn seek_from(&self, path: &mut Path, key: &[u8], way: Way, (word, depth): (Word, usize)) -> SeekPlace {
        let node = self.node(word);
        let Some(&byte) = key.get(depth) else {
            let here = node.header().here();
            return SeekPlace::There(match way {
                Way::Up => self.descend(path, word, Way::Up),
                Way::Down if here.is_empty() => self.advance_checked(path, Way::Down),
                Way::Down => {
                    path.push(word, node, 0);
                    here
                }
            });
        };
        path.push(word, node, usize::from(byte) + 1);
        let child = node.find(byte);
        match child.is_empty() {
            true => SeekPlace::There(self.advance_checked(path, way)),
            false => SeekPlace::Child(child, depth + 1),
        }
    }

    #[inline]
    fn seek_to(&self, path: &mut Path, key: &[u8], way: Way, (child, below): (Word, usize)) -> SeekPlace {
        let order = if let Some(other) = self.leaf_key(child) {
            path.doubtful |= !self.is_sound(|| self.newest_of(child));
            match other.cmp(key) {
                Order::Equal => return SeekPlace::There(child),
                order => order,
            }
        } else {
            let header = self.node(child).header();
            // SAFETY: the node was reached from the root by a pinned thread, and `self` outlives the call.
            let (same, order) = unsafe { header.compare_path(key, below) };
            // SAFETY: as above.
            path.doubtful |= !self.is_sound(|| unsafe { header.path_record(below) });
            if order == Order::Equal {
                return SeekPlace::Node(child, below + same);
            }
            order
        };
        // All below the child is on one side of the key.
        SeekPlace::There(match (order, way) {
            (Order::Less, Way::Up) | (Order::Greater, Way::Down) => self.advance_checked(path, way),
            _ => self.descend(path, child, way),
        })
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
            if let Some((byte, child)) = beside(node, stop.place, way) {
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
            let (place, child) = entrance(node, way);
            path.push(word, node, place);
            if child.is_leaf() {
                self.prefetch_after(path, way, true);
            }
            word = child;
        }
    }

    /// Asks the processor for what a seek upwards looks at next, if there is anything.
    #[inline]
    fn announce(&self, path: &Path, at: SeekPlace, key: &[u8]) -> bool {
        match at {
            SeekPlace::Child(child, start) if child.is_leaf() => {
                child.prefetch_record();
                // The node that it hangs in, below the key's byte.
                if let (Some(stop), Some(&byte)) = (path.stops.last(), key.get(start - 1)) {
                    self.node(stop.node).prefetch_steps(byte);
                }
            }
            SeekPlace::Child(word, start) => self.prefetch(Place { word, start }, key),
            // (Whoever has found it has asked for what lies behind it.)
            SeekPlace::There(leaf) if !leaf.is_empty() => leaf.prefetch_record(),
            SeekPlace::There(_) | SeekPlace::Node(..) => return false,
        }
        true
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
        let behind = |stop: &Stop| beside(self.node(stop.node), stop.place, way).map(|(_, word)| word);
        let next = behind(stop);
        if let Some(word) = next {
            self.prefetch_word(word);
        }
        if next.is_some() && !entered {
            return;
        }
        let Some(word) = above.and_then(behind) else { return };
        match entered || word.is_leaf() {
            true => self.prefetch_word(word),
            false => self.prefetch_word(entrance(self.node(word), way).1),
        }
    }

    fn prefetch_word(&self, word: Word) {
        if word.is_leaf() {
            word.prefetch_record();
        } else if !word.is_empty() {
            self.node(word).prefetch(None);
        }
    }
}

/// The child that comes next behind a place in a node, with its byte.
fn beside(node: NodeRef<'_>, place: usize, way: Way) -> Option<(u8, Word)> {
    match way {
        Way::Up => node.at_or_after(place),
        Way::Down => node.before(place.saturating_sub(1)),
    }
}

/// What the way through all of a node begins with, and its place. Empty for a node that has nothing.
fn entrance(node: NodeRef<'_>, way: Way) -> (usize, Word) {
    let here = node.header().here();
    match way {
        Way::Up if !here.is_empty() => (0, here),
        Way::Up => node.at_or_after(0).map_or((0, Word::EMPTY), |(b, w)| (usize::from(b) + 1, w)),
        Way::Down => node.before(256).map_or((0, here), |(b, w)| (usize::from(b) + 1, w)),
    }
}
