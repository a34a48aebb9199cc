//! What the tests of this room share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use terrane_base::{ExtentId, Result, Seq, SubtableId};
use terrane_format::Kind;
use terrane_format::block::{Block, BlockBuilder, BlockCursor, BlockForm, FinishedBlock};
use terrane_format::extent::{BlockHandle, ExtentForm, ExtentMeta, Index, IndexCursor, Section};
use terrane_format::manifest::{Edit, PartSize};
use terrane_media::sim::{CrashKind, Image, SimMedia};
use terrane_media::{Media, OpenMode};

use terrane_cache::{Cache, CacheOptions};

use super::{Extent, ExtentRef, Heirs, Homes, Reclaimer};

/// A small cache's, for writers that are not asked about it.
pub(crate) fn heirs() -> Heirs {
    Heirs::new(
        Arc::new(Cache::new(CacheOptions::for_processors(1 << 20, 2))),
        Homes::default(),
        false,
        128 << 10,
    )
}

pub(super) const T: SubtableId = SubtableId(1);
pub(super) const UUID: [u8; 16] = [7; 16];

pub(super) fn dir() -> &'static Path {
    Path::new("/db")
}

/// A machine with an empty, durable database directory.
pub(super) fn machine(seed: u64) -> Arc<SimMedia> {
    let media = SimMedia::new(seed);
    media.create_dir_all(dir()).unwrap();
    media.sync_dir(Path::new("/")).unwrap();
    media
}

pub(crate) fn meta(id: u64, lo: &str, hi: &str) -> Arc<ExtentMeta> {
    Arc::new(ExtentMeta {
        id: ExtentId(id),
        file: 1,
        unit: id as u32 * 2,
        units: 2,
        index: Section { offset: 10, len: 10, crc: 1 },
        filter: Section::default(),
        footer: Section { offset: 20, len: 10, crc: 3 },
        rows: 10,
        deletes: 1,
        blocks: 1,
        data_bytes: 10,
        raw_bytes: 10,
        min_seq: 1,
        max_seq: 2,
        global_seq: None,
        lo: lo.into(),
        hi: hi.into(),
        has_tombstones: false,
        value_refs: false,
    })
}

/// An extent that cannot be read.
pub(crate) fn extent(meta: Arc<ExtentMeta>, reclaimer: &Arc<Reclaimer>) -> Arc<Extent> {
    let media = SimMedia::new(0);
    let path = PathBuf::from("/file");
    let file = media.open(&path, OpenMode::CREATE_DIRECT).unwrap();
    Extent::new(meta, file, "t".into(), reclaimer.clone())
}

pub(super) fn create(id: u32, name: &str) -> Edit {
    Edit::CreateSubtable { id: SubtableId(id), name: name.into(), options: vec![1], lsn: 4096 }
}

pub(super) fn add(level: u8, run: u64, meta: &Arc<ExtentMeta>) -> Edit {
    let (lo, hi) = (meta.lo.clone(), meta.hi.clone());
    Edit::AddRef { subtable: T, level, run, lo, hi, size: PartSize::whole(meta), extent: meta.clone() }
}

pub(super) fn remove(level: u8, run: u64, meta: &Arc<ExtentMeta>) -> Edit {
    Edit::RemoveRef { subtable: T, level, run, extent: meta.id, lo: meta.lo.clone() }
}

/// Pictures of a machine before each of its calls, each with how many steps had been acknowledged.
#[derive(Clone, Default)]
pub(super) struct Film {
    frames: Arc<Mutex<Vec<(Image, usize, String)>>>,
    acknowledged: Arc<AtomicUsize>,
}

impl Film {
    /// Films what `media` does from now on.
    pub(super) fn of(media: &Arc<SimMedia>) -> Film {
        let film = Film::default();
        let f = film.clone();
        media.on_op(Some(Arc::new(move |m, op| {
            let label = format!("call {} {:?} {}", op.index, op.kind, op.path.display());
            f.frames.lock().push((m.image(), f.acknowledged.load(Ordering::Relaxed), label));
        })));
        film
    }

    /// One more step is acknowledged.
    pub(super) fn acknowledge(&self) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }

    /// Every machine that may come up after a crash at any moment, with the number of acknowledged steps.
    pub(super) fn crashes(&self, seeds: u64, mut check: impl FnMut(Arc<SimMedia>, usize, &str)) {
        for (image, acknowledged, label) in self.frames.lock().iter() {
            for kind in CrashKind::ALL {
                let seeded = matches!(kind, CrashKind::PowerTorn | CrashKind::ProcessTorn);
                for seed in 0..if seeded { seeds } else { 1 } {
                    check(image.crash(kind, seed), *acknowledged, &format!("{label}, {kind:?}, seed {seed}"));
                }
            }
        }
    }
}

/// Extents of about three small blocks, so that little data makes many.
pub(super) fn small_form() -> ExtentForm {
    let block = BlockForm { target_bytes: 4096, ..BlockForm::default() };
    ExtentForm { block, max_bytes: 14 << 10, ..ExtentForm::default() }
}

/// A record: key, sequence, value.
pub(super) type Record = (Vec<u8>, Seq, Vec<u8>);

/// Blocks of these records, in order.
pub(super) fn blocks(form: &ExtentForm, records: &[Record]) -> Vec<FinishedBlock> {
    let mut builder = BlockBuilder::new(form.block);
    let mut out = Vec::new();
    for (key, seq, value) in records {
        if !builder.fits(key.len(), value.len(), *seq) {
            out.push(builder.finish());
        }
        builder.add(key, *seq, Kind::Put, value);
    }
    if !builder.is_empty() {
        out.push(builder.finish());
    }
    out
}

/// All block handles of an extent.
pub(super) fn handles(extent: &Extent) -> Result<Vec<BlockHandle>> {
    let bytes = extent.load_index()?;
    let index = Index::parse(&bytes)?;
    let mut cursor = IndexCursor::new();
    cursor.seek_first(index)?;
    let mut out = Vec::new();
    while let Some(handle) = cursor.handle().copied() {
        out.push(handle);
        cursor.next(index)?;
    }
    Ok(out)
}

/// All records of a part of an extent, every byte verified.
pub(super) fn records(part: &ExtentRef) -> Result<Vec<Record>> {
    let mut out = Vec::new();
    part.extent.load_filter()?;
    part.extent.load_footer()?;
    for handle in handles(&part.extent)? {
        let bytes = part.extent.load_block(&handle)?;
        let block = Block::parse(&bytes)?;
        block.verify()?;
        let mut cursor = BlockCursor::new();
        cursor.seek_first(block)?;
        while cursor.valid() {
            if part.contains(cursor.key()) {
                out.push((cursor.key().to_vec(), cursor.seq(), cursor.value(block).to_vec()));
            }
            cursor.next(block)?;
        }
    }
    Ok(out)
}
