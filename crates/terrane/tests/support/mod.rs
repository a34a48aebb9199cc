//! What the tests of the whole engine share: one operation type, a model, and a small database on a simulated machine.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod pairs;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrane::media::Media;
use terrane::media::sim::{CrashKind, SimMedia};
use terrane::{
    Db, Durability, Ingest, Isolation, Lane, Medium, Options, PmemMode, PmemOptions, ReadOptions, Subtable,
    SubtableOptions, Taken, Transaction, TransactionOptions, Tuning, WriteBatch,
};

/// Subtables of a history.
pub const TABLES: usize = 4;
pub const DIR: &str = "/db";

/// A small generator of numbers: histories follow from their seed.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// One change of a batch.
#[derive(Clone, Debug)]
pub enum Change {
    Put { table: usize, key: Vec<u8>, value: Vec<u8> },
    Delete { table: usize, key: Vec<u8> },
    DeleteRange { table: usize, start: Vec<u8>, end: Vec<u8> },
}

impl Change {
    /// The subtable that it changes.
    pub fn table(&self) -> usize {
        let (Change::Put { table, .. } | Change::Delete { table, .. } | Change::DeleteRange { table, .. }) =
            self;
        *table
    }
}

/// What a write is made by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Batch,
    /// With locks. It writes other things too, and goes back to before that.
    Transaction(Isolation),
    Optimistic,
    /// Puts alone, whose keys ascend in each subtable. Durable when it returns, and so is all before it.
    Ingest,
}

impl By {
    fn some(rng: &mut Rng) -> By {
        match rng.below(8) {
            0 => By::Transaction(Isolation::ReadCommitted),
            1 => By::Transaction(Isolation::Snapshot),
            2 => By::Transaction(Isolation::Serializable),
            3 => By::Optimistic,
            _ => By::Batch,
        }
    }
}

/// One step of a history.
#[derive(Clone, Debug)]
pub enum Op {
    Write {
        changes: Vec<Change>,
        sync: bool,
        by: By,
    },
    Sync,
    Flush(usize),
    Compact(usize),
    /// Drops the subtable and creates it anew.
    Recreate(usize),
    /// Lets background work run.
    Background,
}

/// Sizes at which a few hundred operations fill memtables, extents and levels.
pub const TUNING: Tuning = Tuning {
    compact: true,
    segment_bytes: 128 << 10,
    tail_bytes: 64 << 10,
    drain_bytes: 4 << 10,
    // On a simulated machine that may be at once: then nothing would ever be lost.
    flush_after: None,
    log_budget: 256 << 10,
    data_file_bytes: 4 << 20,
    extent_bytes: 32 << 10,
    piece_bytes: 64 << 10,
    task_bytes: 16 << 10,
    transaction_bytes: 1000,
    swizzling: terrane::Swizzling::Children,
    warm: true,
    l0_runs: 4,
    pmem_cache: true,
    simd: None,
};

/// Options with them; two compactions at a time, so that one that waits for its tasks runs the other meanwhile.
pub fn tiny() -> Options {
    let options = Options::new().memtable_bytes(600 << 10).cache_bytes(256 << 10).background_threads(2);
    on_medium(options.tuning(TUNING), tiny_memory())
}

/// Options on the medium that is tested: with this memory, if that is one.
pub fn on_medium(options: Options, memory: PmemOptions) -> Options {
    match (in_memory(), in_page_cache()) {
        (true, _) => {
            let memory = memory.trailing_log(has_trailing_log());
            options.medium(Medium::Pmem(memory.index_in_pmem(is_medium("pmem-index"))))
        }
        (_, true) => options.medium(Medium::Pmem(memory.mode(PmemMode::PageCache))),
        _ => options,
    }
}

/// A memory for [`on_medium`] on a real machine, which need not have any.
pub fn stand_in(bytes: u64) -> PmemOptions {
    PmemOptions::new(bytes).mode(PmemMode::StandIn)
}

/// What `TERRANE_TEST_MEDIUM` may say; a log otherwise.
const MEDIA: [&str; 4] = ["pmem", "pmem-index", "pmem-log", "page-cache"];

fn is_medium(name: &str) -> bool {
    std::env::var("TERRANE_TEST_MEDIUM").is_ok_and(|medium| {
        assert!(MEDIA.contains(&medium.as_str()), "TERRANE_TEST_MEDIUM is one of {MEDIA:?}, not {medium}");
        medium == name
    })
}

/// Whether databases have persistent memory in place of a log: the same tests are for all media.
pub fn in_memory() -> bool {
    is_medium("pmem") || is_medium("pmem-index") || has_trailing_log()
}

/// Whether that memory has a log behind it.
pub fn has_trailing_log() -> bool {
    is_medium("pmem-log")
}

/// Whether they have memory in the page cache, and a log behind it.
pub fn in_page_cache() -> bool {
    is_medium("page-cache")
}

/// [`tiny`], with a log in any case: for what is about logs.
pub fn tiny_logged() -> Options {
    tiny().medium(Medium::Log)
}

/// The kinds of crashes that differ on the medium that is tested.
pub fn crash_kinds() -> &'static [CrashKind] {
    if in_memory() { &CrashKind::WITH_WORDS } else { &CrashKind::ALL }
}

/// A kind of crash.
pub fn crash_kind(rng: &mut Rng) -> CrashKind {
    let kinds = crash_kinds();
    kinds[rng.below(kinds.len() as u64) as usize]
}

/// Of [`tiny_memory`].
pub const TINY_MEMORY_BYTES: u64 = 1480 << 10;

/// Some forty zones, with room for batches as large as in a log of [`TUNING`].
pub fn tiny_memory() -> PmemOptions {
    PmemOptions::new(TINY_MEMORY_BYTES).zone_bytes(32 << 10)
}

pub fn tiny_table() -> SubtableOptions {
    SubtableOptions::new().block_bytes(4 << 10).value_threshold(3 << 10)
}

/// The options of a history's subtable: the last one keeps its memtables in a skiplist.
pub fn options_of(table: usize) -> SubtableOptions {
    let index = if table + 1 == TABLES { terrane::IndexKind::Skiplist } else { terrane::IndexKind::Art };
    tiny_table().index(index)
}

pub fn name(table: usize) -> String {
    format!("t{table}")
}

/// Copies the files of a closed database's directory to a new one.
#[allow(clippy::disallowed_methods, reason = "files of the machine itself")]
pub fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Opens a database on the machine itself, puts `value` in the place of what `k` has in its only subtable, and closes it: what that was, and whether
/// the memory was made anew.
pub fn exchange(dir: &Path, options: Options, value: &[u8]) -> (Option<Vec<u8>>, bool) {
    let db = Db::open(dir, options).unwrap();
    let t = db.subtable_or_create("t", tiny_table()).unwrap();
    let before = t.get(b"k").unwrap().map(|value| value.to_vec());
    t.put(b"k", value).unwrap();
    drop(t);
    let renewed = db.stats().pmem_renewed;
    db.close().unwrap();
    (before, renewed)
}

pub fn open(media: &Arc<SimMedia>, options: &Options) -> terrane::Result<Db> {
    Db::open_on(media.clone() as Arc<dyn Media>, DIR, options.clone())
}

fn key(rng: &mut Rng, keys: u64) -> Vec<u8> {
    let n = rng.below(keys);
    match rng.below(12) {
        // Prefixes of one another, and the empty key.
        0 => format!("k{n:04}x").into_bytes(),
        1 => Vec::new(),
        _ => format!("k{n:04}").into_bytes(),
    }
}

fn value(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(20) {
        0 => 0,
        1 => 3000 + rng.below(9000),
        2 => 900,
        _ => rng.below(60),
    };
    let fill = rng.next() as u8;
    (0..len).map(|i| fill.wrapping_add((i / 7) as u8)).collect()
}

fn change(rng: &mut Rng, keys: u64) -> Change {
    let table = rng.below(TABLES as u64) as usize;
    match rng.below(20) {
        0 => {
            let (a, b) = (key(rng, keys), key(rng, keys));
            Change::DeleteRange { table, start: a.clone().min(b.clone()), end: a.max(b) }
        }
        1..=4 => Change::Delete { table, key: key(rng, keys) },
        _ => Change::Put { table, key: key(rng, keys), value: value(rng) },
    }
}

/// Sorted data, at times enough for several extents, for some subtables in turn.
pub fn ingest(rng: &mut Rng, keys: u64) -> Op {
    let rows = [3, 30, 120][rng.below(3) as usize];
    let longest = [20, 400, 1500][rng.below(3) as usize];
    let mut sorted = BTreeMap::new();
    let tables = 1 + rng.below(TABLES as u64);
    for _ in 0..1 + rng.below(rows) {
        let len = if rng.below(40) == 0 { 3000 + rng.below(9000) } else { rng.below(longest) };
        let value = vec![rng.next() as u8; len as usize];
        sorted.insert((key(rng, keys), rng.below(tables) as usize), value);
    }
    let changes = sorted.into_iter().map(|((key, table), value)| Change::Put { table, key, value });
    Op::Write { changes: changes.collect(), sync: true, by: By::Ingest }
}

/// A random step.
pub fn op(rng: &mut Rng, keys: u64) -> Op {
    match rng.below(100) {
        0..=1 => Op::Flush(rng.below(TABLES as u64) as usize),
        2 => Op::Compact(rng.below(TABLES as u64) as usize),
        3 => Op::Sync,
        4..=11 => Op::Background,
        12 if rng.below(4) == 0 => Op::Recreate(rng.below(TABLES as u64) as usize),
        13 => ingest(rng, keys),
        _ => {
            let n = 1 + rng.below(4);
            Op::Write {
                changes: (0..n).map(|_| change(rng, keys)).collect(),
                sync: rng.below(8) == 0,
                by: By::some(rng),
            }
        }
    }
}

/// So many transactions are prepared at a time at most.
pub const SLOTS: u64 = 6;

/// A transaction to be prepared, if none of its xid is: xids and keys come again and again. It writes what nobody else does, who
/// would have to wait for it.
pub fn prepared(rng: &mut Rng) -> (Vec<u8>, Vec<Change>) {
    let slot = rng.below(SLOTS);
    let mut changes = Vec::new();
    for i in 0..rng.below(5) {
        let table = rng.below(TABLES as u64) as usize;
        let key = format!("p{slot}{i}").into_bytes();
        let len = [0, 5, 40, 900, 4000][rng.below(5) as usize];
        changes.push(match rng.below(6) {
            0 => Change::DeleteRange { table, start: key.clone(), end: [&key[..], b"~"].concat() },
            1 => Change::Delete { table, key },
            _ => Change::Put { table, key, value: vec![rng.next() as u8; len] },
        });
    }
    (format!("xid {slot}").into_bytes(), changes)
}

/// Prepares a transaction.
pub fn prepare(db: &Db, xid: &[u8], changes: &[Change]) -> terrane::Result<()> {
    match write(db, changes, By::Transaction(Isolation::Snapshot))? {
        Written::Transaction(txn) => txn.prepare(xid),
        Written::Batch(_) | Written::Ingest(_) => Ok(()),
    }
}

/// What a database should hold.
pub type Model = Vec<Option<BTreeMap<Vec<u8>, Vec<u8>>>>;

pub fn empty_model() -> Model {
    vec![Some(BTreeMap::new()); TABLES]
}

/// Applies a step to a model.
pub fn apply(model: &mut Model, op: &Op) {
    match op {
        Op::Write { changes, .. } => {
            for c in changes {
                match c {
                    Change::Put { table, key, value } => {
                        if let Some(t) = &mut model[*table] {
                            t.insert(key.clone(), value.clone());
                        }
                    }
                    Change::Delete { table, key } => {
                        if let Some(t) = &mut model[*table] {
                            t.remove(key);
                        }
                    }
                    Change::DeleteRange { table, start, end } => {
                        if let Some(t) = &mut model[*table] {
                            t.retain(|k, _| !(start <= k && k < end));
                        }
                    }
                }
            }
        }
        Op::Recreate(t) => model[*t] = Some(BTreeMap::new()),
        _ => {}
    }
}

/// Changes that are ready to be committed.
pub enum Written {
    Batch(WriteBatch),
    Transaction(Box<Transaction>),
    Ingest(Ingest),
}

impl Written {
    pub fn commit(self, db: &Db, durability: Durability) -> terrane::Result<u64> {
        match self {
            Written::Batch(batch) => db.write(batch, durability),
            Written::Transaction(txn) => txn.commit(durability),
            Written::Ingest(ingest) => ingest.commit(),
        }
    }
}

/// Makes changes, but for the commit.
pub fn write(db: &Db, changes: &[Change], by: By) -> terrane::Result<Written> {
    let tables: Vec<_> = (0..TABLES).map(|t| db.subtable(&name(t))).collect();
    let table = |t: usize| -> terrane::Result<&Subtable> { tables[t].as_ref().map_err(Clone::clone) };
    let options = match by {
        By::Batch => {
            let mut batch = WriteBatch::new();
            for c in changes {
                match c {
                    Change::Put { table: t, key, value } => batch.put(table(*t)?, key, value)?,
                    Change::Delete { table: t, key } => batch.delete(table(*t)?, key)?,
                    Change::DeleteRange { table: t, start, end } => {
                        batch.delete_range(table(*t)?, start, end)?;
                    }
                }
            }
            return Ok(Written::Batch(batch));
        }
        By::Ingest => {
            let mut ingest = db.ingest()?;
            for c in changes {
                let Change::Put { table: t, key, value } = c else {
                    panic!("an ingest only puts, not {c:?}")
                };
                ingest.put(table(*t)?, key, value)?;
            }
            return Ok(Written::Ingest(ingest));
        }
        By::Transaction(isolation) => TransactionOptions::new().isolation(isolation),
        By::Optimistic => TransactionOptions::new().isolation(Isolation::Serializable).optimistic(true),
    };
    let mut txn = Box::new(db.begin(options)?);
    for (n, c) in changes.iter().enumerate() {
        let before = txn.savepoint();
        if n % 2 == 0 {
            // What comes to nothing.
            let t = table(c.table())?;
            txn.put(t, b"k00", &[n as u8; 5000])?;
            txn.delete_range(t, b"k0", b"k1")?;
            txn.rollback_to(before)?;
        }
        match c {
            Change::Put { table: t, key, value } => txn.put(table(*t)?, key, value)?,
            Change::Delete { table: t, key } => {
                txn.get(table(*t)?, key)?;
                txn.delete(table(*t)?, key)?;
            }
            Change::DeleteRange { table: t, start, end } => txn.delete_range(table(*t)?, start, end)?,
        }
        txn.release(before)?;
    }
    Ok(Written::Transaction(txn))
}

/// Runs a step on a database.
pub fn run(db: &Db, media: &SimMedia, op: &Op) -> terrane::Result<()> {
    match op {
        Op::Write { changes, sync, by } => {
            let durability = if *sync { Durability::Sync } else { Durability::Buffered };
            write(db, changes, *by)?.commit(db, durability)?;
        }
        Op::Sync => db.sync()?,
        Op::Flush(t) => db.subtable(&name(*t))?.flush()?,
        Op::Compact(t) => db.subtable(&name(*t))?.compact()?,
        Op::Recreate(t) => {
            db.drop_subtable(&name(*t))?;
            db.create_subtable(&name(*t), options_of(*t))?;
        }
        Op::Background => {
            for _ in 0..3 {
                media.step();
            }
        }
    }
    Ok(())
}

/// What a database holds, by scanning it forwards.
pub fn contents(db: &Db) -> terrane::Result<Model> {
    let mut model = Vec::new();
    for t in 0..TABLES {
        model.push(match db.subtable(&name(t)) {
            Ok(s) => Some(s.range(ReadOptions::new())?.collect::<terrane::Result<_>>()?),
            Err(e) if e.kind() == terrane::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        });
    }
    Ok(model)
}

/// Says where two models differ, shortly.
pub fn difference(got: &Model, want: &Model) -> Option<String> {
    for (t, (g, w)) in got.iter().zip(want).enumerate() {
        let (Some(g), Some(w)) = (g, w) else {
            if g.is_some() != w.is_some() {
                return Some(format!("t{t}: there {}, wanted {}", g.is_some(), w.is_some()));
            }
            continue;
        };
        for (k, v) in w {
            match g.get(k) {
                None => return Some(format!("t{t}: {:?} is missing", String::from_utf8_lossy(k))),
                Some(x) if x != v => {
                    return Some(format!(
                        "t{t}: {:?} has {} bytes {:?}.., wanted {} bytes {:?}..",
                        String::from_utf8_lossy(k),
                        x.len(),
                        x.first(),
                        v.len(),
                        v.first()
                    ));
                }
                _ => {}
            }
        }
        if let Some(k) = g.keys().find(|k| !w.contains_key(*k)) {
            return Some(format!("t{t}: {:?} should not be there", String::from_utf8_lossy(k)));
        }
    }
    None
}

/// A fresh simulated machine with an empty database of [`TABLES`] subtables.
pub fn fresh(seed: u64, options: &Options) -> terrane::Result<(Arc<SimMedia>, Db)> {
    let media = SimMedia::new(seed);
    let db = open(&media, options)?;
    for t in 0..TABLES {
        db.create_subtable(&name(t), options_of(t))?;
    }
    Ok((media, db))
}

/// The directory of a database, for naming its files.
pub fn dir() -> &'static Path {
    Path::new(DIR)
}

/// Asks a lane for the keys of `numbers`, and tells what comes back, with the number.
pub fn ask(
    lane: &mut Lane,
    table: &Subtable,
    key: fn(u64) -> [u8; 8],
    numbers: impl IntoIterator<Item = u64>,
    mut see: impl FnMut(u64, Option<Vec<u8>>),
) {
    let mut take = |lane: &mut Lane| lane.answers(|n, value| see(n, value.unwrap().map(<[u8]>::to_vec)));
    for n in numbers {
        while lane.get(table, &key(n), n).unwrap() == Taken::Full {
            lane.wait().unwrap();
            take(lane);
        }
    }
    while lane.under_way() > 0 {
        lane.wait().unwrap();
        take(lane);
    }
}
