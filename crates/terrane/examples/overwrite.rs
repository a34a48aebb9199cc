//! Overwrites random records at full speed and says how even that was: operations of every second, full stops, runs of
//! L0, memory, and the space that is taken afterwards and after a rest.
//!
//! `cargo run --release --example overwrite -- DIR RECORDS VALUE_BYTES MEMTABLE_MIB SECONDS REST_SECONDS [THREADS]`
//! makes a database in `DIR` (which must not be one) and leaves it there. Prints one JSON line; `-v` as the last argument
//! adds one for each second.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use terrane::{Compression, Db, Durability, Options, Stats, Subtable, SubtableOptions, WriteBatch};

/// Records per batch.
const BATCH: u64 = 20;

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

fn write(db: &Db, table: &Subtable, at: u64, records: u64, value: &mut [u8]) -> terrane::Result<()> {
    let mut batch = WriteBatch::new();
    for i in at..at + BATCH {
        // Values that no compression makes smaller would take most of the time to make: eight bytes differ.
        value[..8].copy_from_slice(&scatter(i).to_le_bytes());
        batch.put(table, &key(i % records), value)?;
    }
    db.write(batch, Durability::Buffered)?;
    Ok(())
}

/// Most runs of L0, bytes that references show, and bytes that none shows.
fn shape(s: &Stats) -> (usize, u64, u64) {
    let levels = s.subtables.iter().flat_map(|t| &t.levels);
    let runs = levels.clone().filter(|l| l.name == "L0").map(|l| l.runs).max().unwrap_or(0);
    (runs, levels.map(|l| l.bytes).sum(), s.subtables.iter().map(|t| t.dead_bytes).sum())
}

/// Bytes that the files of `dir` take on the device.
#[allow(clippy::disallowed_methods, reason = "a program looks at what it made")]
fn taken(dir: &str) -> u64 {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter_map(|f| f.metadata().ok()).map(|m| m.blocks() * 512).sum()
}

#[allow(clippy::disallowed_methods, reason = "a program times itself")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: u64| args.get(at).map_or(Ok(default), |a| a.parse());
    let dir = args.get(1).ok_or("a directory, please")?;
    let (records, value_bytes) = (number(2, 1 << 20)?, number(3, 1024)? as usize);
    let (memtable, seconds, rest) = (number(4, 64)?, number(5, 30)?, number(6, 10)?);
    let verbose = args.last().is_some_and(|a| a == "-v");
    let threads = if args.len() > 7 && args[7] != "-v" { number(7, 1)? } else { 1 };

    let options = Options::new().memtable_bytes((memtable as usize) << 20).error_if_exists(true);
    let db = Db::open(dir, options)?;
    let table = db.create_subtable("t", SubtableOptions::new().compression(Compression::None))?;
    let mut value = vec![b'v'; value_bytes];
    let began = Instant::now();
    for at in (0..records).step_by(BATCH as usize) {
        write(&db, &table, at, records, &mut value)?;
    }
    let load = began.elapsed().as_secs_f64();
    let loaded = db.stats();

    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut each, mut most) = (Vec::new(), (0, 0, 0, 0));
    std::thread::scope(|s| -> terrane::Result<()> {
        for t in 0..threads {
            let (done, stop, db, table, mut value) = (&done, &stop, &db, &table, value.clone());
            s.spawn(move || -> terrane::Result<()> {
                let mut n = t << 40;
                while !stop.load(Ordering::Relaxed) {
                    n += BATCH;
                    write(db, table, scatter(n) % (1 << 60), records, &mut value)?;
                    done.fetch_add(BATCH, Ordering::Relaxed);
                }
                Ok(())
            });
        }
        let (began, mut before) = (Instant::now(), 0);
        for second in 1..=seconds {
            // Four looks a second.
            for quarter in 1..=4 {
                let until = Duration::from_millis((second - 1) * 1000 + quarter * 250);
                std::thread::sleep(until.saturating_sub(began.elapsed()));
                let stats = db.stats();
                let (runs, live, dead) = shape(&stats);
                most = (
                    most.0.max(runs),
                    most.1.max(stats.memtable_bytes),
                    most.2.max(taken(dir)),
                    most.3.max(dead * 100 / live.max(1)),
                );
                if verbose && quarter == 4 {
                    let now = done.load(Ordering::Relaxed);
                    let sizes: Vec<u64> = stats.subtables[0].levels.iter().map(|l| l.bytes >> 20).collect();
                    println!(
                        "{{\"second\":{second},\"ops\":{},\"l0\":{runs},\"levels_mib\":{sizes:?},\"memtable_mib\":{},\"paced_s\":{:.2},\"stops\":{}}}",
                        now - before,
                        stats.memtable_bytes >> 20,
                        stats.paced_seconds,
                        stats.full_waits
                    );
                }
            }
            let now = done.load(Ordering::Relaxed);
            each.push(now - before);
            before = now;
        }
        stop.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    let (busy, busy_taken) = (db.stats(), taken(dir));
    std::thread::sleep(Duration::from_secs(rest));
    let (rested, rested_taken) = (db.stats(), taken(dir));
    each.sort_unstable();
    let at = |share: f64| each[((each.len() - 1) as f64 * share) as usize];
    let data = records * (value_bytes as u64 + 16);
    println!(
        "{{\"load_s\":{load:.1},\"load_stops\":{},\"load_stop_s\":{:.2},\"min_second\":{},\"p5_second\":{},\"median_second\":{},\"max_second\":{},\
         \"stops\":{},\"stop_s\":{:.2},\"paced_s\":{:.2},\"l0_max\":{},\"memtable_max\":{},\"memtable_budget\":{},\"disk_max\":{:.3},\"dead_max_percent\":{},\
         \"disk_after\":{:.3},\"disk_rested\":{:.3},\"live_rested\":{:.3},\"dead_rested\":{:.3},\"written\":{:.2}}}",
        loaded.full_waits,
        loaded.full_wait_seconds,
        at(0.0),
        at(0.05),
        at(0.5),
        at(1.0),
        busy.full_waits - loaded.full_waits,
        busy.full_wait_seconds - loaded.full_wait_seconds,
        busy.paced_seconds - loaded.paced_seconds,
        most.0,
        most.1,
        busy.memtable_budget,
        most.2 as f64 / data as f64,
        most.3,
        busy_taken as f64 / data as f64,
        rested_taken as f64 / data as f64,
        shape(&rested).1 as f64 / data as f64,
        shape(&rested).2 as f64 / data as f64,
        (busy.compact_written + busy.flush_bytes) as f64
            / (each.iter().sum::<u64>() + records) as f64
            / (value_bytes + 16) as f64,
    );
    db.close()?;
    Ok(())
}
