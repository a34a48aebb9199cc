//! `terrane scan`: the records of a range, in order.

use std::io::{BufWriter, Write};

use serde_json::json;
use terrane::ReadOptions;

use crate::args::{Output, ScanArgs};
use crate::interrupt::Interrupt;
use crate::text::{argument, escape};
use crate::{Failure, Outcome};

pub(crate) fn run(a: &ScanArgs) -> Result<Outcome, Failure> {
    let interrupt = Interrupt::install();
    let mut options = ReadOptions::new();
    if let Some(p) = &a.prefix {
        options = options.prefix(&argument(p, a.raw)?);
    }
    if let Some(k) = &a.from {
        options = options.lower(argument(k, a.raw)?);
    }
    if let Some(k) = &a.to {
        options = options.upper(argument(k, a.raw)?);
    }
    let format = if a.json { Output::Jsonl } else { a.format };
    let db = a.db.open_existing()?;
    let mut cursor = db.subtable(&a.table)?.cursor(options)?;
    let mut out = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    if a.reverse {
        cursor.seek_to_last()?;
    } else {
        cursor.seek_to_first()?;
    }
    let mut left = a.limit.unwrap_or(u64::MAX);
    while cursor.valid() && left > 0 && !interrupt.requested() {
        print(&mut out, format, a.raw, cursor.key(), &cursor)?;
        left -= 1;
        if a.reverse {
            cursor.prev()?;
        } else {
            cursor.next()?;
        }
    }
    out.flush()?;
    drop(cursor);
    db.close()?;
    Ok(if interrupt.requested() { Outcome::Interrupted } else { Outcome::Done })
}

fn print(
    out: &mut impl Write,
    format: Output,
    raw: bool,
    key: &[u8],
    cursor: &terrane::Cursor,
) -> Result<(), Failure> {
    match format {
        Output::Keys => text(out, raw, key)?,
        Output::Tsv => {
            text(out, raw, key)?;
            out.write_all(b"\t")?;
            text(out, raw, &cursor.value()?)?;
        }
        Output::Jsonl => {
            write!(out, "{}", json!({ "key": escape(key), "value": escape(&cursor.value()?) }))?;
        }
        Output::Stanza => {
            out.write_all(&cursor.value()?)?;
            out.write_all(b"\n")?;
        }
    }
    out.write_all(b"\n")?;
    Ok(())
}

fn text(out: &mut impl Write, raw: bool, bytes: &[u8]) -> std::io::Result<()> {
    if raw { out.write_all(bytes) } else { out.write_all(escape(bytes).as_bytes()) }
}
