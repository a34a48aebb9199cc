//! Going on with a log that was recovered (or begins).
//!
//! # How
//! 1. Files without a good header become spares.
//! 2. A new generation begins at the LSN up to which the old ones are *proved* durable. Everything from there to the end
//!    is written again, as frames of the new generation: what lay in segments without proof (about two segments at most,
//!    see [`super::drain`]) as well as what only the tail had. Its first segment has no header yet. Where the log is
//!    short, or spread over many segments that are nearly empty, the generation takes in all that is needed instead, so
//!    that opening again and again does not take one segment each time.
//! 3. These frames are flushed; then that first header is written and flushed.
//! 4. All other files that hold nothing needed (void, or older than what is) have their headers wiped and become spares.
//!    The tail gets the new generation and is empty.
//!
//! # After a crash on the way
//! Without the header of step 3 the new generation does not exist: the next recovery finds the old segments and the tail
//! as they were, and does the same again. With it, the generation holds the whole log, and what older ones have from
//! there on is void, as is the old tail, whose entries all lie below the end. The header is one sector, written twice in
//! itself, so there is nothing between the two. Its durable LSN is the *start* of the generation: a recovery that can
//! read the header, but not know that it was flushed, writes everything again once more. For the same reason a file with
//! a good header is touched only after step 3, even if it looks unneeded: what makes it so may be an unflushed header.
//!
//! Writing again, rather than flushing the old files, matters where a flush has failed: their unflushed bytes still read
//! well, yet no later flush makes them durable.

use std::collections::VecDeque;
use std::sync::Arc;

use terrane_base::{Error, Lsn, Result};
use terrane_media::Media;

use super::plan::Unused;
use super::pool::Pool;
use super::recover::Basis;
use super::segment::{self, Segment};
use super::stream::Stream;
use super::tail::Tail;
use super::writer::{Used, Writer};
use super::{Log, LogOptions, Recovered, Shared};

impl Log {
    /// Opens the log for writing where recovery found its end. On return everything that was replayed is durable in
    /// segments (`durable_lsn() == recovered.end`), and only then may the manifest be told so. Can be cut off at any point
    /// and done again from [`Log::recover`].
    ///
    /// The log goes on under `generation`, which is higher than the one it was recovered with and durable in the manifest
    /// by now. Every entry written must bear it.
    pub(crate) fn start(
        media: Arc<dyn Media>,
        options: LogOptions,
        generation: u32,
        recovered: Recovered,
    ) -> Result<Log> {
        options.check()?;
        if generation <= recovered.basis.plan.generation {
            return Err(Error::invalid(format!(
                "the log was to go on under generation {generation}, which it had already"
            )));
        }
        let begin = beginning(&options, &recovered);
        let Basis { plan, oldest, segments_end, durable, from_tail } = recovered.basis;
        let end = recovered.end;
        let pool = Pool::new(media.clone(), options.clone(), plan.last_number + 1);
        let (spares, mut void): (Vec<Unused>, Vec<Unused>) = plan.unused.iter().partition(|f| f.blank);
        for file in spares {
            recycle(&media, &options, &pool, file)?;
        }
        media.sync_dir(&options.dir)?;

        let (mut writer, opening) =
            Writer::begin_generation(media.clone(), options.clone(), &pool, generation, begin, durable)?;
        let mut live: VecDeque<Used> = VecDeque::new();
        for s in &plan.segments {
            if s.header.first_lsn < begin && begin > oldest {
                let segment = Segment::open(&*media, &options.dir, s.header.number)?;
                live.push_back(Used { segment, first_lsn: s.header.first_lsn });
            } else {
                void.push(s.unused());
            }
        }
        live.push_back(opening.used());
        let mut copy =
            Copier { options: &options, pool: &pool, writer: &mut writer, live: &mut live, durable };
        let first = plan.segments.iter().rposition(|s| s.header.first_lsn <= begin).unwrap_or(0);
        let mut stream = Stream::new(&media, &plan.segments[first..], segments_end);
        while let Some((lsn, bytes)) = stream.next()? {
            copy.piece(lsn, &bytes, end)?;
        }
        drop(stream);
        copy.piece(segments_end, &from_tail, end)?;
        if writer.written() != end {
            return Err(Error::corruption(format!(
                "the log ended at LSN {end} when it was read, and at LSN {} when it was copied",
                writer.written()
            )));
        }
        writer.commit_generation(&opening)?;
        drop(plan.segments);
        for file in void {
            recycle(&media, &options, &pool, file)?;
        }
        let tail = Tail::start(&*media, &options, generation, end)?;
        let log = Log(Arc::new(Shared::new(media, options, end, tail, pool, writer, live)));
        log.0.prepare_ahead();
        Ok(log)
    }
}

/// A log of at most this length is written again whole.
const SHORT: u64 = 1 << 20;

/// Where the new generation begins: at what is proved durable, or at the oldest LSN needed.
fn beginning(options: &LogOptions, recovered: &Recovered) -> Lsn {
    let basis = &recovered.basis;
    let needed = recovered.end - basis.oldest;
    let kept = basis.plan.segments.iter().filter(|s| s.header.first_lsn < basis.durable).count() as u64;
    let sparse = kept > 2 * needed.div_ceil(options.segment_room()) + 1;
    if needed <= SHORT.min(options.segment_room() / 2) || sparse { basis.oldest } else { basis.durable }
}

/// Makes a spare of a segment file that holds nothing needed, or removes it if it has another size than ours.
fn recycle(media: &Arc<dyn Media>, options: &LogOptions, pool: &Pool, file: Unused) -> Result<()> {
    let Unused { number, len, .. } = file;
    if len == options.segment_bytes {
        let segment = Segment::open(&**media, &options.dir, number)?;
        segment.blank(len)?;
        return pool.give_back(segment);
    }
    if len >= terrane_format::log::LOG_SECTOR as u64 {
        // The name may come back after a power failure; the header must not.
        Segment::open(&**media, &options.dir, number)?.wipe()?;
    }
    media.remove_file(&segment::path(&options.dir, number))
}

/// Writes the old stream into the new generation.
struct Copier<'a> {
    options: &'a LogOptions,
    pool: &'a Pool,
    writer: &'a mut Writer,
    live: &'a mut VecDeque<Used>,
    durable: Lsn,
}

impl Copier<'_> {
    /// Takes the piece `bytes` of the stream at `lsn`: what of it lies between the writer's position and `end`.
    fn piece(&mut self, lsn: Lsn, bytes: &[u8], end: Lsn) -> Result<()> {
        let to = end.min(lsn + bytes.len() as u64);
        while self.writer.written() < to && lsn <= self.writer.written() {
            let n = to - self.writer.written();
            let most = self.options.full_payload();
            self.writer.reserve(self.pool, n)?;
            let new = self.writer.frame(self.pool, self.durable, n, most, |at, out| {
                let from = (at - lsn) as usize;
                out.copy_from_slice(&bytes[from..from + out.len()]);
                Ok(())
            })?;
            self.live.extend(new);
        }
        Ok(())
    }
}
