//! Every interleaving (within a bound of preemptions) of small histories, explored by loom:
//! `RUSTFLAGS="--cfg loom" cargo test -p terrane-memindex --release --lib`.
//!
//! Each model fills a tree, then lets two writers or a writer and a reader change and read the same few nodes. What is
//! not modelled: the epochs (nothing is reused under loom) and the bytes of records, which are written before their
//! address is published.

use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;
use terrane_base::{MAX_SEQ, MemoryBudget, Seq};

use crate::art::{Art, Inserted, Path, Way};
use crate::record::RecordArena;

struct Tree {
    art: Art,
    records: RecordArena,
}

impl Tree {
    fn with(keys: &[&[u8]]) -> Arc<Tree> {
        let budget = MemoryBudget::new(0);
        let tree = Tree { art: Art::new(budget.clone()), records: RecordArena::new(budget) };
        for key in keys {
            assert_eq!(tree.insert(key, 1), Inserted::Key);
        }
        Arc::new(tree)
    }

    fn insert(&self, key: &[u8], seq: Seq) -> Inserted {
        self.art.insert(key, seq, self.records.push(key, seq, 1, b""))
    }

    fn seq(&self, key: &[u8], snapshot: Seq) -> Option<Seq> {
        self.art.get(key, snapshot).map(|record| record.seq)
    }

    fn keys(&self) -> Vec<Vec<u8>> {
        let mut path = Path::default();
        let mut leaf = self.art.seek_end(&mut path, Way::Up);
        let mut keys = Vec::new();
        while let Some(key) = self.art.key(leaf) {
            keys.push(key.to_vec());
            leaf = self.art.step(&mut path, leaf, Way::Up);
        }
        keys
    }
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// Lets two writers insert while this thread reads what was there before, then checks that everything is.
fn race(before: &'static [&'static [u8]], one: &'static [u8], two: &'static [u8]) {
    explore(move || {
        let tree = Tree::with(before);
        let writers = [one, two].map(|key| {
            let tree = Arc::clone(&tree);
            thread::spawn(move || assert_eq!(tree.insert(key, 2), Inserted::Key))
        });
        assert_eq!(tree.seq(before[0], MAX_SEQ), Some(1));
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let mut expected: Vec<_> = before.iter().chain(&[one, two]).map(|key| key.to_vec()).collect();
        expected.sort();
        assert_eq!(tree.keys(), expected);
    });
}

#[test]
fn two_writers_outgrow_one_node() {
    race(&[b"a0", b"a1", b"a2", b"a3"], b"a4", b"a5");
}

#[test]
fn one_writer_splits_the_path_to_a_node_that_another_outgrows() {
    race(&[b"abc0", b"abc1", b"abc2", b"abc3"], b"abc4", b"ax");
}

#[test]
fn two_writers_split_one_path_at_different_depths() {
    race(&[b"abc0", b"abc1"], b"ab", b"ax");
}

#[test]
fn two_writers_fork_one_leaf() {
    race(&[b"abc"], b"abd", b"a");
}

#[test]
fn a_reader_finds_a_key_in_a_node_that_is_outgrown_and_a_new_one_once_it_returned() {
    explore(|| {
        let tree = Tree::with(&[b"a0", b"a1", b"a2", b"a3"]);
        let writer = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || {
                tree.insert(b"a4", 2);
                assert_eq!(tree.seq(b"a4", 2), Some(2));
            })
        };
        let seen = tree.seq(b"a4", 2);
        assert_eq!(tree.seq(b"a3", MAX_SEQ), Some(1));
        if seen.is_some() {
            assert_eq!(tree.seq(b"a4", 2), Some(2));
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_step_from_an_old_path_skips_nothing_while_the_node_is_outgrown() {
    explore(|| {
        let tree = Tree::with(&[b"a0", b"a1", b"a2", b"a4"]);
        let mut path = Path::default();
        let leaf = tree.art.seek(&mut path, b"a1", Way::Up);
        let writer = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || tree.insert(b"a3", 2))
        };
        let leaf = tree.art.step(&mut path, leaf, Way::Up);
        assert_eq!(tree.art.key(leaf), Some(&b"a2"[..]));
        let leaf = tree.art.step(&mut path, leaf, Way::Up);
        let key = tree.art.key(leaf).unwrap();
        assert!(key == b"a3" || key == b"a4");
        writer.join().unwrap();
        let mut path = Path::default();
        let leaf = tree.art.seek(&mut path, b"a3", Way::Down);
        assert_eq!(tree.art.key(leaf), Some(&b"a3"[..]));
    });
}

#[test]
fn versions_of_one_key_arrive_late_while_a_snapshot_is_read() {
    explore(|| {
        let tree = Tree::with(&[]);
        assert_eq!(tree.insert(b"k", 10), Inserted::Key);
        assert_eq!(tree.insert(b"k", 20), Inserted::Version);
        let writer = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || {
                // Moves one entry up, in an array just doubled; then one in place.
                assert_eq!(tree.insert(b"k", 15), Inserted::Version);
                assert_eq!(tree.insert(b"k", 12), Inserted::Version);
            })
        };
        assert_eq!(tree.seq(b"k", 10), Some(10));
        assert!(matches!(tree.seq(b"k", 19), Some(10 | 15 | 12)));
        writer.join().unwrap();
        assert_eq!(
            [9, 11, 14, 19, 20].map(|s| tree.seq(b"k", s)),
            [None, Some(10), Some(12), Some(15), Some(20)]
        );
    });
}

#[test]
fn two_writers_make_one_record_a_list() {
    explore(|| {
        let tree = Tree::with(&[b"k"]);
        let writers = [2, 3].map(|seq| {
            let tree = Arc::clone(&tree);
            thread::spawn(move || assert_eq!(tree.insert(b"k", seq), Inserted::Version))
        });
        assert_eq!(tree.seq(b"k", 1), Some(1));
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!([1, 2, 3].map(|s| tree.seq(b"k", s)), [Some(1), Some(2), Some(3)]);
    });
}
