//! Flipped bits: whatever the log gives back is right, and what was promised is there or is reported.

use std::path::Path;

use terrane_base::ErrorKind;
use terrane_media::Media;
use terrane_media::sim::{CrashKind, Image};

use super::rig::{Act, DIR, Rig, Told, recover_and_compare};

fn history() -> (Image, Told) {
    let mut rig = Rig::new(3).unwrap();
    for act in [
        Act::Append(50),
        Act::Sync,
        Act::Append(3000),
        Act::Append(3000),
        Act::Reopen,
        Act::Append(2900),
        Act::Sync,
        // These three share two sectors.
        Act::Append(20),
        Act::Sync,
        Act::Append(30),
        Act::Sync,
        Act::Append(40),
        Act::Sync,
        Act::Append(3000),
        Act::Append(10),
        Act::Sync,
        Act::Append(700),
        Act::Append(30),
    ] {
        rig.act(act).unwrap();
    }
    let told = rig.told.lock().unwrap().clone();
    (rig.media.image(), told)
}

/// Flips one bit here and there in every file, one machine each, after a crash of this kind; counts what was reported.
fn flip_everywhere(kind: CrashKind, told: &Told, image: &Image) -> usize {
    let promised = told.promised(kind);
    let files = image.crash(kind, 9).list(Path::new(DIR)).unwrap();
    assert!(files.len() >= 3, "{files:?}");
    let mut reported = 0;
    for file in files {
        // Every byte of the headers, and a stride that hits every sector elsewhere.
        let bytes = (0..256).chain((2048..2200).step_by(3)).chain((256..file.len).step_by(97));
        for byte in bytes {
            let media = image.crash(kind, 9);
            let path = Path::new(DIR).join(&file.name);
            media.flip_bit(&path, byte * 8 + byte % 8).unwrap();
            let context = (kind, &file.name, byte);
            match recover_and_compare(&media, told, promised, &context) {
                Ok(_) => {}
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Corruption, "{context:?}: {e}");
                    assert!(e.file().is_some(), "{context:?}: {e}");
                    reported += 1;
                }
            }
        }
    }
    reported
}

#[test]
fn a_flipped_bit_after_the_process_died_loses_nothing_silently() {
    let (image, told) = history();
    assert!(flip_everywhere(CrashKind::Process, &told, &image) > 50);
}

#[test]
fn a_flipped_bit_after_a_power_failure_loses_nothing_that_is_proved_durable() {
    let (image, mut told) = history();
    told.from.durable = told.synced;
    assert!(flip_everywhere(CrashKind::PowerKept, &told, &image) > 50);
}

#[test]
fn a_flipped_bit_in_what_was_written_again_loses_nothing() {
    // Two pairs of sectors. In the first one the third flush stands in the first sector; in the second, the last flush in the
    // second sector or in the first.
    for flushes in [5, 6] {
        let mut rig = Rig::new(4).unwrap();
        for _ in 0..flushes {
            rig.append(1000).unwrap();
            rig.sync().unwrap();
        }
        let told = rig.told.lock().unwrap().clone();
        let image = rig.media.image();
        let last = told.begun.last().unwrap().0;
        let (outdated, newest) = if flushes == 5 { ([2, 3], 4) } else { ([2, 4], 3) };
        let flipped = |sector: u64, at: u64| {
            let media = image.crash(CrashKind::PowerKept, 1);
            media.flip_bit(&Path::new(DIR).join("log-000001"), (sector * 4096 + at) * 8).unwrap();
            recover_and_compare(&media, &told, last, &(flushes, sector, at)).map(|r| r.end)
        };
        for at in [0, 9, 79, 100] {
            for sector in outdated {
                assert_eq!(
                    flipped(sector, at).unwrap(),
                    told.synced,
                    "{flushes}: sector {sector}, byte {at}"
                );
            }
            // Behind it is nothing that proves that it was there.
            assert_eq!(flipped(newest, at).unwrap(), last);
            // Flushed before the second pair was written, as that says.
            assert_eq!(flipped(1, at).unwrap_err().kind(), ErrorKind::Corruption);
        }
    }
}

#[test]
fn later_frames_prove_that_a_bad_one_is_damage() {
    let (image, mut told) = history();
    // Without the manifest's word, the frames behind the damage must do; the last synced one has nobody behind it.
    let last_synced = told.begun.iter().rev().nth(3).unwrap().0;
    told.synced = last_synced;
    assert!(flip_everywhere(CrashKind::PowerKept, &told, &image) > 20);
}

#[test]
fn a_segment_that_is_missing_is_reported() {
    let (image, told) = history();
    let media = image.crash(CrashKind::Process, 1);
    for file in media.list(Path::new(DIR)).unwrap() {
        let media = image.crash(CrashKind::Process, 1);
        media.remove_file(&Path::new(DIR).join(&file.name)).unwrap();
        if let Err(e) = recover_and_compare(&media, &told, told.synced, &file.name) {
            assert_eq!(e.kind(), ErrorKind::Corruption);
        }
    }
}

#[test]
fn a_segment_of_another_database_or_under_another_name_is_refused() {
    let mut rig = Rig::new(3).unwrap();
    rig.append(50).unwrap();
    rig.sync().unwrap();
    let told = rig.told.lock().unwrap().clone();
    let dir = Path::new(DIR);
    rig.media.rename(&dir.join("log-000001"), &dir.join("log-000099")).unwrap();
    let e = recover_and_compare(&rig.media, &told, 0, &()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert!(e.hint().is_some());
}
