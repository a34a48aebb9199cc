//! Records that are damaged: who looks, and what is noted of it.

use terrane_base::sync::atomic::Ordering;

use crate::art::versions::MISPLACED;
use crate::art::{Art, Leaf};
use crate::record::{Record, RecordPtr};

impl Art {
    /// Whether a record is as it was written, as far as anybody looks.
    #[inline]
    pub(super) fn is_sound(&self, record: impl FnOnce() -> Option<RecordPtr>) -> bool {
        self.check.is_none() || record().is_none_or(|record| self.passes(&self.read(record)))
    }

    #[inline]
    pub(super) fn passes(&self, record: &Record<'_>) -> bool {
        self.check.as_ref().is_none_or(|check| check(record))
    }

    /// Notes it if a record was damaged that says where something is put.
    #[inline]
    pub(super) fn lean_on(&self, record: impl FnOnce() -> Option<RecordPtr>) {
        if !self.is_sound(record) {
            self.misled.store(true, Ordering::Relaxed);
        }
    }

    /// The record of `key` that was damaged when another version of the key was put beside it, and stands before all of them for that.
    pub(crate) fn misplaced(&self, key: &[u8]) -> Option<Record<'_>> {
        let guard = self.domain.pin();
        let Leaf::Many(list) = self.leaf(self.find(key, &guard))? else { return None };
        list.at_or_below(MISPLACED, &guard).map(|record| self.read(record))
    }
}
