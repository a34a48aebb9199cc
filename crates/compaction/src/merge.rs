//! The merge itself: the ways in order, through the retention rules, into blocks.

use std::cmp::Ordering;

use terrane_base::{Error, Seq};
use terrane_format::Kind;
use terrane_format::block::{BlockBuilder, FinishedBlock, order};
use terrane_format::checksum::crc;
use terrane_format::value_ref::ValueRef;

use crate::device::{CancelToken, DeviceError};
use crate::output::Output;
use crate::retention::{Retention, Verdict, kept_tombstones};
use crate::task::Task;
use crate::way::Ways;

/// Records between two looks at the cancel token.
const STRIDE: u64 = 1024;

/// Merges a task on the calling thread: the reference for every device.
///
/// # Errors
/// [`DeviceError::Failed`] for damaged input, [`DeviceError::TimedOut`] when `cancel` says stop.
pub fn merge(task: &Task, cancel: &CancelToken) -> Result<Output, DeviceError> {
    let mut ways = Ways::open(task)?;
    let mut retention = Retention::of(task);
    let mut out = Output {
        task: task.id,
        input_digest: task.digest(),
        tombstones: kept_tombstones(task),
        ..Output::default()
    };
    let mut builder = BlockBuilder::new(task.form);
    let mut key: Vec<u8> = Vec::new();
    let mut newer: Option<Seq> = None;
    while let Some(record) = ways.head() {
        if out.totals.records_in.is_multiple_of(STRIDE) && cancel.should_stop() {
            return Err(DeviceError::TimedOut);
        }
        out.totals.records_in += 1;
        let (seq, kind) = (record.seq(), record.kind());
        let new_key = match newer {
            None => true,
            Some(newer) => match order(&key, record.key()) {
                Ordering::Less => true,
                // Two ways may hold the very same record: the second one counts as superseded.
                Ordering::Equal if seq <= newer => false,
                _ => return Err(out_of_order(task).into()),
            },
        };
        if new_key {
            key.clear();
            key.extend_from_slice(record.key());
            retention.begin_key(&key);
        }
        newer = Some(seq);
        match retention.judge(seq, kind) {
            Verdict::Keep(seq) => {
                let value = record.value();
                if !builder.fits(key.len(), value.len(), seq) {
                    push(&mut out, builder.finish());
                }
                builder.add(&key, seq, kind, value);
                out.totals.records_out += 1;
            }
            dropped => {
                match dropped {
                    Verdict::RangeDeleted => out.totals.range_deleted += 1,
                    Verdict::DeleteDropped => out.totals.deletes_dropped += 1,
                    _ => out.totals.superseded += 1,
                }
                if kind == Kind::ValueRef {
                    out.dropped_values.push(ValueRef::decode(record.value())?.id);
                }
            }
        }
        ways.advance()?;
    }
    if !builder.is_empty() {
        push(&mut out, builder.finish());
    }
    out.dropped_values.sort_unstable();
    Ok(out)
}

fn push(out: &mut Output, block: FinishedBlock) {
    out.block_crcs.push(crc(&block.bytes));
    out.blocks.push(block);
}

#[cold]
fn out_of_order(task: &Task) -> Error {
    Error::corruption(format!("the records of compaction task {} are out of order", task.id))
}

#[cfg(test)]
mod tests;
