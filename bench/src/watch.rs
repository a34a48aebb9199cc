//! What grows and shrinks while a workload runs: looked at once a second.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::engine::Engine;
use crate::machine;

/// The largest figures that were seen.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Peaks {
    pub(crate) l0_runs: Option<u64>,
    /// Bytes that files other than logs took on the device.
    pub(crate) data_bytes: u64,
}

impl Peaks {
    fn look(&mut self, engine: &dyn Engine, dir: &Path) -> Result<(), Failure> {
        self.l0_runs = self.l0_runs.max(engine.l0_runs());
        let (all, log) = machine::disk_bytes(dir, &|f| engine.is_log(f))?;
        self.data_bytes = self.data_bytes.max(all - log);
        Ok(())
    }
}

/// Does `work`, and watches the engine meanwhile.
pub(crate) fn during<T>(
    engine: &dyn Engine,
    dir: &Path,
    work: impl FnOnce() -> Result<T, Failure>,
) -> Result<(T, Peaks), Failure> {
    let (over, hears) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watch = scope.spawn(move || -> Result<Peaks, Failure> {
            let mut peaks = Peaks::default();
            loop {
                peaks.look(engine, dir)?;
                if hears.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout) {
                    return Ok(peaks);
                }
            }
        });
        let done = work();
        drop(over);
        let peaks = watch.join().map_err(|_| "the watch panicked")??;
        Ok((done?, peaks))
    })
}
