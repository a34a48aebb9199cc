//! One transaction of many records: `cargo run --release -p terrane --example large_transaction -- [RECORDS] [VALUE_BYTES]`.
//!
//! Writes them in no order in a single transaction, while another thread goes on with small commits, and says how long it took and how
//! much memory the process had at most.
#![allow(clippy::disallowed_methods, reason = "an example looks at the clock and starts a thread")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use terrane::{Db, Durability, Isolation, Options, SubtableOptions, TransactionOptions};

const MEMTABLES: usize = 128 << 20;
const CACHE: usize = 128 << 20;

fn main() -> terrane::Result<()> {
    let mut numbers = std::env::args().skip(1).map(|a| a.parse::<u64>());
    let records = numbers.next().and_then(Result::ok).unwrap_or(1_000_000);
    let value_bytes = numbers.next().and_then(Result::ok).unwrap_or(200) as usize;

    let dir = std::env::temp_dir().join(format!("terrane-large-{}", std::process::id()));
    let db = Db::open(&dir, Options::new().memtable_bytes(MEMTABLES).cache_bytes(CACHE))?;
    let large = db.create_subtable("large", SubtableOptions::new())?;
    let small = db.create_subtable("small", SubtableOptions::new())?;

    let over = AtomicBool::new(false);
    let (written, committed, beside, longest) = std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let (mut commits, mut longest) = (0u64, Duration::ZERO);
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                small.put(&commits.to_be_bytes(), b"beside")?;
                longest = longest.max(began.elapsed());
                commits += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            terrane::Result::Ok((commits, longest))
        });
        let began = Instant::now();
        let mut txn = db.begin(TransactionOptions::new().isolation(Isolation::ReadCommitted))?;
        let value = vec![7; value_bytes];
        for i in 0..records {
            // An odd factor visits all numbers, far from each other.
            let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            txn.put(&large, &key, &value)?;
            if i % 1_000_000 == 999_999 {
                println!("{} M records, {:.0} s", (i + 1) / 1_000_000, began.elapsed().as_secs_f64());
            }
        }
        let written = began.elapsed();
        let done = txn.commit(Durability::Sync);
        let committed = began.elapsed() - written;
        over.store(true, Ordering::Relaxed);
        done?;
        let (commits, longest) = beside.join().unwrap_or(Ok((0, Duration::ZERO)))?;
        terrane::Result::Ok((written, committed, commits, longest))
    })?;

    let bytes = records * (8 + value_bytes as u64);
    println!("{records} records, {:.2} GiB, in one transaction", bytes as f64 / (1 << 30) as f64);
    println!("written in {:.1} s, committed in {:.1} s", written.as_secs_f64(), committed.as_secs_f64());
    println!("{beside} other commits meanwhile, the longest {:.0} ms", longest.as_secs_f64() * 1e3);
    println!("memory at most {} MiB, budget {} MiB", peak_mib(), (MEMTABLES + CACHE) >> 20);
    drop((large, small));
    db.close()?;
    Db::destroy(&dir)
}

/// The most memory that this process has had, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()).unwrap_or(0) / 1024
}
