use parking_lot::Mutex;
use terrane_media::Media;
use terrane_media::sim::{Fault, FaultPlan, OpInfo, OpKind, SimMedia};

use super::*;
use crate::memtable::Of;
use crate::{Db, Durability, IndexKind, Medium, Options, ReadOptions, Subtable, SubtableOptions, WriteBatch};

/// A database in which no merge begins by itself.
fn unmerged() -> (Arc<SimMedia>, Db) {
    let media = SimMedia::new(1);
    let db = Db::open_on(media.clone(), "/db", Options::new().background_threads(1)).unwrap();
    db.engine.compactions.fetch_add(db.engine.options.compaction_jobs() as u64, Ordering::SeqCst);
    (media, db)
}

/// Fills L0.
fn fill_l0(t: &Subtable) {
    while t.table().has_l0_room() {
        for i in 0..50u32 {
            t.put(&i.to_be_bytes(), b"value").unwrap();
        }
        t.flush().unwrap();
    }
}

#[test]
fn a_subtable_whose_memtable_waits_comes_first_then_who_was_served_longest_ago() {
    let (_media, db) = unmerged();
    let first = db.create_subtable("first", SubtableOptions::new()).unwrap();
    let second = db.create_subtable("second", SubtableOptions::new()).unwrap();
    fill_l0(&first);
    fill_l0(&second);
    let next = || db.engine.most_urgent_now().map(|(t, _)| t.name.to_string());
    assert_eq!(next().as_deref(), Some("first"), "equals, and neither was served yet");
    first.table().served.store(7, Ordering::Relaxed);
    assert_eq!(next().as_deref(), Some("second"), "it has waited longer");
    second.table().served.store(9, Ordering::Relaxed);
    assert_eq!(next().as_deref(), Some("first"));
    second.put(b"k", b"v").unwrap();
    db.engine.freeze_now(second.table()).unwrap();
    assert_eq!(next().as_deref(), Some("second"), "its memtable waits for a place");
    drop((first, second));
}

#[test]
fn a_subtable_of_which_nothing_waits_slows_nobody() {
    let (_media, db) = unmerged();
    let idle = db.create_subtable("idle", SubtableOptions::new().index(IndexKind::Skiplist)).unwrap();
    let trickle = db.create_subtable("trickle", SubtableOptions::new()).unwrap();
    let busy = db.create_subtable("busy", SubtableOptions::new()).unwrap();
    trickle.put(b"k", b"v").unwrap();
    trickle.flush().unwrap();
    trickle.put(b"k", b"w").unwrap();
    // Up to just below where a memtable freezes: nobody is held back by what lies in one that still takes records.
    let target = db.engine.options.memtable_freeze_bytes() * 9 / 10;
    let mut i = 0u64;
    while busy.table().memtable_bytes(db.engine.memory.fuller()) < target {
        i += 1;
        busy.put(&i.to_be_bytes(), &[7; 4000]).unwrap();
    }
    for t in [&idle, &trickle, &busy] {
        assert_eq!(db.engine.rates(t.table()), [None, None], "{}", t.name());
    }
}

#[test]
fn what_is_not_due_waits_for_a_rest() {
    let (media, db) = unmerged();
    let t = db.create_subtable("t", SubtableOptions::new()).unwrap();
    // The first run goes to L1, and the second meets more of it than it is worth.
    for n in [1000, 200u32] {
        for i in 0..n {
            t.put(&i.to_be_bytes(), &[1; 100]).unwrap();
        }
        t.flush().unwrap();
    }
    let next = || db.engine.most_urgent_now().map(|(_, pick)| pick.reason);
    let waiting = || db.engine.awaiting_rest.load(Ordering::Relaxed);
    let run_all = || while media.help() == terrane_media::Help::Ran {};
    run_all();
    // Such a record meets nothing: it goes straight to L1.
    t.put(b"k1", b"v").unwrap();
    db.engine.freeze_now(t.table()).unwrap();
    assert_eq!(next(), None, "somebody writes");
    assert!(waiting(), "somebody will look");
    // Of the two that are frozen the second comes after the look was asked for.
    t.put(b"k2", b"v").unwrap();
    db.engine.freeze_now(t.table()).unwrap();
    assert_eq!(next(), None);
    run_all();
    assert_eq!(next(), None, "something was frozen before the look");
    run_all();
    assert_eq!(next(), Some(Reason::L0), "nothing has been frozen between two looks");
    t.put(b"k3", b"v").unwrap();
    assert_eq!(next(), Some(Reason::L0), "nothing is frozen yet");
    db.engine.freeze_now(t.table()).unwrap();
    assert_eq!(next(), None, "somebody writes again");
    db.wait_idle().unwrap();
    assert_eq!(next(), Some(Reason::L0), "somebody said that nobody writes");
}

#[test]
fn deletions_among_many_records_wait_until_a_seek_has_met_them() {
    let (media, db) = unmerged();
    let t = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let (records, deleted) = (10_000u32, 2000u32);
    for i in 0..records {
        t.put(&i.to_be_bytes(), &[1; 100]).unwrap();
    }
    t.flush().unwrap();
    // The last one too: what deletes them spans all the rest.
    for i in (0..deleted).chain([records - 1]) {
        t.delete(&i.to_be_bytes()).unwrap();
    }
    t.flush().unwrap();
    let next = || db.engine.most_urgent_now().map(|(_, pick)| pick.reason);
    let run_all = || while media.help() == terrane_media::Help::Ran {};
    let seek = || {
        let mut c = t.cursor(ReadOptions::new()).unwrap();
        c.seek(&[]).unwrap();
        c.key().to_vec()
    };
    let met = || t.table().deletions_met.lock().met.is_some();
    assert_eq!((next(), met()), (None, false));
    assert_eq!(seek(), deleted.to_be_bytes());
    assert!(met());
    assert_eq!(next(), Some(Reason::Deletes));
    // Merges may begin from here on.
    db.engine.compactions.store(0, Ordering::SeqCst);
    db.engine.schedule_compactions();
    run_all();
    assert_eq!((next(), met()), (None, false), "all are gone");
    let deletes: u64 = t.table().state().version.runs().map(|(_, run)| run.deletes()).sum();
    assert_eq!(deletes, 0);
    assert_eq!(seek(), deleted.to_be_bytes());
    assert!(!met());
    drop(t);
}

/// On real threads, since a simulated machine knows when nothing is left to wait for.
#[test]
fn runs_of_range_tombstones_alone_do_not_keep_l0_full() {
    let media = SimMedia::with_threads(1, &terrane_media::real::RealOptions::default());
    let db = Db::open_on(media, "/db", Options::new()).unwrap();
    let t = db.create_subtable("t", SubtableOptions::new()).unwrap();
    for i in 0..2000u32 {
        t.put(&i.to_be_bytes(), &[1; 100]).unwrap();
    }
    t.flush().unwrap();
    for i in 0..10u32 {
        t.delete_range(&i.to_be_bytes(), &(1900 + i).to_be_bytes()).unwrap();
        t.flush().unwrap();
    }
    db.wait_idle().unwrap();
    assert_eq!(t.get(&1000u32.to_be_bytes()).unwrap(), None);
    assert!(t.table().state().version.l0.len() < 4);
}

/// On real threads, since a simulated machine knows when nothing is left to wait for.
#[test]
fn who_waits_for_a_flush_hears_of_a_log_that_is_poisoned_meanwhile() {
    let media = SimMedia::with_threads(1, &terrane_media::real::RealOptions::default());
    let db = Db::open_on(media.clone(), "/db", Options::new().medium(Medium::Log)).unwrap();
    let t = db.create_subtable("t", SubtableOptions::new()).unwrap();
    t.put(b"before", b"v").unwrap();
    let (waiting, engine, once) = (t.clone(), db.engine.clone(), Mutex::new(Some(())));
    let flusher = Arc::new(Mutex::new(None));
    let started = flusher.clone();
    media.on_op(Some(Arc::new(move |m: &SimMedia, op: &OpInfo<'_>| {
        let log = op.path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("log"));
        if op.kind == OpKind::Sync && log && once.lock().take().is_some() {
            let t = waiting.clone();
            let handle = std::thread::Builder::new().spawn(move || t.flush()).unwrap();
            // Until its flush has frozen the memtable and found that it is not complete.
            while waiting.table().frozen().is_empty() || engine.jobs.load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
            }
            *started.lock() = Some(handle);
            m.set_fault(Some(FaultPlan::nth(0, Fault::Io).only(&[OpKind::Sync])));
        }
    })));
    let mut batch = WriteBatch::new();
    batch.put(&t, b"k", b"v").unwrap();
    assert!(db.write(batch, Durability::Sync).is_err());
    media.on_op(None);
    let flusher = flusher.lock().take().unwrap();
    let e = flusher.join().unwrap().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}");
}

#[test]
fn memtables_are_added_up_by_what_they_have_of_the_fuller_memory() {
    let media = SimMedia::new(1);
    let memory = Medium::Pmem(crate::PmemOptions::new(4 << 20).zone_bytes(32 << 10));
    let db = Db::open_on(media, "/db", Options::new().medium(memory)).unwrap();
    let wide = db.create_subtable("wide", SubtableOptions::new()).unwrap();
    let ranges = db.create_subtable("ranges", SubtableOptions::new()).unwrap();
    let (engine, both) = (db.engine.clone(), [wide.table().clone(), ranges.table().clone()]);
    let active = || both.iter().map(|t| t.state().active().clone());
    let by_itself = || active().map(|m| m.bytes()).sum::<usize>();
    let counted = || both.iter().map(|t| t.memtable_bytes(engine.memory.fuller())).sum::<usize>();
    for n in 0..1000u64 {
        ranges.delete_range(&(2 * n).to_be_bytes(), &(2 * n + 1).to_be_bytes()).unwrap();
    }
    assert_eq!(engine.memory.fuller(), Of::Indexes);
    assert_eq!(counted(), engine.memory.used());
    for n in 0..150u64 {
        wide.put(&n.to_be_bytes(), &[1; 4000]).unwrap();
    }
    assert_eq!(engine.memory.fuller(), Of::Records);
    assert_eq!(counted(), engine.memory.used());
    assert!(by_itself() > counted(), "one has more of the other memory: {} {}", by_itself(), counted());
    drop((wide, ranges));
    db.close().unwrap();
}
