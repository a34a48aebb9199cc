//! Memory that left the tree serves again only when nobody can be reading it any more.
//!
//! In a process of its own: a reader that stays inside holds reuse up in every index.
#![allow(clippy::disallowed_methods, reason = "a test may start threads")]

use terrane_base::MemoryBudget;
use terrane_memindex::{IndexKind, MemIndex};

const ROUNDS: u32 = 40_000;

/// Adds nodes that outgrow two smaller ones each, from round `from` on; gives what the index grew by.
fn fill(index: &MemIndex, from: u32) -> usize {
    let before = index.bytes();
    for a in from..from + ROUNDS {
        for b in 0..17u32 {
            index.insert(&[&a.to_be_bytes()[..], &[b as u8, 0]].concat(), 1, 1, b"").unwrap();
        }
        // Lets the epoch move on, as far as readers allow.
        crossbeam_epoch::pin().flush();
    }
    index.bytes() - before
}

#[test]
fn a_removed_node_is_not_used_again_while_a_reader_is_inside() {
    let index = MemIndex::new(IndexKind::Art, MemoryBudget::new(0));
    fill(&index, 0);
    let reused = fill(&index, ROUNDS);
    // A reader that came in now may stand on any node of the tree, and on each that leaves it from here on.
    let reader = crossbeam_epoch::pin();
    let held = std::thread::scope(|s| s.spawn(|| fill(&index, 2 * ROUNDS)).join().unwrap());
    assert!(
        held > reused * 115 / 100,
        "{held} with a reader inside, {reused} without: nodes were used again"
    );
    drop(reader);
    // What was held back is there for those who come after.
    let after = fill(&index, 3 * ROUNDS);
    assert!(after < held * 100 / 115, "{after} after it left, {held} before: nothing was used again");
    for n in (0..4 * ROUNDS).step_by(37) {
        assert!(index.get(&[&n.to_be_bytes()[..], &[16, 0]].concat(), 1).is_some());
    }
}
