//! The one way in which I/O calls reach the simulated device: announce, fail or apply.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use terrane_base::{Error, Result};

use super::disk::{Disk, Effect};
use super::fault::Fault;
use super::inode::{Change, DISK_SECTOR};
use super::{OpInfo, OpKind, SimMedia, State};
use crate::error::io_error;

impl SimMedia {
    /// Makes a call that changes something: `plan` says what it would do to the disk as it is, or why it cannot be. It is
    /// asked twice if there is a hook, since the hook runs without the lock.
    pub(super) fn change(
        &self,
        kind: OpKind,
        path: &Path,
        plan: impl Fn(&Disk) -> Result<Effect>,
    ) -> Result<()> {
        let mut s = self.state.lock();
        let mut effect = plan(&s.disk)?;
        let index = s.ops;
        s.ops += 1;
        s.tick();
        if let Some(hook) = s.hook.clone() {
            s.in_flight = Some(effect);
            drop(s);
            hook(self, &OpInfo { index, kind, path });
            s = self.state.lock();
            s.in_flight = None;
            effect = plan(&s.disk)?;
        }
        // Stores and fences are made by the processor: they cannot fail.
        if !matches!(kind, OpKind::Store | OpKind::Fence)
            && let Some(fault) = s.fault.as_mut().and_then(|f| f.check(kind, path))
        {
            if fault != Fault::BitFlip {
                s.fail(&effect, fault);
                return Err(fault_error(fault, kind, path));
            }
            effect = s.with_flipped_bit(effect);
        }
        s.apply(&effect).map_err(|e| io_error(e, doing(kind), path))
    }

    /// Has lines of persistent memory written back. What may be left after a crash is the same as before: no crash point.
    pub(super) fn flush_lines(&self, inode: u64, offset: u64, len: u64) {
        let thread = thread::current().id();
        if let Some(file) = Arc::make_mut(&mut self.state.lock().disk).inode_mut(inode) {
            file.flush_lines(offset, len, thread);
        }
    }

    /// Makes certain what the calling thread has flushed.
    pub(super) fn fence(&self, inode: u64, path: &Path) {
        let thread = thread::current().id();
        let fenced = self.change(OpKind::Fence, path, |_| Ok(Effect::PmFence(inode, thread)));
        debug_assert!(fenced.is_ok(), "a processor's call cannot fail: {fenced:?}");
    }

    /// Makes a call that changes nothing.
    pub(super) fn look<T>(
        &self,
        kind: OpKind,
        path: &Path,
        f: impl FnOnce(&mut State) -> Result<T>,
    ) -> Result<T> {
        let mut s = self.state.lock();
        s.tick();
        match s.fault.as_mut().and_then(|f| f.check(kind, path)) {
            Some(fault) => Err(fault_error(fault, kind, path)),
            None => f(&mut s),
        }
    }
}

impl State {
    /// A call takes its time.
    pub(super) fn tick(&mut self) {
        self.clock = self.clock.saturating_add(self.op_time);
    }

    fn apply(&mut self, effect: &Effect) -> io::Result<()> {
        if let Some(capacity) = self.capacity {
            match effect {
                Effect::Content(id, Change::Write(offset, data)) => {
                    let open = self.open_files();
                    let fits = self.disk.write_fits(*id, *offset, data.len(), capacity, &open);
                    if fits < data.len() {
                        // As on a real device: what fits is written, the rest fails.
                        let part = Change::Write(*offset, data.prefix(fits));
                        Arc::make_mut(&mut self.disk).apply(&Effect::Content(*id, part));
                        return Err(io::ErrorKind::StorageFull.into());
                    }
                }
                Effect::Content(id, Change::Allocate(offset, len)) => {
                    let open = self.open_files();
                    if self.disk.write_fits(*id, *offset, *len, capacity, &open) < *len {
                        return Err(io::ErrorKind::StorageFull.into());
                    }
                }
                _ => {}
            }
        }
        let disk = Arc::make_mut(&mut self.disk);
        disk.apply(effect);
        if let Effect::SyncDir(_) = effect {
            let open: BTreeSet<u64> = self.handles.keys().copied().collect();
            disk.collect(&open);
        }
        Ok(())
    }

    /// A write that goes wrong unnoticed.
    fn with_flipped_bit(&mut self, effect: Effect) -> Effect {
        match effect {
            Effect::Content(id, Change::Write(offset, data)) => {
                let bit = self.rng.below(data.len() * 8);
                Effect::Content(id, Change::Write(offset, data.with_flipped_bit(bit)))
            }
            other => other,
        }
    }

    /// What a failed call leaves behind.
    fn fail(&mut self, effect: &Effect, fault: Fault) {
        let seed = self.rng.next();
        match (effect, fault) {
            (Effect::Sync(id), _) => Arc::make_mut(&mut self.disk).fail_sync(*id, seed),
            (Effect::Content(id, Change::Write(offset, data)), Fault::Short) => {
                let sectors = data.len().div_ceil(DISK_SECTOR);
                let part = data.prefix(seed % sectors.max(1) * DISK_SECTOR);
                // A device that is full on top of it has nothing to add: the call has failed already.
                let _full = self.apply(&Effect::Content(*id, Change::Write(*offset, part)));
            }
            _ => {}
        }
    }
}

pub(super) fn fault_error(fault: Fault, kind: OpKind, path: &Path) -> Error {
    let source = match fault {
        Fault::Io | Fault::BitFlip => io::Error::other("input/output error (injected)"),
        Fault::NoSpace => io::ErrorKind::StorageFull.into(),
        Fault::Short => io::Error::other("short transfer (injected)"),
    };
    io_error(source, doing(kind), path)
}

fn doing(kind: OpKind) -> &'static str {
    match kind {
        OpKind::Write => "write",
        OpKind::Store => "store",
        OpKind::Fence => "fence",
        OpKind::Sync => "sync",
        OpKind::Create => "create",
        OpKind::CreateDir => "create directory",
        OpKind::Rename => "rename",
        OpKind::Remove => "remove",
        OpKind::SetLen => "set length",
        OpKind::Allocate => "allocate",
        OpKind::Punch => "punch hole",
        OpKind::SyncDir => "sync directory",
        OpKind::Read => "read",
        OpKind::Look => "look-up",
    }
}
