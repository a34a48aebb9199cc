//! `inmemory-read`: reads of what is all in the cache, from a plain read path to all that makes it fast.
//!
//! What is claimed are the published gains of X-Engine: 13.8 % from blocks and vector instructions (up to 20 %, by the length of records),
//! 60 % from direct pointers alone, which makes 90 % in all, and 123 % in all with a thread for each processor.
//!
//! Work that is made up on a core is of that core's own tables alone, as with them. Work that is shipped comes from the threads of clients,
//! through the lanes of an executor. Each form stands beside what the same threads do without either.
//!
//! Their 32 tables have 20 M records each; here they have 200,000, and as many as theirs with `--scale 100`.

use crate::repro::Part;
use crate::repro::claim::{Claim, OURS, Of, THEIRS};
use crate::workload::Workload as W;

const PLAIN: &str = "terrane-plain";
/// RocksDB as it is tuned for reads.
const TUNED: &str = "rocksdb-tuned";
const LAYERS: &str = "terrane-layers";
const VECTORS: &str = "terrane-vectors";
/// Threads that are bound to processors and read on their own, whatever table it is.
const READER: &str = "terrane-reader";
/// Cores of an executor, which make up lookups of the tables that they own.
const ON_CORE: &str = "terrane-on-core";
/// Cores of an executor, which clients ask.
const CORES: &str = "terrane-cores";

/// Of blocks and vector instructions, of these with direct pointers, and of all with a thread for each processor. Theirs is from 64 threads
/// on two sockets.
const BLOCKS: f64 = 1.138;
const POINTERS: f64 = 1.9;
const ALL: f64 = 2.23;
/// Of a thread for each processor by itself: the last of these against the one before.
const PER_CORE: f64 = 1.17;
/// Of blocks and vector instructions for the length of record where they gain most, and of direct pointers by themselves.
const BLOCKS_AT_BEST: f64 = 1.2;
const POINTERS_ALONE: f64 = 1.6;

const TABLES: u64 = 32;
const PER_TABLE: u64 = 200_000;
const RECORDS: u64 = TABLES * PER_TABLE;
/// Values of 8 bytes, where nothing else is said.
const SMALL: u64 = 8;
/// Bytes of a value, tables, and what blocks and vector instructions are to gain. Three engines hold what there is at the same time, with
/// the longest values 10 GiB in as many tables as with the others: fewer tables it is then, of as many records each.
const LENGTHS: [(u64, u64, f64); 4] = [
    (SMALL, TABLES, BLOCKS),
    (32, TABLES, BLOCKS_AT_BEST),
    (128, TABLES, BLOCKS_AT_BEST),
    (512, TABLES / 4, BLOCKS_AT_BEST),
];

/// See the module's head.
pub(super) fn parts() -> Vec<Part> {
    let mut parts = vec![steps(), generated(), counted(), ahead(), shipped(), in_order()];
    parts.extend(LENGTHS.map(length));
    parts
}

/// A run for so many seconds a row, with room in the cache for all there is, which is in one level of each table.
fn rows(
    workload: &str,
    threads: &str,
    engines: &[&str],
    [tables, records, value_bytes]: [u64; 3],
    more: &str,
    claims: Vec<Claim>,
) -> Part {
    let engines = engines.join(",");
    let command = format!(
        "--workload {workload} --threads {threads} --engine {engines} --tables {tables} --records {records} \
         --value-bytes {value_bytes} --cache-mib 2048 --merged --ops 1000000000 --seconds 6 {more}"
    );
    Part::Rows { command, claims }
}

fn speed(whose: &'static str, against: &'static str, workload: W, bound: Option<f64>) -> Claim {
    Claim { whose, against, workload, threads: 1, of: Of::Speed, bound, remark: "" }
}

/// With one thread and with two.
fn both(claims: &[Claim]) -> Vec<Claim> {
    [1, 2].into_iter().flat_map(|threads| claims.iter().map(move |c| c.clone().with(threads))).collect()
}

fn steps() -> Part {
    let read = |whose, against, bound| speed(whose, against, W::Readrandom, bound);
    let claims = both(&[
        read(PLAIN, THEIRS, Some(0.9)),
        read(LAYERS, PLAIN, None),
        read(VECTORS, PLAIN, Some(BLOCKS)),
        read("terrane-indexes", PLAIN, None),
        read(OURS, PLAIN, Some(POINTERS)),
        read(READER, PLAIN, Some(ALL)),
        read(ON_CORE, PLAIN, Some(ALL)),
        read(OURS, THEIRS, None),
    ]);
    let engines = [PLAIN, LAYERS, VECTORS, "terrane-indexes", OURS, READER, ON_CORE, THEIRS, TUNED];
    rows("readrandom", "1,2", &engines, [TABLES, RECORDS, SMALL], "", claims)
}

/// The last step by itself: of threads that have tables for themselves already.
fn generated() -> Part {
    let claims = both(&[READER, ON_CORE].map(|whose| speed(whose, OURS, W::Readown, Some(PER_CORE))));
    rows("readown", "1,2", &[OURS, READER, ON_CORE], [TABLES, RECORDS, SMALL], "", claims)
}

/// Epochs beside counts of references.
fn counted() -> Part {
    let claims = both(&[speed(OURS, "terrane-counted", W::Readrandom, None)]);
    rows("readrandom", "1,2", &[OURS, "terrane-counted"], [TABLES, RECORDS, SMALL], "", claims)
}

/// As many lookups under way as a client likes, beside single ones that it does itself.
fn ahead() -> Part {
    let claims = both(&[speed(CORES, OURS, W::Readahead, None)]);
    rows("readahead", "1,2", &[OURS, CORES], [1, RECORDS, SMALL], "", claims)
}

/// Calls of 64 keys, beside such calls that a client does itself.
fn shipped() -> Part {
    let claims = [speed(CORES, OURS, W::Multiget, None), speed(OURS, THEIRS, W::Multiget, None)];
    let claims = claims.into_iter().flat_map(|c| both(&[c])).collect();
    rows("multiget", "1,2", &[OURS, CORES, THEIRS, TUNED], [1, RECORDS, SMALL], "", claims)
}

/// What reads keys in their order loses nothing.
fn in_order() -> Part {
    let of = |w| [LAYERS, OURS].map(|whose| speed(whose, PLAIN, w, Some(1.0)));
    let claims = both(&[of(W::Seekrandom), of(W::Scan)].concat());
    rows("seekrandom,scan", "1,2", &[PLAIN, LAYERS, OURS], [1, RECORDS, SMALL], "--warm", claims)
}

fn length((value_bytes, tables, blocks): (u64, u64, f64)) -> Part {
    let claims = vec![
        speed(VECTORS, PLAIN, W::Readrandom, Some(blocks)),
        speed(OURS, VECTORS, W::Readrandom, Some(POINTERS_ALONE)),
    ];
    rows("readrandom", "1", &[PLAIN, VECTORS, OURS], [tables, tables * PER_TABLE, value_bytes], "", claims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::RunArgs;
    use crate::repro::without_absent;

    /// Commands, and what is claimed of them.
    fn all() -> Vec<(RunArgs, Vec<Claim>)> {
        let of = |part| match part {
            Part::Rows { command, claims } => {
                (RunArgs::from_line(&without_absent(&command)).unwrap(), claims)
            }
            _ => panic!("all of it is rows"),
        };
        parts().into_iter().map(of).collect()
    }

    #[test]
    fn claims_are_about_rows_that_there_are() {
        for (args, claims) in all() {
            let (all, engines) = (args.rows().collect::<Vec<_>>(), args.engine.iter().map(|e| e.name()));
            let engines: Vec<_> = engines.chain([THEIRS]).collect();
            for c in claims {
                assert!(all.contains(&(c.workload, c.threads)), "{c:?}");
                assert!(engines.contains(&c.whose) && engines.contains(&c.against), "{c:?}");
            }
        }
    }

    #[test]
    fn tables_are_large_and_fit_the_cache() {
        for (args, _) in all() {
            assert!(args.records / args.tables >= PER_TABLE);
            let bytes = args.records * (args.key_bytes + args.value_bytes);
            assert!(bytes * 3 / 2 <= args.cache_mib << 20, "{bytes} bytes");
        }
    }

    #[test]
    fn a_hundredfold_is_as_large_as_theirs() {
        let (mut args, _) = all().swap_remove(0);
        args.scale(100.0);
        assert_eq!((args.tables, args.records), (32, 32 * 20_000_000));
    }
}
