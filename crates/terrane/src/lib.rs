//! Terrane: a transactional key-value storage engine for fast storage and many cores.

#![forbid(unsafe_code)]

mod check;
mod db;
mod levels;
mod log;
mod memtable;
mod read;
mod recovery;
mod tombstone;
