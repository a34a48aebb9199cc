//! Whether a history is one that its levels of isolation allow.
//!
//! After K. Kingsbury and P. Alvaro, "Elle: Inferring Isolation Anomalies from Experimental Observations" (VLDB 2020): each value is
//! written once, so a read tells whose write it saw; with the order of the versions of each key this gives a graph of who must
//! come before whom, and anomalies are circles in it. The order of versions is that of the sequences which commits return; Elle has
//! it from lists, for which each value here names the one that its writer had read: the two must agree. A key that is not there
//! may have been deleted by several; then only what all of them have in common is inferred.
//!
//! # What must not be
//! *Read committed* (and more): reads of what was undone (G1a) or overwritten by its own writer (G1b), and circles of writes and
//! what was read of them (G0, G1c). *Snapshot*: circles in which no two anti-dependencies follow each other (A. Cerone, A.
//! Gotsman, "Analysing Snapshot Isolation", PODC 2016), which includes lost updates, read skew, and long forks. *Serializable*: all
//! circles. Levels may be mixed in a history: the anti-dependencies of each transaction count as much as its own level promises
//! (A. Adya, "Weak Consistency", MIT 1999, chapter 5). What had ended before something else began comes before it, at all levels.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use crate::graph::{Circle, Edge, Graph, Why};
use crate::history::{Key, Level, Op, Outcome, Record, Txn, Value};

/// What was found.
#[derive(Clone, Debug)]
pub struct Anomaly {
    pub name: &'static str,
    pub told: String,
}

/// Something that was read of others.
#[derive(Clone, Debug)]
struct Read {
    key: Key,
    seen: Option<Record>,
    /// The lock that it was read under is still held.
    locked: bool,
    scan: bool,
}

/// What a transaction amounts to for others.
#[derive(Clone, Debug, Default)]
struct Effect {
    reads: Vec<Read>,
    /// At the end.
    writes: BTreeMap<Key, Option<Record>>,
    /// It read under a lock, if only for a while.
    ever_locked: bool,
}

/// Who wrote a value, and what became of it.
#[derive(Clone, Copy, Debug)]
struct Origin {
    txn: usize,
    key: Key,
    record: Record,
    /// It was there at the end.
    stayed: bool,
    /// A rollback to a savepoint took it back.
    undone: bool,
}

/// A version of a key.
#[derive(Clone, Copy, Debug)]
struct Version {
    /// Nobody: it was so in the beginning.
    by: Option<usize>,
    value: Option<Value>,
}

struct Checker<'h> {
    txns: &'h [Txn],
    effects: Vec<Effect>,
    origins: HashMap<Value, Origin>,
    versions: BTreeMap<Key, Vec<Version>>,
}

/// Looks for an anomaly.
pub fn check(txns: &[Txn]) -> Result<(), Anomaly> {
    let mut c = Checker { txns, effects: Vec::new(), origins: HashMap::new(), versions: BTreeMap::new() };
    for at in 0..txns.len() {
        let effect = c.replay(at)?;
        c.effects.push(effect);
    }
    c.look_at_reads()?;
    c.order_versions()?;
    let graph = c.graph();
    let promised = |why| !matches!(why, Why::Missed { strong: false, .. });
    let circle = graph.circle(promised).or_else(|| graph.circle_without_two_misses_in_a_row());
    circle.map_or(Ok(()), |circle| Err(c.told(&circle)))
}

impl Checker<'_> {
    fn anomaly(&self, name: &'static str, what: &str, txns: &[usize]) -> Anomaly {
        let mut told = format!("{name}: {what}");
        for &at in txns {
            let _ = write!(told, "\n    T{at}: {}", self.txns[at]);
        }
        Anomaly { name, told }
    }

    /// Goes through a transaction's operations: what it reads of its own must be what it wrote.
    fn replay(&mut self, at: usize) -> Result<Effect, Anomaly> {
        let mut own: BTreeMap<Key, Option<Record>> = BTreeMap::new();
        let mut effect = Effect::default();
        let mut saved: Vec<(BTreeMap<Key, Option<Record>>, usize)> = Vec::new();
        let txns = self.txns;
        for op in &txns[at].ops {
            match op {
                Op::Read { key, seen, locked } => {
                    effect.ever_locked |= locked;
                    self.read(
                        at,
                        &own,
                        &mut effect,
                        Read { key: *key, seen: *seen, locked: *locked, scan: false },
                    )?;
                }
                Op::Scan { from, to, seen } => {
                    let keys: Vec<Key> = seen.iter().map(|(k, _)| *k).collect();
                    if !keys.is_sorted_by(|a, b| a < b) || keys.iter().any(|k| !(from..to).contains(&k)) {
                        return Err(self.anomaly("internal", &format!("wrong keys in {op}"), &[at]));
                    }
                    let seen: BTreeMap<Key, Record> = seen.iter().copied().collect();
                    for key in *from..*to {
                        let seen = seen.get(&key).copied();
                        self.read(at, &own, &mut effect, Read { key, seen, locked: false, scan: true })?;
                    }
                }
                Op::Write { key, record } => {
                    own.insert(*key, *record);
                    if let Some(r) = *record {
                        let origin = Origin { txn: at, key: *key, record: r, stayed: false, undone: false };
                        assert!(
                            self.origins.insert(r.value, origin).is_none(),
                            "{} is written twice",
                            r.value
                        );
                    }
                }
                Op::DeleteRange { from, to } => (*from..*to).for_each(|key| {
                    own.insert(key, None);
                }),
                Op::Savepoint => saved.push((own.clone(), effect.reads.len())),
                Op::RollbackTo(n) => {
                    saved.truncate(n + 1);
                    let Some((then, reads)) = saved.last() else { continue };
                    for r in own.values().flatten() {
                        if !then.values().flatten().any(|kept| kept == r)
                            && let Some(o) = self.origins.get_mut(&r.value)
                        {
                            o.undone = true;
                        }
                    }
                    own.clone_from(then);
                    effect.reads[*reads..].iter_mut().for_each(|r| r.locked = false);
                }
            }
        }
        for r in own.values().flatten() {
            if let Some(o) = self.origins.get_mut(&r.value) {
                o.stayed = true;
            }
        }
        effect.writes = own;
        Ok(effect)
    }

    fn read(
        &self,
        at: usize,
        own: &BTreeMap<Key, Option<Record>>,
        effect: &mut Effect,
        read: Read,
    ) -> Result<(), Anomaly> {
        match own.get(&read.key) {
            Some(wanted) if *wanted == read.seen => Ok(()),
            Some(wanted) => {
                let what = format!("k{} is read as {:?}, own is {wanted:?}", read.key, read.seen);
                Err(self.anomaly("internal", &what, &[at]))
            }
            None => {
                effect.reads.push(read);
                Ok(())
            }
        }
    }

    /// Nobody reads what never came to be.
    fn look_at_reads(&self) -> Result<(), Anomaly> {
        for (at, effect) in self.effects.iter().enumerate() {
            for r in &effect.reads {
                let Some(seen) = r.seen else { continue };
                let origin = self.origins.get(&seen.value).filter(|o| o.key == r.key && o.record == seen);
                let Some(o) = origin else {
                    return Err(self.anomaly(
                        "garbage",
                        &format!("nobody wrote {seen:?} to k{}", r.key),
                        &[at],
                    ));
                };
                let what = format!("{} of k{} is read", seen.value, r.key);
                if o.undone || !self.txns[o.txn].committed() {
                    return Err(self.anomaly("G1a", &what, &[at, o.txn]));
                }
                if !o.stayed {
                    return Err(self.anomaly("G1b", &what, &[at, o.txn]));
                }
            }
        }
        Ok(())
    }

    fn order_versions(&mut self) -> Result<(), Anomaly> {
        let mut written: BTreeMap<Key, Vec<(u64, Version)>> = BTreeMap::new();
        for (at, (txn, effect)) in self.txns.iter().zip(&self.effects).enumerate() {
            let Outcome::Committed(Some(seq)) = txn.outcome else { continue };
            for (key, record) in &effect.writes {
                let version = Version { by: Some(at), value: record.map(|r| r.value) };
                written.entry(*key).or_default().push((seq, version));
            }
        }
        for (key, mut versions) in written {
            versions.sort_by_key(|(seq, _)| *seq);
            let mut order = vec![Version { by: None, value: None }];
            order.extend(versions.into_iter().map(|(_, v)| v));
            let place: HashMap<Value, usize> =
                order.iter().enumerate().filter_map(|(i, v)| Some((v.value?, i))).collect();
            for (value, i) in &place {
                let Some(o) = self.origins.get(value) else { continue };
                if o.record.replaces.and_then(|old| place.get(&old)).is_some_and(|old| old >= i) {
                    let what = format!("{:?} of k{key} comes before what it replaces", o.record);
                    return Err(self.anomaly("incompatible order", &what, &[o.txn]));
                }
            }
            self.versions.insert(key, order);
        }
        Ok(())
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::new(self.txns.len());
        for (key, versions) in &self.versions {
            for pair in versions.windows(2) {
                if let (Some(a), Some(b)) = (pair[0].by, pair[1].by) {
                    graph.add(a, b, Why::Wrote(*key));
                }
            }
        }
        for at in (0..self.txns.len()).filter(|&at| self.txns[at].committed()) {
            for read in &self.effects[at].reads {
                self.add_read(&mut graph, at, read);
            }
        }
        self.add_time(&mut graph);
        graph
    }

    fn add_read(&self, graph: &mut Graph, at: usize, read: &Read) {
        let nothing = [Version { by: None, value: None }];
        let versions = self.versions.get(&read.key).map_or(&nothing[..], |v| v);
        let (first, last) = self.candidates(at, versions, read.seen.map(|r| r.value));
        if let Some(by) = versions[first].by {
            graph.add(by, at, Why::WasRead(read.key));
        }
        if let Some(next) = versions.get(last + 1).and_then(|v| v.by)
            && let Some(strong) = self.strength(at, read)
        {
            graph.add(at, next, Why::Missed { key: read.key, strong, scan: read.scan });
        }
    }

    /// The first and the last version that a read may have seen.
    fn candidates(&self, at: usize, versions: &[Version], value: Option<Value>) -> (usize, usize) {
        let same = |i: &usize| versions[*i].value == value;
        let ends = |places: Vec<usize>| Some((*places.first()?, *places.last()?));
        // What was written after it had ended, or overwritten before it began, it has not seen; if the engine is right.
        let (begin, end) = (self.txns[at].begin, self.txns[at].end);
        let there = |i: &usize| {
            let after = versions.get(i + 1).and_then(|v| v.by);
            versions[*i].by.is_none_or(|by| self.txns[by].begin < end)
                && after.is_none_or(|next| self.txns[next].end > begin)
        };
        let all = || (0..versions.len()).filter(same);
        ends(all().filter(there).collect()).or_else(|| ends(all().collect())).unwrap_or((0, 0))
    }

    /// How much it means that something was not seen: whether the other one must have committed later, or began earlier;
    /// or nothing.
    fn strength(&self, at: usize, read: &Read) -> Option<bool> {
        let effect = &self.effects[at];
        match self.txns[at].level {
            Level::Plain | Level::Serializable | Level::OptimisticSerializable => Some(true),
            Level::ReadCommitted => read.locked.then_some(true),
            // What is read under a lock is the latest, not of the snapshot.
            Level::Snapshot if effect.ever_locked => read.locked.then_some(true),
            Level::Snapshot | Level::OptimisticSnapshot => Some(false),
        }
    }

    /// Each one after the last one of each thread that had ended before it began.
    fn add_time(&self, graph: &mut Graph) {
        let mut threads: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, txn) in self.txns.iter().enumerate().filter(|(_, t)| t.committed()) {
            threads.entry(txn.thread).or_default().push(at);
        }
        for of_thread in threads.values_mut() {
            of_thread.sort_by_key(|&at| self.txns[at].end);
        }
        for (at, txn) in self.txns.iter().enumerate().filter(|(_, t)| t.committed()) {
            for of_thread in threads.values() {
                let before = of_thread.partition_point(|&other| self.txns[other].end < txn.begin);
                if before > 0 {
                    graph.add(of_thread[before - 1], at, Why::Ended);
                }
            }
        }
    }

    fn told(&self, circle: &Circle) -> Anomaly {
        let misses: Vec<bool> = circle
            .iter()
            .filter_map(|(_, e)| if let Why::Missed { scan, .. } = e.why { Some(scan) } else { None })
            .collect();
        let reads = circle.iter().any(|(_, e)| matches!(e.why, Why::WasRead(_)));
        let n = circle.len();
        let in_a_row = (0..n).any(|i| circle[i].1.why.is_miss() && circle[(i + 1) % n].1.why.is_miss());
        let name = match misses.len() {
            0 if reads => "G1c",
            0 => "G0",
            1 => "G-single",
            _ if !in_a_row => "G-nonadjacent",
            _ if misses.contains(&true) => "G2",
            _ => "G2-item",
        };
        let steps: Vec<String> = circle
            .iter()
            .map(|&(at, Edge { to, why })| match why {
                Why::Wrote(k) => format!("T{at} wrote k{k}, and then T{to} did"),
                Why::WasRead(k) => format!("T{to} read of k{k} what T{at} wrote, or later"),
                Why::Missed { key, scan: false, .. } => {
                    format!("T{at} did not see what T{to} wrote to k{key}")
                }
                Why::Missed { key, .. } => {
                    format!("T{at} scanned and did not see what T{to} wrote to k{key}")
                }
                Why::Ended => format!("T{at} had ended when T{to} began"),
            })
            .collect();
        let txns: Vec<usize> = circle.iter().map(|(at, _)| *at).collect();
        self.anomaly(name, &steps.join("; "), &txns)
    }
}
