//! `terrane load`: records from a file or a pipe into a subtable.
//!
//! Every batch of records also stores how far the load has come (lines, bytes and checksum of the input up to there), in
//! a subtable of its own and in the same atomic commit. A load that was interrupted, by ctrl-C, a crash or a lost pipe,
//! goes on when the same command is run again: a file is read on from its offset, a pipe is read past what is loaded
//! already, and the checksum tells if it is another input. Nothing is doubled, nothing is missed.
//!
//! Sorted records (`--sorted`) go straight into extents, and are there all at once at the end, or not at all.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::time::Instant;

use serde_json::json;
use terrane::{Db, Durability, Subtable, SubtableOptions, WriteBatch};

use crate::args::LoadArgs;
use crate::interrupt::Interrupt;
use crate::progress;
use crate::records::{Item, Records, crc32};
use crate::text::bytes;
use crate::{Failure, Outcome, unless_unread};

/// Subtable that remembers unfinished loads.
const PROGRESS_TABLE: &str = ".load";
/// Bytes of operations at which a batch is committed, ...
const BATCH_BYTES: u64 = 256 << 10;
/// ... and of values: large ones are no part of the operations, but are held until then.
const VALUE_BYTES: u64 = 4 << 20;
/// What a record takes beside key and value, in persistent memory or to say where its value is: no more than this and its key again.
const BESIDE: u64 = 64;

/// How far a load has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    lines: u64,
    bytes: u64,
    crc: u32,
    records: u64,
}

impl Mark {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(28);
        out.extend_from_slice(&self.lines.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&self.records.to_le_bytes());
        out.extend_from_slice(&self.crc.to_le_bytes());
        out
    }

    fn decode(b: &[u8]) -> Option<Mark> {
        let word = |at: usize| Some(u64::from_le_bytes(*b.get(at..)?.first_chunk()?));
        Some(Mark {
            lines: word(0)?,
            bytes: word(8)?,
            records: word(16)?,
            crc: u32::from_le_bytes(*b.get(24..)?.first_chunk()?),
        })
    }
}

pub(crate) fn run(a: &LoadArgs) -> Result<Outcome, Failure> {
    let interrupt = Interrupt::install();
    let from_pipe = a.file.as_os_str() == "-";
    let (mut input, len): (Box<dyn BufRead>, Option<u64>) = if from_pipe {
        (Box::new(BufReader::with_capacity(1 << 20, std::io::stdin())), None)
    } else {
        let f = File::open(&a.file).map_err(|e| format!("cannot read {}: {e}", a.file.display()))?;
        let len = f.metadata()?.len();
        (Box::new(BufReader::with_capacity(1 << 20, f)), Some(len))
    };
    let db = a.medium.open(&a.db)?;
    let table = db.subtable_or_create(&a.table, SubtableOptions::new())?;
    if a.sorted {
        return sorted(a, &db, &table, input, len, &interrupt);
    }
    let marks = db.subtable_or_create(PROGRESS_TABLE, SubtableOptions::new())?;
    let name = if from_pipe { "-".to_owned() } else { a.file.canonicalize()?.to_string_lossy().into_owned() };
    let mark_key = format!("{}\0{name}", a.table).into_bytes();
    let mut start = Mark::default();
    if a.restart {
        marks.delete(&mark_key)?;
    } else if let Some(m) = marks.get(&mark_key)?.as_deref().and_then(Mark::decode) {
        start = m;
        eprintln!("going on after line {} ({} records are loaded)", m.lines, m.records);
    }
    if start.bytes > 0 {
        let crc = if from_pipe {
            skip(&mut input, start.bytes, &interrupt)?
        } else {
            // The checksum is over everything, so that the part loaded must be read again; that is cheap.
            let mut f = BufReader::with_capacity(1 << 20, File::open(&a.file)?);
            let crc = skip(&mut f, start.bytes, &interrupt)?;
            f.seek(SeekFrom::Start(start.bytes))?;
            input = Box::new(f);
            crc
        };
        if interrupt.requested() {
            return Ok(Outcome::Interrupted);
        }
        if crc != Some(start.crc) {
            return Err(format!(
                "this is not the input whose load was interrupted after {} bytes; hint: --restart begins anew",
                start.bytes
            )
            .into());
        }
    }

    let began = Instant::now();
    let bar = progress::bar("loading", len, len.is_some());
    let mut records = Records::new(input, a.format, a.raw, &a.key_field);
    (records.lines, records.bytes, records.crc) = (start.lines, start.bytes, start.crc);
    let mut batch = WriteBatch::new();
    // One record more, with a value of half of what fits at most, and the mark are to fit as well.
    let full = BATCH_BYTES.min(db.max_batch_bytes() / 8);
    let (mut beside, mut values) = (0, 0);
    let mut mark = start;
    let mut bad = 0u64;
    let mut value_bytes = 0u64;
    let mut finished = false;
    while !interrupt.requested() {
        let Some(Item { line, parsed }) = records.next()? else {
            finished = true;
            break;
        };
        match parsed.and_then(|(k, v)| {
            value_bytes += (k.len() + v.len()) as u64;
            beside += k.len() as u64 + BESIDE;
            values += v.len() as u64;
            batch.put(&table, &k, &v).map_err(|e| e.to_string())
        }) {
            Ok(()) => mark.records += 1,
            Err(what) => {
                bad += 1;
                bar.suspend(|| eprintln!("line {line}: {what}"));
                if bad >= a.max_bad {
                    break;
                }
            }
        }
        (mark.lines, mark.bytes, mark.crc) = (records.lines, records.bytes, records.crc);
        if batch.bytes() as u64 + beside >= full || values >= VALUE_BYTES {
            batch.put(&marks, &mark_key, &mark.encode())?;
            db.write(std::mem::take(&mut batch), Durability::Buffered)?;
            (beside, values) = (0, 0);
            bar.set_position(if len.is_some() { mark.bytes } else { mark.records });
        }
    }
    if finished {
        batch.delete(&marks, &mark_key)?;
    } else {
        batch.put(&marks, &mark_key, &mark.encode())?;
    }
    db.write(batch, Durability::Sync)?;
    db.close()?;
    bar.finish_and_clear();

    let seconds = began.elapsed().as_secs_f64();
    let loaded = mark.records - start.records;
    let done =
        Loaded { loaded, total: mark.records, bad, lines: mark.lines, bytes: value_bytes, seconds, finished };
    unless_unread(done.print(a))?;
    if finished {
        return Ok(Outcome::Done);
    }
    if bad >= a.max_bad {
        return Err(format!(
            "{bad} bad records, giving up at line {}; hint: check --format, or raise --max-bad and run again",
            records.lines
        )
        .into());
    }
    eprintln!("interrupted after line {}; run the same command again to go on", mark.lines);
    Ok(Outcome::Interrupted)
}

/// What a load came to.
struct Loaded {
    loaded: u64,
    total: u64,
    bad: u64,
    lines: u64,
    bytes: u64,
    seconds: f64,
    finished: bool,
}

impl Loaded {
    fn print(&self, a: &LoadArgs) -> Result<(), Failure> {
        let Loaded { loaded, total, bad, lines, seconds, finished, .. } = *self;
        if a.json {
            let line = json!({
                "loaded": loaded, "total": total, "bad": bad, "lines": lines, "bytes": self.bytes,
                "seconds": seconds, "finished": finished,
            });
            say!("{line}");
        } else {
            say!(
                "loaded {loaded} records ({}) in {seconds:.1} s, {:.0} records/s{}",
                bytes(self.bytes),
                loaded as f64 / seconds.max(1e-9),
                if bad > 0 { format!("; {bad} bad ones left out") } else { String::new() }
            );
        }
        Ok(())
    }
}

/// Takes sorted records in: all of them, or (interrupted, or after a bad record) none.
fn sorted(
    a: &LoadArgs,
    db: &Db,
    table: &Subtable,
    input: Box<dyn BufRead>,
    len: Option<u64>,
    interrupt: &Interrupt,
) -> Result<Outcome, Failure> {
    let began = Instant::now();
    let bar = progress::bar("loading", len, len.is_some());
    let mut records = Records::new(input, a.format, a.raw, &a.key_field);
    let mut ingest = db.ingest()?;
    let mut value_bytes = 0u64;
    while !interrupt.requested() {
        let Some(Item { line, parsed }) = records.next()? else {
            let loaded = ingest.len();
            ingest.commit()?;
            bar.finish_and_clear();
            let seconds = began.elapsed().as_secs_f64();
            let lines = records.lines;
            let done =
                Loaded { loaded, total: loaded, bad: 0, lines, bytes: value_bytes, seconds, finished: true };
            unless_unread(done.print(a))?;
            return Ok(Outcome::Done);
        };
        let at = |what: String| format!("line {line}: {what}; nothing was loaded");
        let (k, v) = parsed.map_err(at)?;
        ingest.put(table, &k, &v).map_err(|e| at(e.to_string()))?;
        value_bytes += (k.len() + v.len()) as u64;
        if line.is_multiple_of(1024) {
            bar.set_position(if len.is_some() { records.bytes } else { ingest.len() });
        }
    }
    bar.finish_and_clear();
    eprintln!("interrupted; nothing was loaded");
    Ok(Outcome::Interrupted)
}

/// Reads past `n` bytes; returns their checksum, or `None` if there are fewer.
fn skip(input: &mut impl BufRead, n: u64, interrupt: &Interrupt) -> std::io::Result<Option<u32>> {
    let bar = progress::bar("skipping", Some(n), true);
    let mut left = n;
    let mut crc = 0;
    let mut buffer = vec![0; 1 << 20];
    while left > 0 && !interrupt.requested() {
        let want = left.min(buffer.len() as u64) as usize;
        let got = input.read(&mut buffer[..want])?;
        if got == 0 {
            return Ok(None);
        }
        crc = crc32(crc, &buffer[..got]);
        left -= got as u64;
        bar.inc(got as u64);
    }
    bar.finish_and_clear();
    Ok(Some(crc))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    /// What a command line that begins so loads into the subtable `t`.
    fn loaded(options: &[&str], db: &Path, file: &Path) -> Result<Outcome, Failure> {
        let (db, file) = (db.to_str().unwrap(), file.to_str().unwrap());
        let line = [&["terrane", "load", "--db", db, "--table", "t", "--raw"], options, &[file]].concat();
        match Args::parse_from(line).command {
            Some(Command::Load(a)) => run(&a),
            other => panic!("{other:?}"),
        }
    }

    /// Of any size that fits: a batch that takes one more than it may is refused, by a memory of 8 MiB first.
    #[test]
    fn records_of_all_sizes_are_loaded_whatever_commits_go_to() {
        let sizes = |n: usize| match n {
            // Hardly a byte each, ...
            0..20_000 => 0,
            // ... and much more than fits a batch, in all or each.
            20_000..24_000 => 100,
            _ => [30_000, 32_000, 60_000, 100, 130_000, 2_000_000][n % 6],
        };
        let count = 24_036;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("in");
        let mut out = std::io::BufWriter::new(File::create(&file).unwrap());
        for n in 0..count {
            writeln!(out, "{n:x}\t{}", "v".repeat(sizes(n))).unwrap();
        }
        out.into_inner().unwrap().sync_all().unwrap();
        for options in [
            &["--medium", "log"][..],
            &["--medium", "simulated"],
            &["--medium", "page-cache"],
            &["--medium", "simulated", "--memtable-mib", "1"],
            &["--medium", "page-cache", "--memtable-mib", "1"],
        ] {
            let at = dir.path().join(options.join(""));
            assert_eq!(loaded(options, &at, &file).unwrap(), Outcome::Done, "{options:?}");
            let db = Db::open(&at, terrane::Options::new()).unwrap();
            let table = db.subtable("t").unwrap();
            for n in 0..count {
                let len = table.get(format!("{n:x}").as_bytes()).unwrap().map(|v| v.len());
                assert_eq!(len, Some(sizes(n)), "{n}, {options:?}");
            }
            drop(table);
            db.close().unwrap();
        }
    }

    #[test]
    fn marks_round_trip_and_short_ones_are_refused() {
        let m = Mark { lines: 3, bytes: 9, crc: 7, records: 2 };
        assert_eq!(Mark::decode(&m.encode()), Some(m));
        assert_eq!(Mark::decode(&m.encode()[..27]), None);
    }

    #[test]
    fn skipping_tells_short_inputs_from_long_ones() {
        let quiet = Interrupt::default();
        assert_eq!(skip(&mut &b"abcdef"[..], 3, &quiet).unwrap(), Some(crc32(0, b"abc")));
        assert_eq!(skip(&mut &b"ab"[..], 3, &quiet).unwrap(), None);
    }
}
