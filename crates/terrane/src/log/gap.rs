//! Going on behind commits that the log lacks.
//!
//! Where persistent memory has what the log's tail lost with the power, the log is filled up to where that ends with entries that
//! say so ([`EntryKind::Gap`]). It goes on behind them at the LSNs that the memory goes on at. Until what they stand for is in extents, and
//! they are released with all before it, the log alone is not enough to take the database from: whoever replays it is told of them.

use std::ops::Range;

use terrane_base::{Lsn, Result};
use terrane_format::batch::{ENTRY_HEADER, EntryHeader, EntryKind};

use super::Log;

/// Bytes that entries which say nothing are written in.
const STEP: u64 = 1 << 20;

/// One gap that covers two, either of which may be empty.
pub(crate) fn joined(a: &Range<Lsn>, b: &Range<Lsn>) -> Range<Lsn> {
    match (a.is_empty(), b.is_empty()) {
        (true, _) => b.clone(),
        (_, true) => a.clone(),
        _ => a.start.min(b.start)..a.end.max(b.end),
    }
}

impl Log {
    /// Fills the log with gaps up to `end`, if it ends before, and makes them durable; returns what they fill. Nobody writes to it yet. Its
    /// entries bear `generation`.
    ///
    /// # Errors
    /// As [`Log::admit`], [`Log::write`] and [`Log::sync_to`].
    pub(crate) fn fill_up_to(&self, end: Lsn, generation: u32) -> Result<Range<Lsn>> {
        let step = STEP.min(self.max_entry() / 2);
        let from = self.advanced_lsn();
        let mut at = from;
        while at < end {
            // What is left behind it has room for an entry too.
            let left = end - at;
            let len = if left < 2 * step { left } else { step };
            let body_len = len.saturating_sub(ENTRY_HEADER as u64);
            let header = EntryHeader {
                kind: EntryKind::Gap,
                body_len: body_len as u32,
                count: 0,
                lsn: at,
                generation,
                body_crc: 0,
            };
            let _admission = self.admit(header.entry_len())?;
            self.write(at, &[&header.encode(), &vec![0; body_len as usize]])?;
            at = header.end();
            self.advance(at);
        }
        self.sync_to(at)?;
        Ok(from..at)
    }
}
