//! Something for a profiler to look at: fills a subtable in random order, then reads random keys that the cache holds, or
//! scans all of them.
//!
//! `cargo build --release --example profile`, then
//! `perf record -e cpu-clock target/release/examples/profile fill 2000000` or `... read 2000000 10`
//! (records, then seconds of reading). `... scan 200000 5` scans five times, from a memtable if there are so few records;
//! `... scan-level 200000 5` from one level. What a row costs is the difference between two numbers of scans, by the row:
//! `valgrind --tool=callgrind target/release/examples/profile scan-level 200000 5`.

use std::time::{Duration, Instant};

use terrane::{Db, Durability, Options, ReadOptions, SubtableOptions, WriteBatch};

fn key(i: u64) -> [u8; 16] {
    let mut x = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let mut k = *b"user000000000000";
    k[8..].copy_from_slice(&(x ^ (x >> 32)).to_be_bytes());
    k
}

#[allow(clippy::disallowed_methods, reason = "a program times itself")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: u64| args.get(at).map_or(Ok(default), |a| a.parse());
    let mode = args.get(1).map_or("fill", String::as_str);
    let (records, seconds) = (number(2, 1_000_000)?, number(3, 5)?);

    let dir = tempfile::tempdir()?;
    let db = Db::open(dir.path(), Options::new().memtable_bytes(128 << 20).cache_bytes(1 << 30))?;
    let table = db.create_subtable("profile", SubtableOptions::new())?;
    let began = Instant::now();
    let value = [b'v'; 100];
    for i in 0..records {
        let mut batch = WriteBatch::new();
        batch.put(&table, &key(i), &value)?;
        db.write(batch, Durability::Buffered)?;
    }
    println!("fill: {:.0} records/s", records as f64 / began.elapsed().as_secs_f64());
    if mode == "read" {
        table.compact()?;
        for i in 0..records {
            table.get_with(&key(i), |_| ())?;
        }
        let began = Instant::now();
        let mut n = 0;
        while began.elapsed() < Duration::from_secs(seconds) {
            for _ in 0..1000 {
                n += 1;
                table.get_with(&key(n * 7919 % records), |_| ())?;
            }
        }
        println!("read: {:.0} gets/s", n as f64 / began.elapsed().as_secs_f64());
    }
    if mode == "scan-level" {
        table.compact()?;
    }
    if mode.starts_with("scan") {
        let began = Instant::now();
        let (mut rows, mut bytes) = (0, 0);
        for _ in 0..seconds {
            let mut cursor = table.cursor(ReadOptions::new())?;
            cursor.seek_to_first()?;
            while cursor.valid() {
                rows += 1;
                bytes += cursor.key().len() + cursor.value()?.len();
                cursor.next()?;
            }
        }
        println!("scan: {:.1} ns a row, {bytes} bytes", began.elapsed().as_nanos() as f64 / f64::from(rows));
    }
    db.close()?;
    Ok(())
}
