//! The reference device.

use crate::device::{CancelToken, Device, DeviceError, Limits};
use crate::{Output, Task, merge};

/// Merges on the calling thread, the bytes where they are: whoever made the task has verified them, so it does not do so
/// again. Takes every task; fails only for damaged input.
#[derive(Debug)]
pub struct CpuDevice {
    units: usize,
}

impl CpuDevice {
    /// A device that executes up to `units` tasks at a time: one per compaction thread.
    pub fn new(units: usize) -> Self {
        CpuDevice { units: units.max(1) }
    }
}

impl Device for CpuDevice {
    fn name(&self) -> &str {
        "cpu"
    }

    fn units(&self) -> usize {
        self.units
    }

    fn limits(&self) -> Limits {
        Limits::NONE
    }

    fn execute(&self, _unit: usize, task: &Task, cancel: &CancelToken) -> Result<Output, DeviceError> {
        merge(task, cancel)
    }

    fn probe(&self) -> bool {
        true
    }
}
