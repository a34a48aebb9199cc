use terrane_base::ErrorKind;
use terrane_cache::{CacheOptions, Priority};
use terrane_format::block::{Compression, FinishedBlock};
use terrane_format::extent::{ExtentBuilder, ExtentForm};
use terrane_media::sim::SimMedia;
use terrane_media::{Media, OpenMode};

use super::*;
use crate::buffers::Buffers;
use crate::levels::bulk::{self, Wanted};
use crate::levels::io;
use crate::levels::testkit::{Record, blocks, dir, handles, machine, small_form};

const UNIT: u32 = 3;

/// An extent in a file of its own.
fn written(media: &Arc<SimMedia>, form: ExtentForm, blocks: Vec<FinishedBlock>) -> Arc<Extent> {
    let mut builder = ExtentBuilder::new(form).unwrap();
    blocks.into_iter().for_each(|b| builder.add_block(b, None).unwrap());
    builder.set_tombstones(&RangeTombstones::from_ranges([("a", "b", 9), ("c", "d", 4)]));
    let mut extent = builder.finish(terrane_base::ExtentId(5)).unwrap();
    (extent.meta.file, extent.meta.unit) = (1, UNIT);
    let file = media.open(&dir().join("data-000001"), OpenMode::CREATE_DIRECT).unwrap();
    file.set_len(1 << 20).unwrap();
    io::write(&*file, u64::from(UNIT) << 16, &extent.bytes).unwrap();
    Extent::new(Arc::new(extent.meta), file, "users".into(), Reclaimer::new(|| {}))
}

fn sample(compression: Compression) -> (Arc<SimMedia>, Arc<Extent>, Vec<FinishedBlock>) {
    sample_of(120, compression)
}

fn sample_of(n: u32, compression: Compression) -> (Arc<SimMedia>, Arc<Extent>, Vec<FinishedBlock>) {
    let media = machine(1);
    let records: Vec<Record> =
        (0..n).map(|i| (format!("k{i:05}").into(), 7, format!("{i} ").repeat(40).into())).collect();
    let form = ExtentForm { compression, max_bytes: 1 << 20, ..small_form() };
    let blocks = blocks(&form, &records);
    assert!(blocks.len() > 3);
    let extent = written(&media, form, blocks.clone());
    (media, extent, blocks)
}

fn many(media: &dyn Media, extent: &Arc<Extent>, blocks: &[BlockHandle]) -> Result<Vec<Bytes>> {
    many_beside(media, &Cache::new(CacheOptions::for_processors(1 << 20, 2)), extent, blocks)
}

fn many_beside(
    media: &dyn Media,
    cache: &Cache,
    extent: &Arc<Extent>,
    blocks: &[BlockHandle],
) -> Result<Vec<Bytes>> {
    let wanted = [Wanted { extent: extent.clone(), blocks: blocks.to_vec() }];
    Ok(bulk::load(media, cache, &wanted, &Buffers::new(1))?.remove(0))
}

#[test]
fn blocks_come_back_one_by_one_and_many_at_once() {
    for compression in [Compression::None, Compression::Zstd] {
        let (media, extent, blocks) = sample(compression);
        let handles = handles(&extent).unwrap();
        for (h, b) in handles.iter().zip(&blocks) {
            assert_eq!(*extent.load_block(h).unwrap(), *b.bytes);
            assert_eq!(extent.load_stored(h).unwrap().len(), h.stored_len as usize);
        }
        let all: Vec<Vec<u8>> = blocks.iter().map(|b| b.bytes.clone()).collect();
        let reads = media.read_count();
        assert_eq!(many(&*media, &extent, &handles).unwrap(), all);
        assert_eq!(media.read_count() - reads, 1, "neighbours are read in one go");
        let some = [handles[0], handles[1], handles[3]];
        assert_eq!(many(&*media, &extent, &some).unwrap(), [&all[0][..], &all[1], &all[3]]);
        assert_eq!(media.read_count() - reads, 3);
        assert!(many(&*media, &extent, &[]).unwrap().is_empty());
        let order = [handles[2], handles[1]];
        assert_eq!(many(&*media, &extent, &order).unwrap(), [&all[2][..], &all[1]]);
    }
}

#[test]
fn what_the_cache_has_is_not_read_but_for_a_little_between_what_is() {
    let (media, extent, blocks) = sample_of(2500, Compression::None);
    let handles = handles(&extent).unwrap();
    let all: Vec<Vec<u8>> = blocks.iter().map(|b| b.bytes.clone()).collect();
    let last = handles.len() - 1;
    let large = (1..last).find(|end| handles[*end].offset - handles[1].offset >= 128 << 10).unwrap();
    let reads_with = |chosen: &dyn Fn(usize) -> bool| {
        let cache = Cache::new(CacheOptions::for_processors(4 << 20, 2));
        for (at, h) in handles.iter().enumerate().filter(|(at, _)| chosen(*at)) {
            cache.insert(extent.frame(h.offset), &all[at], Priority::Data);
        }
        let (count, hits) = (media.read_count(), cache.stats().hits);
        assert_eq!(many_beside(&*media, &cache, &extent, &handles).unwrap(), all);
        assert_eq!(cache.stats().hits, hits, "no reader came for them");
        media.read_count() - count
    };
    assert_eq!(reads_with(&|_| true), 0);
    assert_eq!(reads_with(&|at| at != 1), 1);
    assert_eq!(reads_with(&|at| at == 0 || at == last), 1, "what lies at the edges is left out");
    assert_eq!(reads_with(&|at| (1..large - 1).contains(&at)), 1, "one read is made of two");
    assert_eq!(reads_with(&|at| (1..large).contains(&at)), 2, "so much is spared");
}

#[test]
fn an_attached_extent_is_read_for_its_records_have_other_sequences() {
    let (media, extent, blocks) = sample(Compression::None);
    let file = media.open(&dir().join("data-000001"), OpenMode::DIRECT).unwrap();
    let attached =
        Extent::new(Arc::new(extent.meta.attached(77)), file, "users".into(), Reclaimer::new(|| {}));
    let handles = handles(&extent).unwrap();
    let cache = Cache::new(CacheOptions::for_processors(1 << 20, 2));
    for (h, b) in handles.iter().zip(&blocks) {
        cache.insert(attached.frame(h.offset), &b.bytes, Priority::Data);
    }
    let (count, read) = (media.read_count(), many_beside(&*media, &cache, &attached, &handles).unwrap());
    assert_eq!(media.read_count() - count, 1);
    assert!(read.iter().zip(&blocks).all(|(read, b)| *read != b.bytes));
}

#[test]
fn a_frame_that_is_not_as_stored_is_not_taken_for_it() {
    for compression in [Compression::None, Compression::Zstd] {
        let (media, extent, blocks) = sample(compression);
        let handles = handles(&extent).unwrap();
        let cache = Cache::new(CacheOptions::for_processors(1 << 20, 2));
        let plain = compression == Compression::None;
        for (h, b) in handles.iter().zip(&blocks) {
            let mut bytes = b.bytes.clone();
            // Stored otherwise, or damaged in memory since.
            bytes[7] ^= u8::from(plain);
            cache.insert(extent.frame(h.offset), bytes, Priority::Data);
        }
        let count = media.read_count();
        let read = many_beside(&*media, &cache, &extent, &handles).unwrap();
        assert!(read.iter().zip(&blocks).all(|(read, b)| *read == b.bytes));
        assert_eq!(media.read_count() - count, 1);
    }
}

#[test]
fn range_tombstones_are_read_once() {
    let (media, extent, _) = sample(Compression::None);
    assert_eq!(extent.tombstones().unwrap().covering(b"aa", 10), 9);
    let reads = media.read_count();
    assert_eq!(extent.tombstones().unwrap().covering(b"c", 3), 0);
    assert_eq!(media.read_count(), reads);
}

#[test]
fn every_flipped_bit_is_found_before_a_byte_is_used() {
    for compression in [Compression::None, Compression::Zstd] {
        let (media, extent, _) = sample(compression);
        let handles = handles(&extent).unwrap();
        let (meta, image) = (extent.meta.clone(), media.image());
        let sections = [&meta.index, &meta.filter, &meta.footer].map(|s| (s.offset, s.len));
        let parts = handles.iter().map(|h| (h.offset, h.stored_len)).chain(sections);
        for (offset, len) in parts {
            for byte in [0, len / 2, len - 1] {
                let media = image.crash(terrane_media::sim::CrashKind::Process, 0);
                let path = dir().join("data-000001");
                let at = (u64::from(UNIT) << 16) + u64::from(offset);
                media.flip_bit(&path, (at + u64::from(byte)) * 8 + 3).unwrap();
                let file = media.open(&path, OpenMode::DIRECT).unwrap();
                let x = Extent::new(meta.clone(), file, "users".into(), Reclaimer::new(|| {}));
                let results = [
                    x.load_index().map(drop),
                    x.load_filter().map(drop),
                    x.tombstones().map(drop),
                    many(&*media, &x, &handles).map(drop),
                    handles.iter().try_for_each(|h| x.load_stored(h).map(drop)),
                ];
                let errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
                let blocks = handles.iter().any(|h| h.offset == offset);
                assert_eq!(errors.len(), if blocks { 2 } else { 1 }, "offset {offset}, byte {byte}");
                for e in errors {
                    assert_eq!(
                        (e.kind(), e.offset(), e.subtable()),
                        (ErrorKind::Corruption, Some(at), Some("users"))
                    );
                    assert_eq!(e.file(), Some(path.as_path()));
                }
            }
        }
    }
}

#[test]
fn another_extent_in_the_place_does_not_pass_for_this_one() {
    let (media, old, blocks) = sample(Compression::None);
    let handles = handles(&old).unwrap();
    let mut builder = ExtentBuilder::new(ExtentForm { max_bytes: 1 << 20, ..small_form() }).unwrap();
    blocks.into_iter().rev().take(1).for_each(|b| builder.add_block(b, None).unwrap());
    let new = builder.finish(terrane_base::ExtentId(6)).unwrap();
    let file = media.open(&dir().join("data-000001"), OpenMode::DIRECT).unwrap();
    io::write(&*file, u64::from(UNIT) << 16, &new.bytes).unwrap();
    assert_eq!(old.load_block(&handles[0]).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn a_handle_that_points_outside_is_an_error() {
    let (media, extent, _) = sample(Compression::None);
    let good = handles(&extent).unwrap()[0];
    for (offset, stored_len) in [(u32::MAX, 1), (0, u32::MAX), (1 << 30, 16)] {
        let bad = BlockHandle { offset, stored_len, ..good };
        assert_eq!(extent.load_block(&bad).unwrap_err().kind(), ErrorKind::Corruption);
        assert!(many(&*media, &extent, &[good, bad]).is_err());
    }
}

/// What a transaction has read of its own run must not be found for what the run is once it is attached.
#[test]
fn a_run_of_a_transactions_own_has_its_frames_apart() {
    let (_, extent, _) = sample(Compression::None);
    let at = |seq| {
        let meta = Arc::new(extent.meta.attached(seq));
        Extent::new(meta, extent.file.clone(), "users".into(), Reclaimer::new(|| {})).frame(0)
    };
    assert_eq!(at(1000), extent.frame(0));
    for own in [FIRST_OWN, FIRST_OWN + 7] {
        assert_ne!(at(own), extent.frame(0));
        assert_eq!(at(own), at(FIRST_OWN));
    }
}
