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
            // Before anything of the record is written: who reads on would take a key alone for one with an empty value.
            let value = cursor.value()?;
            text(out, raw, key)?;
            out.write_all(b"\t")?;
            text(out, raw, &value)?;
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

#[cfg(test)]
mod tests {
    use terrane::{Db, Options, SubtableOptions};

    use super::*;

    /// Who reads what a scan writes, up to where it fails, gets whole records.
    #[test]
    fn of_a_record_that_cannot_be_read_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let options = || Options::new().cache_bytes(1 << 20);
        let db = Db::open(dir.path(), options()).unwrap();
        let t = db.create_subtable("t", SubtableOptions::new()).unwrap();
        let mut x = 1_u32;
        let value: Vec<u8> = std::iter::repeat_with(|| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 24) as u8
        })
        .take(2 << 20)
        .collect();
        t.put(b"key", &value).unwrap();
        t.flush().unwrap();
        drop(t);
        db.close().unwrap();

        let mut damaged = 0;
        for file in std::fs::read_dir(dir.path()).unwrap() {
            let path = file.unwrap().path();
            let mut bytes = std::fs::read(&path).unwrap();
            if let Some(at) = bytes.windows(64).position(|w| w == &value[1 << 20..(1 << 20) + 64]) {
                bytes[at] ^= 1;
                std::fs::write(&path, bytes).unwrap();
                damaged += 1;
            }
        }
        assert!(damaged > 0);

        let db = Db::open(dir.path(), options()).unwrap();
        let mut cursor = db.subtable("t").unwrap().cursor(ReadOptions::new()).unwrap();
        cursor.seek_to_first().unwrap();
        let mut out = Vec::new();
        for format in [Output::Tsv, Output::Jsonl, Output::Stanza] {
            let e = print(&mut out, format, false, cursor.key(), &cursor).unwrap_err();
            assert_eq!(
                e.downcast_ref::<terrane::Error>().map(|e| e.kind()),
                Some(terrane::ErrorKind::Corruption),
                "{e}"
            );
            assert!(out.is_empty(), "{format:?}: {} bytes", out.len());
        }
    }
}
