//! One thread of YCSB's core workloads A to F (Cooper et al., "Benchmarking cloud serving systems with YCSB", 2010).

use std::sync::atomic::Ordering;

use crate::Failure;
use crate::workload::{Lane, Workload};

/// Most records of a scan.
const LONGEST_SCAN: u64 = 100;

pub(super) fn work(lane: &mut Lane<'_>, workload: Workload) -> Result<(), Failure> {
    lane.each(|lane| {
        let percent = lane.random.below(100);
        match workload {
            Workload::YcsbA if percent < 50 => update(lane),
            Workload::YcsbB if percent < 5 => update(lane),
            Workload::YcsbD if percent < 5 => insert(lane),
            Workload::YcsbD => read_latest(lane),
            Workload::YcsbE if percent < 5 => insert(lane),
            Workload::YcsbE => scan(lane),
            Workload::YcsbF if percent < 50 => {
                let record = read(lane)?;
                write(lane, record)
            }
            _ => read(lane).map(drop),
        }
    })
}

/// Reads a record and says which.
fn read(lane: &mut Lane<'_>) -> Result<u64, Failure> {
    let record = lane.course.zipf.record(&mut lane.random);
    get(lane, record)?;
    Ok(record)
}

fn get(lane: &mut Lane<'_>, record: u64) -> Result<(), Failure> {
    lane.course.data.key(record, &mut lane.key);
    let mut bytes = 0;
    if !lane.session.get(&lane.key, &mut |v| bytes = v.len())? || bytes != lane.course.settings.value_bytes {
        return Err(format!("record {record} is missing or has {bytes} bytes").into());
    }
    Ok(())
}

/// Recently inserted records come most often.
fn read_latest(lane: &mut Lane<'_>) -> Result<(), Failure> {
    let back = lane.course.zipf.rank(&mut lane.random);
    let record = lane.course.inserted.load(Ordering::Acquire).saturating_sub(1 + back);
    if record < lane.course.settings.records {
        return get(lane, record);
    }
    // Numbers are given out before their records are written: the newest ones may not be there yet.
    lane.course.data.key(record, &mut lane.key);
    lane.session.get(&lane.key, &mut |_| ())?;
    Ok(())
}

fn write(lane: &mut Lane<'_>, record: u64) -> Result<(), Failure> {
    lane.course.data.key(record, &mut lane.key);
    let value = lane.course.data.value(record, lane.random.next());
    lane.session.write(&[(&lane.key, Some(value))], lane.course.settings.sync)
}

fn update(lane: &mut Lane<'_>) -> Result<(), Failure> {
    let record = lane.course.zipf.record(&mut lane.random);
    write(lane, record)
}

fn insert(lane: &mut Lane<'_>) -> Result<(), Failure> {
    let record = lane.course.inserted.fetch_add(1, Ordering::AcqRel);
    write(lane, record)
}

fn scan(lane: &mut Lane<'_>) -> Result<(), Failure> {
    let record = lane.course.zipf.record(&mut lane.random);
    let limit = 1 + lane.random.below(LONGEST_SCAN);
    lane.course.data.key(record, &mut lane.key);
    let mut bytes = 0;
    lane.session.scan(&lane.key, limit, &mut |k, v| bytes += k.len() + v.len())?;
    if bytes == 0 {
        return Err(format!("nothing from record {record} on").into());
    }
    Ok(())
}
