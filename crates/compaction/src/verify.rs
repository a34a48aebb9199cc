//! Whether an output may be installed.
//!
//! Verification reads the output once and touches the input only at the edges of the range. It finds whatever breaks an
//! invariant: order, range, counts, checksums, metadata, retention rules, tombstones, the fate of large values. What it
//! cannot find is an output that is consistent in itself and yet not the merge of the input, such as a record that was
//! lost and counted as superseded, or another value: that takes doing the merge again, which is check mode
//! ([`crate::compare`]).

use std::cmp::Ordering;
use std::fmt;

use terrane_base::{Error, Result, Seq};
use terrane_format::Kind;
use terrane_format::block::{Block, BlockCursor, FinishedBlock, order};
use terrane_format::checksum::{crc, key_hash};
use terrane_format::tombstone::RangeTombstones;
use terrane_format::value_ref::ValueRef;

use crate::output::Output;
use crate::retention::{Retention, Verdict, kept_tombstones};
use crate::task::Task;
use crate::way::WayCursor;

/// Why an output is refused. Blocks are numbered from 0.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Violation {
    /// It answers another task.
    WrongTask(u64),
    /// It was made from other input.
    StaleInput,
    /// There is not one checksum for each block.
    ChecksumCount,
    /// The bytes of this block do not match their checksum.
    Checksum(usize),
    /// This block cannot be read.
    Unreadable(usize, Error),
    /// Records of this block are out of order, or occur twice.
    Order(usize),
    /// This block holds keys outside the task's range.
    Range(usize),
    /// This block holds a record that no snapshot needs, or a sequence that should have become zero.
    Needless(usize),
    /// What is said about this block is not true; names the field.
    Metadata(usize, &'static str),
    /// The records do not add up; names the count.
    Count(&'static str),
    /// The range tombstones kept are not those that are needed.
    Tombstones,
    /// The values reported as dropped are not those that were.
    Values,
    /// The task's own input cannot be read.
    Input(Error),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::WrongTask(id) => write!(f, "the output answers task {id}"),
            Violation::StaleInput => f.write_str("the output was made from other input"),
            Violation::ChecksumCount => f.write_str("blocks and checksums differ in number"),
            Violation::Checksum(b) => write!(f, "block {b} does not match its checksum"),
            Violation::Unreadable(b, e) => write!(f, "block {b} cannot be read: {e}"),
            Violation::Order(b) => write!(f, "block {b} holds records out of order"),
            Violation::Range(b) => write!(f, "block {b} reaches beyond the task's range"),
            Violation::Needless(b) => write!(f, "block {b} holds a record that no snapshot needs"),
            Violation::Metadata(b, what) => write!(f, "block {b} has a wrong {what}"),
            Violation::Count(what) => write!(f, "the count of {what} is wrong"),
            Violation::Tombstones => f.write_str("the range tombstones kept are wrong"),
            Violation::Values => f.write_str("the values reported as dropped are wrong"),
            Violation::Input(e) => write!(f, "the input cannot be read: {e}"),
        }
    }
}

/// Accepts `output` as a result of `task`, or says what is wrong with it.
///
/// # Errors
/// The first violation found.
pub fn verify(task: &Task, output: &Output) -> Result<(), Violation> {
    check(task, output, |block, sum| crc(&block.bytes) == sum)
}

/// As [`verify`], for an output whose blocks never left this machine's memory: their checksums, made from the bytes as
/// they were built, are for whoever reads them next.
///
/// # Errors
/// The first violation found.
pub fn verify_records(task: &Task, output: &Output) -> Result<(), Violation> {
    check(task, output, |_, _| true)
}

fn check(
    task: &Task,
    output: &Output,
    sums_up: impl Fn(&FinishedBlock, u32) -> bool,
) -> Result<(), Violation> {
    if output.task != task.id {
        return Err(Violation::WrongTask(output.task));
    }
    if output.input_digest != task.digest() {
        return Err(Violation::StaleInput);
    }
    if output.blocks.len() != output.block_crcs.len() {
        return Err(Violation::ChecksumCount);
    }
    let kept = kept_tombstones(task);
    if output.tombstones != kept {
        return Err(Violation::Tombstones);
    }
    let mut walk = Walk::new(task, &kept);
    for (i, (block, &sum)) in output.blocks.iter().zip(&output.block_crcs).enumerate() {
        if !sums_up(block, sum) {
            return Err(Violation::Checksum(i));
        }
        walk.block(i, block)?;
    }
    if output.totals.records_out != walk.records {
        return Err(Violation::Count("records out"));
    }
    if output.totals.records_in != task.records().map_err(Violation::Input)? {
        return Err(Violation::Count("records in"));
    }
    if !output.totals.add_up() {
        return Err(Violation::Count("records dropped"));
    }
    // Losses that only some tasks can have. (Where a task can have them, how many is known from doing it again alone.)
    if output.totals.deletes_dropped > 0 && !task.bottom {
        return Err(Violation::Count("deletes dropped"));
    }
    if output.totals.range_deleted > 0 && task.tombstones.is_empty() {
        return Err(Violation::Count("records deleted by ranges"));
    }
    check_values(task, output, walk.values)
}

/// Values are rare: the input is read only where one was seen.
fn check_values(task: &Task, output: &Output, mut kept: Vec<u64>) -> Result<(), Violation> {
    if kept.is_empty() && output.dropped_values.is_empty() {
        return Ok(());
    }
    let mut before = input_values(task).map_err(Violation::Input)?;
    let mut after = output.dropped_values.clone();
    after.append(&mut kept);
    before.sort_unstable();
    after.sort_unstable();
    // As multisets: a value that is both kept and dropped shows as one too many.
    if before == after && output.dropped_values.is_sorted() { Ok(()) } else { Err(Violation::Values) }
}

fn input_values(task: &Task) -> Result<Vec<u64>> {
    let mut values = Vec::new();
    for way in &task.ways {
        let Some(mut at) = WayCursor::open(way, &task.lo, task.hi.as_deref())? else { continue };
        loop {
            if at.kind() == Kind::ValueRef {
                values.push(ValueRef::decode(at.value())?.id);
            }
            if !at.advance()? {
                break;
            }
        }
    }
    Ok(values)
}

/// What the walk over the output's records carries from block to block.
struct Walk<'t> {
    task: &'t Task,
    retention: Retention<'t>,
    /// The last one of the block before.
    key: Vec<u8>,
    newer: Option<Seq>,
    records: u64,
    values: Vec<u64>,
}

impl<'t> Walk<'t> {
    /// The rules are applied once more, with the tombstones that are left: what was kept must be kept again. (With those
    /// that vanished at the bottom, records whose sequence became zero would seem to be deleted.)
    fn new(task: &'t Task, kept: &'t RangeTombstones) -> Self {
        Walk {
            task,
            retention: Retention::new(&task.snapshots, kept, task.bottom),
            key: Vec::new(),
            newer: None,
            records: 0,
            values: Vec::new(),
        }
    }

    fn block(&mut self, i: usize, said: &FinishedBlock) -> Result<(), Violation> {
        let unreadable = |e| Violation::Unreadable(i, e);
        let block = Block::parse(&said.bytes).map_err(unreadable)?;
        let mut seen = Seen::default();
        let mut hashes = said.hashes.iter();
        let mut wrong = Ok(());
        // The block itself checks what searching relies on and a walk from record to record does not see.
        let whole = block.verify_each(|cursor, is_same_key| {
            wrong = self.record(i, said, block, (cursor, is_same_key), &mut seen, &mut hashes);
            wrong.is_ok()
        });
        whole.map_err(unreadable)?;
        wrong?;
        if seen.rows == 0 {
            return Err(Violation::Metadata(i, "number of rows"));
        }
        self.records += u64::from(seen.rows);
        // The keys ascend, so the range holds for all if it holds for the first and the last.
        if !self.task.contains(&said.first_key) || !self.task.contains(&self.key) {
            return Err(Violation::Range(i));
        }
        if hashes.next().is_some() {
            return Err(Violation::Metadata(i, "filter hash"));
        }
        if said.last_key != self.key {
            return Err(Violation::Metadata(i, "last key"));
        }
        seen.compare(said).map_err(|what| Violation::Metadata(i, what))
    }

    fn record<'h>(
        &mut self,
        i: usize,
        said: &FinishedBlock,
        block: Block<'_>,
        (cursor, is_same_key): (&BlockCursor, bool),
        seen: &mut Seen,
        hashes: &mut impl Iterator<Item = &'h u64>,
    ) -> Result<(), Violation> {
        let (key, seq, kind) = (cursor.key(), cursor.seq(), cursor.kind());
        let is_first = seen.rows == 0;
        if is_first && (*key != *said.first_key || seq != said.first_seq) {
            return Err(Violation::Metadata(i, "first record"));
        }
        let new_key = match self.newer {
            // The block itself has looked at the order of its own.
            _ if !is_first => !is_same_key,
            None => true,
            Some(newer) => match order(&self.key, key) {
                Ordering::Less => true,
                Ordering::Equal if seq < newer => false,
                _ => return Err(Violation::Order(i)),
            },
        };
        if new_key {
            self.retention.begin_key(key);
        }
        // A key that goes on from the block before is in this block's filter too.
        if (new_key || is_first) && hashes.next() != Some(&key_hash(key)) {
            return Err(Violation::Metadata(i, "filter hash"));
        }
        if cursor.position() + 1 == block.rows() {
            self.key.clear();
            self.key.extend_from_slice(key);
        }
        self.newer = Some(seq);
        if self.retention.judge(seq, kind) != Verdict::Keep(seq) {
            return Err(Violation::Needless(i));
        }
        seen.add(seq, kind);
        if kind == Kind::ValueRef {
            let value = ValueRef::decode(cursor.value(block)).map_err(|e| Violation::Unreadable(i, e))?;
            self.values.push(value.id);
        }
        Ok(())
    }
}

/// What a block holds.
struct Seen {
    rows: u32,
    deletes: u32,
    min_seq: Seq,
    max_seq: Seq,
    value_refs: bool,
}

impl Default for Seen {
    fn default() -> Self {
        Seen { rows: 0, deletes: 0, min_seq: Seq::MAX, max_seq: 0, value_refs: false }
    }
}

impl Seen {
    fn add(&mut self, seq: Seq, kind: Kind) {
        self.rows += 1;
        self.deletes += u32::from(kind.is_delete());
        self.min_seq = self.min_seq.min(seq);
        self.max_seq = self.max_seq.max(seq);
        self.value_refs |= kind == Kind::ValueRef;
    }

    fn compare(&self, said: &FinishedBlock) -> Result<(), &'static str> {
        if self.rows != said.rows {
            return Err("number of rows");
        }
        if self.deletes != said.deletes {
            return Err("number of deletes");
        }
        if (self.min_seq, self.max_seq) != (said.min_seq, said.max_seq) {
            return Err("sequence range");
        }
        if self.value_refs != said.value_refs {
            return Err("mark for large values");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
