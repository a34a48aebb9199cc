//! How a lock is held.

use std::fmt;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Others may hold it shared at the same time.
    Shared,
    /// Nobody else holds it.
    Exclusive,
}

impl Mode {
    /// Whether two owners cannot hold the same thing in these modes.
    #[inline]
    pub fn conflicts_with(self, other: Mode) -> bool {
        self == Mode::Exclusive || other == Mode::Exclusive
    }

    /// Whether who holds a thing in this mode may do all that `other` allows.
    #[inline]
    pub fn includes(self, other: Mode) -> bool {
        self == Mode::Exclusive || other == Mode::Shared
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Shared => "shared",
            Mode::Exclusive => "exclusive",
        })
    }
}
