//! Spoiling an output. Where a fault is meant to be hard to see, checksums, counts and metadata are made to agree.

use terrane_base::{Result, Seq};
use terrane_format::Kind;
use terrane_format::block::BlockBuilder;
use terrane_format::checksum::crc;

use super::Fault;
use crate::compare::Records;
use crate::output::Output;
use crate::task::Task;

struct Record {
    key: Vec<u8>,
    seq: Seq,
    kind: Kind,
    value: Vec<u8>,
}

/// Spoils `output`; false if it offers no place for this fault.
pub(super) fn tamper(fault: Fault, task: &Task, output: &mut Output) -> Result<bool> {
    match fault {
        Fault::WrongBytes => {
            let Some(byte) = middle(&mut output.blocks).and_then(|b| middle(&mut b.bytes)) else {
                return Ok(false);
            };
            *byte ^= 0x10;
        }
        Fault::Truncated => {
            output.block_crcs.pop();
            return Ok(output.blocks.pop().is_some());
        }
        Fault::CutShort => {
            let (Some(block), Some(sum)) = (output.blocks.last_mut(), output.block_crcs.last_mut()) else {
                return Ok(false);
            };
            block.bytes.truncate(block.bytes.len() - block.bytes.len().min(8));
            *sum = crc(&block.bytes);
        }
        Fault::WrongBounds => match middle(&mut output.blocks) {
            Some(block) => block.last_key.push(0),
            None => return Ok(false),
        },
        Fault::WrongHash => match middle(&mut output.blocks).and_then(|b| middle(&mut b.hashes)) {
            Some(hash) => *hash ^= 1,
            None => return Ok(false),
        },
        Fault::LostTombstones => {
            return Ok(!std::mem::take(&mut output.tombstones).is_empty());
        }
        Fault::FreedValue => output.dropped_values.push(u64::MAX),
        _ => return tamper_records(fault, task, output),
    }
    Ok(true)
}

fn tamper_records(fault: Fault, task: &Task, output: &mut Output) -> Result<bool> {
    let mut records = decode(output)?;
    let at = records.len() / 2;
    if records.is_empty() {
        return Ok(false);
    }
    let mut second = Vec::new();
    match fault {
        Fault::WrongValue => {
            let Some(record) = records[at..].iter_mut().find(|r| r.kind == Kind::Put) else {
                return Ok(false);
            };
            match record.value.last_mut() {
                Some(byte) => *byte ^= 1,
                None => record.value.push(1),
            }
        }
        Fault::WrongKey => {
            // The largest key of the output made larger keeps the order.
            let n = records.len();
            let alone = n < 2 || records[n - 2].key != records[n - 1].key;
            let mut key = records[n - 1].key.clone();
            key.push(0);
            if !alone || !task.contains(&key) {
                return Ok(false);
            }
            records[n - 1].key = key;
        }
        Fault::Duplicated => {
            let last = &records[records.len() - 1];
            second.push(Record {
                key: last.key.clone(),
                seq: last.seq,
                kind: last.kind,
                value: last.value.clone(),
            });
            output.totals.records_in += 1;
            output.totals.records_out += 1;
        }
        Fault::Unsorted => {
            if at == 0 {
                return Ok(false);
            }
            let first_half = records.drain(..at).collect();
            second = first_half;
        }
        Fault::Missing => {
            records.remove(at);
        }
        Fault::Concealed => {
            if records[at].kind == Kind::ValueRef {
                return Ok(false);
            }
            records.remove(at);
            output.totals.records_out -= 1;
            output.totals.superseded += 1;
        }
        Fault::OutOfRange => {
            let Some(hi) = task.hi.clone() else { return Ok(false) };
            second.push(Record { key: hi, seq: 0, kind: Kind::Put, value: Vec::new() });
            output.totals.records_in += 1;
            output.totals.records_out += 1;
        }
        _ => return Ok(false),
    }
    rebuild(task, output, &[records, second]);
    Ok(true)
}

fn middle<T>(items: &mut [T]) -> Option<&mut T> {
    let at = items.len() / 2;
    items.get_mut(at)
}

fn decode(output: &Output) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    let mut at = Records::open(output)?;
    while let Some((key, seq, kind, value)) = at.get() {
        let kind = Kind::from_u8(kind)?;
        records.push(Record { key: key.to_vec(), seq, kind, value: value.to_vec() });
        at.advance()?;
    }
    Ok(records)
}

/// Encodes the streams one after another. Each is in order, so that the block builder does not object.
fn rebuild(task: &Task, output: &mut Output, streams: &[Vec<Record>]) {
    output.blocks.clear();
    for stream in streams {
        let mut builder = BlockBuilder::new(task.form);
        for r in stream {
            if !builder.fits(r.key.len(), r.value.len(), r.seq) {
                output.blocks.push(builder.finish());
            }
            builder.add(&r.key, r.seq, r.kind, &r.value);
        }
        if !builder.is_empty() {
            output.blocks.push(builder.finish());
        }
    }
    output.block_crcs = output.blocks.iter().map(|b| crc(&b.bytes)).collect();
}
