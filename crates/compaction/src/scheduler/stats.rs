//! Counters.

use std::time::Duration;

/// What a scheduler has done.
#[derive(Clone, Debug, Default)]
pub struct SchedulerStats {
    /// Tasks waiting now.
    pub queued: usize,
    /// Tasks executing now.
    pub running: usize,
    /// Tasks that were cancelled, by their token or by closing.
    pub cancelled: u64,
    /// Tasks that the CPU did again after a device failed.
    pub redone: u64,
    /// Tasks of check mode that a device and the CPU agreed on.
    pub checked: u64,
    /// The CPU first, then the devices in the order they were given.
    pub devices: Vec<DeviceStats>,
}

/// What a device has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Its name.
    pub name: String,
    /// Its units.
    pub units: usize,
    /// Units at work now.
    pub busy: usize,
    /// Whether it is in rotation.
    pub live: bool,
    /// Executions begun.
    pub tasks: u64,
    /// Executions whose output was accepted.
    pub accepted: u64,
    /// Executions that reported a failure.
    pub failed: u64,
    /// Executions that ran out of time.
    pub timed_out: u64,
    /// Outputs that came after their time was up, and were dropped.
    pub late: u64,
    /// Executions in which the device vanished.
    pub lost: u64,
    /// Tasks that the device turned out not to take.
    pub unsupported: u64,
    /// Outputs that verification refused.
    pub invalid: u64,
    /// Outputs that differed from the CPU's in check mode.
    pub mismatched: u64,
    /// Executions given up because the task was cancelled.
    pub cancelled: u64,
    /// Probes made while out of rotation.
    pub probes: u64,
    /// Times that it came back into rotation.
    pub returns: u64,
    /// Records read in accepted executions.
    pub records_in: u64,
    /// Records written in accepted executions.
    pub records_out: u64,
    /// Bytes of input blocks in accepted executions.
    pub bytes_in: u64,
    /// Bytes of output blocks in accepted executions.
    pub bytes_out: u64,
    /// Time that accepted tasks waited before their execution began, summed.
    pub queue_time: Duration,
    /// Time that accepted executions took, verification not included, summed.
    pub process_time: Duration,
}

/// Counters that belong to no device.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub cancelled: u64,
    pub redone: u64,
    pub checked: u64,
}
