//! Something for a profiler to look at: fills a subtable in random order, then reads random keys that the cache holds.
//!
//! `cargo build --release --example profile`, then
//! `perf record -e cpu-clock target/release/examples/profile fill 2000000` or `... read 2000000 10`
//! (records, then seconds of reading).

use std::time::{Duration, Instant};

use terrane::{Db, Durability, Options, SubtableOptions, WriteBatch};

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
    let reads = args.get(1).is_some_and(|a| a == "read");
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
    if reads {
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
    db.close()?;
    Ok(())
}
