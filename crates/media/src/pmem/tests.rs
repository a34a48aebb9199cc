//! What both machines promise of persistent memory.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::real::{RealMedia, RealOptions};
use crate::sim::SimMedia;

const LEN: usize = 16 * SECTOR;

/// A machine, and where its memory is to lie.
type Place = (Arc<dyn Media>, std::path::PathBuf);

/// A real machine and a simulated one, each with a directory; the first one's goes with the guard.
fn machines() -> (TempDir, [Place; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let real: Arc<dyn Media> = RealMedia::new(RealOptions::default()).unwrap();
    let sim: Arc<dyn Media> = SimMedia::new(1);
    sim.create_dir_all(Path::new("/db")).unwrap();
    let machines = [(real, dir.path().join("pm")), (sim, Path::new("/db/pm").to_owned())];
    (dir, machines)
}

#[test]
fn what_is_written_is_read_back_by_whoever_maps_it() {
    let (_dir, machines) = machines();
    for (media, path) in machines {
        create_pmem(&*media, &path, LEN, &[]).unwrap();
        let mut model = vec![0u8; LEN];
        for (round, mode) in [PmemMode::StandIn, PmemMode::PageCache].into_iter().enumerate() {
            let pm = media.map_pmem(&path, mode).unwrap();
            assert_eq!((pm.len(), pm.mode(), pm.path()), (LEN, mode, &*path));
            let mut read = vec![1; LEN];
            pm.load(0, &mut read).unwrap();
            assert!(read == model, "{mode:?}");
            // Lengths and places on both sides of words, lines and of where lines go around the caches.
            for (i, len) in [0usize, 1, 7, 8, 9, 63, 64, 65, 511, 512, 513, 575, 576, 1000, 4096, 5003]
                .into_iter()
                .enumerate()
            {
                for at in [0, 8, 56, 64, 72, 4096 + 8 * i, LEN - len.next_multiple_of(8)] {
                    let bytes: Vec<u8> = (0..len).map(|b| (b * 7 + at + i + round) as u8 | 1).collect();
                    pm.write(at, &bytes).unwrap();
                    pm.fence();
                    model[at..at + len].copy_from_slice(&bytes);
                    model[at + len..at + len.next_multiple_of(8)].fill(0);
                    pm.load(0, &mut read).unwrap();
                    assert!(read == model, "{len} bytes at {at}");
                }
            }
            pm.store_word(128, 0x0102_0304_0506_0708).unwrap();
            pm.flush(128, 8).unwrap();
            pm.fence();
            model[128..136].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
            assert_eq!(pm.load_word(128).unwrap(), 0x0102_0304_0506_0708);
            // SAFETY: the word lies within the memory, and this is the only thread.
            assert_eq!(unsafe { pm.base().add(128).read() }, 8);
        }
    }
}

#[test]
fn what_is_not_within_the_memory_is_refused_and_changes_nothing() {
    let (_dir, machines) = machines();
    for (media, path) in machines {
        create_pmem(&*media, &path, LEN, &[]).unwrap();
        let pm = media.map_pmem(&path, PmemMode::StandIn).unwrap();
        let all = [
            pm.write(LEN - 8, &[1; 9]),
            pm.write(4, &[1; 8]),
            pm.write(usize::MAX - 7, &[1; 8]),
            pm.store_word(LEN, 1),
            pm.store_word(12, 1),
            pm.load_word(LEN).map(drop),
            pm.load(8, &mut [0; LEN]),
            pm.flush(LEN - 8, 16),
        ];
        for refused in all {
            let e = refused.unwrap_err();
            assert_eq!((e.kind(), e.file()), (ErrorKind::InvalidArgument, Some(&*path)));
        }
        let mut read = vec![1; LEN];
        pm.load(0, &mut read).unwrap();
        assert!(read.iter().all(|b| *b == 0));
    }
}

#[test]
fn files_that_are_no_persistent_memory_are_told_from_missing_ones() {
    let (_dir, machines) = machines();
    for (media, path) in machines {
        let kind = |mode| media.map_pmem(&path, mode).map(drop).unwrap_err().kind();
        assert_eq!(kind(PmemMode::PageCache), ErrorKind::NotFound);
        for len in [0, 5000, LEN + 1] {
            assert_eq!(create_pmem(&*media, &path, len, &[]).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        media.open(&path, OpenMode { write: true, create_new: true, direct: false }).unwrap();
        assert_eq!(kind(PmemMode::PageCache), ErrorKind::Corruption);
        assert_eq!(create_pmem(&*media, &path, LEN, &[]).unwrap_err().kind(), ErrorKind::AlreadyExists);
        media.remove_file(&path).unwrap();
        // What an interrupted preparation left is in nobody's way.
        let mut unfinished = path.clone().into_os_string();
        unfinished.push(".new");
        media
            .open(Path::new(&unfinished), OpenMode { write: true, create_new: true, direct: false })
            .unwrap();
        create_pmem(&*media, &path, LEN, &[]).unwrap();
        assert_eq!(media.list(path.parent().unwrap()).unwrap().len(), 1);
    }
}

#[test]
fn what_lies_where_a_file_is_to_be_made_is_removed_only_if_it_was_left_there() {
    let (_dir, machines) = machines();
    for (media, path) in machines {
        let beside = |suffix: &str| PathBuf::from([path.as_os_str(), suffix.as_ref()].join("".as_ref()));
        let put = |name: &Path, bytes: &[u8]| {
            let file = media.open(name, OpenMode { write: true, create_new: true, direct: false }).unwrap();
            file.write_at(bytes, 0).unwrap();
        };
        let (new, small) = (beside(".new"), beside(".try"));
        let beginning = [7; 300];
        // Of other things, ...
        for (name, content) in
            [(&new, &[7, 7, 0, 8][..]), (&new, &[&[7; 4096][..], &[0; 8191], &[1]].concat()), (&small, &[1])]
        {
            put(name, content);
            let made = match name == &new {
                true => create_pmem(&*media, &path, LEN, &beginning),
                false => try_pmem(&*media, &path, PmemMode::StandIn),
            };
            let e = made.unwrap_err();
            assert_eq!((e.kind(), e.file()), (ErrorKind::AlreadyExists, Some(&**name)), "{e}");
            media.remove_file(name).unwrap();
        }
        // ... and what attempts left that were cut short.
        for content in [&[][..], &[0; 100], &[7; 300], &[&[7; 8][..], &[1; 100], &[0; 20_000]].concat()] {
            put(&new, content);
            put(&small, &[0; 10]);
            try_pmem(&*media, &path, PmemMode::StandIn).unwrap();
            create_pmem(&*media, &path, LEN, &beginning).unwrap();
            assert_eq!(media.list(path.parent().unwrap()).unwrap().len(), 1);
            media.remove_file(&path).unwrap();
        }
    }
}

#[test]
fn behind_a_memory_there_is_what_can_be_read() {
    let (_dir, machines) = machines();
    for (media, path) in machines {
        create_pmem(&*media, &path, LEN, &[]).unwrap();
        let pmem = media.map_pmem(&path, PmemMode::StandIn).unwrap();
        pmem.write(LEN - 8, &[1; 8]).unwrap();
        // SAFETY: that is what is shown.
        let [last, first, end] = [LEN - 1, LEN, LEN + READABLE_BEHIND - 1]
            .map(|at| unsafe { pmem.base().add(at).read_volatile() });
        assert_eq!((last, first, end), (1, 0, 0));
    }
}

#[test]
fn a_file_in_the_page_cache_is_refused_as_a_device_and_the_error_says_what_to_do() {
    let (_dir, [(media, path), _]) = machines();
    // It is told without making the file, ...
    let tried = try_pmem(&*media, &path, PmemMode::Dax);
    assert!(media.list(path.parent().unwrap()).unwrap().is_empty());
    create_pmem(&*media, &path, LEN, &[]).unwrap();
    // ... and of one that is there. Where temporary files lie on a device that is mapped directly there is nothing to refuse.
    let mapped = media.map_pmem(&path, PmemMode::Dax).map(drop);
    assert_eq!(tried.is_err(), mapped.is_err());
    for e in [tried, mapped].into_iter().filter_map(Result::err) {
        assert_eq!((e.kind(), e.file()), (ErrorKind::Unsupported, Some(&*path)));
        assert!(e.hint().unwrap().contains("PmemMode::PageCache"), "{e}");
    }
}

#[test]
fn whether_a_file_could_be_mapped_is_found_out_without_a_trace_and_fails_as_making_it_would() {
    let (_dir, machines) = machines();
    for (media, path) in machines {
        // A crash has left one of before.
        let mut left = path.clone().into_os_string();
        left.push(".try");
        media.open(Path::new(&left), OpenMode { write: true, create_new: true, direct: false }).unwrap();
        for mode in [PmemMode::StandIn, PmemMode::PageCache] {
            try_pmem(&*media, &path, mode).unwrap();
            assert!(media.list(path.parent().unwrap()).unwrap().is_empty());
        }
        let nowhere = path.with_file_name("missing").join("pm");
        let e = try_pmem(&*media, &nowhere, PmemMode::StandIn).unwrap_err();
        assert_eq!((e.kind(), e.file()), (ErrorKind::NotFound, Some(&*nowhere)));
    }
}

#[test]
fn what_stands_for_a_device_costs_what_the_machine_says_and_the_page_cache_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pm");
    let hour = Duration::from_secs(3600);
    // Reads take no time that a test would wait for, and writes are waited for by no one here.
    let cost = PmemCost { read: Duration::ZERO, read_next: Duration::ZERO, write: hour };
    let costly = RealMedia::with_pmem_cost(RealOptions::default(), Some(cost)).unwrap();
    let plain = RealMedia::new(RealOptions::default()).unwrap();
    create_pmem(&*plain, &path, LEN, &[]).unwrap();
    let is_costly = |media: &RealMedia, mode| media.map_pmem(&path, mode).unwrap().is_costly();
    assert!(is_costly(&costly, PmemMode::StandIn) && !is_costly(&costly, PmemMode::PageCache));
    assert!(!is_costly(&plain, PmemMode::StandIn));
}
