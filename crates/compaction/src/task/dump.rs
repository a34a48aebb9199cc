//! A task as bytes: what a failed one leaves behind, to be replayed on another device or on a model of the hardware.
//!
//! ```text
//! magic "TRNTASK1" | id u64 | lo | has hi u8 [hi] | bottom u8 | target u32 | leaf records u32 | directory u8
//! | snapshots: count, each varint | tombstones | ways: count, each: blocks: count, each: bytes, crc u32
//! | crc u32 of all before
//! ```
//! Counts are varints, byte strings carry a varint length. This is a tool's format, not a stored one: a dump is read
//! by the version that wrote it.

use bytes::Bytes;
use terrane_base::{Error, Result};
use terrane_format::block::{BlockForm, DirectoryKind};
use terrane_format::checksum::crc;
use terrane_format::codec::{Reader, put_bytes, put_varint};
use terrane_format::limits::MAX_KEY;
use terrane_format::tombstone::RangeTombstones;

use super::{InputBlock, Task, Way};

const MAGIC: &[u8; 8] = b"TRNTASK1";

impl Task {
    /// The task as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes() as usize + (64 << 10));
        out.extend_from_slice(MAGIC);
        self.encode_head(&mut out);
        put_varint(&mut out, self.ways.len() as u64);
        for way in &self.ways {
            put_varint(&mut out, way.blocks.len() as u64);
            for block in &way.blocks {
                put_bytes(&mut out, &block.bytes);
                out.extend_from_slice(&block.crc.to_le_bytes());
            }
        }
        let sum = crc(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Everything but the blocks.
    pub(super) fn encode_head(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_le_bytes());
        put_bytes(out, &self.lo);
        out.push(u8::from(self.hi.is_some()));
        if let Some(hi) = &self.hi {
            put_bytes(out, hi);
        }
        out.push(u8::from(self.bottom));
        out.extend_from_slice(&(self.form.target_bytes as u32).to_le_bytes());
        out.extend_from_slice(&(self.form.leaf_records as u32).to_le_bytes());
        out.push(self.form.directory as u8);
        put_varint(out, self.snapshots.len() as u64);
        for &s in &self.snapshots {
            put_varint(out, s);
        }
        self.tombstones.encode(out);
    }

    /// Reads what [`Task::encode`] wrote.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Task> {
        let body = bytes.len().saturating_sub(4);
        let (body, sum) = bytes.split_at(body);
        if sum != crc(body).to_le_bytes() {
            return Err(Error::corruption("the task dump does not match its checksum"));
        }
        let mut r = Reader::new(body);
        if r.bytes(MAGIC.len())? != MAGIC {
            return Err(Error::corruption("not a task dump"));
        }
        let id = r.u64()?;
        let lo = r.prefixed(MAX_KEY + 1, "range start")?.to_vec();
        let hi = match r.u8()? {
            0 => None,
            _ => Some(r.prefixed(MAX_KEY + 1, "range end")?.to_vec()),
        };
        let bottom = r.u8()? != 0;
        let target_bytes = r.u32()? as usize;
        let leaf_records = r.u32()? as usize;
        let form = BlockForm { target_bytes, leaf_records, directory: DirectoryKind::from_u8(r.u8()?)? };
        let mut snapshots = Vec::new();
        for _ in 0..r.varint()? {
            snapshots.push(r.varint()?);
        }
        let tombstones = RangeTombstones::decode(&mut r)?;
        let mut ways = Vec::new();
        for _ in 0..r.varint()? {
            let mut way = Way::default();
            for _ in 0..r.varint()? {
                let len = r.remaining();
                let bytes = Bytes::copy_from_slice(r.prefixed(len, "block")?);
                way.blocks.push(InputBlock { bytes, crc: r.u32()? });
            }
            ways.push(way);
        }
        r.finish("a task dump")?;
        let task = Task { id, lo, hi, ways, tombstones, snapshots, bottom, form };
        task.check()?;
        Ok(task)
    }
}
