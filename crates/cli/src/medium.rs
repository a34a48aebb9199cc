//! Where the commits of a new database go: a log, or persistent memory. One that exists says that itself.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use terrane::{Db, Error, ErrorKind, Medium, Options, PmemMode, PmemOptions};

use crate::Failure;
use crate::args::DbArgs;

/// The least that memtables may take of a memory that is asked for, in bytes.
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
    /// Where commits of a new database go. For all but a log a file is made, a seventh larger than --memtable-mib (8 MiB at least); its
    /// size stays [default: log]
    #[arg(long, value_enum)]
    pub(crate) medium: Option<MediumKind>,
    /// A log behind the persistent memory of a new database: if the device is lost, --renew-pmem has what the log has. (In the page
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
        let mut memory = PmemOptions::for_memtables(((new.memtable_mib as u64) << 20).max(LEAST))
            .mode(mode)
            .trailing_log(self.trailing_log);
        if let Some(path) = new.at {
            memory = memory.path(memory_path(new.dir, path)?);
        }
        Ok(Medium::Pmem(memory))
    }

    /// Makes a database.
    pub(crate) fn create(&self, new: &NewDb<'_>) -> Result<Db, Failure> {
        let made = self.create_as(self.kind(), new);
        made.map_err(|e| match is_unsupported(&e) && self.kind() == MediumKind::Pmem {
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
        let options = new.options.clone().create_if_missing(true).error_if_exists(true);
        Ok(Db::open(new.dir, options.medium(medium))?)
    }

    /// Opens a database, which is made if it is not there.
    pub(crate) fn open(&self, args: &DbArgs) -> Result<Db, Failure> {
        let Some(kind) = self.medium else {
            return Ok(match args.pmem {
                // Only one that is there has a memory that can have been moved.
                Some(_) => args.open_existing()?,
                None => args.open(args.options())?,
            });
        };
        let is_none = |e: &Error| e.kind() == ErrorKind::NotFound && e.file() == Some(&*args.db);
        let db = match args.open_existing() {
            Err(e) if is_none(&e) => {
                return self.create(&NewDb {
                    dir: &args.db,
                    at: args.pmem.as_deref(),
                    options: &args.options(),
                    memtable_mib: args.memtable_mib,
                });
            }
            opened => opened?,
        };
        let (dir, has, stats) = (args.db.display(), in_words(&db), db.stats());
        if MediumKind::of(&db) != kind {
            return Err(format!("the commits of {dir} go to {has}: --medium is for a new database").into());
        }
        if self.trailing_log && !stats.pmem_log {
            return Err(format!(
                "the commits of {dir} go to {has} alone: --trailing-log is for a new database"
            )
            .into());
        }
        Ok(db)
    }
}

/// The path of a memory as a database notes it: within its directory from there on, so that they can be moved or copied together; else absolute.
pub(crate) fn memory_path(db: &Path, memory: &Path) -> Result<PathBuf, Error> {
    let resolve = |path: &Path| {
        let path = std::path::absolute(path).map_err(|e| Error::io(e, "resolve").with_file(path))?;
        let parts = path.parent().zip(path.file_name());
        // What is not there has no links to follow.
        Ok(parts.and_then(|(parent, name)| Some(parent.canonicalize().ok()?.join(name))).unwrap_or(path))
    };
    let (db, memory) = (resolve(db)?, resolve(memory)?);
    Ok(memory.strip_prefix(&db).map_or_else(|_| memory.clone(), Path::to_owned))
}

fn is_unsupported(e: &Failure) -> bool {
    e.downcast_ref::<terrane::Error>().is_some_and(|e| e.kind() == ErrorKind::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(dir: &Path, pmem: Option<PathBuf>) -> DbArgs {
        DbArgs { db: dir.to_owned(), memtable_mib: 8, cache_mib: 8, renew_pmem: false, pmem }
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

    #[test]
    fn an_attempt_that_fails_leaves_nothing_that_the_next_one_would_take_for_a_database() {
        let dir = tempfile::tempdir().unwrap();
        let (db, foreign) = (dir.path().join("db"), dir.path().join("foreign"));
        std::fs::write(&foreign, b"somebody's").unwrap();
        let is_none = || args(&db, None).open_existing().is_err_and(|e| e.file() == Some(&*db));
        for at in [foreign.clone(), dir.path().join("missing").join("memory"), dir.path().to_owned()] {
            let e = asked(MediumKind::Simulated).open(&args(&db, Some(at))).map(drop).unwrap_err();
            assert!(is_none(), "{e}");
        }
        let memory = dir.path().join("memory");
        match asked(MediumKind::Pmem).open(&args(&db, Some(memory.clone()))) {
            // Temporary files lie on a device that is mapped directly.
            Ok(opened) => return assert_eq!(MediumKind::of(&opened), MediumKind::Pmem),
            Err(e) => assert!(e.to_string().contains("--medium page-cache"), "{e}"),
        }
        assert!(is_none() && !memory.exists());
        // Where one looks at it, it is said to be simulated.
        let options = args(&db, None).options();
        let shown = asked(MediumKind::Pmem).create_or_simulate(&new(&db, None, &options)).unwrap();
        assert_eq!(MediumKind::of(&shown), MediumKind::Simulated);
        shown.close().unwrap();
        assert_eq!(std::fs::read(&foreign).unwrap(), b"somebody's");
    }

    #[test]
    fn no_file_that_is_another_ones_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (db, foreign) = (dir.path().join("db"), dir.path().join("foreign"));
        asked(MediumKind::PageCache).open(&args(&db, None)).unwrap().close().unwrap();
        std::fs::write(&foreign, b"somebody's").unwrap();
        let wrong = DbArgs { renew_pmem: true, ..args(&db, Some(foreign.clone())) };
        let e = wrong.open_existing().map(drop).unwrap_err();
        assert_eq!(e.file(), Some(&*db.join("pmem")), "{e}");
        // Nor is one made at a place that is wrong.
        let wrong = args(&db, Some(dir.path().join("nothing")));
        assert_eq!(wrong.open_existing().map(drop).unwrap_err().kind(), ErrorKind::NotFound);
        args(&db, Some(db.join("pmem"))).open_existing().unwrap().close().unwrap();
        assert_eq!(std::fs::read(&foreign).unwrap(), b"somebody's");
        // With its own gone it is put aside.
        std::fs::remove_file(db.join("pmem")).unwrap();
        let wrong = DbArgs { renew_pmem: true, ..args(&db, Some(foreign.clone())) };
        wrong.open_existing().unwrap().close().unwrap();
        assert_eq!(std::fs::read(dir.path().join("foreign.lost-0")).unwrap(), b"somebody's");
    }

    #[test]
    fn a_database_takes_its_memory_along() {
        let dir = tempfile::tempdir().unwrap();
        let (db, moved) = (dir.path().join("db"), dir.path().join("moved"));
        asked(MediumKind::Simulated).open(&args(&db, Some(db.join("memory")))).unwrap().close().unwrap();
        std::fs::rename(&db, &moved).unwrap();
        args(&moved, None).open_existing().unwrap().close().unwrap();
        assert!(moved.join("memory").exists());
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
        let other = MediumArgs { trailing_log: true, ..asked(MediumKind::Simulated) };
        // Whoever names the medium may say where it is now as well.
        asked(MediumKind::Simulated).open(&args(&db, Some(moved.clone()))).unwrap().close().unwrap();
        for pmem in [Some(moved), None] {
            // It is noted.
            args(&db, pmem).open_existing().unwrap().close().unwrap();
        }
        let e = other.open(&args(&db, None)).unwrap_err();
        assert!(e.to_string().contains("--trailing-log is for a new database"), "{e}");
    }

    #[test]
    fn a_database_without_persistent_memory_has_it_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let (db, memory) = (dir.path().join("db"), Some(dir.path().join("memory")));
        let there = args(&db, memory.clone());
        // Only one that is there was moved.
        assert!(MediumArgs::default().open(&there).is_err() && !db.exists());
        for refused in [asked(MediumKind::Log), MediumArgs { trailing_log: true, ..MediumArgs::default() }] {
            let at = refused.medium.and(memory.as_deref());
            let e = refused.create(&new(&db, at, &there.options())).unwrap_err();
            assert!(e.to_string().contains("--medium log") && !db.exists(), "{e}");
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
        assert!(e.to_string().contains("--renew-pmem"), "{e}");
        let renewed = DbArgs { renew_pmem: true, ..args(&db, None) }.open_existing().unwrap();
        assert_eq!(renewed.subtable("t").unwrap().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
        renewed.close().unwrap();
    }
}
