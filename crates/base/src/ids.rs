//! Names of things. All are small copyable numbers; none is ever reused within a database.

use std::fmt;

/// A position in the log stream, in bytes since the database was created. Strictly increasing over the life of the
/// database, across restarts.
pub type Lsn = u64;

/// A multi-version sequence number. Derived from the LSN of the batch that wrote the record: operation `i` of a batch
/// entry that starts at LSN `l` has sequence `l + 1 + i`, so sequences are unique, dense enough, and ordered as the log
/// is. Zero means "older than every snapshot": records at the bottom of the tree carry it.
pub type Seq = u64;

/// The largest sequence that can be stored (56 bits: eight bits are kept for the record kind).
pub const MAX_SEQ: Seq = (1 << 56) - 1;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $repr:ty, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $repr);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(
    /// A subtable. Ids are handed out in order and never reused, not even after a drop.
    SubtableId,
    u32,
    "t"
);

id!(
    /// An extent, by birth: a new extent gets a new id even where it takes the space of an old one.
    ExtentId,
    u64,
    "x"
);
