//! A point lookup in steps: each asks the processor for what the next one looks at, for whoever has something else to do until that is
//! near. Many of them in turn wait for memory at the same time instead of one after the other. An insert may go on where one has come to.

use terrane_base::Seq;

use crate::art::node::TAIL;
use crate::art::reclaim::Guard;
use crate::art::word::{Leaf, Word};
use crate::art::{Art, Finger, Next, Place};
use crate::record::Record;

/// See the module's head. Keeps its thread pinned.
pub(crate) struct Descent<'a> {
    art: &'a Art,
    guard: Guard<'a>,
    at: Next,
    /// The deepest node that it has come to, ...
    here: Place,
    /// ... and the one above it.
    above: Option<Place>,
    /// Whether all of the key in front of `here`'s stretch was compared: not all of a long stretch is.
    compared: bool,
}

impl<'a> Descent<'a> {
    pub(crate) fn new(art: &'a Art, key: &[u8]) -> Self {
        let guard = art.domain.pin();
        let root = art.root_place();
        art.prefetch(root, key);
        Descent { art, guard, at: Next::Node(root), here: root, above: None, compared: true }
    }

    /// Goes one node down; whether there is more to come before [`Descent::finish`] has all near.
    #[inline]
    pub(crate) fn step(&mut self, key: &[u8]) -> bool {
        let Next::Node(place) = self.at else { return false };
        self.at = self.art.toward(place, key, &self.guard);
        match self.at {
            Next::Node(next) => {
                self.art.prefetch(next, key);
                self.compared &= next.start - 1 - place.start <= TAIL;
                (self.above, self.here) = (Some(place), next);
            }
            Next::Leaf(word) if word.is_empty() => return false,
            Next::Leaf(word) => word.prefetch_leaf(),
        }
        true
    }

    /// Where an insert of this key may begin, under this pin; `None` for the root.
    pub(super) fn finger(&self, key: &[u8]) -> Option<Finger<'a>> {
        let above = self.above.filter(|_| self.compared)?;
        let (Place { word, start }, node) = (self.here, self.art.node(self.here.word));
        let depth = node.header().depth();
        let leads_here =
            key.len() >= depth && depth - start <= TAIL && node.header().tail_matches(key, start, depth);
        let parent = self.art.node(above.word);
        leads_here.then(|| Finger { parent, byte: key[start - 1], word, start, depth })
    }

    pub(super) fn guard(&self) -> &Guard<'a> {
        &self.guard
    }

    /// Whether it is one of `art`.
    pub(crate) fn is_of(&self, art: &Art) -> bool {
        std::ptr::eq(self.art, art)
    }

    /// As [`Art::get`].
    #[inline]
    pub(crate) fn finish(mut self, key: &[u8], snapshot: Seq) -> Option<Record<'a>> {
        while let Next::Node(place) = self.at {
            self.at = self.art.toward(place, key, &self.guard);
        }
        let Next::Leaf(leaf) = self.at else { return None };
        self.art.newest(leaf, key, snapshot, &self.guard)
    }
}

impl Art {
    /// Asks the processor for what the way through a node begins with.
    #[inline]
    pub(super) fn prefetch(&self, place: Place, key: &[u8]) {
        // (A node that has to say itself how deep it is waits for its header.)
        let byte = place.depth().and_then(|depth| key.get(depth)).copied();
        self.node(place.word).prefetch(byte);
    }
}

impl Word {
    /// Asks the processor for what reading this leaf begins with.
    #[inline]
    fn prefetch_leaf(self) {
        self.prefetch();
        // SAFETY: the word is one that the tree holds.
        if let Some(Leaf::One(_)) = unsafe { self.leaf() } {
            // A key may go on there.
            self.prefetch_next();
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::disallowed_methods, reason = "a test may start threads")]
mod tests {
    use terrane_base::{MAX_SEQ, MemoryBudget};

    use super::*;
    use crate::art::Inserted;
    use crate::record::RecordArena;

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % n
        }
    }

    /// Short keys, prefixes of others, stretches that fit a header and longer ones, some of which differ in front of what a header has, and dense
    /// ones that make nodes grow.
    fn key(n: u64) -> Vec<u8> {
        let dense = (n / 7 * 40_503 % 65_536) as u16;
        let [high, low] = dense.to_be_bytes();
        match n % 7 {
            0 => dense.to_be_bytes().to_vec(),
            1 => [b"a long path that is shared by all of these".as_slice(), &dense.to_be_bytes()].concat(),
            2 => vec![b'p'; (n / 7 % 300) as usize],
            3 => [&dense.to_le_bytes()[..1], &[0; 5], &dense.to_be_bytes()].concat(),
            4 => [&[b'k', high][..], b"________", &[low % 8]].concat(),
            5 => [&[b'l', high][..], b"________", &[b'0' + low % 2, b'_', low / 32, low]].concat(),
            _ => [&dense.to_le_bytes()[..1], &[7; 12], &dense.to_be_bytes()].concat(),
        }
    }

    /// Of threads, each of which inserts where searches have come to that were begun before it inserted some others.
    fn inserts_go_on(threads: u64, each: u64) {
        let budget = MemoryBudget::new(0);
        let records = RecordArena::new(budget.clone());
        let art = Art::new(std::sync::Arc::default(), budget);
        std::thread::scope(|s| {
            for t in 0..threads {
                let (art, records) = (&art, &records);
                s.spawn(move || {
                    let mut random = Random(t + 1);
                    let mut left: Vec<u64> = (0..each).map(|i| i * threads + t).collect();
                    while !left.is_empty() {
                        let some = left.split_off(left.len() - left.len().min(1 + random.below(4) as usize));
                        let keys: Vec<_> = some.iter().map(|n| key(*n)).collect();
                        let descents: Vec<_> = keys
                            .iter()
                            .map(|key| {
                                let mut descent = Descent::new(art, key);
                                (0..random.below(7)).for_each(|_| _ = descent.step(key));
                                descent
                            })
                            .collect();
                        for ((n, key), found) in some.iter().zip(&keys).zip(&descents) {
                            let record = records.push(key, n + 1, 1, b"");
                            assert_ne!(art.insert_found(found, key, n + 1, record), Inserted::Nothing);
                            assert_eq!(art.get(key, n + 1).map(|r| (r.key, r.seq)), Some((&key[..], n + 1)));
                        }
                        if random.below(8) == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        let mut newest = std::collections::BTreeMap::new();
        for n in 0..threads * each {
            newest.insert(key(n), n + 1);
        }
        let mut path = crate::art::Path::default();
        let mut leaf = art.seek_end(&mut path, crate::art::Way::Up);
        for (key, seq) in &newest {
            assert_eq!(art.key(leaf), Some(&key[..]));
            assert_eq!(art.get(key, MAX_SEQ).map(|r| r.seq), Some(*seq));
            leaf = art.step(&mut path, leaf, crate::art::Way::Up);
        }
        assert_eq!(art.key(leaf), None);
    }

    #[test]
    fn an_insert_goes_on_where_a_search_has_come_to() {
        inserts_go_on(1, 20_000);
    }

    #[test]
    fn inserts_of_threads_go_on_where_searches_have_come_to() {
        inserts_go_on(4, 6000);
    }

    #[test]
    fn an_insert_begins_at_the_node_that_a_search_has_reached() {
        let budget = MemoryBudget::new(0);
        let records = RecordArena::new(budget.clone());
        let art = Art::new(std::sync::Arc::default(), budget);
        for key in [b"abc0", b"abc1", b"abd2"] {
            art.insert(key, 1, records.push(key, 1, 1, b""));
        }
        let finger = |key: &[u8], steps: usize| {
            let mut descent = Descent::new(&art, key);
            (0..steps).for_each(|_| _ = descent.step(key));
            descent.finger(key).map(|f| (f.start, f.depth))
        };
        assert_eq!(finger(b"abc3", 0), None, "it is at the root");
        assert_eq!(finger(b"abc3", 1), Some((1, 2)), "not looked at yet");
        assert_eq!(finger(b"abc3", 2), Some((3, 3)));
        assert_eq!(finger(b"abc3", 5), Some((3, 3)), "nothing hangs below");
        assert_eq!(finger(b"ax", 3), None, "its path differs");
        assert_eq!(finger(b"a", 3), None, "it ends within the path");

        // Stretches of which a header does not have the first byte, and one below such a one.
        for key in [&b"k1________a"[..], b"k1________b", b"l1________0_a", b"l1________0_b", b"l1________1_a"]
        {
            art.insert(key, 1, records.push(key, 1, 1, b""));
        }
        let finger = |key: &[u8], steps: usize| {
            let mut descent = Descent::new(&art, key);
            (0..steps).for_each(|_| _ = descent.step(key));
            descent.finger(key).map(|f| (f.start, f.depth))
        };
        for key in [&b"k1________c"[..], b"k2________c"] {
            assert_eq!(finger(key, 2), None, "a header alone cannot tell");
        }
        for key in [&b"l1________0_c"[..], b"l2________0_c"] {
            assert_eq!(finger(key, 3), None, "what is in front was not compared");
        }
    }
}
