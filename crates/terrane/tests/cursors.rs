//! Cursors that stay open: what they keep, and what they show when they go on.

mod support;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use support::{Rng, TUNING, dir, fresh, on_medium, open, stand_in, tiny, tiny_table};
use terrane::media::Media;
use terrane::media::sim::{CrashKind, SimMedia};
use terrane::{
    Cursor, Db, ErrorKind, Isolation, Options, Range, ReadOptions, Subtable, Swizzling, TransactionOptions,
    Tuning,
};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(i: u64) -> Vec<u8> {
    format!("k{i:06}").into_bytes()
}

/// Most values are short, some near a block's size, some stored apart.
fn value(i: u64, round: u64) -> Vec<u8> {
    let len = match i % 50 {
        7 => 2000,
        21 => 5000,
        _ => 40,
    };
    vec![(i ^ round) as u8; len]
}

fn fill(t: &Subtable, rows: &mut Rows, keys: impl Iterator<Item = u64>, round: u64) {
    for i in keys {
        t.put(&key(i), &value(i, round)).unwrap();
        rows.insert(key(i), value(i, round));
    }
}

/// A subtable whose records lie in two levels, a run and a memtable.
fn layered(seed: u64) -> (Arc<SimMedia>, Db, Subtable, Rows) {
    layered_with(seed, &tiny())
}

fn layered_with(seed: u64, options: &Options) -> (Arc<SimMedia>, Db, Subtable, Rows) {
    let (media, db) = fresh(seed, options).unwrap();
    let t = db.subtable("t0").unwrap();
    let mut rows = Rows::new();
    fill(&t, &mut rows, 0..1000, 0);
    t.compact().unwrap();
    fill(&t, &mut rows, (0..1000).step_by(3), 1);
    t.flush().unwrap();
    fill(&t, &mut rows, (0..1000).step_by(5), 2);
    for i in (0..1000).step_by(11) {
        t.delete(&key(i)).unwrap();
        rows.remove(&key(i));
    }
    t.delete_range(&key(400), &key(420)).unwrap();
    rows.retain(|k, _| !(key(400) <= *k && *k < key(420)));
    (media, db, t, rows)
}

/// Replaces every state there was: other values everywhere, memtables written out, extents merged.
fn overturn(db: &Db, t: &Subtable, rounds: std::ops::Range<u64>) {
    let mut scratch = Rows::new();
    for round in rounds {
        fill(t, &mut scratch, 0..1000, round);
        t.delete_range(&key(600), &key(900)).unwrap();
        t.compact().unwrap();
    }
    db.wait_idle().unwrap();
}

fn shows(c: &Cursor, row: Option<(&Vec<u8>, &Vec<u8>)>) {
    let text = |k: &[u8]| String::from_utf8_lossy(k).into_owned();
    let want = row.map(|(k, v)| (text(k), v.clone()));
    let got = c.valid().then(|| (text(c.key()), c.value().unwrap().into_owned()));
    assert!(got == want, "at {:?}, wanted {:?}", got.map(|g| g.0), want.map(|w| w.0));
}

#[test]
fn a_cursor_outlives_its_handles_and_keeps_the_directory_locked() {
    let (media, db, t, rows) = layered(5);
    let other = t.clone();
    let mut cursors: Vec<_> = std::thread::scope(|s| {
        let all: Vec<_> = (0..3).map(|_| s.spawn(|| other.cursor(ReadOptions::new()).unwrap())).collect();
        all.into_iter().map(|c| c.join().unwrap()).collect()
    });
    let never_sought = cursors.pop();
    cursors.iter_mut().for_each(|c| c.seek_to_first().unwrap());
    let mut range = t.range(ReadOptions::new()).unwrap();
    assert!(range.next().is_some() && range.next_back().is_some());
    drop((other, t, db));
    let locked = || open(&media, &tiny()).map(|_| ()).unwrap_err().kind() == ErrorKind::Locked;
    assert!(locked());
    for c in &mut cursors {
        for row in &rows {
            shows(c, Some(row));
            c.next().unwrap();
        }
        shows(c, None);
        c.seek(&key(500)).unwrap();
        shows(c, rows.range(key(500)..).next());
    }
    assert_eq!(range.count(), rows.len() - 2);
    drop(never_sought);
    assert!(locked());
    // The last ones go with a thread that has made none.
    std::thread::scope(|s| s.spawn(move || drop(cursors)).join().unwrap());
    open(&media, &tiny()).unwrap();
}

#[test]
fn a_walk_tells_what_steps_show_and_stands_where_it_was_broken_off() {
    let (_media, db, t, mut rows) = layered(8);
    let mut rng = Rng(8);
    for round in 0..60 {
        let (from, to) = (rng.below(1000), rng.below(1000));
        let bounded = round % 3 == 0 && from < to;
        let options = if bounded { ReadOptions::new().upper(key(to)) } else { ReadOptions::new() };
        if round % 4 == 1 {
            fill(&t, &mut rows, (round..1000).step_by(90), round);
        }
        if round == 20 {
            // From here on without a range that is deleted.
            t.compact().unwrap();
        }
        let mut c = t.cursor(options).unwrap();
        let mut want: Vec<_> = rows.range(key(from)..).filter(|(k, _)| !bounded || **k < key(to)).collect();
        if round % 5 == 4 {
            c.seek_for_prev(&key(from)).unwrap();
            want.splice(0..0, rows.range(..key(from)).next_back().filter(|_| !rows.contains_key(&key(from))));
        } else {
            c.seek(&key(from)).unwrap();
        }
        let limit = 1 + rng.below(300) as usize;
        let mut told = Vec::new();
        let mut walk = |c: &mut Cursor, limit: usize| {
            let walked = c.walk(|k, v| {
                if told.len() % 97 == 50 && round % 5 == 2 {
                    // The state goes while it is walked over.
                    t.flush().unwrap();
                }
                told.push((k.to_vec(), v.to_vec()));
                if told.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(told.len()) }
            });
            (walked.unwrap(), told.clone())
        };
        let (walked, first) = walk(&mut c, limit);
        let n = limit.min(want.len());
        assert!(first.iter().map(|(k, v)| (k, v)).eq(want[..n].iter().copied()));
        if want.len() < limit {
            assert!(walked.is_none() && !c.valid());
            assert!(c.walk(|_, _| ControlFlow::Break(())).unwrap().is_none());
            continue;
        }
        assert_eq!(walked, Some(limit));
        shows(&c, Some(want[n - 1]));
        if n > 1 && round % 2 == 0 {
            c.prev().unwrap();
            shows(&c, Some(want[n - 2]));
            c.next().unwrap();
        }
        let panics = catch_unwind(AssertUnwindSafe(|| c.walk::<()>(|_, _| panic!("of its own"))));
        assert!(panics.is_err());
        shows(&c, Some(want[n - 1]));
        // On from there, and to the end.
        c.next().unwrap();
        let (walked, all) = walk(&mut c, usize::MAX);
        assert!(walked.is_none() && !c.valid());
        assert!(all.iter().map(|(k, v)| (k, v)).eq(want));
    }
    db.close().unwrap();
}

#[test]
fn a_walk_that_fails_has_told_of_all_in_front() {
    let (media, db) = fresh(9, &tiny()).unwrap();
    let t = db.subtable("t0").unwrap();
    let mut rng = Rng(9);
    // What does not compress.
    let mut bytes = |n: usize| (0..n).map(|_| rng.below(256) as u8).collect::<Vec<_>>();
    let rows: Rows = (0..2000).map(|i| (key(i), bytes(if i % 40 == 7 { 4000 } else { 60 }))).collect();
    rows.iter().for_each(|(k, v)| t.put(k, v).unwrap());
    t.flush().unwrap();
    db.close().unwrap();
    let image = media.image();
    let (mut stands, mut steps) = (0, 0);
    let data = media.list(dir()).unwrap().into_iter().filter(|f| f.name.starts_with("data-"));
    const APART: u64 = 8 << 10;
    let places = data.flat_map(|f| (0..f.len).step_by(APART as usize).map(move |at| (f.clone(), at)));
    for (file, at) in places {
        let media = image.crash(CrashKind::Process, 1);
        let bit = rng.below(8 * APART.min(file.len - at));
        media.flip_bit(&dir().join(&file.name), at * 8 + bit).unwrap();
        let Ok(db) = open(&media, &tiny()) else { continue };
        let mut c = db.subtable("t0").unwrap().cursor(ReadOptions::new()).unwrap();
        if c.seek_to_first().is_err() {
            continue;
        }
        let mut told = Vec::new();
        let walked = c.walk::<()>(|k, v| {
            told.push((k.to_vec(), v.to_vec()));
            ControlFlow::Continue(())
        });
        assert!(told.iter().map(|(k, v)| (k, v)).eq(rows.iter().take(told.len())));
        match walked {
            Ok(_) => assert_eq!(told.len(), rows.len()),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption);
                if c.valid() {
                    stands += 1;
                    assert_eq!(Some(c.key()), rows.keys().nth(told.len()).map(|k| &k[..]));
                    assert_eq!(c.value().unwrap_err().kind(), ErrorKind::Corruption);
                } else {
                    steps += 1;
                }
            }
        }
    }
    assert!(stands > 5 && steps > 5, "{stands} values, {steps} steps");
}

#[test]
fn a_cursor_keeps_its_snapshot_when_whoever_made_it_lets_go() {
    let (_media, db, t, rows) = layered(6);
    let snapshot = db.snapshot();
    let mut cursor = t.cursor(ReadOptions::new().snapshot(&snapshot)).unwrap();
    drop(snapshot);
    overturn(&db, &t, 5..8);
    cursor.seek_to_first().unwrap();
    for row in &rows {
        shows(&cursor, Some(row));
        cursor.next().unwrap();
    }
    shows(&cursor, None);
    drop(cursor);
    let snapshots = || db.stats().snapshots;
    assert_eq!(snapshots(), 0);

    let mut range = t.range(ReadOptions::new()).unwrap();
    assert!(range.next_back().is_some());
    assert_eq!(snapshots(), 2, "one from each end");
    drop(range);
    let mut txn = db.begin(TransactionOptions::new().isolation(Isolation::ReadCommitted)).unwrap();
    let mut c = txn.cursor(&t, ReadOptions::new()).unwrap();
    c.seek_to_first().unwrap();
    assert!(snapshots() > 0);
    drop(c);
    drop(txn);
    let (_, stranger) = fresh(7, &tiny()).unwrap();
    let foreign = t.cursor(ReadOptions::new().snapshot(&stranger.snapshot()));
    assert_eq!(foreign.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let snapshot = db.snapshot();
    db.drop_subtable("t0").unwrap();
    let dropped = t.cursor(ReadOptions::new().snapshot(&snapshot));
    assert_eq!(dropped.unwrap_err().kind(), ErrorKind::SubtableDropped);
    drop(snapshot);
    assert_eq!((snapshots(), stranger.stats().snapshots), (0, 0));
}

#[test]
fn an_idle_cursor_keeps_no_memtable_and_no_space() {
    // What the database takes with nobody reading, and with a snapshot, after the same history.
    let after = |hold: bool| {
        let (_media, db, t, _) = layered(1);
        let snapshot = hold.then(|| db.snapshot());
        overturn(&db, &t, 3..6);
        let there = db.stats();
        drop(snapshot);
        overturn(&db, &t, 6..8);
        (there.memtable_bytes, there.data_used, db.stats().data_used)
    };
    let (alone, snapshot) = (after(false), after(true));
    let (_media, db, t, rows) = layered(1);
    let mut cursors: Vec<Cursor> = (0..8).map(|_| t.cursor(ReadOptions::new()).unwrap()).collect();
    for (n, c) in cursors.iter_mut().enumerate() {
        c.seek(&key(100 * n as u64)).unwrap();
    }
    overturn(&db, &t, 3..6);
    let held = db.stats();
    assert_eq!((held.memtable_bytes, held.data_used), (snapshot.0, snapshot.1));
    for (n, c) in cursors.iter_mut().enumerate() {
        let mut want = rows.range(key(100 * n as u64)..);
        for _ in 0..200 {
            shows(c, want.next());
            c.next().unwrap();
        }
    }
    drop(cursors);
    overturn(&db, &t, 6..8);
    // A merge may leave a unit of space more or less, depending on when it ran.
    let used = db.stats().data_used;
    assert!(used <= alone.2 + (64 << 10), "nothing is left of them: {used}, {}", alone.2);
}

/// Its runs have a memtable and three runs of L0 above the levels: more sources than one, in each state that memory can be in: nothing,
/// indexes alone, some blocks, all of them.
#[test]
fn a_seek_finds_the_same_whatever_memory_has() {
    for (n, swizzling) in
        [Swizzling::Nothing, Swizzling::Parents, Swizzling::Children].into_iter().enumerate()
    {
        for cache in [64 << 10, 3 << 20, 16 << 20] {
            let tuning = Tuning { swizzling, compact: false, ..TUNING };
            let options = tiny().tuning(tuning).cache_bytes(cache);
            let (_media, _db, t, mut rows) = layered_with(n as u64, &options);
            for round in 5..8 {
                fill(&t, &mut rows, (round..1000).step_by(7), round);
                t.flush().unwrap();
            }
            fill(&t, &mut rows, (9..1000).step_by(13), 9);
            let mut rng = Rng(n as u64);
            let mut left = t.cursor(ReadOptions::new()).unwrap();
            for round in 0..2000 {
                // Between two keys, on one, in front of all and behind all.
                let mut target = key(rng.below(1020));
                match rng.below(20) {
                    0 => target.clear(),
                    1..6 => target.push(b'x'),
                    6..9 => target.truncate(6),
                    _ => {}
                }
                if round % 3 == 0 {
                    left = t.cursor(ReadOptions::new()).unwrap();
                }
                left.seek(&target).unwrap();
                let mut want = rows.range(target..);
                for _ in 0..rng.below(4) + 1 {
                    shows(&left, want.next());
                    left.next().unwrap();
                }
            }
        }
    }
}

#[test]
fn a_stripped_cursor_goes_on_both_ways() {
    let (_media, db, t, rows) = layered(2);
    let list: Vec<_> = rows.iter().collect();
    for at in [0, 1, 350, list.len() - 2, list.len() - 1] {
        let mut c = t.cursor(ReadOptions::new()).unwrap();
        c.seek(list[at].0).unwrap();
        shows(&c, Some(list[at]));
        overturn(&db, &t, 3..4);
        shows(&c, Some(list[at]));
        c.prev().unwrap();
        shows(&c, at.checked_sub(1).map(|i| list[i]));
        // The same again, forwards.
        c.seek(list[at].0).unwrap();
        overturn(&db, &t, 4..5);
        c.next().unwrap();
        shows(&c, list.get(at + 1).copied());
        // Turning round where it was stripped.
        if c.valid() {
            overturn(&db, &t, 5..6);
            c.prev().unwrap();
            shows(&c, Some(list[at]));
            c.next().unwrap();
            shows(&c, list.get(at + 1).copied());
        }
        drop(c);
        // What the next cursor is to see.
        let again = t.range(ReadOptions::new()).unwrap().count();
        assert!(again > 0);
        restore(&t, &rows);
    }
}

/// Brings back what a history had.
fn restore(t: &Subtable, rows: &Rows) {
    t.delete_range(b"", b"l").unwrap();
    for (k, v) in rows {
        t.put(k, v).unwrap();
    }
}

#[test]
fn what_was_borrowed_stays_while_the_scan_is_taken_away() {
    let (_media, db, t, rows) = layered(3);
    // One that stands in a memtable, one in an upper level, one in the lowest, one on a value stored apart.
    for i in [5, 3, 1, 21] {
        let mut c = t.cursor(ReadOptions::new()).unwrap();
        c.seek(&key(i)).unwrap();
        let (borrowed_key, borrowed) = (c.key(), c.value().unwrap());
        overturn(&db, &t, 3..5);
        assert_eq!((borrowed_key, &*borrowed), (&key(i)[..], &rows[&key(i)][..]));
        assert_eq!((c.key(), &*c.value().unwrap()), (&key(i)[..], &rows[&key(i)][..]));
        drop(c);
        restore(&t, &rows);
        t.compact().unwrap();
    }
}

/// Without range deletions, so that cursors come to walk alone through blocks; with bounds, snapshots, and keys that have
/// been deleted or have several versions.
#[test]
fn cursors_walk_as_they_should_while_what_they_walk_on_is_replaced() {
    for seed in 0..30 {
        let mut rng = Rng(seed);
        let (_media, db) = fresh(seed, &tiny()).unwrap();
        let t = db.subtable("t0").unwrap();
        let mut rows = Rows::new();
        let mut cursors: Vec<(Cursor, Rows)> = Vec::new();
        for round in 0..12 {
            // Some rounds touch all, most a few keys or a stretch of them.
            let (from, step) = (rng.below(900), [1, 7, 30, 100][rng.below(4) as usize]);
            fill(&t, &mut rows, (from..1000).step_by(step).take(1 + rng.below(300) as usize), round);
            for _ in 0..rng.below(20) {
                let k = key(rng.below(1000));
                t.delete(&k).unwrap();
                rows.remove(&k);
            }
            match rng.below(4) {
                0 => t.flush().unwrap(),
                1 => t.compact().unwrap(),
                _ => {}
            }
            let (lower, upper) = (key(rng.below(300)), key(700 + rng.below(400)));
            let mut options = ReadOptions::new();
            let mut shown = rows.clone();
            if rng.below(2) == 0 {
                options = options.lower(lower.clone());
                shown.retain(|k, _| *k >= lower);
            }
            if rng.below(2) == 0 {
                options = options.upper(upper.clone());
                shown.retain(|k, _| *k < upper);
            }
            cursors.push((t.cursor(options).unwrap(), shown));
            for (c, shown) in &mut cursors {
                wander(c, shown, &mut rng);
            }
        }
    }
}

/// Moves `c`, which shows `rows`, about, mostly in long strides; leaves it somewhere.
fn wander(c: &mut Cursor, rows: &Rows, rng: &mut Rng) {
    let list: Vec<_> = rows.iter().collect();
    let mut at = list.iter().position(|r| c.valid() && r.0 == c.key());
    for _ in 0..10 {
        let target = key(rng.below(1100));
        let after = list.partition_point(|r| *r.0 < target);
        match rng.below(6) {
            0 => {
                c.seek(&target).unwrap();
                at = Some(after);
            }
            1 => {
                c.seek_for_prev(&target).unwrap();
                let on_it = rows.contains_key(&target);
                at = if on_it { Some(after) } else { after.checked_sub(1) };
            }
            2 => {
                c.seek_to_first().unwrap();
                at = Some(0);
            }
            _ => {}
        }
        at = at.filter(|at| *at < list.len());
        let back = rng.below(4) == 0;
        for _ in 0..rng.below(if back { 4 } else { 80 }) {
            shows(c, at.map(|at| list[at]));
            if back {
                c.prev().unwrap()
            } else {
                c.next().unwrap()
            }
            at = at.and_then(|at| if back { at.checked_sub(1) } else { Some(at + 1) });
            at = at.filter(|at| *at < list.len());
        }
        shows(c, at.map(|at| list[at]));
    }
}

#[test]
fn cursors_one_after_another_each_show_their_own_moment() {
    let (_media, db, t, mut rows) = layered(9);
    let mut rng = Rng(9);
    let mut kept = Vec::new();
    for step in 0..300 {
        match rng.below(16) {
            0 => t.flush().unwrap(),
            1 if step % 8 == 0 => t.compact().unwrap(),
            2 => kept.push((db.snapshot(), rows.clone())),
            3 => {
                kept.pop();
            }
            4..=6 => {
                let (lo, hi) = (rng.below(1000), 1 + rng.below(20));
                t.delete_range(&key(lo), &key(lo + hi)).unwrap();
                rows.retain(|k, _| !(key(lo) <= *k && *k < key(lo + hi)));
            }
            7 => {
                let i = rng.below(1000);
                t.delete(&key(i)).unwrap();
                rows.remove(&key(i));
            }
            // The memtable may be empty here.
            8..=9 => {}
            _ => fill(&t, &mut rows, [rng.below(1000)].into_iter(), 1000 + step),
        }
        let mut now = t.cursor(ReadOptions::new()).unwrap();
        if let Some((snapshot, then)) = kept.last() {
            let mut at_snapshot = t.cursor(ReadOptions::new().snapshot(snapshot)).unwrap();
            wander(&mut at_snapshot, then, &mut rng);
        }
        wander(&mut now, &rows, &mut rng);
    }
}

#[test]
fn a_range_goes_on_from_both_ends() {
    let (_media, db, t, rows) = layered(4);
    let mut range: Range = t.range(ReadOptions::new()).unwrap();
    let mut want = rows.iter().map(|(k, v)| (k.clone(), v.clone()));
    for round in 3..9 {
        for _ in 0..40 {
            assert_eq!(range.next().transpose().unwrap(), want.next());
            assert_eq!(range.next_back().transpose().unwrap(), want.next_back());
        }
        overturn(&db, &t, round..round + 1);
    }
    assert!(range.map(Result::unwrap).eq(want));
}

#[test]
fn cursors_of_a_dropped_subtable_go_on_to_their_end_and_then_its_space_comes_back() {
    let (_media, db, t, rows) = layered(5);
    let before = {
        let (_media, db) = fresh(5, &tiny()).unwrap();
        db.drop_subtable("t0").unwrap();
        db.stats().data_used
    };
    // One before its first seek, one with its scan, one whose scan was taken away, one that goes unused.
    let mut unused = t.cursor(ReadOptions::new()).unwrap();
    let mut stripped = t.cursor(ReadOptions::new()).unwrap();
    stripped.seek_to_first().unwrap();
    t.compact().unwrap();
    let mut fresh = t.cursor(ReadOptions::new()).unwrap();
    fresh.seek_to_first().unwrap();
    let mut range = t.range(ReadOptions::new()).unwrap();
    range.next().unwrap().unwrap();
    let idle = t.cursor(ReadOptions::new()).unwrap();
    db.drop_subtable("t0").unwrap();
    unused.seek_to_first().unwrap();
    for c in [&mut unused, &mut stripped, &mut fresh] {
        for row in &rows {
            shows(c, Some(row));
            c.next().unwrap();
        }
        shows(c, None);
    }
    let mut want = rows.iter().map(|(k, v)| (k.clone(), v.clone())).skip(1);
    assert_eq!(range.next_back().transpose().unwrap(), want.next_back());
    assert!(range.by_ref().map(Result::unwrap).eq(want));
    drop((unused, stripped, fresh, range));
    db.wait_idle().unwrap();
    assert!(db.stats().data_used > before);
    drop(idle);
    db.wait_idle().unwrap();
    // The handle `t` is still there.
    assert_eq!(db.stats().data_used, before);
}

#[test]
fn idle_cursors_do_not_hold_writers_up() {
    let (_media, db) = fresh(6, &tiny()).unwrap();
    let t = db.subtable("t0").unwrap();
    let mut open = Vec::new();
    // Twenty budgets' worth of records, and at any time a cursor on whatever there was.
    for i in 0..20_000 {
        t.put(&key(i), &[7; 500]).unwrap();
        if i % 200 == 0 {
            let mut c = t.cursor(ReadOptions::new()).unwrap();
            c.seek(&key(i / 2)).unwrap();
            open.push((i, c));
        }
        let s = db.stats();
        assert!(s.memtable_bytes <= s.memtable_budget + s.memtable_budget / 4, "{}", s.memtable_bytes);
    }
    for (i, c) in &mut open {
        assert_eq!(c.key(), key(*i / 2));
        while c.valid() {
            let here = c.key().to_vec();
            c.next().unwrap();
            assert!(!c.valid() || *c.key() > here[..]);
            if here == key(*i) {
                assert!(!c.valid(), "later than its snapshot");
            }
        }
    }
}

#[test]
fn readers_in_many_threads_see_their_snapshots_while_states_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().memtable_bytes(1 << 20).cache_bytes(1 << 20).tuning(terrane::Tuning {
        data_file_bytes: 16 << 20,
        extent_bytes: 64 << 10,
        piece_bytes: 256 << 10,
        ..terrane::Tuning::default()
    });
    let db = Db::open(dir.path(), on_medium(options, stand_in(16 << 20))).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    const KEYS: u64 = 3000;
    // Every key of a round has the round as its value, and rounds are atomic: so a snapshot shows one round.
    let write = |round: u64| {
        let mut batch = terrane::WriteBatch::new();
        for i in 0..KEYS {
            // A third of the keys is there in every third round only.
            if i % 3 == 2 && !(round + i).is_multiple_of(3) {
                batch.delete(&t, &key(i)).unwrap();
            } else {
                batch.put(&t, &key(i), &round.to_be_bytes()).unwrap();
            }
        }
        db.write(batch, terrane::Durability::Buffered).unwrap();
    };
    let there = |i: u64, round: u64| i % 3 != 2 || (round + i).is_multiple_of(3);
    write(0);
    let done = AtomicBool::new(false);
    let steps: u64 = std::thread::scope(|s| {
        let reader = |seed: u64| {
            let (t, done) = (&t, &done);
            move || {
                let mut rng = Rng(seed);
                let mut steps = 0;
                while !done.load(Ordering::Relaxed) {
                    let mut c = t.cursor(ReadOptions::new()).unwrap();
                    c.seek_to_first().unwrap();
                    let round = u64::from_be_bytes((*c.value().unwrap()).try_into().unwrap());
                    let mut at = (0..KEYS).find(|&i| there(i, round)).unwrap();
                    for _ in 0..1 + rng.below(2000) {
                        steps += 1;
                        match rng.below(50) {
                            0 => {
                                at = rng.below(KEYS);
                                c.seek(&key(at)).unwrap();
                                let Some(i) = (at..KEYS).find(|&i| there(i, round)) else { break };
                                at = i;
                            }
                            1..=15 => {
                                c.prev().unwrap();
                                let Some(i) = (0..at).rev().find(|&i| there(i, round)) else { break };
                                at = i;
                            }
                            16 => std::thread::yield_now(),
                            _ => {
                                c.next().unwrap();
                                let Some(i) = (at + 1..KEYS).find(|&i| there(i, round)) else { break };
                                at = i;
                            }
                        }
                        assert!(c.valid(), "seed {seed}: key {at} of round {round}");
                        assert_eq!((c.key(), &*c.value().unwrap()), (&key(at)[..], &round.to_be_bytes()[..]));
                    }
                }
                steps
            }
        };
        let readers: Vec<_> = (0..4).map(|seed| s.spawn(reader(seed))).collect();
        for round in 1..150 {
            write(round);
            if round % 7 == 0 {
                t.flush().unwrap();
            }
            if round % 40 == 0 {
                t.compact().unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
        readers.into_iter().map(|r| r.join().unwrap()).sum()
    });
    assert!(steps > 0);
    db.close().unwrap();
}
