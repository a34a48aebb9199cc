//! An item on its way into persistent memory: what one commit has for one memtable.

use std::ops::Range;

use terrane_base::{Error, MAX_SEQ, Result, Seq};
use terrane_format::chain::{ChainRecord, ITEM_HEADER, key_at, record_len, write_record};
use terrane_memindex::MAX_KEY_BYTES;

/// The records of an item, as they will lie. Keeps its memory from commit to commit.
#[derive(Clone, Debug, Default)]
pub struct Item {
    /// Room for the header, and the records behind it; nothing as long as there is none.
    bytes: Vec<u8>,
    marks: Vec<Mark>,
    /// The smallest and the largest, if there is a record.
    seqs: Option<(Seq, Seq)>,
}

/// One of the records.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Where it lies in the bytes; it ends where the next one begins.
    at: u32,
    key_len: u32,
    /// From the record's beginning.
    key_at: u32,
    seq: Seq,
    /// It has a place in an index.
    indexed: bool,
}

/// Whether an index takes such a record.
#[inline]
pub(crate) fn check_record(record: &ChainRecord<'_>) -> Result<()> {
    if record.key.len() > MAX_KEY_BYTES {
        let len = record.key.len() as u64;
        return Err(Error::limit("key size in bytes", len, MAX_KEY_BYTES as u64));
    }
    if record.seq > MAX_SEQ {
        return Err(Error::limit("sequence", record.seq, MAX_SEQ));
    }
    Ok(())
}

impl Item {
    /// One without records.
    pub fn new() -> Self {
        Self::default()
    }

    /// Without records again.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.marks.clear();
        self.seqs = None;
    }

    /// Adds a record, and says how many bytes it takes. One that is not to be `indexed` has no place in the order of keys, as a range
    /// tombstone has none.
    ///
    /// # Errors
    /// `LimitExceeded` for a key or a sequence that no index takes, and if the item becomes larger than 4 GiB.
    pub fn push(&mut self, record: &ChainRecord<'_>, indexed: bool) -> Result<usize> {
        check_record(record)?;
        let at = self.bytes.len().max(ITEM_HEADER);
        let (key_len, value_len) = (record.key.len(), record.value.len());
        let len = record_len(key_len, value_len);
        let end = at.saturating_add(len);
        let (Ok(at), Ok(_)) = (u32::try_from(at), u32::try_from(end)) else {
            return Err(Error::limit("bytes of a chain log's item", end as u64, u32::MAX.into()));
        };
        let key_at = key_at(key_len, value_len) as u32;
        if self.bytes.is_empty() {
            self.bytes.resize(ITEM_HEADER, 0);
        }
        write_record(&mut self.bytes, record);
        let seq = record.seq;
        self.seqs = Some(self.seqs.map_or((seq, seq), |(least, most)| (least.min(seq), most.max(seq))));
        self.marks.push(Mark { at, key_len: key_len as u32, key_at, seq: record.seq, indexed });
        Ok(len)
    }

    /// Number of records.
    pub fn count(&self) -> usize {
        self.marks.len()
    }

    /// Bytes of the records: what [`crate::Chain::assign`] is to be asked for.
    pub fn len(&self) -> usize {
        self.bytes.len().saturating_sub(ITEM_HEADER)
    }

    /// Bytes of memory that it keeps.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity() + self.marks.capacity() * size_of::<Mark>()
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// The smallest sequence of its records and the largest, if it has any.
    pub(crate) fn seqs(&self) -> Option<(Seq, Seq)> {
        self.seqs
    }

    /// All of it, under this header.
    pub(crate) fn under(&mut self, header: &[u8; ITEM_HEADER]) -> &[u8] {
        self.bytes.resize(self.bytes.len().max(ITEM_HEADER), 0);
        self.bytes[..ITEM_HEADER].copy_from_slice(header);
        &self.bytes
    }

    /// Of each record that is to be indexed, where it lies behind the item's beginning, its key and its sequence.
    pub(crate) fn indexed(&self) -> impl Iterator<Item = (usize, &[u8], Seq)> {
        self.marks.iter().filter(|m| m.indexed).map(|m| {
            let from = (m.at + m.key_at) as usize;
            let key: Range<usize> = from..from + m.key_len as usize;
            (m.at as usize, &self.bytes[key], m.seq)
        })
    }
}
