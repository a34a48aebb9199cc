//! What is claimed of a workload's rows, and what they say.

use std::path::Path;

use crate::args::RunArgs;
use crate::engine::Entrant;
use crate::report::{Row, median};
use crate::repro::{Line, threads};
use crate::scratch;
use crate::workload::Workload;

/// The engine whose claim it is, and the one that it is compared with.
pub(super) const OURS: &str = "terrane";
pub(super) const THEIRS: &str = "rocksdb";
/// Theirs too, where a run has it: the better of all their forms counts.
const THEIRS_TUNED: &str = "rocksdb-tuned";

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// Operations per second, against the peer's.
    Speed,
    /// The same, against its own lookups of single keys.
    AgainstSingle,
    /// 99th percentile of latency, against the peer's.
    TailAgainst,
    /// The same, in microseconds.
    Tail,
    /// 99.9th percentile of latency, against the peer's.
    FarTailAgainst,
    /// The 5th-percentile second's operations, against the median second's.
    SlowSecond,
    /// The slowest second's operations, against the median second's.
    SlowestSecond,
    /// The last fifth of the time, against the first.
    LastFifth,
    /// Most runs in L0 at any second.
    L0Runs,
    /// Most bytes on disk at any second, logs apart, per byte of the records.
    PeakSpace,
    /// Bytes on disk at rest, logs apart, per byte of the records.
    Space,
    /// The same, against the peer's.
    SpaceAgainst,
    /// Seconds from the last operation until nothing is left to do in the background.
    Rest,
    /// Bytes written to the device per byte that the workload wrote, against the peer's.
    WrittenAgainst,
    /// Bytes read from the device and written to it per operation, against the peer's.
    MovedAgainst,
    /// Mean of the operations' latencies, against the peer's.
    MeanAgainst,
    /// Seconds that opening took.
    Open,
    /// Reads per second that the device completed.
    DeviceReads,
    /// Times that an operation was tried again, per operation that was done.
    Retries,
    /// Blocks that the cache lacked, per thousand operations.
    Misses,
    /// 99th percentile of latency in the worst second, in microseconds.
    WorstTail,
    /// Lookups that the two uppermost levels on disk answered, of all that any did, in percent: in the first whole second of the last
    /// quarter of a run, ...
    AboveAtFirst,
    /// ... and in the last whole second.
    AboveAtLast,
}

fn above(row: &Row, second: usize) -> Option<f64> {
    Some(1e2 * row.series.get(second)?.above?)
}

impl Of {
    fn value(self, row: &Row) -> Option<f64> {
        let seconds = |n: Option<u64>| Some(n? as f64 / row.median_second_ops? as f64);
        match self {
            Of::Speed | Of::AgainstSingle => Some(row.ops_per_s),
            Of::TailAgainst | Of::Tail => Some(row.p99_us),
            Of::FarTailAgainst => Some(row.p999_us),
            Of::SlowSecond => seconds(row.p5_second_ops),
            Of::SlowestSecond => seconds(row.min_second_ops),
            Of::LastFifth => row.last_fifth,
            Of::L0Runs => row.max_l0_runs.map(|n| n as f64),
            Of::PeakSpace => Some(row.max_space_amp),
            Of::Space | Of::SpaceAgainst => Some(row.space_amp),
            Of::Rest => Some(row.settled_after_s),
            Of::WrittenAgainst => row.write_amp,
            // (A file system in main memory moves nothing.)
            Of::MovedAgainst => Some(row.device_read + row.device_written)
                .filter(|bytes| *bytes > 0)
                .map(|bytes| bytes as f64 / row.ops as f64),
            Of::MeanAgainst => Some(row.mean_us),
            Of::Open => Some(row.seconds),
            Of::DeviceReads => Some(row.device_reads_per_s),
            Of::Retries => Some(row.retries as f64 / row.ops as f64),
            Of::Misses => {
                let misses = row.series.iter().map(|s| s.misses).sum::<Option<u64>>()?;
                Some(1e3 * misses as f64 / row.ops as f64)
            }
            Of::WorstTail => row.series.iter().map(|s| s.p99_us).reduce(f64::max),
            Of::AboveAtFirst => above(row, row.series.len() * 3 / 4),
            Of::AboveAtLast => above(row, row.series.len().saturating_sub(2)),
        }
    }

    fn is_ratio(self) -> bool {
        use Of::{AgainstSingle, FarTailAgainst, MeanAgainst, MovedAgainst};
        use Of::{SpaceAgainst, Speed, TailAgainst, WrittenAgainst};
        matches!(
            self,
            Speed
                | AgainstSingle
                | TailAgainst
                | FarTailAgainst
                | MeanAgainst
                | SpaceAgainst
                | WrittenAgainst
                | MovedAgainst
        )
    }

    fn more_is_better(self) -> bool {
        use Of::{AboveAtFirst, AboveAtLast, AgainstSingle, DeviceReads, LastFifth};
        use Of::{SlowSecond, SlowestSecond, Speed};
        matches!(
            self,
            Speed
                | AgainstSingle
                | SlowSecond
                | SlowestSecond
                | LastFifth
                | DeviceReads
                | AboveAtFirst
                | AboveAtLast
        )
    }

    /// What is measured, and its unit.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Of::Speed => ("speed", "x RocksDB's"),
            Of::AgainstSingle => ("speed", "x single lookups"),
            Of::TailAgainst => ("p99", "x RocksDB's"),
            Of::Tail => ("p99", "us"),
            Of::FarTailAgainst => ("p99.9", "x RocksDB's"),
            Of::SlowSecond => ("5th-percentile second", "of the median"),
            Of::SlowestSecond => ("slowest second", "of the median"),
            Of::LastFifth => ("last fifth of the time", "of the first"),
            Of::L0Runs => ("most L0 runs", "runs"),
            Of::PeakSpace => ("most disk space", "x the data"),
            Of::Space => ("disk space at rest", "x the data"),
            Of::SpaceAgainst => ("disk space at rest", "x RocksDB's"),
            Of::Rest => ("rest after", "s"),
            Of::WrittenAgainst => ("bytes written", "x RocksDB's"),
            Of::MovedAgainst => ("bytes read and written", "x RocksDB's"),
            Of::MeanAgainst => ("mean latency", "x RocksDB's"),
            Of::Open => ("open", "s"),
            Of::DeviceReads => ("device reads", "per s"),
            Of::Retries => ("retries", "per operation"),
            Of::Misses => ("blocks not cached", "per 1000"),
            Of::WorstTail => ("p99 of the worst second", "us"),
            Of::AboveAtFirst => ("found in L0 or L1 when the first stretch is back", "%"),
            Of::AboveAtLast => ("found in L0 or L1 at the end", "%"),
        }
    }
}

/// What is said of one workload of a run.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    /// The engines whose rows are compared.
    pub(super) whose: &'static str,
    pub(super) against: &'static str,
    pub(super) workload: Workload,
    pub(super) threads: u64,
    pub(super) of: Of,
    /// The least, or where less is better the most, that holds; nothing where it is only stated.
    pub(super) bound: Option<f64>,
    /// What else is to be said beside it.
    pub(super) remark: &'static str,
}

impl Claim {
    /// The same, of so many threads.
    pub(super) fn with(self, threads: u64) -> Self {
        Claim { threads, ..self }
    }

    /// Measures the claim: the median over rounds, where of each round's values the better one of each engine's forms counts. `None` if no row
    /// says what is claimed.
    pub(super) fn line(&self, figure: &'static str, args: &RunArgs, rows: &[Row]) -> Option<Line> {
        let better = |a: f64, b: f64| if self.of.more_is_better() { a.max(b) } else { a.min(b) };
        let best = |engine: &str, workload: Workload, round: u64| {
            let tuned = |r: &Row| engine == THEIRS && r.engine == THEIRS_TUNED;
            let of = Claim { workload, ..self.clone() };
            let its = of.rows(rows).filter(|r| (r.engine == engine || tuned(r)) && r.round == round);
            its.filter_map(|r| self.of.value(r)).reduce(better)
        };
        let other = match self.of {
            Of::AgainstSingle => Workload::Readrandom,
            _ => self.workload,
        };
        let values = (0..args.rounds).filter_map(|round| {
            let mine = best(self.whose, self.workload, round)?;
            Some(if self.of.is_ratio() { mine / best(self.against, other, round)? } else { mine })
        });
        let values: Vec<f64> = values.collect();
        let (what, unit) = self.of.names();
        let other_engine = self.of.is_ratio() && ![self.whose, THEIRS].contains(&self.against);
        let unit = match other_engine {
            true => format!("x {}", self.against),
            false => unit.to_owned(),
        };
        let steps = ![OURS, THEIRS].contains(&self.against);
        let keys = if args.scattered { ", scattered keys" } else { "" };
        let size = if steps && args.zipf.is_none() {
            let tables = if args.tables > 1 { format!(", {} tables", args.tables) } else { String::new() };
            format!(", {}-byte values{tables}", args.value_bytes)
        } else {
            String::new()
        };
        let in_memory = args.dir.as_deref() == Some(Path::new(scratch::MAIN_MEMORY));
        let place = if in_memory { format!(", in {}", scratch::MAIN_MEMORY) } else { String::new() };
        let costs = args.pm_cost.map_or_else(String::new, |costs| format!(", {}", costs.in_words()));
        let whose = if self.whose == OURS { String::new() } else { format!("{} ", self.whose) };
        if values.is_empty() {
            return None;
        }
        let measured = median(values);
        let holds = self.bound.is_none_or(|b| better(measured, b) == measured);
        Some(Line {
            figure,
            row: format!(
                "{whose}{} {}{}{size}{keys}{place}{costs}: {what}",
                self.workload,
                threads(self.threads),
                if args.sync { ", synced" } else { "" }
            ) + &args.zipf.map_or_else(String::new, |z| format!(", zipf {z}")),
            claimed: self.bound,
            measured,
            unit,
            note: self.absolute(rows),
            holds,
        })
    }

    /// Those that it is about.
    fn rows<'r>(&self, rows: &'r [Row]) -> impl Iterator<Item = &'r Row> {
        let about = (self.workload, self.threads);
        rows.iter().filter(move |r| (r.workload, r.threads) == about)
    }

    /// Each engine's own median, with what stands for its persistent memory.
    fn absolute(&self, rows: &[Row]) -> String {
        let mut engines = Vec::new();
        for row in rows {
            if !engines.contains(&&row.entrant) {
                engines.push(&row.entrant);
            }
        }
        let one = |entrant: &Entrant| {
            let rows: Vec<&Row> = self.rows(rows).filter(|r| r.entrant == *entrant).collect();
            let values: Vec<f64> = rows.iter().filter_map(|r| self.of.value(r)).collect();
            let memory = rows.iter().find_map(|r| r.pmem.as_ref());
            let memory = memory.map_or_else(String::new, |what| format!(" ({what})"));
            (!values.is_empty()).then(|| {
                let m = median(values);
                format!("{entrant}{memory} {m:.*}", if m >= 1000.0 { 0 } else { 3 })
            })
        };
        let stolen: f64 = self.rows(rows).map(|r| r.stolen_seconds).sum();
        let all: Vec<String> = engines.into_iter().filter_map(one).collect();
        let mut note = format!("{}; {stolen:.1} s of processor time stolen", all.join(", "));
        if !self.remark.is_empty() {
            note += "; ";
            note += self.remark;
        }
        note
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Kind;
    use crate::report::tests::row;

    fn line(of: Of, remark: &'static str) -> Line {
        let workload = Workload::YcsbA;
        let rows = [
            row(Kind::TerranePm, workload, 100, 10.0, [1000, 2000]),
            row(Kind::TerraneSkiplistSmall, workload, 50, 40.0, [3000, 4500]),
            row(Kind::TerranePageCache, workload, 50, 40.0, [0, 0]),
        ];
        let args = RunArgs::from_line("--workload ycsb-a --threads 2 --rounds 1").unwrap();
        let (whose, against) = (rows[0].entrant.kind.name(), rows[1].entrant.kind.name());
        let claim = Claim { whose, against, workload, threads: 2, of, bound: Some(0.21), remark };
        claim.line("pm-ycsb", &args, &rows).unwrap()
    }

    #[test]
    fn less_latency_and_fewer_bytes_are_better() {
        assert_eq!((line(Of::MeanAgainst, "").measured, line(Of::MeanAgainst, "").holds), (0.25, false));
        // Of an operation 30 bytes against 150.
        assert_eq!((line(Of::MovedAgainst, "").measured, line(Of::MovedAgainst, "").holds), (0.2, true));
    }

    #[test]
    fn a_line_says_what_stands_for_persistent_memory_and_what_else_is_known() {
        let line = line(Of::Speed, "the reference lost");
        assert!(
            line.note.contains("terrane-pm (simulated) 100.000, terrane-skiplist-small 50.000"),
            "{line:?}"
        );
        assert!(line.note.contains("terrane-page-cache (page cache) 50.000"), "{line:?}");
        assert!(line.note.ends_with("; the reference lost"), "{line:?}");
    }
}
