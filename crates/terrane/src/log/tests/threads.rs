//! Real threads: leaders store in parallel, in places taken in turn; one at a time orders; the ring is far too small.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use terrane_base::Lsn;
use terrane_format::batch::{EntryHeader, EntryKind, body_crc, entry_len};
use terrane_media::Media;
use terrane_media::real::{RealMedia, RealOptions};
use terrane_media::sim::SimMedia;

use super::super::{FIRST_LSN, Log, LogOptions, RecoverFrom};
use super::rig::{DIR, options};

const LEADERS: u64 = 4;

fn body(lsn: Lsn) -> Vec<u8> {
    (0..lsn / 8 % 2500).map(|i| (i ^ lsn) as u8).collect()
}

/// Stores and orders entries from several threads; some of them flush. Then reads all back.
fn stress(media: Arc<dyn Media>, options: LogOptions, rounds: u64) {
    let from = RecoverFrom { lsn: FIRST_LSN, durable: FIRST_LSN, generation: 0, clean: false };
    let recovered = Log::recover(&media, &options, from, &mut |_| Ok(())).unwrap();
    let log = Log::start(media.clone(), options.clone(), 1, recovered).unwrap();
    let reserved = Mutex::new(FIRST_LSN);
    let count = AtomicU64::new(0);
    std::thread::scope(|s| {
        for leader in 0..LEADERS {
            let (log, reserved, count) = (log.clone(), &reserved, &count);
            s.spawn(move || {
                for round in 0..rounds {
                    let _admission = log.admit(4096).unwrap();
                    let (lsn, body) = {
                        let mut next = reserved.lock().unwrap();
                        let lsn = *next;
                        let body = body(lsn);
                        *next += entry_len(body.len());
                        (lsn, body)
                    };
                    let header = EntryHeader {
                        kind: EntryKind::Batch,
                        body_len: body.len() as u32,
                        count: 1,
                        lsn,
                        generation: 1,
                        body_crc: body_crc(&[&body]),
                    };
                    log.write(lsn, &[&header.encode(), &body]).unwrap();
                    // In turn, as the commit room's orderer does.
                    while log.advanced_lsn() != lsn {
                        std::thread::yield_now();
                    }
                    log.advance(header.end());
                    count.fetch_add(1, Ordering::Relaxed);
                    if (round + leader) % 16 == 0 {
                        log.sync_to(header.end()).unwrap();
                        assert!(log.durable_lsn() >= header.end());
                    }
                    if (round + leader) % 32 == 0 {
                        let spared = log.durable_lsn().min(FIRST_LSN);
                        log.release_before(spared).unwrap();
                    }
                }
            });
        }
    });
    let end = log.advanced_lsn();
    drop(log);
    let mut next = FIRST_LSN;
    let from = RecoverFrom { generation: 1, ..from };
    let mut entries = 0;
    let recovered = Log::recover(&media, &options, from, &mut |piece| {
        for (header, bytes) in piece.entries() {
            entries += 1;
            assert_eq!(header.lsn, next);
            assert!(bytes? == body(header.lsn), "LSN {next}");
            next = header.end();
        }
        Ok(())
    })
    .unwrap();
    assert_eq!((recovered.end, entries), (end, count.into_inner()));
}

#[test]
fn parallel_leaders_on_a_small_ring_lose_nothing() {
    let media = SimMedia::with_threads(1, &RealOptions::default());
    media.create_dir_all(Path::new(DIR)).unwrap();
    stress(media.clone(), options(), 150);
    media.shutdown();
}

#[test]
fn parallel_leaders_on_the_real_machine_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let media = RealMedia::new(RealOptions::default()).unwrap();
    let options = LogOptions {
        segment_bytes: 256 << 10,
        tail_bytes: 64 << 10,
        drain_bytes: 16 << 10,
        ..LogOptions::new(dir.path(), [1; 16])
    };
    stress(media.clone(), options, 400);
    media.shutdown();
}
