//! Histories of tasks on a simulated machine, with devices that fail in every way.

use std::sync::atomic::{AtomicUsize, Ordering};

use terrane_media::real::{RealMedia, RealOptions};
use terrane_media::sim::SimMedia;

use super::*;
use crate::device::{DeviceError, Limits};
use crate::testing::{put, rich_task, task};
use crate::{Fault, FaultDevice, InputBlock, compare, merge};

type Results = Arc<Mutex<Vec<(u64, Result<Finished>)>>>;

struct Rig {
    media: Arc<SimMedia>,
    scheduler: Scheduler,
    results: Results,
}

impl Rig {
    fn new(seed: u64, options: SchedulerOptions, devices: Vec<Arc<dyn Device>>) -> Rig {
        let media = SimMedia::new(seed);
        let scheduler = Scheduler::new(media.clone(), options, devices);
        Rig { media, scheduler, results: Results::default() }
    }

    fn with_device(mode: Mode, device: impl Device + 'static) -> Rig {
        Rig::new(1, SchedulerOptions { mode, ..SchedulerOptions::default() }, vec![Arc::new(device)])
    }

    fn done(&self, id: u64) -> Done {
        let results = self.results.clone();
        Box::new(move |r| results.lock().push((id, r)))
    }

    fn submit(&self, task: Task) -> CancelToken {
        let done = self.done(task.id);
        self.scheduler.submit(task, done).unwrap()
    }

    /// Runs one task to its end.
    fn run(&self, task: Task) -> Result<Finished> {
        self.submit(task);
        self.media.run_all();
        self.results.lock().pop().unwrap().1
    }

    fn device(&self) -> DeviceStats {
        self.scheduler.stats().devices[1].clone()
    }
}

fn assert_right(task: &Task, output: &Output) {
    let reference = merge(task, &CancelToken::new()).unwrap();
    compare(output, &reference).unwrap();
}

#[test]
fn each_fault_of_a_device_is_caught_and_the_task_ends_well() {
    for fault in Fault::ALL {
        for mode in [Mode::Device, Mode::Check] {
            if mode == Mode::Device && fault.needs_check_mode() {
                continue;
            }
            let rig = Rig::with_device(mode, FaultDevice::scripted(CpuDevice::new(1), [None, Some(fault)]));
            let first = rig.run(rich_task(1)).unwrap();
            assert_eq!((first.device.as_str(), first.redone), ("faulty", false));
            let task = rich_task(2);
            let second = rig.run(task.clone()).unwrap();
            assert_right(&task, &second.output);
            assert_eq!((second.device.as_str(), second.redone), ("cpu", true), "{fault:?}");

            let stats = rig.scheduler.stats();
            assert_eq!(stats.redone, 1);
            let d = &stats.devices[1];
            assert_eq!((d.tasks, d.accepted), (2, 1));
            let counted = d.failed + d.timed_out + d.lost + d.unsupported + d.invalid + d.mismatched;
            assert_eq!(counted, 1, "{fault:?}: {d:?}");
            assert_eq!(d.mismatched == 1, fault.needs_check_mode(), "{fault:?}");
            assert_eq!(d.live, fault != Fault::Lost);
            let kept = rig.scheduler.failed_tasks();
            if fault == Fault::Unsupported {
                assert!(kept.is_empty(), "a refusal is no failure");
            } else {
                assert_eq!(Task::decode(&kept[0].task.encode()).unwrap(), task, "{fault:?}");
            }
        }
    }
}

#[test]
fn an_answer_that_comes_late_is_refused_as_that_of_another_task() {
    let rig = Rig::with_device(Mode::Device, FaultDevice::scripted(CpuDevice::new(1), [Some(Fault::Late)]));
    for salt in 0..2 {
        let task = rich_task(salt);
        assert_right(&task, &rig.run(task.clone()).unwrap().output);
    }
    let d = rig.device();
    assert_eq!((d.timed_out, d.invalid, d.accepted), (1, 1, 0));
    assert_eq!(rig.run(rich_task(3)).unwrap().device, "faulty", "then it is in step again");
}

#[test]
fn nothing_is_lost_whatever_two_bad_devices_do() {
    for seed in 0..12 {
        let options = SchedulerOptions {
            mode: Mode::Check,
            queue_tasks: 5,
            probe_after: 3,
            ..SchedulerOptions::default()
        };
        let faulty = |s| Arc::new(FaultDevice::seeded(CpuDevice::new(2), s, 100)) as Arc<dyn Device>;
        let rig = Rig::new(seed, options, vec![faulty(seed), faulty(seed + 1000)]);
        const TASKS: u64 = 80;
        for i in 0..TASKS {
            rig.scheduler.wait_for_room().unwrap();
            rig.submit(rich_task(i));
        }
        rig.scheduler.wait_idle().unwrap();
        let results = rig.results.lock();
        assert_eq!(results.len() as u64, TASKS, "seed {seed}: each callback is called once");
        for (id, result) in results.iter() {
            assert_right(&rich_task(id - 100), &result.as_ref().unwrap().output);
        }
        let stats = rig.scheduler.stats();
        assert!(stats.redone > 5 && stats.checked > 5, "seed {seed}: {stats:?}");
        assert!(stats.devices[1..].iter().any(|d| d.probes > 0), "seed {seed}: {stats:?}");
        assert!(stats.devices.iter().all(|d| d.busy == 0));
    }
}

#[test]
fn a_lost_device_leaves_is_probed_and_comes_back() {
    let options = SchedulerOptions { mode: Mode::Device, probe_after: 4, ..SchedulerOptions::default() };
    let device = FaultDevice::scripted(CpuDevice::new(1), [Some(Fault::Lost)]);
    let rig = Rig::new(1, options, vec![Arc::new(device)]);
    let mut by = Vec::new();
    for i in 0..12 {
        by.push(rig.run(rich_task(i)).unwrap().device);
    }
    // The task in which it vanishes, four until a probe that fails, four until one that succeeds.
    assert_eq!(by[..9], ["cpu"; 9]);
    assert_eq!(by[9..], ["faulty"; 3]);
    let d = rig.device();
    assert_eq!((d.lost, d.probes, d.returns, d.live), (1, 2, 1, true));
}

#[test]
fn a_device_that_keeps_failing_leaves_rotation() {
    let device = FaultDevice::scripted(CpuDevice::new(1), [Some(Fault::Truncated); 9]);
    let rig = Rig::with_device(Mode::Device, device);
    for i in 0..9 {
        let task = rich_task(i);
        assert_right(&task, &rig.run(task.clone()).unwrap().output);
    }
    let d = rig.device();
    assert_eq!((d.invalid, d.tasks, d.live), (3, 3, false));
    assert_eq!(rig.scheduler.failed_tasks().len(), 2, "the two most recent failures are kept");
}

#[test]
fn tasks_go_round_robin_over_the_units_of_all_devices() {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(Named("a", 2)), Arc::new(Named("b", 1))];
    let options = SchedulerOptions { mode: Mode::Device, ..SchedulerOptions::default() };
    let rig = Rig::new(1, options, devices);
    for i in 0..4 {
        rig.submit(rich_task(i));
        if i == 1 {
            let stats = rig.scheduler.stats();
            assert_eq!((stats.devices[1].busy, stats.devices[2].busy), (1, 1), "in turn");
        }
    }
    let stats = rig.scheduler.stats();
    assert_eq!((stats.devices[1].busy, stats.devices[2].busy, stats.queued), (2, 1, 1));
    assert_eq!(stats.devices[0].busy, 0, "the CPU does not take what a device is there for");
    rig.media.run_all();
    let stats = rig.scheduler.stats();
    assert_eq!(stats.devices[1].accepted + stats.devices[2].accepted, 4);
}

#[test]
fn what_no_device_takes_goes_to_the_cpu_past_those_that_wait() {
    let rig = Rig::with_device(Mode::Device, Named("small", 1));
    rig.submit(rich_task(1));
    rig.submit(rich_task(2));
    let single = task(&[vec![put("a", 1, "x")], vec![]]);
    rig.submit(single);
    let stats = rig.scheduler.stats();
    assert_eq!((stats.devices[0].busy, stats.devices[1].busy, stats.queued), (1, 1, 1));
    rig.media.run_all();
    assert_eq!(rig.results.lock().len(), 3);
}

#[test]
fn a_full_queue_gives_the_task_back() {
    let options = SchedulerOptions { cpu_units: 1, queue_tasks: 2, ..SchedulerOptions::default() };
    let rig = Rig::new(1, options, Vec::new());
    (0..3).for_each(|i| drop(rig.submit(rich_task(i))));
    assert_eq!(rig.scheduler.room(), 0);
    let refused = rig.scheduler.submit(rich_task(3), rig.done(0)).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(refused.task, rich_task(3));
    rig.scheduler.wait_for_room().unwrap();
    rig.scheduler.submit(refused.task, refused.done).unwrap();
    rig.scheduler.wait_idle().unwrap();
    assert_eq!(rig.results.lock().len(), 4);
}

#[test]
fn a_senseless_task_is_refused() {
    let rig = Rig::new(1, SchedulerOptions::default(), Vec::new());
    let mut task = rich_task(1);
    task.hi = Some(Vec::new());
    let refused = rig.scheduler.submit(task, rig.done(0)).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn input_that_was_damaged_on_the_way_is_reported_and_not_retried_for_ever() {
    for mode in [Mode::Device, Mode::Check] {
        let rig = Rig::with_device(mode, FaultDevice::scripted(CpuDevice::new(1), [Some(Fault::Failed)]));
        let mut task = rich_task(1);
        let block = &task.ways[0].blocks[1];
        let mut bytes = block.bytes().to_vec();
        bytes[9] ^= 1;
        task.ways[0].blocks[1] = InputBlock::with_crc(bytes, block.crc());
        let e = rig.run(task).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{mode:?}");
        assert_eq!(rig.scheduler.stats().devices[0].failed, 1);
    }
}

#[test]
fn cancelled_tasks_say_so_wherever_they_are() {
    for mode in [Mode::Cpu, Mode::Device, Mode::Check] {
        let options = SchedulerOptions { mode, cpu_units: 1, ..SchedulerOptions::default() };
        let rig = Rig::new(1, options, vec![Arc::new(Named("a", 1))]);
        let tokens = [rig.submit(rich_task(1)), rig.submit(rich_task(2))];
        let stays = rich_task(3);
        rig.submit(stays.clone());
        tokens.iter().for_each(CancelToken::cancel);
        rig.media.run_all();
        let results = rig.results.lock();
        assert_eq!(results.len(), 3);
        for (id, result) in results.iter() {
            match result {
                Ok(done) if *id == stays.id => assert_right(&stays, &done.output),
                Err(e) if *id != stays.id => assert_eq!(e.kind(), ErrorKind::Closed),
                other => panic!("{mode:?}: {other:?}"),
            }
        }
        assert_eq!(rig.scheduler.stats().cancelled, 2);
    }
}

#[test]
fn closing_cancels_all_and_calls_back() {
    let rig = Rig::new(1, SchedulerOptions { cpu_units: 1, ..SchedulerOptions::default() }, Vec::new());
    (0..5).for_each(|i| drop(rig.submit(rich_task(i))));
    rig.scheduler.close();
    let kinds: Vec<_> = rig.results.lock().iter().map(|(_, r)| r.as_ref().err().map(Error::kind)).collect();
    assert_eq!(kinds, [Some(ErrorKind::Closed); 5]);
    let refused = rig.scheduler.submit(rich_task(9), rig.done(9)).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Closed);
    assert_eq!(rig.scheduler.wait_for_room().unwrap_err().kind(), ErrorKind::Closed);
    let stats = rig.scheduler.stats();
    assert_eq!((stats.cancelled, stats.running, stats.queued), (5, 0, 0));
}

#[test]
fn a_result_after_its_time_or_after_cancellation_is_dropped() {
    let options = SchedulerOptions { mode: Mode::Device, ..SchedulerOptions::default() };
    let media = SimMedia::new(1);
    let slow = Slow { media: media.clone(), time: options.device_time, cancel: Mutex::new(None) };
    let scheduler = Scheduler::new(media.clone(), options.clone(), vec![Arc::new(slow)]);
    let rig = Rig { media, scheduler, results: Results::default() };
    let task = rich_task(1);
    let done = rig.run(task.clone()).unwrap();
    assert_right(&task, &done.output);
    assert!(done.redone);
    assert!(done.done - done.started >= options.device_time, "the clock is simulated");
    assert_eq!((rig.device().late, rig.device().accepted), (1, 0));

    let media = SimMedia::new(1);
    let slow = Arc::new(Slow { media: media.clone(), time: Duration::ZERO, cancel: Mutex::new(None) });
    let scheduler = Scheduler::new(media.clone(), options, vec![slow.clone()]);
    let rig = Rig { media, scheduler, results: Results::default() };
    *slow.cancel.lock() = Some(rig.submit(task));
    rig.media.run_all();
    assert_eq!(rig.results.lock()[0].1.as_ref().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!((rig.device().cancelled, rig.device().accepted), (1, 0));
    assert!(rig.device().live);
}

#[test]
fn the_mode_can_be_changed_while_tasks_wait() {
    let rig = Rig::with_device(Mode::Device, Named("a", 1));
    (0..4).for_each(|i| drop(rig.submit(rich_task(i))));
    assert_eq!(rig.scheduler.stats().queued, 3);
    rig.scheduler.set_mode(Mode::Cpu);
    assert_eq!(rig.scheduler.stats().devices[0].busy, 2, "the CPU takes over");
    rig.media.run_all();
    assert_eq!(rig.results.lock().len(), 4);
}

#[test]
fn a_callback_may_submit_the_next_task() {
    let rig = Rig::new(1, SchedulerOptions::default(), Vec::new());
    let count = Arc::new(AtomicUsize::new(0));
    fn chain(scheduler: Scheduler, count: Arc<AtomicUsize>) {
        if count.fetch_add(1, Ordering::Relaxed) == 5 {
            return;
        }
        let next = scheduler.clone();
        scheduler.submit(rich_task(1), Box::new(move |_| chain(next, count))).unwrap();
    }
    chain(rig.scheduler.clone(), count.clone());
    rig.scheduler.wait_idle().unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 6);
}

#[test]
fn accounting_and_timestamps_are_kept_per_device() {
    let rig = Rig::with_device(Mode::Device, Named("a", 1));
    let task = rich_task(1);
    let done = rig.run(task.clone()).unwrap();
    assert!(done.queued <= done.started && done.started <= done.done);
    let d = rig.device();
    assert_eq!((d.name.as_str(), d.units), ("a", 1));
    assert_eq!(
        (d.records_in, d.records_out),
        (done.output.totals.records_in, done.output.totals.records_out)
    );
    assert_eq!((d.bytes_in, d.bytes_out), (task.bytes(), done.output.bytes()));
}

#[test]
fn real_threads_end_every_task_and_a_stopped_machine_leaves_no_callback_behind() {
    let media = RealMedia::new(RealOptions { compaction_threads: 4, ..RealOptions::default() }).unwrap();
    let options = SchedulerOptions { mode: Mode::Check, queue_tasks: 3, ..SchedulerOptions::default() };
    let faulty = |seed| Arc::new(FaultDevice::seeded(CpuDevice::new(2), seed, 80)) as Arc<dyn Device>;
    let scheduler = Scheduler::new(media.clone(), options, vec![faulty(1), faulty(2)]);
    let called = Arc::new(AtomicUsize::new(0));
    let right = Arc::new(AtomicUsize::new(0));
    let submit = |salt: u64| {
        let (called, right) = (called.clone(), right.clone());
        let done = Box::new(move |result: Result<Finished>| {
            called.fetch_add(1, Ordering::Relaxed);
            if let Ok(done) = result {
                assert_right(&rich_task(salt), &done.output);
                right.fetch_add(1, Ordering::Relaxed);
            }
        });
        scheduler.submit(rich_task(salt), done)
    };
    std::thread::scope(|s| {
        for t in 0..2 {
            let (submit, scheduler) = (&submit, &scheduler);
            s.spawn(move || {
                for i in 0..50 {
                    while submit(t * 50 + i).is_err() {
                        scheduler.wait_for_room().unwrap();
                    }
                }
            });
        }
    });
    scheduler.wait_idle().unwrap();
    assert_eq!((called.load(Ordering::Relaxed), right.load(Ordering::Relaxed)), (100, 100));

    let submitted = 100 + (0..7).filter(|i| submit(200 + i).is_ok()).count();
    media.shutdown();
    scheduler.close();
    assert_eq!(called.load(Ordering::Relaxed), submitted);
}

/// A good device with a name and units.
#[derive(Debug)]
struct Named(&'static str, usize);

impl Device for Named {
    fn name(&self) -> &str {
        self.0
    }
    fn units(&self) -> usize {
        self.1
    }
    fn execute(&self, _: usize, task: &Task, cancel: &CancelToken) -> Result<Output, DeviceError> {
        merge(task, cancel)
    }
    fn probe(&self) -> bool {
        true
    }
}

/// Takes its time, or has its task cancelled under it, and answers all the same.
#[derive(Debug)]
struct Slow {
    media: Arc<SimMedia>,
    time: Duration,
    cancel: Mutex<Option<CancelToken>>,
}

impl Device for Slow {
    fn name(&self) -> &str {
        "slow"
    }
    fn units(&self) -> usize {
        1
    }
    fn limits(&self) -> Limits {
        Limits::NONE
    }
    fn execute(&self, _: usize, task: &Task, _: &CancelToken) -> Result<Output, DeviceError> {
        let output = merge(task, &CancelToken::new());
        self.media.sleep(self.time);
        if let Some(token) = self.cancel.lock().take() {
            token.cancel();
        }
        output
    }
    fn probe(&self) -> bool {
        true
    }
}
