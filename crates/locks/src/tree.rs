//! Ranges in the order of their starts, found by what they meet.
//!
//! A balanced tree (AVL). Each node knows how far the ranges beneath it reach, so that a search leaves out whatever ends before what
//! is looked for. Entering, taking out and finding one take a number of steps that grows with the logarithm of how many there are;
//! finding several, as many more for each.

use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::wish::{Reach, Wish};

/// See the module's head. Ranges of one subtable; what is the same is held as often as it was entered.
#[derive(Debug, Default)]
pub(crate) struct RangeTree {
    root: Link,
    len: usize,
}

type Link = Option<Box<Node>>;

#[derive(Debug)]
struct Node {
    range: Arc<Wish>,
    /// Of this range and those beneath, the farthest.
    farthest: Reach,
    height: u8,
    /// What comes before, and what comes after.
    sides: [Link; 2],
}

impl RangeTree {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    pub(crate) fn insert(&mut self, range: Arc<Wish>) {
        insert(&mut self.root, range);
        self.len += 1;
    }

    /// Whether it was there.
    pub(crate) fn remove(&mut self, range: &Wish) -> bool {
        let found = remove(&mut self.root, range);
        self.len -= usize::from(found);
        found
    }

    /// Puts another in the place of one, which is mostly its place as well: then nothing else is touched. Whether that was there.
    pub(crate) fn replace(&mut self, range: &Wish, other: &Arc<Wish>) -> bool {
        if replace(&mut self.root, range, other) {
            return true;
        }
        let found = self.remove(range);
        if found {
            self.insert(other.clone());
        }
        found
    }

    /// Shows, in order, the ranges of which both the start and the reach are as wanted, until `f` breaks. If some start is not
    /// wanted, none that follows may be; if some reach is not, none that is shorter may be.
    #[inline]
    pub(crate) fn find<'t, B>(
        &'t self,
        start: impl Fn(&[u8]) -> bool,
        reach: impl Fn(&Reach) -> bool,
        mut f: impl FnMut(&'t Arc<Wish>) -> ControlFlow<B>,
    ) -> Option<B> {
        find(&self.root, &start, &reach, &mut f).break_value()
    }

    /// Shows those that cover a key, in order, until `f` breaks.
    #[inline]
    pub(crate) fn find_at<'t, B>(
        &'t self,
        key: &[u8],
        f: impl FnMut(&'t Arc<Wish>) -> ControlFlow<B>,
    ) -> Option<B> {
        self.find(|start| start <= key, |reach| reach.is_past(key), f)
    }

    /// All, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Wish>> {
        let mut above = Vec::new();
        let mut next = &self.root;
        std::iter::from_fn(move || {
            while let Some(node) = next {
                above.push(node);
                next = &node.sides[0];
            }
            let node = above.pop()?;
            next = &node.sides[1];
            Some(&node.range)
        })
    }
}

fn find<'t, B>(
    link: &'t Link,
    start: &impl Fn(&[u8]) -> bool,
    reach: &impl Fn(&Reach) -> bool,
    f: &mut impl FnMut(&'t Arc<Wish>) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let Some(node) = link else { return ControlFlow::Continue(()) };
    if !reach(&node.farthest) {
        return ControlFlow::Continue(());
    }
    find(&node.sides[0], start, reach, f)?;
    if !start(&node.range.start) {
        return ControlFlow::Continue(());
    }
    if reach(&node.range.reach) {
        f(&node.range)?;
    }
    find(&node.sides[1], start, reach, f)
}

/// What is not told apart by this is the same for all purposes.
fn order(a: &Wish, b: &Wish) -> Ordering {
    (&a.start, &a.reach, a.owner, a.serial).cmp(&(&b.start, &b.reach, b.owner, b.serial))
}

fn insert(link: &mut Link, range: Arc<Wish>) {
    let Some(node) = link else {
        let farthest = range.reach.clone();
        *link = Some(Box::new(Node { range, farthest, height: 1, sides: [None, None] }));
        return;
    };
    let side = usize::from(order(&range, &node.range).is_ge());
    insert(&mut node.sides[side], range);
    balance(link);
}

fn remove(link: &mut Link, range: &Wish) -> bool {
    let Some(node) = link else { return false };
    let found = match order(range, &node.range) {
        Ordering::Less => remove(&mut node.sides[0], range),
        Ordering::Greater => remove(&mut node.sides[1], range),
        Ordering::Equal => {
            let [before, mut after] = std::mem::take(&mut node.sides);
            *link = match take_first(&mut after) {
                Some(mut heir) => {
                    heir.sides = [before, after];
                    Some(heir)
                }
                None => before,
            };
            true
        }
    };
    if found {
        balance(link);
    }
    found
}

/// Whether it was there and the other one belongs in the same place; otherwise nothing is changed.
fn replace(link: &mut Link, range: &Wish, other: &Arc<Wish>) -> bool {
    let Some(node) = link else { return false };
    let side = order(range, &node.range);
    let replaced = match side {
        Ordering::Equal => {
            let [before, after] = node.sides.each_ref().map(Option::as_ref);
            let is_in_order = before.is_none_or(|node| order(node.outermost(1), other).is_le())
                && after.is_none_or(|node| order(other, node.outermost(0)).is_le());
            if is_in_order {
                node.range = other.clone();
            }
            is_in_order
        }
        _ => {
            side == order(other, &node.range)
                && replace(&mut node.sides[usize::from(side.is_gt())], range, other)
        }
    };
    if replaced {
        node.renew();
    }
    replaced
}

fn take_first(link: &mut Link) -> Link {
    let node = link.as_mut()?;
    if node.sides[0].is_some() {
        let first = take_first(&mut node.sides[0]);
        balance(link);
        return first;
    }
    let mut first = link.take()?;
    *link = first.sides[1].take();
    Some(first)
}

/// Restores balance where one side has become two higher than the other.
fn balance(link: &mut Link) {
    let Some(node) = link else { return };
    let [before, after] = node.sides.each_ref().map(height);
    let high = usize::from(before < after);
    if before.abs_diff(after) < 2 {
        node.renew();
        return;
    }
    if let Some(child) = &mut node.sides[high]
        && height(&child.sides[high]) < height(&child.sides[1 - high])
    {
        rotate(&mut node.sides[high], 1 - high);
    }
    rotate(link, high);
}

/// Puts what is on the one side of a node in its place.
fn rotate(link: &mut Link, side: usize) {
    let Some(mut lower) = link.take() else { return };
    match lower.sides[side].take() {
        None => *link = Some(lower),
        Some(mut upper) => {
            lower.sides[side] = upper.sides[1 - side].take();
            lower.renew();
            upper.sides[1 - side] = Some(lower);
            upper.renew();
            *link = Some(upper);
        }
    }
}

fn height(link: &Link) -> u8 {
    link.as_ref().map_or(0, |node| node.height)
}

impl Node {
    /// The first or the last beneath.
    fn outermost(&self, side: usize) -> &Wish {
        let mut node = self;
        while let Some(next) = &node.sides[side] {
            node = next;
        }
        &node.range
    }

    /// What it knows of those beneath, from those next beneath.
    fn renew(&mut self) {
        let [before, after] = self.sides.each_ref().map(height);
        self.height = 1 + before.max(after);
        let beneath = self.sides.iter().flatten().map(|node| &node.farthest);
        let farthest = beneath.fold(&self.range.reach, |far, reach| far.max(reach));
        if self.farthest != *farthest {
            self.farthest = farthest.clone();
        }
    }
}

#[cfg(all(test, not(loom)))]
impl RangeTree {
    /// Whether all that is said in the module's head is so.
    pub(crate) fn check(&self) {
        fn check(link: &Link) -> usize {
            let Some(node) = link else { return 0 };
            let [before, after] = node.sides.each_ref().map(height);
            assert!(before.abs_diff(after) < 2, "out of balance");
            assert_eq!(node.height, 1 + before.max(after));
            let lens = node.sides.each_ref().map(check);
            let beneath = node.sides.iter().flatten().map(|node| &node.farthest);
            assert_eq!(Some(&node.farthest), beneath.chain([&node.range.reach]).max());
            1 + lens[0] + lens[1]
        }
        assert_eq!(check(&self.root), self.len);
        assert!(self.iter().is_sorted_by(|a, b| order(a, b).is_le()));
    }
}
