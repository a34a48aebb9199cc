//! What goes through the rings: requests to a core, and its answers.

use terrane_base::{Result, SubtableId};

use crate::exec::core::Core;

/// What a client asks of a core.
pub(super) struct Request {
    /// The client's own name for it.
    pub(super) token: u64,
    pub(super) table: SubtableId,
    /// The key; its memory goes back with the answer.
    pub(super) key: Vec<u8>,
    /// What to do with it, if that is not to look it up.
    pub(super) work: Option<Work>,
}

/// Runs on the core that owns the key.
pub(super) type Work = Box<dyn FnOnce(&mut Core<'_>, &[u8]) -> Result<Option<Vec<u8>>> + Send>;

/// What a core says.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) token: u64,
    /// Whether there is a value.
    pub(super) outcome: Result<bool>,
    /// The value, in the memory that came with the request.
    pub(super) value: Vec<u8>,
}

impl Answer {
    /// `value` in the memory of `memory`.
    pub(super) fn new(token: u64, mut memory: Vec<u8>, outcome: Result<Option<impl AsRef<[u8]>>>) -> Self {
        memory.clear();
        let outcome = outcome.map(|value| {
            memory.extend_from_slice(value.as_ref().map_or(&[], AsRef::as_ref));
            value.is_some()
        });
        Answer { token, outcome, value: memory }
    }
}
