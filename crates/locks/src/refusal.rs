//! Why a lock was not granted.

use std::fmt;
use std::sync::Arc;

use terrane_base::SubtableId;

use crate::mode::Mode;
use crate::wish::Wish;

/// So many bytes of a key are shown.
const SHOWN: usize = 48;

/// Why a lock was not granted. What the owner held before, it holds still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It cannot be had at once, and the request had no patience.
    Busy {
        /// Who holds it, or waits for it in front, in ascending order. Of many who wait, not all are named.
        holders: Vec<u64>,
    },
    /// The patience came to an end.
    TimedOut {
        /// As above, at that time.
        holders: Vec<u64>,
    },
    /// Owners waited for each other in a circle, and this one was the youngest of them.
    Deadlock {
        /// Who waited for whom. Begins with the one that is refused, and ends with one that waits for it.
        cycle: Vec<Step>,
    },
}

/// One owner that waits for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Who waits.
    pub owner: u64,
    /// Where that lies which it wants.
    pub subtable: SubtableId,
    /// How it wants it.
    pub mode: Mode,
    /// The key, or where the range starts.
    pub start: Arc<[u8]>,
    /// Where the range ends, if it has an end. `None` for a key.
    pub end: Option<Arc<[u8]>>,
    /// Whether it wants a key, not a range.
    pub is_key: bool,
    /// Who holds it, or waits for it in front.
    pub held_by: u64,
}

impl Step {
    pub(crate) fn new(wish: &Wish, held_by: u64) -> Step {
        Step {
            owner: wish.owner,
            subtable: wish.subtable,
            mode: wish.mode,
            start: wish.start.clone(),
            end: wish.end().cloned(),
            is_key: wish.is_key(),
            held_by,
        }
    }
}

struct Shown<'k>(&'k [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN)];
        let rest = if shown.len() < self.0.len() { "..." } else { "" };
        write!(f, "\"{}{rest}\"", shown.escape_ascii())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "owner {} waits for owner {}, to lock ", self.owner, self.held_by)?;
        let start = Shown(&self.start);
        match &self.end {
            _ if self.is_key => write!(f, "the key {start}")?,
            Some(end) => write!(f, "the keys from {start} to before {}", Shown(end))?,
            None => write!(f, "the keys from {start} on")?,
        }
        write!(f, " of {} {}", self.subtable, self.mode)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = |f: &mut fmt::Formatter<'_>, holders: &[u64]| {
            holders.iter().enumerate().try_for_each(|(i, holder)| {
                let separator = if i == 0 { ": held or wanted before by owner " } else { ", " };
                write!(f, "{separator}{holder}")
            })
        };
        match self {
            Refusal::Busy { holders } => {
                f.write_str("the lock is taken")?;
                held(f, holders)
            }
            Refusal::TimedOut { holders } => {
                f.write_str("the lock was not to be had in time")?;
                held(f, holders)
            }
            Refusal::Deadlock { cycle } => {
                f.write_str("deadlock")?;
                cycle
                    .iter()
                    .enumerate()
                    .try_for_each(|(i, step)| write!(f, "{} {step}", if i == 0 { ":" } else { ";" }))
            }
        }
    }
}

impl std::error::Error for Refusal {}
