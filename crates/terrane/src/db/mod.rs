//! The database: opening, subtables, writing, closing.

pub(crate) mod anchor;
pub(crate) mod background;
pub(crate) mod commit;
pub(crate) mod engine;
pub(crate) mod flush;
pub(crate) mod freeze;
pub(crate) mod homes;
pub(crate) mod journal;
pub(crate) mod pacing;
pub(crate) mod pressure;
pub(crate) mod request;
pub(crate) mod room;
pub(crate) mod schema;
pub(crate) mod snapshot;
pub(crate) mod spare;
pub(crate) mod spent;
pub(crate) mod stats;
pub(crate) mod subtable;
pub(crate) mod table;
pub(crate) mod trouble;

use std::path::Path;
use std::sync::Arc;

use terrane_base::{Error, ErrorKind, Result, Seq};
use terrane_media::Media;
use terrane_media::real::{RealMedia, RealOptions};

use crate::batch::WriteBatch;
use crate::check::{CheckReport, Progress};
use crate::db::commit::PendingCommit;
use crate::db::engine::Engine;
use crate::db::request::Form;
use crate::db::snapshot::Snapshot;
use crate::db::stats::Stats;
use crate::db::subtable::Subtable;
use crate::exec::{Executor, ExecutorOptions};
use crate::options::{Durability, Medium, Options, SubtableOptions};
use crate::read::reader::Reader;
use crate::recovery;
use crate::txn::big::ingest::Ingest;
use crate::txn::options::TransactionOptions;
use crate::txn::transaction::Transaction;

/// An open database: a directory with subtables. Cloning the handle is cheap and shares it; any number of threads may
/// use it. The database closes cleanly when [`Db::close`] is called or the last `Db` goes.
///
/// ```
/// use terrane::{Db, Durability, Options, SubtableOptions, WriteBatch};
///
/// # fn main() -> terrane::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let db = Db::open(dir.path(), Options::new())?;
/// let users = db.create_subtable("users", SubtableOptions::new())?;
/// let mails = db.create_subtable("mails", SubtableOptions::new())?;
///
/// let mut batch = WriteBatch::new();
/// batch.put(&users, b"ada", b"1815")?;
/// batch.put(&mails, b"ada/1", b"hello")?;
/// db.write(batch, Durability::Sync)?;
///
/// assert_eq!(users.get(b"ada")?.as_deref(), Some(&b"1815"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Db {
    engine: Arc<Engine>,
    _closer: Arc<Closer>,
}

/// Closes the database when the last [`Db`] goes.
#[derive(Debug)]
struct Closer(Arc<Engine>);

impl Drop for Closer {
    fn drop(&mut self) {
        // Whoever cares about the outcome calls `close`; everything acknowledged is safe either way.
        let _ = self.0.close();
    }
}

impl Db {
    /// Opens the database in directory `dir`, creating it if allowed, and recovers what a crash left behind.
    ///
    /// Time: proportional to the log that was not yet written out (about twice the memtable budget at most, or 128 MiB if
    /// that is more) and to the number of extents, not to the bytes in them. With persistent memory, to the size of that, all pages of which
    /// are brought in, and to the records of memtables there, whose indexes are built again. (If a process dies in a commit to nearly as many
    /// subtables as there can be, the next opening may have to write memtables out, too.) Blocks.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if it is open already, [`ErrorKind::NotFound`], [`ErrorKind::AlreadyExists`],
    /// [`ErrorKind::Corruption`], [`ErrorKind::NewerFormat`], [`ErrorKind::InvalidArgument`], I/O errors.
    ///
    /// With persistent memory also [`ErrorKind::Unsupported`] where its file lies on no such file system, [`ErrorKind::OutOfSpace`] if it
    /// cannot be made as large, or memtables cannot be written out that have to be, [`ErrorKind::NotFound`] if its file is gone, and
    /// [`ErrorKind::Corruption`] if it is damaged (of these two the hint says whether [`Options::renew_pmem`] helps),
    /// [`ErrorKind::LimitExceeded`] if a new one is to be made that is too small for so many subtables, and [`ErrorKind::Stale`] for a
    /// [stand-in](crate::PmemMode::StandIn) that was open when the machine stopped, and for a copy from before, or a directory from before. In
    /// the page cache a memory that is gone or stale is made anew instead. It takes 8 GiB of addresses beside those of its file, which a limit
    /// on them (`ulimit -v`) has to leave.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<Db> {
        options.check()?;
        let options = options.on_processors(terrane_media::processors());
        let compaction_threads = options.compaction_jobs();
        let threads = RealOptions {
            log_threads: 1,
            // Each compaction reads and writes at the same time; each thread of a flush writes.
            io_threads: 2 * compaction_threads + options.flush_threads(),
            read_threads: 2,
            // Each compaction takes one to pick and to install, and mostly waits in it: the others are for flushes.
            flush_threads: options.flush_threads() + compaction_threads,
            compaction_threads,
        };
        let pmem_cost = match &options.medium {
            Some(Medium::Pmem(memory)) => memory.cost,
            _ => None,
        };
        let media = RealMedia::with_pmem_cost(threads, pmem_cost)?;
        // Else a thread might be about to let go of the directory still.
        let db = Self::open_on(media.clone(), dir, options).inspect_err(|_| media.shutdown())?;
        db.engine.owns_media.store(true, std::sync::atomic::Ordering::Release);
        Ok(db)
    }

    /// As [`Db::open`], on a machine of the caller's: how tests open a database on a simulated one.
    ///
    /// # Errors
    /// As for [`Db::open`].
    pub fn open_on(media: Arc<dyn Media>, dir: impl AsRef<Path>, options: Options) -> Result<Db> {
        #[cfg(test)]
        let options = crate::testkit::on_medium(options, &*media, dir.as_ref());
        options.check()?;
        let engine = recovery::open(media, dir.as_ref(), options)?;
        Ok(Db { _closer: Arc::new(Closer(engine.clone())), engine })
    }

    /// Starts threads, each bound to a processor, that own the subtables between them: for servers that want each processor to keep to its
    /// own data. There may be several. It does not keep the database open.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] above 1,024 cores, [`ErrorKind::Io`] if a thread cannot be started or
    /// bound, [`ErrorKind::Unsupported`] on a simulated machine.
    pub fn executor(&self, options: ExecutorOptions) -> Result<Executor> {
        Executor::start(self.engine.clone(), &options)
    }

    /// A way to read that the calling thread has to itself: for threads that read all the time.
    pub fn reader(&self) -> Reader<'_> {
        Reader::new(&self.engine)
    }

    /// Removes the database in `dir` and the directory, if nothing else is in it. Files that are not a database's are left alone, and so is
    /// a persistent memory that has another place or name than `pmem` in `dir`, with what of it was put aside.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if it is open, [`ErrorKind::NotFound`] if `dir` holds no database, I/O errors.
    pub fn destroy(dir: impl AsRef<Path>) -> Result<()> {
        let media = RealMedia::new(RealOptions::default())?;
        recovery::destroy(&*media, dir.as_ref())
    }

    /// Creates a subtable; durable when it returns, with every commit before it. Blocks for a flush of the log and of the
    /// manifest.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`], [`ErrorKind::InvalidArgument`] for a bad name (1 to 255 bytes) or options,
    /// [`ErrorKind::LimitExceeded`] where persistent memory has no memtable for it, and what writing the manifest can fail with.
    pub fn create_subtable(&self, name: &str, options: SubtableOptions) -> Result<Subtable> {
        let table = self.engine.create_subtable(name, options)?;
        Ok(Subtable::new(self.engine.clone(), table))
    }

    /// The subtable of this name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn subtable(&self, name: &str) -> Result<Subtable> {
        match self.engine.tables.load().by_name(name) {
            Some(t) => Ok(Subtable::new(self.engine.clone(), t.clone())),
            None => Err(Error::new(ErrorKind::NotFound, format!("there is no subtable {name:?}"))
                .with_file(&self.engine.dir)),
        }
    }

    /// The subtable of this name, created with `options` if there is none.
    ///
    /// # Errors
    /// As for [`Db::create_subtable`].
    pub fn subtable_or_create(&self, name: &str, options: SubtableOptions) -> Result<Subtable> {
        match self.subtable(name) {
            Err(e) if e.kind() == ErrorKind::NotFound => match self.create_subtable(name, options) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => self.subtable(name),
                other => other,
            },
            other => other,
        }
    }

    /// The names of all subtables, sorted.
    pub fn subtables(&self) -> Vec<String> {
        let mut names: Vec<String> = self.engine.tables.load().all().map(|t| t.name.to_string()).collect();
        names.sort();
        names
    }

    /// Drops a subtable with all it holds; durable when it returns, with every commit before it. Open cursors go on to
    /// their end, handles fail with [`ErrorKind::SubtableDropped`]; space comes back as the last cursor goes.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], and what writing the manifest can fail with.
    pub fn drop_subtable(&self, name: &str) -> Result<()> {
        self.engine.drop_subtable(name)
    }

    /// Commits a batch and returns its sequence once it has the durability asked for. An empty batch commits nothing; with
    /// [`Durability::Sync`] it makes durable what was committed before.
    ///
    /// Blocks: a [`Durability::Sync`] commit for a flush; any commit while memtables, log or levels are filling up faster
    /// than the background empties them.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::OutOfSpace`], [`ErrorKind::SubtableDropped`],
    /// [`ErrorKind::Poisoned`], [`ErrorKind::Closed`], I/O errors; [`ErrorKind::LockTimeout`] and [`ErrorKind::Deadlock`]
    /// beside transactions. Nothing of the batch is visible then; after an error of a flush it may still be found after a
    /// restart.
    pub fn write(&self, batch: WriteBatch, durability: Durability) -> Result<Seq> {
        self.engine.commit(batch, Form::plain(durability))
    }

    /// Commits a batch and does not wait for its outcome; see [`PendingCommit`].
    ///
    /// The call does the commit's work, so it can block like [`Db::write`] while writers are slowed down; and the calling
    /// thread may turn out to be the one that orders and flushes for all. An executor that must not be held up calls it
    /// where blocking is allowed.
    ///
    /// # Errors
    /// As for [`Db::write`], as far as they are known at once.
    pub fn submit(&self, batch: WriteBatch, durability: Durability) -> Result<PendingCommit> {
        self.engine.submit(batch, Form::plain(durability))
    }

    /// Begins a transaction. From the first one on, writes that are no transactions take locks too: each waits for
    /// transactions that have locked what it writes (one second at most), and costs some hundred nanoseconds a key more.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for options that contradict each other; I/O errors of the flush that the first one waits for.
    pub fn begin(&self, options: TransactionOptions) -> Result<Transaction> {
        Transaction::begin(&self.engine, &options)
    }

    /// Begins to take in sorted data, straight into extents; see [`Ingest`].
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`], [`ErrorKind::Closed`].
    pub fn ingest(&self) -> Result<Ingest> {
        Ingest::new(&self.engine)
    }

    /// The xids of all transactions that are prepared and have not ended, in order: after a crash, those in doubt. One whose
    /// prepare has not returned yet may be among them.
    pub fn prepared(&self) -> Vec<Vec<u8>> {
        self.engine.xids()
    }

    /// Second phase: commits a prepared transaction, with the durability asked for. What it wrote to subtables that were
    /// dropped since is left out.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if no prepared transaction has this xid; otherwise as for [`Db::write`], and then it stays
    /// prepared; after an error of a flush a restart may find that it has ended.
    pub fn commit_prepared(&self, xid: &[u8], durability: Durability) -> Result<Seq> {
        self.engine.commit_prepared(xid, durability)
    }

    /// Second phase: rolls a prepared transaction back. Durable when it returns.
    ///
    /// # Errors
    /// As for [`Db::commit_prepared`].
    pub fn rollback_prepared(&self, xid: &[u8]) -> Result<()> {
        self.engine.rollback_prepared(xid)
    }

    /// Makes everything committed so far survive a power failure, and the loss of a device of persistent memory that has a log behind it. Waits
    /// for a flush (on a device without a log for nothing); where that log has a gap ([`Stats::log_gap`]) until what it lacks is written out,
    /// which takes as long as writing memtables does.
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`], I/O errors; where memtables are written out what that fails with, as [`ErrorKind::OutOfSpace`] and
    /// [`ErrorKind::Corruption`].
    pub fn sync(&self) -> Result<()> {
        self.engine.commit(WriteBatch::new(), Form::plain(Durability::Sync))?;
        self.engine.mend_log()
    }

    /// A picture of the whole database at this moment. Cheap; does no I/O.
    pub fn snapshot(&self) -> Snapshot {
        let guard = self.engine.register_owned();
        Snapshot { guard, database: self.engine.database }
    }

    /// Figures about the database.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Reads everything that is written out, and the records (range tombstones apart) that memtables have in persistent
    /// memory, and verifies every checksum and invariant; takes as long as reading the data files. Goes on after damage and
    /// lists all it finds. Prepared transactions are part of it: damage names their xid.
    /// `progress` is called now and then; return `false` from it to stop early.
    ///
    /// # Errors
    /// Only what keeps the check itself from running; damage is in the report.
    pub fn check(&self, progress: impl FnMut(Progress) -> bool) -> Result<CheckReport> {
        crate::check::check(&self.engine, progress)
    }

    /// Waits until no flush and no compaction is queued or running. What the background leaves for when a subtable is not
    /// written (some seconds after a memtable of it froze), such as giving back the space of superseded records and of what
    /// was merged, is done at once.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`].
    pub fn wait_idle(&self) -> Result<()> {
        self.engine.come_to_rest()
    }

    /// The largest batch that can be committed, in bytes of encoded operations ([`WriteBatch::bytes`]). A large value counts with its key and 64
    /// bytes, and one for each 64 KiB of it. In persistent memory all records of it together
    /// must fit a zone, each with 15 bytes beside key and value, rounded up to 8: of tiny ones fewer are taken.
    pub fn max_batch_bytes(&self) -> u64 {
        self.engine.options.max_operations()
    }

    /// Closes the database: waits for background work in progress, makes the log durable and notes a clean end, so that
    /// the next opening has little to do. What a log behind a device lacks ([`Stats::log_gap`]) is written out before. Handles that are left
    /// fail with [`ErrorKind::Closed`] on writes.
    ///
    /// # Errors
    /// What the last flush failed with. Everything acknowledged before is as safe as it was.
    pub fn close(self) -> Result<()> {
        self.engine.close()
    }
}
