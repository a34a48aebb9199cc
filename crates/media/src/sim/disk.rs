//! The simulated device: files and names, and the effects that I/O calls have on them.
//!
//! Every call that changes something is first made into an [`Effect`], a value: the machine announces it (a crash may
//! come in the middle of it), then applies it, in whole or in part.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::thread::ThreadId;

use super::crash::PmModel;
use super::inode::{Change, DISK_SECTOR, Data, Inode, Mood, Survival};
use super::names::{NameOp, Names, Node};
use super::pages::PAGE;
use super::rng::Rng;

/// What one call does to the device.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    Content(u64, Change),
    Store(u64, u64, Arc<[u8]>),
    PmStore(PmStore),
    PmFence(u64, ThreadId),
    Sync(u64),
    Names(Arc<NameOp>),
    SyncDir(u64),
}

/// A store to persistent memory: whole words.
#[derive(Clone, Debug)]
pub(super) struct PmStore {
    pub(super) inode: u64,
    pub(super) offset: u64,
    pub(super) words: Arc<[u8]>,
    /// Which of the bytes go around the processor's caches.
    pub(super) streamed: Range<usize>,
    pub(super) thread: ThreadId,
}

/// Cheap to clone: content is shared until one side writes.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) names: Names,
    inodes: BTreeMap<u64, Arc<Inode>>,
    next_id: u64,
}

impl Disk {
    pub(super) fn new() -> Self {
        Disk { names: Names::new(), inodes: BTreeMap::new(), next_id: 1 }
    }

    /// The id that the next created file or directory gets.
    pub(super) fn next_id(&self) -> u64 {
        self.next_id
    }

    pub(super) fn inode(&self, id: u64) -> Option<&Inode> {
        self.inodes.get(&id).map(|i| &**i)
    }

    pub(super) fn inode_mut(&mut self, id: u64) -> Option<&mut Inode> {
        self.inodes.get_mut(&id).map(Arc::make_mut)
    }

    pub(super) fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Content(id, change) => {
                if let Some(i) = self.inode_mut(*id) {
                    i.change(change);
                }
            }
            Effect::Store(id, offset, bytes) => {
                if let Some(i) = self.inode_mut(*id) {
                    i.store(*offset, bytes);
                }
            }
            Effect::PmStore(s) => {
                if let Some(i) = self.inode_mut(s.inode) {
                    i.store_lines(s.offset, &s.words, &s.streamed, s.thread);
                }
            }
            Effect::PmFence(id, thread) => {
                if let Some(i) = self.inode_mut(*id) {
                    i.fence(*thread);
                }
            }
            Effect::Sync(id) => {
                // Syncing what is clean changes nothing, and must not unshare the file from its images.
                if self.inode(*id).is_some_and(|i| !i.is_synced())
                    && let Some(i) = self.inode_mut(*id)
                {
                    i.sync();
                }
            }
            Effect::Names(op) => {
                for (_, _, node) in &op.changes {
                    if let Some(Node::File(id) | Node::Dir(id)) = node {
                        self.next_id = self.next_id.max(id + 1);
                    }
                    if let Some(Node::File(id)) = node {
                        self.inodes.entry(*id).or_default();
                    }
                }
                self.names.apply(op);
            }
            Effect::SyncDir(dir) => self.names.sync_dir(*dir),
        }
    }

    /// Applies what a process that dies in the middle of the call leaves behind: for data a prefix (sectors of a write,
    /// words of a store), for anything else all or nothing.
    pub(super) fn apply_prefix(&mut self, effect: &Effect, rng: &mut Rng) {
        match effect {
            Effect::Content(id, Change::Write(offset, data)) => {
                let first = DISK_SECTOR - offset % DISK_SECTOR;
                let ends = 1 + data.len().saturating_sub(first).div_ceil(DISK_SECTOR);
                let len = match rng.below(ends + 1) {
                    0 => 0,
                    n => first + (n - 1) * DISK_SECTOR,
                };
                self.apply(&Effect::Content(*id, Change::Write(*offset, data.prefix(len.min(data.len())))));
            }
            Effect::Store(id, offset, bytes) => {
                let words = rng.below(bytes.len() as u64 / 8 + 1) as usize;
                self.apply(&Effect::Store(*id, *offset, bytes[..words * 8].into()));
            }
            Effect::PmStore(s) => {
                let words = rng.below(s.words.len() as u64 / 8 + 1) as usize;
                self.apply(&Effect::PmStore(PmStore { words: s.words[..words * 8].into(), ..s.clone() }));
            }
            whole => {
                if rng.below(2) == 0 {
                    self.apply(whole);
                }
            }
        }
    }

    /// How much of a write fits into `capacity` bytes; `open` files count even if they have no name.
    pub(super) fn write_fits(
        &self,
        id: u64,
        offset: u64,
        len: u64,
        capacity: u64,
        open: &BTreeSet<u64>,
    ) -> u64 {
        let room = (capacity / PAGE).saturating_sub(self.used_pages(open));
        self.inode(id).map_or(0, |i| i.current().fits(offset, len, room) - offset)
    }

    /// Pages of space that files with a name or an `open` handle occupy.
    pub(super) fn used_pages(&self, open: &BTreeSet<u64>) -> u64 {
        let visible = self.names.visible();
        let counts = |id: &u64| visible.contains(&Node::File(*id)) || open.contains(id);
        self.inodes.iter().filter(|(id, _)| counts(id)).map(|(_, i)| i.current().allocated_pages()).sum()
    }

    /// Whether a name leads to the file, now or after some crash.
    pub(super) fn is_named(&self, id: u64) -> bool {
        self.names.live().contains(&Node::File(id))
    }

    /// Forgets files that no name, no crash and no `open` handle can reach.
    pub(super) fn collect(&mut self, open: &BTreeSet<u64>) {
        let live = self.names.live();
        self.names.collect(&live);
        self.inodes.retain(|id, _| live.contains(&Node::File(*id)) || open.contains(id));
    }

    /// A sync of a file that fails.
    pub(super) fn fail_sync(&mut self, id: u64, seed: u64) {
        if let Some(i) = self.inode_mut(id) {
            i.fail_sync(Mood::new(seed), id);
        }
    }

    /// The device after power came back.
    pub(super) fn after_power_loss(&self, survival: Survival, seed: u64) -> Disk {
        let mood = Mood::new(seed);
        let names = self.names.after_power_loss(survival, mood);
        let live = names.live();
        let mut survival = survival;
        let mut after = |id: u64, i: &Inode| {
            let fate = survival;
            if let Survival::Chosen(model, state) = &mut survival {
                // The number of a state of all memories together tells that of each.
                *state /= i.line_states(*model);
            }
            i.after_power_loss(fate, mood, id)
        };
        let inodes = self.inodes.iter().filter(|(id, _)| live.contains(&Node::File(**id)));
        let inodes = inodes.map(|(id, i)| (*id, Arc::new(after(*id, i)))).collect();
        Disk { names, inodes, next_id: self.next_id }
    }

    /// After the end of the process.
    pub(super) fn forget_threads(&mut self) {
        for inode in self.inodes.values_mut().filter(|i| i.line_states(PmModel::Lines) > 1) {
            Arc::make_mut(inode).forget_threads();
        }
    }

    /// How many contents of persistent memory a power failure may leave, by a model.
    pub(super) fn line_states(&self, model: PmModel) -> u64 {
        self.inodes.values().fold(1, |all, i| all.saturating_mul(i.line_states(model)))
    }
}

/// A write of these bytes.
pub(super) fn write(offset: u64, bytes: &[u8]) -> Change {
    Change::Write(offset, Data::of(bytes))
}
