//! Builds blocks from records in internal order.

use terrane_base::{MAX_SEQ, Seq};

use super::two_layer::{self, ALIGNMENT, ROOT};
use super::view::{FLAG_UNDIVIDED, FLAG_WIDE, PADDING_SHIFT, TRAILER};
use super::{BlockForm, DirectoryKind, MAX_LEAF_RECORDS, MAX_LEAVES, TARGET_BYTES, common_prefix};
use crate::Kind;
use crate::checksum::key_hash;
use crate::codec::{put_varint, varint_len};

/// Bytes of a leaf of large records, about: eight lines.
const LEAF_BYTES: usize = 512;
/// Bytes of the directory for each leaf.
const LEAF_ENTRY: usize = 10;
/// What leaves cost is at most one byte of so many, unless the form has so small ones.
const LEAF_SHARE: usize = 16;

/// Builds one block after another from records in internal order (key ascending, then sequence descending).
#[derive(Debug)]
pub struct BlockBuilder {
    form: BlockForm,
    /// Records of a leaf of this block.
    leaf_records: usize,
    records: Vec<u8>,
    leaves: Vec<Leaf>,
    /// Bytes of keys that leaves repeat, because each stores its first one whole.
    repeated: usize,
    seqs: Vec<Seq>,
    first_key: Vec<u8>,
    last_key: Vec<u8>,
    hashes: Vec<u64>,
    min_seq: Seq,
    max_seq: Seq,
    deletes: u32,
    value_refs: bool,
    /// A leaf begins between the versions of a key.
    divided: bool,
}

/// What a varint of one byte is below.
const VARINT_BYTE: usize = 0x80;

/// Where a leaf begins, and its first key.
#[derive(Clone, Copy, Debug)]
struct Leaf {
    at: u32,
    key: u32,
    key_len: u32,
}

/// A finished block and what its extent must know about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedBlock {
    /// The block, uncompressed.
    pub bytes: Vec<u8>,
    /// Key of the first record.
    pub first_key: Vec<u8>,
    /// Sequence of the first record.
    pub first_seq: Seq,
    /// Key of the last record.
    pub last_key: Vec<u8>,
    /// Number of records.
    pub rows: u32,
    /// Records whose kind is a delete.
    pub deletes: u32,
    /// Smallest sequence.
    pub min_seq: Seq,
    /// Largest sequence.
    pub max_seq: Seq,
    /// Whether a record refers to a value stored in units of its own.
    pub value_refs: bool,
    /// [`crate::checksum::key_hash`] of each distinct key, for the filter.
    pub hashes: Vec<u64>,
}

impl BlockBuilder {
    /// A builder of blocks of this form.
    pub fn new(form: BlockForm) -> Self {
        let form = BlockForm { leaf_records: form.leaf_records.clamp(1, MAX_LEAF_RECORDS), ..form };
        BlockBuilder {
            form,
            leaf_records: form.leaf_records,
            records: Vec::new(),
            leaves: Vec::new(),
            repeated: 0,
            seqs: Vec::new(),
            first_key: Vec::new(),
            last_key: Vec::new(),
            hashes: Vec::new(),
            min_seq: Seq::MAX,
            max_seq: 0,
            deletes: 0,
            value_refs: false,
            divided: false,
        }
    }

    /// Adds a record. The caller keeps the internal order.
    pub fn add(&mut self, key: &[u8], seq: Seq, kind: Kind, value: &[u8]) {
        let common = common_prefix(&self.last_key, key);
        let same_key = !self.is_empty() && common == key.len() && common == self.last_key.len();
        debug_assert!(
            self.is_empty() || (self.last_key.as_slice(), seq) < (key, self.seqs[self.seqs.len() - 1]),
            "records out of order"
        );
        debug_assert!(seq <= MAX_SEQ, "sequence out of range");
        let starts_leaf = self.starts_leaf();
        let shared = if starts_leaf { 0 } else { common };
        self.divided |= starts_leaf && same_key;
        self.repeated += if starts_leaf && !self.is_empty() { common } else { 0 };
        if self.is_empty() {
            // All that the block can become, so that it never moves: a record may be larger than blocks are meant to be.
            let alone = self.block_len(record_len(key.len(), value.len()), 1, 0, 1);
            self.records.reserve_exact(alone.max(self.form.target_bytes.min(*TARGET_BYTES.end())));
            self.first_key.extend_from_slice(key);
        }
        let at = self.records.len() as u32;
        self.put_lengths(kind, [shared, key.len() - shared, value.len()]);
        if starts_leaf {
            self.leaves.push(Leaf { at, key: self.records.len() as u32, key_len: key.len() as u32 });
        }
        self.records.extend_from_slice(&key[shared..]);
        self.records.extend_from_slice(value);

        if !same_key {
            self.hashes.push(key_hash(key));
            self.last_key.truncate(common);
            self.last_key.extend_from_slice(&key[common..]);
        }
        self.seqs.push(seq);
        self.min_seq = self.min_seq.min(seq);
        self.max_seq = self.max_seq.max(seq);
        self.deletes += u32::from(kind.is_delete());
        self.value_refs |= kind == Kind::ValueRef;
    }

    /// Whether a record of these lengths and this sequence still belongs in this block. True when empty: an oversize
    /// record gets a block of its own.
    pub fn fits(&self, key_len: usize, value_len: usize, seq: Seq) -> bool {
        if self.is_empty() {
            return true;
        }
        let leaves = self.leaves.len() + usize::from(self.starts_leaf());
        let records = self.records.len() + record_len(key_len, value_len);
        let width = column_width(self.min_seq.min(seq), self.max_seq.max(seq));
        leaves <= MAX_LEAVES
            && self.block_len(records, self.seqs.len() + 1, width, leaves) <= self.form.target_bytes
    }

    /// Whether no record was added since the last block was finished.
    pub fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    /// Records added since the last block was finished.
    pub fn rows(&self) -> u32 {
        self.seqs.len() as u32
    }

    /// Bytes of the block if it were finished now.
    pub fn len(&self) -> usize {
        let width = column_width(self.min_seq, self.max_seq);
        self.block_len(self.records.len(), self.seqs.len(), width, self.leaves.len())
    }

    /// Bytes of a block of so many, with the most padding.
    fn block_len(&self, records: usize, rows: usize, width: usize, leaves: usize) -> usize {
        let before_directory = records + rows * width;
        let nodes = match self.form.directory {
            DirectoryKind::TwoLayer if leaves <= MAX_LEAVES => two_layer::nodes_len(leaves) + ALIGNMENT - 1,
            _ => 0,
        };
        before_directory + leaves * if is_wide(before_directory) { 4 } else { 2 } + nodes + TRAILER
    }

    /// Closes the block and starts the next. Without records the block is a valid one of no rows.
    pub fn finish(&mut self) -> FinishedBlock {
        let width = column_width(self.min_seq, self.max_seq);
        let min_seq = self.min_seq.min(self.max_seq);
        // The records stay where they are: the block takes their memory.
        let mut bytes = std::mem::take(&mut self.records);
        let records_len = bytes.len();
        for seq in &self.seqs {
            bytes.extend_from_slice(&(seq - min_seq).to_le_bytes()[..width]);
        }
        let wide = is_wide(bytes.len());
        for leaf in &self.leaves {
            bytes.extend_from_slice(&leaf.at.to_le_bytes()[..if wide { 4 } else { 2 }]);
        }
        let mut flags = if wide { FLAG_WIDE } else { 0 };
        let mut prefix = 0;
        let directory = match self.form.directory {
            DirectoryKind::TwoLayer if self.leaves.len() <= MAX_LEAVES => {
                prefix = common_prefix(&self.first_key, &self.last_key).min(u16::MAX.into());
                let first_key = |leaf: &Leaf| &bytes[leaf.key as usize..(leaf.key + leaf.key_len) as usize];
                let significant = |leaf| two_layer::significant(first_key(leaf), prefix);
                let numbers: Vec<u64> = self.leaves.iter().map(significant).collect();
                let padding = bytes.len().next_multiple_of(ALIGNMENT) - bytes.len();
                flags |= (padding as u8) << PADDING_SHIFT | if self.divided { 0 } else { FLAG_UNDIVIDED };
                bytes.resize(bytes.len() + padding, 0);
                two_layer::append_nodes(&mut bytes, &numbers);
                DirectoryKind::TwoLayer
            }
            _ => DirectoryKind::RestartArray,
        };
        bytes.extend_from_slice(&min_seq.to_le_bytes());
        bytes.extend_from_slice(&self.rows().to_le_bytes());
        bytes.extend_from_slice(&self.deletes.to_le_bytes());
        bytes.extend_from_slice(&(self.leaf_records as u16).to_le_bytes());
        bytes.extend_from_slice(&[width as u8, directory as u8, flags, 0]);
        bytes.extend_from_slice(&(prefix as u16).to_le_bytes());
        // Leaves of tiny records run out long before the bytes do.
        if bytes.len() < bytes.capacity() / 2 {
            bytes.shrink_to_fit();
        }
        let finished = FinishedBlock {
            bytes,
            first_key: std::mem::take(&mut self.first_key),
            first_seq: self.seqs.first().copied().unwrap_or(0),
            last_key: std::mem::take(&mut self.last_key),
            rows: self.rows(),
            deletes: self.deletes,
            min_seq,
            max_seq: self.max_seq,
            value_refs: self.value_refs,
            hashes: std::mem::take(&mut self.hashes),
        };
        self.leaf_records = self.leaf_records_next(records_len, finished.bytes.len());
        self.leaves.clear();
        self.seqs.clear();
        (self.min_seq, self.max_seq) = (Seq::MAX, 0);
        (self.deletes, self.value_refs, self.divided, self.repeated) = (0, false, false, 0);
        finished
    }

    /// Begins a record with its kind and the lengths, which are short mostly: then as one word.
    fn put_lengths(&mut self, kind: Kind, lengths: [usize; 3]) {
        if lengths.iter().all(|n| *n < VARINT_BYTE) {
            let [shared, rest, value] = lengths.map(|n| n as u8);
            return self.records.extend_from_slice(&[kind as u8, shared, rest, value]);
        }
        self.records.push(kind as u8);
        lengths.iter().for_each(|n| put_varint(&mut self.records, *n as u64));
    }

    fn starts_leaf(&self) -> bool {
        // All leaves before it are full. (A division would take as long as the rest of what each record asks here.)
        self.seqs.len() == self.leaves.len() * self.leaf_records
    }

    /// Records of a leaf of the next block, whose records are taken to be like those of this one. `records_len` of its `len` bytes are
    /// records. As many as the form says, but
    /// * fewer where they are large: a lookup has all of a leaf brought near, and each line takes its share of what the processor can have
    ///   under way; yet not so few that what each leaf repeats of its first key takes more than a sixteenth of the block;
    /// * more where they are so small that leaves would run out before the bytes do.
    ///
    /// (Leaves of a restart array are large enough, and a device's all alike.)
    fn leaf_records_next(&self, records_len: usize, len: usize) -> usize {
        let (rows, leaves) = (self.seqs.len(), self.leaves.len());
        if self.form.directory == DirectoryKind::RestartArray || leaves < 2 {
            return self.leaf_records;
        }
        // What records take however they are divided, and a leaf takes more.
        let own = records_len.saturating_sub(self.repeated).max(1);
        let each_leaf = self.repeated / (leaves - 1) + LEAF_ENTRY;
        let near = match rows * self.form.target_bytes / own <= ROOT {
            // The root tells them all apart.
            true => 1,
            false => (LEAF_BYTES * rows / own).max(2),
        };
        let cheap = (LEAF_SHARE * each_leaf * rows).div_ceil(own);
        // An eighth to spare for smaller records.
        let next = rows * self.form.target_bytes / len.max(1) * 9 / 8;
        near.max(cheap).min(self.form.leaf_records).max(next.div_ceil(MAX_LEAVES)).min(MAX_LEAF_RECORDS)
    }
}

/// Most bytes of a record whose key and value have these lengths.
fn record_len(key_len: usize, value_len: usize) -> usize {
    1 + 2 * varint_len(key_len as u64) + varint_len(value_len as u64) + key_len + value_len
}

/// Bytes per record in the sequence column.
fn column_width(min: Seq, max: Seq) -> usize {
    (Seq::BITS - max.saturating_sub(min).leading_zeros()).div_ceil(8) as usize
}

/// Whether leaf offsets need four bytes. Decided by what stands in front of the directory, which is simpler than by
/// the last leaf's offset and differs only for blocks beyond their target.
fn is_wide(before_directory: usize) -> bool {
    before_directory > usize::from(u16::MAX)
}
