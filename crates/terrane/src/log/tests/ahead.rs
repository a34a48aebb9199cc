//! Reading back a log of many windows: frames and entries that windows and segments cut, reads ahead that fail, damage.

use std::path::Path;
use std::sync::Arc;

use terrane_base::{Error, ErrorKind, Lsn, Result};
use terrane_format::batch::{EntryHeader, EntryKind, body_crc};
use terrane_media::real::{RealMedia, RealOptions};
use terrane_media::sim::{Fault, FaultPlan, OpKind, SimMedia};
use terrane_media::{Media, OpenMode};

use super::super::plan::plan;
use super::super::stream::Stream;
use super::super::{FIRST_LSN, Log, LogOptions, RecoverFrom};

const FROM: RecoverFrom = RecoverFrom { lsn: FIRST_LSN, durable: FIRST_LSN, generation: 1, clean: false };

/// Several windows to a segment, and frames that do not divide them.
fn options(dir: &Path) -> LogOptions {
    LogOptions {
        segment_bytes: 5 << 20,
        tail_bytes: 2 << 20,
        drain_bytes: 200 << 10,
        ..LogOptions::new(dir, [7; 16])
    }
}

fn body(lsn: Lsn, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(lsn | 1) >> 5) as u8).collect()
}

/// Lengths of bodies, 12 MB together: small ones, and some that span frames.
fn lengths() -> impl Iterator<Item = usize> {
    (0..400).map(|i| match i % 8 {
        0 => 180_000,
        1 => 65_000 + i * 13,
        n => n * 100 + i,
    })
}

/// Fills a log, not flushed; the body whose turn is `damaged` is not what its header says.
fn fill(media: &Arc<dyn Media>, options: &LogOptions, damaged: Option<usize>) -> Log {
    let from = RecoverFrom { generation: 0, ..FROM };
    let recovered = Log::recover(media, options, from, &mut |_| Ok(())).unwrap();
    let log = Log::start(media.clone(), options.clone(), 1, recovered).unwrap();
    for (i, len) in lengths().enumerate() {
        let lsn = log.advanced_lsn();
        let mut bytes = body(lsn, len);
        let header = EntryHeader {
            kind: EntryKind::Batch,
            body_len: len as u32,
            count: 1,
            lsn,
            generation: 1,
            body_crc: body_crc(&[&bytes]),
        };
        if damaged == Some(i) {
            bytes[len / 2] ^= 1;
        }
        let _admission = log.admit(header.entry_len()).unwrap();
        log.write(lsn, &[&header.encode(), &bytes]).unwrap();
        log.advance(header.end());
    }
    log
}

/// Reads the log back; says how many entries came whole and right.
fn read(media: &Arc<dyn Media>, options: &LogOptions) -> (Result<Lsn>, usize) {
    let (mut next, mut count) = (FIRST_LSN, 0);
    let mut wanted = lengths();
    let recovered = Log::recover(media, options, FROM, &mut |piece| {
        for (header, bytes) in piece.entries() {
            assert_eq!(header.lsn, next);
            assert!(bytes? == body(next, wanted.next().unwrap()), "LSN {next}");
            (next, count) = (header.end(), count + 1);
        }
        Ok(())
    });
    (recovered.map(|r| r.end), count)
}

fn simulated() -> (Arc<SimMedia>, Arc<dyn Media>, LogOptions) {
    let sim = SimMedia::new(5);
    sim.create_dir_all(Path::new("/db")).unwrap();
    (sim.clone(), sim, options(Path::new("/db")))
}

/// A log whose process has gone.
fn left(damaged: Option<usize>) -> (Arc<SimMedia>, Arc<dyn Media>, LogOptions, Lsn) {
    let (sim, media, options) = simulated();
    let log = fill(&media, &options, damaged);
    let end = log.advanced_lsn();
    drop(log);
    sim.run_all();
    (sim, media, options, end)
}

#[test]
fn entries_come_whole_across_frames_windows_and_segments() {
    let (sim, media, options, end) = left(None);
    let (recovered, count) = read(&media, &options);
    assert_eq!((recovered.unwrap(), count), (end, lengths().count()));
    assert_eq!(sim.pending(), 0, "no task outlives the call");

    let dir = tempfile::tempdir().unwrap();
    let media: Arc<dyn Media> = RealMedia::new(RealOptions::default()).unwrap();
    let options = self::options(dir.path());
    drop(fill(&media, &options, None));
    let (recovered, count) = read(&media, &options);
    assert_eq!((recovered.unwrap(), count), (end, lengths().count()));
}

#[test]
fn a_read_ahead_that_fails_is_made_again_by_who_needs_it() {
    let (sim, media, options, end) = left(None);
    let files = media.list(Path::new("/db")).unwrap();
    // A look at each file comes first; its failure is an error.
    let looks = files.iter().filter(|f| f.name.starts_with("log-")).count() as u64;
    for fault in [Fault::Io, Fault::Short] {
        for call in looks.. {
            sim.set_fault(Some(FaultPlan::nth(call, fault).only(&[OpKind::Read]).files("log-")));
            let (recovered, count) = read(&media, &options);
            let hit = sim.faults_hit() > 0;
            sim.set_fault(None);
            assert_eq!((recovered.unwrap(), count), (end, lengths().count()), "{fault:?} at {call}");
            if !hit {
                assert!(call > looks + 10, "only {call} reads");
                break;
            }
        }
    }
}

#[test]
fn a_place_that_cannot_be_read_is_an_error_to_who_needs_it_alone() {
    let (sim, media, options, _) = left(None);
    let mut plan = plan(&*media, &options, &FROM).unwrap();
    assert!(plan.segments.len() > 2);
    let unreadable = plan.segments[1].file.path().to_owned();
    let name = unreadable.file_name().unwrap().to_str().unwrap();
    let fault = || Some(FaultPlan::nth(0, Fault::Io).sticky().only(&[OpKind::Read]).files(name));

    sim.set_fault(fault());
    let mut stream = Stream::new(&media, &plan.segments, FIRST_LSN);
    let e: Error = loop {
        match stream.next() {
            Ok(Some((lsn, bytes))) => {
                assert!(lsn + bytes.len() as u64 <= plan.segments[1].header.first_lsn);
            }
            Ok(None) => panic!("the stream ended"),
            Err(e) => break e,
        }
    };
    assert_eq!(stream.position(), plan.segments[1].header.first_lsn);
    assert_eq!((e.kind(), e.file(), e.offset()), (ErrorKind::Io, Some(&*unreadable), Some(4096)));
    drop(stream);
    assert_eq!(sim.pending(), 0, "no task outlives the stream");

    // The stream goes on elsewhere before it comes there.
    let limit = plan.segments[1].header.first_lsn - 1000;
    plan.segments[0].limit = limit;
    sim.set_fault(fault());
    let mut stream = Stream::new(&media, &plan.segments, FIRST_LSN);
    while stream.next().unwrap().is_some() {
        sim.run_all();
    }
    assert_eq!(stream.position(), limit);
    assert!(sim.faults_hit() > 0, "it was read ahead");
}

#[test]
fn a_damaged_body_in_a_good_frame_is_reported_with_its_place() {
    let damaged = 250;
    let (_, media, options, _) = left(Some(damaged));
    let mut seen = 0;
    let mut found = None;
    let recovered = Log::recover(&media, &options, FROM, &mut |piece| {
        for (_, body) in piece.entries() {
            match body {
                Ok(_) => seen += 1,
                Err(e) => found = Some((seen, e)),
            }
        }
        Ok(())
    });
    assert!(recovered.is_ok());
    let (at, e) = found.expect("damage");
    assert_eq!((at, seen), (damaged, lengths().count() - 1));
    assert_eq!(e.kind(), ErrorKind::Corruption);
    let len = media.open(e.file().expect("file"), OpenMode::READ).unwrap().len().unwrap();
    assert!(e.offset().is_some_and(|o| o <= len && o % 4096 == 0), "{e}");
}

#[test]
fn a_log_that_nobody_flushes_is_flushed_when_two_segments_wait() {
    let (sim, media, options) = simulated();
    let log = fill(&media, &options, None);
    sim.run_all();
    let (durable, written) = (log.durable_lsn(), log.advanced_lsn());
    assert!(durable > FIRST_LSN, "of {written}");
    assert!(written - durable < 2 * options.segment_bytes + options.tail_bytes as u64);
}
