//! Two-phase commit: what is prepared survives, keeps others out, and ends once, whatever happens in between.

mod support;

use std::sync::Arc;

use parking_lot::Mutex;
use support::pairs::while_opening_writes_data;
use support::*;
use terrane::media::sim::{CrashKind, Image, SimMedia};
use terrane::media::{Media, OpenMode};
use terrane::{
    Db, Durability, ErrorKind, Isolation, LockWait, Options, ReadOptions, Subtable, Transaction,
    TransactionOptions, Tuning,
};

fn begin(db: &Db) -> Transaction {
    db.begin(TransactionOptions::new().isolation(Isolation::ReadCommitted).lock_wait(LockWait::No)).unwrap()
}

/// Large values alone do not make a transaction too large for the log.
fn options() -> Options {
    tiny().tuning(Tuning { transaction_bytes: 1 << 20, ..TUNING })
}

fn rig() -> (Arc<SimMedia>, Db, Subtable) {
    let (media, db) = fresh(1, &options()).unwrap();
    let t = db.subtable("t0").unwrap();
    (media, db, t)
}

fn kind<T: std::fmt::Debug>(r: terrane::Result<T>) -> ErrorKind {
    r.unwrap_err().kind()
}

/// The database after a crash of this kind, and its machine.
fn crashed(media: &Arc<SimMedia>, db: Db, kind: CrashKind) -> (Arc<SimMedia>, Db) {
    let next = media.image().crash(kind, 3);
    media.shutdown();
    drop(db);
    let db = open(&next, &options()).unwrap();
    (next, db)
}

/// The process dies behind a commit that is not synced, and the power fails while the next one opens the database: what was prepared durably
/// is whole, whether the commit is there or not.
#[test]
fn a_prepared_large_value_survives_a_power_failure_while_opening() {
    let (media, db, t) = rig();
    let value = |n: u8| vec![n; 20_000];
    let mut txn = begin(&db);
    (0..20).for_each(|n| txn.put(&t, &[n], &value(n)).unwrap());
    txn.prepare(b"x").unwrap();
    db.commit_prepared(b"x", Durability::Buffered).unwrap();
    let image = media.image();
    media.shutdown();
    drop((t, db));
    let mut images = while_opening_writes_data(&image, &options());
    images.push(image);
    for (seed, image) in (0..).zip(&images) {
        for kind in [CrashKind::PowerLost, CrashKind::PowerKept, CrashKind::PowerTorn, CrashKind::PowerWords]
        {
            let media = image.crash(kind, seed);
            let db = open(&media, &options()).unwrap();
            if !db.prepared().is_empty() {
                db.commit_prepared(b"x", Durability::Sync).unwrap();
            }
            let t = db.subtable("t0").unwrap();
            (0..20).for_each(|n| assert_eq!(t.get(&[n]).unwrap(), Some(value(n)), "{n}, {kind:?}, {seed}"));
            drop(t);
            db.close().unwrap();
        }
    }
}

#[test]
fn a_prepared_transaction_is_seen_by_nobody_and_keeps_its_locks_until_it_ends() {
    let (_media, db, t) = rig();
    let mut txn = begin(&db);
    txn.put(&t, b"a", b"1").unwrap();
    txn.get_for_update(&t, b"read").unwrap();
    txn.prepare(b"x").unwrap();
    assert_eq!((db.prepared(), db.stats().prepared), (vec![b"x".to_vec()], 1));
    assert_eq!(t.get(b"a").unwrap(), None);
    let mut other = begin(&db);
    assert_eq!(kind(other.put(&t, b"a", b"2")), ErrorKind::LockBusy);
    assert_eq!(kind(other.put(&t, b"read", b"2")), ErrorKind::LockBusy);
    let mut again = begin(&db);
    again.put(&t, b"b", b"1").unwrap();
    assert_eq!(kind(again.prepare(b"x")), ErrorKind::AlreadyExists);
    db.commit_prepared(b"x", Durability::Buffered).unwrap();
    assert_eq!(t.get(b"a").unwrap().unwrap(), b"1");
    assert_eq!(t.get(b"b").unwrap(), None);
    other.put(&t, b"a", b"2").unwrap();
    for end in [db.commit_prepared(b"x", Durability::Sync).map(drop), db.rollback_prepared(b"x")] {
        assert_eq!(kind(end), ErrorKind::NotFound);
    }
    let mut bad = begin(&db);
    bad.put(&t, b"c", b"1").unwrap();
    assert_eq!(kind(bad.prepare(b"")), ErrorKind::InvalidArgument);
    assert_eq!(kind(begin(&db).prepare(&[1; 256])), ErrorKind::LimitExceeded);
    drop(other);
    assert_eq!(db.stats().locked_keys, 0);
}

#[test]
fn after_a_power_failure_it_is_in_doubt_and_holds_its_locks() {
    for end in [true, false] {
        let (media, db, t) = rig();
        t.put(b"gone", b"0").unwrap();
        let mut txn = begin(&db);
        txn.put(&t, b"a", b"1").unwrap();
        txn.put(&t, b"large", &[7; 20_000]).unwrap();
        txn.delete_range(&t, b"g", b"h").unwrap();
        txn.get_for_share(&t, b"read").unwrap();
        txn.prepare(b"x").unwrap();
        let (media, db) = crashed(&media, db, CrashKind::PowerLost);
        // And once more, after a clean close, and with other things in between.
        db.subtable("t0").unwrap().put(b"z", b"1").unwrap();
        db.close().unwrap();
        let db = open(&media, &tiny()).unwrap();
        let t = db.subtable("t0").unwrap();
        assert_eq!(db.prepared(), [b"x"]);
        let mut other = begin(&db);
        for key in [&b"a"[..], b"gone", b"read", b"large"] {
            assert_eq!(kind(other.put(&t, key, b"2")), ErrorKind::LockBusy, "{}", key.escape_ascii());
        }
        assert!(other.get_for_share(&t, b"read").is_ok());
        drop(other);
        assert!(db.check(|_| true).unwrap().is_clean());
        if end {
            db.commit_prepared(b"x", Durability::Sync).unwrap();
        } else {
            db.rollback_prepared(b"x").unwrap();
        }
        let (_media, db) = crashed(&media, db, CrashKind::PowerLost);
        let t = db.subtable("t0").unwrap();
        assert!(db.prepared().is_empty());
        assert_eq!(t.get(b"a").unwrap().is_some(), end);
        assert_eq!(t.get(b"large").unwrap(), end.then(|| vec![7; 20_000]));
        assert_eq!(t.get(b"gone").unwrap().is_some(), !end);
        t.put(b"a", b"2").unwrap();
        t.compact().unwrap();
        assert!(db.check(|_| true).unwrap().is_clean());
    }
}

#[test]
fn the_space_of_what_is_rolled_back_comes_back() {
    let (_media, db, t) = rig();
    t.put(b"k", b"v").unwrap();
    db.wait_idle().unwrap();
    let used = db.stats().data_used;
    let mut txn = begin(&db);
    txn.put(&t, b"large", &[7; 300_000]).unwrap();
    txn.prepare(b"x").unwrap();
    assert!(db.stats().data_used >= used + 300_000);
    db.rollback_prepared(b"x").unwrap();
    assert_eq!(db.stats().data_used, used);
}

#[test]
fn one_that_nobody_ends_does_not_keep_the_log() {
    let (media, db, t) = rig();
    let mut txn = begin(&db);
    txn.put(&t, b"p", b"1").unwrap();
    txn.put(&t, b"p large", &[9; 9000]).unwrap();
    txn.prepare(b"forgotten").unwrap();
    let budget = TUNING.log_budget + 4 * TUNING.segment_bytes;
    let mut most = 0;
    for i in 0..4000u32 {
        t.put(&i.to_be_bytes(), &[3; 700]).unwrap();
        media.step();
        most = most.max(db.stats().log_bytes);
    }
    assert!(most < budget, "{most} bytes of log with a budget of {}", TUNING.log_budget);
    let (_media, db) = crashed(&media, db, CrashKind::PowerLost);
    assert_eq!(db.prepared(), [b"forgotten"]);
    db.commit_prepared(b"forgotten", Durability::Sync).unwrap();
    let t = db.subtable("t0").unwrap();
    assert_eq!(t.get(b"p").unwrap().unwrap(), b"1");
    assert_eq!(t.get(b"p large").unwrap().unwrap(), [9; 9000]);
}

/// A commit that is not durable is lost with the power: then the prepare must be there still, whatever was written out meanwhile.
#[test]
fn the_log_keeps_a_prepare_until_its_commit_is_durable() {
    let (media, db, t) = rig();
    let other = db.subtable("t1").unwrap();
    let mut txn = begin(&db);
    txn.put(&t, b"p", b"1").unwrap();
    txn.prepare(b"x").unwrap();
    other.put(b"k", b"v").unwrap();
    db.sync().unwrap();
    db.commit_prepared(b"x", Durability::Buffered).unwrap();
    // Its records are in a memtable behind the commit: only what was before goes out, and the log is let go of up to there.
    other.put(b"l", b"v").unwrap();
    let image = media.image();
    drop(other);
    db.subtable("t1").unwrap().flush().unwrap();
    for (n, image) in [image, media.image()].into_iter().enumerate() {
        let next = image.crash(CrashKind::PowerLost, 9);
        let db = open(&next, &options()).unwrap();
        let there = db.subtable("t0").unwrap().get(b"p").unwrap().is_some();
        assert!(there || db.prepared() == [b"x"], "image {n}: neither committed nor in doubt");
        next.shutdown();
    }
    media.shutdown();
}

#[test]
fn what_concerns_a_subtable_that_is_dropped_is_left_out() {
    let (media, db, t) = rig();
    let other = db.subtable("t1").unwrap();
    let mut txn = begin(&db);
    txn.put(&t, b"a", b"1").unwrap();
    txn.put(&other, b"a", b"1").unwrap();
    txn.prepare(b"x").unwrap();
    db.drop_subtable("t0").unwrap();
    db.create_subtable("t0", tiny_table()).unwrap();
    let (_media, db) = crashed(&media, db, CrashKind::PowerTorn);
    db.commit_prepared(b"x", Durability::Buffered).unwrap();
    assert_eq!(db.subtable("t0").unwrap().get(b"a").unwrap(), None);
    assert_eq!(db.subtable("t1").unwrap().get(b"a").unwrap().unwrap(), b"1");
}

#[test]
fn large_values_for_a_subtable_that_is_dropped_give_their_space_back() {
    let (media, db, t) = rig();
    let other = db.subtable("t1").unwrap();
    db.wait_idle().unwrap();
    let used = db.stats().data_used;
    let mut txn = begin(&db);
    txn.put(&t, b"large", &[7; 300_000]).unwrap();
    txn.put(&other, b"a", b"1").unwrap();
    txn.prepare(b"x").unwrap();
    db.drop_subtable("t0").unwrap();
    let before = db.stats().data_used;
    assert!(before >= used + 300_000);
    db.commit_prepared(b"x", Durability::Buffered).unwrap();
    assert!(db.stats().data_used + 300_000 <= before);
    // What would take the space must not meet the value again.
    let (_media, db) = crashed(&media, db, CrashKind::PowerLost);
    assert_eq!(db.subtable("t1").unwrap().get(b"a").unwrap().unwrap(), b"1");
    assert!(db.check(|_| true).unwrap().is_clean());
}

/// A process dies while it rolls back; what it said last is not durable yet when the power fails during the recovery. Then the
/// transaction is in doubt again, with all that it needs.
#[test]
fn a_rollback_that_is_lost_after_it_was_seen_leaves_the_values_of_what_was_prepared() {
    let pictures = |media: &Arc<SimMedia>, doing: &mut dyn FnMut()| -> Vec<Image> {
        let all = Arc::new(Mutex::new(Vec::new()));
        let sink = all.clone();
        media.on_op(Some(Arc::new(move |m, _| sink.lock().push(m.image()))));
        doing();
        media.on_op(None);
        std::mem::take(&mut *all.lock())
    };
    let (media, db, t) = rig();
    // In the same file: that stays, whatever becomes of the space beside it.
    t.put(b"stays", &[5; 9000]).unwrap();
    let mut txn = begin(&db);
    txn.put(&t, b"large", &[7; 9000]).unwrap();
    txn.prepare(b"x").unwrap();
    let deaths = pictures(&media, &mut || db.rollback_prepared(b"x").unwrap());
    media.shutdown();
    let mut again = 0;
    for image in deaths {
        let next = image.crash(CrashKind::Process, 1);
        let mut ended = false;
        let failures =
            pictures(&next, &mut || ended = open(&next, &options()).unwrap().prepared().is_empty());
        next.shutdown();
        for (image, kind) in failures.iter().flat_map(|image| CrashKind::ALL.map(|kind| (image, kind))) {
            let last = image.crash(kind, 1);
            let db = open(&last, &options()).unwrap();
            assert!(db.check(|_| true).unwrap().is_clean());
            if db.prepared() == [b"x"] {
                again += u32::from(ended);
                db.commit_prepared(b"x", Durability::Sync).unwrap();
                assert_eq!(db.subtable("t0").unwrap().get(b"large").unwrap().unwrap(), [7; 9000]);
            }
            last.shutdown();
        }
    }
    assert!(again > 0, "the rollback was never seen and lost");
}

/// Each locks what lies between the locks of the other, and so many keys that one alone would lock ranges instead.
#[test]
fn two_with_many_locks_side_by_side_are_there_again_after_a_restart() {
    const KEYS: u32 = 66_000;
    let (media, db, t) = rig();
    let mut both = [begin(&db), begin(&db)];
    for n in 0..KEYS {
        for (i, txn) in (0..).zip(&mut both) {
            txn.get_for_update(&t, &(2 * n + i).to_be_bytes()).unwrap();
        }
    }
    for (txn, xid) in both.into_iter().zip([b"x", b"y"]) {
        txn.prepare(xid).unwrap();
    }
    assert!(db.stats().locked_keys >= 2 * u64::from(KEYS));
    let (_media, db) = crashed(&media, db, CrashKind::PowerLost);
    assert_eq!(db.prepared(), [b"x", b"y"]);
    assert_eq!(db.stats().locked_keys, 2 * u64::from(KEYS));
    db.rollback_prepared(b"x").unwrap();
    let t = db.subtable("t0").unwrap();
    begin(&db).put(&t, &8u32.to_be_bytes(), b"").unwrap();
    assert_eq!(kind(begin(&db).put(&t, &9u32.to_be_bytes(), b"")), ErrorKind::LockBusy);
}

/// What a cursor is told to seek may be longer than any key.
#[test]
fn a_prepare_after_a_seek_to_a_very_long_key_can_be_read_again() {
    let bound = |byte| vec![byte; 70_000];
    let within = ReadOptions::new().lower(bound(b'm')).upper(bound(b'n'));
    for (optimistic, read) in
        [false, true].into_iter().flat_map(|o| [ReadOptions::new(), within.clone()].map(|r| (o, r)))
    {
        let (media, db, t) = rig();
        let options = TransactionOptions::new().isolation(Isolation::Serializable).optimistic(optimistic);
        let mut txn = db.begin(options).unwrap();
        let mut cursor = txn.cursor(&t, read).unwrap();
        cursor.seek(&bound(b'm')).unwrap();
        assert!(!cursor.valid());
        txn.put(&t, b"a", b"1").unwrap();
        txn.prepare(b"x").unwrap();
        let (_media, db) = crashed(&media, db, CrashKind::PowerLost);
        let t = db.subtable("t0").unwrap();
        begin(&db).put(&t, b"m", b"").unwrap();
        assert_eq!(kind(begin(&db).put(&t, b"n", b"")), ErrorKind::LockBusy);
        db.commit_prepared(b"x", Durability::Sync).unwrap();
        assert_eq!(t.get(b"a").unwrap().unwrap(), b"1");
    }
}

/// Prepares one as `x`, with more locks than the log takes; the first and the last key that it has locked.
fn prepare_with_many_locks(db: &Db, t: &Subtable) -> [Vec<u8>; 2] {
    let mut txn = begin(db);
    let key = |n: u32| [&n.to_be_bytes()[..], &[b'k'; 200]].concat();
    let most = db.max_batch_bytes() as u32 / 200 + 1;
    for n in 0..most {
        txn.get_for_update(t, &key(n)).unwrap();
    }
    txn.put(t, b"w", b"1").unwrap();
    txn.prepare(b"x").unwrap();
    [key(0), key(most - 1)]
}

/// Who began after another one's commit had returned is not kept without it, whatever was not flushed.
#[test]
fn an_end_that_is_kept_keeps_what_was_committed_before_it() {
    for commit in [true, false] {
        let (media, db, t) = rig();
        prepare_with_many_locks(&db, &t);
        t.put(b"before", b"1").unwrap();
        match commit {
            true => db.commit_prepared(b"x", Durability::Buffered).map(drop).unwrap(),
            false => db.rollback_prepared(b"x").unwrap(),
        }
        let (_media, db) = crashed(&media, db, CrashKind::PowerLost);
        let before = db.subtable("t0").unwrap().get(b"before").unwrap();
        assert!(before.is_some() || db.prepared() == [b"x"], "committed: {commit}");
    }
}

#[test]
fn one_with_more_locks_than_the_log_takes_is_prepared_all_the_same() {
    for (commit, kind_of_crash) in [(true, CrashKind::PowerLost), (false, CrashKind::Process)] {
        let (media, db, t) = rig();
        t.put(b"read", b"0").unwrap();
        let locked = prepare_with_many_locks(&db, &t);
        let (_media, db) = crashed(&media, db, kind_of_crash);
        let t = db.subtable("t0").unwrap();
        assert_eq!(db.prepared(), [b"x"]);
        for key in &locked {
            assert_eq!(kind(begin(&db).put(&t, key, b"2")), ErrorKind::LockBusy);
        }
        assert_eq!(t.get(b"w").unwrap(), None);
        match commit {
            true => db.commit_prepared(b"x", Durability::Sync).map(drop).unwrap(),
            false => db.rollback_prepared(b"x").unwrap(),
        }
        assert_eq!(t.get(b"w").unwrap().is_some(), commit);
        begin(&db).put(&t, &locked[0], b"2").unwrap();
    }
}

#[test]
fn an_optimistic_transaction_is_validated_before_it_is_prepared() {
    let (_media, db, t) = rig();
    let options = TransactionOptions::new().optimistic(true).isolation(Isolation::Serializable);
    let mut txn = db.begin(options.clone()).unwrap();
    txn.get(&t, b"a").unwrap();
    txn.put(&t, b"b", b"1").unwrap();
    t.put(b"a", b"0").unwrap();
    assert_eq!(kind(txn.prepare(b"x")), ErrorKind::WriteConflict);
    let mut txn = db.begin(options).unwrap();
    txn.put(&t, b"b", b"1").unwrap();
    txn.prepare(b"x").unwrap();
    assert_eq!(kind(begin(&db).put(&t, b"b", b"2")), ErrorKind::LockBusy);
    db.commit_prepared(b"x", Durability::Buffered).unwrap();
    assert_eq!(t.get(b"b").unwrap().unwrap(), b"1");
}

/// What a prepared transaction has written is checked although nobody sees it; the damage names who it belongs to.
#[test]
fn damage_in_what_a_prepared_transaction_has_written_is_found() {
    for (rows, value, staged) in [(400usize, 60usize, 1u64), (6, 9000, 1), (1, 9000, 0)] {
        // A large value alone stays in the log; it is the room for own writes that decides otherwise.
        let tuning = Tuning { transaction_bytes: 10_000, ..TUNING };
        let (media, db) = fresh(1, &tiny().tuning(tuning)).unwrap();
        let t = db.subtable("t0").unwrap();
        let mut txn = begin(&db);
        for i in 0..rows {
            // Bytes that stand nowhere else.
            let value: Vec<u8> = (0..value).map(|at| (at * 7 + i) as u8 | 1).collect();
            txn.put(&t, format!("k{i:04}").as_bytes(), &value).unwrap();
        }
        txn.prepare(b"x\n").unwrap();
        let clean = db.check(|_| true).unwrap();
        // In persistent memory all that is prepared is staged.
        let staged = if in_memory() || in_page_cache() { 1 } else { staged };
        assert!(clean.is_clean() && clean.staged == staged, "{clean:?}");
        assert!(clean.records as usize + clean.large_values as usize >= rows, "{clean:?}");
        let files = media.list(dir()).unwrap().into_iter().filter(|e| e.name.starts_with("data-"));
        let mut damaged = 0;
        for file in files {
            let path = dir().join(&file.name);
            let reader = media.open(&path, OpenMode::READ).unwrap();
            for page in 0..file.len / 4096 {
                let mut bytes = vec![0; 4096];
                reader.read_at(&mut bytes, page * 4096).unwrap();
                if bytes[100] == 0 {
                    continue;
                }
                let bit = (page * 4096 + 100) * 8;
                media.flip_bit(&path, bit).unwrap();
                let report = db.check(|_| true).unwrap();
                damaged += report.damage.len();
                for e in &report.damage {
                    let named = e.message().starts_with("the prepared transaction \"x\\n\": ");
                    assert!(e.kind() == ErrorKind::Corruption && named, "{e}");
                }
                media.flip_bit(&path, bit).unwrap();
            }
        }
        assert!(damaged > 0, "{rows} rows of {value} bytes");
        // Others do not suffer, and its end makes an end of it.
        assert!(db.check(|_| true).unwrap().is_clean());
        db.rollback_prepared(b"x\n").unwrap();
        assert_eq!(db.check(|_| true).unwrap().staged, 0);
    }
}
