//! Rows for programs, and the table of medians for people.

use std::fmt::Write as _;
use std::io::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use crate::Failure;
use crate::args::RunArgs;
use crate::engine::{Entrant, Kind};
use crate::measure::Second;
use crate::settings::Settings;
use crate::worker::Answer;
use crate::workload::{Plan, Workload};

/// One engine, workload and round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) engine: String,
    #[serde(skip)]
    pub(crate) entrant: Entrant,
    /// What stands for its persistent memory, if it has some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pmem: Option<String>,
    pub(crate) workload: Workload,
    pub(crate) round: u64,
    pub(crate) threads: u64,
    pub(crate) ops: u64,
    /// Transactions that others were in the way of, and that were tried again.
    pub(crate) retries: u64,
    pub(crate) seconds: f64,
    pub(crate) ops_per_s: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    pub(crate) min_second_ops: Option<u64>,
    pub(crate) p5_second_ops: Option<u64>,
    pub(crate) median_second_ops: Option<u64>,
    /// What the last fifth of the time did, against the first; none if that is less than a second.
    pub(crate) last_fifth: Option<f64>,
    /// Operations a second in each fifth.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) fifths: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) series: Vec<Second>,
    /// Most runs of the uppermost level on disk, and most bytes of data on disk per byte of the records, at any second.
    pub(crate) max_l0_runs: Option<u64>,
    pub(crate) max_space_amp: f64,
    /// The latter when the background was at rest.
    pub(crate) space_amp: f64,
    pub(crate) bytes_on_disk: u64,
    pub(crate) log_bytes: u64,
    /// Bytes written to the device, until the background was at rest, per byte that the workload wrote.
    pub(crate) write_amp: Option<f64>,
    pub(crate) device_written: u64,
    pub(crate) device_read: u64,
    /// Reads that the device completed while the workload ran, per second.
    pub(crate) device_reads_per_s: f64,
    pub(crate) rss_bytes: u64,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) cpu_seconds: f64,
    pub(crate) stolen_seconds: f64,
    pub(crate) settled_after_s: f64,
    pub(crate) settings: Value,
    pub(crate) says: Value,
}

impl Row {
    pub(crate) fn new(entrant: &Entrant, plan: &Plan, settings: &Settings, a: Answer) -> Self {
        let m = a.measured;
        let shared =
            Settings { zipf: settings.zipf.or(Some(plan.workload.default_zipf())), ..settings.clone() };
        let live = (settings.records * settings.record_bytes()) as f64;
        let written = plan.workload.written_records(m.ops) * settings.record_bytes() as f64;
        Row {
            engine: entrant.kind.name().to_owned(),
            entrant: entrant.clone(),
            pmem: pmem_in_words(entrant.kind, settings),
            workload: plan.workload,
            round: plan.round,
            threads: plan.threads,
            ops: m.ops,
            retries: m.retries,
            seconds: m.seconds,
            ops_per_s: m.ops_per_s,
            mean_us: m.mean_us,
            p50_us: m.p50_us,
            p99_us: m.p99_us,
            p999_us: m.p999_us,
            max_us: m.max_us,
            min_second_ops: m.min_second_ops,
            p5_second_ops: m.p5_second_ops,
            median_second_ops: m.median_second_ops,
            last_fifth: m
                .fifths
                .first()
                .zip(m.fifths.last())
                .map(|(first, last)| *last as f64 / (*first).max(1) as f64),
            fifths: m.fifths,
            series: m.series,
            max_l0_runs: a.peaks.l0_runs,
            max_space_amp: a.peaks.data_bytes as f64 / live,
            space_amp: (a.bytes_on_disk - a.log_bytes.min(a.bytes_on_disk)) as f64 / live,
            bytes_on_disk: a.bytes_on_disk,
            log_bytes: a.log_bytes,
            write_amp: (written > 0.0).then(|| a.cost.written as f64 / written),
            device_written: a.cost.written,
            device_read: a.cost.read,
            device_reads_per_s: a.worked.device_reads as f64 / m.seconds,
            rss_bytes: a.rss_bytes,
            peak_rss_bytes: a.peak_rss_bytes,
            cpu_seconds: a.cost.cpu_seconds,
            stolen_seconds: a.cost.stolen_seconds,
            settled_after_s: a.settled_after,
            settings: json!({ "shared": shared, "block_kib": entrant.block_kib }),
            says: a.says,
        }
    }

    /// The row in one line, for someone who watches.
    pub(crate) fn line(&self) -> String {
        let retries = if self.retries > 0 { format!("  {} retries", self.retries) } else { String::new() };
        let pmem = self.pmem.as_ref().map_or_else(String::new, |what| format!("  pmem: {what}"));
        format!(
            "round {} {:<16} x{:<2} {:<12} {:>10.0} op/s  p50 {:.1} us  p99 {:.1} us  cpu {:.1} s{retries}{pmem}",
            self.round + 1,
            self.workload.to_string(),
            self.threads,
            self.entrant.to_string(),
            self.ops_per_s,
            self.p50_us,
            self.p99_us,
            self.cpu_seconds
        )
    }
}

/// What stands for the persistent memory of an engine, and what that costs beside.
fn pmem_in_words(kind: Kind, settings: &Settings) -> Option<String> {
    let memory = kind.memory_in_words()?;
    if settings.pm_device && (kind.has_memory() || kind.is_in_memory()) {
        return Some("a device".to_owned());
    }
    Some(match settings.pm_cost.filter(|_| kind.has_memory()) {
        Some(costs) => format!("{memory}, with {}", costs.in_words()),
        None => memory.to_owned(),
    })
}

/// Says what was asked for.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    // Whoever reads it may be gone, at which the standard library's own panics.
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// Says something to the person, apart from the rows.
pub(crate) fn note(text: &str) {
    eprintln!("{text}");
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n => (values[(n - 1) / 2] + values[n / 2]) / 2.0,
    }
}

/// Medians over rounds, in operations per second, and how often the first engine is as fast as each other one: the median
/// of the rounds' ratios.
pub(crate) fn table(rows: &[Row], a: &RunArgs) -> String {
    let mut entrants: Vec<&Entrant> = Vec::new();
    for row in rows {
        if !entrants.contains(&&row.entrant) {
            entrants.push(&row.entrant);
        }
    }
    let mut out = format!("{:<18}", "op/s");
    for e in &entrants {
        let _ = write!(out, "{:>14}", e.to_string());
    }
    for e in entrants.iter().skip(1) {
        let _ = write!(out, "{:>16}", format!("vs {e}"));
    }
    for (workload, threads) in a.rows() {
        let rows: Vec<&Row> =
            rows.iter().filter(|r| (r.workload, r.threads) == (workload, threads)).collect();
        let of = |e: &Entrant| -> Vec<f64> {
            rows.iter().filter(|r| r.entrant == *e).map(|r| r.ops_per_s).collect()
        };
        let name = if a.threads.len() > 1 { format!("{workload} x{threads}") } else { workload.to_string() };
        let _ = write!(out, "\n{name:<18}");
        for e in &entrants {
            let _ = write!(out, "{:>14.0}", median(of(e)));
        }
        let Some(first) = entrants.first() else { continue };
        for e in entrants.iter().skip(1) {
            let ratios = of(first).iter().zip(of(e)).map(|(mine, theirs)| mine / theirs).collect();
            let _ = write!(out, "{:>15.2}x", median(ratios));
        }
    }
    for e in entrants {
        if let Some(what) = rows.iter().find(|r| r.entrant == *e).and_then(|r| r.pmem.as_ref()) {
            let _ = write!(out, "\n{e}: persistent memory: {what}");
        }
    }
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine::Counters;
    use crate::measure::Measured;
    use crate::settings::PmCost;
    use crate::watch::Peaks;

    /// A row of so many operations in a second, of two threads.
    pub(crate) fn row(
        kind: Kind,
        workload: Workload,
        ops: u64,
        mean_us: f64,
        [read, written]: [u64; 2],
    ) -> Row {
        let args = RunArgs::from_line(&format!("--workload {workload}")).unwrap();
        let entrant = Entrant { kind, block_kib: None };
        let measured = Measured {
            ops,
            retries: 0,
            seconds: 1.0,
            ops_per_s: ops as f64,
            mean_us,
            p50_us: 1.0,
            p99_us: 1.0,
            p999_us: 1.0,
            max_us: 1.0,
            min_second_ops: None,
            p5_second_ops: None,
            median_second_ops: None,
            fifths: Vec::new(),
            series: Vec::new(),
        };
        let answer = Answer {
            measured,
            peaks: Peaks { l0_runs: None, data_bytes: 0 },
            worked: Counters::default(),
            cost: Counters { read, written, ..Counters::default() },
            settled_after: 0.0,
            rss_bytes: 0,
            peak_rss_bytes: 0,
            bytes_on_disk: 0,
            log_bytes: 0,
            says: Value::Null,
        };
        let plan = Plan { workload, threads: 2, ops: None, seconds: None, round: 0 };
        Row::new(&entrant, &plan, &Settings::new(&args), answer)
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(vec![]).is_nan());
    }

    #[test]
    fn what_stands_for_persistent_memory_is_said_in_every_form_of_a_row() {
        let args = RunArgs::from_line("--workload ycsb-a --threads 2").unwrap();
        let of = |kind| {
            let row = row(kind, Workload::YcsbA, 10, 1.0, [0, 0]);
            [serde_json::to_string(&row).unwrap(), row.line(), table(&[row], &args)]
        };
        let simulated =
            [Kind::TerranePm, Kind::TerranePmLog, Kind::TerranePmMemory, Kind::TerraneSkiplistMemory];
        for said in simulated.into_iter().flat_map(of) {
            assert!(said.contains("simulated"), "{said}");
        }
        let mut costly = Settings::new(&args);
        costly.pm_cost = Some(PmCost::Optane);
        let with_costs = "simulated, with the costs of an Optane module";
        assert_eq!(pmem_in_words(Kind::TerranePm, &costly).as_deref(), Some(with_costs));
        // It has files there and no memory, which cost what they cost.
        assert_eq!(pmem_in_words(Kind::TerraneSkiplistMemory, &costly).as_deref(), Some("simulated"));
        // A device is no simulation; the page cache is none.
        let mut on_device = Settings::new(&args);
        on_device.pm_device = true;
        let said = |kind| pmem_in_words(kind, &on_device);
        assert_eq!(said(Kind::TerranePm).as_deref(), Some("a device"));
        assert_eq!(said(Kind::TerranePageCache).as_deref(), Some("page cache"));
        assert_eq!(said(Kind::Terrane), None);
        for said in of(Kind::TerranePageCache) {
            assert!(said.contains("page cache") && !said.contains("simulated"), "{said}");
        }
        for said in of(Kind::Terrane) {
            assert!(!said.contains("pmem") && !said.contains("memory:"), "{said}");
        }
    }
}
