//! Fragments of range tombstones as a persistent search tree: each has the newest sequence that covers its keys.
//!
//! # Invariants
//! Fragments are sorted, are not empty and do not overlap; ends come from the intervals laid, so `n` of them make fewer
//! than `2n` fragments. The tree is a treap: ordered by start, a heap by priorities that are drawn at random, hence of
//! logarithmic depth whatever the keys.
//!
//! # Sharing
//! Nodes never change. Laying an interval makes new nodes along two paths from the root and shares the others with the
//! tree that it began from; an interval newer than all that it covers takes the place of their fragments as a whole. A
//! tree that nobody needs any more gives back what it does not share.

use std::sync::Arc;

use terrane_base::Seq;

use super::account::{Account, Charge};

/// What an `Arc` adds to its content.
const ARC: usize = 2 * size_of::<usize>();

/// A key at which a fragment begins or ends.
#[derive(Debug)]
pub(super) struct Bound {
    key: Box<[u8]>,
    _charge: Charge,
}

#[derive(Debug)]
struct Node {
    start: Arc<Bound>,
    end: Arc<Bound>,
    /// The newest tombstone that covers this fragment.
    seq: Seq,
    /// The newest one in this node and below.
    newest: Seq,
    priority: u64,
    left: Link,
    right: Link,
    _charge: Charge,
}

type Link = Option<Arc<Node>>;

/// A stretch of keys with the newest tombstone that covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment<'a> {
    /// First key covered.
    pub(crate) start: &'a [u8],
    /// First key no longer covered.
    pub(crate) end: &'a [u8],
    pub(crate) seq: Seq,
}

/// Makes bounds and nodes.
#[derive(Debug)]
pub(super) struct Maker {
    account: Arc<Account>,
    drawn: u64,
}

/// See the module's head. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree(Link);

impl Maker {
    pub(super) fn new(account: Arc<Account>) -> Self {
        Maker { account, drawn: 0 }
    }

    /// Draws from `salt` on: whoever chooses the keys must not know the priorities.
    pub(super) fn salt(&mut self, salt: u64) {
        self.drawn = salt;
    }

    pub(super) fn charge(&self, bytes: usize) -> Charge {
        Charge::new(&self.account, bytes)
    }

    pub(super) fn bound(&self, key: &[u8]) -> Arc<Bound> {
        let charge = self.charge(size_of::<Bound>() + ARC + key.len());
        Arc::new(Bound { key: key.into(), _charge: charge })
    }

    /// A fragment by itself.
    fn single(&mut self, start: &Arc<Bound>, end: &Arc<Bound>, seq: Seq) -> Link {
        self.drawn = self.drawn.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.drawn ^ (self.drawn >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.node(start, end, seq, x ^ (x >> 31), None, None)
    }

    /// `n` with other children.
    fn with(&self, n: &Node, left: Link, right: Link) -> Link {
        self.node(&n.start, &n.end, n.seq, n.priority, left, right)
    }

    fn node(
        &self,
        start: &Arc<Bound>,
        end: &Arc<Bound>,
        seq: Seq,
        priority: u64,
        left: Link,
        right: Link,
    ) -> Link {
        let newest = seq.max(newest(&left)).max(newest(&right));
        let (start, end) = (start.clone(), end.clone());
        let charge = self.charge(size_of::<Node>() + ARC);
        Some(Arc::new(Node { start, end, seq, newest, priority, left, right, _charge: charge }))
    }

    /// What lies below `at`, and the rest; a fragment on both sides is cut.
    fn split(&mut self, link: &Link, at: &Arc<Bound>) -> (Link, Link) {
        let Some(n) = link else { return (None, None) };
        if at.key <= n.start.key {
            let (below, rest) = self.split(&n.left, at);
            return (below, self.with(n, rest, n.right.clone()));
        }
        if at.key >= n.end.key {
            let (below, rest) = self.split(&n.right, at);
            return (self.with(n, n.left.clone(), below), rest);
        }
        let below = self.node(&n.start, at, n.seq, n.priority, n.left.clone(), None);
        // A priority of its own: pieces of one fragment that shared it would hang below each other in a row.
        let rest = self.single(at, &n.end, n.seq);
        (below, self.join(rest, n.right.clone()))
    }

    /// Both, where all of `a` lies below all of `b`.
    fn join(&self, a: Link, b: Link) -> Link {
        match (a, b) {
            (None, other) | (other, None) => other,
            (Some(a), Some(b)) if a.priority >= b.priority => {
                let right = self.join(a.right.clone(), Some(b));
                self.with(&a, a.left.clone(), right)
            }
            (Some(a), Some(b)) => {
                let left = self.join(Some(a), b.left.clone());
                self.with(&b, left, b.right.clone())
            }
        }
    }
}

impl Tree {
    /// The tree with [start, end) at `seq` laid over it: it counts where nothing newer covers.
    pub(super) fn lay(&self, start: &Arc<Bound>, end: &Arc<Bound>, seq: Seq, make: &mut Maker) -> Tree {
        let (below, rest) = make.split(&self.0, start);
        let (middle, above) = make.split(&rest, end);
        let middle = if newest(&middle) <= seq {
            make.single(start, end, seq)
        } else {
            let mut laid = Laid { link: None, from: start.clone(), to: start.clone(), seq: 0 };
            for n in nodes(&middle) {
                laid.add(&n.start, seq, make);
                laid.add(&n.end, seq.max(n.seq), make);
            }
            laid.add(end, seq, make);
            laid.finish(make)
        };
        let below = make.join(below, middle);
        Tree(make.join(below, above))
    }

    /// The fragment that covers `key`.
    pub(super) fn find(&self, key: &[u8]) -> Option<Fragment<'_>> {
        let mut at = &self.0;
        while let Some(n) = at {
            if *key < *n.start.key {
                at = &n.left;
            } else if *key >= *n.end.key {
                at = &n.right;
            } else {
                return Some(n.fragment());
            }
        }
        None
    }

    /// The fragments newer than `seq`, in order. Costs as many steps as there are, times the depth.
    pub(super) fn newer_than<'a>(&'a self, seq: Seq, each: &mut impl FnMut(Fragment<'a>)) {
        fn walk<'a>(link: &'a Link, seq: Seq, each: &mut impl FnMut(Fragment<'a>)) {
            if let Some(n) = link
                && n.newest > seq
            {
                walk(&n.left, seq, each);
                if n.seq > seq {
                    each(n.fragment());
                }
                walk(&n.right, seq, each);
            }
        }
        walk(&self.0, seq, each);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn is(&self, other: &Tree) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Node {
    fn fragment(&self) -> Fragment<'_> {
        Fragment { start: &self.start.key, end: &self.end.key, seq: self.seq }
    }
}

fn newest(link: &Link) -> Seq {
    link.as_ref().map_or(0, |n| n.newest)
}

/// All nodes in order.
fn nodes(link: &Link) -> Vec<&Node> {
    fn walk<'a>(link: &'a Link, out: &mut Vec<&'a Node>) {
        if let Some(n) = link {
            walk(&n.left, out);
            out.push(n);
            walk(&n.right, out);
        }
    }
    let mut out = Vec::new();
    walk(link, &mut out);
    out
}

/// Fragments laid side by side; neighbours of one sequence become one.
struct Laid {
    link: Link,
    /// The fragment being extended: [from, to) at `seq`; everything before it is in `link`.
    from: Arc<Bound>,
    to: Arc<Bound>,
    seq: Seq,
}

impl Laid {
    /// Goes on to `end` with `seq`.
    fn add(&mut self, end: &Arc<Bound>, seq: Seq, make: &mut Maker) {
        if end.key <= self.to.key {
            return;
        }
        if seq != self.seq {
            self.close(make);
            self.seq = seq;
        }
        self.to = end.clone();
    }

    fn close(&mut self, make: &mut Maker) {
        if self.from.key < self.to.key {
            let last = make.single(&self.from, &self.to, self.seq);
            self.link = make.join(self.link.take(), last);
        }
        self.from = self.to.clone();
    }

    fn finish(mut self, make: &mut Maker) -> Link {
        self.close(make);
        self.link
    }
}
