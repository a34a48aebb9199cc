//! Records in memory, and the arena that holds them.
//!
//! A record is a header of sixteen bytes (sequence and kind, lengths), the key and the value, written once before its
//! address is published and never changed after. Whoever got the address through an acquiring load may therefore read
//! it as plain memory.

use std::num::NonZeroUsize;
use std::ptr::{copy_nonoverlapping, with_exposed_provenance};
use std::slice;

use terrane_base::{MemoryBudget, Seq};

use crate::memory::Memory;

/// One version of one key, borrowed from where it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The sequence.
    pub seq: Seq,
    /// The kind byte, as the caller gave it.
    pub kind: u8,
    /// The value.
    pub value: &'a [u8],
}

/// Where a record lies in its [`RecordArena`]. Stable for the arena's life; means nothing to another arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordPtr(NonZeroUsize);

/// What precedes the key. Lengths above 4 GiB are refused before they get here.
#[repr(C)]
struct Header {
    seq_and_kind: u64,
    key_len: u32,
    value_len: u32,
}

const HEADER: usize = size_of::<Header>();

/// Records are aligned so that the index may tag their addresses.
pub(crate) const RECORD_ALIGN: usize = 8;

impl RecordPtr {
    /// The address of the record; below 2^48, a multiple of [`RECORD_ALIGN`].
    pub(crate) fn address(self) -> u64 {
        self.0.get() as u64
    }

    /// The record at an address that [`RecordPtr::address`] gave; `None` for zero.
    pub(crate) fn from_address(address: u64) -> Option<RecordPtr> {
        NonZeroUsize::new(address as usize).map(RecordPtr)
    }

    /// Reads the record.
    ///
    /// # Safety
    /// The record's `push` must have happened before, and its arena must outlive `'a`.
    #[inline]
    pub(crate) unsafe fn read<'a>(self) -> Record<'a> {
        let at = with_exposed_provenance::<u8>(self.0.get());
        // SAFETY: per contract a record lies here: a header, then as many bytes as it says, never written again.
        unsafe {
            let header = &*at.cast::<Header>();
            let key = slice::from_raw_parts(at.add(HEADER), header.key_len as usize);
            let value = slice::from_raw_parts(at.add(HEADER + key.len()), header.value_len as usize);
            Record { key, seq: header.seq_and_kind >> 8, kind: header.seq_and_kind as u8, value }
        }
    }
}

/// Append-only memory for records: a concurrent bump allocator, freed as a whole when it is dropped.
pub struct RecordArena(Memory);

impl RecordArena {
    /// An empty arena that charges its memory to `budget`.
    pub fn new(budget: MemoryBudget) -> Self {
        RecordArena(Memory::new(RECORD_ALIGN, budget))
    }

    /// Copies a record in. Key and value must be below 4 GiB each, the sequence at most
    /// [`terrane_base::MAX_SEQ`].
    pub fn push(&self, key: &[u8], seq: Seq, kind: u8, value: &[u8]) -> RecordPtr {
        debug_assert!(seq <= terrane_base::MAX_SEQ);
        let (key_len, value_len) = (key.len() as u32, value.len() as u32);
        let (key, value) = (&key[..key_len as usize], &value[..value_len as usize]);
        let at = self.0.alloc(HEADER + key.len() + value.len());
        let header = Header { seq_and_kind: seq << 8 | u64::from(kind), key_len, value_len };
        // SAFETY: the piece is ours, aligned, of the size that is written, and nobody else knows it yet.
        unsafe {
            at.cast::<Header>().write(header);
            let bytes = at.as_ptr().add(HEADER);
            copy_nonoverlapping(key.as_ptr(), bytes, key.len());
            copy_nonoverlapping(value.as_ptr(), bytes.add(key.len()), value.len());
        }
        RecordPtr(at.addr())
    }

    /// Reads a record.
    ///
    /// # Safety
    /// `at` must come from [`RecordArena::push`] on this very arena, and that call must have happened before this one.
    #[inline]
    pub unsafe fn get(&self, at: RecordPtr) -> Record<'_> {
        // SAFETY: the arena outlives the borrow; the rest is this function's own contract.
        unsafe { at.read() }
    }

    /// Bytes taken from the budget.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_pushed_is_read_back() {
        let arena = RecordArena::new(MemoryBudget::new(0));
        let big = vec![7u8; 3 << 20];
        let cases: [(&[u8], Seq, u8, &[u8]); 4] = [
            (b"", 0, 0, b""),
            (b"k", terrane_base::MAX_SEQ, 255, b""),
            (b"", 1, 1, b"value"),
            (&big, 9, 2, &big),
        ];
        let at = cases.map(|(key, seq, kind, value)| arena.push(key, seq, kind, value));
        for (at, (key, seq, kind, value)) in at.into_iter().zip(cases) {
            // SAFETY: pushed to this arena by this thread.
            assert_eq!(unsafe { arena.get(at) }, Record { key, seq, kind, value });
        }
        assert!(arena.bytes() >= 6 << 20);
    }
}
