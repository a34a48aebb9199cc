//! `terrane stat`: figures about a database.

use serde_json::{Value, json};
use terrane::{PmemMode, Stats};

use crate::args::StatArgs;
use crate::text::bytes;
use crate::{Failure, Outcome};

pub(crate) fn run(a: &StatArgs) -> Result<Outcome, Failure> {
    let db = a.db.open_existing()?;
    let stats = db.stats();
    db.close()?;
    if a.json {
        say!("{}", to_json(&stats));
    } else {
        say!("{}", to_text(&stats).trim_end());
    }
    Ok(Outcome::Done)
}

/// What a database's persistent memory is, in a word for programs and in some for people.
fn memory(mode: PmemMode) -> (&'static str, &'static str) {
    match mode {
        PmemMode::Dax => ("dax", "a device (DAX)"),
        PmemMode::StandIn => ("simulated", "simulated: a file that stands for a device"),
        PmemMode::PageCache => ("page-cache", "a file in the page cache"),
    }
}

/// All figures, for programs.
pub(crate) fn to_json(s: &Stats) -> Value {
    let subtables: Vec<Value> = s
        .subtables
        .iter()
        .map(|t| {
            let levels: Vec<Value> = t
                .levels
                .iter()
                .map(|l| {
                    json!({
                        "name": l.name, "runs": l.runs, "extents": l.extents, "bytes": l.bytes,
                        "raw_bytes": l.raw_bytes, "rows": l.rows, "deletes": l.deletes, "lookups": l.lookups,
                    })
                })
                .collect();
            json!({
                "name": t.name, "memtables": t.memtables, "memtable_bytes": t.memtable_bytes,
                "memtable_records": t.memtable_records, "large_values": t.large_values, "dead_bytes": t.dead_bytes,
                "levels": levels,
            })
        })
        .collect();
    json!({
        "sequence": s.sequence, "snapshots": s.snapshots, "oldest_snapshot": s.oldest_snapshot,
        "memtable_bytes": s.memtable_bytes, "memtable_budget": s.memtable_budget,
        "memtable_index_bytes": s.memtable_index_bytes,
        "pmem_mode": s.pmem_mode.map(|mode| memory(mode).0),
        "pmem_path": s.pmem_path.as_ref().map(|path| path.to_string_lossy()),
        "pmem_bytes": s.pmem_bytes, "pmem_used": s.pmem_used, "pmem_renewed": s.pmem_renewed, "pmem_log": s.pmem_log, "log_gap": s.log_gap,
        "pmem_index_bytes": s.pmem_index_bytes, "pmem_cache_bytes": s.pmem_cache_bytes, "pmem_cache_hits": s.pmem_cache_hits,
        "pmem_cache_damaged": s.pmem_cache_damaged,
        "cache_bytes": s.cache_bytes, "cache_capacity": s.cache_capacity,
        "row_cache_bytes": s.row_cache_bytes, "cache_hits": s.cache_hits, "cache_misses": s.cache_misses,
        "log_bytes": s.log_bytes, "durable_lsn": s.durable_lsn,
        "manifest_bytes": s.manifest_bytes, "data_used": s.data_used, "data_bytes": s.data_bytes,
        "flushes": s.flushes, "flush_bytes": s.flush_bytes, "compactions": s.compactions,
        "compact_read": s.compact_read, "compact_written": s.compact_written,
        "extents_moved": s.extents_moved, "blocks_copied": s.blocks_copied, "tasks_redone": s.tasks_redone,
        "paced_seconds": s.paced_seconds, "full_waits": s.full_waits, "full_wait_seconds": s.full_wait_seconds,
        "attached": s.attached, "transactions": s.transactions, "transactions_committed": s.transactions_committed,
        "write_conflicts": s.write_conflicts, "prepared": s.prepared, "locked_keys": s.locked_keys,
        "locked_ranges": s.locked_ranges, "lock_waiting": s.lock_waiting, "lock_waits": s.lock_waits,
        "lock_timeouts": s.lock_timeouts, "deadlocks": s.deadlocks,
        "trouble": s.trouble, "subtables": subtables,
    })
}

/// The figures that people look at.
pub(crate) fn to_text(s: &Stats) -> String {
    use std::fmt::Write;
    let mut o = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(o, "memtables   {} of {}", bytes(s.memtable_bytes), bytes(s.memtable_budget));
    if let Some(mode) = s.pmem_mode {
        let renewed = if s.pmem_renewed { ", made anew and filled from the log" } else { "" };
        let log = if s.pmem_log { ", with a log behind it" } else { "" };
        let gap = if s.log_gap { "; the log behind it has a gap, so this is needed" } else { "" };
        let _ = writeln!(
            o,
            "pmem        {} of {}{renewed}, {} of them indexes, {} of indexes beside it; {} of blocks, {} lookups answered; {}{log}{gap}",
            bytes(s.pmem_used),
            bytes(s.pmem_bytes),
            bytes(s.pmem_index_bytes),
            bytes(s.memtable_index_bytes),
            bytes(s.pmem_cache_bytes),
            s.pmem_cache_hits,
            memory(mode).1
        );
        if s.pmem_cache_damaged > 0 {
            let _ = writeln!(
                o,
                "            {} blocks there were damaged: look after that memory",
                s.pmem_cache_damaged
            );
        }
        if let Some(path) = &s.pmem_path {
            let _ = writeln!(o, "            in {}", path.display());
        }
    }
    let asked = s.cache_hits + s.cache_misses;
    let ratio = if asked == 0 { 0.0 } else { s.cache_hits as f64 * 100.0 / asked as f64 };
    let _ = writeln!(
        o,
        "cache       {} of {}, {ratio:.1} % hits of {asked} lookups",
        bytes(s.cache_bytes),
        bytes(s.cache_capacity)
    );
    if s.pmem_mode.is_none() || s.pmem_log {
        let what = if s.pmem_log { "read" } else { "replay" };
        let _ = writeln!(o, "log         {} to {what} after a crash", bytes(s.log_bytes));
    }
    let _ = writeln!(o, "data files  {} used of {}", bytes(s.data_used), bytes(s.data_bytes));
    let _ = writeln!(
        o,
        "flushes     {}, {} written; compactions {}, {} taken in, {} written, {} extents moved, {} blocks copied",
        s.flushes,
        bytes(s.flush_bytes),
        s.compactions,
        bytes(s.compact_read),
        bytes(s.compact_written),
        s.extents_moved,
        s.blocks_copied
    );
    let _ = writeln!(
        o,
        "commits     sequence {}, durable to {}, writers slowed down for {:.2} s, stopped {} times for {:.2} s",
        s.sequence, s.durable_lsn, s.paced_seconds, s.full_waits, s.full_wait_seconds
    );
    if s.transactions + s.prepared > 0 {
        let _ = writeln!(
            o,
            "transact.   {} begun, {} committed, {} conflicts, {} prepared; {} keys and {} ranges locked, {} deadlocks",
            s.transactions,
            s.transactions_committed,
            s.write_conflicts,
            s.prepared,
            s.locked_keys,
            s.locked_ranges,
            s.deadlocks
        );
    }
    if let Some(e) = &s.trouble {
        let _ = writeln!(o, "trouble     {e}");
    }
    for t in &s.subtables {
        let _ = writeln!(
            o,
            "\nsubtable {}: {} records ({}) in {} memtables, {} large values, {} dead",
            t.name,
            t.memtable_records,
            bytes(t.memtable_bytes),
            t.memtables,
            t.large_values,
            bytes(t.dead_bytes)
        );
        if t.levels.is_empty() {
            continue;
        }
        let _ = writeln!(
            o,
            "  {:5} {:>5} {:>8} {:>11} {:>11} {:>12} {:>12}",
            "level", "runs", "extents", "stored", "raw", "records", "deletions"
        );
        for l in &t.levels {
            let _ = writeln!(
                o,
                "  {:5} {:>5} {:>8} {:>11} {:>11} {:>12} {:>12}  {}",
                l.name,
                l.runs,
                l.extents,
                bytes(l.bytes),
                bytes(l.raw_bytes),
                l.rows,
                l.deletes,
                if ["L0", "L1"].contains(&&*l.name) { "hot" } else { "cold" }
            );
        }
    }
    o
}

#[cfg(test)]
mod tests {
    use terrane::{Db, Medium, Options, PmemOptions};

    use super::*;

    #[test]
    fn the_kind_of_memory_is_told() {
        let of = |medium: Medium| {
            let dir = tempfile::tempdir().unwrap();
            let db = Db::open(dir.path(), Options::new().medium(medium)).unwrap();
            let stats = db.stats();
            db.close().unwrap();
            (to_json(&stats)["pmem_mode"].clone(), to_text(&stats))
        };
        let memory = |mode| Medium::Pmem(PmemOptions::new(8 << 20).mode(mode));
        let (word, text) = of(memory(PmemMode::StandIn));
        assert_eq!(word, "simulated");
        assert!(text.contains("simulated: a file that stands for a device"), "{text}");
        assert!(text.contains("/pmem\n"), "where it is: {text}");
        let (word, text) = of(memory(PmemMode::PageCache));
        assert_eq!(word, "page-cache");
        assert!(text.contains("a file in the page cache") && !text.contains("simulated"), "{text}");
        let (word, text) = of(Medium::Log);
        assert!(word.is_null() && !text.contains("pmem"), "{text}");
    }
}
