//! An adaptive radix tree with optimistic lock coupling.
//!
//! The structure is that of Leis, Kemper and Neumann, "The Adaptive Radix Tree: ARTful Indexing for Main-Memory
//! Databases" (ICDE 2013): a trie over key bytes whose nodes have one of four sizes, with paths of single children
//! compressed and single keys hung as high as they are unique. Synchronisation follows Leis, Scheibner, Kemper and
//! Neumann, "The ART of Practical Synchronization" (DaMoN 2016). What differs here:
//!
//! - Keys are any bytes and one may be a prefix of another: a node has a place for the key that ends at it.
//! - Keys are not stored in the tree. A node knows its depth and the eight bytes before it; longer paths are read from
//!   any record below.
//! - Nothing is ever deleted; the whole tree goes when its memtable goes. So a node is replaced only by a larger one,
//!   and each change shows with one store (see [`node`]).
//!
//! # Concurrency
//! *Writers* descend noting the version of each node, and lock only what they change, by exchanging the version that
//! they noted ([`lock`]): the node that gets a child, or the parent whose pointer is replaced, and for a node that
//! outgrows its size both, parent first. If the exchange fails, they start over. Locks are only ever tried, so there is
//! no deadlock, and one writer's failure is another's success.
//!
//! *Batches* of records whose keys follow each other mostly end in one node. Within a pin a writer begins the next descent at the node in which
//! the last one ended ([`Finger`]), if the key begins as all do there. That is as good as having come from the root: a node stands for the
//! same bytes as long as it is in the tree, which its version says; and what hangs where it did in its parent, with the parent in the tree,
//! has nothing between them. Both versions are noted anew. An insert may begin where a lookup of its key has come to as well, under the pin of
//! that ([`Descent::finger`]), if it has compared all of the key in front of that node.
//!
//! *Readers* are wait-free: they take no lock, check no version and never start over. Whatever node a reader has come
//! to, the tree held it after the read began, and a node that was replaced meanwhile still shows all it held then.
//!
//! *Reclamation* is by epoch ([`reclaim`]): every operation pins its thread, and what was replaced is reused after all
//! threads that were pinned then have moved on. Records and version lists are never reclaimed, so what an operation
//! returns needs no pin.
//!
//! # Damage
//! Keys are read where records lie, and that may be memory that damages them. Who may have such records gives the tree a [`Check`]. An insert has it
//! look at a record that says where something is put, and notes for ever that one was damaged: others may hang in the wrong place then.
//! A seek has it look at each record that says where the seek goes on, and notes it until the next one ([`Path::is_doubtful`]). A lookup
//! goes by the bytes of nodes alone and compares the key at its end.
//!
//! # After a crash
//! Nothing remains. The log holds what is needed to fill an index again.

mod descent;
pub(crate) mod lock;
pub(crate) mod node;
mod pool;
mod reclaim;
mod seek;
mod soundness;
mod versions;
mod word;

use std::cmp::Ordering as Order;
use std::sync::Arc;

use terrane_base::Seq;
use terrane_base::reclaim::Clock;
use terrane_base::sync::atomic::{AtomicBool, Ordering};

use crate::memory::Home;
use crate::record::{Record, RecordPtr};
use lock::Wait;
use node::{NodeRef, Slot};
use pool::Pool;
use reclaim::{Domain, Guard};
use versions::{MISPLACED, VersionList};
use word::Kind;

pub(crate) use descent::Descent;
pub(crate) use node::MAX_DEPTH;
pub(crate) use seek::{Path, Seeking, Way};
pub(crate) use word::{Leaf, Word};

/// What an insert did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inserted {
    /// The first version of its key.
    Key,
    /// Another version.
    Version,
    /// Nothing: that sequence of the key is there.
    Nothing,
}

/// Somebody changed what was read; start over.
struct Changed;

/// Says whether a record is as it was written.
pub(crate) type Check = Box<dyn Fn(&Record<'_>) -> bool + Send + Sync>;

/// See the module's head.
pub(crate) struct Art {
    domain: Domain,
    check: Option<Check>,
    /// A record was put beside a damaged one.
    misled: AtomicBool,
    pool: Pool,
    /// A Node256 at depth 0, never replaced.
    root: Word,
}

/// A node as a writer came upon it.
#[derive(Clone, Copy)]
struct Seen<'a> {
    node: NodeRef<'a>,
    version: u64,
}

impl<'a> Seen<'a> {
    fn new(node: NodeRef<'a>) -> Result<Self, Changed> {
        node.header().lock.read().map(|version| Seen { node, version }).ok_or(Changed)
    }

    fn lock(self) -> Result<(), Changed> {
        if self.node.header().lock.try_lock(self.version) { Ok(()) } else { Err(Changed) }
    }

    fn unlock(self) {
        self.node.header().lock.unlock(self.version);
    }

    /// Stores over what hangs in `slot`, if the node is as it was seen.
    fn set(self, slot: Slot, word: Word) -> Result<(), Changed> {
        self.lock()?;
        self.node.set(slot, word);
        self.unlock();
        Ok(())
    }
}

/// The node in which a descent has ended, and how it hung. Of a pin.
#[derive(Clone, Copy)]
struct Finger<'a> {
    parent: NodeRef<'a>,
    byte: u8,
    word: Word,
    /// Key bytes before the stretch that leads to it, and before itself.
    start: usize,
    depth: usize,
}

/// Where a writer is in its descent.
struct Stand<'a> {
    parent: Option<(Seen<'a>, u8)>,
    here: Seen<'a>,
    /// Key bytes before the stretch that leads to `here`, and before `here` itself.
    start: usize,
    depth: usize,
}

/// Records of a batch that are inserted under one pin.
const UNDER_ONE_PIN: usize = 128;

/// A node that a reader comes to, and how many bytes of the key lead there from the root without those of the path that the node's own
/// word stands for.
#[derive(Clone, Copy)]
struct Place {
    word: Word,
    start: usize,
}

impl Place {
    /// How deep the node is, if its word says so.
    #[inline]
    fn depth(self) -> Option<usize> {
        self.word.prefix().map(|prefix| self.start + prefix)
    }
}

/// Where a step leads: to a node, or to a leaf or nothing.
#[derive(Clone, Copy)]
enum Next {
    Node(Place),
    Leaf(Word),
}

impl Art {
    pub(crate) fn new(clock: Arc<Clock>, home: impl Into<Home>) -> Self {
        let pool = Pool::new(home);
        let root = pool.node(Kind::N256);
        root.start(&[], Word::EMPTY);
        let root = root.word(0);
        Art { domain: Domain::on(clock), check: None, misled: AtomicBool::new(false), pool, root }
    }

    /// Has records looked at whose keys say where others belong: see the module's head.
    pub(crate) fn check_with(&mut self, check: Check) {
        self.check = Some(check);
    }

    /// Whether records may hang in the wrong place, for one that was damaged said so.
    #[inline]
    pub(crate) fn is_misled(&self) -> bool {
        // Set before what it was set for was published, which whoever misses something has come to.
        self.misled.load(Ordering::Relaxed)
    }

    /// Bytes taken from the budget.
    pub(crate) fn bytes(&self) -> usize {
        self.pool.bytes()
    }

    /// As [`Pool::lent_bytes`].
    pub(crate) fn lent_bytes(&self) -> usize {
        self.pool.lent_bytes()
    }

    /// The newest version of `key` at or below `snapshot`.
    #[inline]
    pub(crate) fn get(&self, key: &[u8], snapshot: Seq) -> Option<Record<'_>> {
        let guard = self.domain.pin();
        self.newest(self.find(key, &guard), key, snapshot, &guard)
    }

    /// The newest record of the leaf that a search for `key` ends at, whatever its key is.
    pub(crate) fn end_of_search(&self, key: &[u8]) -> Option<Record<'_>> {
        let guard = self.domain.pin();
        self.newest_of(self.find(key, &guard)).map(|record| self.read(record))
    }

    /// The newest version at or below `snapshot` of `key`, if that is what the leaf is for.
    #[inline]
    fn newest(&self, leaf: Word, key: &[u8], snapshot: Seq, guard: &Guard<'_>) -> Option<Record<'_>> {
        match self.leaf(leaf)? {
            Leaf::One(record) => {
                let record = self.read(record);
                (record.key == key && record.seq <= snapshot).then_some(record)
            }
            Leaf::Many(list) => {
                let newest = self.read(list.newest()?);
                if newest.key != key || newest.seq <= snapshot {
                    return (newest.key == key).then_some(newest);
                }
                self.older(list, snapshot, guard).map(|record| self.read(record))
            }
        }
    }

    /// The newest version at or below `snapshot` of the key that a leaf is for.
    pub(crate) fn version(&self, leaf: Word, snapshot: Seq) -> Option<RecordPtr> {
        let (newest, older) = match self.leaf(leaf)? {
            Leaf::One(record) => (record, None),
            Leaf::Many(list) => (list.newest()?, Some(list)),
        };
        if self.read(newest).seq <= snapshot {
            return Some(newest);
        }
        self.older(older?, snapshot, &self.domain.pin())
    }

    /// A version of a list. One that was damaged when the list was begun, and is not any more, would be met for ever by a walk
    /// from sequence to sequence. (One that is damaged now is its reader's to report.)
    fn older(&self, list: &VersionList, snapshot: Seq, guard: &Guard<'_>) -> Option<RecordPtr> {
        let found = list.at_or_below(snapshot, guard)?;
        if self.read(found).seq <= snapshot || !self.is_sound(|| Some(found)) {
            return Some(found);
        }
        self.misled.store(true, Ordering::Relaxed);
        None
    }

    /// The newest record of a leaf.
    pub(crate) fn newest_of(&self, leaf: Word) -> Option<RecordPtr> {
        match self.leaf(leaf)? {
            Leaf::One(record) => Some(record),
            Leaf::Many(list) => list.newest(),
        }
    }

    /// The key that a leaf is for.
    pub(crate) fn key(&self, leaf: Word) -> Option<&[u8]> {
        self.newest_of(leaf).map(|record| self.read(record).key)
    }

    /// The only leaf that `key` can be at. Its path may differ from the key's in bytes that were skipped.
    #[inline]
    fn find(&self, key: &[u8], pinned: &Guard<'_>) -> Word {
        let mut place = self.root_place();
        loop {
            match self.toward(place, key, pinned) {
                Next::Node(next) => place = next,
                Next::Leaf(word) => return word,
            }
        }
    }

    fn root_place(&self) -> Place {
        Place { word: self.root, start: 0 }
    }

    /// From a node to what hangs below it on the way to `key`.
    #[inline]
    fn toward(&self, place: Place, key: &[u8], _pinned: &Guard<'_>) -> Next {
        let (node, start) = (self.node(place.word), place.start);
        let depth = place.depth().unwrap_or_else(|| node.header().depth());
        if depth > start && (key.len() < depth || !node.header().tail_matches(key, start, depth)) {
            return Next::Leaf(Word::EMPTY);
        }
        let Some(&byte) = key.get(depth) else { return Next::Leaf(node.header().here()) };
        let child = node.find(byte);
        if child.is_empty() || child.is_leaf() {
            return Next::Leaf(child);
        }
        Next::Node(Place { word: child, start: depth + 1 })
    }

    /// Adds `record`, whose key and sequence are given as well.
    pub(crate) fn insert(&self, key: &[u8], seq: Seq, record: RecordPtr) -> Inserted {
        let guard = self.domain.pin();
        let mut wait = Wait::new();
        loop {
            match self.try_insert(key, seq, record, &guard, None, |_| ()) {
                Ok(inserted) => return inserted,
                Err(Changed) => wait.pause(),
            }
        }
    }

    /// As [`Art::insert`], from where a lookup of that key has come to.
    pub(crate) fn insert_found(
        &self,
        found: &Descent<'_>,
        key: &[u8],
        seq: Seq,
        record: RecordPtr,
    ) -> Inserted {
        let mut from = found.finger(key);
        let mut wait = Wait::new();
        loop {
            match self.try_insert(key, seq, record, found.guard(), from, |_| ()) {
                Ok(inserted) => return inserted,
                // Perhaps for ever.
                Err(Changed) if from.take().is_some() => {}
                Err(Changed) => wait.pause(),
            }
        }
    }

    /// As [`Art::insert`], of many records, best in the order of their keys; tells `done` of each what that did.
    pub(crate) fn insert_all<'k>(
        &self,
        mut records: impl Iterator<Item = (&'k [u8], Seq, RecordPtr)>,
        mut done: impl FnMut(Inserted),
    ) {
        loop {
            let guard = self.domain.pin();
            let (mut finger, mut last): (Option<Finger<'_>>, &[u8]) = (None, &[]);
            for _ in 0..UNDER_ONE_PIN {
                let Some((key, seq, record)) = records.next() else { return };
                let mut from = finger.filter(|f| key.get(..f.depth) == last.get(..f.depth));
                finger = from;
                let mut wait = Wait::new();
                done(loop {
                    match self.try_insert(key, seq, record, &guard, from, |at| finger = Some(at)) {
                        Ok(inserted) => break inserted,
                        // Perhaps for ever.
                        Err(Changed) if from.take().is_some() => finger = None,
                        Err(Changed) => wait.pause(),
                    }
                });
                last = key;
            }
        }
    }

    /// The root, or where a finger points.
    fn stand<'a>(&'a self, from: Option<Finger<'a>>) -> Result<Stand<'a>, Changed> {
        let Some(Finger { parent, byte, word, start, depth }) = from else {
            return Ok(Stand { parent: None, here: Seen::new(self.node(self.root))?, start: 0, depth: 0 });
        };
        let parent = Seen::new(parent)?;
        if parent.node.find(byte) != word {
            return Err(Changed);
        }
        Ok(Stand { parent: Some((parent, byte)), here: Seen::new(self.node(word))?, start, depth })
    }

    /// `note` gets each node that the descent comes to.
    #[inline]
    fn try_insert<'a>(
        &'a self,
        key: &[u8],
        seq: Seq,
        record: RecordPtr,
        guard: &Guard<'_>,
        from: Option<Finger<'a>>,
        mut note: impl FnMut(Finger<'a>),
    ) -> Result<Inserted, Changed> {
        let Stand { mut parent, mut here, mut start, mut depth } = self.stand(from)?;
        loop {
            let Some(&byte) = key.get(depth) else {
                let leaf = here.node.header().here();
                if leaf.is_empty() {
                    here.set(Slot::Here, Word::one(record))?;
                    return Ok(Inserted::Key);
                }
                return self.add_version(here, Slot::Here, leaf, seq, record, guard);
            };
            let child = here.node.find(byte);
            if child.is_empty() {
                self.add_child(parent, here, depth - start, byte, Word::one(record), guard)?;
                return Ok(Inserted::Key);
            }
            let below = depth + 1;
            if let Some(other) = self.leaf_key(child) {
                if other == key {
                    return self.add_version(here, Slot::Byte(byte), child, seq, record, guard);
                }
                self.lean_on(|| self.newest_of(child));
                let rest = other.get(below..).unwrap_or(&[]);
                let same = rest.iter().zip(&key[below..]).take_while(|(a, b)| a == b).count();
                let (theirs, ours) = (rest.get(same), key.get(below + same));
                if theirs == ours {
                    // They have no byte where they part, so that one was damaged since, or what led here: it stays where it was, behind the
                    // new record, for whoever looks at all versions to find.
                    self.misled.store(true, Ordering::Relaxed);
                    return self.add_version(here, Slot::Byte(byte), child, seq, record, guard);
                }
                let fork = self.fork(key, below + same, record);
                self.hang(fork, theirs.copied(), child);
                return self.publish(here, byte, fork, same);
            }
            let node = self.node(child);
            // Its header, and at the same time what the next step looks at, which the word tells where it lies.
            node.prefetch(child.prefix().and_then(|prefix| key.get(below + prefix)).copied());
            // SAFETY: the node was reached from the root by a pinned thread, and `self` outlives the call.
            let (same, order) = unsafe { node.header().compare_path(key, below) };
            // SAFETY: as above.
            self.lean_on(|| unsafe { node.header().path_record(below) });
            if order != Order::Equal {
                let fork = self.fork(key, below + same, record);
                // SAFETY: as above.
                let branch = unsafe { node.header().path_byte(below + same) };
                let rest = node.header().depth() - (below + same + 1);
                self.hang(fork, Some(branch), child.with_prefix(rest));
                return self.publish(here, byte, fork, same);
            }
            note(Finger { parent: here.node, byte, word: child, start: below, depth: below + same });
            parent = Some((here, byte));
            here = Seen::new(node)?;
            (start, depth) = (below, below + same);
        }
    }

    /// A new node at `depth`, with `record`, whose key is `key`, in its place.
    fn fork(&self, key: &[u8], depth: usize, record: RecordPtr) -> NodeRef<'_> {
        let fork = self.pool.node(Kind::N4);
        match key.get(depth) {
            Some(&byte) => {
                fork.start(&key[..depth], Word::from_raw(record.address()));
                fork.add(byte, Word::one(record));
            }
            None => fork.start(&key[..depth], Word::one(record)),
        }
        fork
    }

    /// Hangs what was there before into a new node: below a byte, or as the key that ends there.
    fn hang(&self, fork: NodeRef<'_>, byte: Option<u8>, word: Word) {
        match byte {
            Some(byte) => fork.add(byte, word),
            None => fork.set(Slot::Here, word),
        }
    }

    /// Puts a new node in the place of what hung below `byte`.
    fn publish(
        &self,
        here: Seen<'_>,
        byte: u8,
        fork: NodeRef<'_>,
        prefix: usize,
    ) -> Result<Inserted, Changed> {
        here.set(Slot::Byte(byte), fork.word(prefix)).inspect_err(|Changed| self.pool.abandon_node(fork))?;
        Ok(Inserted::Key)
    }

    /// Adds a child to `here`, which lies `prefix` bytes below its parent's byte; if it is full, to a larger node that
    /// takes its place.
    fn add_child(
        &self,
        parent: Option<(Seen<'_>, u8)>,
        here: Seen<'_>,
        prefix: usize,
        byte: u8,
        child: Word,
        guard: &Guard<'_>,
    ) -> Result<(), Changed> {
        let Some((parent, parent_byte)) = parent.filter(|_| here.node.is_full()) else {
            // The root is never full.
            here.lock()?;
            here.node.add(byte, child);
            here.unlock();
            return Ok(());
        };
        parent.lock()?;
        if let Err(Changed) = here.lock() {
            parent.node.header().lock.unlock_unchanged(parent.version);
            return Err(Changed);
        }
        let larger = self.pool.node(match here.node.kind() {
            Kind::N4 => Kind::N16,
            Kind::N16 => Kind::N48,
            Kind::N48 | Kind::N256 => Kind::N256,
        });
        larger.start_as(here.node);
        larger.add(byte, child);
        parent.node.set(Slot::Byte(parent_byte), larger.word(prefix));
        here.node.header().lock.unlock_replaced(here.version);
        parent.unlock();
        self.pool.retire_node(here.node, guard);
        Ok(())
    }

    /// Adds a version to the key whose leaf hangs in `slot`.
    fn add_version(
        &self,
        here: Seen<'_>,
        slot: Slot,
        leaf: Word,
        seq: Seq,
        record: RecordPtr,
        guard: &Guard<'_>,
    ) -> Result<Inserted, Changed> {
        let only = match self.leaf(leaf).ok_or(Changed)? {
            Leaf::Many(list) => {
                let added = list.insert(seq, record, &self.pool, guard);
                return Ok(if added { Inserted::Version } else { Inserted::Nothing });
            }
            Leaf::One(only) => only,
        };
        // What the list says of it from here on. A damaged one must neither pass for this record's nor stand before it, for the damage may go.
        let was = self.read(only);
        let other = if self.passes(&was) {
            was.seq
        } else {
            self.misled.store(true, Ordering::Relaxed);
            MISPLACED
        };
        let list = match other.cmp(&seq) {
            Order::Equal => return Ok(Inserted::Nothing),
            order => {
                let list = self.pool.list();
                let (old, new) = ((other, only), (seq, record));
                if order == Order::Less {
                    list.start(old, new)
                } else {
                    list.start(new, old)
                }
                list
            }
        };
        here.set(slot, Word::many(list)).inspect_err(|Changed| self.pool.abandon_list(list))?;
        Ok(Inserted::Version)
    }

    /// The key of a leaf, `None` for a node.
    fn leaf_key(&self, word: Word) -> Option<&[u8]> {
        if word.is_leaf() { self.key(word) } else { None }
    }

    fn leaf(&self, word: Word) -> Option<Leaf<'_>> {
        // SAFETY: words come from this tree, by acquiring loads, and version lists and records live as long as it does.
        unsafe { word.leaf() }
    }

    fn node(&self, word: Word) -> NodeRef<'_> {
        // SAFETY: words come from this tree, by acquiring loads, and node memory lives as long as it does.
        unsafe { word.as_node() }
    }

    fn read(&self, record: RecordPtr) -> Record<'_> {
        // SAFETY: addresses of records come from this tree's words, so they were pushed before, and the index drops the
        // arena after the tree.
        unsafe { record.read() }
    }
}

#[cfg(all(test, loom))]
mod model;
