//! `terrane demo`: the engine at work, in a temporary directory: a load with a progress bar, a mixed workload with its
//! latencies, and the shape of the tree that comes out of it.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use terrane::metrics::Histogram;
use terrane::{Db, Durability, Options, ReadOptions, Subtable, SubtableOptions, WriteBatch};

use crate::args::DemoArgs;
use crate::interrupt::Interrupt;
use crate::medium::{NewDb, in_words};
use crate::progress;
use crate::stat;
use crate::{Failure, Outcome};

/// Records per batch while loading, if they are small.
const BATCH: u64 = 100;

/// The file of a temporary database's memory, which is not in its directory.
struct Temporary<'a>(&'a Path);

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // It is not there if it could not be made.
        let _ = std::fs::remove_file(self.0);
    }
}

pub(crate) fn run(a: &DemoArgs) -> Result<Outcome, Failure> {
    let interrupt = Interrupt::install();
    // Gone last, when the database is closed.
    let _memory = a.pmem.as_deref().filter(|path| a.db.is_none() && !path.exists()).map(Temporary);
    let temporary;
    let dir: &Path = match &a.db {
        Some(d) => d,
        None => {
            temporary = tempfile::Builder::new().prefix("terrane-demo-").tempdir()?;
            temporary.path()
        }
    };
    let options = Options::new().memtable_bytes(a.memtable_mib << 20).cache_bytes(a.cache_mib << 20);
    let db = a.medium.create_or_simulate(&NewDb {
        dir,
        at: a.pmem.as_deref(),
        options: &options,
        memtable_mib: a.memtable_mib,
    })?;
    let table = db.create_subtable("demo", SubtableOptions::new())?;
    if !a.json {
        say!(
            "terrane {}: {} records of 16-byte keys and {}-byte values in {}, commits in {}",
            env!("CARGO_PKG_VERSION"),
            a.records,
            a.value_bytes,
            dir.display(),
            in_words(&db)
        );
    }

    load(&db, &table, a, &interrupt)?;
    if !interrupt.requested() {
        mixed(&table, a, &interrupt)?;
    }
    if !interrupt.requested() {
        synced(&db, &table, a, &interrupt)?;
    }
    let stats = db.stats();
    if a.json {
        say!("{}", json!({ "phase": "shape", "stats": stat::to_json(&stats) }));
    } else {
        say!("\n{}", stat::to_text(&stats));
    }
    drop(table);
    let began = Instant::now();
    db.close()?;
    let closed = began.elapsed();
    let began = Instant::now();
    let db = Db::open(dir, options)?;
    let opened = began.elapsed();
    db.close()?;
    if a.json {
        say!(
            "{}",
            json!({ "phase": "reopen", "close_s": closed.as_secs_f64(), "open_s": opened.as_secs_f64() })
        );
    } else {
        say!("closed in {:.3} s, opened again in {:.3} s", closed.as_secs_f64(), opened.as_secs_f64());
    }
    Ok(if interrupt.requested() { Outcome::Interrupted } else { Outcome::Done })
}

/// A number that looks random and visits every record once: keys arrive in no order.
fn scatter(i: u64) -> u64 {
    let mut x = i.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn key(i: u64) -> [u8; 16] {
    let mut k = *b"user000000000000";
    k[8..].copy_from_slice(&scatter(i).to_be_bytes());
    k
}

/// Half of it repeats, so that compression has something to do.
fn value(i: u64, len: usize) -> Vec<u8> {
    let mut v = Vec::with_capacity(len + 8);
    let mut x = i;
    while v.len() < len / 2 {
        x = scatter(x);
        v.extend_from_slice(&x.to_le_bytes());
    }
    v.truncate(len / 2);
    v.resize(len, b'.');
    v
}

fn load(db: &Db, table: &Subtable, a: &DemoArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    let bar = progress::bar("loading", Some(a.records), false);
    let began = Instant::now();
    // A fourth of what fits, for what each takes beside its value.
    let batch_records = (db.max_batch_bytes() / 4 / (a.value_bytes as u64 + 64)).clamp(1, BATCH);
    let mut i = 0;
    while i < a.records && !interrupt.requested() {
        let mut batch = WriteBatch::new();
        let end = (i + batch_records).min(a.records);
        for r in i..end {
            batch.put(table, &key(r), &value(r, a.value_bytes))?;
        }
        db.write(batch, Durability::Buffered)?;
        bar.inc(end - i);
        i = end;
    }
    let seconds = began.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let rate = i as f64 / seconds.max(1e-9);
    if a.json {
        say!("{}", json!({ "phase": "load", "records": i, "seconds": seconds, "records_per_s": rate }));
    } else {
        say!("load        {i} records in {seconds:.2} s: {rate:.0} records/s");
    }
    Ok(())
}

/// An operation of the mixed workload.
#[derive(Clone, Copy)]
enum Op {
    Get,
    Put,
    Scan,
}

const NAMES: [&str; 3] = ["get", "put", "scan 10"];

fn mixed(table: &Subtable, a: &DemoArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    let histograms: [Histogram; 3] = Default::default();
    let began = Instant::now();
    let until = began + Duration::from_secs(a.seconds);
    let failed: Option<terrane::Error> = std::thread::scope(|s| {
        let workers: Vec<_> = (0..a.threads.max(1) as u64)
            .map(|t| {
                let histograms = &histograms;
                s.spawn(move || -> terrane::Result<()> {
                    let mut n = t << 40;
                    while Instant::now() < until && !interrupt.requested() {
                        n += 1;
                        let dice = scatter(n);
                        let record = scatter(dice) % a.records.max(1);
                        let op = match dice % 100 {
                            0..70 => Op::Get,
                            70..95 => Op::Put,
                            _ => Op::Scan,
                        };
                        let start = Instant::now();
                        match op {
                            Op::Get => {
                                table.get_with(&key(record), |v| v.len())?;
                            }
                            Op::Put => table.put(&key(record), &value(n, a.value_bytes))?,
                            Op::Scan => {
                                let mut c = table.cursor(ReadOptions::new())?;
                                c.seek(&key(record))?;
                                for _ in 0..10 {
                                    c.next()?;
                                }
                            }
                        }
                        histograms[op as usize].record(start.elapsed().as_nanos() as u64);
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().find_map(|w| match w.join() {
            Ok(done) => done.err(),
            Err(panic) => std::panic::resume_unwind(panic),
        })
    });
    if let Some(e) = failed {
        return Err(e.into());
    }
    let seconds = began.elapsed().as_secs_f64();
    if !a.json {
        say!("mixed       {} threads, {seconds:.1} s: 70 % get, 25 % put, 5 % scan", a.threads.max(1));
    }
    for (name, h) in NAMES.iter().zip(&histograms) {
        report(a, name, h, seconds)?;
    }
    Ok(())
}

fn synced(db: &Db, table: &Subtable, a: &DemoArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    let h = Histogram::new();
    let began = Instant::now();
    for i in 0..2000 {
        if interrupt.requested() || began.elapsed() > Duration::from_secs(2) {
            break;
        }
        let mut batch = WriteBatch::new();
        batch.put(table, &key(i), &value(i, a.value_bytes))?;
        let start = Instant::now();
        db.write(batch, Durability::Sync)?;
        h.record(start.elapsed().as_nanos() as u64);
    }
    report(a, "synced put", &h, began.elapsed().as_secs_f64())
}

fn report(a: &DemoArgs, name: &str, h: &Histogram, seconds: f64) -> Result<(), Failure> {
    let us = |q: f64| h.quantile(q) as f64 / 1000.0;
    let rate = h.count() as f64 / seconds.max(1e-9);
    if a.json {
        let line = json!({
            "phase": "mixed", "op": name, "ops": h.count(), "ops_per_s": rate,
            "p50_us": us(0.5), "p99_us": us(0.99), "p999_us": us(0.999), "max_us": us(1.0),
        });
        say!("{line}");
    } else {
        say!(
            "  {name:10} {rate:>9.0} ops/s   p50 {:>8.1} us   p99 {:>8.1} us   p99.9 {:>8.1} us",
            us(0.5),
            us(0.99),
            us(0.999)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::{MediumArgs, MediumKind};

    #[test]
    fn a_temporary_database_takes_its_memory_along_wherever_that_is() {
        let dir = tempfile::tempdir().unwrap();
        let memory = dir.path().join("memory");
        for kind in [MediumKind::Pmem, MediumKind::PageCache] {
            let medium = MediumArgs { medium: Some(kind), ..MediumArgs::default() };
            let small = DemoArgs {
                records: 1000,
                value_bytes: 5000,
                seconds: 0,
                memtable_mib: 8,
                cache_mib: 8,
                medium,
                pmem: Some(memory.clone()),
                ..DemoArgs::default()
            };
            run(&small).unwrap();
            assert!(!memory.exists());
            let kept = DemoArgs { db: Some(dir.path().join(format!("{kind:?}"))), ..small };
            run(&kept).unwrap();
            std::fs::remove_file(&memory).unwrap();
        }
    }

    #[test]
    fn keys_are_distinct_and_values_have_their_length() {
        let keys: std::collections::HashSet<_> = (0..10_000).map(key).collect();
        assert_eq!(keys.len(), 10_000);
        for len in [0, 1, 7, 100, 1001] {
            assert_eq!(value(5, len).len(), len);
        }
    }
}
