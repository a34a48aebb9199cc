//! Free space of the data files, and memory of extents, that are kept for what is written next (see [`crate::levels::Space`]), and when they go
//! back: when no memtable has frozen for a while and nothing is merged, and space to the file system as soon as the device is full.

use std::sync::atomic::Ordering;

use terrane_base::{Error, ErrorKind, Result};
use terrane_format::manifest::Edit;

use crate::db::engine::Engine;
use crate::db::request::Request;
use crate::log::{Admission, Log};

impl Engine {
    /// Has more free space than is kept in a rest go back in a while, and memory, if there is.
    pub(crate) fn await_trim(&self) {
        if !self.space.is_untrimmed() {
            return;
        }
        let generation = self.generation.load(Ordering::Acquire);
        self.look_in_a_while(
            |engine| &engine.awaiting_trim,
            move |engine| {
                // A job, so that closing waits for it.
                engine.spawn("give space back", move |engine| engine.trim_unless_busy(generation));
            },
        );
    }

    fn trim_unless_busy(&self, generation: u64) {
        if self.generation.load(Ordering::Acquire) != generation {
            // Memtables froze: what becomes of them takes it.
            self.await_trim();
        } else if self.compactions.load(Ordering::Acquire) == 0 {
            self.space.trim();
        }
        // (Merges take it too; what the last of them frees has somebody look again.)
    }

    /// After a job that failed: on a full device the data files have no space to spare.
    pub(super) fn spare_no_space(&self, e: &Error) {
        if e.kind() == ErrorKind::OutOfSpace {
            self.space.give_all_back();
        }
    }

    /// As [`Log::admit`]. On a full device the log gets what the data files have to spare.
    pub(crate) fn admit_to_log(&self, log: &Log, bytes: u64) -> Result<Admission> {
        self.with_spare_space(|| log.admit(bytes))
    }

    /// As [`Engine::admit_to_log`], of a request that has taken its part of the log in vain.
    pub(crate) fn admit_again(&self, r: &mut Request) -> Result<()> {
        r.admission = None;
        r.admission = self.journal.log().map(|log| self.admit_to_log(log, r.len())).transpose()?;
        Ok(())
    }

    /// As [`crate::levels::ManifestStore::append`]. On a full device the manifest gets what the data files have to spare.
    pub(crate) fn append_edits(&self, edits: &[Edit]) -> Result<()> {
        self.with_spare_space(|| self.manifest.append(edits))
    }

    /// Tries what a full device refuses once more, when data files have given back what they do not need.
    #[inline]
    fn with_spare_space<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        match attempt() {
            Err(e) if e.kind() == ErrorKind::OutOfSpace => {
                // Again even if that was nothing: somebody else may have come first.
                self.space.give_all_back();
                attempt()
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terrane_media::Media;
    use terrane_media::sim::SimMedia;

    use super::*;
    use crate::options::{Compression, Tuning};
    use crate::{Db, Medium, Options, Subtable, SubtableOptions};

    fn open(media: &Arc<SimMedia>, options: Options) -> (Db, Subtable) {
        let tuning = Tuning {
            extent_bytes: 256 << 10,
            data_file_bytes: 4 << 20,
            segment_bytes: 512 << 10,
            tail_bytes: 128 << 10,
            ..Tuning::default()
        };
        let db = Db::open_on(media.clone(), "/db", options.tuning(tuning)).unwrap();
        let t = db
            .create_subtable(
                "t",
                SubtableOptions::new().compression(Compression::None).value_threshold(8 << 10),
            )
            .unwrap();
        (db, t)
    }

    const RECORDS: u32 = 12_000;

    /// Writes so many records and merges them with what is there.
    fn merge(media: &SimMedia, t: &Subtable, records: u32) {
        for i in 0..records {
            t.put(&i.to_be_bytes(), &[1; 1000]).unwrap();
        }
        t.compact().unwrap();
        while media.help() == terrane_media::Help::Ran {}
    }

    #[test]
    fn space_that_merges_have_freed_goes_back_in_a_rest() {
        let media = SimMedia::new(2);
        let (db, t) = open(&media, Options::new());
        merge(&media, &t, RECORDS);
        let kept_after = |awaiting| {
            // Whoever would look finds that somebody does.
            db.engine.awaiting_trim.store(awaiting, Ordering::Relaxed);
            merge(&media, &t, RECORDS / 12);
            (db.engine.space.keeps_places(), db.engine.space.is_untrimmed())
        };
        assert!(kept_after(true).0, "what the next merge takes is kept");
        assert_eq!(kept_after(false), (false, false), "what it freed has had somebody look");
        assert!(kept_after(true).0);
        db.wait_idle().unwrap();
        assert!(!db.engine.space.is_untrimmed(), "somebody said that nobody writes");
    }

    /// A device without room for anything more, and how many units the data files have to spare on it.
    fn full(seed: u64, options: Options) -> (Db, Subtable, u64) {
        let media = SimMedia::new(seed);
        let (db, t) = open(&media, options);
        merge(&media, &t, RECORDS);
        db.engine.awaiting_trim.store(true, Ordering::Relaxed);
        merge(&media, &t, RECORDS / 12);
        let spare = db.engine.space.stats().idle;
        assert!(spare > 16, "{spare} units are there");
        media.set_capacity(Some(media.used_bytes()));
        (db, t, spare)
    }

    #[test]
    fn on_a_full_device_the_log_gets_what_the_data_files_have_to_spare() {
        let (db, t, _) = full(3, Options::new().medium(Medium::Log));
        let put = |i: u32| t.put(&i.to_be_bytes(), &[1; 1000]);
        let e = (0..RECORDS).find_map(|i| put(i).err()).unwrap();
        assert_eq!((e.kind(), db.engine.space.stats().idle), (ErrorKind::OutOfSpace, 0));
    }

    #[test]
    fn on_a_full_device_the_manifest_gets_what_the_data_files_have_to_spare() {
        let (db, _t, spare) = full(4, Options::new());
        // More than what is written ahead holds.
        let change = || {
            db.create_subtable("more", SubtableOptions::new().value_threshold(8 << 10))?;
            db.drop_subtable("more")
        };
        let changes = (0..1000).map_while(|_| change().ok()).count();
        assert_eq!(db.engine.space.stats().idle, 0, "after {changes} changes");
        assert!(changes > 100, "{changes}, {spare}");
    }
}
