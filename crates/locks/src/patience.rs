//! How long a request waits.

use std::time::Duration;

/// How long a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Not at all: what cannot be had at once is refused.
    Never,
    /// So long. There is no clock here, only waits that end: a range, which may have to wait in several shards, may take some
    /// times as long before it is refused.
    For(Duration),
    /// Until it is granted, or chosen as the victim of a deadlock.
    Forever,
}
