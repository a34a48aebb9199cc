//! What the operating system says of this process and of the machine.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Failure;

/// What `statfs` calls a file system in main memory.
const TMPFS: u64 = 0x0102_1994;

/// Counters at one moment; differences are what a workload cost.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Counters {
    pub(crate) cpu_seconds: f64,
    /// Bytes this process caused to be written to, and read from, devices.
    pub(crate) written: u64,
    pub(crate) read: u64,
    /// Reads that the device with the database completed, for anyone; 0 where the system does not say.
    pub(crate) device_reads: u64,
    /// Time that the host gave to others, all cores together.
    pub(crate) stolen_seconds: f64,
}

impl Counters {
    /// Of this process, and of the device that holds `dir`.
    pub(crate) fn now(dir: &Path) -> Result<Self, Failure> {
        let io = std::fs::read_to_string("/proc/self/io")?;
        let field = |name: &str| -> u64 {
            io.lines()
                .filter_map(|l| l.strip_prefix(name)?.strip_prefix(": ")?.trim().parse().ok())
                .next()
                .unwrap_or(0)
        };
        Ok(Counters {
            cpu_seconds: cpu_seconds()?,
            written: field("write_bytes"),
            read: field("read_bytes"),
            device_reads: device_reads(dir)?,
            stolen_seconds: stolen_seconds()?,
        })
    }

    pub(crate) fn since(&self, earlier: &Counters) -> Counters {
        Counters {
            cpu_seconds: self.cpu_seconds - earlier.cpu_seconds,
            written: self.written.saturating_sub(earlier.written),
            read: self.read.saturating_sub(earlier.read),
            device_reads: self.device_reads.saturating_sub(earlier.device_reads),
            stolen_seconds: self.stolen_seconds - earlier.stolen_seconds,
        }
    }
}

/// Clock ticks per second in `/proc`: fixed for user space on Linux.
const TICKS: f64 = 100.0;

fn cpu_seconds() -> Result<f64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The second field is a name in parentheses and may hold anything.
    let rest = stat.rsplit_once(')').map_or(stat.as_str(), |(_, r)| r);
    let ticks: f64 = rest.split_whitespace().skip(11).take(2).filter_map(|f| f.parse::<f64>().ok()).sum();
    Ok(ticks / TICKS)
}

fn stolen_seconds() -> Result<f64, Failure> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let cpu = stat.lines().next().unwrap_or_default();
    Ok(cpu.split_whitespace().nth(8).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0) / TICKS)
}

fn device_reads(dir: &Path) -> Result<u64, Failure> {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(dir)?.dev();
    let wanted = (rustix::fs::major(device), rustix::fs::minor(device));
    // Major, minor, name, reads completed, ...
    let of = |line: &str| -> Option<u64> {
        let mut fields = line.split_whitespace();
        let id: (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        fields.nth(1)?.parse().ok().filter(|_| id == wanted)
    };
    Ok(std::fs::read_to_string("/proc/diskstats")?.lines().find_map(of).unwrap_or(0))
}

/// Has this process, and all threads that it starts from now on, use one core only.
pub(crate) fn keep_to_one_core() -> Result<(), Failure> {
    let last = processors()?.pop();
    bind(last.ok_or("no core is allowed to this process")?)
}

/// The processors on which this process may run.
pub(crate) fn processors() -> Result<Vec<usize>, Failure> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|&n| allowed.is_set(n)).collect())
}

/// Binds the calling thread, and those that it starts, to a processor.
pub(crate) fn bind(processor: usize) -> Result<(), Failure> {
    let mut one = rustix::thread::CpuSet::new();
    one.set(processor);
    Ok(rustix::thread::sched_setaffinity(None, &one)?)
}

/// Ends this process at once.
pub(crate) fn kill_self() -> Result<(), Failure> {
    Ok(rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?)
}

/// Resident memory of this process, bytes: now, and its peak.
pub(crate) fn resident() -> Result<(u64, u64), Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let kib = |name: &str| -> u64 {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    Ok((kib("VmRSS:") << 10, kib("VmHWM:") << 10))
}

/// How the system names the kind of file system that holds `dir`; a number where it is none of the usual ones.
pub(crate) fn file_system(dir: &Path) -> Result<String, Failure> {
    let kind = rustix::fs::statfs(dir)?.f_type as u64;
    Ok(match kind {
        TMPFS => "tmpfs".to_owned(),
        0xEF53 => "ext4".to_owned(),
        0x5846_5342 => "xfs".to_owned(),
        0x9123_683E => "btrfs".to_owned(),
        0x794C_7630 => "overlayfs".to_owned(),
        other => format!("a file system of type {other:#x}"),
    })
}

/// Bytes that files in `dir` may still take of main memory; `None` where they are not there.
pub(crate) fn room_in_memory(dir: &Path) -> Result<Option<u64>, Failure> {
    let system = rustix::fs::statfs(dir)?;
    if system.f_type as u64 != TMPFS {
        return Ok(None);
    }
    let memory = std::fs::read_to_string("/proc/meminfo")?;
    let available = memory.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib: u64 = available.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    Ok(Some((system.f_bavail * system.f_bsize as u64).min(kib << 10)))
}

/// Bytes that files under `dir` take on the device; `log` of them in files that `is_log` knows.
pub(crate) fn disk_bytes(dir: &Path, is_log: &dyn Fn(&str) -> bool) -> Result<(u64, u64), Failure> {
    use std::os::unix::fs::MetadataExt;
    let (mut all, mut log) = (0, 0);
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(d) = dirs.pop() {
        for entry in std::fs::read_dir(&d)? {
            let entry = entry?;
            // Files come and go while an engine works.
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                dirs.push(entry.path());
                continue;
            }
            let bytes = meta.blocks() * 512;
            all += bytes;
            if is_log(&entry.file_name().to_string_lossy()) {
                log += bytes;
            }
        }
    }
    Ok((all, log))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_in_main_memory_has_no_room_there() {
        assert_eq!(room_in_memory(Path::new("/proc")).unwrap(), None);
        assert!(file_system(Path::new("/proc")).unwrap().contains("0x9fa0"));
    }
}
