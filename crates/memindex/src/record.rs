//! Records in memory, and the arena that holds them.
//!
//! A record is a header of eleven bytes (sequence and kind, lengths), the key and the value, written once before its
//! address is published and never changed after. Whoever got the address through an acquiring load may therefore read
//! it as plain memory. Lengths that the header has no room for follow it in eight more bytes: the smaller records are, the
//! more of them a memtable takes, and the less each of them costs to merge.
//!
//! ```text
//! sequence << 8 | kind, value's length, key's length   8 + 2 + 1 bytes, little-endian
//! value's length, key's length                         4 + 4 bytes; only where a length before is all ones, as both are then
//! key, value
//! ```
//!
//! A record may lie elsewhere too ([`crate::MemIndex::insert_at`]): persistent memory has the same form, with a checksum behind it
//! (`terrane_format::chain`).

use std::num::NonZeroUsize;
use std::ptr::{NonNull, copy_nonoverlapping, with_exposed_provenance};
use std::slice;

use terrane_base::{MemoryBudget, Seq};

use crate::memory::{ADDRESS_LIMIT, Memory};

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

impl Record<'_> {
    /// Whether `other` is this record, and no copy of it.
    #[inline]
    pub fn is(&self, other: &Record<'_>) -> bool {
        std::ptr::eq(self.key, other.key)
    }
}

/// Where a record lies in its [`RecordArena`]. Stable for the arena's life; means nothing to another arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordPtr(NonZeroUsize);

/// What precedes the key.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Header {
    seq_and_kind: u64,
    /// Of the value; [`LONG_VALUE`] where [`Lengths`] has both.
    value_len: u16,
    /// Of the key; [`LONG_KEY`] where [`Lengths`] has both.
    key_len: u8,
}

/// What follows the header where one of its lengths says so. Lengths above 4 GiB are refused before they get here.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Lengths {
    value_len: u32,
    key_len: u32,
}

const HEADER: usize = size_of::<Header>();
const LENGTHS: usize = size_of::<Lengths>();
const LONG_KEY: u8 = u8::MAX;
const LONG_VALUE: u16 = u16::MAX;

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

    /// A record that lies elsewhere; `None` where the index cannot refer to it.
    pub(crate) fn elsewhere(at: NonNull<u8>) -> Option<RecordPtr> {
        let address = at.as_ptr().expose_provenance();
        let fits = address.is_multiple_of(RECORD_ALIGN) && address < ADDRESS_LIMIT;
        NonZeroUsize::new(address).filter(|_| fits).map(RecordPtr)
    }

    /// Reads the record.
    ///
    /// # Safety
    /// The record's `push` must have happened before, and its arena must outlive `'a`; of one that lies elsewhere, what wrote it, and that
    /// memory, which can be read wherever its lengths lead, even if it is damaged.
    #[inline]
    pub(crate) unsafe fn read<'a>(self) -> Record<'a> {
        let at = with_exposed_provenance::<u8>(self.0.get());
        // SAFETY: per contract a record lies here: a header, the lengths if that says so, then as many bytes as they say, never
        // written again. (Where the memory has changed them since, what they lead to is mapped, and may be another's that is being written: whoever
        // compares keys with it finds what it may, and whoever gives a value away verifies the record before.)
        unsafe {
            let header = at.cast::<Header>().read_unaligned();
            let (mut key, mut key_len, mut value_len) =
                (at.add(HEADER), usize::from(header.key_len), usize::from(header.value_len));
            if header.key_len == LONG_KEY || header.value_len == LONG_VALUE {
                let lengths = key.cast::<Lengths>().read_unaligned();
                (key_len, value_len) = (lengths.key_len as usize, lengths.value_len as usize);
                key = key.add(LENGTHS);
            }
            Record {
                key: slice::from_raw_parts(key, key_len),
                seq: header.seq_and_kind >> 8,
                kind: header.seq_and_kind as u8,
                value: slice::from_raw_parts(key.add(key_len), value_len),
            }
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
        let short = (u8::try_from(key_len).ok().filter(|n| *n != LONG_KEY))
            .zip(u16::try_from(value_len).ok().filter(|n| *n != LONG_VALUE));
        let lengths = if short.is_some() { 0 } else { LENGTHS };
        let (short_key, short_value) = short.unwrap_or((LONG_KEY, LONG_VALUE));
        let seq_and_kind = seq << 8 | u64::from(kind);
        let header = Header { seq_and_kind, value_len: short_value, key_len: short_key };
        let at = self.0.alloc(HEADER + lengths + key.len() + value.len());
        // SAFETY: the piece is ours, of the size that is written, and nobody else knows it yet.
        unsafe {
            at.cast::<Header>().write_unaligned(header);
            let mut bytes = at.as_ptr().add(HEADER);
            if short.is_none() {
                bytes.cast::<Lengths>().write_unaligned(Lengths { value_len, key_len });
                bytes = bytes.add(LENGTHS);
            }
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
        let cases: [(&[u8], Seq, u8, &[u8]); 8] = [
            (b"", 0, 0, b""),
            (&big[..254], 3, 0, &big[..65534]),
            (&big[..255], 4, 0, b"v"),
            (b"k", 5, 0, &big[..65535]),
            (&big[..256], 6, 0, &big[..65536]),
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
