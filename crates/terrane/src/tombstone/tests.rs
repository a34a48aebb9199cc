use std::cell::RefCell;

use proptest::collection::vec;
use proptest::prelude::*;
use terrane_compaction::Retention;

use super::*;

fn empty() -> MemTombstones {
    MemTombstones::new(MemoryBudget::new(1 << 20))
}

/// Commits of one tombstone each: the batch at LSN `l` has sequence `l + 1` and is published at once.
struct Writes {
    tombstones: MemTombstones,
    snapshots: RefCell<Vec<Seq>>,
    published: Seq,
}

impl Writes {
    fn new() -> Self {
        Writes { tombstones: empty(), snapshots: RefCell::default(), published: 0 }
    }

    fn delete(&mut self, start: &[u8], end: &[u8]) {
        let needed = || Needed { published: self.published, snapshots: self.snapshots.borrow().clone() };
        let seq = self.published + 1;
        self.tombstones.insert(seq - 1, seq, start, end, During::Reads(&needed)).unwrap();
        self.published = seq;
    }

    fn pictures(&self) -> usize {
        self.tombstones.pictures.load().as_ref().map_or(0, |p| p.len())
    }
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

#[test]
fn a_rising_watermark_costs_the_same_however_often_it_rises() {
    let mut w = Writes::new();
    let mut made = 0;
    for i in 1..=5000 {
        w.delete(b"", &key(i));
        assert!(w.tombstones.bytes() < 8 << 10, "{} bytes after {i}", w.tombstones.bytes());
        let now = w.tombstones.account.made();
        assert!(now - made < 50, "{} allocations for one tombstone", now - made);
        made = now;
    }
    let all = w.tombstones.to_ranges(&[w.published]).unwrap();
    assert_eq!(all, RangeTombstones::from_ranges([(&b""[..], &key(5000)[..], 5000)]));
}

#[test]
fn covering_many_fragments_again_and_again_costs_them_once_though_a_snapshot_keeps_them() {
    let mut w = Writes::new();
    for i in 0..5000 {
        w.delete(&key(2 * i), &key(2 * i + 1));
    }
    let snapshot = w.published;
    w.snapshots.borrow_mut().push(snapshot);
    let (bytes, made) = (w.tombstones.bytes(), w.tombstones.account.made());
    for _ in 0..5000 {
        w.delete(b"", &[0xff]);
    }
    let each = (w.tombstones.account.made() - made) / 5000;
    assert!(each < 50, "{each} allocations for a tombstone over everything");
    assert!(w.tombstones.bytes() < bytes + (64 << 10), "{bytes} became {}", w.tombstones.bytes());
    assert!(w.pictures() <= 2 * FEW, "{}", w.pictures());
    for i in [0, 17, 4999] {
        assert_eq!(w.tombstones.covering(&key(2 * i), snapshot), Some(i + 1));
        assert_eq!(w.tombstones.covering(&key(2 * i + 1), snapshot), Some(0));
        assert_eq!(w.tombstones.covering(&key(2 * i + 1), w.published), Some(10_000));
    }
    // The snapshot goes, and with it what only it needed.
    w.snapshots.borrow_mut().clear();
    for _ in 0..100 {
        w.delete(b"", &[0xff]);
    }
    assert!(w.tombstones.bytes() < 8 << 10, "{}", w.tombstones.bytes());
}

#[test]
fn fragments_in_any_order_make_a_shallow_tree() {
    for stride in [1, 7919, 9999] {
        let mut w = Writes::new();
        for i in 0..10_000 {
            let at = 2 * (i * stride % 10_000);
            w.delete(&key(at), &key(at + 1));
        }
        let made = w.tombstones.account.made();
        assert!(made < 10_000 * 100, "{made} allocations");
    }
    // Cut out of one another, which must not chain up either.
    let mut w = Writes::new();
    w.delete(b"", &[0xff]);
    for i in 0..10_000 {
        w.delete(&key(2 * i), &key(2 * i + 1));
    }
    let made = w.tombstones.account.made();
    assert!(made < 10_000 * 150, "{made} allocations");
}

#[test]
fn who_comes_too_late_is_told_so() {
    let mut w = Writes::new();
    w.delete(b"a", b"z");
    let late = w.published;
    for _ in 0..20 {
        w.delete(b"a", b"z");
    }
    assert_eq!(w.tombstones.covering(b"b", late), None);
    assert_eq!(w.tombstones.covering(b"b", 0), None, "nor is it known any more that there was none");
    assert!(w.tombstones.picture(late).is_err());
    assert!(w.tombstones.to_ranges(&[late, w.published]).is_err());
    assert_eq!(w.tombstones.covering(b"b", w.published), Some(w.published));
}

#[test]
fn what_is_not_published_yet_is_kept() {
    let t = empty();
    let needed = || Needed { published: 5, snapshots: vec![5] };
    // 100 commits on their way, none published.
    for seq in 10..110 {
        t.insert(seq - 1, seq, b"a", b"z", During::Reads(&needed)).unwrap();
    }
    for at in 10..110 {
        assert_eq!(t.covering(b"b", at), Some(at));
    }
    assert_eq!(t.covering(b"b", 5), Some(0));
}

#[test]
fn the_budget_gets_everything_back() {
    let budget = MemoryBudget::new(1 << 20);
    let t = MemTombstones::new(budget.clone());
    for seq in 1..=100u64 {
        let needed = || Needed { published: seq - 1, snapshots: (0..10).map(|s| s * 10).collect() };
        t.insert(seq - 1, seq, &key(seq * 7 % 50), &key(60), During::Reads(&needed)).unwrap();
    }
    assert_eq!(budget.used(), t.bytes());
    let held = t.picture(100).unwrap();
    drop(t);
    assert!(held.is_some() && budget.used() > 0, "a reader still holds a picture");
    drop(held);
    assert_eq!(budget.used(), 0);
}

/// An interval with the sequence at which it was laid.
type Interval = (u8, u8, Seq);

fn newest(all: &[Interval], key: u8, seq: Seq) -> Seq {
    let covers = |&&(a, b, s): &&Interval| a <= key && key < b && s <= seq;
    all.iter().filter(covers).map(|i| i.2).max().unwrap_or(0)
}

/// What a merge would keep of all of them.
fn pruned(all: &[Interval], snapshots: &[Seq]) -> RangeTombstones {
    let all = RangeTombstones::from_ranges(all.iter().map(|&(a, b, s)| ([a], [b], s)));
    let mut kept = Vec::new();
    for f in all.fragments() {
        for (i, s) in f.seqs.iter().enumerate() {
            let stripe = |s: Seq| snapshots.partition_point(|&x| x < s);
            if i == 0 || stripe(f.seqs[i - 1]) != stripe(*s) {
                kept.push((f.start.clone(), f.end.clone(), *s));
            }
        }
    }
    RangeTombstones::from_ranges(kept)
}

proptest! {
    /// Batches of tombstones that overtake each other on their way, snapshots that come and go.
    #[test]
    fn readers_see_exactly_what_a_list_of_intervals_shows(
        batches in vec((vec((0u8..40, 0u8..40), 1..4), any::<u8>(), any::<u8>()), 0..120),
    ) {
        let t = empty();
        let mut all: Vec<Interval> = Vec::new();
        let mut snapshots: Vec<Seq> = Vec::new();
        let mut published = 0;
        for window in batches.chunks(4) {
            // A window of batches has its places reserved; they are laid in the order of a key, then published.
            let lsn = |i: usize| published + 1 + 10 * i as u64;
            let mut order: Vec<usize> = (0..window.len()).collect();
            order.sort_by_key(|&i| window[i].1);
            let needed = Needed { published, snapshots: snapshots.clone() };
            for &i in &order {
                for (n, (a, b)) in window[i].0.iter().enumerate() {
                    let seq = lsn(i) + 1 + n as u64;
                    t.insert(lsn(i), seq, &[*a], &[*b], During::Reads(&|| needed.clone())).unwrap();
                    all.push((*a, *b, seq));
                }
            }
            // Each may have been the newest published one when somebody registered.
            for (i, (_, _, snap)) in window.iter().enumerate() {
                if snap % 3 == 0 {
                    snapshots.push(lsn(i) + 9);
                }
                if snap % 5 == 1 && !snapshots.is_empty() {
                    snapshots.remove(*snap as usize % snapshots.len());
                }
            }
            published = lsn(window.len()) - 1;
            for k in 0..40 {
                for &s in snapshots.iter().chain([&published]) {
                    prop_assert_eq!(t.covering(&[k], s), Some(newest(&all, k, s)), "key {} at {}", k, s);
                }
                // Whoever registered nothing is answered rightly or told.
                for s in (0..published).step_by(10) {
                    let told = t.covering(&[k], s);
                    prop_assert!(told.is_none_or(|c| c == newest(&all, k, s)), "key {} at {}", k, s);
                }
            }
        }
        let mut at = snapshots.clone();
        at.push(published);
        at.sort_unstable();
        at.dedup();
        prop_assert_eq!(t.to_ranges(&at).unwrap(), pruned(&all, &at));
        // As merges judge records with them.
        let (kept, full) = (t.to_ranges(&at).unwrap(), RangeTombstones::from_ranges(all.iter().map(|&(a, b, s)| ([a], [b], s))));
        let (mut with, mut without) = (Retention::new(&at, &kept, false), Retention::new(&at, &full, false));
        for k in 0..40u8 {
            with.begin_key(&[k]);
            without.begin_key(&[k]);
            for seq in (1..=published).rev().step_by(3) {
                let put = terrane_format::Kind::Put;
                prop_assert_eq!(with.judge(seq, put), without.judge(seq, put));
            }
        }
    }

    #[test]
    fn replay_needs_no_order_and_keeps_the_newest(
        ranges in vec((0u8..60, 0u8..60, any::<u16>()), 0..200),
    ) {
        let t = empty();
        let mut all: Vec<Interval> = Vec::new();
        let mut order: Vec<usize> = (0..ranges.len()).collect();
        order.sort_by_key(|&i| ranges[i].2);
        for i in order {
            let (a, b, _) = ranges[i];
            let seq = 10 * i as u64 + 1;
            t.insert(seq - 1, seq, &[a], &[b], During::Replay).unwrap();
            all.push((a, b, seq));
        }
        let end = 10 * ranges.len() as u64;
        for k in 0..60 {
            prop_assert_eq!(t.covering(&[k], end), Some(newest(&all, k, end)));
        }
        let f = t.to_ranges(&[end]).unwrap();
        prop_assert!(f.fragments().iter().all(|f| f.seqs.len() == 1));
        prop_assert_eq!(f, pruned(&all, &[end]));
    }
}
