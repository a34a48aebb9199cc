//! Both structures under many threads. Threads yield at random, so that few cores interleave as many would; what each
//! does is drawn from a fixed seed, when it does it is not.
#![cfg(not(loom))]
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrane_base::{MAX_SEQ, MemoryBudget};
use terrane_memindex::{IndexKind, MemIndex};

const KINDS: [IndexKind; 2] = [IndexKind::Art, IndexKind::Skiplist];

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn yield_at_times(&mut self) {
        if self.below(8) == 0 {
            std::thread::yield_now();
        }
    }
}

/// Key number `n`: short ones, prefixes of others, long shared paths, and dense ones that make nodes grow.
fn key(n: u64) -> Vec<u8> {
    let dense = (n / 4 * 40_503 % 65_536) as u16;
    match n % 4 {
        0 => dense.to_be_bytes().to_vec(),
        1 => [b"a long path that is shared by all of these".as_slice(), &dense.to_be_bytes()].concat(),
        2 => vec![b'p'; (n / 4 % 300) as usize],
        _ => [&dense.to_le_bytes()[..1], &[0; 12], &dense.to_be_bytes()].concat(),
    }
}

#[test]
fn what_was_inserted_is_found_at_once_and_for_ever() {
    for kind in KINDS {
        let budget = MemoryBudget::new(0);
        let index = MemIndex::new(kind, budget.clone());
        let (threads, each) = (6u64, 4000u64);
        // Each thread's keys up to here are in.
        let done: Vec<_> = (0..threads).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|s| {
            for t in 0..threads {
                let (index, done) = (&index, &done);
                s.spawn(move || {
                    let mut random = Random(t + 1);
                    for i in 0..each {
                        let (n, seq) = (i * threads + t, i * threads + t + 1);
                        // Begun before it is there, and before nodes on its way are replaced; it may find it or not, but nothing else.
                        let early = key(n);
                        let mut early = index.search(&early);
                        (0..random.below(4)).for_each(|_| _ = early.step());
                        index.insert(&key(n), seq, t as u8, &n.to_le_bytes()).unwrap();
                        done[t as usize].store(i + 1, Ordering::Release);
                        let other = random.below(threads);
                        let i = done[other as usize].load(Ordering::Acquire);
                        if i > 0 {
                            let n = random.below(i) * threads + other;
                            let found = index.get(&key(n), n + 1).expect("inserted before");
                            assert_eq!((found.key, found.seq), (&key(n)[..], n + 1));
                            assert_eq!(found.value, n.to_le_bytes());
                            let key = key(n);
                            let mut search = index.search(&key);
                            while search.step() {}
                            assert_eq!(search.finish(n + 1), Some(found));
                        }
                        let early = early.finish(seq);
                        assert!(
                            early.is_none_or(|r| r.key == key(n) && r.seq <= seq && key(r.seq - 1) == r.key)
                        );
                        random.yield_at_times();
                    }
                });
            }
        });
        let keys: BTreeSet<_> = (0..threads * each).map(key).collect();
        assert_eq!((index.len() as u64, index.keys()), (threads * each, keys.len()));
        let mut cursor = index.cursor();
        cursor.seek_first();
        for key in &keys {
            assert_eq!(cursor.key(), &key[..]);
            cursor.next();
        }
        assert!(!cursor.valid());
        assert_eq!(index.bytes(), budget.used());
        drop(index);
        assert_eq!(budget.used(), 0);
    }
}

#[test]
fn a_scan_meets_all_that_was_there_before_it_in_order_either_way() {
    for kind in KINDS {
        let index = MemIndex::new(kind, MemoryBudget::new(0));
        let old: BTreeSet<_> = (0..3000).map(|n| key(n * 5)).collect();
        for key in &old {
            index.insert(key, 1, 1, b"old").unwrap();
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for t in 0..3u64 {
                let (index, stop) = (&index, &stop);
                s.spawn(move || {
                    let mut random = Random(t + 7);
                    for n in (t..20_000).step_by(3) {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        index.insert(&key(n), n + 2, 1, b"new").unwrap();
                        random.yield_at_times();
                    }
                });
            }
            for up in [true, false, true, false] {
                let mut cursor = index.cursor();
                if up {
                    cursor.seek_first()
                } else {
                    cursor.seek_last()
                }
                let mut met = Vec::new();
                while cursor.valid() {
                    met.push(cursor.key().to_vec());
                    if let Some(record) = cursor.version(1) {
                        assert_eq!(record.value, b"old");
                    }
                    if up { cursor.next() } else { cursor.prev() }
                }
                if !up {
                    met.reverse();
                }
                assert!(met.windows(2).all(|w| w[0] < w[1]));
                assert!(old.iter().all(|key| met.binary_search(key).is_ok()));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_snapshot_of_a_hot_key_stays_as_it_is_while_versions_arrive_in_any_order() {
    for kind in KINDS {
        let index = MemIndex::new(kind, MemoryBudget::new(0));
        let (threads, each) = (4u64, 2000u64);
        let next = AtomicU64::new(1);
        // Sequences below all threads' marks are in.
        let marks: Vec<_> = (0..threads).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|s| {
            for t in 0..threads {
                let (index, next, marks) = (&index, &next, &marks);
                s.spawn(move || {
                    let mut random = Random(t + 3);
                    for _ in 0..each {
                        marks[t as usize].store(next.load(Ordering::SeqCst), Ordering::SeqCst);
                        let seq = next.fetch_add(1, Ordering::SeqCst);
                        random.yield_at_times();
                        index.insert(b"hot", seq, 1, &seq.to_le_bytes()).unwrap();
                        random.yield_at_times();
                        let settled = marks.iter().map(|m| m.load(Ordering::SeqCst)).min().unwrap();
                        if settled > 1 {
                            let snapshot = 1 + random.below(settled - 1);
                            let record = index.get(b"hot", snapshot).unwrap();
                            assert_eq!((record.seq, record.value), (snapshot, &snapshot.to_le_bytes()[..]));
                        }
                    }
                    marks[t as usize].store(u64::MAX, Ordering::SeqCst);
                });
            }
        });
        assert_eq!((index.len() as u64, index.keys()), (threads * each, 1));
        let mut cursor = index.cursor();
        cursor.seek_first();
        assert!(cursor.versions().map(|r| r.seq).eq((1..=threads * each).rev()));
    }
}

#[test]
fn of_many_threads_with_the_same_key_and_sequence_one_gets_it() {
    for kind in KINDS {
        let index = MemIndex::new(kind, MemoryBudget::new(0));
        std::thread::scope(|s| {
            for t in 0..4u8 {
                let index = &index;
                s.spawn(move || {
                    let mut random = Random(u64::from(t) + 11);
                    for n in 0..2000 {
                        index.insert(&key(n), n + 1, t, &[t]).unwrap();
                        random.yield_at_times();
                    }
                });
            }
        });
        assert_eq!(index.len(), 2000);
        for n in 0..2000 {
            let record = index.get(&key(n), n + 1).unwrap();
            assert_eq!((record.seq, record.value), (n + 1, &[record.kind][..]));
        }
        assert_eq!(index.get(&key(0), MAX_SEQ).unwrap().seq % 4, 1);
    }
}

#[test]
fn replaced_nodes_are_used_again() {
    // Sixteen children below each of many bytes: every small node is outgrown.
    let fill = |rounds: u32| {
        let index = MemIndex::new(IndexKind::Art, MemoryBudget::new(0));
        for a in 0..rounds {
            for b in 0..17u32 {
                index.insert(&[&a.to_be_bytes()[..], &[b as u8, 0]].concat(), 1, 1, b"").unwrap();
            }
        }
        index.bytes()
    };
    let rounds = 20_000;
    let records = rounds as usize * 17 * 24;
    let nodes = rounds as usize * 704;
    // Without reuse, each Node48 would have left a Node4 and a Node16 behind.
    let used = fill(rounds);
    assert!(used < (records + nodes) * 115 / 100, "{used} for {}", records + nodes);
}
