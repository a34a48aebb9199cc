//! Failing I/O calls: errors are typed, nothing acknowledged is lost, and a failed flush poisons.

use std::sync::{Arc, Mutex};

use terrane_base::ErrorKind;
use terrane_media::sim::{CrashKind, Fault, FaultPlan, OpKind};

use super::rig::{Act, Rig, recover_and_compare, short_history};

fn is_typed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Io | ErrorKind::OutOfSpace | ErrorKind::Poisoned)
}

#[test]
fn a_fault_at_any_call_of_a_short_history_loses_nothing_acknowledged() {
    for fault in [Fault::Io, Fault::Short, Fault::NoSpace] {
        for call in 0.. {
            let mut rig = Rig::new(4).unwrap();
            rig.media.set_fault(Some(FaultPlan::nth(call, fault)));
            for act in short_history() {
                if let Err(e) = rig.act(act) {
                    assert!(is_typed(e.kind()), "{fault:?} at call {call}, {act:?}: {e}");
                    if matches!(act, Act::Reopen) {
                        break;
                    }
                }
            }
            let hit = rig.media.faults_hit() > 0;
            rig.media.set_fault(None);
            let Rig { media, told, log, .. } = rig;
            drop(log);
            let mut told = told.lock().unwrap().clone();
            told.from.clean = false;
            let context = (fault, call);
            // The process goes away (or opens again); later the power fails.
            let rig = Rig::open(media, told.clone(), told.advanced, &context)
                .unwrap_or_else(|e| panic!("{context:?}: {e}"));
            let opened = rig.told.lock().unwrap().clone();
            let lost = rig.media.image().crash(CrashKind::PowerLost, call);
            recover_and_compare(&lost, &opened, opened.synced, &context)
                .unwrap_or_else(|e| panic!("{context:?}, after a power failure: {e}"));
            if !hit {
                assert!(call > 50, "the history has only {call} calls");
                break;
            }
        }
    }
}

#[test]
fn a_fault_at_any_call_of_recovery_is_an_error_and_the_next_try_succeeds() {
    let mut rig = Rig::new(6).unwrap();
    for act in [Act::Append(50), Act::Sync, Act::Append(3000), Act::Append(3000), Act::Step, Act::Append(9)] {
        rig.act(act).unwrap();
    }
    let told = rig.told.lock().unwrap().clone();
    let image = rig.media.image();
    for fault in [Fault::Io, Fault::Short, Fault::NoSpace] {
        for call in 0.. {
            let media = image.crash(CrashKind::Process, 0);
            media.set_fault(Some(FaultPlan::nth(call, fault)));
            let shared = Arc::new(Mutex::new(told.clone()));
            let first = Rig::open_told(media.clone(), shared.clone(), told.advanced, &call);
            let hit = media.faults_hit() > 0;
            media.set_fault(None);
            if let Err(e) = first {
                assert!(is_typed(e.kind()), "{fault:?} at call {call}: {e}");
                let again = Rig::open_told(media, shared, told.advanced, &call);
                assert!(again.is_ok(), "{fault:?} at call {call}, then: {:?}", again.err());
            }
            if !hit {
                assert!(call > 10, "recovery makes only {call} calls");
                break;
            }
        }
    }
}

#[test]
fn a_failed_flush_poisons_until_the_log_is_opened_again() {
    let mut rig = Rig::new(7).unwrap();
    rig.append(100).unwrap();
    rig.sync().unwrap();
    rig.append(200).unwrap();
    rig.media.set_fault(Some(FaultPlan::nth(0, Fault::Io).only(&[OpKind::Sync]).files("log-")));
    assert_eq!(rig.sync().unwrap_err().kind(), ErrorKind::Io);
    rig.media.set_fault(None);
    assert!(rig.log.is_poisoned());
    let before = rig.log.durable_lsn();
    assert_eq!(rig.sync().unwrap_err().kind(), ErrorKind::Poisoned);
    let refused = rig.append(10).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Poisoned);
    assert!(refused.message().contains("injected"), "names the cause: {refused}");
    assert_eq!(rig.log.durable_lsn(), before);
    assert_eq!(rig.log.close().unwrap_err().kind(), ErrorKind::Poisoned);

    let told = rig.told.lock().unwrap().clone();
    let mut rig = Rig::open(rig.media.clone(), told.clone(), told.advanced, &"poisoned").unwrap();
    rig.append(10).unwrap();
    rig.sync().unwrap();
}

#[test]
fn values_that_cannot_be_flushed_keep_the_records_that_refer_to_them_out_of_the_segments() {
    use super::super::{Log, LogOptions, RecoverFrom};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use terrane_base::Error;

    let rig = Rig::new(8).unwrap();
    rig.media.run_all();
    let from = RecoverFrom { ..rig.told.lock().unwrap().from };
    let media: Arc<dyn terrane_media::Media> = rig.media.clone();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let before_write = Arc::new(move || match counted.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(()),
        _ => Err(Error::new(ErrorKind::Io, "the values were not flushed")),
    });
    let options = LogOptions { before_write, ..super::rig::options() };
    let recovered = Log::recover(&media, &options, from, &mut |_| Ok(())).unwrap();
    rig.told.lock().unwrap().from.generation = 9;
    let log = Log::start(media, options, 9, recovered).unwrap();
    let mut rig = Rig { log, ..rig };
    rig.append(10).unwrap();
    rig.sync().unwrap();
    rig.append(10).unwrap();
    let written = rig.log.0.drained.written.load(Ordering::Relaxed);
    assert!(rig.sync().is_err());
    assert_eq!(rig.log.0.drained.written.load(Ordering::Relaxed), written);
    assert!(rig.log.is_poisoned());
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}
