//! The manifest: a file of edits to the database's structure. Replaying them gives the state.
//!
//! A file is a header page and then frames, each starting on a multiple of 4096. A frame holds an *edit group*, which
//! takes effect whole or not at all. The first groups are a *checkpoint*: the whole state as edits, closed by
//! [`Edit::CheckpointEnd`]; the file is made current only when they are durable.
//!
//! A checksum is salted with a number drawn for the file, so that bytes of another file, or a key that looks like a
//! frame, never pass for a frame of this one.

mod edit;
mod frame;
mod part;
#[cfg(test)]
mod tests;

pub use edit::{Edit, LogPosition, MAX_FRONT, MemoryMode, MemoryPlace, NextIds};
pub use frame::{
    Edits, Frame, MAX_GROUP, ManifestHeader, PAGE, encode_group, encode_seal, frame_span, read_frame,
};
pub use part::PartSize;
