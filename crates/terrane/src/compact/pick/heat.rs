//! What is read comes up: extents of L2 that are much hotter than most go into L1, with what L1 has there.
//!
//! How hot an extent is follows from samples of the lookups that found something in it ([`terrane_cache::HeatSampler`]), halved every so
//! many samples. What replaces extents inherits theirs. Nothing goes up and down in turns: what is hot leaves L1 after all else, the
//! coldest of it first ([`super::leaving`]), and what would be more than half of L1 with what is as hot does not come up.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Pick, Picture, RESTING, Reason, capped, level, targets};
use crate::levels::ExtentRef;

/// What comes up was read so many times as often as an extent of L1 and L2 is on average, ...
const HOT: u64 = 4;
/// ... and so often at least: samples, each of which stands for 32 accesses.
const MIN_HEAT: u32 = 32;
pub(super) fn heat(r: &Arc<ExtentRef>) -> u32 {
    r.extent.heat.load(Ordering::Relaxed)
}

/// From how much heat on an extent of L1 or L2 is hot beside the others.
pub(super) fn hot_from(p: &Picture<'_>) -> u32 {
    let both = || level(p.version, 1).iter().chain(level(p.version, 2));
    let average = both().map(|r| u64::from(heat(r))).sum::<u64>() / (both().count() as u64).max(1);
    u32::try_from(HOT * average).unwrap_or(u32::MAX).max(MIN_HEAT)
}

/// The hottest stretch of L2, if it is hot beside the rest.
pub(super) fn pick_heat(p: &Picture<'_>) -> Option<Pick> {
    let (above, own) = (level(p.version, 1), level(p.version, 2));
    let free = |r: &Arc<ExtentRef>| p.is_free(1, 2, &r.lo, Some(&r.hi));
    let (first, hottest) = (0..).zip(own).filter(|(_, r)| free(r)).max_by_key(|(_, r)| heat(r))?;
    if heat(hottest) < hot_from(p) {
        return None;
    }
    // What is as hot already is to be half of what L1 may have, in a rest too: else what comes up would only drive out what came up
    // before it.
    let sizes = || p.version.levels.iter().map(|r| r.bytes());
    let resting = sizes().max().unwrap_or(0) as f64 * RESTING;
    let room = targets(sizes().sum(), p.memtable_bytes)[0].min(resting as u64) / 2;
    let as_hot: u64 = above.iter().filter(|r| heat(r) >= heat(hottest) / 2).map(|r| r.bytes()).sum();
    if as_hot + hottest.bytes() > room {
        return None;
    }
    // What lies beside it and is hot too comes along.
    let mut size = hottest.bytes();
    let mut end = first + 1;
    while let Some(r) = own.get(end).filter(|r| heat(r) >= heat(hottest) / 2 && free(r)) {
        size += r.bytes();
        if size > (p.piece_bytes / 4).min(room - as_hot) || *r.lo != *own[end - 1].hi {
            break;
        }
        end += 1;
    }
    let (lo, hi) = (&hottest.lo, &own[end - 1].hi);
    if !p.is_free(1, 2, lo, Some(hi)) {
        return None;
    }
    let range = capped(above, lo, hi, p.piece_bytes);
    Some(Pick { from: 2, to: 1, range, reason: Reason::Heat, urgency: 1.0 })
}

#[cfg(test)]
mod tests {
    use terrane_media::sim::SimMedia;

    use crate::{Compression, Db, Medium, Options, Subtable, SubtableOptions, Tuning};

    const RECORDS: u32 = 60_000;
    /// Records that are read.
    const HOT: u32 = 1200;
    /// Where they begin, in turn.
    const FIRSTS: [u32; 5] = [6000, 40_000, 22_000, 52_000, 6000];
    /// What may lie below of them: an extent that is small has less heat.
    const REST: usize = 200;

    fn key(n: u32) -> [u8; 4] {
        n.to_be_bytes()
    }

    fn value(n: u32, version: u32) -> Vec<u8> {
        [&n.to_le_bytes()[..], &version.to_le_bytes(), &[7; 92]].concat()
    }

    fn read(table: &Subtable, first: u32, times: u32, versions: &[u32]) {
        for _ in 0..times {
            for n in first..first + HOT {
                assert_eq!(table.get(&key(n)).unwrap(), Some(value(n, versions[n as usize])));
            }
        }
    }

    /// Keys that are L2's, of most of the range: only extents of which all is read.
    fn below(table: &Subtable, first: u32) -> usize {
        let version = table.table().state().version.clone();
        let Some(l2) = version.levels.get(1) else { return 0 };
        (first + HOT / 4..first + HOT / 4 * 3).filter(|n| l2.find(&key(*n)).is_some()).count()
    }

    fn lookups(db: &Db, level: &str) -> u64 {
        let stats = db.stats();
        let levels = stats.subtables.iter().flat_map(|t| &t.levels);
        levels.filter(|l| l.name == level).map(|l| l.lookups).sum()
    }

    #[test]
    fn what_heats_up_comes_up_stays_and_sinks_when_it_cools_down() {
        let tuning = Tuning {
            segment_bytes: 1 << 20,
            tail_bytes: 256 << 10,
            data_file_bytes: 8 << 20,
            extent_bytes: 32 << 10,
            piece_bytes: 64 << 10,
            ..Tuning::default()
        };
        let options = Options::new().memtable_bytes(256 << 10).cache_bytes(8 << 20).tuning(tuning);
        // What lies where follows from how large memtables are.
        let options = options.medium(Medium::Log);
        let db = Db::open_on(SimMedia::new(5), "/db", options).unwrap();
        let of_table = SubtableOptions::new().compression(Compression::None).value_threshold(8 << 10);
        let table = db.create_subtable("t", of_table).unwrap();
        let mut versions = vec![0; RECORDS as usize];
        for n in 0..RECORDS {
            table.put(&key(n), &value(n, 0)).unwrap();
        }
        table.compact().unwrap();
        db.wait_idle().unwrap();
        // The last one was hot at first, and has cooled down since.
        for first in FIRSTS {
            assert!(below(&table, first) > REST, "{first}: it is below while nobody reads it");
            let before = ["L1", "L2"].map(|level| lookups(&db, level));
            // What was hot before has to be forgotten first.
            let comes_up = (0..20).any(|_| {
                read(&table, first, 100, &versions);
                db.wait_idle().unwrap();
                below(&table, first) <= REST
            });
            assert!(comes_up, "{first}: {} keys still below", below(&table, first));
            // Others are written, and L1 has to make room; what is read meanwhile stays.
            for round in 0..4u32 {
                for n in (round..RECORDS)
                    .step_by(7)
                    .filter(|n| FIRSTS.iter().all(|first| !(*first..first + HOT).contains(n)))
                {
                    versions[n as usize] += 1;
                    table.put(&key(n), &value(n, versions[n as usize])).unwrap();
                    if n % 2000 < 7 {
                        read(&table, first, 1, &versions);
                    }
                }
                db.wait_idle().unwrap();
            }
            let left = below(&table, first);
            assert!(left <= REST, "{first}: {left} keys below again");
            let since = [0, 1].map(|i| lookups(&db, ["L1", "L2"][i]) - before[i]);
            assert!(since.iter().all(|n| *n > 0), "{first}: read in L2 first, then in L1: {since:?}");
        }
        assert!(db.check(|_| true).unwrap().is_clean());
        for n in 0..RECORDS {
            assert_eq!(table.get(&key(n)).unwrap(), Some(value(n, versions[n as usize])));
        }
    }
}
