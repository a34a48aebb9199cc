//! A whole machine in memory: deterministic, seeded, and able to crash at every I/O call.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use terrane_base::Result;

/// What an I/O call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// `File::write_at`.
    Write,
    /// `Region::store`.
    Store,
    /// `File::sync`, `Region::sync`.
    Sync,
    /// `Media::open` that creates, `Media::map` or `Media::lock` of a missing file.
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
    /// `File::read_at`.
    Read,
    /// Any other call that changes nothing: opening, listing, asking for a length.
    Look,
}

/// One I/O call that is about to change something.
#[derive(Clone, Copy, Debug)]
pub struct OpInfo<'a> {
    /// How many such calls came before it on this machine.
    pub index: u64,
    /// What it does.
    pub kind: OpKind,
    /// The file or directory (the old name of a rename).
    pub path: &'a Path,
}

/// Called before each I/O call that changes something, without any lock held.
pub type Hook = Arc<dyn Fn(&SimMedia, &OpInfo<'_>) + Send + Sync>;

/// How a machine stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CrashKind {
    /// The process dies between two I/O calls.
    Process,
    /// The process dies in the middle of the call that the hook announced.
    ProcessTorn,
    /// Power fails; nothing unsynced survives, but for a seeded subset of the pages of mapped regions.
    PowerLost,
    /// Power fails; everything that returned survives.
    PowerKept,
    /// Power fails; each unsynced sector, name and length is kept, lost or torn by seed.
    PowerTorn,
}

/// A picture of a machine.
#[derive(Clone, Debug)]
pub struct Image;

impl Image {
    /// The machine that comes up after a crash of this kind.
    pub fn crash(&self, kind: CrashKind, seed: u64) -> Arc<SimMedia> {
        let _ = (kind, seed);
        todo!()
    }
}

/// How an injected fault shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// `EIO`.
    Io,
    /// `ENOSPC`.
    NoSpace,
    /// A read or write does part of its work, then fails with `EIO`.
    Short,
}

/// Which calls fail, and how.
#[derive(Clone, Debug)]
pub struct FaultPlan;

impl FaultPlan {
    /// The call with this number fails, counted from 0 at [`SimMedia::set_fault`] over all fallible calls.
    pub fn nth(call: u64, fault: Fault) -> Self {
        let _ = (call, fault);
        todo!()
    }
    /// Each call fails with this probability, by seed.
    pub fn random(probability: f64, seed: u64, fault: Fault) -> Self {
        let _ = (probability, seed, fault);
        todo!()
    }
    /// From its first hit on, every call that the plan concerns fails.
    #[must_use]
    pub fn sticky(self) -> Self {
        todo!()
    }
    /// Only calls of these kinds are counted and fail.
    #[must_use]
    pub fn only(self, kinds: &[OpKind]) -> Self {
        let _ = kinds;
        todo!()
    }
}

/// The simulated machine.
#[derive(Debug)]
pub struct SimMedia;

impl SimMedia {
    /// A machine with empty disks.

    pub fn new(seed: u64) -> Arc<SimMedia> {
        let _ = seed;
        todo!()
    }
    /// Sets what is called before each I/O call that changes something.
    pub fn on_op(&self, hook: Option<Hook>) {
        let _ = hook;
        todo!()
    }
    /// Takes a picture; costs little, whatever the disks hold.
    pub fn image(&self) -> Image {
        todo!()
    }
    /// Sets which calls fail from now on.
    pub fn set_fault(&self, plan: Option<FaultPlan>) {
        let _ = plan;
        todo!()
    }
    /// How many calls the current plan has failed.
    pub fn faults_hit(&self) -> u64 {
        todo!()
    }
    /// Limits the bytes that files may occupy.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        let _ = bytes;
        todo!()
    }
    /// Makes each I/O call take this much virtual time.
    pub fn set_op_time(&self, time: Duration) {
        let _ = time;
        todo!()
    }
    /// Flips one stored bit of a file.
    pub fn flip_bit(&self, path: &Path, bit_offset: u64) -> Result<()> {
        let _ = (path, bit_offset);
        todo!()
    }
    /// How many I/O calls that change something were announced.
    pub fn op_count(&self) -> u64 {
        todo!()
    }
    /// How many reads were made.
    pub fn read_count(&self) -> u64 {
        todo!()
    }
    /// Runs one pending background task, chosen by seed. False if there is none.
    pub fn step(&self) -> bool {
        todo!()
    }
    /// Runs background tasks until none is pending.
    pub fn run_all(&self) {
        todo!()
    }
    /// How many background tasks wait to run.
    pub fn pending(&self) -> usize {
        todo!()
    }
}
