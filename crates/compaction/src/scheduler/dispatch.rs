//! The dispatcher: from the queue to free units.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use terrane_media::Pool;

use super::rotation::Slot;
use super::stats::Counts;
use super::{FailedTask, Inner, Mode, Promise};
use crate::device::CancelToken;
use crate::task::Task;

/// The CPU's place among the slots; devices follow.
pub(super) const CPU: usize = 0;

/// A submitted task.
pub(super) struct Job {
    pub task: Arc<Task>,
    pub promise: Promise,
    pub token: CancelToken,
    pub queued: Duration,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("task", &self.task.id).field("queued", &self.queued).finish()
    }
}

/// Where a task is executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub slot: usize,
    pub unit: usize,
    /// The CPU is to do it too.
    pub check: bool,
    /// Names the execution among those under way.
    pub run: u64,
}

#[derive(Debug)]
pub(super) struct State {
    pub mode: Mode,
    pub closed: bool,
    pub queue: VecDeque<Job>,
    /// Executions under way, with what cancels them.
    pub running: BTreeMap<u64, CancelToken>,
    pub next_run: u64,
    /// The CPU, then the devices.
    pub slots: Vec<Slot>,
    /// The device to be asked first.
    pub next_device: usize,
    pub counts: Counts,
    pub failed: VecDeque<FailedTask>,
}

/// What follows from a look at the state.
enum Step {
    Run(Job, Place),
    Probe(usize),
}

impl Inner {
    /// Starts what can be started. Called after every change that may make room.
    pub(super) fn dispatch(self: &Arc<Self>) {
        loop {
            let steps = self.next_steps();
            if steps.is_empty() {
                break;
            }
            for step in steps {
                let inner = self.clone();
                match step {
                    Step::Run(job, place) => {
                        let run = Running { inner, place, job: Some(job) };
                        let work = Box::new(move || run.drive());
                        self.media.spawn(Pool::Compaction, "compaction task", work);
                    }
                    Step::Probe(device) => {
                        let work = Box::new(move || inner.probe(device));
                        self.media.spawn(Pool::Compaction, "compaction device probe", work);
                    }
                }
            }
        }
        self.moved.notify_all();
    }

    /// The first task that finds a place, and the probes that are due with it.
    fn next_steps(&self) -> Vec<Step> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut steps = Vec::new();
        for i in 0..state.queue.len() {
            let Some((slot, unit, check)) = self.find_place(state, i) else { continue };
            let Some(job) = state.queue.remove(i) else { break };
            let run = state.next_run;
            state.next_run += 1;
            state.running.insert(run, job.token.clone());
            steps.push(Step::Run(job, Place { slot, unit, check, run }));
            for (device, slot) in state.slots.iter_mut().skip(1).enumerate() {
                if slot.count_task() {
                    steps.push(Step::Probe(device));
                }
            }
            break;
        }
        steps
    }

    /// A free unit for the queue's task number `i`. A task waits for a device that could take it as long as that is in
    /// rotation: the CPU has other things to do.
    fn find_place(&self, state: &mut State, i: usize) -> Option<(usize, usize, bool)> {
        let task = &state.queue.get(i)?.task;
        if state.mode != Mode::Cpu {
            let devices = self.devices.len();
            let mut suited = false;
            for d in (0..devices).map(|n| (state.next_device + n) % devices) {
                let slot = &mut state.slots[1 + d];
                if !slot.is_live() || !task.suits(&self.devices[d].limits()) {
                    continue;
                }
                suited = true;
                if let Some(unit) = slot.take_unit() {
                    state.next_device = d + 1;
                    return Some((1 + d, unit, state.mode == Mode::Check));
                }
            }
            if suited {
                return None;
            }
        }
        let unit = state.slots[CPU].take_unit()?;
        Some((CPU, unit, false))
    }

    fn probe(self: Arc<Self>, device: usize) {
        let works = self.devices[device].probe();
        self.state.lock().slots[1 + device].probed(works);
        if works {
            self.dispatch();
        }
    }
}

/// An execution under way. Ends when it is dropped, also unused on a machine that has stopped its threads.
pub(super) struct Running {
    pub(super) job: Option<Job>,
    pub(super) inner: Arc<Inner>,
    pub(super) place: Place,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Before the execution counts as ended: whoever waits for that relies on the callback.
        drop(self.job.take());
        self.inner.state.lock().running.remove(&self.place.run);
        self.inner.moved.notify_all();
    }
}
