//! The medium that is tested, as `TERRANE_TEST_MEDIUM` says: as `tests/support` does it for the tests beside the crate, so that those
//! within are for all media too.

use std::path::Path;

use terrane_media::{Media, PmemMode};

use crate::levels::ManifestStore;
use crate::options::{Medium, Options, PmemOptions};

/// How large a memory is: so many times what the test's memtables may take, within bounds.
const TIMES_MEMTABLES: usize = 4;
const BYTES: std::ops::RangeInclusive<usize> = 8 << 20..=64 << 20;

/// The options for a database in `dir`: with the memory that `TERRANE_TEST_MEDIUM` says, if the test does not choose its medium, and
/// the database does not have one.
pub(crate) fn on_medium(options: Options, media: &dyn Media, dir: &Path) -> Options {
    let is_simulated = media.cores().is_empty();
    let Ok(medium) = std::env::var("TERRANE_TEST_MEDIUM") else { return options };
    let mode = match medium.as_str() {
        "pmem" | "pmem-index" | "pmem-log" if is_simulated => PmemMode::Dax,
        "pmem" | "pmem-index" | "pmem-log" => PmemMode::StandIn,
        "page-cache" => PmemMode::PageCache,
        other => panic!("TERRANE_TEST_MEDIUM is pmem, pmem-index, pmem-log or page-cache, not {other}"),
    };
    let has_one = ManifestStore::exists(media, dir).unwrap_or_default();
    if has_one || options.medium.is_some() || options.pmem_path.is_some() {
        return options;
    }
    let bytes = (TIMES_MEMTABLES * options.memtable_bytes).clamp(*BYTES.start(), *BYTES.end());
    let memory = PmemOptions::new(bytes as u64).zone_bytes(32 << 10).mode(mode);
    let memory = memory.trailing_log(medium == "pmem-log").index_in_pmem(medium == "pmem-index");
    options.medium(Medium::Pmem(memory))
}
