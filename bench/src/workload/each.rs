//! One thread of each workload but YCSB's and those of transactions.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::workload::reads::{find, own_record};
use crate::workload::{Lane, Workload, txn, ycsb};

/// Records of a seekrandom, its own included.
const SEEK_RECORDS: u64 = 10;
/// The stretch of keys that [`Workload::Readwhilecompacting`] reads is one of so many.
const HOT_PART: u64 = 8;
/// The stretch of keys that [`Workload::Readmoving`] reads is one of so many.
const MOVING_PART: u64 = 32;
/// Records that are overwritten beside it in one go, and how long there is a pause then.
const WRITTEN_AT_ONCE: u64 = 200;
const PAUSE: Duration = Duration::from_millis(10);
/// How long [`Workload::Readwhilecompacting`] reads before it merges.
const WARM_UP: Duration = Duration::from_secs(6);
/// One record in so many is overwritten before that.
const OVERWRITTEN: u64 = 20;
/// Keys of a call of a multiget.
const KEYS_AT_ONCE: u64 = 64;
/// Records that are looked up in a database that was opened again.
const LOOKS: u64 = 10_000;
/// Records of a scan between two looks at the clock.
const SCAN_CHUNK: u64 = 1000;

/// Does the operations of thread `thread`.
pub(super) fn work(lane: &mut Lane<'_>, thread: u64) -> Result<(), Failure> {
    match lane.course.plan.workload {
        Workload::Fillseq => fill(lane, false),
        Workload::Fillrandom => fill(lane, true),
        Workload::Overwrite | Workload::OverwriteLocked | Workload::Commit => {
            overwrite(lane, lane.course.settings.sync)
        }
        Workload::CommitMixed => overwrite(lane, thread.is_multiple_of(2)),
        Workload::Readrandom | Workload::Readwhilewriting => read(lane, any_key),
        Workload::Readwhilecompacting => read(lane, hot_key),
        Workload::Readmoving => read_moving(lane),
        Workload::Readown => read(lane, |lane| own_key(lane, thread)),
        Workload::Multiget => read_many(lane),
        Workload::Readahead => read_ahead(lane),
        Workload::Readmissing => read_missing(lane),
        Workload::Seekrandom => seek(lane, SEEK_RECORDS),
        Workload::Seek => seek(lane, 1),
        Workload::Scan => scan(lane),
        Workload::Deleterandom => delete(lane),
        Workload::Compact => compact(lane),
        Workload::ReopenKilled | Workload::ReopenClosed => look(lane),
        w if w.transacts() => txn::work(lane, w),
        w => ycsb::work(lane, w),
    }
}

/// Overwrites until the others are done.
pub(super) fn write_beside(lane: &mut Lane<'_>) -> Result<(), Failure> {
    while !lane.course.over.load(Ordering::Relaxed) {
        put(lane, lane.course.settings.sync)?;
    }
    Ok(())
}

fn fill(lane: &mut Lane<'_>, shuffled: bool) -> Result<(), Failure> {
    let (last, shuffle) = (lane.course.settings.records - 1, &lane.course.shuffle);
    let record = |i: u64| if shuffled { shuffle.at(i) } else { i };
    let mut i = lane.first;
    let mut next = record(i.min(last));
    lane.each(|lane| {
        i += 1;
        let this = std::mem::replace(&mut next, record(i.min(last)));
        lane.course.data.bring_near(next, 0);
        lane.course.data.key(this, &mut lane.key);
        let value = lane.course.data.value(this, 0);
        lane.session.write(&[(&lane.key, Some(value))], lane.course.settings.sync)
    })
}

/// A record at random; its key is in `lane.key` then.
fn any_key(lane: &mut Lane<'_>) -> u64 {
    let record = lane.random.below(lane.course.settings.records);
    lane.course.data.key(record, &mut lane.key);
    record
}

/// Mostly of one stretch of keys.
fn hot_key(lane: &mut Lane<'_>) -> u64 {
    let records = lane.course.settings.records;
    if lane.random.below(100) == 0 {
        return any_key(lane);
    }
    let record = records / 3 + lane.random.below((records / HOT_PART).max(1));
    lane.course.data.key(record, &mut lane.key);
    record
}

/// Reads mostly of one stretch of keys, which is another one from quarter to quarter of the time.
fn read_moving(lane: &mut Lane<'_>) -> Result<(), Failure> {
    let Some(seconds) = lane.course.plan.seconds else {
        return Err("readmoving wants --seconds: what is read changes with the time".into());
    };
    read(lane, |lane| {
        // The first stretch comes back in the last quarter.
        const STRETCHES: [u64; 4] = [5, 21, 12, 5];
        let (records, now) = (lane.course.settings.records, lane.recorder.elapsed().as_secs_f64());
        if lane.random.below(100) == 0 {
            return any_key(lane);
        }
        let quarter = (now / seconds * STRETCHES.len() as f64) as usize;
        let stretch = STRETCHES[quarter.min(STRETCHES.len() - 1)];
        let len = (records / MOVING_PART).max(1);
        let record = (stretch * len + lane.random.below(len)).min(records - 1);
        lane.course.data.key(record, &mut lane.key);
        record
    })
}

/// Overwrites records anywhere, at a pace that leaves the readers most of the machine, so that there is something to merge.
pub(super) fn write_some_beside(lane: &mut Lane<'_>) -> Result<(), Failure> {
    while !lane.course.over.load(Ordering::Relaxed) {
        for _ in 0..WRITTEN_AT_ONCE {
            put(lane, false)?;
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Overwrites one record in [`OVERWRITTEN`], anywhere, so that there is something to merge everywhere; then has all merged. Until
/// then the readers are alone.
pub(super) fn compact_beside(lane: &mut Lane<'_>) -> Result<(), Failure> {
    // First the readers fill the cache.
    let warm = lane.course.began + WARM_UP;
    while Instant::now() < warm && !lane.course.over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
    }
    for _ in 0..lane.course.settings.records / OVERWRITTEN {
        put(lane, false)?;
    }
    lane.course.engine.flush()?;
    lane.course.engine.compact()
}

/// As [`any_key`], of a table that no other thread reads.
fn own_key(lane: &mut Lane<'_>, thread: u64) -> u64 {
    let (records, tables) = (lane.course.settings.records, lane.course.settings.tables);
    let record = own_record(records, tables, thread, lane.course.plan.threads.max(1), &mut lane.random);
    lane.course.data.key(record, &mut lane.key);
    record
}

fn put(lane: &mut Lane<'_>, sync: bool) -> Result<(), Failure> {
    let record = any_key(lane);
    let value = lane.course.data.value(record, lane.random.next());
    lane.session.write(&[(&lane.key, Some(value))], sync)
}

fn overwrite(lane: &mut Lane<'_>, sync: bool) -> Result<(), Failure> {
    lane.each(|lane| put(lane, sync))
}

fn delete(lane: &mut Lane<'_>) -> Result<(), Failure> {
    lane.each(|lane| {
        any_key(lane);
        lane.session.write(&[(&lane.key, None)], lane.course.settings.sync)
    })
}

/// Looks records up, each where `pick` has put its key.
fn read(lane: &mut Lane<'_>, pick: impl Fn(&mut Lane<'_>) -> u64) -> Result<(), Failure> {
    let want = lane.course.settings.value_bytes;
    lane.each(|lane| {
        let record = pick(lane);
        find(record, &lane.key, want, |key, see| lane.session.get(key, see))
    })
}

fn read_missing(lane: &mut Lane<'_>) -> Result<(), Failure> {
    lane.each(|lane| {
        let record = any_key(lane);
        lane.course.data.missing(record, &mut lane.key);
        if lane.session.get(&lane.key, &mut |_| ())? {
            return Err(format!("found what is not there, behind record {record}").into());
        }
        Ok(())
    })
}

fn read_many(lane: &mut Lane<'_>) -> Result<(), Failure> {
    let want = lane.course.settings.value_bytes;
    let mut keys = vec![Vec::new(); KEYS_AT_ONCE as usize];
    let mut left = lane.ops;
    while left > 0 && !lane.due() {
        let n = left.min(KEYS_AT_ONCE);
        for key in &mut keys[..n as usize] {
            any_key(lane);
            key.clone_from(&lane.key);
        }
        let mut right = 0;
        let found =
            lane.session.multi_get(&keys[..n as usize], &mut |v| right += u64::from(v.len() == want))?;
        if (found, right) != (n, n) {
            return Err(format!("of {n} records {found} were there, and {right} as they should be").into());
        }
        lane.recorder.done(n);
        left -= n;
    }
    Ok(())
}

fn read_ahead(lane: &mut Lane<'_>) -> Result<(), Failure> {
    let Lane { course, session, random, recorder, ops, limit, .. } = lane;
    let until = limit.map(|limit| course.began + limit);
    let want = course.settings.value_bytes;
    let (mut asked, mut right) = (0, 0);
    let mut next = |key: &mut Vec<u8>| {
        if asked == *ops || until.is_some_and(|until| Instant::now() >= until) {
            return false;
        }
        asked += 1;
        course.data.key(random.below(course.settings.records), key);
        true
    };
    let mut see = |v: &[u8]| {
        right += u64::from(v.len() == want);
        recorder.done(1);
    };
    let found = session.stream(&mut next, &mut see)?;
    if (found, right) != (asked, asked) {
        return Err(format!("of {asked} records {found} were there, and {right} as they should be").into());
    }
    Ok(())
}

/// The engine's own doing, in one call.
fn compact(lane: &mut Lane<'_>) -> Result<(), Failure> {
    lane.course.engine.compact()?;
    lane.recorder.done(lane.course.settings.records);
    Ok(())
}

/// Sees that what was written is there: the time it takes does not count.
fn look(lane: &mut Lane<'_>) -> Result<(), Failure> {
    lane.ops = lane.ops.min(LOOKS);
    read(lane, any_key)
}

fn seek(lane: &mut Lane<'_>, records: u64) -> Result<(), Failure> {
    lane.each(|lane| {
        let record = any_key(lane);
        let mut bytes = 0;
        lane.session.scan(&lane.key, records, &mut |k, v| bytes += k.len() + v.len())?;
        if bytes == 0 {
            return Err(format!("record {record}: nothing from there on").into());
        }
        Ok(())
    })
}

/// Each thread has a share of the records, and goes through it from front to back, once or until the time is over.
fn scan(lane: &mut Lane<'_>) -> Result<(), Failure> {
    let records = lane.course.settings.records;
    let mut at = lane.first % records;
    let mut left = lane.ops;
    while left > 0 && !lane.due() {
        lane.course.data.key(at, &mut lane.key);
        // As one scan would: each call goes on where the last one ended, a chunk further.
        let want = left.min(SCAN_CHUNK * 64).min(records - at);
        let mut seen = 0;
        let recorder = &mut lane.recorder;
        lane.session.scan(&lane.key, want, &mut |_, _| {
            seen += 1;
            if seen % SCAN_CHUNK == 0 {
                recorder.done(SCAN_CHUNK);
            }
        })?;
        if seen != want {
            return Err(format!("{seen} records from {at} on instead of {want}").into());
        }
        if seen % SCAN_CHUNK != 0 {
            lane.recorder.done(seen % SCAN_CHUNK);
        }
        left -= want;
        at = (at + want) % records;
    }
    Ok(())
}
