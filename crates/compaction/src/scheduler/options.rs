//! What a scheduler is set to.

use std::time::Duration;

/// Who executes tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The CPU.
    #[default]
    Cpu,
    /// Devices, and the CPU for what they cannot take and where they fail.
    Device,
    /// Devices and the CPU both; the outputs are compared, and where they differ the CPU's counts.
    Check,
}

/// Settings of a [`crate::Scheduler`].
#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// Who executes tasks at first. Default: the CPU.
    pub mode: Mode,
    /// Tasks that the CPU executes at a time; more than the machine has compaction threads is of no use. Default: 2.
    pub cpu_units: usize,
    /// Tasks that may wait in the queue, each with its input in memory. Default: 16.
    pub queue_tasks: usize,
    /// Time that a device is given for a task. Default: 10 s.
    pub device_time: Duration,
    /// Failures in a row that take a device out of rotation; one that fails more than every ninth task goes too, later.
    /// Default: 3.
    pub failures: u32,
    /// Tasks to be started before a device that is out of rotation is probed. Default: 16.
    pub probe_after: u64,
    /// Failed tasks to keep for [`crate::Scheduler::failed_tasks`], with their input. Default: 2.
    pub keep_failed: usize,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        SchedulerOptions {
            mode: Mode::Cpu,
            cpu_units: 2,
            queue_tasks: 16,
            device_time: Duration::from_secs(10),
            failures: 3,
            probe_after: 16,
            keep_failed: 2,
        }
    }
}
