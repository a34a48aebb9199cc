//! Each fault takes effect, and what finds it: verification, or only the comparison of check mode.

use super::*;
use crate::testing::rich_task;
use crate::{CpuDevice, compare, merge, verify};

/// The answer to a rich task under `fault`, after a good answer to another one.
fn faulty(fault: Fault) -> (Task, Result<Output, DeviceError>, FaultDevice<CpuDevice>) {
    let device = FaultDevice::scripted(CpuDevice::new(1), [None, Some(fault)]);
    let token = CancelToken::new();
    device.execute(0, &rich_task(1), &token).unwrap();
    let task = rich_task(2);
    let answer = device.execute(0, &task, &token);
    assert_eq!(device.injected(), [fault]);
    (task, answer, device)
}

#[test]
fn every_fault_shows() {
    for fault in Fault::ALL {
        let (task, answer, _) = faulty(fault);
        let Ok(output) = answer else { continue };
        let verdict = verify(&task, &output);
        if !fault.needs_check_mode() {
            assert!(verdict.is_err(), "{fault:?} passes verification");
            continue;
        }
        assert!(verdict.is_ok(), "{fault:?} is consistent: {verdict:?}");
        let reference = merge(&task, &CancelToken::new()).unwrap();
        assert!(compare(&output, &reference).is_err(), "{fault:?} passes the comparison");
    }
}

#[test]
fn a_late_answer_comes_in_place_of_the_next_and_is_refused() {
    let (_, answer, device) = faulty(Fault::Late);
    assert!(matches!(answer, Err(DeviceError::TimedOut)));
    let next = rich_task(3);
    let output = device.execute(0, &next, &CancelToken::new()).unwrap();
    assert!(matches!(verify(&next, &output), Err(crate::Violation::WrongTask(_))));
    let output = device.execute(0, &next, &CancelToken::new()).unwrap();
    verify(&next, &output).unwrap();
}

#[test]
fn a_lost_device_answers_nothing_until_it_is_back() {
    let (task, answer, device) = faulty(Fault::Lost);
    assert!(matches!(answer, Err(DeviceError::Lost)));
    assert!(matches!(device.execute(0, &task, &CancelToken::new()), Err(DeviceError::Lost)));
    assert!(!device.probe());
    assert!(device.probe());
    assert!(device.execute(0, &task, &CancelToken::new()).is_ok());
}

#[test]
fn seeded_faults_repeat() {
    let run = |seed| {
        let device = FaultDevice::seeded(CpuDevice::new(1), seed, 128);
        for i in 0..60 {
            let _ = device.execute(0, &rich_task(i), &CancelToken::new());
            device.probe();
        }
        device.injected()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
    assert!(run(5).len() > 15);
}
