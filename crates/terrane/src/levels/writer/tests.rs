use parking_lot::Mutex;
use terrane_base::ErrorKind;
use terrane_cache::{Below, Cache, CacheOptions, FrameKey, Lying, Priority};
use terrane_format::manifest::NextIds;
use terrane_media::sim::{CrashKind, Fault, FaultPlan, OpInfo, OpKind, SimMedia};
use terrane_media::{Media, OpenMode};

use super::*;
use crate::levels::state::DbState;
use crate::levels::testkit::{Record, UUID, blocks, dir, handles, heirs, machine, records, small_form};
use crate::levels::{Extent, ExtentRef, Reclaimer, SpaceOptions, Survey};

fn space(media: &Arc<SimMedia>) -> Arc<Space> {
    let options = SpaceOptions { grow_bytes: 1 << 20, ..SpaceOptions::new(UUID) };
    let survey = Survey::new(media.clone(), dir(), options, &DbState::default(), Arc::default());
    Arc::new(survey.unwrap().finish().unwrap())
}

fn writer(space: &Arc<Space>, tombstones: RangeTombstones) -> RunWriter {
    RunWriter::new(space.clone(), Arc::new(Ids::new(&NextIds::default())), small_form(), tombstones, heirs())
        .unwrap()
}

fn keys(n: u32, versions: impl Fn(u32) -> u64) -> Vec<Record> {
    let versions = &versions;
    (0..n)
        .flat_map(|i| (0..versions(i)).map(move |v| (i, v)))
        .map(|(i, v)| {
            (format!("key {i:06}").into_bytes(), 1000 - v, format!("{i} {v}").repeat(30).into_bytes())
        })
        .collect()
}

fn write(space: &Arc<Space>, records: &[Record], tombstones: RangeTombstones) -> Result<WrittenRun> {
    let mut w = writer(space, tombstones);
    blocks(&small_form(), records).into_iter().try_for_each(|b| w.add_block(b, None, Heir::No))?;
    w.finish()
}

fn open(space: &Space, meta: &Arc<ExtentMeta>) -> ExtentRef {
    let file = space.file(meta.file).unwrap();
    ExtentRef::whole(Extent::new(meta.clone(), file, "t".into(), Reclaimer::new(|| {})))
}

fn read_all(space: &Space, metas: &[Arc<ExtentMeta>]) -> Vec<Record> {
    metas.iter().flat_map(|m| records(&open(space, m)).unwrap()).collect()
}

#[test]
fn what_was_written_is_read_back_and_extents_close_at_their_size() {
    let media = machine(1);
    let s = space(&media);
    let wanted = keys(600, |_| 1);
    let run = write(&s, &wanted, RangeTombstones::default()).unwrap();
    assert!(run.extents().len() > 3);
    assert_eq!(read_all(&s, run.extents()), wanted);
    for pair in run.extents().windows(2) {
        assert!(pair[0].hi <= pair[1].lo && pair[0].id < pair[1].id);
        assert!(pair[0].stored_len() <= 14 << 10);
    }
    let metas = run.keep();
    assert_eq!(s.stats().used, metas.iter().map(|m| u64::from(m.units)).sum::<u64>());
}

#[test]
fn a_long_run_is_made_durable_while_it_is_written() {
    let media = machine(9);
    let s = space(&media);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let into = calls.clone();
    let note = move |_: &SimMedia, op: &OpInfo<'_>| into.lock().push(op.kind);
    media.on_op(Some(Arc::new(note)));
    let run = write(&s, &keys(2000, |_| 1), RangeTombstones::default()).unwrap();
    media.on_op(None);
    // (The first of them makes the file.)
    let calls: Vec<OpKind> = calls.lock().iter().copied().skip_while(|op| *op != OpKind::SyncDir).collect();
    let count = |kind| calls.iter().filter(|op| **op == kind).count();
    assert!(run.extents().len() > 12);
    assert_eq!(count(OpKind::Sync), run.extents().len() / SYNCED_TOGETHER + 1);
    assert_eq!(calls.last(), Some(&OpKind::Sync), "what came behind the last of them");
}

#[test]
fn a_finished_run_survives_a_power_failure() {
    for seed in 0..24 {
        let media = machine(seed);
        let s = space(&media);
        let wanted = keys(1000 + 40 * seed as u32, |_| 1);
        let run = write(&s, &wanted, RangeTombstones::default()).unwrap();
        let crashed = media.image().crash(CrashKind::PowerLost, seed);
        let open = |meta: &Arc<ExtentMeta>| {
            let file = crashed.open(s.file(meta.file).unwrap().path(), OpenMode::READ).unwrap();
            ExtentRef::whole(Extent::new(meta.clone(), file, "t".into(), Reclaimer::new(|| {})))
        };
        let read: Vec<Record> = run.extents().iter().flat_map(|m| records(&open(m)).unwrap()).collect();
        assert_eq!(read, wanted, "seed {seed}");
    }
}

#[test]
fn versions_of_a_key_are_never_cut_apart() {
    let s = space(&machine(2));
    let wanted = keys(40, |i| if i % 13 == 5 { 200 } else { 3 });
    let run = write(&s, &wanted, RangeTombstones::default()).unwrap();
    assert!(
        run.extents().iter().any(|m| m.stored_len() > 20 << 10),
        "one key alone is larger than an extent"
    );
    assert!(run.extents().windows(2).all(|p| p[0].hi <= p[1].lo));
    assert_eq!(read_all(&s, run.extents()), wanted);
}

#[test]
fn range_tombstones_go_to_the_extents_whose_keys_they_cover() {
    let s = space(&machine(3));
    let all = RangeTombstones::from_ranges([
        ("a", "b", 5),
        ("key 000100", "key 000500", 7),
        ("key 000400", "zz", 9),
    ]);
    let wanted = keys(600, |_| 1);
    let run = write(&s, &wanted, all.clone()).unwrap();
    assert!(run.extents().windows(2).all(|p| p[0].hi <= p[1].lo));
    assert_eq!(
        (run.extents()[0].lo.as_slice(), run.extents().last().unwrap().hi.as_slice()),
        (&b"a"[..], &b"zz"[..])
    );
    let parts: Vec<ExtentRef> = run.extents().iter().map(|m| open(&s, m)).collect();
    let probes = ["a", "aa", "b", "key 000100x", "key 000450", "key 000599", "y", "zz"];
    let keys = wanted.iter().map(|r| r.0.as_slice()).chain(probes.iter().map(|p| p.as_bytes()));
    for key in keys {
        for snapshot in [4, 6, 8, 10] {
            let found = parts.iter().map(|p| p.covering(key, snapshot).unwrap()).max();
            assert_eq!(found, Some(all.covering(key, snapshot)), "{}", key.escape_ascii());
        }
    }
    let trimmed = parts[0].trim(b"a", Some(b"aa")).unwrap();
    assert_eq!(trimmed.covering(b"aa", 10).unwrap(), 0, "outside of the part");
    assert_eq!(trimmed.tombstones().unwrap().bounds(), Some((&b"a"[..], &b"aa"[..])));
}

#[test]
fn range_tombstones_without_keys_make_extents_of_their_own() {
    let s = space(&machine(4));
    let n = 2 * MAX_FRAGMENTS as u64 + 10;
    let all = RangeTombstones::from_ranges((0..n).map(|i| (format!("{i:08}"), format!("{i:08}x"), i + 1)));
    for wanted in [Vec::new(), vec![(b"00000003y".to_vec(), 1, b"v".to_vec())]] {
        let run = write(&s, &wanted, all.clone()).unwrap();
        assert!(run.extents().len() >= 3 && run.extents().windows(2).all(|p| p[0].hi <= p[1].lo));
        assert_eq!(read_all(&s, run.extents()), wanted);
        let sets: Vec<_> = run.extents().iter().map(|m| open(&s, m).tombstones().unwrap()).collect();
        let union = RangeTombstones::merge(&sets.iter().map(|s| &**s).collect::<Vec<_>>());
        assert_eq!(union, all);
    }
    assert!(write(&s, &[], RangeTombstones::default()).unwrap().extents().is_empty());
    assert_eq!(s.stats().used, 0, "runs that were not kept are free");
}

#[test]
fn stored_blocks_are_copied_as_they_are() {
    let s = space(&machine(5));
    let wanted = keys(300, |_| 1);
    let first = write(&s, &wanted, RangeTombstones::default()).unwrap();
    let mut w = writer(&s, RangeTombstones::default());
    for meta in first.extents() {
        let part = open(&s, meta);
        let filters = part.extent.load_filter().unwrap();
        for h in handles(&part.extent).unwrap() {
            let raw = part.extent.load_block(&h).unwrap();
            let copy: Vec<Record> = records(&part).unwrap();
            let block = terrane_format::block::Block::parse(&raw).unwrap();
            let mut c = terrane_format::block::BlockCursor::new();
            c.seek_last(block).unwrap();
            let last = c.key().to_vec();
            c.seek_first(block).unwrap();
            assert!(copy.iter().any(|r| r.0 == last));
            let filter = &filters[h.filter_offset as usize..][..h.filter_len as usize];
            let stored = part.extent.load_stored(&h).unwrap();
            w.add_stored_block((c.key(), c.seq()), &last, &h, &stored, filter, (Heir::No, &[])).unwrap();
        }
    }
    let second = w.finish().unwrap();
    assert_eq!(read_all(&s, second.extents()), wanted);
}

#[test]
fn a_failure_of_any_call_frees_what_was_allocated() {
    for fault in [Fault::Io, Fault::NoSpace, Fault::Short] {
        for n in 0.. {
            let media = machine(6);
            let s = space(&media);
            media.set_fault(Some(FaultPlan::nth(n, fault)));
            let written = write(&s, &keys(400, |_| 1), RangeTombstones::default());
            if media.faults_hit() == 0 {
                assert!(n > 6);
                break;
            }
            media.set_fault(None);
            match written {
                Ok(run) => assert_eq!(read_all(&s, run.extents()), keys(400, |_| 1)),
                Err(e) => {
                    assert_eq!(s.stats().used, 0, "call {n}");
                    let again = write(&s, &keys(400, |_| 1), RangeTombstones::default());
                    assert_eq!(again.is_err(), e.kind() == ErrorKind::Poisoned, "call {n}: {e}");
                }
            }
        }
    }
}

/// Takes what it is given.
#[derive(Debug, Default)]
struct Under(Mutex<Vec<FrameKey>>);

impl Below for Under {
    fn keep(&self, _: FrameKey, _: &[u8]) {}

    fn keep_written(&self, key: FrameKey, _: &[u8]) {
        self.0.lock().push(key);
    }

    fn room_for_written(&self) -> u64 {
        0
    }

    fn is_used(&self, _: FrameKey) -> bool {
        false
    }

    fn find(&self, _: FrameKey) -> Option<Lying> {
        None
    }

    fn forget_extent(&self, _: u64) {}
}

#[test]
fn where_the_cache_has_no_room_blocks_go_below_and_their_index_if_it_is_read() {
    let media = machine(1);
    let s = space(&media);
    // What is kept below of those written, and whether the index of the first extent is in the cache.
    let write = |heirs: &[Heir]| {
        let cache = Arc::new(Cache::new(CacheOptions { capacity_bytes: 1 << 20, shards: 1 }));
        (0..8000).for_each(|n| drop(cache.insert(FrameKey::new(1 << 40, n), [0; 200], Priority::Data)));
        let under = Arc::new(Under::default());
        cache.set_below(under.clone());
        let ids = Arc::new(Ids::new(&NextIds::default()));
        let heirs_of_cache = Heirs::new(cache.clone(), Homes::default(), false, 0);
        let mut w =
            RunWriter::new(s.clone(), ids, small_form(), RangeTombstones::default(), heirs_of_cache).unwrap();
        let blocks = blocks(&small_form(), &keys(900, |_| 1));
        let count = blocks.len();
        for (block, heir) in blocks.into_iter().zip(heirs.iter().cycle()) {
            w.add_block(block, None, *heir).unwrap();
        }
        let run = w.finish().unwrap();
        let first = &run.extents()[0];
        let has_index = cache.contains(FrameKey::new(first.id.0, first.index.offset));
        (count, under.0.lock().len(), has_index)
    };
    let (count, below, has_index) = write(&[Heir::No, Heir::Below { index: false }]);
    assert!(count > 20 && below == count / 2 && !has_index, "{below} of {count}, {has_index}");
    assert_eq!(write(&[Heir::Below { index: true }]), (count, count, true));
    assert_eq!(write(&[Heir::Yes { below: true }]), (count, count, true));
    assert_eq!(write(&[Heir::Yes { below: false }, Heir::Index]), (count, 0, true));
}
