//! Where the commits of a new database go: a log, or persistent memory. One that exists says that itself.

use std::path::{Path, PathBuf};

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
    /// Persistent memory
    Pmem,
    /// An ordinary file in its place, in the page cache, and a log behind it
    PageCache,
}

impl MediumKind {
    fn of(db: &Db) -> Self {
        match db.stats().pmem_mode {
            None => MediumKind::Log,
            Some(PmemMode::PageCache) => MediumKind::PageCache,
            Some(_) => MediumKind::Pmem,
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
    /// File of that memory; `pmem` is simulated on a file system that is none [default: in the database's directory]
    #[arg(long, value_name = "FILE", requires = "medium")]
    pub(crate) pmem: Option<PathBuf>,
}

impl MediumArgs {
    /// Makes a database.
    pub(crate) fn create(&self, dir: &Path, options: &Options, memtable_mib: usize) -> Result<Db, Failure> {
        let kind = self.medium.unwrap_or(MediumKind::Log);
        // Memtables may take seven eighths of it.
        let mut memory = PmemOptions::new(((memtable_mib as u64) << 20).max(LEAST) / 7 * 8);
        if let Some(path) = &self.pmem {
            memory = memory.path(std::path::absolute(path)?);
        }
        let options = options.clone().create_if_missing(true).error_if_exists(true);
        let with = |mode| options.clone().medium(Medium::Pmem(memory.clone().mode(mode)));
        Ok(match kind {
            MediumKind::Log => Db::open(dir, options)?,
            MediumKind::PageCache => Db::open(dir, with(PmemMode::PageCache))?,
            MediumKind::Pmem => match Db::open(dir, with(PmemMode::Dax)) {
                Err(e) if e.kind() == ErrorKind::Unsupported => {
                    // The attempt has left a database in which nothing was committed.
                    Db::open(dir, with(PmemMode::StandIn).error_if_exists(false))?
                }
                opened => opened?,
            },
        })
    }

    /// Opens a database, which is made if it is not there.
    pub(crate) fn open(&self, args: &DbArgs) -> Result<Db, Failure> {
        let Some(kind) = self.medium else { return Ok(args.open(args.options())?) };
        match args.open_existing() {
            // (What is not found may be a part of one that is there: then its directory is.)
            Err(e) if e.kind() == ErrorKind::NotFound && is_empty(&args.db) => {
                self.create(&args.db, &args.options(), args.memtable_mib)
            }
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

/// Whether there is nothing in a directory, or no directory.
fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(dir: &Path) -> DbArgs {
        DbArgs { db: dir.to_owned(), memtable_mib: 8, cache_mib: 8, renew_memory: false }
    }

    #[test]
    fn a_new_database_has_the_medium_that_is_asked_for_and_keeps_it() {
        for kind in [MediumKind::Log, MediumKind::Pmem, MediumKind::PageCache] {
            let dir = tempfile::tempdir().unwrap();
            let db = dir.path().join("db");
            let asked = MediumArgs { medium: Some(kind), pmem: None };
            for again in [false, true] {
                let opened = asked.open(&args(&db)).unwrap();
                assert_eq!(MediumKind::of(&opened), kind, "again: {again}");
                opened.close().unwrap();
            }
            // Who asks for none takes what there is.
            let opened = MediumArgs::default().open(&args(&db)).unwrap();
            assert_eq!(MediumKind::of(&opened), kind);
            opened.close().unwrap();
            let other = if kind == MediumKind::Log { MediumKind::Pmem } else { MediumKind::Log };
            let e = MediumArgs { medium: Some(other), pmem: None }.open(&args(&db)).unwrap_err();
            assert!(e.to_string().contains("--medium is for a new database"), "{e}");
        }
    }

    #[test]
    fn a_memory_that_is_gone_makes_no_new_database() {
        let dir = tempfile::tempdir().unwrap();
        let (db, memory) = (dir.path().join("db"), dir.path().join("memory"));
        let asked = MediumArgs { medium: Some(MediumKind::Pmem), pmem: Some(memory.clone()) };
        asked.open(&args(&db)).unwrap().close().unwrap();
        std::fs::remove_file(&memory).unwrap();
        assert!(asked.open(&args(&db)).is_err());
        assert!(!memory.exists());
    }
}
