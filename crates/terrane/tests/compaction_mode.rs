//! Who executes compactions makes no difference to what a database holds: the processor, the processor twice, or a device
//! that fails in every way.

mod support;

use std::sync::Arc;

use support::*;
use terrane::media::sim::SimMedia;
use terrane::{CompactionMode, Options, Stats, Tuning};
use terrane_compaction::{CpuDevice, Device, Fault, FaultDevice};

#[test]
fn check_mode_merges_as_the_processor_does() {
    let media = SimMedia::new(7);
    let db = open(&media, &tiny().compaction_mode(CompactionMode::Check)).unwrap();
    let table = db.create_subtable("t", tiny_table()).unwrap();
    for round in 0..4u32 {
        for i in 0..500u32 {
            table.put(format!("k{i:04}").as_bytes(), format!("{round}-{i}").as_bytes()).unwrap();
        }
        table.delete_range(b"k0100", b"k0200").unwrap();
        table.flush().unwrap();
    }
    table.compact().unwrap();

    let stats = db.stats();
    assert!(stats.compact_written > 0, "nothing was merged");
    assert_eq!(stats.tasks_redone, 0);
    assert_eq!(table.get(b"k0099").unwrap().as_deref(), Some(&b"3-99"[..]));
    assert_eq!(table.get(b"k0100").unwrap(), None);
    assert_eq!(table.range(terrane::ReadOptions::new()).unwrap().count(), 400);
}

/// The ways to fail that a database must live with.
const FAULTS: [Fault; 8] = [
    Fault::WrongBytes,
    Fault::Truncated,
    Fault::Duplicated,
    Fault::Unsorted,
    Fault::StaleInput,
    Fault::TimedOut,
    Fault::Lost,
    Fault::Late,
];

/// Runs a history whose compactions are given to `device`; every key is compared with the model, before and after a
/// restart.
fn history(device: &Arc<FaultDevice<CpuDevice>>, mode: CompactionMode, seed: u64, rounds: usize) -> Stats {
    // Small tasks, so that there are many; and no flushes of a few records, as many large transactions bring.
    let tuning = Tuning { task_bytes: 4 << 10, transaction_bytes: 0, ..TUNING };
    let device = device.clone() as Arc<dyn Device>;
    let options = tiny().compaction_mode(mode).compaction_device(device).tuning(tuning);
    let (media, db) = fresh(seed, &options).unwrap();
    let (mut rng, mut model) = (Rng(seed), empty_model());
    for round in 0..rounds {
        for _ in 0..600 {
            let step = op(&mut rng, 400);
            // Dropping what was written would leave little to merge.
            if !matches!(step, Op::Recreate(_)) {
                run(&db, &media, &step).unwrap();
                apply(&mut model, &step);
            }
        }
        for t in 0..TABLES {
            run(&db, &media, &Op::Compact(t)).unwrap();
        }
        verify(&db, &model, &format!("round {round}"));
    }
    let stats = db.stats();
    assert_eq!(stats.trouble, None, "no device can make a compaction fail");
    db.close().unwrap();
    let db = open(&media, &Options::new().memtable_bytes(1 << 20)).unwrap();
    verify(&db, &model, "after a restart");
    stats
}

fn verify(db: &terrane::Db, model: &Model, when: &str) {
    assert_eq!(difference(&contents(db).unwrap(), model), None, "{when}");
    for (t, rows) in model.iter().enumerate() {
        let table = db.subtable(&name(t)).unwrap();
        for (k, v) in rows.iter().flatten() {
            assert_eq!(
                table.get(k).unwrap().as_ref(),
                Some(v),
                "{when}: t{t}, {:?}",
                String::from_utf8_lossy(k)
            );
        }
    }
    let report = db.check(|_| true).unwrap();
    assert!(report.is_clean(), "{when}: {:?}", report.damage);
}

fn each_fault(mode: CompactionMode) {
    for (n, fault) in FAULTS.into_iter().enumerate() {
        // One task that goes well, for stale input to be had; enough faults to take the device out, even if some outputs offer no place for
        // them; then it is well.
        let script = [None, Some(fault), Some(fault), Some(fault), Some(fault), Some(fault)];
        let device = Arc::new(FaultDevice::scripted(CpuDevice::new(1), script));
        let stats = history(&device, mode, 100 + n as u64, 6);
        let (injected, what) = (device.injected(), format!("{fault:?}, {mode:?}"));
        assert!(injected.iter().all(|f| *f == fault) && !injected.is_empty(), "{what}: {injected:?}");
        assert!(stats.tasks_redone >= injected.len() as u64, "{what}: {} redone", stats.tasks_redone);
        let d = &stats.compaction_devices[1];
        let failures = d.failed + d.timed_out + d.late + d.lost + d.invalid + d.mismatched;
        assert!(failures >= injected.len() as u64, "{what}: {d:?}");
        assert!(d.probes >= 1 && d.returns >= 1 && d.live, "{what}: it left rotation and came back: {d:?}");
        assert!(d.accepted > 1, "{what}: it was used again: {d:?}");
        assert_eq!(stats.compaction_devices.len(), 2);
    }
}

#[test]
fn a_device_that_fails_in_any_way_changes_nothing() {
    each_fault(CompactionMode::Cpu);
}

#[test]
fn a_device_that_fails_in_any_way_is_found_out_in_check_mode() {
    each_fault(CompactionMode::Check);
}

#[test]
fn a_device_that_fails_now_and_then_in_all_ways_changes_nothing() {
    for (seed, mode) in [(1, CompactionMode::Check), (2, CompactionMode::Check)] {
        let device = Arc::new(FaultDevice::seeded(CpuDevice::new(2), seed, 30));
        let stats = history(&device, mode, seed, 8);
        assert!(device.injected().len() > 10, "{:?}", device.injected());
        assert!(stats.tasks_redone > 0);
    }
}
