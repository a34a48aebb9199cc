//! A process that has no file descriptor to spare. In a process of its own, for it takes them all.

#![allow(clippy::disallowed_methods, reason = "a test takes descriptors and moves directories")]

use std::fs::File;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use terrane_base::ErrorKind;
use terrane_media::Media;
use terrane_media::real::{RealMedia, RealOptions};

#[test]
fn names_of_a_directory_that_was_synced_before_are_still_made_durable() {
    let dir = tempfile::tempdir().unwrap();
    let (used, unused) = (dir.path().join("used"), dir.path().join("unused"));
    [&used, &unused].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let media = RealMedia::new(RealOptions::default()).unwrap();
    media.sync_dir(&used).unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), ..limit }).unwrap();
    let all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let refused = media.sync_dir(&unused);
    let synced = media.sync_dir(&used);
    drop(all);
    setrlimit(Resource::Nofile, limit).unwrap();
    synced.unwrap();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Io);
    media.sync_dir(&unused).unwrap();
    // Another one has its name, and the first one is gone.
    std::fs::remove_dir(&used).unwrap();
    assert_eq!(media.sync_dir(&used).unwrap_err().kind(), ErrorKind::NotFound);
    std::fs::rename(&unused, &used).unwrap();
    media.sync_dir(&used).unwrap();
}
