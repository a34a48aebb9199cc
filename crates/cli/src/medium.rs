//! Where the commits of a new database go: a log, or persistent memory. One that exists says that itself.

use std::path::Path;

use clap::{Args, ValueEnum};
use terrane::{Db, ErrorKind, Medium, Options, PmemMode, PmemOptions};

use crate::Failure;
use crate::args::DbArgs;

/// Smallest memory that is asked for, in bytes.
const LEAST: u64 = 8 << 20;

/// Where commits go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MediumKind {
    /// A log on the device
    Log,
    /// Persistent memory: a file on a file system with DAX (`demo` takes any other for a simulated one)
    Pmem,
    /// For development, any file: it survives the process. Nothing survives the machine but what a log behind it has
    Simulated,
    /// An ordinary file in its place, in the page cache, and a log behind it
    PageCache,
}

impl MediumKind {
    fn of(db: &Db) -> Self {
        match db.stats().pmem_mode {
            None => MediumKind::Log,
            Some(PmemMode::PageCache) => MediumKind::PageCache,
            Some(PmemMode::StandIn) => MediumKind::Simulated,
            Some(PmemMode::Dax) => MediumKind::Pmem,
        }
    }
}

/// Where the commits of a database go.
pub(crate) fn in_words(db: &Db) -> &'static str {
    match db.stats().pmem_mode {
        None => "a log",
        Some(PmemMode::Dax) => "persistent memory",
        Some(PmemMode::StandIn) => "persistent memory (simulated: an ordinary file)",
        Some(PmemMode::PageCache) => "memory in the page cache, with a log behind it",
    }
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct MediumArgs {
    /// Where commits of a new database go: to a log, or to memory, as much of it as memtables may take [default: log]
    #[arg(long, value_enum)]
    pub(crate) medium: Option<MediumKind>,
    /// A log behind the persistent memory of a new database: if the device is lost, --renew-memory has what the log has. (In the page
    /// cache there always is one.)
    #[arg(long, requires = "medium")]
    pub(crate) trailing_log: bool,
}

/// What is to be made.
pub(crate) struct NewDb<'a> {
    pub(crate) dir: &'a Path,
    /// The file of its memory, if that is not in its directory.
    pub(crate) at: Option<&'a Path>,
    pub(crate) options: &'a Options,
    pub(crate) memtable_mib: usize,
}

impl MediumArgs {
    /// A memory in this mode.
    fn memory(&self, mode: PmemMode, new: &NewDb<'_>) -> Result<Medium, Failure> {
        // Memtables may take seven eighths of it.
        let mut memory = PmemOptions::new(((new.memtable_mib as u64) << 20).max(LEAST) / 7 * 8)
            .mode(mode)
            .trailing_log(self.trailing_log);
        if let Some(path) = new.at {
            memory = memory.path(std::path::absolute(path)?);
        }
        Ok(Medium::Pmem(memory))
    }

    /// Makes a database.
    pub(crate) fn create(&self, new: &NewDb<'_>) -> Result<Db, Failure> {
        let made = self.create_as(self.kind(), new);
        made.map_err(|e| match is_unsupported(&e) {
            true => format!(
                "{e}; here that is --pmem FILE, or --medium page-cache; --medium simulated is for development"
            )
            .into(),
            false => e,
        })
    }

    fn kind(&self) -> MediumKind {
        self.medium.unwrap_or(MediumKind::Log)
    }

    /// As [`MediumArgs::create`], but persistent memory is simulated on a file system that has none: for who says that it is.
    pub(crate) fn create_or_simulate(&self, new: &NewDb<'_>) -> Result<Db, Failure> {
        match self.create_as(self.kind(), new) {
            Err(e) if is_unsupported(&e) && self.kind() == MediumKind::Pmem => {
                self.create_as(MediumKind::Simulated, new)
            }
            opened => opened,
        }
    }

    fn create_as(&self, kind: MediumKind, new: &NewDb<'_>) -> Result<Db, Failure> {
        let medium = match kind {
            MediumKind::Log if self.trailing_log || new.at.is_some() => {
                return Err(
                    "--trailing-log and --pmem are for persistent memory, not for --medium log".into()
                );
            }
            MediumKind::Log => Medium::Log,
            MediumKind::Pmem => self.memory(PmemMode::Dax, new)?,
            MediumKind::Simulated => self.memory(PmemMode::StandIn, new)?,
            MediumKind::PageCache => self.memory(PmemMode::PageCache, new)?,
        };
        let was_empty = is_empty(new.dir);
        let options = new.options.clone().create_if_missing(true).error_if_exists(true).medium(medium);
        match Db::open(new.dir, options) {
            Err(e) if e.kind() == ErrorKind::Unsupported && was_empty => {
                // Nothing was committed in what the attempt has left, and the next one may be for another medium.
                Db::destroy(new.dir)?;
                Err(e.into())
            }
            opened => Ok(opened?),
        }
    }

    /// Opens a database, which is made if it is not there.
    pub(crate) fn open(&self, args: &DbArgs) -> Result<Db, Failure> {
        let Some(kind) = self.medium else {
            return Ok(match args.pmem {
                // Only one that is there has a memory somewhere.
                Some(_) => args.open_existing()?,
                None => args.open(args.options())?,
            });
        };
        match args.open_existing() {
            // (What is not found may be a part of one that is there: then its directory is.)
            Err(e) if e.kind() == ErrorKind::NotFound && is_empty(&args.db) => self.create(&NewDb {
                dir: &args.db,
                at: args.pmem.as_deref(),
                options: &args.options(),
                memtable_mib: args.memtable_mib,
            }),
            opened => {
                let db = opened?;
                if MediumKind::of(&db) == kind {
                    return Ok(db);
                }
                let (dir, has) = (args.db.display(), in_words(&db));
                Err(format!("the commits of {dir} go to {has}: --medium is for a new database").into())
            }
        }
    }
}

fn is_unsupported(e: &Failure) -> bool {
    e.downcast_ref::<terrane::Error>().is_some_and(|e| e.kind() == ErrorKind::Unsupported)
}

/// Whether there is nothing in a directory, or no directory.
fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn args(dir: &Path, pmem: Option<PathBuf>) -> DbArgs {
        DbArgs { db: dir.to_owned(), memtable_mib: 8, cache_mib: 8, renew_memory: false, pmem }
    }

    fn new<'a>(dir: &'a Path, at: Option<&'a Path>, options: &'a Options) -> NewDb<'a> {
        NewDb { dir, at, options, memtable_mib: 8 }
    }

    fn asked(kind: MediumKind) -> MediumArgs {
        MediumArgs { medium: Some(kind), ..MediumArgs::default() }
    }

    #[test]
    fn a_new_database_has_the_medium_that_is_asked_for_and_keeps_it() {
        for kind in [MediumKind::Log, MediumKind::Simulated, MediumKind::PageCache] {
            let dir = tempfile::tempdir().unwrap();
            let args = args(&dir.path().join("db"), None);
            for again in [false, true] {
                let opened = asked(kind).open(&args).unwrap();
                assert_eq!(MediumKind::of(&opened), kind, "again: {again}");
                opened.close().unwrap();
            }
            // Who asks for none takes what there is.
            let opened = MediumArgs::default().open(&args).unwrap();
            assert_eq!(MediumKind::of(&opened), kind);
            opened.close().unwrap();
            let other = if kind == MediumKind::Log { MediumKind::Simulated } else { MediumKind::Log };
            let e = asked(other).open(&args).unwrap_err();
            assert!(e.to_string().contains("--medium is for a new database"), "{e}");
        }
    }

    /// Where temporary files lie on a device that is mapped directly there is nothing to refuse.
    #[test]
    fn what_is_no_persistent_memory_is_not_taken_for_one_unless_it_is_said_to_be_simulated() {
        let dir = tempfile::tempdir().unwrap();
        let (db, memory) = (dir.path().join("db"), dir.path().join("memory"));
        for at in [None, Some(memory.clone())] {
            let args = args(&db, at.clone());
            match asked(MediumKind::Pmem).open(&args) {
                Ok(opened) => assert_eq!(MediumKind::of(&opened), MediumKind::Pmem),
                Err(e) => assert!(e.to_string().contains("--medium page-cache"), "{e}"),
            }
            if MediumArgs::default().open(&DbArgs { pmem: None, ..args.clone() }).is_ok() {
                Db::destroy(&db).unwrap();
            }
            assert!(!memory.exists() || at.is_none(), "nothing is left of the attempt");
            // It leaves nothing that the next one would take.
            let opened = asked(MediumKind::PageCache).open(&args).unwrap();
            assert_eq!(MediumKind::of(&opened), MediumKind::PageCache);
            opened.close().unwrap();
            Db::destroy(&db).unwrap();
            let simulated =
                asked(MediumKind::Pmem).create_or_simulate(&new(&db, None, &args.options())).unwrap();
            assert_ne!(MediumKind::of(&simulated), MediumKind::Log);
            simulated.close().unwrap();
            Db::destroy(&db).unwrap();
        }
    }

    #[test]
    fn a_memory_that_was_moved_is_found_where_it_is_said_to_be_and_one_that_is_gone_makes_no_new_database() {
        let dir = tempfile::tempdir().unwrap();
        let (db, memory, moved) =
            (dir.path().join("db"), dir.path().join("memory"), dir.path().join("moved"));
        let create = args(&db, Some(memory.clone()));
        asked(MediumKind::Simulated).open(&create).unwrap().close().unwrap();
        std::fs::rename(&memory, &moved).unwrap();
        let e = asked(MediumKind::Simulated).open(&create).unwrap_err();
        assert!(e.to_string().contains("--pmem"), "{e}");
        assert!(!memory.exists());
        for pmem in [Some(moved), None] {
            // It is noted.
            args(&db, pmem).open_existing().unwrap().close().unwrap();
        }
    }

    #[test]
    fn a_database_without_persistent_memory_has_it_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let (db, memory) = (dir.path().join("db"), Some(dir.path().join("memory")));
        let there = args(&db, memory.clone());
        // Only one that is there was moved.
        assert!(MediumArgs::default().open(&there).is_err() && is_empty(&db));
        for refused in [asked(MediumKind::Log), MediumArgs { trailing_log: true, ..MediumArgs::default() }] {
            let at = refused.medium.and(memory.as_deref());
            let e = refused.create(&new(&db, at, &there.options())).unwrap_err();
            assert!(e.to_string().contains("--medium log") && is_empty(&db), "{e}");
        }
        let with_log = args(&db, None);
        MediumArgs::default().open(&with_log).unwrap().close().unwrap();
        assert!(there.open_existing().unwrap_err().to_string().contains("go to a log"));
    }

    #[test]
    fn a_log_behind_it_has_what_a_lost_memory_had() {
        let dir = tempfile::tempdir().unwrap();
        let (db, memory) = (dir.path().join("db"), dir.path().join("memory"));
        let medium = MediumArgs { trailing_log: true, ..asked(MediumKind::Simulated) };
        let opened = medium.open(&args(&db, Some(memory.clone()))).unwrap();
        let table = opened.create_subtable("t", terrane::SubtableOptions::new()).unwrap();
        table.put(b"k", b"v").unwrap();
        opened.sync().unwrap();
        drop(table);
        opened.close().unwrap();
        std::fs::remove_file(&memory).unwrap();
        let e = args(&db, None).open_existing().unwrap_err();
        assert!(e.to_string().contains("--renew-memory"), "{e}");
        let renewed = DbArgs { renew_memory: true, ..args(&db, None) }.open_existing().unwrap();
        assert_eq!(renewed.subtable("t").unwrap().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
        renewed.close().unwrap();
    }
}
