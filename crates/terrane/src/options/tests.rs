use terrane_media::PmemCost;

use super::*;
use crate::options::pmem::MIN_PMEM_BYTES;

#[test]
fn absurd_options_are_refused_by_name() {
    let name = |r: Result<()>| r.unwrap_err().to_string();
    assert!(name(Options::new().memtable_bytes(1).check()).contains("memtable_bytes"));
    assert!(name(Options::new().cache_bytes(0).check()).contains("cache_bytes"));
    assert!(name(Options::new().create_if_missing(false).memtable_bytes(1 << 45).check()).contains("16 TiB"));
    assert!(name(Options::new().background_threads(1000).check()).contains("background_threads"));
    let sub = |o: SubtableOptions| name(o.check(8 << 20));
    assert!(sub(SubtableOptions::new().block_bytes(100)).contains("block_bytes"));
    assert!(sub(SubtableOptions::new().filter_bits(64)).contains("filter_bits"));
    assert!(sub(SubtableOptions::new().compression(Compression::Zstd(-3))).contains("zstd"));
    let memory = PmemOptions::new(MIN_PMEM_BYTES).cost(PmemCost::OPTANE);
    let costly = |mode| Options::new().medium(Medium::Pmem(memory.clone().mode(mode)));
    assert!(name(costly(PmemMode::Dax).check()).contains("costs"));
    assert!(name(costly(PmemMode::PageCache).check()).contains("costs"));
    assert!(costly(PmemMode::StandIn).check().is_ok());
    assert!(Options::new().check().is_ok());
    assert!(SubtableOptions::new().check(8 << 20).is_ok());
}
