//! The stored form of range tombstones.

use terrane_base::{Error, MAX_SEQ, Result};

use super::{Fragment, RangeTombstones};
use crate::codec::{Reader, put_bytes, put_varint};
use crate::limits::MAX_BOUND;

impl RangeTombstones {
    /// Appends the encoded form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.fragments.len() as u64);
        for f in &self.fragments {
            put_bytes(out, &f.start);
            put_bytes(out, &f.end);
            put_varint(out, f.seqs.len() as u64);
            let mut above = None;
            for seq in &f.seqs {
                put_varint(out, above.map_or(*seq, |a: u64| a - seq));
                above = Some(*seq);
            }
        }
    }

    /// Reads one set.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`] if it is cut short or anything is out of order.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self> {
        let count = r.varint()?;
        let mut fragments: Vec<Fragment> = Vec::new();
        for _ in 0..count {
            let at = r.position();
            let start = r.prefixed(MAX_BOUND, "range tombstone start")?.to_vec();
            let end = r.prefixed(MAX_BOUND, "range tombstone end")?.to_vec();
            let seqs = decode_seqs(r)?;
            let joins = |last: &Fragment| last.end == start && last.seqs == seqs;
            if start >= end || fragments.last().is_some_and(|last| last.end > start || joins(last)) {
                return Err(Error::corruption("range tombstones out of order").with_offset(at as u64));
            }
            fragments.push(Fragment { start, end, seqs });
        }
        Ok(RangeTombstones { fragments })
    }
}

fn decode_seqs(r: &mut Reader<'_>) -> Result<Vec<u64>> {
    let at = r.position();
    let wrong = || Error::corruption("range tombstone with a wrong sequence").with_offset(at as u64);
    let count = r.varint()?;
    if count == 0 {
        return Err(wrong());
    }
    let mut seqs = vec![r.varint_max(MAX_SEQ, "sequence")?];
    for _ in 1..count {
        let distance = r.varint()?;
        let next = seqs.last().and_then(|above| above.checked_sub(distance)).filter(|_| distance > 0);
        seqs.push(next.ok_or_else(wrong)?);
    }
    if seqs.last() == Some(&0) {
        return Err(wrong());
    }
    Ok(seqs)
}
