//! Indexes one after the other, in the memory that the last one left: none of it shows.

use terrane_base::{MAX_SEQ, MemoryBudget};
use terrane_memindex::{IndexKind, MemIndex};

const KEYS: u64 = 60_000;

fn key(round: u64, n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&round.to_be_bytes());
    key
}

#[test]
fn an_index_in_the_memory_of_another_has_its_own_records_alone() {
    let budget = MemoryBudget::new(64 << 20);
    for kind in [IndexKind::Art, IndexKind::Skiplist] {
        // As long as there is another one, what is given back is kept.
        let other = MemIndex::new(kind, budget.clone());
        for round in 0..4 {
            let index = MemIndex::new(kind, budget.clone());
            for n in 0..KEYS {
                index.insert(&key(round, n), n + 1, 1, &[round as u8; 100]).unwrap();
            }
            assert!(index.bytes() > 8 << 20, "{} bytes: some chunks are of the largest", index.bytes());
            for n in (0..KEYS).step_by(7) {
                let found = index.get(&key(round, n), MAX_SEQ).unwrap();
                assert_eq!((found.seq, found.value), (n + 1, &[round as u8; 100][..]));
                assert!(index.get(&key(round.wrapping_sub(1), n), MAX_SEQ).is_none());
            }
            let mut cursor = index.cursor();
            cursor.seek_first();
            let mut seen = 0;
            while cursor.valid() {
                seen += 1;
                cursor.next();
            }
            assert_eq!((seen, index.len() as u64), (KEYS, KEYS));
        }
        drop(other);
    }
    assert_eq!(budget.used(), 0);
}
