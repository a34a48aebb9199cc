//! Giving a memory up, and what takes its place.
//!
//! In the page cache a memory is made anew whenever it is of no use: the log beside it has all that it had. On a device the log
//! has less, so that is done only if it was asked for ([`crate::Options::renew_pmem`]), and only once it is known that the log
//! has no gap ([`crate::log`]). What lay at the place is put aside, as `NAME.lost-N`; a memory in the page cache is removed, if
//! it is known to be the database's.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_base::{Error, ErrorKind, Result};
use terrane_chainlog::{Plan, Space};
use terrane_format::batch::EntryKind;
use terrane_format::manifest::{Edit, MemoryMode, MemoryPlace};
use terrane_format::pm::Known;
use terrane_media::{LockGuard, Media, try_pmem};

use crate::chains::Chains;
use crate::levels::{DbState, ManifestStore};
use crate::log::{Log, LogOptions, RecoverFrom, joined};
use crate::options::PmemOptions;
use crate::recovery::memory::{Opened, mode_of};

/// What it takes to make one.
pub(super) struct Renewal<'a> {
    pub(super) media: &'a Arc<dyn Media>,
    pub(super) log: &'a LogOptions,
    pub(super) state: &'a DbState,
    pub(super) manifest: &'a ManifestStore,
    pub(super) uuid: [u8; 16],
    /// Whether it was asked for.
    pub(super) wanted: bool,
    /// Where the database's memory was, if it is looked for elsewhere.
    pub(super) was_at: Option<PathBuf>,
    /// It was said to be where it is looked for ([`crate::Options::pmem_path`]).
    pub(super) was_moved: bool,
}

impl Renewal<'_> {
    /// The memory at this place, or another one in its stead.
    ///
    /// # Errors
    /// As [`Renewal::instead`]; what opening it fails with.
    pub(super) fn open(&self, path: PathBuf, place: MemoryPlace) -> Result<Opened> {
        match self.own(&path, &place) {
            Ok((space, lock)) => Ok(Opened::new(space, lock, path, place, false)),
            Err(e) => self.instead(e, path, place),
        }
    }

    /// The memory of a database that was never open: what an attempt before has left, if it is of use, or a new one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if another one's is there, or a directory; what making or opening one fails with.
    pub(super) fn first(&self, path: PathBuf, place: MemoryPlace) -> Result<Opened> {
        let media = &**self.media;
        let plan = plan_of(&place);
        if !media.exists(&path)? {
            try_pmem(media, &path, mode_of(place.mode))?;
            Space::create(media, &path, &plan, self.uuid, place.number)?;
            return self.open(path, place);
        }
        match self.own(&path, &place).map(|(space, lock)| is_as_planned(&space, &plan).then_some((space, lock))) {
            Ok(Some((space, lock))) => Ok(Opened::new(space, lock, path, place, false)),
            // Of another size.
            Ok(None) => self.make(path, place, false),
            // It was not closed when the machine stopped; or it is another number, which nobody was told of.
            Err(e) if e.kind() == ErrorKind::Stale => {
                let in_page_cache = place.mode == MemoryMode::PageCache;
                self.take_up_or_make(path, place, in_page_cache)
            }
            Err(e) => Err(e.with_file(&path).with_hint(
                "a new database's memory is made where nothing is: say where (PmemOptions::path, terrane --pmem), or take away what is there",
            )),
        }
    }

    /// As [`Renewal::make`], where a memory of this database is that is not the one that is looked for: if an attempt before this one has made
    /// it, and nobody was told, there is nothing in it, and it is taken.
    fn take_up_or_make(&self, path: PathBuf, place: MemoryPlace, ours: bool) -> Result<Opened> {
        let next = MemoryPlace { number: place.number + 1, known: Known::default(), ..place.clone() };
        // Else nothing is stored in it, for it may be needed once more.
        let is_unused = matches!(Space::is_unused(&**self.media, &path), Ok(true));
        match is_unused.then(|| self.own(&path, &next)) {
            Some(Ok((space, lock))) if is_as_planned(&space, &plan_of(&place)) => {
                return Ok(Opened::new(space, lock, path, next, true));
            }
            Some(Err(e)) if !matches!(e.kind(), ErrorKind::Stale | ErrorKind::Corruption) => return Err(e),
            _ => {}
        }
        self.make(path, place, ours)
    }

    /// Opens the file of a memory, and no one else until the lock is let go of: the directory's keeps nobody from opening a copy of it. Of one
    /// that the manifest names, that says before where it will stand.
    fn own(&self, path: &Path, place: &MemoryPlace) -> Result<(Arc<Space>, Box<dyn LockGuard>)> {
        let media = &**self.media;
        if !media.exists(path)? {
            // The lock would make it.
            return Err(Error::new(ErrorKind::NotFound, "there is no such file").with_file(path));
        }
        let mode = mode_of(place.mode);
        let opened = media.lock(path).and_then(|lock| {
            let mut note = |known| self.note(place, known);
            let space =
                Space::open_known(media, path, mode, self.uuid, place.number, place.known, &mut note)?;
            Ok((space, lock))
        });
        opened.map_err(|e| match is_directory(media, path) {
            true => Error::invalid("a directory is where the persistent memory is to be")
                .with_file(path)
                .with_hint("say where it is (PmemOptions::path, Options::pmem_path, terrane --pmem)"),
            false => e,
        })
    }

    /// Writes down where the memory will stand. (Where it was moved to is noted once it is open.)
    fn note(&self, place: &MemoryPlace, known: Known) -> Result<()> {
        match &self.state.memory {
            Some(had) if place.known.opening > 0 => {
                self.manifest.append(&[Edit::Memory(MemoryPlace { known, ..had.clone() })])
            }
            _ => Ok(()),
        }
    }

    /// A new memory, where `e` says that the one at this place is of no use and there may be another one.
    ///
    /// # Errors
    /// `e`, with what can be done about it; [`ErrorKind::Corruption`] if the log lacks what the memory had;
    /// [`ErrorKind::InvalidArgument`] if the memory is elsewhere; what making one fails with.
    pub(super) fn instead(&self, e: Error, path: PathBuf, place: MemoryPlace) -> Result<Opened> {
        use ErrorKind::{Corruption, Io, NotFound, Stale};
        let in_page_cache = place.mode == MemoryMode::PageCache;
        match e.kind() {
            // Found out behind whose it is. One that it was not at before may be somebody's copy; one that is whole may belong to another copy
            // of the directory, or the directory is from before.
            Stale if in_page_cache => {
                let ours = self.was_at.is_none() && matches!(Space::is_lost(&**self.media, &path), Ok(true));
                self.take_up_or_make(path, place, ours)
            }
            NotFound if in_page_cache && !self.was_moved => self.make(path, place, false),
            // (On a device what cannot be read is damage, and much else is told as `Io` that passes: rights, limits of the process.)
            kind @ (NotFound | Stale | Corruption | Io)
                if place.has_log && self.wanted && (in_page_cache || kind != Io) =>
            {
                if !in_page_cache || self.was_moved {
                    self.check(&path)?;
                }
                match kind {
                    Stale => self.take_up_or_make(path, place, false),
                    _ => self.make(path, place, false),
                }
            }
            _ => Err(hinted(&place, e, &path)),
        }
    }

    /// Makes a memory; what lies at its place, `ours` if it is known to be the database's and of no use, is removed then, else put aside. Until the
    /// manifest has its number, and so before there is anything in it, this may be cut short and done again.
    pub(super) fn make(&self, path: PathBuf, place: MemoryPlace, ours: bool) -> Result<Opened> {
        let media = &**self.media;
        let plan = plan_of(&place);
        let (subtables, most) = (self.state.subtables.len() as u64, Chains::most_subtables(plan.memtables));
        // Where it cannot be, nothing is given up for it.
        if subtables > most {
            return Err(Error::limit("subtables for a new persistent memory of this size", subtables, most)
                .with_file(&path)
                .with_hint("make it larger (PmemOptions::new)"));
        }
        // One that comes back later, from elsewhere, is told by its number.
        let place = MemoryPlace { number: place.number + 1, known: Known::default(), ..place };
        if !ours {
            try_pmem(media, &path, mode_of(place.mode))?;
        }
        let mut put_aside = None;
        match media.exists(&path)? {
            true if ours => media.remove_file(&path)?,
            true => {
                // Not one that somebody has made there meanwhile, and has open. (What cannot be locked for another reason may be the damage.)
                let _lock = match media.lock(&path) {
                    Err(e) if e.kind() == ErrorKind::Locked => return Err(e),
                    other => other,
                };
                let aside = aside(media, &path)?;
                media.rename(&path, &aside)?;
                put_aside = Some(aside);
            }
            false => {}
        }
        let created = Space::create(media, &path, &plan, self.uuid, place.number);
        if let (Err(e), Some(aside)) = (&created, &put_aside) {
            // As it was. If that fails too, it still lies there.
            let _ = media.rename(aside, &path);
            if e.kind() == ErrorKind::OutOfSpace {
                let what = format!("no room for a new memory beside the old one ({})", e.message());
                return Err(Error::new(ErrorKind::OutOfSpace, what).with_file(&path).with_hint(
                    "take the old one to another device, and open the database with Options::renew_pmem (terrane --renew-pmem)",
                ));
            }
        }
        created?;
        let (space, lock) = self.own(&path, &place)?;
        Ok(Opened::new(space, lock, path, place, true))
    }

    /// Whether the log is enough to go on without a device.
    fn check(&self, path: &Path) -> Result<()> {
        let unknown = |e: Error| {
            e.with_hint("the database's persistent memory was there: take its device away (unmount it) if it is of no use")
        };
        if let Some(was_at) = &self.was_at
            && self.media.exists(was_at).map_err(unknown)?
        {
            let what = "the database's persistent memory is here, and not where it is looked for";
            return Err(Error::invalid(what)
                .with_file(was_at)
                .with_hint("say so (PmemOptions::path, Options::pmem_path, terrane --pmem), or take it away if it is of no use"));
        }
        let mut gap = 0..0;
        Log::recover(self.media, self.log, RecoverFrom::of(&self.state.log), &mut |piece| {
            for (header, _) in piece.entries().filter(|(header, _)| header.kind == EntryKind::Gap) {
                gap = joined(&gap, &(header.lsn..header.end()));
            }
            Ok(())
        })?;
        if gap.is_empty() {
            return Ok(());
        }
        let what = format!(
            "the log lacks the commits from LSN {} to {}, which only the memory has that is gone",
            gap.start, gap.end
        );
        Err(Error::corruption(what)
            .with_file(path)
            .with_hint("bring that memory back, or restore the database from a backup"))
    }
}

fn is_directory(media: &dyn Media, path: &Path) -> bool {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return true };
    // (What its directory cannot be read for is told by who opens it.)
    media.list(parent).is_ok_and(|entries| entries.iter().any(|e| e.is_dir && name == e.name.as_str()))
}

/// How a memory is divided that is made for this place.
fn plan_of(place: &MemoryPlace) -> Plan {
    PmemOptions::new(place.bytes).zone_bytes(place.zone_bytes).plan()
}

/// Whether a memory was made by this plan. (The length of its file is a multiple of 4096.)
fn is_as_planned(space: &Space, plan: &Plan) -> bool {
    space.file_bytes() == plan.bytes / 4096 * 4096 && space.zone_bytes() as u64 == plan.zone_bytes
}

/// A name for what lies at `path`, where nothing is.
fn aside(media: &dyn Media, path: &Path) -> Result<PathBuf> {
    let mut number = 0;
    loop {
        let mut name = OsString::from(path);
        name.push(format!(".lost-{number}"));
        if !media.exists(Path::new(&name))? {
            return Ok(name.into());
        }
        number += 1;
    }
}

/// An error about a memory that is of no use as it is, with what can be done about it.
fn hinted(place: &MemoryPlace, e: Error, path: &Path) -> Error {
    let renew = match place.mode {
        MemoryMode::PageCache => {
            "Options::renew_pmem (terrane --renew-pmem) has a new one made in its place: the log beside it has all that is in it"
        }
        _ => {
            "if it is lost, Options::renew_pmem (terrane --renew-pmem) has a new one made, with what the log has: all but the \
             newest commits"
        }
    };
    match e.kind() {
        ErrorKind::NotFound => {
            let why = if place.has_log { renew } else { "it has the newest commits" };
            Error::new(ErrorKind::NotFound, "the database's persistent memory is not there")
                .with_file(path)
                .with_hint(format!(
                    "mount it, or say where it is (Options::pmem_path, terrane --pmem); {why}"
                ))
        }
        ErrorKind::Io if place.mode == MemoryMode::PageCache => e.with_hint(renew),
        ErrorKind::Io if place.has_log => {
            e.with_hint(format!("if its device has failed, take it away (unmount it): {renew}"))
        }
        ErrorKind::Corruption if place.has_log => e.with_hint(renew),
        // The memory itself is better, where there is one.
        ErrorKind::Stale if place.has_log => {
            let hint = e.hint().map_or_else(|| renew.to_owned(), |own| format!("{own}; or, {renew}"));
            e.with_other_hint(hint).with_file(path)
        }
        ErrorKind::Corruption => e.with_hint("restore the database, its memory with it, from a backup"),
        _ => e,
    }
}
