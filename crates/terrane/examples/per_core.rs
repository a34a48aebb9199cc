//! A small service whose data is divided among the processors: each core owns accounts, counts what is asked of it, and serves what
//! clients send through their lanes; one kind of request needs accounts of two cores.
//!
//! `cargo run --release -p terrane --example per_core -- [ACCOUNTS] [REQUESTS]`

#![allow(clippy::disallowed_methods, reason = "an example has no simulated clock")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use terrane::{
    Db, Durability, Error, ExecutorOptions, Lane, Options, Polled, Result, Subtable, SubtableOptions, Taken,
    TransactionOptions, WriteBatch,
};

const CLIENTS: u64 = 2;
const START: u64 = 1000;

fn main() -> Result<()> {
    let number = |at| std::env::args().nth(at).and_then(|n| n.parse().ok());
    let (accounts, requests) = (number(1).unwrap_or(100_000u64).max(1), number(2).unwrap_or(200_000u64));
    let dir = std::env::temp_dir().join(format!("terrane-per-core-{}", std::process::id()));
    let db = Db::open(&dir, Options::new())?;
    let table = db.subtable_or_create("accounts", SubtableOptions::new())?;
    for first in (0..accounts).step_by(1000) {
        let mut batch = WriteBatch::new();
        for account in first..accounts.min(first + 1000) {
            batch.put(&table, &key(account), &START.to_le_bytes())?;
        }
        db.write(batch, Durability::Buffered)?;
    }

    // A thread for each processor; this one subtable is divided evenly by hand. (Left alone, it is divided after the load.)
    let executor = db.executor(ExecutorOptions::new())?;
    for core in 0..executor.cores() {
        executor.split(&table, &key(accounts * core as u64 / executor.cores() as u64), core)?;
    }

    // What lives on a core: here a look at an account of its own now and then, in place of connections or timers.
    let looked = Arc::new(AtomicU64::new(0));
    for core in 0..executor.cores() {
        let (table, looked, mut next) = (table.clone(), looked.clone(), core as u64);
        executor.poll_on(core, move |core| {
            next = (next + 7919) % accounts;
            if core.owns(&table, &key(next)) && core.get_with(&table, &key(next), |_| ()).is_ok() {
                looked.fetch_add(1, Ordering::Relaxed);
            }
            Polled::Idle
        })?;
    }

    let start = Instant::now();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| {
                let (lane, db, table) = (executor.lane(256), &db, &table);
                scope.spawn(move || client(n, lane?, db, table, accounts, requests / CLIENTS))
            })
            .collect();
        clients
            .into_iter()
            .try_for_each(|c| c.join().unwrap_or_else(|_| Err(Error::invalid("a client panicked"))))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{requests} requests of {CLIENTS} clients in {seconds:.2} s, {} cores", executor.cores());
    println!("{} looks of the cores themselves", looked.load(Ordering::Relaxed));
    executor.shutdown();

    // Nothing was lost on the way from one account to another.
    let mut sum = 0;
    for account in 0..accounts {
        sum += table.get(&key(account))?.map_or(0, |v| amount(&v));
    }
    println!("{sum} in all accounts, {} at the start", accounts * START);
    assert_eq!(sum, accounts * START);
    drop(table);
    db.close()?;
    Db::destroy(&dir)
}

/// Nine requests of ten read an account, the tenth moves something to another one.
fn client(
    number: u64,
    mut lane: Lane,
    db: &Db,
    table: &Subtable,
    accounts: u64,
    requests: u64,
) -> Result<()> {
    let mut failed = Ok(());
    for n in 0..requests {
        let from = (n * 31 + number).wrapping_mul(0x9e37_79b9_7f4a_7c15) % accounts;
        loop {
            let taken = if n % 10 == 9 {
                let (db, own, table) = (db.clone(), table, table.clone());
                let to = (from + accounts / 2) % accounts;
                lane.run(own, &key(from), n, move |_, _| transfer(&db, &table, from, to))?
            } else {
                lane.get(table, &key(from), n)?
            };
            if taken == Taken::Yes {
                break;
            }
            // As many are under way as there may be.
            lane.wait()?;
            lane.answers(|_, answer| failed = std::mem::replace(&mut failed, Ok(())).and(answer.map(|_| ())));
        }
    }
    while lane.under_way() > 0 {
        lane.wait()?;
        lane.answers(|_, answer| failed = std::mem::replace(&mut failed, Ok(())).and(answer.map(|_| ())));
    }
    failed
}

/// Runs on the core that owns `from`. A transaction takes whatever it needs, whoever owns it.
fn transfer(db: &Db, table: &Subtable, from: u64, to: u64) -> Result<Option<Vec<u8>>> {
    loop {
        let mut t = db.begin(TransactionOptions::new())?;
        let moved = (|| {
            // Always in the same order, so that two of them never wait for each other.
            let (first, second) = (from.min(to), from.max(to));
            t.get_for_update(table, &key(first))?;
            t.get_for_update(table, &key(second))?;
            let of = |v: Option<Vec<u8>>| v.map_or(0, |v| amount(&v));
            let (a, b) = (of(t.get(table, &key(from))?), of(t.get(table, &key(to))?));
            if from != to && a > 0 {
                t.put(table, &key(from), &(a - 1).to_le_bytes())?;
                t.put(table, &key(to), &(b + 1).to_le_bytes())?;
            }
            Ok(())
        })();
        match moved.and_then(|()| t.commit(Durability::Buffered)) {
            Ok(_) => return Ok(None),
            Err(e) if e.should_retry() => {}
            Err(e) => return Err(e),
        }
    }
}

fn key(account: u64) -> [u8; 8] {
    account.to_be_bytes()
}

fn amount(value: &[u8]) -> u64 {
    value.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}

#[test]
fn runs() -> Result<()> {
    main()
}
