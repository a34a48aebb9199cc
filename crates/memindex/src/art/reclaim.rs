//! When memory that left the tree may serve again: after every thread that might still read it has unpinned
//! ([`terrane_base::reclaim`]).
//!
//! Memory that is retired stays with its index and returns to a free list; it is never given back before the index goes. A
//! model run under loom retires nothing: there the memory is simply left.

use crate::art::pool::Reuse;

#[cfg(not(loom))]
mod imp {
    use super::Reuse;

    pub(crate) type Domain = terrane_base::reclaim::Domain<Reuse>;
    pub(crate) type Guard<'d> = terrane_base::reclaim::Guard<'d, Reuse>;
}

#[cfg(loom)]
mod imp {
    use super::Reuse;

    pub(crate) struct Domain;
    pub(crate) struct Guard<'d>(std::marker::PhantomData<&'d Domain>);

    impl Domain {
        pub(crate) fn on(_: std::sync::Arc<terrane_base::reclaim::Clock>) -> Domain {
            Domain
        }

        pub(crate) fn pin(&self) -> Guard<'_> {
            Guard(std::marker::PhantomData)
        }
    }

    impl Guard<'_> {
        /// Leaves the memory.
        pub(crate) fn retire(&self, reuse: Reuse) {
            std::mem::forget(reuse);
        }
    }
}

pub(crate) use imp::{Domain, Guard};

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use terrane_base::MemoryBudget;

    use crate::art::Art;
    use crate::record::RecordArena;

    const ROUNDS: u32 = 20_000;

    struct Tree {
        art: Art,
        records: RecordArena,
    }

    impl Tree {
        /// Adds nodes that outgrow two smaller ones each, from round `from` on; gives what the index grew by.
        fn fill(&self, from: u32) -> usize {
            let before = self.art.bytes();
            for a in from..from + ROUNDS {
                for b in 0..17u8 {
                    let key = [&a.to_be_bytes()[..], &[b, 0]].concat();
                    self.art.insert(&key, 1, self.records.push(&key, 1, 1, b""));
                }
            }
            self.art.bytes() - before
        }
    }

    #[test]
    fn memory_is_not_used_again_while_a_reader_is_inside() {
        let budget = MemoryBudget::new(0);
        let tree = Tree { art: Art::new(Arc::default(), budget.clone()), records: RecordArena::new(budget) };
        tree.fill(0);
        let reused = tree.fill(ROUNDS);
        // A reader that came in now may stand on any node of the tree, and on each that leaves it from here on.
        let reader = tree.art.domain.pin();
        let held = std::thread::scope(|s| s.spawn(|| tree.fill(2 * ROUNDS)).join().unwrap());
        assert!(
            held > reused * 115 / 100,
            "{held} with a reader inside, {reused} without: nodes were used again"
        );
        drop(reader);
        // What was held back is there for those who come after.
        let after = tree.fill(3 * ROUNDS);
        assert!(after < held * 100 / 115, "{after} after it left, {held} before: nothing was used again");
        for n in (0..4 * ROUNDS).step_by(37) {
            assert!(tree.art.get(&[&n.to_be_bytes()[..], &[16, 0]].concat(), 1).is_some());
        }
    }
}
