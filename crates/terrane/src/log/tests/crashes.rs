//! Crashes at every I/O call, in every kind, and again while recovering.

use terrane_media::sim::CrashKind;

use super::super::FIRST_LSN;
use super::rig::{Act, Point, Rig, random_history, recover_and_compare, short_history, watch};

/// Runs a history on a new machine; a crash point for each I/O call in it.
fn points_of(history: &[Act], seed: u64) -> Vec<Point> {
    let mut rig = Rig::new(seed).unwrap();
    let points = watch(&rig.media, &rig.told);
    for act in history {
        rig.act(*act).unwrap_or_else(|e| panic!("seed {seed}, {act:?}: {e}"));
    }
    // The hook owns what it collects into, so that must not own the machine.
    rig.media.on_op(None);
    std::mem::take(&mut *points.lock().unwrap())
}

/// Crashes at a point, opens, and checks that what was recovered is durable then and that the log goes on.
fn crash_open_go_on(point: &Point, kind: CrashKind, seed: u64) {
    let (image, told) = point;
    let context = format!("{kind:?}, seed {seed}, at {told:?}");
    let context = &context.get(..context.len().min(400)).unwrap_or(&context);
    let media = image.crash(kind, seed);
    let mut rig = Rig::open(media, told.clone(), told.promised(kind), context)
        .unwrap_or_else(|e| panic!("{context}: {e}"));
    // Once opened, everything survives a power failure.
    let opened = rig.told.lock().unwrap().clone();
    let lost = rig.media.image().crash(CrashKind::PowerLost, seed);
    recover_and_compare(&lost, &opened, opened.synced, context).unwrap_or_else(|e| panic!("{context}: {e}"));

    let go_on = [Act::Append(3000), Act::Append(20), Act::Sync, Act::Append(2000)];
    go_on.into_iter().for_each(|act| rig.act(act).unwrap());
    let after = rig.told.lock().unwrap().clone();
    for kind in [CrashKind::Process, CrashKind::PowerLost] {
        let media = rig.media.image().crash(kind, seed);
        recover_and_compare(&media, &after, after.promised(kind), context)
            .unwrap_or_else(|e| panic!("{context}: {e}"));
    }
}

#[test]
fn a_crash_at_any_call_of_a_short_history_keeps_every_promise() {
    for (i, point) in points_of(&short_history(), 1).iter().enumerate() {
        for kind in CrashKind::ALL {
            let seeds = if kind == CrashKind::PowerTorn { 4 } else { 1 };
            (0..seeds).for_each(|s| crash_open_go_on(point, kind, i as u64 * 8 + s));
        }
    }
}

#[test]
fn a_crash_in_a_random_history_keeps_every_promise() {
    for seed in 0..12 {
        let points = points_of(&random_history(seed, 40), seed);
        for (i, point) in points.iter().enumerate().skip(seed as usize % 7).step_by(7) {
            let kind = CrashKind::ALL[(i / 7) % CrashKind::ALL.len()];
            crash_open_go_on(point, kind, seed << 32 | i as u64);
        }
    }
}

fn is_power(kind: CrashKind) -> bool {
    !matches!(kind, CrashKind::Process | CrashKind::ProcessTorn)
}

/// Crashes at a point and opens; while that goes on crashes again at every `stride`-th call, and so on, `depth` times.
/// After the last, what was opened must survive whatever comes.
fn crash_while_opening(point: &Point, kinds: &[CrashKind], stride: usize, seed: u64) -> usize {
    let (image, told) = point;
    let [kind, later @ ..] = kinds else { return 0 };
    let media = image.crash(*kind, seed);
    let mut told = told.clone();
    if is_power(*kind) {
        // From here on, no more is promised even to those whose process alone dies.
        told.advanced = told.synced;
    }
    let promised = told.advanced;
    let told = std::sync::Arc::new(std::sync::Mutex::new(told));
    let points = watch(&media, &told);
    let rig = Rig::open_told(media, told, promised, &(kinds, seed))
        .unwrap_or_else(|e| panic!("{kinds:?}, seed {seed}: {e}"));
    rig.media.on_op(None);
    let opened = rig.told.lock().unwrap().clone();
    let lost = rig.media.image().crash(CrashKind::PowerTorn, seed);
    recover_and_compare(&lost, &opened, opened.synced, &(kinds, seed))
        .unwrap_or_else(|e| panic!("{kinds:?}, seed {seed}: {e}"));
    let points = std::mem::take(&mut *points.lock().unwrap());
    let again = points.iter().enumerate().skip(seed as usize % stride).step_by(stride);
    1 + again.map(|(i, p)| crash_while_opening(p, later, stride, seed * 31 + i as u64)).sum::<usize>()
}

#[test]
fn a_second_crash_at_any_call_of_recovery_keeps_what_the_first_left() {
    let points = points_of(&short_history(), 2);
    for (i, point) in points.iter().enumerate().skip(3).step_by(23) {
        for first in CrashKind::ALL {
            for second in CrashKind::ALL {
                crash_while_opening(point, &[first, second], 1, i as u64);
            }
        }
    }
}

#[test]
fn a_third_crash_while_recovering_from_the_second_keeps_what_was_left() {
    // Above all: recovery must not build upon what an earlier one wrote and never flushed.
    let points = points_of(&short_history(), 3);
    let mut openings = 0;
    for (i, point) in points.iter().enumerate().skip(8).step_by(43) {
        for first in [CrashKind::Process, CrashKind::PowerKept] {
            for second in [CrashKind::Process, CrashKind::ProcessTorn] {
                for third in [CrashKind::PowerLost, CrashKind::PowerTorn] {
                    openings += crash_while_opening(point, &[first, second, third], 1, i as u64);
                }
            }
        }
    }
    assert!(openings > 500, "{openings}");
}

#[test]
fn what_was_never_synced_is_lost_from_the_end_only() {
    // A prefix is also what `recover_and_compare` checks; here, that power failures do lose something, and processes
    // nothing, so that the tests above mean something.
    let mut rig = Rig::new(5).unwrap();
    for _ in 0..2 {
        rig.append(100).unwrap();
        rig.append(3000).unwrap();
    }
    let told = rig.told.lock().unwrap().clone();
    let end_after = |kind| {
        let media = rig.media.image().crash(kind, 1);
        recover_and_compare(&media, &told, told.promised(kind), &kind).unwrap()
    };
    assert_eq!(end_after(CrashKind::Process).end, told.advanced);
    let kept = end_after(CrashKind::PowerKept).end;
    assert_eq!(kept, FIRST_LSN, "the ring of another boot is not trusted, even if it survived");
}

#[test]
fn a_flush_that_nobody_asked_for_ends_with_an_entry() {
    let mut rig = Rig::new(3).unwrap();
    let mut flushed = rig.log.durable_lsn();
    for len in (0..40).map(|i| 1500 + 64 * i) {
        rig.append(len).unwrap();
        rig.media.run_all();
        let durable = rig.log.durable_lsn();
        if durable == flushed {
            continue;
        }
        flushed = durable;
        // The manifest hears of it with whatever is next written there; then the power fails.
        let mut told = rig.told.lock().unwrap().clone();
        (told.from.durable, told.synced) = (durable, durable);
        let lost = rig.media.image().crash(CrashKind::PowerLost, 1);
        Rig::open(lost, told, durable, &len).unwrap();
    }
    assert!(flushed > FIRST_LSN, "nothing was flushed");
}
