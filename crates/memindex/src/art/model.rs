//! Every interleaving (within a bound of preemptions) of small histories, explored by loom:
//! `RUSTFLAGS="--cfg loom" cargo test -p terrane-memindex --release --lib`.
//!
//! Each model fills a tree, then lets two writers or a writer and a reader change and read the same few nodes. What is
//! not modelled: the epochs (nothing is reused under loom) and the bytes of records, which are written before their
//! address is published.
//!
//! The first thread of a model runs first and must be one that writes: loom remembers of each atomic only the last access,
//! so the load before a writer's store would hide from it that another thread's earlier load was in a race with the store.

use loom::sync::Arc;
use loom::thread;
use terrane_base::sync::bounded;
use terrane_base::{MAX_SEQ, MemoryBudget, Seq};

use crate::art::{Art, Descent, Inserted, Path, Seeking, Way};
use crate::record::RecordArena;

struct Tree {
    art: Art,
    records: RecordArena,
}

impl Tree {
    fn with(keys: &[&[u8]]) -> Arc<Tree> {
        let budget = MemoryBudget::new(0);
        let tree = Tree {
            art: Art::new(std::sync::Arc::default(), budget.clone()),
            records: RecordArena::new(budget),
        };
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

fn spawn(tree: &Arc<Tree>, run: impl FnOnce(&Tree) + 'static) -> thread::JoinHandle<()> {
    let tree = Arc::clone(tree);
    thread::spawn(move || run(&tree))
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = bounded(3);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// Lets two writers insert while a reader looks for what was there before, then checks that everything is.
fn race(before: &'static [&'static [u8]], one: &'static [u8], two: &'static [u8]) {
    explore(move || {
        let tree = Tree::with(before);
        let reader = spawn(&tree, move |tree| {
            assert_eq!(tree.seq(before[before.len() - 1], MAX_SEQ), Some(1));
            let early = tree.seq(one, 1);
            assert_eq!(early, None);
        });
        let writer = spawn(&tree, move |tree| assert_eq!(tree.insert(two, 2), Inserted::Key));
        assert_eq!(tree.insert(one, 2), Inserted::Key);
        assert_eq!(tree.seq(one, 2), Some(2));
        [reader, writer].into_iter().for_each(|thread| thread.join().unwrap());
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
fn two_writers_add_to_a_small_node() {
    race(&[b"a1", b"a2"], b"a0", b"a3");
}

/// Lets a batch of two go in, the second of which begins where the first has ended, while another key comes.
fn race_of_a_batch(before: &'static [&'static [u8]], batch: [&'static [u8]; 2], other: &'static [u8]) {
    explore(move || {
        let tree = Tree::with(before);
        let writer = spawn(&tree, move |tree| assert_eq!(tree.insert(other, 2), Inserted::Key));
        let records = batch.map(|key| (key, 2, tree.records.push(key, 2, 1, b"")));
        tree.art.insert_all(records.into_iter(), |inserted| assert_eq!(inserted, Inserted::Key));
        assert_eq!(batch.map(|key| tree.seq(key, 2)), [Some(2); 2]);
        writer.join().unwrap();
        let all = before.iter().copied().chain(batch).chain([other]);
        let mut expected: Vec<_> = all.map(<[u8]>::to_vec).collect();
        expected.sort();
        assert_eq!(tree.keys(), expected);
    });
}

#[test]
fn a_batch_goes_on_in_a_node_that_another_outgrows() {
    race_of_a_batch(&[b"a0", b"a1", b"a2"], [b"a4", b"a5"], b"a6");
}

#[test]
fn a_batch_outgrows_a_node_whose_path_another_splits() {
    race_of_a_batch(&[b"abc0", b"abc1", b"abc2"], [b"abc4", b"abc5"], b"ax");
}

/// Lets an insert go on where a search has come to after so many steps, while another key comes.
fn race_of_a_search(
    before: &'static [&'static [u8]],
    one: &'static [u8],
    steps: usize,
    other: &'static [u8],
) {
    explore(move || {
        let tree = Tree::with(before);
        let writer = spawn(&tree, move |tree| assert_eq!(tree.insert(other, 2), Inserted::Key));
        let record = tree.records.push(one, 2, 1, b"");
        let mut found = Descent::new(&tree.art, one);
        (0..steps).for_each(|_| _ = found.step(one));
        assert_eq!(tree.art.insert_found(&found, one, 2, record), Inserted::Key);
        drop(found);
        assert_eq!(tree.seq(one, 2), Some(2));
        writer.join().unwrap();
        let mut expected: Vec<_> = before.iter().chain(&[one, other]).map(|key| key.to_vec()).collect();
        expected.sort();
        assert_eq!(tree.keys(), expected);
    });
}

#[test]
fn an_insert_goes_on_in_a_node_that_another_outgrows() {
    race_of_a_search(&[b"a0", b"a1", b"a2", b"a3"], b"a4", 2, b"a5");
}

#[test]
fn an_insert_goes_on_below_a_node_that_another_outgrows() {
    race_of_a_search(&[b"aa0", b"aa1", b"ab", b"ac", b"ad"], b"aa2", 3, b"ae");
}

#[test]
fn an_insert_goes_on_below_a_path_that_another_splits() {
    race_of_a_search(&[b"abc0", b"abc1", b"abc2", b"abc3"], b"abc4", 2, b"ax");
}

#[test]
fn a_scan_goes_on_past_a_key_that_is_being_added() {
    explore(|| {
        let tree = Tree::with(&[b"a1", b"a2", b"b"]);
        let reader = spawn(&tree, |tree| {
            let mut keys = tree.keys();
            keys.retain(|key| key != b"a3");
            assert_eq!(keys, [&b"a1"[..], b"a2", b"b"]);
        });
        assert_eq!(tree.insert(b"a3", 2), Inserted::Key);
        reader.join().unwrap();
    });
}

#[test]
fn a_key_once_found_in_a_node_that_is_outgrown_stays_found() {
    explore(|| {
        let tree = Tree::with(&[b"a0", b"a1", b"a2", b"a3"]);
        let reader = spawn(&tree, |tree| {
            let seen = tree.seq(b"a4", 2);
            assert_eq!(tree.seq(b"a3", MAX_SEQ), Some(1));
            assert!(seen.is_none() || tree.seq(b"a4", 2) == Some(2));
        });
        tree.insert(b"a4", 2);
        reader.join().unwrap();
    });
}

#[test]
fn a_step_from_an_old_path_skips_nothing_while_the_node_is_outgrown() {
    explore(|| {
        let tree = Tree::with(&[b"a0", b"a1", b"a2", b"a4"]);
        let reader = spawn(&tree, |tree| {
            let mut path = Path::default();
            let leaf = tree.art.seek(&mut path, b"a1", Way::Up);
            let leaf = tree.art.step(&mut path, leaf, Way::Up);
            assert_eq!(tree.art.key(leaf), Some(&b"a2"[..]));
            let settled = tree.seq(b"a3", 2).is_some();
            let leaf = tree.art.step(&mut path, leaf, Way::Up);
            let key = tree.art.key(leaf).unwrap();
            assert!(key == b"a3" || key == b"a4" && !settled);
        });
        tree.insert(b"a3", 2);
        reader.join().unwrap();
    });
}

#[test]
fn a_seek_in_steps_skips_nothing_while_the_node_it_is_in_is_outgrown() {
    explore(|| {
        let tree = Tree::with(&[b"a0", b"a1", b"a3", b"a4"]);
        let reader = spawn(&tree, |tree| {
            let settled = tree.seq(b"a2", 2).is_some();
            let mut path = Path::default();
            let mut seek = Seeking::new(&tree.art, &mut path);
            while seek.step(&mut path, b"a2") {}
            let leaf = seek.finish(&mut path, b"a2");
            let key = tree.art.key(leaf).unwrap();
            assert!(key == b"a2" || key == b"a3" && !settled);
            let leaf = tree.art.step(&mut path, leaf, Way::Up);
            let next = tree.art.key(leaf).unwrap();
            assert_eq!(next, if key == b"a2" { b"a3" } else { b"a4" });
        });
        tree.insert(b"a2", 2);
        reader.join().unwrap();
    });
}

/// Adds version 15 to the key while a reader asks for the newest at or below `snapshot`.
fn late(before: &'static [Seq], snapshot: Seq, allowed: &'static [Seq]) {
    explore(move || {
        let tree = Tree::with(&[]);
        before.iter().for_each(|seq| assert_ne!(tree.insert(b"k", *seq), Inserted::Nothing));
        let reader = spawn(&tree, move |tree| {
            let seen = tree.seq(b"k", snapshot).unwrap();
            assert!(allowed.contains(&seen), "{seen}");
        });
        assert_eq!(tree.insert(b"k", 15), Inserted::Version);
        reader.join().unwrap();
        assert_eq!([10, 14, 15, 19, 20].map(|s| tree.seq(b"k", s).unwrap()), [10, 10, 15, 15, 20]);
    });
}

#[test]
fn a_late_version_doubles_the_array_under_a_reader() {
    late(&[10, 20], 19, &[10, 15]);
}

#[test]
fn a_late_version_moves_others_under_a_reader() {
    late(&[10, 20, 30], 29, &[20]);
    late(&[10, 20, 30], 19, &[10, 15]);
}

#[test]
fn two_writers_make_one_record_a_list() {
    explore(|| {
        let tree = Tree::with(&[b"k"]);
        let reader = spawn(&tree, |tree| assert_eq!(tree.seq(b"k", 1), Some(1)));
        let writer = spawn(&tree, |tree| assert_eq!(tree.insert(b"k", 2), Inserted::Version));
        assert_eq!(tree.insert(b"k", 3), Inserted::Version);
        [reader, writer].into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!([1, 2, 3].map(|s| tree.seq(b"k", s)), [Some(1), Some(2), Some(3)]);
    });
}
