//! Subtable options to and from their persisted form.

use terrane_format::options::{IndexChoice, SubtableOptionsRecord};

use crate::options::{Compression, IndexKind, SubtableOptions};

pub(crate) fn to_record(o: &SubtableOptions) -> SubtableOptionsRecord {
    let (compression, zstd_level) = match o.compression {
        Compression::None => (terrane_format::block::Compression::None, 0),
        Compression::Zstd(level) => (terrane_format::block::Compression::Zstd, level),
    };
    SubtableOptionsRecord {
        block_bytes: o.block_bytes as u32,
        compression,
        zstd_level,
        filter_bits: o.filter_bits as u32,
        value_threshold: o.value_threshold as u32,
        index: match o.index {
            IndexKind::Art => IndexChoice::Art,
            IndexKind::Skiplist => IndexChoice::Skiplist,
        },
        directory: o.directory,
        ..SubtableOptionsRecord::default()
    }
}

pub(crate) fn from_record(r: &SubtableOptionsRecord) -> SubtableOptions {
    SubtableOptions {
        block_bytes: r.block_bytes as usize,
        compression: match r.compression {
            terrane_format::block::Compression::None => Compression::None,
            terrane_format::block::Compression::Zstd => Compression::Zstd(r.zstd_level),
        },
        filter_bits: r.filter_bits as usize,
        value_threshold: r.value_threshold as usize,
        index: match r.index {
            IndexChoice::Art => IndexKind::Art,
            IndexChoice::Skiplist => IndexKind::Skiplist,
        },
        directory: r.directory,
    }
}
