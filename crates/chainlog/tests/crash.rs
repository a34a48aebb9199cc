//! What was committed, after a crash at any point: every store and fence of histories over several memtables, in which up to three commits
//! are under way at a time, each by a thread of its own; and a second crash while recovering from the first.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use terrane_base::{ErrorKind, Lsn, MAX_SEQ, Result};
use terrane_chainlog::{Chain, Item, Place, Recovered, Space, Stored, Written, recover};
use terrane_format::Kind;
use terrane_format::chain::{ChainMemtable, ChainRecord, ITEM_HEADER, MAX_SLOTS, record_len};
use terrane_format::pm::PoolKind;
use terrane_halloc::{Halloc, Plan};
use terrane_media::sim::{CrashKind, Image, OpInfo, SimMedia};
use terrane_media::{Media, OpenMode, PmemMode};

const PLAN: Plan = Plan { bytes: 320 << 10, subtables: 4, memtables: 8, zone_bytes: 4 << 10 };
const UUID: [u8; 16] = *b"0123456789abcdef";

static CHECKS: AtomicU64 = AtomicU64::new(0);
/// Recoveries that took nothing back, that took a commit back, and zones that were given back.
static SEEN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

fn path() -> &'static Path {
    Path::new("/pm")
}

fn machine() -> Arc<SimMedia> {
    let media = SimMedia::new(1);
    Halloc::create(&*media, path(), &PLAN, UUID, 0).unwrap();
    media
}

fn open(media: &SimMedia) -> Arc<Space> {
    Space::open(media, path(), PmemMode::Dax, UUID, 0).unwrap()
}

/// What its memory holds, as a number; `buf` is for what is read.
fn hash(media: &SimMedia, buf: &mut Vec<u8>) -> u64 {
    let file = media.open(path(), OpenMode::READ).unwrap();
    buf.resize(file.len().unwrap() as usize, 0);
    file.read_at(buf, 0).unwrap();
    let mut hasher = DefaultHasher::new();
    buf.hash(&mut hasher);
    hasher.finish()
}

/// Numbers from a seed.
fn next(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

/// One commit: for each subtable that it touches the values that it puts.
type Commit = BTreeMap<u64, Vec<Vec<u8>>>;

/// How much of the order it takes.
fn units_of(commit: &Commit) -> u64 {
    commit.values().map(|values| values.len() as u64).sum()
}

/// What is certain at a moment, by LSN, and what is on its way.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    committed: BTreeMap<Lsn, Commit>,
    /// On their way. They are ordered one after the other.
    moving: BTreeMap<Lsn, Commit>,
    /// The first of these is being ordered, and may be there.
    ordering: bool,
    /// Memtables that are being released, or were: by subtable, up to which LSN all is gone or going.
    going: BTreeMap<u64, Lsn>,
    /// Those of them that were, and do not come back.
    gone: BTreeMap<u64, Lsn>,
    settled: Lsn,
}

/// What a memory has, by LSN.
fn content(chains: &[Chain]) -> BTreeMap<Lsn, Commit> {
    let mut all: BTreeMap<Lsn, Commit> = BTreeMap::new();
    for chain in chains {
        for slot in 0..chain.slots().unwrap() {
            let tell = |lsn, _, record: ChainRecord<'_>| {
                assert_eq!(record.key, chain.of().subtable.to_be_bytes());
                let values = all.entry(lsn).or_default().entry(chain.of().subtable).or_default();
                values.push(record.value.to_vec());
                Ok(())
            };
            chain.read(slot, tell).unwrap();
        }
    }
    all
}

impl Model {
    /// What there may be of a history: commits without what is released of them.
    fn allowed(&self, all: BTreeMap<Lsn, Commit>) -> BTreeMap<Lsn, Commit> {
        let mut all = all;
        for (lsn, commit) in &mut all {
            commit.retain(|subtable, _| self.going.get(subtable).is_none_or(|to| lsn > to));
        }
        all.retain(|_, commit| !commit.is_empty());
        all
    }

    /// Recovers a machine that comes up after a crash, compares, commits more, and recovers once more.
    fn check(&self, media: &SimMedia, what: &str) {
        let midway: Arc<Mutex<Vec<Image>>> = Arc::default();
        // Of one recovery in so many the machine is kept before each of its stores and fences.
        if CHECKS.fetch_add(1, Ordering::Relaxed).is_multiple_of(24) {
            let into = midway.clone();
            media.on_op(Some(Arc::new(move |m: &SimMedia, _: &OpInfo<'_>| {
                into.lock().unwrap().push(m.image());
            })));
        }
        let space = open(media);
        let recovered = recover(&space, self.settled).unwrap_or_else(|e| panic!("{what}: {e:?}"));
        media.on_op(None);
        let found = content(&recovered.chains);
        for (subtable, to) in &self.gone {
            let back = found.range(..=to).any(|(_, commit)| commit.contains_key(subtable));
            assert!(!back, "{what}: of {subtable} something up to {to} has come back");
        }
        let found = self.allowed(found);
        let certain = self.allowed(self.committed.clone());
        let mut with_last = self.committed.clone();
        let being_ordered = self.moving.first_key_value().filter(|_| self.ordering);
        with_last.extend(being_ordered.map(|(lsn, commit)| (*lsn, commit.clone())));
        let last_end = with_last.iter().map(|(lsn, commit)| lsn + units_of(commit)).max();
        let with_last = self.allowed(with_last);
        assert!(found == certain || found == with_last, "{what}: {found:?}");
        let ends = self.committed.iter().map(|(lsn, commit)| lsn + units_of(commit));
        assert!(ends.max().unwrap_or(0) <= recovered.next_lsn, "{what}");
        // (A memtable may be there whose first commit is not.)
        let bound = last_end.into_iter().chain(self.moving.keys().copied()).max();
        assert!(recovered.next_lsn <= bound.unwrap_or(0).max(self.settled).max(1), "{what}");
        // What a recovery has found stays so, also if power fails right behind it.
        for kind in [CrashKind::PowerLost, CrashKind::PowerWords] {
            let again = open(&media.image().crash(kind, 1));
            let again = recover(&again, self.settled).unwrap();
            assert_eq!(again.undone, None, "{what}");
            assert_eq!(self.allowed(content(&again.chains)), found, "{what}: after another crash");
        }
        // Nor does a crash at any point of it change what there is, but that who died had the last commit or not.
        let midway = std::mem::take(&mut *midway.lock().unwrap());
        for (at, image) in midway.iter().enumerate() {
            for kind in [CrashKind::Process, CrashKind::PowerLost, CrashKind::PowerWords] {
                let again = recover(&open(&image.crash(kind, at as u64)), self.settled).unwrap();
                let now = self.allowed(content(&again.chains));
                assert!(
                    now == certain || now == with_last,
                    "{what}: crash {at} of recovery, {kind:?}: {now:?}"
                );
            }
        }
        SEEN[usize::from(recovered.undone.is_some())].fetch_add(1, Ordering::Relaxed);
        SEEN[2].fetch_add(recovered.reclaimed, Ordering::Relaxed);
        // All zones are somebody's or free, and it goes on.
        let Recovered { mut chains, next_lsn, .. } = recovered;
        let held: u64 = chains.iter().map(|c| u64::from(c.slots().unwrap())).sum();
        assert_eq!((space.taken(), space.free()), (held, space.zone_count() - held), "{what}");
        if chains.is_empty() {
            let of = ChainMemtable { subtable: 7, generation: 1, from_lsn: next_lsn };
            chains.push(Chain::create(&space, of).unwrap());
        }
        let more: Commit = chains.iter().map(|c| (c.of().subtable, vec![b"more".to_vec()])).collect();
        let last: BTreeMap<u64, &Chain> = chains.iter().map(|c| (c.of().subtable, c)).collect();
        commit(&space, &last, next_lsn, &more).unwrap();
        let mut want = content(&chains);
        let whole = want.clone();
        assert_eq!(want.remove(&next_lsn), Some(more), "{what}");
        assert_eq!(self.allowed(want), found, "{what}");
        // It lies where there was what had not been ordered, and stays.
        let kinds = [CrashKind::Process, CrashKind::PowerLost, CrashKind::PowerWords];
        let kind = kinds[whole.len() % kinds.len()];
        let again = recover(&open(&media.image().crash(kind, 2)), self.settled).unwrap();
        assert_eq!((again.undone, content(&again.chains)), (None, whole), "{what}: {kind:?} after more");
    }
}

/// What a leader does in its turn: the places of a commit's items, with these.
fn places<'c>(
    space: &Arc<Space>,
    chains: &BTreeMap<u64, &'c Chain>,
    lsn: Lsn,
    of: &Commit,
) -> Result<Vec<(Place<'c>, Box<Item>)>> {
    let mut admission = space.admit(of.len() as u64)?;
    let (mut places, mut seq) = (Vec::new(), lsn);
    for (subtable, values) in of {
        let mut item = Box::new(Item::new());
        for value in values {
            seq += 1;
            let key = subtable.to_be_bytes();
            item.push(&ChainRecord { key: &key, seq, kind: Kind::Put, value }, true)?;
        }
        places.push((chains[subtable].assign(item.len(), Some(&mut admission))?, item));
    }
    Ok(places)
}

/// Does what a leader and the orderer do.
fn commit(space: &Arc<Space>, chains: &BTreeMap<u64, &Chain>, lsn: Lsn, of: &Commit) -> Result<()> {
    let units = units_of(of) as u32;
    let places = places(space, chains, lsn, of)?;
    let stored = places.into_iter().map(|(place, item)| place.write(lsn, of.len() as u32, units, item));
    let mut stored = stored.collect::<Result<Vec<_>>>()?;
    Stored::fence_all(&mut stored);
    for (subtable, item) in of.keys().zip(stored) {
        chains[subtable].advance(item.written())?;
    }
    space.fence();
    Ok(())
}

/// What a leader that is one of several does next.
enum Step {
    Assign,
    /// One of its items.
    Write,
    Fence,
}

/// Commits that are under way at the same time, each by a thread of its own. They get their places one after the other, are written item by item in
/// an order that follows from the seed, and are ordered by another thread as soon as it comes to it and all before them are there. `midway` is
/// called once, when some are there, with the LSN of the first that is not; `ordering` before one is ordered, and behind it, with its LSN then.
fn commit_together(
    space: &Arc<Space>,
    chains: &BTreeMap<u64, &Chain>,
    commits: &BTreeMap<Lsn, Commit>,
    seed: &mut u64,
    midway: impl FnOnce(Lsn),
    ordering: impl Fn(Option<Lsn>),
) {
    std::thread::scope(|s| {
        let leaders = commits.iter().map(|(lsn, of)| {
            let (tell, told) = mpsc::channel::<Step>();
            let (done, has_done) = mpsc::channel::<Vec<Written>>();
            s.spawn(move || {
                let (mut to_write, mut stored) = (Vec::new().into_iter(), Vec::new());
                for step in told {
                    let mut written = Vec::new();
                    match step {
                        Step::Assign => to_write = places(space, chains, *lsn, of).unwrap().into_iter(),
                        Step::Write => {
                            let (place, item) = to_write.next().unwrap();
                            let (items, units) = (of.len() as u32, units_of(of) as u32);
                            stored.push(place.write(*lsn, items, units, item).unwrap());
                        }
                        Step::Fence => {
                            Stored::fence_all(&mut stored);
                            written.extend(stored.iter().map(Stored::written));
                        }
                    }
                    done.send(written).unwrap();
                }
            });
            (tell, has_done)
        });
        let leaders: Vec<_> = leaders.collect();
        let step = |leader: usize, step: Step| {
            let (tell, has_done) = &leaders[leader];
            tell.send(step).unwrap();
            has_done.recv().unwrap()
        };
        for leader in 0..leaders.len() {
            step(leader, Step::Assign);
        }
        let mut left: Vec<usize> = commits.values().map(BTreeMap::len).collect();
        let mut written: Vec<Option<Vec<Written>>> = vec![None; left.len()];
        let mut unordered = commits.iter().enumerate().peekable();
        let mut midway = Some(midway);
        while unordered.peek().is_some() {
            let busy: Vec<usize> = (0..left.len()).filter(|leader| written[*leader].is_none()).collect();
            let all_written = busy.is_empty();
            if !all_written {
                let leader = busy[next(seed, busy.len() as u64) as usize];
                if left[leader] > 0 {
                    left[leader] -= 1;
                    step(leader, Step::Write);
                } else {
                    written[leader] = Some(step(leader, Step::Fence));
                }
            }
            if !all_written && next(seed, 2) == 0 {
                continue;
            }
            while let Some((leader, (lsn, of))) = unordered.next_if(|(leader, _)| written[*leader].is_some())
            {
                ordering(None);
                for (subtable, item) in of.keys().zip(written[leader].as_ref().unwrap()) {
                    chains[subtable].advance(*item).unwrap();
                }
                space.fence();
                ordering(Some(*lsn));
            }
            if let Some((_, (lsn, _))) = unordered.peek()
                && written.iter().any(Option::is_some)
                && let Some(midway) = midway.take()
            {
                midway(**lsn);
            }
        }
    });
}

/// Runs a history, and gives the state of the machine before each of its stores and fences.
fn history(number: u64, steps: u64) -> Vec<(Image, Model)> {
    let media = machine();
    let space = open(&media);
    let model = Arc::new(Mutex::new(Model::default()));
    let seen: Arc<Mutex<Vec<(Image, Model)>>> = Arc::default();
    let (into, from) = (seen.clone(), model.clone());
    media.on_op(Some(Arc::new(move |m: &SimMedia, _: &OpInfo<'_>| {
        into.lock().unwrap().push((m.image(), from.lock().unwrap().clone()));
    })));
    let mut seed = number;
    let mut lsn = 1;
    let mut chains: BTreeMap<u64, Chain> = BTreeMap::new();
    for _ in 0..steps {
        let subtable = next(&mut seed, 4);
        let mut to_release = (next(&mut seed, 8) == 0).then(|| chains.remove(&subtable)).flatten();
        // Written out: all is settled, then it goes, and a new one comes.
        let release = |chain: Chain, settled: Lsn| {
            let mut m = model.lock().unwrap();
            m.settled = settled;
            m.going.insert(chain.of().subtable, settled - 1);
            drop(m);
            let subtable = chain.of().subtable;
            chain.release(settled).unwrap();
            model.lock().unwrap().gone.insert(subtable, settled - 1);
        };
        let together = if next(&mut seed, 2) == 0 { 1 } else { 2 + next(&mut seed, 2) };
        if let Some(chain) = to_release.take_if(|_| together == 1) {
            release(chain, lsn);
            continue;
        }
        let mut commits = BTreeMap::new();
        for _ in 0..together {
            let mut of = Commit::new();
            for _ in 0..1 + next(&mut seed, 3) {
                let subtable = next(&mut seed, 4);
                if to_release.as_ref().is_some_and(|chain: &Chain| chain.of().subtable == subtable) {
                    continue;
                }
                let values =
                    (0..1 + next(&mut seed, 3)).map(|_| vec![lsn as u8; next(&mut seed, 600) as usize]);
                of.insert(subtable, values.collect());
            }
            let units = units_of(&of);
            if units > 0 {
                commits.insert(lsn, of);
                lsn += units;
            }
        }
        model.lock().unwrap().moving = commits.clone();
        for (lsn, of) in &commits {
            for subtable in of.keys() {
                if !chains.contains_key(subtable) {
                    let of = ChainMemtable { subtable: *subtable, generation: *lsn, from_lsn: *lsn };
                    chains.insert(*subtable, Chain::create(&space, of).unwrap());
                }
            }
        }
        let refs = chains.iter().map(|(s, c)| (*s, c)).collect();
        let ordering = |done: Option<Lsn>| {
            let mut m = model.lock().unwrap();
            m.ordering = done.is_none();
            if let Some((lsn, of)) = done.and_then(|lsn| m.moving.remove_entry(&lsn)) {
                m.committed.insert(lsn, of);
            }
        };
        // Its memtable is settled: those under way go to others.
        let midway = |first: Lsn| {
            if let Some(chain) = to_release.take() {
                release(chain, first);
            }
        };
        commit_together(&space, &refs, &commits, &mut seed, midway, ordering);
        if let Some(chain) = to_release {
            release(chain, lsn);
        }
    }
    media.on_op(None);
    Arc::try_unwrap(seen).unwrap_or_default().into_inner().unwrap()
}

#[test]
fn commits_are_whole_or_not_at_all_after_a_crash_at_any_point() {
    let histories = std::env::var("TERRANE_SEEDS").map_or(2, |n| n.parse().unwrap());
    let least = std::env::var("TERRANE_DISTINCT").map_or(0, |n| n.parse().unwrap());
    let [next, points, images, checked] = [const { AtomicU64::new(0) }; 4];
    // Different kinds of crashes may leave the same, and so may crashes at different points.
    let distinct = Mutex::new(HashSet::new());
    let check_history = |number: u64| {
        let mut buf = Vec::new();
        // After power failed all that is there is certain, so machines that have the same memory, and of which the same is expected, are
        // one, and need to be recovered once.
        let mut powered_off = HashSet::new();
        let mut before = Model::default();
        for (at, (image, model)) in history(number, 24).into_iter().enumerate() {
            points.fetch_add(1, Ordering::Relaxed);
            if model != before {
                powered_off.clear();
                before = model.clone();
            }
            let mut crash = |media: &SimMedia, by_power: bool, what: &str| {
                let hash = hash(media, &mut buf);
                distinct.lock().unwrap().insert(hash);
                images.fetch_add(1, Ordering::Relaxed);
                if !by_power || powered_off.insert(hash) {
                    checked.fetch_add(1, Ordering::Relaxed);
                    model.check(media, what);
                }
            };
            for (by, state) in image.some_pm_states(12) {
                let what = format!("history {number}, call {at}, state {state} by {by:?}");
                crash(&image.crash_to_pm_state(by, state), true, &what);
            }
            for kind in CrashKind::WITH_WORDS {
                let by_power = !matches!(kind, CrashKind::Process | CrashKind::ProcessTorn);
                crash(
                    &image.crash(kind, at as u64),
                    by_power,
                    &format!("history {number}, call {at}, {kind:?}"),
                );
            }
        }
    };
    let threads = (terrane_media::processors() as u64).min(histories);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= histories {
                        break;
                    }
                    check_history(number);
                    if number > 0 && number.is_multiple_of(20) {
                        let (images, distinct) =
                            (images.load(Ordering::Relaxed), distinct.lock().unwrap().len());
                        println!("{number} histories: {images} crash images, {distinct} distinct");
                    }
                }
            });
        }
    });
    let [points, images, checked] = [points, images, checked].map(AtomicU64::into_inner);
    let distinct = distinct.into_inner().unwrap().len();
    let seen = SEEN.each_ref().map(|n| n.load(Ordering::Relaxed));
    println!(
        "{images} crash images, {distinct} distinct, {checked} recovered, at {points} points of {histories} histories; {} commits taken \
         back, {} zones reclaimed",
        seen[1], seen[2]
    );
    assert!(points > 200 && seen.iter().all(|n| *n > 0), "{seen:?}");
    assert!(distinct >= least, "{distinct} distinct images, {least} were asked for");
}

#[test]
fn without_what_is_settled_a_released_items_commit_would_be_taken_back() {
    let media = machine();
    let space = open(&media);
    let chains = [0, 1].map(|subtable| {
        Chain::create(&space, ChainMemtable { subtable, generation: 1, from_lsn: 1 }).unwrap()
    });
    let refs = chains.iter().map(|c| (c.of().subtable, c)).collect();
    let both: Commit = [0, 1].map(|subtable| (subtable, vec![b"v".to_vec()])).into();
    commit(&space, &refs, 1, &both).unwrap();
    let [first, second] = chains;
    assert_eq!((first.end_lsn(), second.end_lsn()), (3, 3));
    second.release(3).unwrap();
    let after = |settled| {
        let space = open(&media.image().crash(CrashKind::Process, 1));
        let recovered = recover(&space, settled).unwrap();
        (recovered.undone, content(&recovered.chains).len())
    };
    assert_eq!(after(3), (None, 1));
    assert_eq!(after(0), (Some(1), 0));
}

#[test]
fn every_damaged_byte_of_what_is_committed_is_corruption() {
    let media = machine();
    let space = open(&media);
    let chain = Chain::create(&space, ChainMemtable { subtable: 1, generation: 1, from_lsn: 1 }).unwrap();
    let refs: BTreeMap<u64, &Chain> = [(1, &chain)].into();
    // Two zones.
    for lsn in 1..=6 {
        let values = vec![vec![lsn as u8; 900]];
        commit(&space, &refs, lsn, &Commit::from([(1, values)])).unwrap();
    }
    assert_eq!(chain.slots().unwrap(), 2);
    let whole = content(std::slice::from_ref(&chain));
    // Where things lie, as another one finds it who opens the memory.
    let aside = media.image().crash(CrashKind::Process, 1);
    let halloc = Halloc::open(&*aside, path(), PmemMode::Dax, UUID, 0).unwrap();
    let zones = halloc.pool(PoolKind::Zones);
    let pmem = halloc.pmem();
    let memtable = halloc.pool(PoolKind::Memtables).place(0).unwrap();
    let mut places: Vec<usize> = (0..28).map(|at| memtable + at).collect();
    places.extend(memtable + 64..memtable + 72);
    for zone in zones.committed() {
        let at = zones.place(zone.unwrap().0).unwrap();
        places.extend((at..at + 16).chain(at + 64..at + 64 + 2 * (ITEM_HEADER + record_len(8, 900))));
    }
    let mut harmless = 0;
    for at in places {
        let (word_at, byte) = (at / 8 * 8, at % 8);
        let word = pmem.load_word(word_at).unwrap();
        pmem.store_word(word_at, word ^ 0x10 << (byte * 8)).unwrap();
        let space = open(&aside.image().crash(CrashKind::Process, 1));
        let read = recover(&space, 0).and_then(|recovered| {
            let chain = &recovered.chains[0];
            let mut lsns = Vec::new();
            for slot in 0..chain.slots()? {
                chain.read(slot, |lsn, _, record| {
                    lsns.push((lsn, record.value.to_vec()));
                    Ok(())
                })?;
            }
            Ok(lsns)
        });
        match read {
            Err(e) => assert_eq!(e.kind(), ErrorKind::Corruption, "byte {at}: {e:?}"),
            // The word's high half is not looked at unless a commit is taken back.
            Ok(lsns) => {
                assert!(
                    (memtable + 68..memtable + 72).contains(&at) && lsns.len() == whole.len(),
                    "byte {at}"
                );
                harmless += 1;
            }
        }
        pmem.store_word(word_at, word).unwrap();
    }
    assert!(harmless <= 4);
}

#[test]
fn limits_are_said_before_anything_is_written() {
    let media = machine();
    let space = open(&media);
    let chain = Chain::create(&space, ChainMemtable { subtable: 1, generation: 1, from_lsn: 1 }).unwrap();
    let most = Chain::most(&space);
    assert_eq!(most, (4 << 10) - 64 - ITEM_HEADER);
    let mut admission = space.admit(1).unwrap();
    assert_eq!(chain.assign(most + 8, Some(&mut admission)).unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert_eq!(chain.assign(most - 4, Some(&mut admission)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let free = space.free();
    let e = space.admit(free + 1).unwrap_err();
    assert!(e.kind() == ErrorKind::OutOfSpace && e.hint().is_some());
    drop(space.admit(free).unwrap());
    assert_eq!(space.free(), free);
    let place = chain.assign(most, Some(&mut admission)).unwrap();
    // Set aside was one, and that is taken.
    assert_eq!(chain.assign(8, Some(&mut admission)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(chain.slots_left(), MAX_SLOTS - 1);
    drop(place);
}

#[test]
fn a_place_that_is_not_written_breaks_its_chain_and_its_zone_is_nobody_elses() {
    let media = machine();
    let space = open(&media);
    let create =
        |subtable| Chain::create(&space, ChainMemtable { subtable, generation: 1, from_lsn: 1 }).unwrap();
    let [broken, whole] = [create(1), create(2)];
    let mut admission = space.admit(1).unwrap();
    let place = broken.assign(64, Some(&mut admission)).unwrap();
    let refused = place.write(1, 1, 1, Box::default()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let mut more = space.admit(1).unwrap();
    assert_eq!(broken.assign(8, Some(&mut more)).unwrap_err().kind(), ErrorKind::Poisoned);
    let of = Commit::from([(2, vec![b"v".to_vec()])]);
    commit(&space, &[(2, &whole)].into(), 5, &of).unwrap();
    // That of the broken one is not the other's, and comes back when the memory is opened again.
    assert_eq!(space.taken(), 2);
    drop((more, admission));
    assert_eq!(space.free(), space.zone_count() - 2);
    let again = open(&media.image().crash(CrashKind::Process, 1));
    let recovered = recover(&again, 0).unwrap();
    assert_eq!(content(&recovered.chains).into_values().collect::<Vec<_>>(), [of]);
    assert_eq!(again.free(), again.zone_count() - 1);
}

#[test]
fn what_could_not_be_recovered_is_not_written() {
    let media = machine();
    let space = open(&media);
    let create =
        |subtable| Chain::create(&space, ChainMemtable { subtable, generation: 1, from_lsn: 1 }).unwrap();
    let chains = [create(1), create(2), create(3)];
    // A sequence that is not its commit's, before it and behind it, and one that there is none of.
    for (chain, seq) in chains.iter().zip([5, 7, MAX_SEQ + 1]) {
        let mut item = Box::new(Item::new());
        let record = ChainRecord { key: b"k", seq, kind: Kind::Put, value: b"v" };
        if seq > MAX_SEQ {
            assert_eq!(item.push(&record, true).unwrap_err().kind(), ErrorKind::LimitExceeded);
            continue;
        }
        item.push(&record, true).unwrap();
        let mut admission = space.admit(1).unwrap();
        let place = chain.assign(item.len(), Some(&mut admission)).unwrap();
        let refused = place.write(5, 1, 1, item).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
    // Nor is a memory that has memtables here.
    assert_eq!(recover(&space, 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    drop(chains);
    recover(&space, 0).unwrap();
}

#[test]
fn items_are_committed_in_the_order_in_which_they_lie() {
    let media = machine();
    let space = open(&media);
    let chain = Chain::create(&space, ChainMemtable { subtable: 1, generation: 1, from_lsn: 1 }).unwrap();
    let mut admission = space.admit(2).unwrap();
    let mut write = |lsn| {
        let mut item = Box::new(Item::new());
        item.push(&ChainRecord { key: b"k", seq: lsn + 1, kind: Kind::Put, value: b"v" }, true).unwrap();
        let place = chain.assign(item.len(), Some(&mut admission)).unwrap();
        place.write(lsn, 1, 1, item).unwrap().written()
    };
    let [first, second] = [write(1), write(2)];
    chain.advance(second).unwrap();
    for late in [first, second] {
        assert_eq!(chain.advance(late).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(chain.end_lsn(), 3);
    assert_eq!(chain.release(2).unwrap_err().kind(), ErrorKind::InvalidArgument);
}
