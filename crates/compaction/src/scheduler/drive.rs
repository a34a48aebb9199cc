//! The driver: one task, from its start to its callback.

use std::time::Duration;

use terrane_base::{Error, Result};

use super::dispatch::{CPU, Job, Running};
use super::rotation::Ending;
use super::{FailedTask, Finished, closed};
use crate::compare::compare;
use crate::device::{Device, DeviceError};
use crate::output::Output;
use crate::task::Task;
use crate::verify::{verify, verify_records};

/// A good output, the slot that made it, and whether another one had failed before.
type Good = (Output, usize, bool);

impl Running {
    /// Executes the task and calls back.
    pub(super) fn drive(mut self) {
        let Some(job) = self.job.take() else { return };
        let started = self.inner.media.now();
        let result = if job.token.is_cancelled() {
            self.leave_unit();
            Err(closed())
        } else if self.place.slot == CPU {
            let answer = self.inner.cpu.execute(self.place.unit, &job.task, &job.token);
            let ended = self.inner.media.now();
            self.leave_unit();
            self.judge_cpu(&job, answer, started, ended).map(|output| (output, CPU, false))
        } else {
            self.on_device(&job, started)
        };
        let result = match result {
            _ if job.token.is_cancelled() => {
                self.inner.state.lock().counts.cancelled += 1;
                Err(closed())
            }
            Err(e) => Err(e),
            Ok((output, slot, redone)) => Ok(Finished {
                output,
                device: self.inner.name(slot).to_owned(),
                redone,
                queued: job.queued,
                started,
                done: self.inner.media.now(),
            }),
        };
        job.promise.keep(result);
    }

    /// The device's output if it is good, else the CPU's.
    fn on_device(&self, job: &Job, started: Duration) -> Result<Good> {
        let inner = &self.inner;
        let slot = self.place.slot;
        let device = &inner.devices[slot - 1];
        let token = job.token.until(inner.media.clone(), started + inner.options.device_time);
        let answer = device.execute(self.place.unit, &job.task, &token);
        let ended = inner.media.now();
        let judged = match answer {
            _ if job.token.is_cancelled() => Err((Ending::Cancelled, String::new())),
            Ok(_) if token.should_stop() => Err((Ending::Late, "the output came too late".to_owned())),
            Ok(output) => match verify(&job.task, &output) {
                Ok(()) => Ok(output),
                Err(violation) => Err((Ending::Invalid, violation.to_string())),
            },
            Err(e) => Err((ending(&e), e.to_string())),
        };
        match judged {
            Ok(output) if self.place.check => {
                // Free before the reference is made: that takes longer than all else.
                self.leave_unit();
                let reference = self.on_cpu(job)?;
                let Err(difference) = compare(&output, &reference) else {
                    inner.state.lock().counts.checked += 1;
                    inner.book_success(slot, job, &output, started, ended);
                    return Ok((output, slot, false));
                };
                let reason = format!("differs from the CPU: {difference}");
                inner.book_failure(slot, &job.task, Ending::Mismatched, reason);
                inner.state.lock().counts.redone += 1;
                Ok((reference, CPU, true))
            }
            Ok(output) => {
                inner.book_success(slot, job, &output, started, ended);
                self.leave_unit();
                Ok((output, slot, false))
            }
            Err((ending, reason)) => {
                // Booked before the unit is free, so that a bad device gets no further task in between.
                inner.book_failure(slot, &job.task, ending, reason);
                self.leave_unit();
                if ending == Ending::Cancelled {
                    return Err(closed());
                }
                inner.state.lock().counts.redone += 1;
                Ok((self.on_cpu(job)?, CPU, true))
            }
        }
    }

    /// Executes on this thread what a device had: outside the CPU's units, for the thread is there anyway. The device may
    /// have written where it was only to read.
    fn on_cpu(&self, job: &Job) -> Result<Output> {
        let inner = &self.inner;
        inner.state.lock().slots[CPU].stats.tasks += 1;
        let started = inner.media.now();
        let checked = job.task.check_input().map_err(DeviceError::from);
        let answer = checked.and_then(|()| inner.cpu.execute(0, &job.task, &job.token));
        self.judge_cpu(job, answer, started, inner.media.now())
    }

    fn judge_cpu(
        &self,
        job: &Job,
        answer: Result<Output, DeviceError>,
        started: Duration,
        ended: Duration,
    ) -> Result<Output> {
        let task = &job.task;
        let result = match answer {
            _ if job.token.is_cancelled() => Err(closed()),
            // The sums were made on this thread when the blocks were.
            Ok(output) => match verify_records(task, &output) {
                Ok(()) => Ok(output),
                // The input matched its checksums and was in order: memory or processor are not to be trusted.
                Err(violation) => Err(Error::corruption(format!(
                    "compaction task {} gave a wrong result on the CPU: {violation}",
                    task.id
                ))
                .with_hint("nothing was installed; check the machine's memory")),
            },
            Err(DeviceError::Failed(e)) => Err(e),
            Err(e) => Err(Error::corruption(format!("compaction task {}: {e}", task.id))),
        };
        match &result {
            Ok(output) => self.inner.book_success(CPU, job, output, started, ended),
            Err(_) if job.token.is_cancelled() => {
                self.inner.book_failure(CPU, task, Ending::Cancelled, String::new());
            }
            Err(e) => self.inner.book_failure(CPU, task, Ending::Failed, e.to_string()),
        }
        result
    }

    /// Gives the unit to the next task while this thread goes on with its own.
    fn leave_unit(&self) {
        self.inner.state.lock().slots[self.place.slot].free_unit(self.place.unit);
        self.inner.dispatch();
    }
}

impl super::Inner {
    fn name(&self, slot: usize) -> &str {
        match slot.checked_sub(1).and_then(|d| self.devices.get(d)) {
            Some(device) => device.name(),
            None => self.cpu.name(),
        }
    }

    fn book_success(&self, slot: usize, job: &Job, output: &Output, started: Duration, ended: Duration) {
        let mut state = self.state.lock();
        let slot = &mut state.slots[slot];
        slot.book(Ending::Accepted);
        let stats = &mut slot.stats;
        stats.records_in += output.totals.records_in;
        stats.records_out += output.totals.records_out;
        stats.bytes_in += job.task.bytes();
        stats.bytes_out += output.bytes();
        stats.queue_time += started.saturating_sub(job.queued);
        stats.process_time += ended.saturating_sub(started);
    }

    fn book_failure(&self, slot: usize, task: &std::sync::Arc<Task>, ending: Ending, reason: String) {
        let failed = FailedTask {
            task: task.clone(),
            device: self.name(slot).to_owned(),
            reason,
            at: self.media.now(),
        };
        let mut state = self.state.lock();
        state.slots[slot].book(ending);
        if matches!(ending, Ending::Cancelled | Ending::Unsupported) || self.options.keep_failed == 0 {
            return;
        }
        while state.failed.len() >= self.options.keep_failed {
            state.failed.pop_front();
        }
        state.failed.push_back(failed);
    }
}

fn ending(error: &DeviceError) -> Ending {
    match error {
        DeviceError::Failed(_) => Ending::Failed,
        DeviceError::TimedOut => Ending::TimedOut,
        DeviceError::Lost => Ending::Lost,
        DeviceError::Unsupported(_) => Ending::Unsupported,
    }
}
