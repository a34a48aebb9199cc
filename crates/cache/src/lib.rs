//! Placeholder head, replaced by the room's own.
