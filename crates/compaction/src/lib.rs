//! Merging sorted runs into new blocks, on the CPU or on an accelerator.
//!
//! A compaction is *picked* and *planned* by the engine; this room does what follows. [`builder`] cuts the plan by key
//! range, [`Task`]s carry the raw blocks of each range, the [`Scheduler`] deals them over the units of the
//! [`Device`]s and drives each one to its end, [`verify`] decides whether an [`Output`] may be installed, and
//! [`compare`] is the oracle of check mode. [`CpuDevice`] is the reference and the fallback: a task ends well unless
//! its input is damaged. [`FaultDevice`] shows that this is so.
//!
//! Nothing here does I/O; time and threads come from [`terrane_media::Media`], so that everything can be stepped on a
//! simulated machine.

#![forbid(unsafe_code)]

pub mod builder;
mod compare;
mod cpu;
mod device;
mod fault;
mod merge;
mod output;
mod retention;
mod scheduler;
mod task;
#[cfg(test)]
mod testing;
mod verify;
mod way;

pub use compare::{Difference, compare};
pub use cpu::CpuDevice;
pub use device::{CancelToken, Device, DeviceError, Limits};
pub use fault::{Fault, FaultDevice};
pub use merge::merge;
pub use output::{Output, Totals};
pub use retention::{Retention, Verdict, kept_tombstones};
pub use scheduler::{
    DeviceStats, Done, FailedTask, Finished, Mode, Refused, Scheduler, SchedulerOptions, SchedulerStats,
};
pub use task::{InputBlock, Task, Way};
pub use verify::{Violation, verify};
