//! (being written)
/// Placeholder.
#[derive(Debug)]
pub struct Signal;
