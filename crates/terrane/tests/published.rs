//! What others see of a commit while it becomes durable, at each I/O call that it makes: nothing, and its locks are held. So nobody
//! acts on something that a power failure takes back.
#![allow(clippy::disallowed_methods, reason = "tests may start threads, and wait")]

mod support;

use std::sync::Arc;

use parking_lot::Mutex;
use support::{DIR, in_memory, open, tiny, tiny_table};
use terrane::media::Media;
use terrane::media::sim::{CrashKind, Image, OpInfo, OpKind, SimMedia};
use terrane::{Db, Durability, ErrorKind, Isolation, LockWait, Subtable, TransactionOptions};

/// What somebody else finds at one call.
struct Look {
    image: Image,
    call: String,
    syncs: bool,
    seen: Option<Vec<u8>>,
    /// Whether the key could be locked.
    free: bool,
}

fn no_wait() -> TransactionOptions {
    TransactionOptions::new().isolation(Isolation::ReadCommitted).lock_wait(LockWait::No)
}

/// Runs `work` on a machine whose database holds k = old, and looks at k at each call that it makes.
fn looks_at(work: impl FnOnce(&Db, &Subtable)) -> Vec<Look> {
    let media = SimMedia::new(3);
    let db = open(&media, &tiny()).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    // From here on plain writers lock.
    drop(db.begin(no_wait()).unwrap());
    t.put(b"k", b"old").unwrap();
    db.sync().unwrap();
    let looks = Arc::new(Mutex::new(Vec::new()));
    let hook = {
        let (looks, db, t) = (looks.clone(), db.clone(), t.clone());
        move |media: &SimMedia, info: &OpInfo<'_>| {
            let image = media.image();
            let call = format!("{:?} {}", info.kind, info.path.display());
            let mut other = db.begin(no_wait()).unwrap();
            let seen = other.get(&t, b"k").unwrap();
            let free = match other.get_for_update(&t, b"k") {
                Ok(_) => true,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::LockBusy, "{e}");
                    false
                }
            };
            looks.lock().push(Look { image, call, syncs: makes_durable(info.kind), seen, free });
        }
    };
    media.on_op(Some(Arc::new(hook)));
    work(&db, &t);
    media.on_op(None);
    assert_eq!(t.get(b"k").unwrap().as_deref(), Some(&b"new"[..]));
    let looks = std::mem::take(&mut *looks.lock());
    media.shutdown();
    looks
}

/// Whether that is how commits become durable.
fn makes_durable(kind: OpKind) -> bool {
    kind == if in_memory() { OpKind::Fence } else { OpKind::Sync }
}

/// Reads k on the machine that a power failure leaves.
fn survives(image: &Image, kind: CrashKind) -> Option<Vec<u8>> {
    let media = image.crash(kind, 1);
    let db = open(&media, &tiny()).unwrap();
    let found = db.subtable("t").unwrap().get(b"k").unwrap();
    media.shutdown();
    found
}

fn is_hidden_until_durable(how: &str, work: impl FnOnce(&Db, &Subtable)) {
    let looks = looks_at(work);
    assert!(looks.iter().any(|l| l.syncs), "{how}: {DIR} was never synced");
    for Look { image, call, seen, free, .. } in &looks {
        let at = format!("{how}, at {call}");
        for kind in [CrashKind::PowerLost, CrashKind::PowerTorn] {
            let found = survives(image, kind);
            assert!(
                *seen == Some(b"old".to_vec()) || found == *seen,
                "{at}: {seen:?} was seen, and is gone: {found:?}"
            );
        }
        assert_eq!(seen.as_deref(), Some(&b"old"[..]), "{at}: seen before it is durable");
        assert!(!free, "{at}: the lock is free while nobody sees what was written under it");
    }
}

#[test]
fn a_durable_commit_is_hidden_and_locked_until_it_is_durable() {
    is_hidden_until_durable("a transaction", |db, t| {
        let mut txn = db.begin(TransactionOptions::new()).unwrap();
        txn.put(t, b"k", b"new").unwrap();
        txn.commit(Durability::Sync).unwrap();
    });
    is_hidden_until_durable("an optimistic transaction", |db, t| {
        let mut txn = db.begin(TransactionOptions::new().optimistic(true)).unwrap();
        txn.put(t, b"k", b"new").unwrap();
        txn.commit(Durability::Sync).unwrap();
    });
    is_hidden_until_durable("a submitted transaction", |db, t| {
        let mut txn = db.begin(TransactionOptions::new()).unwrap();
        txn.put(t, b"k", b"new").unwrap();
        txn.submit(Durability::Sync).unwrap().wait().unwrap();
    });
    is_hidden_until_durable("a prepared transaction", |db, t| {
        let mut txn = db.begin(TransactionOptions::new()).unwrap();
        txn.put(t, b"k", b"new").unwrap();
        txn.prepare(b"x").unwrap();
        db.commit_prepared(b"x", Durability::Sync).unwrap();
    });
    is_hidden_until_durable("a batch", |db, t| {
        let mut batch = terrane::WriteBatch::new();
        batch.put(t, b"k", b"new").unwrap();
        db.write(batch, Durability::Sync).unwrap();
    });
}

/// A write that knew of no transactions, and took no lock, is on its way: what a transaction then reads under a lock is what it
/// wrote, not what it is about to replace.
#[test]
fn the_first_transaction_waits_for_a_write_without_locks() {
    let media = SimMedia::new(4);
    let db = open(&media, &tiny()).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    t.put(b"k", b"old").unwrap();
    let (told, seen) = std::sync::mpsc::channel();
    let reader = Arc::new(Mutex::new(None));
    let hook = {
        let (reader, db, t) = (reader.clone(), db.clone(), t.clone());
        move |_: &SimMedia, info: &OpInfo<'_>| {
            let mut reader = reader.lock();
            if !makes_durable(info.kind) || reader.is_some() {
                return;
            }
            let (told, db, t) = (told.clone(), db.clone(), t.clone());
            *reader = Some(std::thread::spawn(move || {
                let mut txn = db.begin(no_wait()).unwrap();
                told.send(txn.get_for_update(&t, b"k").unwrap()).unwrap();
            }));
            // Long enough for one that does not wait.
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    };
    media.on_op(Some(Arc::new(hook)));
    let mut batch = terrane::WriteBatch::new();
    batch.put(&t, b"k", b"new").unwrap();
    db.write(batch, Durability::Sync).unwrap();
    media.on_op(None);
    assert_eq!(seen.recv().unwrap().as_deref(), Some(&b"new"[..]));
    reader.lock().take().unwrap().join().unwrap();
    media.shutdown();
}
