use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;

use terrane_media::PmemMode;
use terrane_media::sim::{CrashKind, SimMedia};

use super::*;
use crate::{Db, Medium, Options, PmemOptions, SubtableOptions};

/// A commit that was let through, and has its place only when one of its subtables, or all, were dropped: what it brought for them is given back.
#[test]
fn large_values_for_a_subtable_that_was_dropped_meanwhile_are_freed() {
    let memory = |mode| Medium::Pmem(PmemOptions::new(16 << 20).mode(mode));
    for medium in [Medium::Log, memory(PmemMode::Dax), memory(PmemMode::PageCache)] {
        for stays in [false, true] {
            let db = Db::open_on(SimMedia::new(1), "/db", Options::new().medium(medium.clone())).unwrap();
            let create = |name| db.create_subtable(name, SubtableOptions::new()).unwrap();
            let (gone, other) = (create("gone"), create("other"));
            // It has a zone then, and the commit its place.
            other.put(b"first", b"").unwrap();
            let used = db.engine.space.stats().used;
            let mut batch = WriteBatch::new();
            let tables = if stays { vec![&gone, &other, &gone] } else { vec![&gone] };
            for (n, table) in tables.iter().enumerate() {
                batch.put(table, &[n as u8], &vec![n as u8; 300 << 10]).unwrap();
            }
            let completion = Completion::new();
            let form = Form::plain(Durability::Buffered);
            let request = db.engine.ready(batch, form, &completion).unwrap().unwrap();
            db.drop_subtable("gone").unwrap();
            match &db.engine.journal {
                Journal::Log(log) => db.engine.place_in_log(log, smallvec![request]),
                Journal::Chains { trailing, .. } => {
                    let left = db.engine.place_in_memory(trailing.as_ref(), smallvec![request]);
                    assert!(left.is_none(), "{medium:?}, {stays}");
                }
            }
            db.sync().unwrap();
            assert!(matches!(completion.outcome(), Some(Ok(_))), "{medium:?}");
            db.wait_idle().unwrap();
            let kept = if stays { 5 } else { 0 };
            assert_eq!(db.engine.space.stats().used - used, kept, "{medium:?}, {stays}");
            if stays {
                assert_eq!(other.get(&[1]).unwrap(), Some(vec![1; 300 << 10]));
            }
            db.check(|_| true).unwrap();
        }
    }
}

/// A request of a batch, and who hears of it.
fn request_of(db: &Db, fill: impl FnOnce(&mut WriteBatch)) -> (Box<Request>, Completion) {
    let (mut batch, completion) = (WriteBatch::new(), Completion::new());
    fill(&mut batch);
    let request = db.engine.ready(batch, Form::plain(Durability::Buffered), &completion).unwrap().unwrap();
    (request, completion)
}

/// In a database with a memory of 96 zones.
fn with_96_zones(f: impl Fn(&SimMedia, &Db)) {
    for mode in [PmemMode::Dax, PmemMode::PageCache] {
        let media = SimMedia::new(1);
        let memory = PmemOptions::new(3 << 20).zone_bytes(32 << 10).mode(mode);
        let db = Db::open_on(media.clone(), "/db", Options::new().medium(Medium::Pmem(memory))).unwrap();
        f(&media, &db);
    }
}

#[test]
fn a_group_that_finds_no_room_in_a_zone_is_committed_all_the_same() {
    with_96_zones(|media, db| {
        let create = |name| db.create_subtable(name, SubtableOptions::new()).unwrap();
        let (roomy, fresh, other) = (create("roomy"), create("fresh"), create("other"));
        roomy.put(b"k", b"before").unwrap();
        let reserved = || db.engine.ring.settled_pos();
        // One has room alone, two have none, and one has zones.
        let (mut requests, mut heard) = (Requests::new(), Vec::new());
        let mut add = |(request, completion)| {
            requests.push(request);
            heard.push(completion);
        };
        add(request_of(db, |batch| batch.put(&roomy, b"k", b"1").unwrap()));
        add(request_of(db, |batch| {
            batch.put(&roomy, b"both", b"2").unwrap();
            batch.put(&fresh, b"both", b"2").unwrap();
        }));
        add(request_of(db, |batch| batch.put(&fresh, b"k", b"3").unwrap()));
        add(request_of(db, |batch| batch.put(&other, b"large", &[4; 5000]).unwrap()));
        assert_eq!(
            requests.iter().map(|r| r.zones.is_some()).collect::<Vec<_>>(),
            [false, false, false, true]
        );
        let (units, before) = (requests.iter().map(|r| r.units()).sum::<u64>(), reserved());
        db.engine.place(requests);
        assert!(heard.iter().all(|c| matches!(c.outcome(), Some(Ok(_)))));
        assert!(reserved() >= before + 2 * units, "it had no place at first");
        let check = |db: &Db| {
            let get = |table: &str, key: &[u8]| db.subtable(table).unwrap().get(key).unwrap();
            assert_eq!(get("roomy", b"k").as_deref(), Some(&b"1"[..]));
            assert_eq!((get("roomy", b"both"), get("fresh", b"both")), (Some(vec![b'2']), Some(vec![b'2'])));
            assert_eq!(get("fresh", b"k").as_deref(), Some(&b"3"[..]));
            assert_eq!(get("other", b"large"), Some(vec![4; 5000]));
        };
        check(db);
        let media = media.image().crash(CrashKind::Process, 1);
        check(&Db::open_on(media, "/db", Options::new()).unwrap());
    });
}

#[test]
fn a_group_takes_no_more_zones_than_it_opens() {
    with_96_zones(|_, db| {
        let tables: Vec<_> =
            (0..60).map(|n| db.create_subtable(&format!("t{n}"), SubtableOptions::new()).unwrap()).collect();
        // Each could need sixty.
        let of_all = |value: &[u8]| {
            request_of(db, |batch| tables.iter().for_each(|t| batch.put(t, value, value).unwrap()))
        };
        let all = [of_all(b"1"), of_all(b"2"), of_all(b"3")];
        let (requests, heard): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        db.engine.place(requests.into());
        assert!(heard.iter().all(|c| matches!(c.outcome(), Some(Ok(_)))));
        assert!(tables.iter().all(|t| t.get(b"3").unwrap().is_some()));
        assert_eq!((db.stats().full_waits, db.stats().flushes), (0, 0));
        let chains = db.engine.journal.chains().unwrap();
        assert_eq!((chains.space().taken(), chains.space().set_aside()), (60, 0));
    });
}

#[test]
fn what_came_to_nothing_for_want_of_zones_is_not_in_the_log() {
    with_96_zones(|media, db| {
        let create = |name| db.create_subtable(name, SubtableOptions::new()).unwrap();
        let (a, b) = (create("a"), create("b"));
        let chains = db.engine.journal.chains().unwrap();
        let put = |t: &crate::Subtable, key: &[u8]| request_of(db, |batch| batch.put(t, key, b"v").unwrap());
        let groups = [vec![put(&a, b"lost")], vec![put(&a, b"lost"), put(&b, b"lost")]];
        let all = chains.space().admit(chains.space().free()).unwrap();
        for group in groups {
            let (requests, heard): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            db.engine.place(requests.into());
            assert!(heard.iter().all(|c| matches!(c.outcome(), Some(Err(_)))));
        }
        // (On a simulated machine, which knows that nobody is left who could give any back.)
        drop(all);
        a.put(b"kept", b"v").unwrap();
        db.sync().unwrap();
        for kind in [CrashKind::Process, CrashKind::PowerKept, CrashKind::PowerLost] {
            let db = Db::open_on(media.image().crash(kind, 1), "/db", Options::new()).unwrap();
            let get = |table, key: &[u8]| db.subtable(table).unwrap().get(key).unwrap();
            assert_eq!(get("a", b"kept"), Some(vec![b'v']));
            assert_eq!((get("a", b"lost"), get("b", b"lost")), (None, None));
        }
    });
}

#[test]
fn those_that_need_locks_by_now_get_zones_or_are_refused() {
    with_96_zones(|_, db| {
        let create = |name| db.create_subtable(name, SubtableOptions::new()).unwrap();
        let (a, b) = (create("a"), create("b"));
        let chains = db.engine.journal.chains().unwrap();
        let small = |key: &[u8]| request_of(db, |batch| batch.put(&a, key, b"v").unwrap());
        let (first, large, refused) =
            (small(b"1"), request_of(db, |batch| batch.put(&b, b"large", &[1; 5000]).unwrap()), small(b"2"));
        let heard = [&first.1, &large.1, &refused.1].map(Completion::clone);
        // It takes locks, and so do all from here on.
        let transaction = db.begin(crate::TransactionOptions::new()).unwrap();
        assert!(large.0.zones.is_some() && first.0.zones.is_none());
        db.engine.place(smallvec![first.0]);
        // The one that has a zone does not wait behind the one for which there is none.
        let all = chains.space().admit(chains.space().free()).unwrap();
        db.engine.place(smallvec![refused.0, large.0]);
        drop(all);
        db.wait_idle().unwrap();
        transaction.rollback();
        let [first, large, refused] = heard.map(|c| c.outcome().unwrap().map_err(|e| e.kind()));
        assert!(first.is_ok() && large.is_ok() && refused.is_err(), "{first:?} {large:?} {refused:?}");
        assert_eq!((a.get(b"1").unwrap(), a.get(b"2").unwrap()), (Some(vec![b'v']), None));
        assert_eq!(b.get(b"large").unwrap(), Some(vec![1; 5000]));
        assert_eq!(chains.space().set_aside(), 0);
    });
}

#[test]
fn what_is_ordered_has_zones_before_it_has_its_place() {
    with_96_zones(|_, db| {
        let t = db.create_subtable("t", SubtableOptions::new()).unwrap();
        let mut batch = WriteBatch::new();
        batch.put(&t, b"k", b"v").unwrap();
        let form = Form { ordered: true, ..Form::plain(Durability::Buffered) };
        let request = db.engine.ready(batch, form, &Completion::new()).unwrap().unwrap();
        assert!(request.zones.is_some());
        // And so has all where zones are scarce once it has taken one.
        let chains = db.engine.journal.chains().unwrap();
        let has_zones = || request_of(db, |batch| batch.put(&t, b"k", b"v").unwrap()).0.zones.is_some();
        let most =
            chains.space().admit(chains.space().free() - chains.space().zone_count() / 32 - 2).unwrap();
        assert!(!has_zones());
        let one = chains.space().admit(1).unwrap();
        assert!(has_zones());
        drop((most, one));
    });
}

/// At each call that changes persistent memory in turn, from the first of a commit to two subtables on: what is committed to one of them behind it,
/// if anything still can be, makes no part of it durable.
#[test]
fn a_thread_that_dies_half_way_leaves_its_commit_whole_or_not_there() {
    let (mut outcomes, mut refused) = (Vec::new(), 0);
    for at in 0.. {
        let media = SimMedia::new(1);
        let memory = Medium::Pmem(PmemOptions::new(4 << 20).zone_bytes(32 << 10));
        let db = Db::open_on(media.clone(), "/db", Options::new().medium(memory)).unwrap();
        let tables = ["a", "b"].map(|name| db.create_subtable(name, SubtableOptions::new()).unwrap());
        let both = |key: &[u8]| {
            let mut batch = WriteBatch::new();
            tables.iter().for_each(|t| batch.put(t, key, b"v").unwrap());
            db.write(batch, Durability::Buffered)
        };
        both(b"before").unwrap();
        // Each is tried at each call.
        let (call, one) = (at / 2, at as usize % 2);
        let calls = AtomicU64::new(0);
        media.on_op(Some(Arc::new(move |_, _| {
            assert!(calls.fetch_add(1, Ordering::Relaxed) != call, "the thread dies here");
        })));
        let died = catch_unwind(AssertUnwindSafe(|| both(b"half"))).is_err();
        media.on_op(None);
        if !died {
            break;
        }
        let behind = tables[one].put(b"behind", b"v");
        refused += u32::from(behind.as_ref().is_err_and(|e| e.kind() == ErrorKind::Poisoned));
        for kind in [CrashKind::Process, CrashKind::PowerKept, CrashKind::PowerLost] {
            let again = Db::open_on(media.image().crash(kind, at), "/db", Options::new()).unwrap();
            let has =
                |key: &[u8]| ["a", "b"].map(|name| again.subtable(name).unwrap().get(key).unwrap().is_some());
            assert_eq!(has(b"before"), [true; 2], "{call}, {one}, {kind:?}");
            assert_eq!(has(b"behind")[one], behind.is_ok(), "{call}, {one}, {kind:?}");
            let [half, other] = has(b"half");
            assert_eq!(half, other, "{call}, {one}, {kind:?}");
            outcomes.push(half);
        }
    }
    assert!(refused > 0 && outcomes.contains(&true) && outcomes.contains(&false), "{refused} {outcomes:?}");
}
