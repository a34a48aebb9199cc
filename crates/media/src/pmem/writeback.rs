//! The instructions by which a processor writes its lines back to memory, and which of them this one has.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

/// How a line is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteBack {
    /// It need not be: the memory is the page cache.
    Nothing,
    /// `clwb`: the line stays in the cache.
    Clwb,
    /// `clflushopt`: the line leaves the cache.
    Clflushopt,
    /// `clflush`: as `clflushopt`, and one after the other.
    Clflush,
    /// The caches outlive a power failure (eADR): what is stored is as good as written back, once it is in order.
    Caches,
}

impl WriteBack {
    /// What this machine wants; `None` if it has no instructions that are known here.
    pub(crate) fn of_this_machine() -> Option<WriteBack> {
        static FOUND: OnceLock<Option<WriteBack>> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let instruction = instruction()?;
            let caches = caches_survive(Path::new("/sys/bus/nd/devices"));
            Some(if caches { WriteBack::Caches } else { instruction })
        })
    }

    /// Has the line at `at` written back.
    ///
    /// # Safety
    /// The line is mapped.
    #[inline]
    pub(crate) unsafe fn line(self, at: *const u8) {
        // SAFETY: these instructions change no memory, whatever the line holds; it is mapped, per contract.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            use std::arch::asm;
            match self {
                WriteBack::Nothing | WriteBack::Caches => {}
                WriteBack::Clwb => asm!("clwb [{}]", in(reg) at, options(nostack, preserves_flags)),
                WriteBack::Clflushopt => {
                    asm!("clflushopt [{}]", in(reg) at, options(nostack, preserves_flags))
                }
                WriteBack::Clflush => asm!("clflush [{}]", in(reg) at, options(nostack, preserves_flags)),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// Waits for what this thread has written back.
    #[inline]
    pub(crate) fn fence(self) {
        #[cfg(target_arch = "x86_64")]
        if self != WriteBack::Nothing {
            // SAFETY: every x86-64 processor has SSE.
            unsafe { std::arch::x86_64::_mm_sfence() };
            return;
        }
        fence(Ordering::Release);
    }
}

/// The best of the processor's instructions.
#[cfg(target_arch = "x86_64")]
fn instruction() -> Option<WriteBack> {
    features().best()
}

/// Which instructions a processor has.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Features {
    clwb: bool,
    clflushopt: bool,
    clflush: bool,
}

/// Those of this one: bits 24 and 23 of EBX in leaf 7 of CPUID, and 19 of EDX in leaf 1 (Intel's manual, volume 2A, CPUID).
#[cfg(target_arch = "x86_64")]
fn features() -> Features {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let most = __cpuid(0).eax;
    let seven = if most >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
    Features {
        clwb: seven >> 24 & 1 == 1,
        clflushopt: seven >> 23 & 1 == 1,
        clflush: __cpuid(1).edx >> 19 & 1 == 1,
    }
}

#[cfg(target_arch = "x86_64")]
impl Features {
    /// One that leaves the line in the cache comes first, for it is read soon; then one that lets lines go side by side.
    fn best(self) -> Option<WriteBack> {
        match self {
            Features { clwb: true, .. } => Some(WriteBack::Clwb),
            Features { clflushopt: true, .. } => Some(WriteBack::Clflushopt),
            Features { clflush: true, .. } => Some(WriteBack::Clflush),
            _ => None,
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn instruction() -> Option<WriteBack> {
    None
}

/// Whether the system says of all its persistent memory that caches reach it when power fails: `persistence_domain` of each region
/// under `devices` (Linux, Documentation/ABI/testing/sysfs-bus-nvdimm). Not without any region.
fn caches_survive(devices: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(devices) else { return false };
    let mut domains = entries
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with("region"))
        .map(|e| std::fs::read_to_string(e.path().join("persistence_domain")).unwrap_or_default())
        .peekable();
    domains.peek().is_some() && domains.all(|d| d.trim() == "cpu_cache")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_best_instruction_that_there_is_is_taken() {
        for bits in 0..8 {
            let [clwb, clflushopt, clflush] = [1, 2, 4].map(|bit| bits & bit != 0);
            let best = Features { clwb, clflushopt, clflush }.best();
            let want = match (clwb, clflushopt, clflush) {
                (true, ..) => Some(WriteBack::Clwb),
                (_, true, _) => Some(WriteBack::Clflushopt),
                (_, _, true) => Some(WriteBack::Clflush),
                _ => None,
            };
            assert_eq!(best, want, "clwb {clwb}, clflushopt {clflushopt}, clflush {clflush}");
        }
    }

    /// Whatever this processor would choose: others have no better one.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_instruction_that_there_is_leaves_what_was_stored() {
        use crate::pmem::copy::{copy_in, copy_out};
        let Features { clwb, clflushopt, clflush } = features();
        assert!(clflush, "every x86-64 processor has it");
        let ways = [
            (WriteBack::Nothing, true),
            (WriteBack::Caches, true),
            (WriteBack::Clwb, clwb),
            (WriteBack::Clflushopt, clflushopt),
            (WriteBack::Clflush, clflush),
        ];
        let mut memory = vec![0u64; 8192 / 8];
        let base = memory.as_mut_ptr().cast::<u8>();
        for (n, (way, _)) in ways.into_iter().enumerate().filter(|(_, (_, there))| *there) {
            // On both sides of lines, and of where lines go around the caches.
            for (at, len) in [(0, 8), (56, 16), (64, 64), (8, 200), (72, 511), (128, 512), (40, 5003)] {
                let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + at + n) as u8 | 1).collect();
                let mut read = vec![0; len];
                // SAFETY: the range and what pads its last word lie within the buffer, `at` is a multiple of eight, and nobody else has it.
                unsafe {
                    copy_in(base.add(at), &bytes, way);
                    way.line(base.add(at));
                }
                way.fence();
                // SAFETY: as above.
                unsafe { copy_out(base.add(at), &mut read) };
                assert!(read == bytes, "{way:?}: {len} bytes at {at}");
            }
        }
    }

    #[test]
    fn caches_count_only_if_every_region_says_so() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!caches_survive(&dir.path().join("missing")));
        assert!(!caches_survive(dir.path()));
        let region = |name: &str, domain: &str| {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("persistence_domain"), domain).unwrap();
        };
        region("ndbus0", "memory_controller\n");
        assert!(!caches_survive(dir.path()));
        region("region0", "cpu_cache\n");
        assert!(caches_survive(dir.path()));
        region("region1", "memory_controller\n");
        assert!(!caches_survive(dir.path()));
    }
}
