//! A whole machine in memory: deterministic, seeded, and able to crash at every I/O call.
//!
//! [`SimMedia`] keeps three things apart that a real machine keeps apart: what programs see (the page cache), what the
//! device holds for certain (what was synced), and the unsynced changes between the two, in order. An [`Image`] is a
//! cheap copy of all three; [`Image::crash`] makes of it the machine that comes up afterwards, by [`CrashKind`] and seed.
//!
//! # How a crash test looks
//! Set a hook with [`SimMedia::on_op`]. It is called before each call that changes something; let it keep
//! [`SimMedia::image`]. Run the history. Then for each image, kind and seed: crash, reopen, compare with a model. For a
//! crash during recovery, hook the new machine likewise.
//!
//! # Background tasks
//! Nothing runs by itself: [`SimMedia::step`], and whoever waits ([`crate::Signal::wait_until`]), runs pending tasks on the
//! calling thread, choosing the pool by seed. So one thread and one seed give one history. [`SimMedia::with_threads`]
//! instead runs tasks on real threads, for stress tests that give determinism up.
//!
//! # Persistent memory
//! What a power failure leaves of it is told in `lines`. Where little was stored since the last fence, all that can be left is gone
//! through: [`Image::pm_states`], [`Image::crash_to_pm_state`].
//!
//! # What is modelled harder than life
//! Names survive in any combination (POSIX promises no order); a torn overwrite may damage the synced bytes of its own
//! sector; a failed sync loses changes for good while they still read back; direct I/O must be aligned to [`crate::SECTOR`].
//!
//! # Concurrency
//! All methods may be called from many threads; one mutex guards the machine. It is never held while hooks or tasks run,
//! so both may call back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use terrane_base::{Error, ErrorKind, Result};

use crate::pool::Pools;
use crate::real::RealOptions;

mod call;
mod counting;
mod crash;
mod disk;
mod fault;
mod file;
mod inode;
mod lines;
mod machine;
mod names;
mod pages;
mod pmem;
mod rng;
mod tasks;
#[cfg(test)]
mod tests;

pub use counting::{CountingPmem, PmemCounts};
pub use crash::{CrashKind, Image, PmModel};
pub use fault::{Fault, FaultPlan};

use disk::{Disk, Effect};
use names::Node;
use rng::Rng;
use tasks::Tasks;

/// What an I/O call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// `File::write_at`.
    Write,
    /// `Region::store`, `Pmem::write`, `Pmem::store_word`.
    Store,
    /// `Pmem::fence`.
    Fence,
    /// `File::sync`, `Region::sync`, `Pmem::sync`.
    Sync,
    /// `Media::open` that creates; `Media::map` or `Media::lock` of a missing file.
    Create,
    /// `Media::create_dir_all`, once per missing directory.
    CreateDir,
    /// `Media::rename`.
    Rename,
    /// `Media::remove_file`, `Media::remove_dir`.
    Remove,
    /// `File::set_len`.
    SetLen,
    /// `File::allocate`.
    Allocate,
    /// `File::punch`.
    Punch,
    /// `Media::sync_dir`.
    SyncDir,
    /// `File::read_at`. Changes nothing, so it is counted for faults only.
    Read,
    /// Any other call that changes nothing: opening, listing, asking for a length. Counted for faults only.
    Look,
}

/// One I/O call that is about to change something.
#[derive(Clone, Copy, Debug)]
pub struct OpInfo<'a> {
    /// How many such calls came before it on this machine.
    pub index: u64,
    /// What it does.
    pub kind: OpKind,
    /// The file or directory (the old name, for a rename).
    pub path: &'a Path,
}

/// Called before each I/O call that changes something, with no lock held.
pub type Hook = Arc<dyn Fn(&SimMedia, &OpInfo<'_>) + Send + Sync>;

/// The simulated machine. See the module's head.
pub struct SimMedia {
    /// Files and regions keep their machine alive.
    me: Weak<SimMedia>,
    state: Mutex<State>,
    tasks: Runner,
}

/// Who runs background tasks.
enum Runner {
    Stepped(Tasks),
    Threads(Pools),
}

struct State {
    disk: Arc<Disk>,
    in_flight: Option<Effect>,
    /// How many handles each open file has.
    handles: BTreeMap<u64, usize>,
    locks: BTreeSet<PathBuf>,
    boot: u64,
    clock: Duration,
    op_time: Duration,
    capacity: Option<u64>,
    rng: Rng,
    fault: Option<FaultPlan>,
    hook: Option<Hook>,
    ops: u64,
    reads: u64,
}

impl SimMedia {
    /// A machine with an empty disk. Tasks run when stepped or waited for.
    pub fn new(seed: u64) -> Arc<SimMedia> {
        SimMedia::with_disk(Arc::new(Disk::new()), seed, Duration::from_secs(1), None, seed)
    }

    /// A machine whose tasks run on real threads, as many as `threads` says: for stress tests. What it does is then no
    /// longer a function of the seed.
    pub fn with_threads(seed: u64, threads: &RealOptions) -> Arc<SimMedia> {
        let clock = Duration::from_secs(1);
        Self::build(Arc::new(Disk::new()), seed, clock, None, seed, Runner::Threads(Pools::new(threads)))
    }

    fn with_disk(
        disk: Arc<Disk>,
        boot: u64,
        clock: Duration,
        capacity: Option<u64>,
        seed: u64,
    ) -> Arc<SimMedia> {
        let tasks = Runner::Stepped(Tasks::new(Rng::of(seed, &[0x7461_736b])));
        Self::build(disk, boot, clock, capacity, seed, tasks)
    }

    fn build(
        disk: Arc<Disk>,
        boot: u64,
        clock: Duration,
        capacity: Option<u64>,
        seed: u64,
        tasks: Runner,
    ) -> Arc<SimMedia> {
        let state = State {
            disk,
            in_flight: None,
            handles: BTreeMap::new(),
            locks: BTreeSet::new(),
            boot,
            clock,
            op_time: Duration::ZERO,
            capacity,
            rng: Rng::of(seed, &[0x656e_7472]),
            fault: None,
            hook: None,
            ops: 0,
            reads: 0,
        };
        Arc::new_cyclic(|me| SimMedia { me: me.clone(), state: Mutex::new(state), tasks })
    }

    /// Sets what is called before each I/O call that changes something: a crash point.
    pub fn on_op(&self, hook: Option<Hook>) {
        // Dropped after the lock is released: a hook may own files of this machine.
        let _old = std::mem::replace(&mut self.state.lock().hook, hook);
    }

    /// Takes a picture. Costs next to nothing, whatever the disk holds.
    pub fn image(&self) -> Image {
        let s = self.state.lock();
        Image {
            disk: s.disk.clone(),
            in_flight: s.in_flight.clone(),
            boot: s.boot,
            clock: s.clock,
            capacity: s.capacity,
        }
    }

    /// Sets which calls fail from now on; forgets what the last plan counted.
    pub fn set_fault(&self, plan: Option<FaultPlan>) {
        self.state.lock().fault = plan;
    }

    /// How many calls the current plan has failed.
    pub fn faults_hit(&self) -> u64 {
        self.state.lock().fault.as_ref().map_or(0, FaultPlan::hits)
    }

    /// Limits the bytes that files may occupy; beyond it writes fail as on a full device. `None`: no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity = bytes;
    }

    /// Bytes that files occupy.
    pub fn used_bytes(&self) -> u64 {
        let s = self.state.lock();
        s.disk.used_pages(&s.open_files()) * pages::PAGE
    }

    /// Makes each I/O call take this much virtual time.
    pub fn set_op_time(&self, time: Duration) {
        self.state.lock().op_time = time;
    }

    /// Flips one stored bit of a file, behind everybody's back.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] without such a file, [`ErrorKind::InvalidArgument`] if it is shorter.
    pub fn flip_bit(&self, path: &Path, bit_offset: u64) -> Result<()> {
        let mut s = self.state.lock();
        let disk = Arc::make_mut(&mut s.disk);
        let inode = match disk.names.resolve(path) {
            Ok(Node::File(id)) => disk.inode_mut(id),
            _ => None,
        };
        let inode = inode.ok_or_else(|| Error::new(ErrorKind::NotFound, "no such file").with_file(path))?;
        if bit_offset / 8 >= inode.len() {
            return Err(Error::invalid("the file has no such bit")
                .with_file(path)
                .with_offset(bit_offset / 8));
        }
        inode.flip_bit(bit_offset);
        Ok(())
    }

    /// How many I/O calls that change something were announced.
    pub fn op_count(&self) -> u64 {
        self.state.lock().ops
    }

    /// How many reads of files were made.
    pub fn read_count(&self) -> u64 {
        self.state.lock().reads
    }

    /// Runs one pending background task, chosen by seed, on this thread. False if none can run.
    pub fn step(&self) -> bool {
        match &self.tasks {
            Runner::Stepped(t) => t.step(),
            Runner::Threads(_) => false,
        }
    }

    /// Runs background tasks until none can run.
    pub fn run_all(&self) {
        while self.step() {}
    }

    /// How many background tasks wait to run.
    pub fn pending(&self) -> usize {
        match &self.tasks {
            Runner::Stepped(t) => t.pending(),
            Runner::Threads(p) => p.pending(),
        }
    }
}

impl State {
    fn open_files(&self) -> BTreeSet<u64> {
        self.handles.keys().copied().collect()
    }
}

impl fmt::Debug for SimMedia {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimMedia({} calls, {} tasks pending)", self.op_count(), self.pending())
    }
}
