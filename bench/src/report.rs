//! Rows for programs, and the table of medians for people.

use std::fmt::Write;

use serde::Serialize;
use serde_json::{Value, json};

use crate::engine::Entrant;
use crate::settings::Settings;
use crate::worker::Answer;
use crate::workload::{Plan, Workload};

/// One engine, workload and round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    engine: String,
    #[serde(skip)]
    entrant: Entrant,
    workload: Workload,
    round: u64,
    threads: u64,
    ops: u64,
    seconds: f64,
    ops_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    min_second_ops: Option<u64>,
    p5_second_ops: Option<u64>,
    median_second_ops: Option<u64>,
    bytes_on_disk: u64,
    log_bytes: u64,
    /// Bytes written to the device, until the background was at rest, per byte that the workload wrote.
    write_amp: Option<f64>,
    device_written: u64,
    device_read: u64,
    rss_bytes: u64,
    peak_rss_bytes: u64,
    cpu_seconds: f64,
    stolen_seconds: f64,
    settled_after_s: f64,
    settings: Value,
    says: Value,
}

impl Row {
    pub(crate) fn new(entrant: &Entrant, plan: &Plan, settings: &Settings, a: Answer) -> Self {
        let m = a.measured;
        let written = plan.workload.written_records(m.ops) * settings.record_bytes() as f64;
        Row {
            engine: entrant.kind.name().to_owned(),
            entrant: entrant.clone(),
            workload: plan.workload,
            round: plan.round,
            threads: plan.threads,
            ops: m.ops,
            seconds: m.seconds,
            ops_per_s: m.ops_per_s,
            p50_us: m.p50_us,
            p99_us: m.p99_us,
            p999_us: m.p999_us,
            max_us: m.max_us,
            min_second_ops: m.min_second_ops,
            p5_second_ops: m.p5_second_ops,
            median_second_ops: m.median_second_ops,
            bytes_on_disk: a.bytes_on_disk,
            log_bytes: a.log_bytes,
            write_amp: (written > 0.0).then(|| a.cost.written as f64 / written),
            device_written: a.cost.written,
            device_read: a.cost.read,
            rss_bytes: a.rss_bytes,
            peak_rss_bytes: a.peak_rss_bytes,
            cpu_seconds: a.cost.cpu_seconds,
            stolen_seconds: a.cost.stolen_seconds,
            settled_after_s: a.settled_after,
            settings: json!({ "shared": settings, "block_kib": entrant.block_kib }),
            says: a.says,
        }
    }

    /// The row in one line, for someone who watches.
    pub(crate) fn line(&self) -> String {
        format!(
            "round {} {:<16} {:<12} {:>10.0} op/s  p50 {:.1} us  p99 {:.1} us  cpu {:.1} s",
            self.round + 1,
            self.workload.to_string(),
            self.entrant.to_string(),
            self.ops_per_s,
            self.p50_us,
            self.p99_us,
            self.cpu_seconds
        )
    }
}

/// Says something to the person, apart from the rows.
pub(crate) fn note(text: &str) {
    eprintln!("{text}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n => (values[(n - 1) / 2] + values[n / 2]) / 2.0,
    }
}

/// Medians over rounds, in operations per second, and how often the first engine is as fast as each other one: the median
/// of the rounds' ratios.
pub(crate) fn table(rows: &[Row], workloads: &[Workload], entrants: &[Entrant]) -> String {
    let mut out = format!("{:<18}", "op/s");
    for e in entrants {
        let _ = write!(out, "{:>14}", e.to_string());
    }
    for e in entrants.iter().skip(1) {
        let _ = write!(out, "{:>16}", format!("vs {e}"));
    }
    let of = |w: Workload, e: &Entrant| -> Vec<f64> {
        rows.iter().filter(|r| r.workload == w && r.entrant == *e).map(|r| r.ops_per_s).collect()
    };
    for &w in workloads {
        let _ = write!(out, "\n{:<18}", w.to_string());
        for e in entrants {
            let _ = write!(out, "{:>14.0}", median(of(w, e)));
        }
        let Some(first) = entrants.first() else { continue };
        for e in entrants.iter().skip(1) {
            let ratios = of(w, first).iter().zip(of(w, e)).map(|(mine, theirs)| mine / theirs).collect();
            let _ = write!(out, "{:>15.2}x", median(ratios));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(vec![]).is_nan());
    }
}
