//! What the simulated machine promises to those who test against it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::{AlignedBuf, File, Media, OpenMode};

mod crashes;
mod faults;
mod files;
mod histories;
mod pmem;
mod tasks;

/// Seeds that a test looks at when something "may" happen: enough that a fate of a few percent shows.
const SEEDS: std::ops::Range<u64> = 0..200;

const BUFFERED: OpenMode = OpenMode { write: true, create_new: false, direct: false };
const CREATE: OpenMode = OpenMode { write: true, create_new: true, direct: false };

/// A machine with a durable directory `/db`.
fn machine(seed: u64) -> Arc<SimMedia> {
    let m = SimMedia::new(seed);
    m.create_dir_all(Path::new("/db")).unwrap();
    m.sync_dir(Path::new("/")).unwrap();
    m
}

fn path(name: &str) -> PathBuf {
    Path::new("/db").join(name)
}

/// Creates a file with this content; nothing is synced.
fn create(m: &SimMedia, name: &str, content: &[u8]) -> Arc<dyn File> {
    let f = m.open(&path(name), CREATE).unwrap();
    f.write_at(content, 0).unwrap();
    f
}

/// Creates a file with this content, durably.
fn create_durably(m: &SimMedia, name: &str, content: &[u8]) -> Arc<dyn File> {
    let f = create(m, name, content);
    f.sync().unwrap();
    m.sync_dir(Path::new("/db")).unwrap();
    f
}

fn content(m: &SimMedia, name: &str) -> Option<Vec<u8>> {
    let f = m.open(&path(name), OpenMode::READ).ok()?;
    let mut buf = vec![0; f.len().unwrap() as usize];
    f.read_at(&mut buf, 0).unwrap();
    Some(buf)
}

/// Every file in `/db` with its content.
fn contents(m: &SimMedia) -> BTreeMap<String, Vec<u8>> {
    let names = m.list(Path::new("/db")).unwrap_or_default();
    names.into_iter().map(|e| (e.name.clone(), content(m, &e.name).unwrap())).collect()
}

/// Takes an image at each announced call.
fn record(m: &SimMedia) -> Arc<Mutex<Vec<(OpKind, Image)>>> {
    let images = Arc::new(Mutex::new(Vec::new()));
    let into = images.clone();
    m.on_op(Some(Arc::new(move |m: &SimMedia, op: &OpInfo<'_>| into.lock().push((op.kind, m.image())))));
    images
}
