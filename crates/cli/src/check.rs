//! `terrane check`: verifies every checksum and invariant.

use serde_json::json;
use terrane::CheckReport;

use crate::args::CheckArgs;
use crate::interrupt::Interrupt;
use crate::progress;
use crate::text::bytes;
use crate::{Failure, Outcome, unless_unread};

pub(crate) fn run(a: &CheckArgs) -> Result<Outcome, Failure> {
    let interrupt = Interrupt::install();
    let db = a.db.open_existing()?;
    let bar = progress::bar("checking", Some(0), true);
    let report = db.check(|p| {
        bar.set_length(p.total);
        bar.set_position(p.bytes);
        !interrupt.requested()
    })?;
    bar.finish_and_clear();
    db.close()?;
    unless_unread(tell(&report, a.json))?;
    if !report.damage.is_empty() {
        return Ok(Outcome::Negative);
    }
    Ok(if report.stopped { Outcome::Interrupted } else { Outcome::Done })
}

fn tell(report: &CheckReport, json: bool) -> Result<(), Failure> {
    if json {
        let damage: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
        say!(
            "{}",
            json!({
                "clean": report.is_clean(), "subtables": report.subtables, "extents": report.extents,
                "blocks": report.blocks, "records": report.records, "memory_records": report.memory_records,
                "large_values": report.large_values, "staged": report.staged, "bytes": report.bytes,
                "damage": damage, "stopped": report.stopped,
            })
        );
    } else {
        say!(
            "{} subtables, {} extents, {} blocks, {} records, {} large values, {} verified",
            report.subtables,
            report.extents,
            report.blocks,
            report.records,
            report.large_values,
            bytes(report.bytes)
        );
        if report.memory_records > 0 {
            say!("{} records of memtables in persistent memory", report.memory_records);
        }
        for e in &report.damage {
            say!("{e}");
        }
        match report.damage.len() {
            0 if report.stopped => say!("interrupted; no damage found so far"),
            0 => say!("no damage found"),
            n => say!("{n} places are damaged; hint: restore them from a backup"),
        }
    }
    Ok(())
}
