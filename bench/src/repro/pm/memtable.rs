//! `pm-memtable`: memtables whose records are in persistent memory, with the index in ordinary memory (SPM-D) or beside them (SPM-P),
//! against a skiplist in ordinary memory that loses everything.

use std::hint::black_box;
use std::sync::Arc;

use terrane_base::MemoryBudget;
use terrane_chainlog::Space;
use terrane_format::Kind;
use terrane_format::chain::record_len;
use terrane_memindex::{IndexKind, MemIndex, Record};

use super::{Hand, KEY_BYTES, Memory, Nodes, ROUNDS, Store, batches, line, part, scaled, together};
use crate::Failure;
use crate::args::ReproArgs;
use crate::choice::{Random, mix};
use crate::data::Shuffle;
use crate::report::median;
use crate::repro::{Line, threads as in_words};

const FIGURE: &str = "pm-memtable";
/// A tenth of the reference's.
const RECORDS: u64 = 3_000_000;
const VALUE_BYTES: usize = 32;
/// Records of a commit, as in the reference.
const BATCH: usize = 50;
/// What the reference says of the index in ordinary memory, against its skiplist.
const CLAIMS: [(Work, f64); 4] = [
    (Work::InsertInOrder, 5.9),
    (Work::InsertAnywhere, 2.9),
    (Work::Lookup, 2.7),
    // It was slower there.
    (Work::Scan, 1.0),
];
const KINDS: [(&str, Option<Nodes>); 3] =
    [("skiplist", None), ("SPM-D", Some(Nodes::Dram)), ("SPM-P", Some(Nodes::Pm))];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    InsertInOrder,
    InsertAnywhere,
    Lookup,
    Scan,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::InsertInOrder => "insert in order",
            Work::InsertAnywhere => "insert anywhere",
            Work::Lookup => "lookup",
            Work::Scan => "scan",
        }
    }
}

/// A memtable that is measured.
enum Table {
    Skiplist(Box<MemIndex>),
    Spm(Box<Store>),
}

impl Table {
    fn new(nodes: Option<Nodes>, space: &Arc<Space>) -> Result<Table, Failure> {
        let Some(nodes) = nodes else {
            let budget = MemoryBudget::new(0);
            return Ok(Table::Skiplist(Box::new(MemIndex::new(IndexKind::Skiplist, budget))));
        };
        Ok(Table::Spm(Box::new(Store::create(space, nodes, VALUE_BYTES, true)?)))
    }

    fn index(&self) -> &MemIndex {
        match self {
            Table::Skiplist(index) => index,
            Table::Spm(store) => store.memtable.index(),
        }
    }

    /// Has what was found held against its checksum, as whoever reads a record of persistent memory has. (The skiplist's are in ordinary
    /// memory, and have none.)
    fn verify(&self, found: &Record<'_>) -> Result<(), Failure> {
        match self {
            Table::Skiplist(_) => Ok(()),
            Table::Spm(store) => Ok(store.memtable.verify(found)?),
        }
    }

    /// Inserts the records of these places in the order of `key`.
    fn insert(&self, places: std::ops::Range<u64>, key: &(dyn Fn(u64) -> u64 + Sync)) -> Result<(), Failure> {
        let (mut hand, mut numbers) = (Hand::new(), Vec::with_capacity(BATCH));
        let value = [b'v'; VALUE_BYTES];
        for places in batches(places, BATCH as u64) {
            let first = places.start;
            numbers.clear();
            numbers.extend(places.map(key));
            match self {
                Table::Spm(store) => drop(store.commit(&mut hand, &numbers)?),
                Table::Skiplist(index) => {
                    for (number, seq) in numbers.iter().zip(first + 1..) {
                        index.insert(&number.to_be_bytes(), seq, Kind::Put as u8, &value)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Measures; `see` gets each line as it comes.
pub(in crate::repro) fn measure(
    a: &ReproArgs,
    see: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let records = scaled(a, RECORDS);
    let bytes = records * record_len(KEY_BYTES, VALUE_BYTES) as u64;
    let memory = Memory::create(a, a.pm_mode(), None, bytes)?;
    let space = memory.open()?;
    for threads in [1, 2] {
        let mut taken = [const { [const { Vec::new() }; CLAIMS.len()] }; KINDS.len()];
        for _ in 0..ROUNDS {
            for in_order in [true, false] {
                for ((_, nodes), taken) in KINDS.iter().zip(&mut taken) {
                    let table = Table::new(*nodes, &space)?;
                    for (at, seconds) in round(&table, records, threads, in_order)? {
                        taken[at].push(seconds);
                    }
                    if let Table::Spm(store) = table {
                        if *nodes == Some(Nodes::Pm) && store.memtable.index().bytes() > 0 {
                            return Err(
                                "an index has outgrown its zones: what it took is not what this says".into(),
                            );
                        }
                        store.release()?;
                    }
                }
            }
        }
        for (at, (work, claimed)) in CLAIMS.into_iter().enumerate() {
            let each = |kind: usize| median(taken[kind][at].clone());
            for (kind, (name, nodes)) in KINDS.iter().enumerate() {
                let million = records as f64 / each(kind) / 1e6;
                let row = format!("{}, {}: {name}", work.name(), in_words(threads));
                let note = match nodes {
                    None => "ordinary memory; crossbeam's",
                    Some(_) => a.pm_and_instructions(),
                };
                see(line(FIGURE, row, None, million, "M records/s", note.to_owned()))?;
            }
            for (kind, (name, nodes)) in KINDS.iter().enumerate().skip(1) {
                let ratios = taken[kind][at].iter().zip(&taken[0][at]).map(|(ours, theirs)| theirs / ours);
                let row = format!("{}, {}: {name}", work.name(), in_words(threads));
                // Of the index beside the records it is only said that it differs little.
                let claimed = (*nodes == Some(Nodes::Dram)).then_some(claimed);
                see(line(
                    FIGURE,
                    row,
                    claimed,
                    median(ratios.collect()),
                    "x skiplist",
                    a.pm_in_words().to_owned(),
                ))?;
            }
        }
    }
    Ok(())
}

/// Fills a table and, if it was filled in no order, reads it. What each of [`CLAIMS`] took.
fn round(table: &Table, records: u64, threads: u64, in_order: bool) -> Result<Vec<(usize, f64)>, Failure> {
    let shuffle = Shuffle::new(records, 7);
    let key = move |n: u64| if in_order { n } else { shuffle.at(n) };
    let filled = together(threads, |t| table.insert(part(records, t, threads), &key))?;
    if in_order {
        return Ok(vec![(0, filled)]);
    }
    let newest = terrane_base::MAX_SEQ;
    let looked = together(threads, |t| {
        let mut random = Random::new(mix(t));
        for _ in part(records, t, threads) {
            let key = random.below(records).to_be_bytes();
            let found = table.index().get(&key, newest).ok_or("a record is missing")?;
            table.verify(&found)?;
            black_box(found.value.first());
        }
        Ok(())
    })?;
    let scanned = together(threads, |t| {
        let places = part(records, t, threads);
        let mut cursor = table.index().cursor();
        cursor.seek(&places.start.to_be_bytes());
        for _ in places {
            let found = cursor.version(newest).ok_or("a record is missing")?;
            table.verify(&found)?;
            black_box((found.key.first(), found.value.first()));
            cursor.next();
        }
        Ok(())
    })?;
    Ok(vec![(1, filled), (2, looked), (3, scanned)])
}
