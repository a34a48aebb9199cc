//! The bodies of log entries that carry a transaction through two-phase commit.
//!
//! ```text
//! prepare   xid: varint length, bytes | locks varint | lock* | operations (as in a batch)
//! commit    xid: varint length, bytes | operations (as in a batch)
//! rollback  xid: varint length, bytes
//!
//! lock      u8 form: bit 0 exclusive, bit 1 range, bit 2 without an end | varint subtable
//!           | varint length, key or first key | of a range with an end: varint length, first key behind it
//! ```
//!
//! A prepare changes nothing: its operations are there to be applied later. The commit repeats them, so that they have their
//! sequences from where it stands in the log, and so that the prepare need not be kept once they are applied. A *prepare* that is
//! written again (so that its first place in the log can be let go of) takes the place of the earlier one. Of the entries about
//! one xid the last counts.

use terrane_base::{Error, Result, SubtableId};

use crate::batch::EntryKind;
use crate::codec::{Reader, put_bytes, put_varint};
use crate::limits::{MAX_BOUND, MAX_KEY, MAX_XID};

const EXCLUSIVE: u8 = 1;
const RANGE: u8 = 1 << 1;
const ENDLESS: u8 = 1 << 2;

/// A lock that a prepared transaction holds; those on what it writes are among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock<'a> {
    /// The subtable concerned.
    pub subtable: SubtableId,
    /// Against everybody, not against writers alone.
    pub exclusive: bool,
    /// What is locked.
    pub span: Span<'a>,
}

/// What a lock covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span<'a> {
    /// One key.
    Key(&'a [u8]),
    /// From a key (included) to another (excluded), or to the end.
    Range(&'a [u8], Option<&'a [u8]>),
}

/// What an entry says about a prepared transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage<'a> {
    /// Who.
    pub xid: &'a [u8],
    /// Its locks; of a prepare alone.
    pub locks: Vec<Lock<'a>>,
    /// Its operations, for [`crate::batch::Ops`]; empty in a rollback.
    pub ops: &'a [u8],
}

/// The front of a prepare's body: its operations follow.
pub fn prepare_head<'a>(xid: &[u8], locks: impl ExactSizeIterator<Item = Lock<'a>>) -> Vec<u8> {
    let mut out = head(xid);
    put_varint(&mut out, locks.len() as u64);
    for lock in locks {
        let form = match lock.span {
            Span::Key(_) => 0,
            Span::Range(_, Some(_)) => RANGE,
            Span::Range(_, None) => RANGE | ENDLESS,
        };
        out.push(form | if lock.exclusive { EXCLUSIVE } else { 0 });
        put_varint(&mut out, u64::from(lock.subtable.0));
        let (Span::Key(start) | Span::Range(start, _)) = lock.span;
        put_bytes(&mut out, start);
        if let Span::Range(_, Some(end)) = lock.span {
            put_bytes(&mut out, end);
        }
    }
    out
}

/// The front of a commit's body, before its operations, and all of a rollback's.
pub fn head(xid: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(xid.len() + 2);
    put_bytes(&mut out, xid);
    out
}

/// Decodes the body of an entry of `kind`.
///
/// # Errors
/// [`terrane_base::ErrorKind::Corruption`]; for an entry that is no stage of a prepared transaction too.
pub fn decode(kind: EntryKind, body: &[u8]) -> Result<Stage<'_>> {
    let mut r = Reader::new(body);
    let mut locks = Vec::new();
    let xid = r.prefixed(MAX_XID, "length of an xid")?;
    match kind {
        EntryKind::Prepare => {
            // A lock takes three bytes at least: no more are made room for than can be there.
            let count = r.varint_max(body.len() as u64 / 3, "number of locks")?;
            for _ in 0..count {
                locks.push(lock(&mut r)?);
            }
        }
        EntryKind::Commit => {}
        EntryKind::Rollback if r.is_at_end() => {}
        EntryKind::Rollback => return Err(Error::corruption("bytes behind a rollback")),
        EntryKind::Batch | EntryKind::NoOp | EntryKind::Gap => {
            return Err(Error::corruption("an entry that is no stage of a prepared transaction"));
        }
    }
    let ops = r.bytes(r.remaining())?;
    Ok(Stage { xid, locks, ops })
}

fn lock<'a>(r: &mut Reader<'a>) -> Result<Lock<'a>> {
    let form = r.u8()?;
    let subtable = SubtableId(r.varint_max(u64::from(u32::MAX), "subtable id")? as u32);
    let span = match form & !EXCLUSIVE {
        0 => Span::Key(r.prefixed(MAX_KEY, "key length")?),
        RANGE => {
            let start = r.prefixed(MAX_BOUND, "length of a bound")?;
            Span::Range(start, Some(r.prefixed(MAX_BOUND, "length of a bound")?))
        }
        f if f == RANGE | ENDLESS => Span::Range(r.prefixed(MAX_BOUND, "length of a bound")?, None),
        _ => return Err(Error::corruption(format!("a lock of the unknown form {form:#x}"))),
    };
    Ok(Lock { subtable, exclusive: form & EXCLUSIVE != 0, span })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn locks() -> Vec<Lock<'static>> {
        let lock = |subtable, exclusive, span| Lock { subtable: SubtableId(subtable), exclusive, span };
        vec![
            lock(1, true, Span::Key(b"k")),
            lock(300, false, Span::Range(b"a", Some(b"b\0"))),
            lock(2, true, Span::Range(b"", None)),
        ]
    }

    #[test]
    fn golden_bodies() {
        let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(hex(&prepare_head(b"x1", locks().into_iter())), "027831030101016b02ac020161026200070200");
        assert_eq!(hex(&head(b"x1")), "027831");
    }

    #[test]
    fn stages_round_trip() {
        let body = [&prepare_head(b"id", locks().into_iter())[..], b"ops"].concat();
        let stage = decode(EntryKind::Prepare, &body).unwrap();
        assert_eq!(stage, Stage { xid: b"id", locks: locks(), ops: b"ops" });
        let body = [&head(b"id")[..], b"ops"].concat();
        assert_eq!(
            decode(EntryKind::Commit, &body).unwrap(),
            Stage { xid: b"id", locks: vec![], ops: b"ops" }
        );
        assert!(decode(EntryKind::Rollback, &body).is_err());
        assert_eq!(decode(EntryKind::Rollback, &head(b"id")).unwrap().xid, b"id");
        assert!(decode(EntryKind::Batch, &body).is_err());
    }

    #[test]
    fn a_head_cut_short_and_an_unknown_form_are_errors() {
        let whole = prepare_head(b"id", locks().into_iter());
        for len in 0..whole.len() {
            assert!(decode(EntryKind::Prepare, &whole[..len]).is_err(), "{len}");
        }
        assert!(decode(EntryKind::Prepare, &[0, 1, ENDLESS, 0, 0]).is_err());
        assert!(decode(EntryKind::Prepare, &[0, 0xff, 0xff, 0x7f]).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for kind in [EntryKind::Prepare, EntryKind::Commit, EntryKind::Rollback] {
                let _ = decode(kind, &bytes);
            }
        }
    }
}
