//! Running a piece: the builder's side of compaction, and the install.
//!
//! The builder walks the plan in key order, has those blocks of the next tasks read ahead that are not cached, and keeps a bounded number of
//! tasks in flight with the scheduler; their verified outputs are written in order, each extent while the next ones are
//! built. Inputs stay valid meanwhile because the job holds the version that it was claimed in, and because claims keep
//! other jobs away (see [`crate::compact::busy`]). The install looks all the same whether the version still has them:
//! if not, the work is thrown away and nothing is changed.
//!
//! # After a crash
//! Until the manifest edit is durable nothing refers to the new extents: the next opening finds their space free.
//! Afterwards nothing refers to the old ones. Space of the old ones is reused only once the edit is durable and the last
//! reader that could still see them has gone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use terrane_base::{Error, ErrorKind, Result, Seq, SubtableId};
use terrane_compaction::builder::{Piece, Plan, Source, Span, Work, cut};
use terrane_compaction::{Done, Finished, InputBlock, Task, Way};
use terrane_format::block::{Block, BlockCursor, BlockForm, Compression as Stored};
use terrane_format::extent::{BlockHandle, ExtentForm};
use terrane_format::manifest::Edit;
use terrane_format::tombstone::RangeTombstones;
use terrane_media::{Errand, Pool, Signal};

use crate::buffers::Buffers;
use crate::compact::busy::KeyRange;
use crate::compact::dead::Dead;
use crate::compact::inputs::{self, BlockOf, Input};
use crate::compact::pick::{Pick, Reason};
use crate::compact::plan::{self, MoveRules, Stretch};
use crate::compact::warm::{Seen, SeenBlock, Warm, heir_of};
use crate::db::engine::Engine;
use crate::db::table::Table;
use crate::levels::bulk::{self, Wanted};
use crate::levels::{
    Extent, ExtentRef, Heir, Homes, RefKey, Run, RunWriter, Version, VersionEdit, WrittenRun,
};
use crate::options::{Compression, SubtableOptions};
use crate::read::blocks::{Part, load};

/// Tasks in flight per executing unit.
const AHEAD: usize = 2;

/// Tasks whose input is being read meanwhile.
const READ_AHEAD: usize = 2;

/// The form in which `level` of a subtable stores extents.
pub(crate) fn extent_form(o: &SubtableOptions, level: u8, extent_bytes: usize) -> ExtentForm {
    let (compression, zstd_level) = match o.compression {
        Compression::Zstd(l) if level >= 2 => (Stored::Zstd, l),
        _ => (Stored::None, 0),
    };
    ExtentForm {
        block: BlockForm { target_bytes: o.block_bytes, ..BlockForm::with(o.directory) },
        compression,
        zstd_level,
        filter_bits_per_key: o.filter_bits,
        max_bytes: extent_bytes,
        ..ExtentForm::default()
    }
}

/// Blocks that a device takes per way (and the CPU is given, for the same tasks suit both).
const BLOCKS_PER_WAY: usize = 128;
/// Fewer neighbouring blocks than this are merged rather than copied: each copied stretch splits a task.
const MIN_COPY: usize = 3;

/// What a piece came to, before it is installed.
#[derive(Default)]
struct Outcome {
    written: Vec<WrittenRun>,
    /// Parts that go down as they are, with the way that they come from.
    moved: Vec<(usize, ExtentRef)>,
    dropped_values: Vec<u64>,
}

/// What stays the same over a piece.
struct Context<'a> {
    engine: &'a Engine,
    table: SubtableId,
    pick: &'a Pick,
    form: ExtentForm,
    snapshots: Vec<Seq>,
    buffers: Arc<Buffers>,
}

/// A step whose input is being read, if it has any.
enum Reading<'a> {
    Task { range: KeyRange, input: Errand<Vec<Way>>, seen: Seen<'a> },
    Copy { way: usize, blocks: std::ops::Range<usize> },
}

/// A step whose output is to be written.
enum Pending<'a> {
    Task { outcome: Arc<Mutex<Option<Result<Finished>>>>, seen: Seen<'a> },
    Copy { way: usize, blocks: std::ops::Range<usize> },
}

/// One range of a merge, in work: its steps pass through both queues in key order.
struct Merge<'a> {
    cx: &'a Context<'a>,
    ways: &'a [Vec<ExtentRef>],
    blocks: &'a [Vec<BlockOf>],
    tombstones: &'a RangeTombstones,
    bottom: bool,
    /// Where the indexes of the input are read.
    indexes: Warm<'a>,
    done: Arc<Signal>,
    reading: VecDeque<Reading<'a>>,
    pending: VecDeque<Pending<'a>>,
}

impl Engine {
    /// Merges one piece of `version`, in which it was claimed, and installs the outcome. False if somebody else changed
    /// the inputs meanwhile; nothing is changed then.
    ///
    /// # Errors
    /// Whatever reading, merging, writing or installing fails with; nothing is changed then.
    pub(super) fn compact_at_once(
        self: &Arc<Self>,
        table: &Arc<Table>,
        pick: &Pick,
        version: &Version,
    ) -> Result<bool> {
        let inputs = inputs::of_piece(version, pick);
        if inputs.iter().all(|i| i.parts.is_empty()) {
            return Ok(true);
        }
        // Published first, snapshots after: see `db::snapshot`. The inputs were fixed before both.
        let published = self.visible();
        let snapshots = self.snapshots.collect(published);
        let form = extent_form(&table.options(), pick.to, self.options.tuning.extent_bytes);
        let is_bottom = |range: &KeyRange| {
            let below = version.levels.iter().skip(pick.from.max(pick.to) as usize);
            below.into_iter().all(|run| run.overlapping(&range.lo, range.hi.as_deref()).is_empty())
        };
        let dead = Dead::of(version);
        let rules = MoveRules {
            compressed_below: form.compression != Stored::None,
            bottom: is_bottom(&pick.range),
            in_place: pick.from == pick.to,
            dead: &dead,
        };
        // As many as are ever in use: see the queues of [`Merge`].
        let buffers = Buffers::new(READ_AHEAD + AHEAD * self.options.compaction_jobs() + 2);
        let cx = Context { engine: self, table: table.id, pick, form, snapshots, buffers };
        let ways: Vec<Vec<ExtentRef>> = inputs.iter().map(|i| i.parts.clone()).collect();
        let mut out = Outcome::default();
        let mut read = 0;
        for stretch in plan::stretches(&ways, rules) {
            match stretch {
                Stretch::Move { way, at } => out.moved.push((way, at)),
                Stretch::Merge { range, ways } => {
                    for part in ways.iter().flatten() {
                        read += inputs::measure(&self.cache, part.clone())?.bytes();
                    }
                    cx.merge_stretch(&range, &ways, is_bottom(&range), &mut out)?;
                }
            }
        }
        let written = out.written.iter().flat_map(|w| w.extents()).map(|m| u64::from(m.data_bytes)).sum();
        self.counters.compact_read.add(read);
        self.counters.compact_written.add(written);
        self.counters.extents_moved.add(out.moved.len() as u64);
        self.install_piece(table, pick, &inputs, out)
    }

    /// Makes the outcome durable and visible.
    fn install_piece(
        self: &Arc<Self>,
        table: &Arc<Table>,
        pick: &Pick,
        inputs: &[Input],
        out: Outcome,
    ) -> Result<bool> {
        let edit_guard = table.edit.lock();
        table.check_alive()?;
        let version = table.state().version.clone();
        if !inputs::are_current(inputs, &version, pick) {
            return Ok(false);
        }
        let mut edit = VersionEdit::default();
        // Where nothing was done to what lies in the target level, it stays untouched, even if the piece ends within it.
        let stays = |way: usize, part: &ExtentRef| {
            let within = |m: &ExtentRef| part.lo <= m.lo && m.hi <= part.hi;
            let same = |m: &ExtentRef| Arc::ptr_eq(&m.extent, &part.extent) && within(m);
            inputs[way].level == pick.to && out.moved.iter().any(|(w, m)| *w == way && same(m))
        };
        for (way, input) in inputs.iter().enumerate() {
            for part in input.whole.iter().filter(|p| !stays(way, p)) {
                edit.removed.push(RefKey::of(input.level, input.run, part));
                for rest in inputs::remnants(part, &pick.range) {
                    edit.added.push((input.level, input.run, inputs::measure(&self.cache, rest)?));
                }
            }
        }
        for (way, part) in &out.moved {
            if inputs[*way].level != pick.to {
                edit.added.push((pick.to, 0, inputs::measure(&self.cache, part.clone())?));
            }
        }
        // What is merged within L0 is as new as the newest of it.
        let target = inputs.iter().filter(|i| i.level == pick.to).map(|i| i.run).max().unwrap_or(0);
        let written: Vec<Arc<Extent>> = out
            .written
            .iter()
            .flat_map(|w| w.extents().iter().map(|meta| self.open_extent(table, meta, w.homes())))
            .collect::<Result<_>>()?;
        inherit_heat(inputs, &written);
        edit.added.extend(written.into_iter().map(|extent| (pick.to, target, ExtentRef::whole(extent))));
        let applied = version.apply(&edit)?;
        let progress = progress_of_pass(&version, &applied.version, inputs);
        let sunk = match pick.from {
            0 => 0,
            from => level_bytes(&version, from).saturating_sub(level_bytes(&applied.version, from)),
        };
        let mut edits = edit.to_edits(table.id);
        edits.extend(out.dropped_values.iter().map(|&id| Edit::RemoveValue { subtable: table.id, id }));
        let values = self.values_of(table.id, Some(&out.dropped_values));
        let appended = self.append_edits(&edits);
        if appended.as_ref().err().is_none_or(|e| e.kind() == ErrorKind::Poisoned) {
            // Durable or in doubt: the space is theirs.
            out.written.into_iter().for_each(|w| drop(w.keep()));
        }
        appended?;
        let next = Arc::new(applied.version);
        table.install_version(next.clone(), None);
        self.check_homes(table.id, &edit);
        version.retire(&next, applied.obsolete, values);
        drop(edit_guard);
        table.readers.strip();
        if pick.from == 0 {
            self.account_for_change(table);
        }
        let now = self.media.now();
        match pick.reason {
            Reason::L0 => table.passes.lock().done(progress, now),
            Reason::Size => table.sinking.lock().done(sunk as f64, now),
            _ => {}
        }
        Ok(true)
    }

    /// The extent that was just written, its frames where `homes` says.
    pub(crate) fn open_extent(
        &self,
        table: &Table,
        meta: &Arc<terrane_format::extent::ExtentMeta>,
        homes: &Homes,
    ) -> Result<Arc<Extent>> {
        let file = self.space.file(meta.file)?;
        let extent = Extent::new(meta.clone(), file, table.name.clone(), self.reclaimer.clone());
        extent.set_home(homes.of(&meta.lo));
        Ok(extent)
    }
}

/// What replaces extents has their heat: that of each is divided among those that lie where it lay.
fn inherit_heat(inputs: &[Input], written: &[Arc<Extent>]) {
    for part in inputs.iter().flat_map(|i| &i.parts) {
        let heat = part.extent.heat.load(Ordering::Relaxed);
        if heat == 0 {
            continue;
        }
        let from = written.partition_point(|e| *e.meta.hi <= *part.lo);
        let to = written.partition_point(|e| *e.meta.lo < *part.hi).max(from);
        let heirs = &written[from..to];
        for heir in heirs {
            heir.heat.fetch_add(heat / heirs.len() as u32, Ordering::Relaxed);
        }
    }
}

/// Which share of a pass through L0 a piece was: what it took from the runs that it merged, of what they were when they
/// came.
fn progress_of_pass(before: &Version, after: &Version, inputs: &[Input]) -> f64 {
    let merged = |run: &&Arc<Run>| inputs.iter().any(|i| i.level == 0 && i.run == run.id);
    let bytes = |version: &Version| version.l0.iter().filter(merged).map(|r| r.bytes()).sum::<u64>();
    let births: u64 = before.l0.iter().filter(merged).map(|r| r.birth_bytes()).sum();
    bytes(before).saturating_sub(bytes(after)) as f64 / births.max(1) as f64
}

fn level_bytes(version: &Version, level: u8) -> u64 {
    version.levels.get(level as usize - 1).map_or(0, |r| r.bytes())
}

impl Context<'_> {
    fn merge_stretch(
        &self,
        range: &KeyRange,
        ways: &[Vec<ExtentRef>],
        bottom: bool,
        out: &mut Outcome,
    ) -> Result<()> {
        let engine = self.engine;
        let mut writer: Option<RunWriter> = None;
        let claimed: usize = out.written.iter().map(WrittenRun::claimed).sum();
        let allowance = engine.heirs_share().saturating_sub(claimed);
        // Range tombstones that survive are known only when all tasks are done, but extents are cut as blocks come: the
        // rules are pure, so they are applied to all of them beforehand.
        let tombstones = inputs::tombstones(ways, range)?;
        let all = self.task(range.clone(), Vec::new(), tombstones.clone(), bottom);
        let survivors = terrane_compaction::kept_tombstones(&all);
        // Before they are opened for this.
        let asked = |r: &&ExtentRef| engine.cache.is_read(Part::Index.key(&r.extent)) == Some(true);
        let indexes: Vec<_> = ways.iter().flatten().filter(asked).map(|r| (&*r.lo, &*r.hi)).collect();
        for range in plan::between_trimmed_edges(range, ways) {
            let blocks = ways
                .iter()
                .map(|parts| inputs::blocks(&engine.cache, parts, &range))
                .collect::<Result<Vec<_>>>()?;
            let pieces = self.cut(&range, ways, &blocks, &tombstones, bottom)?;
            let mut merge = Merge {
                cx: self,
                ways,
                blocks: &blocks,
                tombstones: &tombstones,
                bottom,
                indexes: Warm::new(indexes.clone()),
                done: Arc::new(Signal::new()),
                reading: VecDeque::new(),
                pending: VecDeque::new(),
            };
            let writer = match &mut writer {
                Some(w) => w,
                none => none.insert(RunWriter::new(
                    engine.space.clone(),
                    engine.ids.clone(),
                    self.form,
                    survivors.clone(),
                    engine.heirs(self.table, self.pick.to <= 1, allowance),
                )?),
            };
            let ahead = AHEAD * engine.options.compaction_jobs();
            for piece in pieces {
                if engine.closing.load(Ordering::Acquire) {
                    return Err(Error::new(ErrorKind::Closed, "the database is being closed"));
                }
                let range = KeyRange { lo: piece.lo, hi: piece.hi };
                merge.reading.push_back(match piece.work {
                    Work::Merge(sources) => merge.read(range, &sources),
                    Work::Copy { source, blocks } => Reading::Copy { way: source, blocks },
                });
                while merge.reading.len() > READ_AHEAD {
                    merge.submit_next()?;
                }
                while merge.pending.len() > ahead {
                    merge.write_next(writer, out)?;
                }
            }
            while !merge.reading.is_empty() {
                merge.submit_next()?;
            }
            while !merge.pending.is_empty() {
                merge.write_next(writer, out)?;
            }
        }
        if let Some(w) = writer {
            out.written.push(w.finish()?);
        }
        Ok(())
    }

    /// Cuts a range into tasks and copies.
    fn cut(
        &self,
        range: &KeyRange,
        ways: &[Vec<ExtentRef>],
        blocks: &[Vec<BlockOf>],
        tombstones: &RangeTombstones,
        bottom: bool,
    ) -> Result<Vec<Piece>> {
        let copyable = |parts: &[ExtentRef], b: &BlockOf| {
            self.pick.from != self.pick.to
                // As it is stored it does not have its sequence.
                && parts[b.part].extent.meta.global_seq.is_none()
                && b.handle.compression == self.form.compression
                && !(bottom && b.handle.deletes > 0)
        };
        // A block that straddles an edge of its part, or of the range, holds records that must not come along.
        let inside = |parts: &[ExtentRef], list: &[BlockOf], at: usize| {
            let b = &list[at];
            let Some(part) = parts[b.part].trim(&range.lo, range.hi.as_deref()) else { return false };
            let last = list.get(at + 1).is_none_or(|next| next.part != b.part);
            *b.first_key >= *part.lo && !(last && *part.hi < *part.extent.meta.hi)
        };
        let mut sources = Vec::with_capacity(ways.len());
        for (parts, list) in ways.iter().zip(blocks) {
            let spans = list.iter().enumerate().map(|(at, b)| {
                let h = &b.handle;
                // What must not be copied says that it is all deletions: the builder refuses such blocks.
                let deletes = if copyable(parts, b) && inside(parts, list, at) { h.deletes } else { h.rows };
                Span { first_key: &b.first_key[..], bytes: u64::from(h.raw_len), rows: h.rows, deletes }
            });
            sources.push(Source { blocks: spans.collect(), end: parts.last().map(|p| &*p.hi) });
        }
        let plan = Plan {
            lo: &range.lo,
            hi: range.hi.as_deref(),
            sources: &sources,
            tombstones,
            blocks_per_way: BLOCKS_PER_WAY,
            bytes: self.engine.options.tuning.task_bytes as u64,
            copy_blocks: MIN_COPY,
        };
        cut(&plan, |source, block| {
            let b = &blocks[source][block];
            last_key(&ways[source][b.part].extent, &b.handle)
        })
    }

    fn task(&self, range: KeyRange, ways: Vec<Way>, tombstones: RangeTombstones, bottom: bool) -> Task {
        Task {
            id: self.engine.next_task.fetch_add(1, Ordering::Relaxed),
            lo: range.lo,
            hi: range.hi,
            ways,
            tombstones,
            snapshots: self.snapshots.clone(),
            bottom,
            form: self.form.block,
        }
    }
}

/// The last key of a block.
fn last_key(extent: &Extent, handle: &BlockHandle) -> Result<Vec<u8>> {
    let raw = extent.load_block(handle)?;
    let place = |e| extent.place(e, handle.offset);
    let mut cursor = BlockCursor::new();
    cursor.seek_last(Block::parse(&raw).map_err(place)?).map_err(place)?;
    Ok(cursor.key().to_vec())
}

impl<'a> Merge<'a> {
    /// Has the input of a task read.
    fn read(&self, range: KeyRange, sources: &[std::ops::Range<usize>]) -> Reading<'a> {
        let seen = self.seen(sources);
        let mut wanted = Vec::new();
        // How many of `wanted` each way has.
        let mut shares = Vec::with_capacity(self.ways.len());
        for ((parts, blocks), chosen) in self.ways.iter().zip(self.blocks).zip(sources) {
            let before = wanted.len();
            let chosen = blocks.get(chosen.clone()).unwrap_or_default();
            wanted.extend(chosen.chunk_by(|a, b| a.part == b.part).map(|same| Wanted {
                extent: parts[same[0].part].extent.clone(),
                blocks: same.iter().map(|b| b.handle).collect(),
            }));
            shares.push(wanted.len() - before);
        }
        let engine = self.cx.engine;
        let (media, cache, buffers) = (engine.media.clone(), engine.cache.clone(), self.cx.buffers.clone());
        let input = Errand::send(&*engine.media, Pool::Io, "compaction input", move || {
            let mut loaded = bulk::load(&*media, &cache, &wanted, &buffers)?.into_iter().zip(&wanted);
            let way = |share| {
                let mut way = Way::default();
                for (blocks, wanted) in loaded.by_ref().take(share) {
                    let attached = wanted.extent.meta.global_seq.is_some();
                    way.blocks.extend(blocks.into_iter().zip(&wanted.blocks).map(|(bytes, handle)| {
                        match handle.compression {
                            Stored::None if !attached => InputBlock::with_crc(bytes, handle.crc),
                            _ => InputBlock::new(bytes),
                        }
                    }));
                }
                way
            };
            Ok(shares.into_iter().map(way).collect())
        });
        Reading::Task { range, input, seen }
    }

    /// Queues the oldest task that is being read.
    fn submit_next(&mut self) -> Result<()> {
        let engine = self.cx.engine;
        let (range, input, seen) = match self.reading.pop_front() {
            None => return Ok(()),
            Some(Reading::Copy { way, blocks }) => {
                self.pending.push_back(Pending::Copy { way, blocks });
                return Ok(());
            }
            Some(Reading::Task { range, input, seen }) => (range, input, seen),
        };
        let ways = input.wait(&*engine.media)?;
        let tombstones = self.tombstones.clip(&range.lo, range.hi.as_deref());
        let mut task = self.cx.task(range, ways, tombstones, self.bottom);
        let outcome = Arc::new(Mutex::new(None));
        let (theirs, signal) = (outcome.clone(), self.done.clone());
        let mut done: Done = Box::new(move |result| {
            *theirs.lock() = Some(result);
            signal.notify_all();
        });
        loop {
            match engine.scheduler.submit(task, done) {
                Ok(_token) => break,
                Err(refused) if refused.error.kind() == ErrorKind::LimitExceeded => {
                    engine.scheduler.wait_for_room()?;
                    (task, done) = (refused.task, refused.done);
                }
                Err(refused) => return Err(refused.error),
            }
        }
        self.pending.push_back(Pending::Task { outcome, seen });
        Ok(())
    }

    /// Where readers have the input of a task.
    fn seen(&self, sources: &[std::ops::Range<usize>]) -> Seen<'a> {
        let mut seen = Vec::new();
        let target = (self.cx.pick.from != self.cx.pick.to).then(|| self.ways.len() - 1);
        for (way, ((parts, blocks), chosen)) in self.ways.iter().zip(self.blocks).zip(sources).enumerate() {
            for at in chosen.clone() {
                let Some(b) = blocks.get(at) else { continue };
                let part = &parts[b.part];
                let next = blocks.get(at + 1).filter(|next| next.part == b.part);
                let span = (&b.first_key[..], next.map_or(&*part.hi, |next| &next.first_key));
                let heir = heir_of(&self.cx.engine.cache, Part::Data(b.handle).key(&part.extent));
                let (bytes, in_target) = (b.handle.raw_len, Some(way) == target);
                seen.push(SeenBlock { heir, span, bytes, in_target });
            }
        }
        Seen::new(seen)
    }

    /// Waits for the oldest step and writes its output.
    fn write_next(&mut self, writer: &mut RunWriter, out: &mut Outcome) -> Result<()> {
        match self.pending.pop_front() {
            None => Ok(()),
            Some(Pending::Task { outcome, mut seen }) => {
                let media = &*self.cx.engine.media;
                self.done.wait_until(media, || outcome.lock().is_some())?;
                let Some(result) = outcome.lock().take() else {
                    return Err(Error::new(ErrorKind::Closed, "a compaction task ended without a result"));
                };
                let finished = result?;
                self.cx.engine.counters.tasks_redone.add(u64::from(finished.redone));
                let output = finished.output;
                out.dropped_values.extend(output.dropped_values);
                // The sums were checked with all the rest of the output.
                output.blocks.into_iter().zip(output.block_crcs).try_for_each(|(block, crc)| {
                    let by_blocks = seen.heir(&block.first_key, &block.last_key, block.bytes.len());
                    let heir = self.heir(by_blocks, &block.first_key, &block.last_key);
                    writer.add_block(block, Some(crc), heir)
                })
            }
            Some(Pending::Copy { way, blocks }) => self.copy(way, blocks, writer),
        }
    }

    /// What becomes of a block from `first` to `last`, by what was seen of the blocks that it replaces. Blocks come in ascending order.
    fn heir(&mut self, by_blocks: Heir, first: &[u8], last: &[u8]) -> Heir {
        match (self.indexes.meets(first, last), by_blocks) {
            (true, Heir::No) => Heir::Index,
            (index, Heir::Below { .. }) => Heir::Below { index },
            _ => by_blocks,
        }
    }

    /// Copies blocks as bytes, verified.
    fn copy(&mut self, way: usize, range: std::ops::Range<usize>, writer: &mut RunWriter) -> Result<()> {
        let engine = self.cx.engine;
        let mut cursor = BlockCursor::new();
        for b in &self.blocks[way][range] {
            let (extent, handle) = (&self.ways[way][b.part].extent, &b.handle);
            let place = |e| extent.place(e, handle.offset);
            let stored = extent.load_stored(handle)?;
            let raw = handle.open(&stored).map_err(place)?;
            let block = Block::parse(&raw).map_err(place)?;
            cursor.seek_first(block).map_err(place)?;
            let first = (cursor.key().to_vec(), cursor.seq());
            cursor.seek_last(block).map_err(place)?;
            let filters = match handle.filter_len {
                0 => None,
                _ => Some(load(&engine.cache, extent, &Part::Filter)?),
            };
            let filter = match &filters {
                None => &[],
                Some(pin) => handle.filter(pin).map_err(place)?,
            };
            let by_block = heir_of(&engine.cache, Part::Data(*handle).key(extent));
            let heir = self.heir(by_block, &first.0, cursor.key());
            writer.add_stored_block(
                (&first.0, first.1),
                cursor.key(),
                handle,
                &stored,
                filter,
                (heir, &raw),
            )?;
            engine.counters.blocks_copied.add(1);
        }
        Ok(())
    }
}
