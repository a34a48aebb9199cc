//! Space: segments go round, a full device turns writers away and lets them in again, limits are named.

use std::path::Path;

use terrane_base::ErrorKind;
use terrane_media::Media;
use terrane_media::sim::CrashKind;

use super::super::segment;
use super::rig::{Act, DIR, Rig, options, recover_and_compare};

#[test]
fn released_segments_are_used_again() {
    let mut rig = Rig::new(1).unwrap();
    for _ in 0..100 {
        rig.append(4000).unwrap();
        rig.act(Act::Release(2)).unwrap();
        rig.media.run_all();
    }
    let files = rig.media.list(Path::new(DIR)).unwrap();
    assert!(files.len() < 12, "{files:?}");
    let newest = files.iter().filter_map(|f| segment::parse_name(&f.name)).max();
    assert!(newest.is_some_and(|n| n < 12), "made again rather than used again: {files:?}");
    assert!(rig.log.live_bytes() < 3 * options().segment_bytes);
}

#[test]
fn opening_again_and_again_does_not_take_a_segment_each_time() {
    for first in [100, 4000] {
        let mut rig = Rig::new(1).unwrap();
        for _ in 0..10 {
            rig.append(first).unwrap();
        }
        for i in 0..40 {
            if i % 4 == 0 {
                rig.append(10).unwrap();
            }
            rig.act(Act::Reopen).unwrap();
            let live = rig.log.0.live.lock().len();
            assert!(live <= 7, "{live} segments after {i} openings");
        }
        let files = rig.media.list(Path::new(DIR)).unwrap();
        assert!(files.len() < 14, "{files:?}");
    }
}

#[test]
fn nothing_at_or_above_the_durable_lsn_is_let_go() {
    let mut rig = Rig::new(1).unwrap();
    for _ in 0..8 {
        rig.append(4000).unwrap();
    }
    rig.log.release_before(rig.log.advanced_lsn()).unwrap();
    let told = rig.told.lock().unwrap().clone();
    let media = rig.media.image().crash(CrashKind::Process, 1);
    recover_and_compare(&media, &told, told.advanced, &()).unwrap();
}

#[test]
fn on_a_full_device_writers_are_turned_away_and_those_let_in_can_be_synced() {
    let mut rig = Rig::new(2).unwrap();
    rig.media.set_capacity(Some(rig.media.used_bytes() + options().segment_bytes * 2));
    let refused = loop {
        if let Err(e) = rig.append(3000) {
            break e;
        }
        rig.sync().unwrap();
    };
    assert_eq!(refused.kind(), ErrorKind::OutOfSpace);
    assert!(!rig.log.is_poisoned());
    rig.sync().unwrap();
    assert_eq!(rig.append(10).unwrap_err().kind(), ErrorKind::OutOfSpace, "still full");
    assert_eq!(rig.log.durable_lsn(), rig.log.advanced_lsn());

    // Space that the log itself lets go of counts, too.
    rig.act(Act::Release(0)).unwrap();
    rig.append(3000).unwrap();
    rig.sync().unwrap();
    rig.media.set_capacity(None);
    for _ in 0..20 {
        rig.append(4000).unwrap();
        rig.sync().unwrap();
    }
}

#[test]
fn a_full_device_does_not_keep_the_log_from_being_read() {
    let mut rig = Rig::new(2).unwrap();
    rig.append(3000).unwrap();
    let told = rig.told.lock().unwrap().clone();
    let media = rig.media.image().crash(CrashKind::Process, 1);
    media.set_capacity(Some(media.used_bytes()));
    recover_and_compare(&media, &told, told.advanced, &()).unwrap();
}

#[test]
fn limits_are_checked_and_named() {
    let mut rig = Rig::new(1).unwrap();
    let most = rig.log.max_entry();
    rig.append(most as usize - 32).unwrap();
    let e = rig.log.admit(most + 1).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::LimitExceeded);
    assert!(e.message().contains(&most.to_string()), "{e}");
    assert!(rig.log.sync_to(rig.log.advanced_lsn() + 8).is_err());

    let mut bad = options();
    bad.segment_bytes += 1;
    assert_eq!(bad.check().unwrap_err().kind(), ErrorKind::InvalidArgument);
    bad = options();
    bad.tail_bytes = 4096;
    assert_eq!(bad.check().unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_closed_log_refuses_writers() {
    let mut rig = Rig::new(1).unwrap();
    rig.append(5).unwrap();
    rig.log.close().unwrap();
    assert_eq!(rig.log.durable_lsn(), rig.log.advanced_lsn());
    assert_eq!(rig.append(5).unwrap_err().kind(), ErrorKind::Closed);
    rig.log.close().unwrap();
}

#[test]
fn sizes_may_change_from_one_open_to_the_next() {
    use super::super::{Log, LogOptions};
    use std::sync::Arc;
    let mut rig = Rig::new(1).unwrap();
    let mut told;
    for (i, (segment, tail)) in [(32, 16), (16, 8), (64, 40), (24, 12)].into_iter().enumerate() {
        for _ in 0..4 {
            rig.append(2000).unwrap();
        }
        rig.media.run_all();
        told = rig.told.lock().unwrap().clone();
        let media: Arc<dyn Media> = rig.media.clone();
        let options =
            LogOptions { segment_bytes: segment << 10, tail_bytes: tail << 10, ..super::rig::options() };
        let recovered = recover_and_compare(&rig.media, &told, told.advanced, &i).unwrap();
        let generation = told.from.generation + 1;
        rig.told.lock().unwrap().from.generation = generation;
        let log = Log::start(media, options, generation, recovered).unwrap();
        rig = Rig { log, ..rig };
    }
    told = rig.told.lock().unwrap().clone();
    let media = rig.media.image().crash(CrashKind::PowerLost, 1);
    recover_and_compare(&media, &told, told.advanced, &"last").unwrap();
}

#[test]
fn small_flushes_share_two_sectors() {
    let mut rig = Rig::new(1).unwrap();
    // Five frames go into a segment.
    for _ in 0..20 {
        rig.append(20).unwrap();
        rig.sync().unwrap();
    }
    assert_eq!(rig.log.0.live.lock().len(), 1);
    let told = rig.told.lock().unwrap().clone();
    let media = rig.media.image().crash(CrashKind::PowerLost, 1);
    recover_and_compare(&media, &told, told.synced, &()).unwrap();
    // What does not fit any more goes on behind them, and so on.
    for _ in 0..6 {
        rig.append(2000).unwrap();
        rig.sync().unwrap();
    }
    assert_eq!(rig.log.0.live.lock().len(), 2);
}
