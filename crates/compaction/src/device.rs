//! What executes tasks.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use terrane_base::Error;
use terrane_media::Media;

use crate::{Output, Task};

/// Something that merges: the CPU, or a card.
///
/// # Contract
/// * `execute` runs on a thread of the caller and returns when the task has ended, one way or another. One unit gets one
///   task at a time; different units are called concurrently.
/// * The task may be read until `execute` returns, not longer.
/// * While it waits for hardware, `execute` looks at the token and gives up with [`DeviceError::TimedOut`] once that
///   says stop. What the hardware delivers afterwards is its own business; a result that is returned all the same is
///   dropped.
/// * Results are verified by the caller: a device need not be trusted.
pub trait Device: Send + Sync + Debug {
    /// A name for statistics and messages.
    fn name(&self) -> &str;
    /// How many tasks it can execute at a time, at least 1.
    fn units(&self) -> usize;
    /// What tasks it can take. Others go to the CPU.
    fn limits(&self) -> Limits {
        Limits::default()
    }
    /// Merges.
    fn execute(&self, unit: usize, task: &Task, cancel: &CancelToken) -> Result<Output, DeviceError>;
    /// Whether a device that was out of rotation works (again).
    fn probe(&self) -> bool;
}

/// The largest task that a device can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most ways.
    pub ways: usize,
    /// Most blocks of one way.
    pub blocks_per_way: usize,
    /// Largest block in bytes: blocks with large records go to the CPU.
    pub block_bytes: usize,
}

impl Limits {
    /// No limits.
    pub const NONE: Limits = Limits { ways: usize::MAX, blocks_per_way: usize::MAX, block_bytes: usize::MAX };
}

impl Default for Limits {
    /// What a card with fixed buffers takes: 4 ways of 128 blocks of 64 KiB.
    fn default() -> Self {
        Limits { ways: 4, blocks_per_way: 128, block_bytes: 64 << 10 }
    }
}

/// How a task ended badly.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device, or the input, is at fault.
    Failed(Error),
    /// No answer in time, or told to stop.
    TimedOut,
    /// The device is gone.
    Lost,
    /// The device does not take such tasks.
    Unsupported(&'static str),
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::Failed(e) => write!(f, "failed: {e}"),
            DeviceError::TimedOut => f.write_str("no answer in time"),
            DeviceError::Lost => f.write_str("the device is gone"),
            DeviceError::Unsupported(what) => write!(f, "not supported: {what}"),
        }
    }
}

impl From<Error> for DeviceError {
    fn from(e: Error) -> Self {
        DeviceError::Failed(e)
    }
}

/// Says when an execution is to stop: it was cancelled, or its time is up. Cloning shares the cancellation.
#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    cancelled: Arc<AtomicBool>,
    deadline: Option<(Arc<dyn Media>, Duration)>,
}

impl CancelToken {
    /// A token without a time limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// A token that is cancelled with this one, and also says stop when the clock of `media` reaches `deadline`.
    #[must_use]
    pub fn until(&self, media: Arc<dyn Media>, deadline: Duration) -> Self {
        CancelToken { cancelled: self.cancelled.clone(), deadline: Some((media, deadline)) }
    }

    /// Stops the execution soon.
    pub fn cancel(&self) {
        // Relaxed: the flag carries no data with it, and seeing it late only costs work that is then dropped.
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether [`CancelToken::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Whether the execution should stop, for either reason.
    pub fn should_stop(&self) -> bool {
        self.is_cancelled() || self.deadline.as_ref().is_some_and(|(media, at)| media.now() >= *at)
    }
}
