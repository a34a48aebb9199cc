//! Compression of stored blocks.

use std::cell::RefCell;
use std::fmt;

use terrane_base::{Error, ErrorKind, Result};
use zstd::bulk;
use zstd::zstd_safe;

/// How a block is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Compression {
    /// As it is.
    None = 0,
    /// As one Zstandard frame that names its content size. (2 is reserved for LZ4.)
    Zstd = 1,
}

impl Compression {
    /// Decodes the stored byte.
    ///
    /// # Errors
    /// [`ErrorKind::NewerFormat`] for a byte that this version does not know.
    pub fn from_u8(byte: u8) -> Result<Self> {
        match byte {
            0 => Ok(Compression::None),
            1 => Ok(Compression::Zstd),
            other => Err(Error::new(
                ErrorKind::NewerFormat,
                format!("compression {other} is not known to this version"),
            )),
        }
    }
}

/// A reusable compression context.
pub struct Compressor(Option<bulk::Compressor<'static>>);

impl Compressor {
    /// A context for `compression` at `level` (Zstandard's levels; out of range is clamped).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the context cannot be made, for want of memory.
    pub fn new(compression: Compression, level: i32) -> Result<Self> {
        match compression {
            Compression::None => Ok(Compressor(None)),
            Compression::Zstd => {
                let range = zstd::compression_level_range();
                let level = level.clamp(*range.start(), *range.end());
                Ok(Compressor(Some(bulk::Compressor::new(level).map_err(no_context)?)))
            }
        }
    }

    /// The compressed form, or `None` where it would not save an eighth: then the block is stored raw.
    pub fn compress(&mut self, raw: &[u8]) -> Option<Vec<u8>> {
        let context = self.0.as_mut()?;
        // Whatever does not fit into seven eighths is not wanted, so the compressor may give up there.
        let mut stored = vec![0; raw.len() - raw.len() / 8];
        let len = context.compress_to_buffer(raw, stored.as_mut_slice()).ok()?;
        stored.truncate(len);
        Some(stored)
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Compressor(zstd)" } else { "Compressor(none)" })
    }
}

/// The raw block from its stored form. Allocates `raw_len` bytes, and those only where the stored form announces the
/// same length.
///
/// # Errors
/// [`ErrorKind::Corruption`] unless exactly `raw_len` bytes come out.
pub fn decompress(compression: Compression, stored: &[u8], raw_len: usize) -> Result<Vec<u8>> {
    thread_local! {
        static CONTEXT: RefCell<Option<bulk::Decompressor<'static>>> = const { RefCell::new(None) };
    }
    match compression {
        Compression::None => {
            if stored.len() != raw_len {
                return Err(wrong_length());
            }
            Ok(stored.to_vec())
        }
        Compression::Zstd => {
            if !matches!(zstd_safe::get_frame_content_size(stored), Ok(Some(n)) if n == raw_len as u64) {
                return Err(wrong_length());
            }
            let raw = CONTEXT.with_borrow_mut(|slot| {
                let context = match slot {
                    Some(context) => context,
                    None => slot.insert(bulk::Decompressor::new().map_err(no_context)?),
                };
                context
                    .decompress(stored, raw_len)
                    .map_err(|e| Error::corruption(format!("compressed block does not decompress: {e}")))
            })?;
            if raw.len() != raw_len {
                return Err(wrong_length());
            }
            Ok(raw)
        }
    }
}

#[cold]
fn no_context(e: std::io::Error) -> Error {
    Error::new(ErrorKind::Unsupported, format!("no zstd context: {e}"))
}

#[cold]
fn wrong_length() -> Error {
    Error::corruption("stored block does not have the length that its index entry says")
}
