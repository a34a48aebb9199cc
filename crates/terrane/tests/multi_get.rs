//! Many lookups at once, of far more than the cache holds.

mod support;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::{DIR, Rng, TUNING, on_medium, stand_in, tiny, tiny_table};
use terrane::media::sim::SimMedia;
use terrane::media::{
    DirEntry, File, Help, Job, LockGuard, Media, OpenMode, Pmem, PmemMode, Pool, ReadRequest, Region,
};
use terrane::{Db, Options, Result, SubtableOptions, Tuning};

/// A simulated machine that notes what is read together.
#[derive(Debug)]
struct Watched {
    inner: Arc<SimMedia>,
    /// Reads and bytes of each call.
    calls: Mutex<Vec<(usize, usize)>>,
    /// How often each place was read.
    places: Mutex<HashMap<(PathBuf, u64), u32>>,
}

impl Media for Watched {
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        let bytes = requests.iter().map(|r| r.buf.len()).sum();
        self.calls.lock().unwrap().push((requests.len(), bytes));
        for r in requests.iter() {
            let place = (r.file.path().to_owned(), r.offset);
            *self.places.lock().unwrap().entry(place).or_default() += 1;
        }
        self.inner.read_many(requests)
    }
    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.inner.create_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.inner.sync_dir(dir)
    }
    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }
    fn exists(&self, path: &Path) -> Result<bool> {
        self.inner.exists(path)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        self.inner.open(path, mode)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> Result<()> {
        self.inner.remove_file(path)
    }
    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.inner.remove_dir(path)
    }
    fn map(&self, path: &Path, len: usize) -> Result<Arc<dyn Region>> {
        self.inner.map(path, len)
    }
    fn map_pmem(&self, path: &Path, mode: PmemMode) -> Result<Arc<dyn Pmem>> {
        self.inner.map_pmem(path, mode)
    }
    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        self.inner.lock(path)
    }
    fn free_space(&self, dir: &Path) -> Result<u64> {
        self.inner.free_space(dir)
    }
    fn boot_id(&self) -> [u8; 16] {
        self.inner.boot_id()
    }
    fn now(&self) -> Duration {
        self.inner.now()
    }
    fn wall_time(&self) -> u64 {
        self.inner.wall_time()
    }
    fn entropy(&self) -> u64 {
        self.inner.entropy()
    }
    fn sleep(&self, time: Duration) {
        self.inner.sleep(time);
    }
    fn spawn(&self, pool: Pool, name: &'static str, job: Job) {
        self.inner.spawn(pool, name, job);
    }
    fn spawn_after(&self, pool: Pool, delay: Duration, name: &'static str, job: Job) {
        self.inner.spawn_after(pool, delay, name, job);
    }
    fn help(&self) -> Help {
        self.inner.help()
    }
    fn shutdown(&self) {
        self.inner.shutdown();
    }
}

fn key(i: u64) -> Vec<u8> {
    format!("k{i:06}").into_bytes()
}

fn value(i: u64) -> Vec<u8> {
    // A few are stored apart, a few fill a block.
    let len = match i % 500 {
        77 => 5000,
        200..=203 => 2500,
        _ => 100,
    };
    vec![i as u8; len]
}

#[test]
fn many_keys_take_bounded_groups_of_reads_and_each_block_once() {
    const KEYS: u64 = 20_000;
    let media =
        Arc::new(Watched { inner: SimMedia::new(7), calls: Mutex::default(), places: Mutex::default() });
    // The cache holds a thirtieth of the data: less than a group. Persistent memory would hold more of it.
    let options = tiny().cache_bytes(96 << 10).tuning(Tuning { pmem_cache: false, ..TUNING });
    let db = Db::open_on(media.clone(), DIR, options).unwrap();
    let t = db.create_subtable("t", tiny_table().compression(terrane::Compression::None)).unwrap();
    for i in (0..KEYS).filter(|i| i % 3 != 2) {
        t.put(&key(i), &value(i)).unwrap();
    }
    t.compact().unwrap();
    // Some are newer, in a run; some in a memtable.
    for i in (0..KEYS).step_by(9) {
        t.put(&key(i), b"run").unwrap();
    }
    t.flush().unwrap();
    for i in (0..KEYS).step_by(81) {
        t.put(&key(i), b"memtable").unwrap();
    }
    let want = |i: u64| match i {
        i if i >= KEYS => None,
        i if i % 81 == 0 => Some(b"memtable".to_vec()),
        i if i % 9 == 0 => Some(b"run".to_vec()),
        i if i % 3 == 2 => None,
        i => Some(value(i)),
    };
    // In no order, with duplicates and absent keys.
    let mut rng = Rng(3);
    let asked: Vec<u64> = (0..2 * KEYS).map(|_| rng.below(KEYS + 100)).collect();
    let keys: Vec<Vec<u8>> = asked.iter().map(|&i| key(i)).collect();
    media.calls.lock().unwrap().clear();
    media.places.lock().unwrap().clear();
    let got = t.multi_get(&keys).unwrap();
    for (i, got) in asked.iter().zip(&got) {
        assert!(*got == want(*i), "key {i}");
    }
    let calls = media.calls.lock().unwrap();
    let reads: usize = calls.iter().map(|c| c.0).sum();
    let most = calls.iter().copied().max_by_key(|c| c.1).unwrap();
    assert!(reads > 500, "only {reads} reads: the cache held it all");
    assert!(calls.iter().all(|c| c.0 <= 128), "a call with more reads than a device wants");
    // A block of 4 KiB is read with what alignment brings along, a large one may come on top.
    assert!(most.1 <= 3 * (256 << 10), "{} reads at once of {} bytes", most.0, most.1);
    assert!(calls.iter().map(|c| c.0).max() > Some(30), "reads are not overlapped");
    // Short parts of an extent may begin in the same sector, and an index is asked again by walks that come back to it.
    let places = media.places.lock().unwrap();
    let often = places.values().copied().max().unwrap();
    assert!(
        often <= 6 && reads <= 2 * places.len(),
        "{reads} reads of {} places, {often} of one",
        places.len()
    );
    drop((calls, places));
    let mut told: Vec<Option<Option<Vec<u8>>>> = vec![None; keys.len()];
    t.multi_get_with(&keys, |at, value| {
        assert!(told[at].replace(value.map(<[u8]>::to_vec)).is_none(), "key {} twice", asked[at]);
    })
    .unwrap();
    for (i, told) in asked.iter().zip(told) {
        assert!(told == Some(want(*i)), "key {i}");
    }
    let s = db.stats();
    assert!(s.cache_bytes <= s.cache_capacity + s.cache_capacity / 20);
}

#[test]
fn a_key_that_begins_unlike_its_extents_index_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), on_medium(Options::new(), stand_in(16 << 20))).unwrap();
    for records in 20..26 {
        let options = SubtableOptions::new().block_bytes(4 << 10);
        let table = db.create_subtable(&format!("of{records}"), options).unwrap();
        // Blocks begin with the former ones; the last one mostly does not begin with the last key.
        let keys: Vec<_> = (0..records).map(|n| format!("ab{n:03}")).chain(["ac".to_owned()]).collect();
        let value = |key: &str| [key.as_bytes(), &[7; 1000]].concat();
        keys.iter().for_each(|key| table.put(key.as_bytes(), &value(key)).unwrap());
        table.flush().unwrap();
        let between = ["ab", "ab0055", "ab9", "ac0", "a", "b"];
        // The second time by pointers.
        for _ in 0..2 {
            keys.iter().for_each(|key| assert_eq!(table.get(key.as_bytes()).unwrap(), Some(value(key))));
            assert_eq!(
                table.multi_get(&keys).unwrap(),
                keys.iter().map(|k| Some(value(k))).collect::<Vec<_>>()
            );
            assert!(between.iter().all(|key| table.get(key.as_bytes()).unwrap().is_none()));
            assert!(table.multi_get(&between).unwrap().iter().all(Option::is_none));
        }
    }
}
