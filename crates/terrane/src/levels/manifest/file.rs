//! One manifest file: written as a checkpoint and a tail of groups, read back group by group.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_base::{Error, Result};
use terrane_format::manifest::{
    Edit, Frame, ManifestHeader, PAGE, encode_group, encode_seal, frame_span, read_frame,
};
use terrane_format::superblock::Superblock;
use terrane_media::{AlignedBuf, File, Media, OpenMode};

use crate::levels::Poison;
use crate::levels::state::DbState;

/// The file is prewritten with zeros by multiples of this, so that a flush carries no metadata.
const PREWRITE: u64 = 256 << 10;
/// A group of a checkpoint closes at this many edits, and before it would have more than this many bytes: bounds of parts
/// may be long.
const CHECKPOINT_EDITS: usize = 1024;
pub(super) const CHECKPOINT_BYTES: usize = 1 << 20;
/// Bytes of a checkpoint that are written in one go.
const WRITE_BYTES: usize = 1 << 20;

/// A manifest file open for appending.
#[derive(Debug)]
pub(super) struct ManifestFile {
    file: Arc<dyn File>,
    salt: u64,
    next_group: u64,
    /// Where the next frame goes.
    end: u64,
    /// The file is prewritten up to here.
    written: u64,
}

impl ManifestFile {
    /// Writes a file that says `state`; content durable on return, its name not.
    pub(super) fn create(
        media: &dyn Media,
        path: &Path,
        superblock: &Superblock,
        state: &DbState,
        poison: &Poison,
    ) -> Result<Self> {
        if media.exists(path)? {
            // Left by a crash before a superblock named it.
            media.remove_file(path)?;
        }
        let salt = media.entropy();
        let header = ManifestHeader { uuid: superblock.uuid, number: superblock.manifest, salt };
        let file = media.open(path, OpenMode::CREATE_DIRECT)?;
        let mut this = ManifestFile { file, salt, next_group: 0, end: 0, written: 0 };
        let mut buf = AlignedBuf::with_capacity(WRITE_BYTES);
        buf.extend_from_slice(&header.encode());
        for group in groups(state.to_edits().chain([Edit::CheckpointEnd])) {
            buf.extend_from_slice(&encode_group(salt, this.next_group, &group)?);
            this.next_group += 1;
            if buf.len() >= WRITE_BYTES {
                this.put(&mut buf)?;
            }
        }
        this.put(&mut buf)?;
        this.written = this.end;
        this.prewrite(this.end + PREWRITE)?;
        this.file.sync().map_err(|e| poison.set(&e))?;
        Ok(this)
    }

    fn put(&mut self, buf: &mut AlignedBuf) -> Result<()> {
        if !buf.is_empty() {
            self.file.write_at(buf, self.end)?;
            self.end += buf.len() as u64;
            buf.clear();
        }
        Ok(())
    }

    /// Writes zeros up to at least `to`.
    fn prewrite(&mut self, to: u64) -> Result<()> {
        let to = to.next_multiple_of(PREWRITE);
        let zeros = AlignedBuf::zeroed((to - self.written) as usize);
        self.file.write_at(&zeros, self.written)?;
        self.written = to;
        Ok(())
    }

    /// Bytes of header and frames.
    pub(super) fn bytes(&self) -> u64 {
        self.end
    }

    /// Appends a group; durable on return. After an error the group has not happened, unless the poison is set.
    pub(super) fn append(&mut self, edits: &[Edit], poison: &Poison) -> Result<()> {
        let frame = AlignedBuf::copy_of(&encode_group(self.salt, self.next_group, edits)?);
        let behind = self.end + frame.len() as u64;
        if behind + PAGE as u64 > self.written {
            self.prewrite(behind + PAGE as u64)?;
            self.file.sync().map_err(|e| poison.set(&e))?;
        }
        if let Err(e) = self.file.write_at(&frame, self.end) {
            let zeros = AlignedBuf::zeroed(frame.len());
            let voided = self.file.write_at(&zeros, self.end).and_then(|()| self.file.sync());
            return Err(if voided.is_ok() { e } else { poison.set(&e) });
        }
        self.file.sync().map_err(|e| poison.set(&e))?;
        self.end = behind;
        self.next_group += 1;
        // The group is durable whether or not the seal comes to be, and the next one overwrites whatever is there.
        let seal = AlignedBuf::copy_of(&encode_seal(self.salt, self.next_group));
        let _ = self.file.write_at(&seal, self.end);
        Ok(())
    }
}

/// Cuts the edits of a checkpoint into groups.
fn groups(edits: impl Iterator<Item = Edit>) -> impl Iterator<Item = Vec<Edit>> {
    let mut edits = edits.peekable();
    let mut encoded = Vec::new();
    let mut size = move |edit: &Edit| {
        encoded.clear();
        edit.encode(&mut encoded);
        encoded.len()
    };
    std::iter::from_fn(move || {
        let mut group = vec![edits.next()?];
        let mut bytes = size(&group[0]);
        while group.len() < CHECKPOINT_EDITS
            && let Some(edit) = edits.next_if(|e| {
                bytes += size(e);
                bytes <= CHECKPOINT_BYTES
            })
        {
            group.push(edit);
        }
        Some(group)
    })
}

/// Reads a manifest file group by group.
pub(super) struct ManifestReader {
    file: Arc<dyn File>,
    path: PathBuf,
    salt: u64,
    len: u64,
    next_group: u64,
    at: u64,
    buf: AlignedBuf,
}

impl ManifestReader {
    /// Opens the file and checks that it is the one that `superblock` means.
    pub(super) fn open(media: &dyn Media, path: &Path, superblock: &Superblock) -> Result<Self> {
        let file = media.open(path, OpenMode::DIRECT).map_err(|e| match e.kind() {
            terrane_base::ErrorKind::NotFound => {
                Error::corruption("the manifest that the superblock names is missing").with_file(path)
            }
            _ => e,
        })?;
        let len = file.len()? / PAGE as u64 * PAGE as u64;
        let mut buf = AlignedBuf::zeroed(PAGE);
        file.read_at(&mut buf, 0)?;
        let header = ManifestHeader::decode(&buf).map_err(|e| e.with_file(path))?;
        if header.uuid != superblock.uuid || header.number != superblock.manifest {
            return Err(
                Error::corruption("the manifest is not the one that the superblock names").with_file(path)
            );
        }
        Ok(ManifestReader {
            file,
            path: path.to_owned(),
            salt: header.salt,
            len,
            next_group: 0,
            at: PAGE as u64,
            buf,
        })
    }

    /// The edits of the next group; `None` at the end. The outer error is one of the file, the inner one of the edits.
    ///
    /// # Errors
    /// Corruption if there is no whole group here, but the proof that there was.
    pub(super) fn next_group(&mut self) -> Result<Option<Result<Vec<Edit>>>> {
        let (at, wanted) = (self.at, self.next_group);
        let out_of_order = |number| {
            Error::corruption(format!("edit group {wanted} is missing, {number} follows")).with_offset(at)
        };
        let found = match self.frame(at)? {
            None => return self.check_end().map(|()| None),
            Some(Frame::Seal { number }) if number == wanted => return Ok(None),
            Some(Frame::Group { number, edits, len }) if number == wanted => (edits.decode(), len as u64),
            Some(Frame::Seal { number } | Frame::Group { number, .. }) => {
                return Err(out_of_order(number).with_file(&self.path));
            }
        };
        self.next_group += 1;
        self.at += found.1;
        Ok(Some(found.0.map_err(|e| e.with_offset(at))))
    }

    /// The frame at `at`, if a whole one is there.
    fn frame(&mut self, at: u64) -> Result<Option<Frame<'_>>> {
        if at + PAGE as u64 > self.len {
            return Ok(None);
        }
        self.buf.resize(PAGE);
        self.file.read_at(&mut self.buf, at)?;
        let Some(span) = frame_span(&self.buf) else { return Ok(None) };
        if at + span as u64 > self.len {
            return Ok(None);
        }
        if span > PAGE {
            self.buf.resize(span);
            self.file.read_at(&mut self.buf, at)?;
        }
        read_frame(self.salt, &self.buf).map_err(|e| e.with_file(&self.path).with_offset(at))
    }

    /// The log ends at a bad frame unless a later one proves that something durable stood here.
    fn check_end(&mut self) -> Result<()> {
        let bad = self.at;
        let mut at = bad + PAGE as u64;
        while at < self.len {
            if self.frame(at)?.is_some() {
                return Err(Error::corruption(
                    "an edit group is damaged, and a later frame proves that it was durable",
                )
                .with_file(&self.path)
                .with_offset(bad));
            }
            at += PAGE as u64;
        }
        Ok(())
    }
}
