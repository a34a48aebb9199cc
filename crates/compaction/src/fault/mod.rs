//! A device that fails in every way we know of, to show that nothing is lost by it.

mod tamper;

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use crate::device::{CancelToken, Device, DeviceError, Limits};
use crate::output::Output;
use crate::task::Task;

/// One way to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Reports a failure.
    Failed,
    /// Says that it takes no such task.
    Unsupported,
    /// Gives no answer in time.
    TimedOut,
    /// Vanishes in mid-task, and does not come back before it has been probed once in vain.
    Lost,
    /// Gives no answer in time; the answer arrives later, in place of that to the unit's next task.
    Late,
    /// Works on the unit's input before this one and presents the result as that of this task.
    StaleInput,
    /// One bit of one block is wrong.
    WrongBytes,
    /// Another value in one record; everything else fits.
    WrongValue,
    /// Another key in one record; everything else fits.
    WrongKey,
    /// The last block is missing.
    Truncated,
    /// The last block is cut short, its checksum with it.
    CutShort,
    /// A record occurs twice, and the counts agree.
    Duplicated,
    /// The second half of the records comes first.
    Unsorted,
    /// Records are missing.
    Missing,
    /// Records are missing, and the counts agree: they pose as superseded.
    Concealed,
    /// A record with a key outside the range is added, and the counts agree.
    OutOfRange,
    /// The last key of a block is given wrongly.
    WrongBounds,
    /// A filter hash is given wrongly: a reader would not find the key.
    WrongHash,
    /// Range tombstones are missing.
    LostTombstones,
    /// A value is reported as dropped that is still in use.
    FreedValue,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 20] = [
        Fault::Failed,
        Fault::Unsupported,
        Fault::TimedOut,
        Fault::Lost,
        Fault::Late,
        Fault::StaleInput,
        Fault::WrongBytes,
        Fault::WrongValue,
        Fault::WrongKey,
        Fault::Truncated,
        Fault::CutShort,
        Fault::Duplicated,
        Fault::Unsorted,
        Fault::Missing,
        Fault::Concealed,
        Fault::OutOfRange,
        Fault::WrongBounds,
        Fault::WrongHash,
        Fault::LostTombstones,
        Fault::FreedValue,
    ];

    /// Whether only doing the merge again shows it: the output is consistent in itself.
    pub fn needs_check_mode(self) -> bool {
        matches!(self, Fault::WrongValue | Fault::WrongKey | Fault::Concealed)
    }
}

/// Wraps a device and spoils what it does, by script or by seed.
#[derive(Debug)]
pub struct FaultDevice<D> {
    inner: D,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    script: VecDeque<Option<Fault>>,
    /// Random faults once the script has ended: state of the generator, and how many executions in 256 fail.
    seeded: Option<(u64, u8)>,
    late: HashMap<usize, Output>,
    before: HashMap<usize, Task>,
    lost: bool,
    injected: Vec<Fault>,
}

impl<D: Device> FaultDevice<D> {
    /// The first executions fail as `script` says (`None`: one that goes well), later ones go well.
    pub fn scripted(inner: D, script: impl IntoIterator<Item = Option<Fault>>) -> Self {
        let state = State { script: script.into_iter().collect(), ..State::default() };
        FaultDevice { inner, state: Mutex::new(state) }
    }

    /// About `per_256` in 256 executions fail, in ways and at times that follow from `seed`.
    pub fn seeded(inner: D, seed: u64, per_256: u8) -> Self {
        let state = State { seeded: Some((seed, per_256)), ..State::default() };
        FaultDevice { inner, state: Mutex::new(state) }
    }

    /// The faults that took effect so far, in order. One that an output offers no place for does not.
    pub fn injected(&self) -> Vec<Fault> {
        self.state.lock().injected.clone()
    }

    fn spoil(
        &self,
        fault: Fault,
        unit: usize,
        task: &Task,
        cancel: &CancelToken,
    ) -> Result<Output, DeviceError> {
        let inject = || self.state.lock().injected.push(fault);
        match fault {
            Fault::Failed => {
                inject();
                Err(DeviceError::Failed(terrane_base::Error::corruption("injected failure")))
            }
            Fault::Unsupported => {
                inject();
                Err(DeviceError::Unsupported("injected refusal"))
            }
            Fault::TimedOut => {
                inject();
                Err(DeviceError::TimedOut)
            }
            Fault::Lost => {
                inject();
                self.state.lock().lost = true;
                Err(DeviceError::Lost)
            }
            Fault::Late => {
                let output = self.inner.execute(unit, task, cancel)?;
                inject();
                self.state.lock().late.insert(unit, output);
                Err(DeviceError::TimedOut)
            }
            Fault::StaleInput => {
                let before = self.state.lock().before.get(&unit).cloned();
                let mut output = self.inner.execute(unit, before.as_ref().unwrap_or(task), cancel)?;
                if before.is_some() {
                    inject();
                    output.task = task.id;
                }
                Ok(output)
            }
            _ => {
                let mut output = self.inner.execute(unit, task, cancel)?;
                if tamper::tamper(fault, task, &mut output)? {
                    inject();
                }
                Ok(output)
            }
        }
    }
}

impl State {
    fn next_fault(&mut self) -> Option<Fault> {
        if let Some(next) = self.script.pop_front() {
            return next;
        }
        let (rng, per_256) = self.seeded.as_mut()?;
        let draw = split_mix(rng);
        let hit = (draw & 0xff) < u64::from(*per_256);
        hit.then(|| Fault::ALL[(draw >> 8) as usize % Fault::ALL.len()])
    }
}

impl<D: Device> Device for FaultDevice<D> {
    fn name(&self) -> &str {
        "faulty"
    }

    fn units(&self) -> usize {
        self.inner.units()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn execute(&self, unit: usize, task: &Task, cancel: &CancelToken) -> Result<Output, DeviceError> {
        let fault = {
            let mut state = self.state.lock();
            if state.lost {
                return Err(DeviceError::Lost);
            }
            if let Some(late) = state.late.remove(&unit) {
                return Ok(late);
            }
            state.next_fault()
        };
        let result = match fault {
            Some(fault) => self.spoil(fault, unit, task, cancel),
            None => self.inner.execute(unit, task, cancel),
        };
        self.state.lock().before.insert(unit, task.clone());
        result
    }

    fn probe(&self) -> bool {
        let was_lost = std::mem::take(&mut self.state.lock().lost);
        !was_lost && self.inner.probe()
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
