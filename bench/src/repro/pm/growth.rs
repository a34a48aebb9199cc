//! `pm-dbsize`: inserts, and reads of what was inserted lately, in a database and in one of six times the size.

use super::line;
use crate::Failure;
use crate::args::ReproArgs;
use crate::engine::Kind;
use crate::report::{Row, median};
use crate::repro::{Line, rows_of};

const FIGURE: &str = "pm-dbsize";
/// Records of 8 bytes and 500: a quarter of a GiB, which is half of the memory, and as much as the cache has. So it was where the reference
/// grew from: 100 GB, with 200 GB of memory and 100 GB of caches.
const RECORDS: u64 = 500_000;
const SIZES: &str = "--key-bytes 8 --value-bytes 500 --memtable-mib 424 --cache-mib 242";
const GROWTH: u64 = 6;
/// What the reference says to keep of its speed.
const KEPT: f64 = 0.73;
/// What it says that its baseline, with small memtables, keeps: nothing that ours is to be held to.
const BASELINE_KEPT: f64 = 0.12;

/// Measures; `see` gets each line as it comes.
pub(in crate::repro) fn measure(
    a: &ReproArgs,
    see: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let engines = if cfg!(feature = "peers") { ",rocksdb-small,rocksdb --rocksdb-block-kib 16" } else { "" };
    let of = |records| {
        let command = format!(
            "--workload ycsb-d --threads 2 --sync --engine terrane-pm,terrane-skiplist-small,terrane-skiplist{engines} \
             --records {records} {SIZES} --direct --ops 1000000000 --seconds 10"
        );
        rows_of(a, FIGURE, &command)
    };
    let ((args, small), (_, large)) = (of(RECORDS)?, of(RECORDS * GROWTH)?);
    for engine in args.engine {
        let speed = |rows: &[Row]| {
            median(rows.iter().filter(|r| r.entrant.kind == engine).map(|r| r.ops_per_s).collect())
        };
        let (before, after) = (speed(&small), speed(&large));
        let claimed = (engine == Kind::TerranePm).then_some(KEPT);
        let mut note = format!("{before:.0} and {after:.0} operations per second");
        if let Some(what) = small.iter().find(|r| r.entrant.kind == engine).and_then(|r| r.pmem.as_ref()) {
            note = format!("{what}; {note}");
        }
        if engine == Kind::TerraneSkiplistSmall {
            note = format!("{note}; the reference's kept {BASELINE_KEPT}");
        }
        let row = format!("{} with {GROWTH} times the records", engine.name());
        see(line(FIGURE, row, claimed, after / before, "of the speed", note))?;
    }
    Ok(())
}
