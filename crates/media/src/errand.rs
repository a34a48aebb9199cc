//! A background task whose result somebody comes back for.

use std::sync::Arc;

use parking_lot::Mutex;
use terrane_base::{Error, ErrorKind, Result};

use crate::{Media, Pool, Signal};

/// A background task under way. Dropped without [`Errand::wait`], it runs to its end all the same, and nobody learns
/// how it ended.
#[derive(Debug)]
pub struct Errand<T> {
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
struct Shared<T> {
    result: Mutex<Option<Result<T>>>,
    ended: Signal,
}

/// Owed by the task. A task that is dropped before it ran, or that panics, owes it too.
struct Promise<T>(Arc<Shared<T>>);

impl<T: Send + 'static> Errand<T> {
    /// Queues `work` in `pool`.
    pub fn send(
        media: &dyn Media,
        pool: Pool,
        name: &'static str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared { result: Mutex::new(None), ended: Signal::new() });
        let promise = Promise(shared.clone());
        media.spawn(
            pool,
            name,
            Box::new(move || {
                let result = work();
                *promise.0.result.lock() = Some(result);
            }),
        );
        Errand { shared }
    }

    /// Blocks until the task has ended, and gives its result.
    ///
    /// # Errors
    /// The task's own; [`ErrorKind::Closed`] if it was dropped before it ran, as at shut-down.
    pub fn wait(self, media: &dyn Media) -> Result<T> {
        let shared = &self.shared;
        shared.ended.wait_until(media, || shared.result.lock().is_some())?;
        shared.result.lock().take().unwrap_or_else(|| Err(no_result()))
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.0.result.lock().get_or_insert_with(|| Err(no_result()));
        self.0.ended.notify_all();
    }
}

pub(crate) fn no_result() -> Error {
    Error::new(ErrorKind::Closed, "a background task ended without a result")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::{RealMedia, RealOptions};
    use crate::sim::SimMedia;

    #[test]
    fn the_result_comes_back_from_threads_and_from_steps() {
        let real = RealMedia::new(RealOptions::default()).unwrap();
        let media: [&dyn Media; 2] = [&*real, &*SimMedia::new(1)];
        for m in media {
            let sent: Vec<_> = (0..20).map(|i| Errand::send(m, Pool::Io, "test", move || Ok(i))).collect();
            for (i, errand) in sent.into_iter().enumerate() {
                assert_eq!(errand.wait(m).unwrap(), i);
            }
            let failed = Errand::<()>::send(m, Pool::Io, "test", || Err(Error::invalid("as asked")));
            assert_eq!(failed.wait(m).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }

    #[test]
    fn a_task_that_never_ran_is_not_waited_for() {
        let m = RealMedia::new(RealOptions::default()).unwrap();
        m.shutdown();
        let errand = Errand::send(&*m, Pool::Io, "test", || Ok(1));
        assert_eq!(errand.wait(&*m).unwrap_err().kind(), ErrorKind::Closed);
        let sim = SimMedia::new(1);
        let errand = Errand::send(&*sim, Pool::Io, "test", || Ok(1));
        sim.shutdown();
        assert_eq!(errand.wait(&*sim).unwrap_err().kind(), ErrorKind::Closed);
    }

    #[test]
    fn a_task_that_panics_is_not_waited_for() {
        let m = RealMedia::new(RealOptions::default()).unwrap();
        let errand = Errand::<()>::send(&*m, Pool::Io, "test", || std::panic::resume_unwind(Box::new(())));
        assert_eq!(errand.wait(&*m).unwrap_err().kind(), ErrorKind::Closed);
    }
}
