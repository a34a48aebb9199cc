//! Threads that run random transactions on a few keys, and write down what they did and what came of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use terrane::media::Media;
use terrane::media::real::RealOptions;
use terrane::media::sim::SimMedia;
use terrane::{
    Db, Durability, Isolation, LockWait, Locked, ReadOptions, Result, RowLocks, Savepoint, Subtable,
    Transaction, TransactionOptions, WriteBatch,
};

use crate::history::{Key, Level, Op, Outcome, Record, Txn, Value};
use crate::support::{DIR, Rng, tiny, tiny_table};

/// How a history is made.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub threads: usize,
    /// Of each thread.
    pub txns: usize,
    pub keys: Key,
    /// None: all of them, mixed.
    pub level: Option<Level>,
}

/// Runs it.
pub fn run(plan: &Plan) -> Vec<Txn> {
    let media = SimMedia::with_threads(plan.seed, &RealOptions::default());
    let db = Db::open_on(media as Arc<dyn Media>, DIR, tiny()).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    let (clock, values) = (AtomicU64::new(1), AtomicU64::new(1));
    let mut all = Vec::new();
    std::thread::scope(|s| {
        let started: Vec<_> = (0..plan.threads)
            .map(|thread| {
                let rng = Rng(plan.seed.wrapping_mul(1_000_003).wrapping_add(thread as u64));
                let (db, t, clock, values) = (&db, &t, &clock, &values);
                s.spawn(move || {
                    let mut actor =
                        Actor { db, t, plan, thread, rng, clock, values, count: 0, ops: Vec::new() };
                    (0..plan.txns).map(|_| actor.next()).collect::<Vec<_>>()
                })
            })
            .collect();
        for thread in started {
            all.extend(thread.join().unwrap());
        }
    });
    assert_eq!(db.stats().locked_keys, 0, "{plan:?}: locks are left");
    all
}

struct Actor<'a> {
    db: &'a Db,
    t: &'a Subtable,
    plan: &'a Plan,
    thread: usize,
    rng: Rng,
    clock: &'a AtomicU64,
    values: &'a AtomicU64,
    count: u64,
    /// Of the transaction that is under way.
    ops: Vec<Op>,
}

fn name(key: Key) -> Vec<u8> {
    vec![b'k', key]
}

/// With a tail that makes memtables fill.
fn encoded(r: Record, tail: u64) -> Vec<u8> {
    let mut out = [r.value.to_le_bytes(), r.replaces.unwrap_or(0).to_le_bytes()].concat();
    out.resize(16 + tail as usize, b'.');
    out
}

fn decoded(bytes: &[u8]) -> Record {
    let number = |at: usize| Value::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    Record { value: number(0), replaces: Some(number(8)).filter(|v| *v != 0) }
}

impl Actor<'_> {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn key(&mut self) -> Key {
        self.rng.below(self.plan.keys.into()) as Key
    }

    fn range(&mut self) -> (Key, Key) {
        let (a, b) = (self.key(), self.key());
        (a.min(b), a.max(b) + 1)
    }

    fn record(&mut self, replaces: Option<Value>) -> (Record, Vec<u8>) {
        let record = Record { value: self.values.fetch_add(1, Ordering::Relaxed), replaces };
        let tail = if self.rng.below(6) == 0 { 1500 } else { 0 };
        (record, encoded(record, tail))
    }

    /// Others get on meanwhile.
    fn pause(&mut self) {
        if self.rng.below(3) == 0 {
            std::thread::yield_now();
        }
    }

    fn next(&mut self) -> Txn {
        self.count += 1;
        let mixed = [
            Level::Plain,
            Level::ReadCommitted,
            Level::Snapshot,
            Level::Serializable,
            Level::OptimisticSnapshot,
            Level::OptimisticSerializable,
        ];
        let level = match self.plan.level {
            Some(_) if self.rng.below(8) == 0 => Level::Plain,
            Some(level) => level,
            None => mixed[self.rng.below(6) as usize],
        };
        let begin = self.tick();
        let done = match level {
            Level::Plain => self.plain(),
            _ => self.transaction(level),
        };
        let end = self.tick();
        let outcome = match done {
            Ok(outcome) => outcome,
            Err(e) if e.should_retry() => Outcome::Aborted(e.kind().as_str().to_owned()),
            Err(e) => panic!("{:?}: {e}", self.plan),
        };
        Txn { level, thread: self.thread, begin, end, ops: std::mem::take(&mut self.ops), outcome }
    }

    fn plain(&mut self) -> Result<Outcome> {
        match self.rng.below(10) {
            0..=2 => {
                let key = self.key();
                let seen = self.t.get(&name(key))?.map(|v| decoded(&v));
                self.ops.push(Op::Read { key, seen, locked: false });
                Ok(Outcome::Committed(None))
            }
            3..=4 => {
                let (from, to) = self.range();
                let rows = self.t.range(ReadOptions::new().lower(name(from)).upper(name(to)))?;
                let rows: Vec<_> = rows.collect::<Result<_>>()?;
                let seen = rows.iter().map(|(k, v)| (k[1], decoded(v))).collect();
                self.ops.push(Op::Scan { from, to, seen });
                Ok(Outcome::Committed(None))
            }
            _ => {
                let mut batch = WriteBatch::new();
                for _ in 0..=self.rng.below(2) {
                    match self.rng.below(6) {
                        0 => {
                            let (from, to) = self.range();
                            batch.delete_range(self.t, &name(from), &name(to))?;
                            self.ops.push(Op::DeleteRange { from, to });
                        }
                        1 => {
                            let key = self.key();
                            batch.delete(self.t, &name(key))?;
                            self.ops.push(Op::Write { key, record: None });
                        }
                        _ => {
                            let (key, (record, bytes)) = (self.key(), self.record(None));
                            batch.put(self.t, &name(key), &bytes)?;
                            self.ops.push(Op::Write { key, record: Some(record) });
                        }
                    }
                }
                let seq = self.db.write(batch, Durability::Buffered)?;
                if self.rng.below(60) == 0 {
                    self.t.flush()?;
                }
                Ok(Outcome::Committed(Some(seq)))
            }
        }
    }

    fn transaction(&mut self, level: Level) -> Result<Outcome> {
        let (isolation, optimistic) = match level {
            Level::ReadCommitted => (Isolation::ReadCommitted, false),
            Level::Snapshot => (Isolation::Snapshot, false),
            Level::OptimisticSnapshot => (Isolation::Snapshot, true),
            Level::OptimisticSerializable => (Isolation::Serializable, true),
            Level::Serializable | Level::Plain => (Isolation::Serializable, false),
        };
        let wait = match self.rng.below(4) {
            0 => LockWait::No,
            1 => LockWait::AtMost(Duration::from_millis(2)),
            _ => LockWait::Forever,
        };
        let options = TransactionOptions::new().isolation(isolation).optimistic(optimistic).lock_wait(wait);
        let mut txn = self.db.begin(options)?;
        // In each key what was read of it, for the next value to name.
        let mut known: BTreeMap<Key, Option<Value>> = BTreeMap::new();
        let mut points: Vec<Savepoint> = Vec::new();
        // Locking reads show the latest, which is another matter than a snapshot: only some transactions use them.
        let locks = self.rng.below(3) == 0;
        let reads_only = self.rng.below(6) == 0;
        for _ in 0..=self.rng.below(8) {
            self.pause();
            match self.rng.below(if reads_only { 55 } else { 100 }) {
                0..=29 => self.read(&mut txn, locks, &mut known)?,
                30..=54 => {
                    let rows = if locks { self.row_locks() } else { None };
                    self.scan(&mut txn, level, rows, &mut known)?;
                }
                55..=79 => {
                    let key = self.key();
                    if self.rng.below(2) == 0 && !known.contains_key(&key) {
                        self.read_key(&mut txn, key, locks, &mut known)?;
                        self.pause();
                    }
                    let (record, bytes) = self.record(known.get(&key).copied().flatten());
                    txn.put(self.t, &name(key), &bytes)?;
                    self.ops.push(Op::Write { key, record: Some(record) });
                    known.remove(&key);
                }
                80..=84 => {
                    let key = self.key();
                    txn.delete(self.t, &name(key))?;
                    self.ops.push(Op::Write { key, record: None });
                    known.remove(&key);
                }
                85..=88 => {
                    let (from, to) = self.range();
                    txn.delete_range(self.t, &name(from), &name(to))?;
                    self.ops.push(Op::DeleteRange { from, to });
                    known.retain(|key, _| !(from..to).contains(key));
                }
                89..=94 => {
                    points.push(txn.savepoint());
                    self.ops.push(Op::Savepoint);
                }
                _ if !points.is_empty() => {
                    let n = self.rng.below(points.len() as u64) as usize;
                    points.truncate(n + 1);
                    txn.rollback_to(points[n])?;
                    self.ops.push(Op::RollbackTo(n));
                    known.clear();
                }
                _ => {}
            }
        }
        self.pause();
        self.end(txn)
    }

    fn end(&mut self, txn: Transaction) -> Result<Outcome> {
        let xid = format!("{}-{}", self.thread, self.count).into_bytes();
        let wrote = !txn.is_empty();
        let seq = match self.rng.below(20) {
            0..=2 => {
                txn.rollback();
                return Ok(Outcome::Aborted("rolled back".into()));
            }
            3..=4 if wrote => {
                txn.prepare(&xid)?;
                self.pause();
                if self.rng.below(4) == 0 {
                    self.db.rollback_prepared(&xid)?;
                    return Ok(Outcome::Aborted("rolled back when prepared".into()));
                }
                self.db.commit_prepared(&xid, Durability::Buffered)?
            }
            5..=7 => txn.submit(Durability::Buffered)?.wait()?,
            8 => txn.commit(Durability::Sync)?,
            _ => txn.commit(Durability::Buffered)?,
        };
        Ok(Outcome::Committed(wrote.then_some(seq)))
    }

    fn read(
        &mut self,
        txn: &mut Transaction,
        locks: bool,
        known: &mut BTreeMap<Key, Option<Value>>,
    ) -> Result<()> {
        let key = self.key();
        self.read_key(txn, key, locks, known)
    }

    fn read_key(
        &mut self,
        txn: &mut Transaction,
        key: Key,
        locks: bool,
        known: &mut BTreeMap<Key, Option<Value>>,
    ) -> Result<()> {
        let how = if locks { self.rng.below(4) } else { 0 };
        let got = match how {
            1 => txn.get_for_share(self.t, &name(key))?,
            2 => txn.get_for_update(self.t, &name(key))?,
            3 => match txn.try_get_for_update(self.t, &name(key))? {
                Locked::Here(value) => value,
                Locked::Skipped => return Ok(()),
            },
            _ => txn.get(self.t, &name(key))?,
        };
        let seen = got.map(|v| decoded(&v));
        self.ops.push(Op::Read { key, seen, locked: how > 0 });
        known.insert(key, seen.map(|r| r.value));
        Ok(())
    }

    /// How a scan locks its rows, if it does, and whether it passes over some.
    fn row_locks(&mut self) -> Option<(RowLocks, bool)> {
        let rows = if self.rng.below(2) == 0 { RowLocks::exclusive() } else { RowLocks::shared() };
        match self.rng.below(6) {
            0 | 1 => Some((rows, false)),
            2 => Some((rows.no_wait(), false)),
            3 => Some((rows.skip_locked(), true)),
            _ => None,
        }
    }

    /// Forwards or backwards, sometimes not to the end.
    fn scan(
        &mut self,
        txn: &mut Transaction,
        level: Level,
        rows: Option<(RowLocks, bool)>,
        known: &mut BTreeMap<Key, Option<Value>>,
    ) -> Result<()> {
        let (mut from, mut to) = self.range();
        let (back, most) = (self.rng.below(3) == 0, 1 + self.rng.below(self.plan.keys.into()) as usize);
        let options = ReadOptions::new().lower(name(from)).upper(name(to));
        let mut c = match rows {
            Some((rows, _)) => txn.locking_cursor(self.t, options, rows)?,
            None => txn.cursor(self.t, options)?,
        };
        if back {
            c.seek_to_last()?
        } else {
            c.seek_to_first()?
        };
        let mut seen: Vec<(Key, Record)> = Vec::new();
        while c.valid() && seen.len() < most {
            seen.push((c.key()[1], decoded(&c.value()?)));
            if rows.is_some() && self.rng.below(3) == 0 {
                std::thread::yield_now();
            }
            if seen.len() < most {
                if back { c.prev()? } else { c.next()? }
            }
        }
        // Beyond where it stopped it has seen nothing.
        if c.valid()
            && let Some((last, _)) = seen.last()
        {
            if back { from = *last } else { to = last + 1 }
        }
        if back {
            seen.reverse();
        }
        known.extend(seen.iter().map(|(k, r)| (*k, Some(r.value))));
        let gaps = match rows {
            None => true,
            Some((_, skips)) => match level {
                Level::Serializable => !skips,
                _ => level == Level::OptimisticSerializable,
            },
        };
        if gaps {
            self.ops.push(Op::Scan { from, to, seen });
        } else {
            // What lies between the rows has not been looked at.
            let reads = seen.into_iter().map(|(key, r)| Op::Read { key, seen: Some(r), locked: true });
            self.ops.extend(reads);
        }
        Ok(())
    }
}

/// What kinds of errors ended transactions, for the summary.
pub fn reasons(txns: &[Txn]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for txn in txns {
        let why = match &txn.outcome {
            Outcome::Committed(_) => "committed",
            Outcome::Aborted(why) => why,
        };
        *counts.entry(why).or_default() += 1;
    }
    counts
}
