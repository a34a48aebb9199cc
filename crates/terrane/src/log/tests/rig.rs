//! A log, the part of a manifest that concerns it, and a model of what it must hold.

use std::path::Path;
use std::sync::{Arc, Mutex};

use terrane_base::{Lsn, Result};
use terrane_format::batch::{EntryHeader, EntryKind, body_crc};
use terrane_media::Media;
use terrane_media::sim::{CrashKind, Image, SimMedia};

use super::super::{FIRST_LSN, Log, LogOptions, RecoverFrom, Recovered};

pub(super) const DIR: &str = "/db";

/// Sizes so small that short histories lap the ring and change segments.
pub(super) fn options() -> LogOptions {
    LogOptions {
        segment_bytes: 24 << 10,
        tail_bytes: 12 << 10,
        drain_bytes: 8 << 10,
        ..LogOptions::new(DIR, [7; 16])
    }
}

/// What happened up to some moment, as far as promises go.
#[derive(Clone, Debug)]
pub(super) struct Told {
    /// What the manifest says.
    pub(super) from: RecoverFrom,
    /// LSN and body of every entry whose write has begun, oldest first.
    pub(super) begun: Vec<(Lsn, Vec<u8>)>,
    /// Below this, everything was acknowledged to an unsynced writer.
    pub(super) advanced: Lsn,
    /// Below this, to a synced one.
    pub(super) synced: Lsn,
}

impl Told {
    pub(super) fn new() -> Self {
        let from = RecoverFrom { lsn: FIRST_LSN, durable: FIRST_LSN, generation: 0, clean: false };
        Told { from, begun: Vec::new(), advanced: FIRST_LSN, synced: FIRST_LSN }
    }

    /// The promises that hold after a crash of this kind.
    pub(super) fn promised(&self, kind: CrashKind) -> Lsn {
        match kind {
            CrashKind::Process | CrashKind::ProcessTorn => self.advanced,
            _ => self.synced,
        }
    }

    /// The log was recovered to `end`: what lies behind never happened.
    fn cut(&mut self, end: Lsn) {
        self.begun.retain(|(lsn, _)| *lsn < end);
    }
}

/// A machine with an open log.
pub(super) struct Rig {
    pub(super) media: Arc<SimMedia>,
    pub(super) log: Log,
    pub(super) told: Arc<Mutex<Told>>,
    pub(super) seed: u64,
}

/// One step of a history.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    /// Writes an entry with so many bytes of body.
    Append(usize),
    /// Flushes everything.
    Sync,
    /// The manifest lets go of all but the last so many entries.
    Release(usize),
    /// Writes everything out, without a flush.
    Drain,
    /// Runs one background task.
    Step,
    /// Closes, tells the manifest, and opens again.
    Reopen,
}

/// Reads the log and compares it with what was told: all that is promised, nothing made up, nothing left out between.
pub(super) fn recover_and_compare(
    media: &Arc<SimMedia>,
    told: &Told,
    promised: Lsn,
    context: &dyn std::fmt::Debug,
) -> Result<Recovered> {
    let mut got = Vec::new();
    let dyn_media: Arc<dyn Media> = media.clone();
    let recovered = Log::recover(&dyn_media, &options(), told.from, &mut |piece| {
        for (header, body) in piece.entries() {
            assert_eq!(header.count, 1, "{context:?}");
            got.push((header.lsn, body?.to_vec()));
        }
        Ok(())
    })?;
    let wanted = told.begun.iter().filter(|(lsn, _)| *lsn >= told.from.lsn);
    let expected: Vec<_> = wanted.take_while(|(lsn, _)| *lsn < recovered.end).cloned().collect();
    assert!(got == expected, "{context:?}: {:?} instead of {:?}", lsns(&got), lsns(&expected));
    assert!(recovered.end >= promised, "{context:?}: ends at {} of {promised}", recovered.end);
    Ok(recovered)
}

fn lsns(entries: &[(Lsn, Vec<u8>)]) -> Vec<Lsn> {
    entries.iter().map(|e| e.0).collect()
}

impl Rig {
    /// A new database on a new machine.
    pub(super) fn new(seed: u64) -> Result<Rig> {
        let media = SimMedia::new(seed);
        media.create_dir_all(Path::new(DIR))?;
        media.sync_dir(Path::new("/"))?;
        Rig::open(media, Told::new(), FIRST_LSN, &"new")
    }

    /// Recovers and starts the log on `media`.
    pub(super) fn open(
        media: Arc<SimMedia>,
        told: Told,
        promised: Lsn,
        context: &dyn std::fmt::Debug,
    ) -> Result<Rig> {
        let told = Arc::new(Mutex::new(told));
        Rig::open_told(media, told, promised, context)
    }

    /// As [`Rig::open`], telling what happens to whoever shares `told`.
    pub(super) fn open_told(
        media: Arc<SimMedia>,
        told: Arc<Mutex<Told>>,
        promised: Lsn,
        context: &dyn std::fmt::Debug,
    ) -> Result<Rig> {
        let before = told.lock().unwrap().clone();
        let generation = before.from.generation + 1;
        let recovered = recover_and_compare(&media, &before, promised, context)?;
        let end = recovered.end;
        {
            let from = &mut told.lock().unwrap().from;
            (from.generation, from.clean) = (generation, false);
        }
        let log = Log::start(media.clone(), options(), generation, recovered)?;
        assert_eq!((log.durable_lsn(), log.advanced_lsn()), (end, end));
        {
            let mut told = told.lock().unwrap();
            told.cut(end);
            (told.advanced, told.synced) = (end, end);
            told.from = RecoverFrom { lsn: told.from.lsn, durable: end, generation, clean: false };
        }
        Ok(Rig { media, log, told, seed: 0 })
    }

    /// Writes one entry, acknowledged as unsynced.
    pub(super) fn append(&mut self, len: usize) -> Result<()> {
        let lsn = self.log.advanced_lsn();
        self.seed += 1;
        let body: Vec<u8> = (0..len as u64).map(|i| (lsn ^ i.wrapping_mul(31) ^ self.seed) as u8).collect();
        let header = EntryHeader {
            kind: EntryKind::Batch,
            body_len: len as u32,
            count: 1,
            lsn,
            generation: self.told.lock().unwrap().from.generation,
            body_crc: body_crc(&[&body]),
        };
        let _admission = self.log.admit(header.entry_len())?;
        self.told.lock().unwrap().begun.push((lsn, body.clone()));
        let (a, b) = body.split_at(len / 3);
        self.log.write(lsn, &[&header.encode(), a, b])?;
        self.log.advance(header.end());
        self.told.lock().unwrap().advanced = header.end();
        Ok(())
    }

    pub(super) fn sync(&mut self) -> Result<()> {
        let lsn = self.log.advanced_lsn();
        self.log.sync_to(lsn)?;
        assert!(self.log.durable_lsn() >= lsn);
        self.told.lock().unwrap().synced = lsn;
        Ok(())
    }

    pub(super) fn act(&mut self, act: Act) -> Result<()> {
        match act {
            Act::Append(len) => self.append(len),
            Act::Sync => self.sync(),
            Act::Drain => self.log.0.drain(),
            Act::Release(keep) => {
                self.sync()?;
                let lsn = {
                    let mut told = self.told.lock().unwrap();
                    let kept = told.begun.len().saturating_sub(keep);
                    let lsn = told.begun.get(kept).map_or(told.advanced, |e| e.0);
                    let lsn = lsn.max(told.from.lsn);
                    told.from.lsn = lsn;
                    told.from.durable = told.from.durable.max(lsn);
                    lsn
                };
                self.log.release_before(lsn)
            }
            Act::Step => {
                self.media.step();
                Ok(())
            }
            Act::Reopen => {
                self.log.close()?;
                {
                    let mut told = self.told.lock().unwrap();
                    told.synced = told.advanced;
                    told.from.durable = told.advanced;
                    told.from.clean = true;
                }
                // What a process has queued is gone with it; here the old log stays until the new one is there.
                self.media.run_all();
                let promised = self.told.lock().unwrap().advanced;
                *self = Rig::open_told(self.media.clone(), self.told.clone(), promised, &"reopened")?;
                Ok(())
            }
        }
    }
}

/// A moment at which a crash can happen.
pub(super) type Point = (Image, Told);

/// Collects a crash point before every I/O call of `media`.
pub(super) fn watch(media: &SimMedia, told: &Arc<Mutex<Told>>) -> Arc<Mutex<Vec<Point>>> {
    let points = Arc::new(Mutex::new(Vec::new()));
    let (seen, told) = (points.clone(), told.clone());
    media.on_op(Some(Arc::new(move |m: &SimMedia, _: &_| {
        let told = told.lock().unwrap().clone();
        seen.lock().unwrap().push((m.image(), told));
    })));
    points
}

/// A short history that has everything in it: laps of the ring, segment changes, entries across frames, releases.
pub(super) fn short_history() -> Vec<Act> {
    use Act::*;
    vec![
        Append(10),
        Sync,
        Append(3000),
        Append(0),
        Append(2500),
        Step,
        Append(3900),
        Append(777),
        Sync,
        Append(100),
        Append(3000),
        Append(3000),
        Append(2999),
        Step,
        Step,
        Append(5000),
        Release(3),
        Append(64),
        Append(4096),
        Append(4000),
        Step,
        Append(1),
        Sync,
        Append(3500),
        Reopen,
        Append(2000),
        Sync,
        Append(2001),
        Append(50),
        // Flushes that share two sectors, then one that does not fit any more, and one behind it.
        Sync,
        Append(1),
        Sync,
        Append(900),
        Append(0),
        Sync,
        Append(2),
        Sync,
        Append(3000),
        Sync,
        Append(3),
        Sync,
        Append(4),
        Drain,
        Append(5),
        Drain,
        Append(6),
        Sync,
        Append(7),
        Sync,
    ]
}

/// A history drawn by seed.
pub(super) fn random_history(seed: u64, len: usize) -> Vec<Act> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move |n: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % n
    };
    (0..len)
        .map(|_| match next(20) {
            0..=11 => Act::Append(match next(3) {
                0 => next(100) as usize,
                _ => next(5000) as usize,
            }),
            12..=14 => Act::Sync,
            15 => Act::Drain,
            16 => Act::Step,
            17 | 18 => Act::Release(next(6) as usize),
            _ => Act::Reopen,
        })
        .collect()
}
