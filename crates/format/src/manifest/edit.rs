//! Edits, one by one.
//!
//! ```text
//! edit = tag u8 | body length varint | body
//!
//!  1 create subtable  id varint | name length varint, name | options length varint, options | lsn varint
//!  2 set options      id varint | options length varint, options
//!  3 drop subtable    id varint | lsn varint
//!  4 add ref          subtable varint | level u8 | run varint | lo bound | hi bound | extent meta | size
//!  5 remove ref       subtable varint | level u8 | run varint | extent id varint | lo length varint, lo
//!  6 persisted        subtable varint | lsn varint
//!  7 add value        subtable varint | reference length varint, value reference
//!  8 remove value     subtable varint | value id varint
//!  9 log              generation varint | first lsn varint | durable lsn varint | clean u8
//! 10 next ids         extent varint | file varint | subtable varint | value varint | run varint
//! 11 end of checkpoint
//! 12 stage            xid length varint, xid | front length varint, front of its prepare (see `crate::prepared`)
//! 13 stage extent     xid length varint, xid | subtable varint | extent meta
//! 14 stage value      xid length varint, xid | subtable varint | reference length varint, value reference
//! 15 unstage          xid length varint, xid
//!
//! bound = 0 u8 (the extent's own) or 1 u8 | length varint, key
//! size = nothing if both bounds are the extent's own, else bytes varint | rows varint | deletes varint
//! ```
//! An edit that this version does not know is refused, whole manifest and all: skipping it would lose structure. What
//! older versions may skip is announced by the superblock's feature bits.

use std::sync::Arc;

use terrane_base::{Error, ErrorKind, ExtentId, Lsn, Result, SubtableId};

use super::PartSize;
use crate::codec::{Reader, put_bytes, put_varint};
use crate::extent::ExtentMeta;
use crate::limits::{MAX_BOUND, MAX_NAME, MAX_XID, check_bound};
use crate::options::MAX_OPTIONS;
use crate::pm::Known;
use crate::value_ref::ValueRef;

/// What the manifest knows about the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// The newest generation that may have appended.
    pub generation: u32,
    /// Nothing before this is needed any more.
    pub first_lsn: Lsn,
    /// The log was durable up to here when the edit was written: recovery must find it.
    pub durable_lsn: Lsn,
    /// The database was closed in order, and nothing was appended since.
    pub clean: bool,
}

/// Where a database's persistent memory is, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlace {
    /// Its file, absolute or in the database's directory: the bytes of a path.
    pub path: Vec<u8>,
    /// How it is mapped.
    pub mode: MemoryMode,
    /// Bytes of one that is made in its place, ...
    pub bytes: u64,
    /// ... and of each of its zones; 0 leaves that open.
    pub zone_bytes: u64,
    /// Which one it is of those that took each other's place, from 0.
    pub number: u32,
    /// A log trails behind it.
    pub has_log: bool,
    /// Where it stands: one that stands elsewhere does not belong to this directory.
    pub known: Known,
}

/// How a persistent memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryMode {
    /// A device of its own, without the page cache.
    Device,
    /// Any file, with the instructions that a device needs.
    StandIn,
    /// Any file, through the page cache.
    PageCache,
}

impl MemoryMode {
    fn code(self) -> u8 {
        match self {
            MemoryMode::Device => 0,
            MemoryMode::StandIn => 1,
            MemoryMode::PageCache => 2,
        }
    }

    fn of(code: u8) -> Result<Self> {
        [MemoryMode::Device, MemoryMode::StandIn, MemoryMode::PageCache]
            .into_iter()
            .find(|m| m.code() == code)
            .ok_or_else(|| Error::corruption(format!("{code} is no way to map a persistent memory")))
    }
}

/// Lower bounds for ids still to be handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextIds {
    /// Of extents.
    pub extent: u64,
    /// Of data files.
    pub file: u32,
    /// Of subtables.
    pub subtable: u32,
    /// Of values in units of their own.
    pub value: u64,
    /// Of L0 runs.
    pub run: u64,
}

/// One change of the database's structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// A subtable comes to be.
    CreateSubtable {
        /// Its id, never used before.
        id: SubtableId,
        /// Its name, unique among the living.
        name: String,
        /// An encoded [`crate::options::SubtableOptionsRecord`].
        options: Vec<u8>,
        /// Log position of its birth.
        lsn: Lsn,
    },
    /// A subtable's options change.
    SetOptions {
        /// The subtable.
        id: SubtableId,
        /// An encoded [`crate::options::SubtableOptionsRecord`].
        options: Vec<u8>,
    },
    /// A subtable goes, with all its extents and values.
    DropSubtable {
        /// The subtable.
        id: SubtableId,
        /// Log position of its end.
        lsn: Lsn,
    },
    /// An extent, or a part of it, joins a run.
    AddRef {
        /// The subtable.
        subtable: SubtableId,
        /// The level.
        level: u8,
        /// The run: L0 runs are ordered by id, newest largest; a level from 1 on is one run, with id 0.
        run: u64,
        /// First key of the part.
        lo: Vec<u8>,
        /// First key behind the part.
        hi: Vec<u8>,
        /// What lies between the two; that of the whole extent if they are its own bounds.
        size: PartSize,
        /// The extent.
        extent: Arc<ExtentMeta>,
    },
    /// An extent, or a part of it, leaves a run.
    RemoveRef {
        /// The subtable.
        subtable: SubtableId,
        /// The level.
        level: u8,
        /// The run.
        run: u64,
        /// The extent.
        extent: ExtentId,
        /// First key of the part.
        lo: Vec<u8>,
    },
    /// All records of a subtable up to a log position are in extents.
    Persisted {
        /// The subtable.
        subtable: SubtableId,
        /// The position: replay may skip what lies before it.
        lsn: Lsn,
    },
    /// A value in units of its own is referred to by extents.
    AddValue {
        /// The subtable.
        subtable: SubtableId,
        /// The value.
        value: ValueRef,
    },
    /// No extent refers to a value any more.
    RemoveValue {
        /// The subtable.
        subtable: SubtableId,
        /// The value's id.
        id: u64,
    },
    /// A transaction is prepared whose records are in extents that nobody sees yet.
    Stage {
        /// Its name.
        xid: Vec<u8>,
        /// Xid and locks, as a prepare in the log has them in front.
        front: Vec<u8>,
    },
    /// An extent of a prepared transaction.
    StageExtent {
        /// Whose.
        xid: Vec<u8>,
        /// The subtable that its records are for.
        subtable: SubtableId,
        /// The extent.
        extent: Arc<ExtentMeta>,
    },
    /// A value in units of its own that a prepared transaction refers to.
    StageValue {
        /// Whose.
        xid: Vec<u8>,
        /// The subtable that it is for.
        subtable: SubtableId,
        /// The value.
        value: ValueRef,
    },
    /// A prepared transaction has ended: its extents and values are nobody's, but for those that edits of the same group add.
    Unstage {
        /// Whose.
        xid: Vec<u8>,
    },
    /// The log moved on.
    Log(LogPosition),
    /// Commits go to a persistent memory, with a log behind it or none.
    Memory(MemoryPlace),
    /// Ids below these are used up.
    NextIds(NextIds),
    /// Closes a checkpoint.
    CheckpointEnd,
}

const CREATE_SUBTABLE: u8 = 1;
const SET_OPTIONS: u8 = 2;
const DROP_SUBTABLE: u8 = 3;
const ADD_REF: u8 = 4;
const REMOVE_REF: u8 = 5;
const PERSISTED: u8 = 6;
const ADD_VALUE: u8 = 7;
const REMOVE_VALUE: u8 = 8;
const LOG: u8 = 9;
const NEXT_IDS: u8 = 10;
const CHECKPOINT_END: u8 = 11;
const STAGE: u8 = 12;
const STAGE_EXTENT: u8 = 13;
const STAGE_VALUE: u8 = 14;
const UNSTAGE: u8 = 15;
const MEMORY: u8 = 16;

const MAX_VALUE_REF: usize = 1 << 20;
/// Longest path of a file.
const MAX_PATH: usize = 4096;
/// Locks of a prepared transaction are not more than this in all.
pub const MAX_FRONT: usize = 16 << 20;

impl Edit {
    /// Whether [`Edit::decode`] takes the bounds of what this adds or takes away.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::LimitExceeded`].
    pub fn check_bounds(&self) -> Result<()> {
        let check = |bounds: &[&Vec<u8>]| bounds.iter().try_for_each(|bound| check_bound(bound));
        match self {
            Edit::AddRef { lo, hi, extent, .. } => check(&[lo, hi, &extent.lo, &extent.hi]),
            Edit::RemoveRef { lo, .. } => check(&[lo]),
            Edit::StageExtent { extent, .. } => check(&[&extent.lo, &extent.hi]),
            _ => Ok(()),
        }
    }

    /// Appends the edit: tag, varint length, body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        let b = &mut body;
        let tag = match self {
            Edit::CreateSubtable { id, name, options, lsn } => {
                put_varint(b, u64::from(id.0));
                put_bytes(b, name.as_bytes());
                put_bytes(b, options);
                put_varint(b, *lsn);
                CREATE_SUBTABLE
            }
            Edit::SetOptions { id, options } => {
                put_varint(b, u64::from(id.0));
                put_bytes(b, options);
                SET_OPTIONS
            }
            Edit::DropSubtable { id, lsn } => {
                put_varint(b, u64::from(id.0));
                put_varint(b, *lsn);
                DROP_SUBTABLE
            }
            Edit::AddRef { subtable, level, run, lo, hi, size, extent } => {
                put_varint(b, u64::from(subtable.0));
                b.push(*level);
                put_varint(b, *run);
                put_bound(b, lo, &extent.lo);
                put_bound(b, hi, &extent.hi);
                extent.encode(b);
                if (lo, hi) != (&extent.lo, &extent.hi) {
                    size.encode(b);
                }
                ADD_REF
            }
            Edit::RemoveRef { subtable, level, run, extent, lo } => {
                put_varint(b, u64::from(subtable.0));
                b.push(*level);
                put_varint(b, *run);
                put_varint(b, extent.0);
                put_bytes(b, lo);
                REMOVE_REF
            }
            Edit::Persisted { subtable, lsn } => {
                put_varint(b, u64::from(subtable.0));
                put_varint(b, *lsn);
                PERSISTED
            }
            Edit::AddValue { subtable, value } => {
                put_varint(b, u64::from(subtable.0));
                let mut encoded = Vec::new();
                value.encode(&mut encoded);
                put_bytes(b, &encoded);
                ADD_VALUE
            }
            Edit::RemoveValue { subtable, id } => {
                put_varint(b, u64::from(subtable.0));
                put_varint(b, *id);
                REMOVE_VALUE
            }
            Edit::Stage { xid, front } => {
                put_bytes(b, xid);
                put_bytes(b, front);
                STAGE
            }
            Edit::StageExtent { xid, subtable, extent } => {
                put_bytes(b, xid);
                put_varint(b, u64::from(subtable.0));
                extent.encode(b);
                STAGE_EXTENT
            }
            Edit::StageValue { xid, subtable, value } => {
                put_bytes(b, xid);
                put_varint(b, u64::from(subtable.0));
                let mut encoded = Vec::new();
                value.encode(&mut encoded);
                put_bytes(b, &encoded);
                STAGE_VALUE
            }
            Edit::Unstage { xid } => {
                put_bytes(b, xid);
                UNSTAGE
            }
            Edit::Log(at) => {
                put_varint(b, u64::from(at.generation));
                put_varint(b, at.first_lsn);
                put_varint(b, at.durable_lsn);
                b.push(u8::from(at.clean));
                LOG
            }
            Edit::Memory(place) => {
                put_bytes(b, &place.path);
                b.push(place.mode.code());
                put_varint(b, place.bytes);
                put_varint(b, place.zone_bytes);
                put_varint(b, place.number.into());
                b.push(u8::from(place.has_log));
                let Known { opening, before } = place.known;
                if opening > 0 || before.is_some() {
                    put_varint(b, opening);
                }
                if let Some(before) = before {
                    put_varint(b, before);
                }
                MEMORY
            }
            Edit::NextIds(next) => {
                put_varint(b, next.extent);
                put_varint(b, u64::from(next.file));
                put_varint(b, u64::from(next.subtable));
                put_varint(b, next.value);
                put_varint(b, next.run);
                NEXT_IDS
            }
            Edit::CheckpointEnd => CHECKPOINT_END,
        };
        out.push(tag);
        put_bytes(out, &body);
    }

    /// Reads one edit.
    ///
    /// # Errors
    /// [`ErrorKind::NewerFormat`] for an unknown tag, [`ErrorKind::Corruption`] for a malformed body.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Edit> {
        let tag = reader.u8()?;
        let mut r = Reader::new(reader.prefixed(usize::MAX, "manifest edit")?);
        let edit = match tag {
            CREATE_SUBTABLE => Edit::CreateSubtable {
                id: subtable(&mut r)?,
                name: String::from_utf8(r.prefixed(MAX_NAME, "subtable name")?.to_vec())
                    .map_err(|_| Error::corruption("a subtable's name is not UTF-8"))?,
                options: r.prefixed(MAX_OPTIONS, "subtable options")?.to_vec(),
                lsn: r.varint()?,
            },
            SET_OPTIONS => Edit::SetOptions {
                id: subtable(&mut r)?,
                options: r.prefixed(MAX_OPTIONS, "subtable options")?.to_vec(),
            },
            DROP_SUBTABLE => Edit::DropSubtable { id: subtable(&mut r)?, lsn: r.varint()? },
            ADD_REF => {
                let (subtable, level, run) = (subtable(&mut r)?, r.u8()?, r.varint()?);
                let (lo, hi) = (bound(&mut r)?, bound(&mut r)?);
                let extent = ExtentMeta::decode(&mut r)?;
                let size = match (lo, hi) {
                    (None, None) => PartSize::whole(&extent),
                    _ => PartSize::decode(&mut r, &extent)?,
                };
                let lo = lo.map_or_else(|| extent.lo.clone(), <[u8]>::to_vec);
                let hi = hi.map_or_else(|| extent.hi.clone(), <[u8]>::to_vec);
                if lo == extent.lo && hi == extent.hi && size != PartSize::whole(&extent) {
                    return Err(Error::corruption(format!(
                        "a reference to the whole of extent {} has the size of a part",
                        extent.id
                    )));
                }
                Edit::AddRef { subtable, level, run, lo, hi, size, extent: Arc::new(extent) }
            }
            REMOVE_REF => Edit::RemoveRef {
                subtable: subtable(&mut r)?,
                level: r.u8()?,
                run: r.varint()?,
                extent: ExtentId(r.varint()?),
                lo: r.prefixed(MAX_BOUND, "bound")?.to_vec(),
            },
            PERSISTED => Edit::Persisted { subtable: subtable(&mut r)?, lsn: r.varint()? },
            ADD_VALUE => Edit::AddValue {
                subtable: subtable(&mut r)?,
                value: ValueRef::decode(r.prefixed(MAX_VALUE_REF, "value reference")?)?,
            },
            REMOVE_VALUE => Edit::RemoveValue { subtable: subtable(&mut r)?, id: r.varint()? },
            LOG => Edit::Log(LogPosition {
                generation: small(&mut r, "log generation")?,
                first_lsn: r.varint()?,
                durable_lsn: r.varint()?,
                clean: flag(&mut r)?,
            }),
            MEMORY => Edit::Memory(MemoryPlace {
                path: r.prefixed(MAX_PATH, "path of a persistent memory")?.to_vec(),
                mode: MemoryMode::of(r.u8()?)?,
                bytes: r.varint()?,
                zone_bytes: r.varint()?,
                number: small(&mut r, "number of a persistent memory")?,
                has_log: flag(&mut r)?,
                known: Known {
                    opening: if r.is_at_end() { 0 } else { r.varint()? },
                    before: if r.is_at_end() { None } else { Some(r.varint()?) },
                },
            }),
            NEXT_IDS => Edit::NextIds(NextIds {
                extent: r.varint()?,
                file: small(&mut r, "file number")?,
                subtable: small(&mut r, "subtable id")?,
                value: r.varint()?,
                run: r.varint()?,
            }),
            CHECKPOINT_END => Edit::CheckpointEnd,
            STAGE => Edit::Stage {
                xid: xid(&mut r)?,
                front: r.prefixed(MAX_FRONT, "front of a prepare")?.to_vec(),
            },
            STAGE_EXTENT => Edit::StageExtent {
                xid: xid(&mut r)?,
                subtable: subtable(&mut r)?,
                extent: Arc::new(ExtentMeta::decode(&mut r)?),
            },
            STAGE_VALUE => Edit::StageValue {
                xid: xid(&mut r)?,
                subtable: subtable(&mut r)?,
                value: ValueRef::decode(r.prefixed(MAX_VALUE_REF, "value reference")?)?,
            },
            UNSTAGE => Edit::Unstage { xid: xid(&mut r)? },
            other => {
                return Err(Error::new(
                    ErrorKind::NewerFormat,
                    format!("manifest edit {other} is not known to this version"),
                )
                .with_hint("open the database with the version that wrote it, or a later one"));
            }
        };
        r.finish("a manifest edit")?;
        Ok(edit)
    }
}

/// A bound is mostly the extent's own, which the meta repeats: then one byte stands for it.
fn put_bound(out: &mut Vec<u8>, bound: &[u8], extents: &[u8]) {
    if bound == extents {
        out.push(0);
    } else {
        out.push(1);
        put_bytes(out, bound);
    }
}

fn bound<'a>(r: &mut Reader<'a>) -> Result<Option<&'a [u8]>> {
    Ok(if flag(r)? { Some(r.prefixed(MAX_BOUND, "bound")?) } else { None })
}

fn flag(r: &mut Reader<'_>) -> Result<bool> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Error::corruption(format!("{other} is not a flag"))),
    }
}

fn small(r: &mut Reader<'_>, what: &str) -> Result<u32> {
    Ok(r.varint_max(u64::from(u32::MAX), what)? as u32)
}

fn xid(r: &mut Reader<'_>) -> Result<Vec<u8>> {
    Ok(r.prefixed(MAX_XID, "length of an xid")?.to_vec())
}

fn subtable(r: &mut Reader<'_>) -> Result<SubtableId> {
    Ok(SubtableId(small(r, "subtable id")?))
}
