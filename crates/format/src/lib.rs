//! Every on-disk encoding of Terrane, as pure functions over byte slices: no I/O, no threads, no clock.
//!
//! Every decoder survives arbitrary bytes: it returns a typed [`terrane_base::Error`] and never panics, never reads out
//! of bounds, never allocates more than the input justifies. All integers are little-endian. `docs/format.md` draws the
//! byte maps; golden files under `tests/golden` pin them.

#![deny(unsafe_code)]

pub mod batch;
pub mod block;
pub mod chain;
pub mod checksum;
pub mod codec;
pub mod data_file;
pub mod extent;
pub mod filter;
pub mod kind;
pub mod limits;
pub mod log;
pub mod manifest;
pub mod options;
pub mod pm;
pub mod prepared;
pub mod superblock;
pub mod tombstone;
pub mod tuple;
pub mod value_ref;

pub use kind::Kind;
