//! Pictures of a machine, and the machines that come up after it crashed at that moment.

use std::sync::Arc;
use std::time::Duration;

use super::SimMedia;
use super::disk::{Disk, Effect};
use super::inode::Survival;
use super::rng::Rng;

/// How a machine stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CrashKind {
    /// The process dies between two I/O calls. Everything written survives, mapped regions too, and what was not synced
    /// still is not; the boot id stays.
    Process,
    /// The process dies in the middle of the call that the hook announced: as [`CrashKind::Process`], and of that call a
    /// seeded prefix has happened (512-byte sectors of a write, words of a store; other calls wholly or not at all).
    ProcessTorn,
    /// Power fails. Nothing unsynced survives, but for a seeded subset of the pages of mapped regions. New boot id.
    PowerLost,
    /// Power fails. Everything that returned survives. New boot id.
    PowerKept,
    /// Power fails. Each unsynced 512-byte sector, name and length, those of the announced call included, is on its
    /// own kept, lost, left at an older unsynced state, torn, or (sectors, rarely) zeroed, by seed. New boot id.
    PowerTorn,
    /// As [`CrashKind::PowerTorn`], but each word of persistent memory that is not certain is on its own as it was stored or as it was
    /// before, by seed: the model of the Tair contest's judge.
    PowerWords,
}

impl CrashKind {
    /// All kinds that differ for files, for loops over them.
    pub const ALL: [CrashKind; 5] = {
        let [process, torn, lost, kept, power_torn, _words] = CrashKind::WITH_WORDS;
        [process, torn, lost, kept, power_torn]
    };
    /// All kinds that differ for persistent memory.
    pub const WITH_WORDS: [CrashKind; 6] = [
        CrashKind::Process,
        CrashKind::ProcessTorn,
        CrashKind::PowerLost,
        CrashKind::PowerKept,
        CrashKind::PowerTorn,
        CrashKind::PowerWords,
    ];
}

/// What a power failure leaves of the stores to persistent memory that are not certain yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PmModel {
    /// As processors' manuals have it: of each line a prefix of its ordinary stores, and of those that go around the caches any.
    Lines,
    /// As the judge of the Tair contest had it: each word is what was stored there last, or what was certain. ([`CrashKind::PowerWords`] is
    /// that by seed.)
    Words,
}

impl PmModel {
    /// All of them.
    pub const ALL: [PmModel; 2] = [PmModel::Lines, PmModel::Words];
}

/// A machine at one moment: its disks, with what was not yet durable, and the call that was announced. Shares its
/// content with the machine until that writes on, so taking one costs next to nothing.
#[derive(Clone, Debug)]
pub struct Image {
    pub(super) disk: Arc<Disk>,
    pub(super) in_flight: Option<Effect>,
    pub(super) boot: u64,
    pub(super) clock: Duration,
    pub(super) capacity: Option<u64>,
}

impl Image {
    /// The machine that comes up after a crash of this kind. It has no hook, no faults and no tasks; its virtual clock
    /// goes on, its counters start anew. Equal images, kinds and seeds give equal machines.
    pub fn crash(&self, kind: CrashKind, seed: u64) -> Arc<SimMedia> {
        let disk = match kind {
            CrashKind::Process => without_threads(self.disk.clone()),
            CrashKind::ProcessTorn => without_threads(self.with_prefix(seed)),
            CrashKind::PowerLost => Arc::new(self.disk.after_power_loss(Survival::Lost, seed)),
            CrashKind::PowerKept => Arc::new(self.disk.after_power_loss(Survival::Kept, seed)),
            CrashKind::PowerTorn => Arc::new(self.with_issued().after_power_loss(Survival::Torn, seed)),
            CrashKind::PowerWords => Arc::new(self.with_issued().after_power_loss(Survival::Words, seed)),
        };
        let boot = match kind {
            CrashKind::Process | CrashKind::ProcessTorn => self.boot,
            _ => Rng::of(self.boot, &[seed]).next(),
        };
        SimMedia::with_disk(disk, boot, self.clock, self.capacity, seed)
    }

    /// How many different contents of persistent memory a power failure at this moment may leave by a model, as far as a `u64` counts; 1 if all
    /// that was stored is certain.
    pub fn pm_states(&self, model: PmModel) -> u64 {
        self.with_issued().line_states(model)
    }

    /// The machine that comes up after power failed and left that one of the [`Image::pm_states`], by its number; the last one has all
    /// that was stored. Of files everything that returned survives. New boot id.
    pub fn crash_to_pm_state(&self, model: PmModel, state: u64) -> Arc<SimMedia> {
        let disk = self.with_issued().after_power_loss(Survival::Chosen(model, state), state);
        let boot = Rng::of(self.boot, &[state, 0x706d]).next();
        SimMedia::with_disk(Arc::new(disk), boot, self.clock, self.capacity, state)
    }

    /// States of persistent memory to try by each model: all of them where there are `most` at most, else so many different ones from all over.
    pub fn some_pm_states(&self, most: u64) -> impl Iterator<Item = (PmModel, u64)> {
        PmModel::ALL.into_iter().flat_map(move |model| {
            let states = self.pm_states(model);
            let step = step_through(states);
            (0..states.min(most)).map(move |n| (model, (u128::from(n) * step % u128::from(states)) as u64))
        })
    }

    fn with_prefix(&self, seed: u64) -> Arc<Disk> {
        let mut disk = self.disk.clone();
        if let Some(effect) = &self.in_flight {
            Arc::make_mut(&mut disk).apply_prefix(effect, &mut Rng::of(seed, &[0x7072_6566]));
        }
        disk
    }

    /// With the announced call issued but nothing of it certain. A sync on its way makes nothing certain either.
    fn with_issued(&self) -> Arc<Disk> {
        let mut disk = self.disk.clone();
        match &self.in_flight {
            None | Some(Effect::Sync(_) | Effect::SyncDir(_) | Effect::PmFence(..)) => {}
            Some(effect) => Arc::make_mut(&mut disk).apply(effect),
        }
        disk
    }
}

/// As the end of a process leaves it, which had lines of persistent memory on their way.
fn without_threads(mut disk: Arc<Disk>) -> Arc<Disk> {
    if disk.line_states(PmModel::Lines) > 1 {
        Arc::make_mut(&mut disk).forget_threads();
    }
    disk
}

/// Steps of this size, about the golden section of all, come to each of `states` numbers once, and with some dozens of them everywhere.
fn step_through(states: u64) -> u128 {
    let begin = (u128::from(states) * 618 / 1000).max(1);
    (begin..).find(|step| has_no_common_divisor(*step, u128::from(states))).unwrap_or(1)
}

fn has_no_common_divisor(mut a: u128, mut b: u128) -> bool {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}
