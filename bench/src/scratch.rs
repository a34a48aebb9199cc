//! Directories that a run has for itself. They go with it, also when it is interrupted: what stands for persistent memory would stay in main
//! memory else.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

use crate::Failure;
use crate::machine;

/// Where files are in main memory on Linux.
pub(crate) const MAIN_MEMORY: &str = "/dev/shm";

static OWN: Mutex<Own> = Mutex::new(Own { dirs: BTreeSet::new(), workers: BTreeSet::new() });

/// What ends with this process.
struct Own {
    dirs: BTreeSet<PathBuf>,
    workers: BTreeSet<u32>,
}

impl Own {
    /// Removes all directories, whose files nobody writes any more then.
    fn end(&mut self) {
        for pid in std::mem::take(&mut self.workers) {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                // It may have ended by the same signal, and been waited for.
                let _ = kill_process(pid, Signal::KILL)
                    .and_then(|()| waitpid(Some(pid), WaitOptions::empty()).map(drop));
            }
        }
        for dir in std::mem::take(&mut self.dirs) {
            if let Err(e) = std::fs::remove_dir_all(&dir) {
                eprintln!("terrane-bench: {} is left: {e}", dir.display());
            }
        }
    }
}

/// From here on Ctrl-C, and signals that ask to end, remove what there is.
pub(crate) fn end_when_interrupted() {
    // Where no handler can be set, the default one ends the program, and leaves its files.
    let _ = ctrlc::set_handler(|| {
        // Held to the end: nobody makes any more.
        let mut own = OWN.lock();
        own.end();
        std::process::exit(130);
    });
}

/// A worker's process, as long as it may run.
pub(crate) struct Running(u32);

impl Running {
    pub(crate) fn new(pid: u32) -> Running {
        OWN.lock().workers.insert(pid);
        Running(pid)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        OWN.lock().workers.remove(&self.0);
    }
}

/// A directory that is gone with this.
pub(crate) struct Scratch {
    dir: TempDir,
    /// Behind it: it is known until it is gone.
    _known: Known,
}

/// A directory that goes when the run is interrupted.
struct Known(PathBuf);

impl Drop for Known {
    fn drop(&mut self) {
        OWN.lock().dirs.remove(&self.0);
    }
}

impl Scratch {
    /// A fresh one within `parent` (made if it is not there), or within the system's.
    pub(crate) fn new(parent: Option<&Path>) -> Result<Scratch, Failure> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("terrane-bench-");
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        std::fs::create_dir_all(&parent)?;
        let mut own = OWN.lock();
        let dir = builder.tempdir_in(parent)?;
        own.dirs.insert(dir.path().to_owned());
        let _known = Known(dir.path().to_owned());
        Ok(Scratch { dir, _known })
    }

    /// One for persistent memory, so many bytes of it: where there is a device, `pm_dir`; what stands for one in main memory where there is
    /// room, else in `dir`.
    pub(crate) fn of_memory(
        pm_dir: Option<&Path>,
        dir: Option<&Path>,
        bytes: u64,
    ) -> Result<Scratch, Failure> {
        if pm_dir.is_some() {
            return Scratch::new(pm_dir);
        }
        let has_room =
            |dir: &&Path| Ok::<_, Failure>(machine::room_in_memory(dir)?.is_some_and(|room| bytes < room));
        match main_memory() {
            Some(memory) if has_room(&memory)? => Scratch::new(Some(memory)),
            _ => Scratch::new(dir),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Where files are in main memory, if the system has such a place.
pub(crate) fn main_memory() -> Option<&'static Path> {
    Some(Path::new(MAIN_MEMORY)).filter(|dir| dir.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_takes_its_directories_and_workers_along() {
        let dir = tempfile::tempdir().unwrap();
        let [gone, ended] = ["gone", "ended"].map(|name| dir.path().join(name));
        std::fs::create_dir_all(ended.join("within")).unwrap();
        let mut worker = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let mut own =
            Own { dirs: BTreeSet::from([gone, ended.clone()]), workers: BTreeSet::from([worker.id()]) };
        own.end();
        assert!(!ended.exists());
        // It is waited for.
        assert!(worker.try_wait().map_or(true, |status| status.is_some()));
        assert!(own.dirs.is_empty() && own.workers.is_empty());
    }

    #[test]
    fn a_directory_is_known_as_long_as_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(Some(&dir.path().join("made"))).unwrap();
        let path = scratch.path().to_owned();
        assert!(path.is_dir() && OWN.lock().dirs.contains(&path));
        drop(scratch);
        assert!(!path.exists() && !OWN.lock().dirs.contains(&path));
    }

    #[test]
    fn memory_that_main_memory_has_no_room_for_is_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let large = Scratch::of_memory(None, Some(dir.path()), u64::MAX).unwrap();
        assert!(large.path().starts_with(dir.path()));
        let device = Scratch::of_memory(Some(&dir.path().join("pm")), None, u64::MAX).unwrap();
        assert!(device.path().starts_with(dir.path().join("pm")));
    }
}
