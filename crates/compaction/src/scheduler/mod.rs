//! Dealing tasks over devices and seeing each one to its end.
//!
//! # Roles
//! The *builder* ([`crate::builder`]) cuts a plan into tasks and submits them. The *dispatcher* ([`dispatch`]) takes
//! them from a bounded queue and gives them to free units, round robin over the devices in rotation. The *driver*
//! ([`drive`]) is the background job that executes one task: device, verification and, where that ends badly, the CPU,
//! once.
//!
//! # Promises
//! * Each submitted task's callback is called exactly once, whatever happens, and never under a lock.
//! * An output that is handed over has passed [`crate::verify`], on whatever device it was made.
//! * No device can make a task fail: what fails is damaged input, a cancellation, or a closing database.
//!
//! # Concurrency
//! One mutex guards queue and rotation; it is held for bookkeeping only, never while merging, probing, spawning or
//! calling back. Each execution is one [`Pool::Compaction`](terrane_media::Pool::Compaction) job, so on a simulated
//! machine whole histories are stepped by seed. Nothing polls: a device out of rotation is probed after so many further
//! tasks.

mod dispatch;
mod drive;
mod options;
mod rotation;
mod stats;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use terrane_base::{Error, ErrorKind, Result};
use terrane_media::{Media, Signal};

use crate::cpu::CpuDevice;
use crate::device::{CancelToken, Device};
use crate::output::Output;
use crate::task::Task;
use dispatch::{Job, State};
use rotation::Slot;
use stats::Counts;

pub use options::{Mode, SchedulerOptions};
pub use stats::{DeviceStats, SchedulerStats};

/// Called once with the result of a task.
///
/// Errors: [`ErrorKind::Corruption`] for damaged input, [`ErrorKind::Closed`] for a task that was cancelled.
pub type Done = Box<dyn FnOnce(Result<Finished>) + Send + 'static>;

/// A task that ended well.
#[derive(Debug)]
pub struct Finished {
    /// The verified output.
    pub output: Output,
    /// The device whose output this is.
    pub device: String,
    /// Whether a device failed first and the CPU did the task again.
    pub redone: bool,
    /// When it was submitted, by the machine's clock.
    pub queued: Duration,
    /// When its execution began.
    pub started: Duration,
    /// When its output was accepted.
    pub done: Duration,
}

/// What a device failed at, kept to be looked into.
#[derive(Clone, Debug)]
pub struct FailedTask {
    /// The task; [`Task::encode`] makes a dump of it.
    pub task: Arc<Task>,
    /// The device.
    pub device: String,
    /// What went wrong.
    pub reason: String,
    /// When, by the machine's clock.
    pub at: Duration,
}

/// A task that was not taken. Nothing was called.
pub struct Refused {
    /// Why: [`ErrorKind::LimitExceeded`] for a full queue, [`ErrorKind::Closed`], or [`ErrorKind::InvalidArgument`].
    pub error: Error,
    /// The task, given back.
    pub task: Task,
    /// The callback, given back.
    pub done: Done,
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).field("task", &self.task.id).finish()
    }
}

/// Executes tasks. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Scheduler(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    media: Arc<dyn Media>,
    options: SchedulerOptions,
    cpu: CpuDevice,
    devices: Vec<Arc<dyn Device>>,
    state: Mutex<State>,
    /// Told whenever a task leaves the queue or ends.
    moved: Signal,
}

impl Scheduler {
    /// A scheduler over `devices` and, always, the CPU.
    pub fn new(media: Arc<dyn Media>, options: SchedulerOptions, devices: Vec<Arc<dyn Device>>) -> Self {
        let cpu = CpuDevice::new(options.cpu_units);
        let mut slots = vec![Slot::cpu(cpu.units(), &options)];
        slots.extend(devices.iter().map(|d| Slot::new(d.units(), &options)));
        let state = State {
            mode: options.mode,
            closed: false,
            queue: VecDeque::new(),
            running: BTreeMap::new(),
            next_run: 0,
            slots,
            next_device: 0,
            counts: Counts::default(),
            failed: VecDeque::new(),
        };
        Scheduler(Arc::new(Inner {
            media,
            options,
            cpu,
            devices,
            state: Mutex::new(state),
            moved: Signal::new(),
        }))
    }

    /// Queues a task; `done` is called with its result on a background thread. The token cancels it.
    ///
    /// # Errors
    /// [`Refused`] gives task and callback back if the queue is full ([`Scheduler::wait_for_room`]), the scheduler is
    /// closed, or the task makes no sense.
    pub fn submit(&self, task: Task, done: Done) -> Result<CancelToken, Box<Refused>> {
        let refuse = |error, task, done| Err(Box::new(Refused { error, task, done }));
        if let Err(error) = task.check() {
            return refuse(error, task, done);
        }
        let queued = self.0.media.now();
        let token = CancelToken::new();
        {
            let mut state = self.0.state.lock();
            if state.closed {
                drop(state);
                return refuse(closed(), task, done);
            }
            if state.queue.len() >= self.0.options.queue_tasks {
                let limit = self.0.options.queue_tasks as u64;
                drop(state);
                return refuse(Error::limit("queued compaction tasks", limit + 1, limit), task, done);
            }
            state.queue.push_back(Job {
                task: Arc::new(task),
                promise: Promise(Some(done)),
                token: token.clone(),
                queued,
            });
        }
        self.0.dispatch();
        Ok(token)
    }

    /// Waits until the queue has room. Another thread may take it first.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the scheduler is closed.
    pub fn wait_for_room(&self) -> Result<()> {
        let inner = &*self.0;
        inner.moved.wait_until(&*inner.media, || {
            let state = inner.state.lock();
            state.closed || state.queue.len() < inner.options.queue_tasks
        })?;
        if inner.state.lock().closed { Err(closed()) } else { Ok(()) }
    }

    /// Waits until no task is queued or executing. Not for callbacks: they are part of a task.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the machine no longer executes tasks.
    pub fn wait_idle(&self) -> Result<()> {
        let inner = &*self.0;
        inner.moved.wait_until(&*inner.media, || {
            let state = inner.state.lock();
            state.queue.is_empty() && state.running.is_empty()
        })
    }

    /// Cancels all tasks, takes no more, and waits for the executing ones to end. Not for callbacks.
    pub fn close(&self) {
        let queue = {
            let mut state = self.0.state.lock();
            state.closed = true;
            state.running.values().for_each(CancelToken::cancel);
            let queue = std::mem::take(&mut state.queue);
            state.counts.cancelled += queue.len() as u64;
            queue
        };
        self.0.moved.notify_all();
        // Without the lock: dropping a job calls back.
        drop(queue);
        // An error says that the machine has stopped its threads and dropped the jobs: nothing is left to wait for.
        let _ = self.wait_idle();
    }

    /// Changes the mode for tasks that start from now on.
    pub fn set_mode(&self, mode: Mode) {
        self.0.state.lock().mode = mode;
        self.0.dispatch();
    }

    /// Tasks that further [`Scheduler::submit`]s may queue now.
    pub fn room(&self) -> usize {
        self.0.options.queue_tasks.saturating_sub(self.0.state.lock().queue.len())
    }

    /// Counters since the start.
    pub fn stats(&self) -> SchedulerStats {
        let state = self.0.state.lock();
        let names = std::iter::once(self.0.cpu.name()).chain(self.0.devices.iter().map(|d| d.name()));
        SchedulerStats {
            queued: state.queue.len(),
            running: state.running.len(),
            cancelled: state.counts.cancelled,
            redone: state.counts.redone,
            checked: state.counts.checked,
            devices: names.zip(&state.slots).map(|(name, slot)| slot.stats(name)).collect(),
        }
    }

    /// The tasks that devices failed at most recently, oldest first.
    pub fn failed_tasks(&self) -> Vec<FailedTask> {
        self.0.state.lock().failed.iter().cloned().collect()
    }
}

/// A callback that is called exactly once: dropped uncalled, it says that the task was cancelled.
struct Promise(Option<Done>);

impl Promise {
    fn keep(mut self, result: Result<Finished>) {
        if let Some(done) = self.0.take() {
            done(result);
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(Err(closed()));
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the compaction task was cancelled")
}

#[cfg(test)]
mod tests;
