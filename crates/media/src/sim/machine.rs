//! The simulated machine as a [`Media`].

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use terrane_base::{Error, ErrorKind, Result};

use super::disk::{Disk, Effect};
use super::file::{Handle, SimFile, SimLock, SimRegion};
use super::names::{NameOp, Node, PathError};
use super::pmem::SimPmem;
use super::rng::Rng;
use super::{OpKind, Runner, SimMedia};
use crate::error::{check_map_len, io_error};
use crate::{DirEntry, File, Help, Job, LockGuard, Media, OpenMode, Pmem, PmemMode, Pool, Region};

/// What a machine without a limit says it has free.
const ROOMY: u64 = 1 << 44;

/// How much of a mapped file one write fills with zeros.
const PREWRITE: usize = 1 << 20;

/// The wall clock when a machine is new: some day in 2025.
const EPOCH: u64 = 1_750_000_000;

impl Media for SimMedia {
    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        let mut above: Vec<&Path> = dir.ancestors().collect();
        above.reverse();
        for dir in above {
            let found = self.look(OpKind::Look, dir, |s| Ok(s.disk.names.resolve(dir)))?;
            match found {
                Ok(Node::Dir(_)) => {}
                Ok(Node::File(_)) => {
                    return Err(path_error(PathError::NotADirectory, "create directory", dir));
                }
                Err(PathError::Missing) => self.change(OpKind::CreateDir, dir, |d| {
                    name_op(d, dir, "create directory", |_| Ok(Some(Node::Dir(d.next_id()))))
                })?,
                Err(e) => return Err(path_error(e, "create directory", dir)),
            }
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.change(OpKind::SyncDir, dir, |d| Ok(Effect::SyncDir(directory(d, dir, "sync directory")?)))
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.look(OpKind::Look, dir, |s| {
            let id = directory(&s.disk, dir, "list")?;
            let entry = |(name, node): (&Arc<str>, Node)| DirEntry {
                name: name.to_string(),
                len: match node {
                    Node::File(id) => s.disk.inode(id).map_or(0, |i| i.len()),
                    Node::Dir(_) => 0,
                },
                is_dir: matches!(node, Node::Dir(_)),
            };
            Ok(s.disk.names.list(id).map(entry).collect())
        })
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.look(OpKind::Look, path, |s| match s.disk.names.resolve(path) {
            Ok(_) => Ok(true),
            Err(PathError::Missing) => Ok(false),
            Err(e) => Err(path_error(e, "look-up", path)),
        })
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        if mode.create_new {
            self.create(path)?;
        } else {
            self.look(OpKind::Look, path, |_| Ok(()))?;
        }
        let (machine, inode, _) = self.handle(path)?;
        Ok(Arc::new(SimFile::new(machine, inode, path, mode)))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.change(OpKind::Rename, from, |d| {
            let node = d.names.resolve(from).map_err(|e| path_error(e, "rename", from))?;
            let Node::File(_) = node else { return Err(Error::invalid("not a file").with_file(from)) };
            let (from_dir, from_name) = d.names.parent(from).map_err(|e| path_error(e, "rename", from))?;
            let (to_dir, to_name) = d.names.parent(to).map_err(|e| path_error(e, "rename", to))?;
            if let Some(Node::Dir(_)) = d.names.get(to_dir, to_name) {
                return Err(io_error(io::ErrorKind::IsADirectory.into(), "rename", to));
            }
            let mut changes = vec![(from_dir, Arc::from(from_name), None)];
            changes.push((to_dir, Arc::from(to_name), Some(node)));
            Ok(Effect::Names(Arc::new(NameOp { changes })))
        })
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.change(OpKind::Remove, path, |d| {
            name_op(d, path, "remove", |old| match old {
                Some(Node::File(_)) => Ok(None),
                Some(Node::Dir(_)) => Err(io_error(io::ErrorKind::IsADirectory.into(), "remove", path)),
                None => Err(path_error(PathError::Missing, "remove", path)),
            })
        })
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.change(OpKind::Remove, path, |d| {
            let id = directory(d, path, "remove")?;
            if d.names.list(id).next().is_some() {
                return Err(io_error(io::ErrorKind::DirectoryNotEmpty.into(), "remove", path));
            }
            name_op(d, path, "remove", |_| Ok(None))
        })
    }

    fn map(&self, path: &Path, len: usize) -> Result<Arc<dyn Region>> {
        check_map_len(path, len)?;
        if !self.exists(path)? {
            self.create(path)?;
        }
        let (machine, inode, file_len) = self.handle(path)?;
        // Held, the region keeps the file counted in whatever fails below.
        let region = SimRegion::new(machine.clone(), inode, path, len);
        if file_len != len as u64 {
            let (machine, inode, _) = self.handle(path)?;
            let file = SimFile::new(machine, inode, path, OpenMode { write: true, ..OpenMode::READ });
            file.set_len(0)?;
            let zeros = vec![0; PREWRITE.min(len)];
            for at in (0..len).step_by(PREWRITE) {
                file.write_at(&zeros[..PREWRITE.min(len - at)], at as u64)?;
            }
            file.sync()?;
        }
        Ok(Arc::new(region))
    }

    fn map_pmem(&self, path: &Path, mode: PmemMode) -> Result<Arc<dyn Pmem>> {
        self.look(OpKind::Look, path, |_| Ok(()))?;
        let (machine, inode, len) = self.handle(path)?;
        Ok(Arc::new(SimPmem::new(Handle { machine, inode, path: path.to_owned() }, len, mode)?))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        // Taken before the file is looked for, so that two callers cannot both create it.
        if !self.state.lock().locks.insert(path.to_owned()) {
            return Err(Error::new(ErrorKind::Locked, "the lock is held").with_file(path));
        }
        let guard = SimLock::new(self.strong()?, path.to_owned());
        if !self.exists(path)? {
            self.create(path)?;
        }
        Ok(Box::new(guard))
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        self.look(OpKind::Look, dir, |s| {
            directory(&s.disk, dir, "look-up")?;
            let used = s.disk.used_pages(&s.open_files()) * super::pages::PAGE;
            Ok(s.capacity.unwrap_or(ROOMY).saturating_sub(used))
        })
    }

    fn boot_id(&self) -> [u8; 16] {
        let mut rng = Rng::of(self.state.lock().boot, &[0x626f_6f74]);
        let mut id = [0; 16];
        id[..8].copy_from_slice(&rng.next().to_le_bytes());
        id[8..].copy_from_slice(&rng.next().to_le_bytes());
        id
    }

    fn now(&self) -> Duration {
        self.state.lock().clock
    }

    fn wall_time(&self) -> u64 {
        EPOCH + self.now().as_secs()
    }

    fn entropy(&self) -> u64 {
        self.state.lock().rng.next()
    }

    fn sleep(&self, time: Duration) {
        let mut s = self.state.lock();
        s.clock = s.clock.saturating_add(time);
    }

    fn spawn(&self, pool: Pool, name: &'static str, job: Job) {
        match &self.tasks {
            Runner::Stepped(t) => t.push(pool, name, job),
            Runner::Threads(p) => p.push(pool, job),
        }
    }

    fn spawn_after(&self, pool: Pool, delay: Duration, name: &'static str, job: Job) {
        match &self.tasks {
            Runner::Stepped(t) => t.push(pool, name, job),
            Runner::Threads(p) => p.push_after(pool, delay, job),
        }
    }

    fn help(&self) -> Help {
        match &self.tasks {
            Runner::Threads(_) => Help::Threads,
            Runner::Stepped(t) if t.step() => Help::Ran,
            Runner::Stepped(_) => Help::Idle,
        }
    }

    fn shutdown(&self) {
        match &self.tasks {
            Runner::Stepped(t) => t.close(),
            Runner::Threads(p) => p.close(),
        }
    }
}

impl SimMedia {
    fn create(&self, path: &Path) -> Result<()> {
        self.change(OpKind::Create, path, |d| {
            name_op(d, path, "create", |old| match old {
                None => Ok(Some(Node::File(d.next_id()))),
                Some(_) => Err(io_error(io::ErrorKind::AlreadyExists.into(), "create", path)),
            })
        })
    }

    /// Counts a new handle of a file in; its owner counts it out on drop. Also the file's length.
    fn handle(&self, path: &Path) -> Result<(Arc<SimMedia>, u64, u64)> {
        let machine = self.strong()?;
        let mut s = self.state.lock();
        match s.disk.names.resolve(path) {
            Ok(Node::File(id)) => {
                *s.handles.entry(id).or_default() += 1;
                let len = s.disk.inode(id).map_or(0, |i| i.len());
                Ok((machine, id, len))
            }
            Ok(Node::Dir(_)) => Err(io_error(io::ErrorKind::IsADirectory.into(), "open", path)),
            Err(e) => Err(path_error(e, "open", path)),
        }
    }

    fn strong(&self) -> Result<Arc<SimMedia>> {
        self.me.upgrade().ok_or_else(|| Error::new(ErrorKind::Closed, "the machine is being dropped"))
    }
}

fn directory(disk: &Disk, path: &Path, doing: &str) -> Result<u64> {
    match disk.names.resolve(path) {
        Ok(Node::Dir(id)) => Ok(id),
        Ok(Node::File(_)) => Err(path_error(PathError::NotADirectory, doing, path)),
        Err(e) => Err(path_error(e, doing, path)),
    }
}

/// The change of one name; `new` decides by what the name stands for now.
fn name_op(
    disk: &Disk,
    path: &Path,
    doing: &str,
    new: impl FnOnce(Option<Node>) -> Result<Option<Node>>,
) -> Result<Effect> {
    let (dir, name) = disk.names.parent(path).map_err(|e| path_error(e, doing, path))?;
    let node = new(disk.names.get(dir, name))?;
    Ok(Effect::Names(Arc::new(NameOp { changes: vec![(dir, Arc::from(name), node)] })))
}

fn path_error(e: PathError, doing: &str, path: &Path) -> Error {
    match e {
        PathError::Missing => io_error(io::ErrorKind::NotFound.into(), doing, path),
        PathError::NotADirectory => io_error(io::ErrorKind::NotADirectory.into(), doing, path),
        PathError::Unusable => Error::invalid("names are UTF-8 and paths have no `..`").with_file(path),
    }
}
