//! Semi-persistent memtables: what is indexed is what was stored, before a crash and after the index was built again, by several threads.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use terrane_base::{ErrorKind, Lsn, MemoryBudget, Result, Wakes};
use terrane_chainlog::{Chain, ChainIndex, Item, Space, Stored, VolatileZones, Written, recover};
use terrane_commit::{Filled, Orderer, Ring};
use terrane_format::Kind;
use terrane_format::chain::{ChainMemtable, ChainRecord, record_len};
use terrane_halloc::{Halloc, Plan};
use terrane_media::real::{RealMedia, RealOptions};
use terrane_media::sim::{CrashKind, SimMedia};
use terrane_media::{Media, OpenMode, PmemMode};
use terrane_memindex::{IndexKind, MemIndex};

const PLAN: Plan = Plan { bytes: 24 << 20, subtables: 4, memtables: 8, zone_bytes: 256 << 10 };
const UUID: [u8; 16] = *b"0123456789abcdef";

/// Where an index is.
#[derive(Clone, Copy, Debug)]
enum Where {
    Dram(IndexKind),
    /// In zones beside the records.
    Zones,
}

const PLACES: [Where; 3] = [Where::Dram(IndexKind::Art), Where::Dram(IndexKind::Skiplist), Where::Zones];

fn open(media: &dyn Media, path: &Path, mode: PmemMode) -> Arc<Space> {
    Space::open(media, path, mode, UUID, 0).unwrap()
}

fn memtable(chain: Chain, space: &Arc<Space>, place: Where) -> ChainIndex {
    let budget = MemoryBudget::new(0);
    let index = match place {
        Where::Dram(kind) => MemIndex::new(kind, budget),
        Where::Zones => {
            MemIndex::in_chunks(Arc::default(), VolatileZones::new(space.clone()), IndexKind::Art, budget)
        }
    };
    ChainIndex::new(chain, index)
}

fn of(subtable: u64) -> ChainMemtable {
    ChainMemtable { subtable, generation: 1, from_lsn: 1 }
}

/// Versions by key, and by sequence within it.
type Model = BTreeMap<Vec<u8>, BTreeMap<u64, Vec<u8>>>;

/// All versions that an index has, and their values.
fn content(index: &MemIndex) -> Model {
    let mut all = Model::new();
    let mut cursor = index.cursor();
    cursor.seek_first();
    while cursor.valid() {
        let versions = cursor.versions().map(|r| (r.seq, r.value.to_vec())).collect();
        all.insert(cursor.key().to_vec(), versions);
        cursor.next();
    }
    all
}

/// Stores one commit of a memtable alone, and tells its index.
fn put(memtable: &ChainIndex, space: &Arc<Space>, lsn: Lsn, puts: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
    let mut item = Box::new(Item::new());
    for ((key, value), seq) in puts.iter().zip(lsn + 1..) {
        item.push(&ChainRecord { key, seq, kind: Kind::Put, value }, true)?;
    }
    // Never seen: it has no place among the keys.
    let tombstone = ChainRecord { key: b"", seq: lsn + 1, kind: Kind::RangeDelete, value: b"\xff" };
    item.push(&tombstone, false)?;
    let mut admission = space.admit(1)?;
    let place = memtable.chain().assign(item.len(), Some(&mut admission))?;
    let stored = place.write(lsn, 1, puts.len() as u32, item)?;
    let written = stored.written();
    let item = memtable.insert(stored)?;
    assert_eq!((item.count(), item.len()), (0, 0));
    memtable.chain().advance(written)?;
    space.fence();
    Ok(())
}

#[test]
fn what_is_stored_is_indexed_and_indexed_again_after_a_crash() {
    for place in PLACES {
        let path = Path::new("/pm");
        let media = SimMedia::new(1);
        Halloc::create(&*media, path, &PLAN, UUID, 0).unwrap();
        let space = open(&*media, path, PmemMode::Dax);
        let filled = memtable(Chain::create(&space, of(1)).unwrap(), &space, place);
        let (mut model, mut lsn) = (Model::new(), 1);
        assert_eq!((filled.chain().filled_bytes(), filled.chain().bytes()), (0, 0));
        let (mut bytes, mut records) = (0, 0);
        // Lengths with and without room in a record's header, and several zones.
        for n in 0..900_usize {
            let key = |i: usize| [vec![b'k'; (n % 7) * 50], (i % 200).to_be_bytes().to_vec()].concat();
            let value = vec![n as u8; if n % 100 == 50 { 70_000 } else { n % 300 }];
            let puts: Vec<_> = (0..1 + n % 5).map(|i| (key(n * 7 + i), value.clone())).collect();
            put(&filled, &space, lsn, &puts).unwrap();
            bytes += puts.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>() as u64;
            let zones = filled.chain().bytes();
            records = filled.chain().filled_bytes();
            // A zone is given up where an item finds no place, by at most one of the longest.
            let lost = (zones >> 18) * 80_000;
            let headers = 64 * (n as u64 + 1) * 5;
            assert!(
                bytes < records && records <= (bytes + headers + lost).min(zones),
                "{bytes} {records} {zones}"
            );
            for ((key, value), seq) in puts.into_iter().zip(lsn + 1..) {
                model.entry(key).or_default().insert(seq, value);
                lsn += 1;
            }
        }
        assert_eq!(content(filled.index()), model);
        assert_eq!(filled.index().len(), model.values().map(BTreeMap::len).sum::<usize>());
        for (key, versions) in &model {
            let (seq, value) = versions.last_key_value().unwrap();
            let found = filled.index().get(key, *seq).unwrap();
            assert_eq!((found.seq, found.value), (*seq, &value[..]));
        }

        let after = media.image().crash(CrashKind::PowerLost, 7);
        let space = open(&*after, path, PmemMode::Dax);
        let recovered = recover(&space, 0).unwrap();
        let [chain] = <[Chain; 1]>::try_from(recovered.chains).unwrap();
        let again = memtable(chain, &space, place);
        let slots = again.chain().slots().unwrap();
        assert!(slots > 2, "{slots}");
        assert_eq!(space.taken() - u64::from(slots), u64::from(matches!(place, Where::Zones)));
        let (next, others) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    loop {
                        let slot = next.fetch_add(1, Ordering::Relaxed) as u32;
                        if slot >= slots {
                            return;
                        }
                        let see = |_, record: &ChainRecord<'_>| {
                            let other = record.kind == Kind::RangeDelete;
                            others.fetch_add(other.into(), Ordering::Relaxed);
                            Ok(!other)
                        };
                        again.rebuild(slot, see).unwrap();
                    }
                });
            }
        });
        assert_eq!(others.into_inner(), 900);
        assert_eq!(content(again.index()), model);
        assert_eq!(again.chain().filled_bytes(), records);
        // And it goes on.
        let more = vec![(b"more".to_vec(), b"value".to_vec())];
        put(&again, &space, recovered.next_lsn, &more).unwrap();
        assert_eq!(again.index().get(b"more", u64::MAX).unwrap().value, b"value");
        // Zones of an index go with it.
        let chain = again.into_chain();
        let held = u64::from(chain.slots().unwrap());
        assert_eq!((space.taken(), space.free()), (held, space.zone_count() - held));
    }
}

/// A memory of zones that are small for an index.
fn of_small_zones() -> Arc<Space> {
    let media = SimMedia::new(1);
    let plan = Plan { zone_bytes: 64 << 10, ..PLAN };
    Halloc::create(&*media, Path::new("/pm"), &plan, UUID, 0).unwrap();
    open(&*media, Path::new("/pm"), PmemMode::Dax)
}

/// A key, far from those of the numbers beside: inner nodes are many.
fn spread(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

#[test]
fn nodes_take_zones_as_long_as_there_are_enough_for_commits() {
    let space = of_small_zones();
    let zones = VolatileZones::new(space.clone());
    let budget = MemoryBudget::new(0);
    let index = MemIndex::in_chunks(Arc::default(), zones.clone(), IndexKind::Art, budget.clone());
    let records = budget.used();
    let mut n = 0_u64;
    while space.free() > space.zone_count() / 8 {
        n += 1;
        index.insert(&spread(n), n, 1, b"").unwrap();
        // Of ordinary memory only the records take any.
        assert!(budget.used() - records < n as usize * 64 + (64 << 10), "{n}: {}", budget.used());
    }
    assert!(zones.bytes() > 16 << 20 && space.taken() * (64 << 10) == zones.bytes());
    // It goes on, elsewhere.
    let before = budget.used();
    for n in n..n + 200_000 {
        index.insert(&spread(n), n + 1, 1, b"").unwrap();
    }
    assert!(budget.used() - before > 200_000 * 40);
    drop(space.admit(space.free()).unwrap());
    drop((index, zones));
    assert_eq!((space.taken(), space.free()), (0, space.zone_count()));
}

#[test]
fn zones_of_indexes_are_charged_and_asked_for() {
    let space = of_small_zones();
    let budget = MemoryBudget::new(0);
    // All but what is for commits is somebody's who gives it back when asked.
    let shelf = Arc::new(Mutex::new(Some(space.admit(space.free() - space.zone_count() / 8).unwrap())));
    let asked = shelf.clone();
    let make_room = Box::new(move || drop(asked.lock().unwrap().take()));
    let zones = VolatileZones::charged(space.clone(), budget.clone(), make_room);
    let index = MemIndex::in_chunks(Arc::default(), zones.clone(), IndexKind::Art, budget.clone());
    let mut n = 0_u64;
    let mut insert_until = |enough: &dyn Fn() -> bool| {
        while !enough() {
            n += 1;
            index.insert(&spread(n), n, 1, b"").unwrap();
        }
    };
    insert_until(&|| shelf.lock().unwrap().is_none());
    insert_until(&|| index.lent_bytes() >= 8 << 16);
    assert_eq!(zones.bytes(), index.lent_bytes() as u64);
    assert_eq!(budget.used(), index.bytes() + index.lent_bytes());
    drop(index);
    assert_eq!((zones.bytes(), budget.used(), space.taken()), (0, 0, 0));
}

/// All bytes of a memory.
fn bytes_of(media: &dyn Media, path: &Path) -> Vec<u8> {
    let file = media.open(path, OpenMode::READ).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn one_record_lies_as_in_an_item_of_its_own_and_is_found() {
    let path = Path::new("/pm");
    let [(media, one, space), (other_media, other, other_space)] = [1, 2].map(|_| {
        let media = SimMedia::new(1);
        Halloc::create(&*media, path, &PLAN, UUID, 0).unwrap();
        let space = open(&*media, path, PmemMode::Dax);
        (media, memtable(Chain::create(&space, of(1)).unwrap(), &space, PLACES[0]), space)
    });
    let mut scratch = vec![7; 10_000];
    let mut lsn = 1;
    // Lengths with and without room in a record's header, with all paddings, and more than a zone in all.
    let lens: Vec<_> =
        (0..40).map(|n| (n, n * 3)).chain([(0, 0), (300, 70_000), (254, 65_534), (255, 1)]).collect();
    for n in 0..3 * lens.len() {
        let (key_len, value_len) = lens[n % lens.len()];
        let (key, value) = ([&[n as u8], &vec![b'k'; key_len][..]].concat(), vec![n as u8; value_len]);
        let kind = if value.is_empty() { Kind::Delete } else { Kind::Put };
        let record = ChainRecord { key: &key, seq: lsn + 1, kind, value: &value };
        let len = record_len(key.len(), value.len());

        let mut admission = space.admit(1).unwrap();
        let had_room = one.chain().has_room(len);
        let place = one.chain().assign(len, Some(&mut admission)).unwrap();
        assert_eq!(admission.left(), u64::from(had_room), "a zone is opened where there was no room");
        // From where a search for it has come to, or for another one.
        let sought = if n % 5 == 0 { b"other" } else { &key[..] };
        let mut search = one.index().search(sought);
        (0..n % 4).for_each(|_| _ = search.step());
        let stored = place.write_one(lsn, 1, 5, &record, &mut scratch).unwrap();
        let written = stored.written();
        one.insert_one(stored, &search).unwrap();
        one.chain().advance(written).unwrap();
        space.fence();
        let found = one.index().get(&key, lsn + 1).unwrap();
        assert_eq!((found.seq, found.kind, found.value), (lsn + 1, kind as u8, &value[..]));
        one.verify(&found).unwrap();

        let mut item = Box::new(Item::new());
        item.push(&record, true).unwrap();
        let mut admission = other_space.admit(1).unwrap();
        let stored = other.chain().assign(len, Some(&mut admission)).unwrap().write(lsn, 1, 5, item).unwrap();
        let written = stored.written();
        other.insert(stored).unwrap();
        other.chain().advance(written).unwrap();
        other_space.fence();
        lsn += 5;
    }
    assert_eq!(content(one.index()), content(other.index()));
    assert_eq!(one.index().len(), 3 * lens.len());
    let [bytes, others] = [&media, &other_media].map(|media| bytes_of(&**media, path));
    assert!(bytes == others, "the memories differ");
}

#[test]
fn one_record_that_could_not_be_found_again_is_not_written() {
    let media = SimMedia::new(1);
    Halloc::create(&*media, Path::new("/pm"), &PLAN, UUID, 0).unwrap();
    let space = open(&*media, Path::new("/pm"), PmemMode::Dax);
    let record = ChainRecord { key: b"k", seq: 6, kind: Kind::Put, value: b"v" };
    let (len, long) = (record_len(1, 1), vec![0; terrane_memindex::MAX_KEY_BYTES + 1]);
    let other = memtable(Chain::create(&space, of(9)).unwrap(), &space, PLACES[0]);
    let refused = |n, len, lsn, record: ChainRecord<'_>| {
        let chain = Chain::create(&space, of(n)).unwrap();
        let mut admission = space.admit(1).unwrap();
        assert!(!chain.has_room(0), "it has no zone yet");
        assert_eq!(chain.assign(8, None).unwrap_err().kind(), ErrorKind::InvalidArgument);
        let place = chain.assign(len, Some(&mut admission)).unwrap();
        let stored = place.write_one(lsn, 1, 1, &record, &mut Vec::new());
        let done = stored.and_then(|stored| other.insert_one(stored, &other.index().search(b"k")));
        done.unwrap_err().kind()
    };
    assert_eq!(refused(1, len + 8, 5, record), ErrorKind::InvalidArgument, "its place is a longer one's");
    assert_eq!(refused(2, len, 6, record), ErrorKind::InvalidArgument, "it is before its commit");
    assert_eq!(refused(3, len, 4, record), ErrorKind::InvalidArgument, "it is behind its commit");
    let too_long = ChainRecord { key: &long, ..record };
    assert_eq!(refused(4, len, 5, too_long), ErrorKind::LimitExceeded);
    assert_eq!(refused(5, len, 5, record), ErrorKind::InvalidArgument, "the index is another memtable's");
    assert!(other.index().is_empty());
}

#[test]
fn an_item_of_another_memtable_is_refused() {
    let media = SimMedia::new(1);
    Halloc::create(&*media, Path::new("/pm"), &PLAN, UUID, 0).unwrap();
    let space = open(&*media, Path::new("/pm"), PmemMode::Dax);
    let [one, other] = [1, 2].map(|n| memtable(Chain::create(&space, of(n)).unwrap(), &space, PLACES[0]));
    let mut item = Box::new(Item::new());
    let record = ChainRecord { key: b"k", seq: 2, kind: Kind::Put, value: b"v" };
    assert_eq!(item.push(&record, true).unwrap(), record_len(1, 1));
    assert_eq!((item.count(), item.len()), (1, record_len(1, 1)));
    let too_long = vec![0; terrane_memindex::MAX_KEY_BYTES + 1];
    let refused = item.push(&ChainRecord { key: &too_long, ..record }, true).unwrap_err();
    assert_eq!((refused.kind(), item.count()), (ErrorKind::LimitExceeded, 1));
    let mut admission = space.admit(1).unwrap();
    let place = one.chain().assign(item.len(), Some(&mut admission)).unwrap();
    let stored = place.write(1, 1, 1, item).unwrap();
    assert_eq!(other.insert(stored).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(one.index().is_empty() && other.index().is_empty());
    assert_eq!(one.into_chain().of().subtable, 1);
}

/// What the threads of a test share: two memtables that commits go to, and the order of these.
struct Shared {
    space: Arc<Space>,
    memtables: [ChainIndex; 2],
    ring: Ring<Vec<(usize, Written)>>,
    visible: AtomicU64,
}

impl Orderer<Vec<(usize, Written)>> for Shared {
    fn settle(&self, group: &mut [Filled<Vec<(usize, Written)>>], _: &mut Wakes) {
        for filled in group {
            for (memtable, written) in filled.entry.take().unwrap() {
                self.memtables[memtable].chain().advance(written).unwrap();
            }
            self.space.fence();
            self.visible.store(filled.end(), Ordering::Release);
        }
    }
}

const THREADS: u64 = 4;
const COMMITS: u64 = if cfg!(miri) { 5 } else { 1500 };

/// The memtables that commit `n` of a thread goes to, and of how many records in each.
fn shape(n: u64) -> (&'static [usize], u64) {
    ([&[0][..], &[1], &[0, 1]][(n % 3) as usize], [1, 3, 150][(n % 31 / 15) as usize])
}

impl Shared {
    /// One commit, of as many records in each of some memtables, whose keys lie side by side. Where they are.
    fn commit(&self, thread: u64, n: u64) -> Vec<(usize, u64, [u8; 16])> {
        let (touched, records) = shape(n);
        let value = vec![n as u8; (n % 30) as usize * 8];
        let len = record_len(16, value.len()) * records as usize;
        let mut admission = self.space.admit(touched.len() as u64).unwrap();
        let units = touched.len() as u64 * records;
        let (reservation, (lsn, places)) = self
            .ring
            .reserve_in_turn(units, self, |pos, _| {
                let assign =
                    |m: &usize| self.memtables[*m].chain().assign(len, Some(&mut admission)).unwrap();
                (pos, touched.iter().map(assign).collect::<Vec<_>>())
            })
            .unwrap();
        // Some threads' in between those of others, and some far apart.
        let from = if n.is_multiple_of(2) { n * 64 } else { n.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
        let key = |seq: u64| {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&(from + (seq - lsn) * THREADS + thread).to_be_bytes());
            key[8..].copy_from_slice(&lsn.to_be_bytes());
            key
        };
        let (mut all, mut seq) = (Vec::new(), lsn);
        let stored = touched.iter().zip(places).map(|(m, place)| {
            let mut item = Box::new(Item::new());
            for _ in 0..records {
                seq += 1;
                all.push((*m, seq, key(seq)));
                let record = ChainRecord { key: &key(seq), seq, kind: Kind::Put, value: &value };
                item.push(&record, true).unwrap();
            }
            place.write(lsn, touched.len() as u32, units as u32, item).unwrap()
        });
        let mut stored: Vec<_> = stored.collect();
        Stored::fence_all(&mut stored);
        let entry = touched.iter().copied().zip(stored.iter().map(Stored::written)).collect();
        for (m, stored) in touched.iter().zip(stored) {
            self.memtables[*m].insert(stored).unwrap();
        }
        reservation.fill(entry);
        all
    }

    fn look(&self, (m, seq, key): &(usize, u64, [u8; 16])) {
        let found = self.memtables[*m].index().get(key, *seq).expect("a commit before this one");
        assert_eq!(found.key, key);
        assert!(found.value.windows(2).all(|w| w[0] == w[1]));
    }
}

#[test]
fn threads_commit_to_several_memtables_and_see_what_the_others_did() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pm");
    let media = RealMedia::new(RealOptions::default()).unwrap();
    Halloc::create(&*media, &path, &PLAN, UUID, 0).unwrap();
    let space = open(&*media, &path, PmemMode::StandIn);
    let memtables = [0, 1].map(|n| memtable(Chain::create(&space, of(n)).unwrap(), &space, Where::Zones));
    let shared =
        Shared { space, memtables, ring: Ring::with_turns(64, 1).unwrap(), visible: AtomicU64::new(1) };
    let (together, (told, hears)) =
        (Barrier::new(THREADS as usize), std::sync::mpsc::channel::<Vec<(usize, u64, [u8; 16])>>());
    thread::scope(|s| {
        for thread in 0..THREADS {
            let (shared, together, told) = (&shared, &together, told.clone());
            s.spawn(move || {
                together.wait();
                for n in 0..COMMITS {
                    let done = shared.commit(thread, n);
                    done.iter().for_each(|one| shared.look(one));
                    told.send(done).unwrap();
                }
            });
        }
        drop(told);
        hears.iter().flatten().for_each(|one| shared.look(&one));
    });
    let models = shared.memtables.each_ref().map(|m| content(m.index()));
    let records: usize = models.iter().map(BTreeMap::len).sum();
    let each = (0..COMMITS).map(shape).map(|(touched, records)| touched.len() as u64 * records);
    assert_eq!(records as u64, THREADS * each.sum::<u64>());
    assert_eq!(shared.visible.load(Ordering::Acquire), 1 + records as u64);

    // The process dies: all of it was committed.
    drop(shared);
    let space = open(&*media, &path, PmemMode::StandIn);
    let recovered = recover(&space, 0).unwrap();
    assert_eq!((recovered.undone, recovered.next_lsn), (None, 1 + records as u64));
    for (chain, model) in recovered.chains.into_iter().zip(models) {
        let again = memtable(chain, &space, Where::Zones);
        for slot in 0..again.chain().slots().unwrap() {
            again.rebuild(slot, |_, _| Ok(true)).unwrap();
        }
        assert_eq!(content(again.index()), model);
    }
}
