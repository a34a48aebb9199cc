//! Random histories against a `BTreeMap` model: all reads, in both directions, at snapshots, across reopening.
//!
//! `TERRANE_SEED` runs one seed, `TERRANE_SEEDS` sets how many, `TERRANE_OPS` how long each history is.

mod support;

use std::sync::Arc;

use support::*;
use terrane::{Db, ReadOptions, Snapshot};

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn seeds(default: u64) -> Vec<u64> {
    match std::env::var("TERRANE_SEED").ok().and_then(|v| v.parse().ok()) {
        Some(one) => vec![one],
        None => (0..env("TERRANE_SEEDS", default)).collect(),
    }
}

fn check_reads(db: &Db, model: &Model, rng: &mut Rng) -> Result<(), String> {
    let err = |e: terrane::Error| e.to_string();
    let t = rng.below(TABLES as u64) as usize;
    let (Some(want), Ok(table)) = (&model[t], db.subtable(&name(t))) else { return Ok(()) };
    for _ in 0..4 {
        let k = format!("k{:04}", rng.below(400)).into_bytes();
        let got = table.get(&k).map_err(err)?;
        if got.as_ref() != want.get(&k) {
            return Err(format!(
                "get {:?}: {:?} bytes, wanted {:?}",
                String::from_utf8_lossy(&k),
                got.map(|v| v.len()),
                want.get(&k).map(Vec::len)
            ));
        }
    }
    let keys: Vec<Vec<u8>> = (0..20).map(|_| format!("k{:04}", rng.below(400)).into_bytes()).collect();
    let many = table.multi_get(&keys).map_err(err)?;
    let mut told = vec![None; keys.len()];
    table.multi_get_with(&keys, |at, value| told[at] = value.map(<[u8]>::to_vec)).map_err(err)?;
    if told != many {
        return Err("multi_get_with tells other than multi_get".to_owned());
    }
    let mut reader = db.reader();
    for (k, v) in keys.iter().zip(&many) {
        if v.as_ref() != want.get(k) {
            return Err(format!("multi_get {:?}", String::from_utf8_lossy(k)));
        }
        if reader.get(&table, k).map_err(err)?.as_ref() != want.get(k) {
            return Err(format!("reader {:?}", String::from_utf8_lossy(k)));
        }
    }
    // A walk in both directions from a random key, within bounds.
    let (a, b) = (rng.below(400), rng.below(400));
    let (lo, hi) = (format!("k{:04}", a.min(b)).into_bytes(), format!("k{:04}", a.max(b)).into_bytes());
    let mut c = table.cursor(ReadOptions::new().lower(lo.clone()).upper(hi.clone())).map_err(err)?;
    let inside: Vec<(&Vec<u8>, &Vec<u8>)> = want.range(lo..hi).collect();
    let from = format!("k{:04}", rng.below(400)).into_bytes();
    let mut at = inside.partition_point(|(k, _)| **k < from) as i64;
    c.seek(&from).map_err(err)?;
    for step in 0..30 {
        let wanted = usize::try_from(at).ok().and_then(|i| inside.get(i));
        match wanted {
            None if c.valid() => {
                return Err(format!("cursor at {:?} after {step} steps, should be out", c.key()));
            }
            None => break,
            Some((k, v)) => {
                if c.key() != k.as_slice() || *c.value().map_err(err)? != v[..] {
                    return Err(format!(
                        "cursor at {:?} after {step} steps, wanted {:?}",
                        String::from_utf8_lossy(c.key()),
                        String::from_utf8_lossy(k)
                    ));
                }
            }
        }
        if rng.below(3) == 0 {
            c.prev().map_err(err)?;
            at -= 1;
        } else {
            c.next().map_err(err)?;
            at += 1;
        }
    }
    let back: Vec<_> =
        table.range(ReadOptions::new()).map_err(err)?.rev().collect::<terrane::Result<_>>().map_err(err)?;
    if !back.iter().map(|(k, v)| (k, v)).eq(want.iter().rev()) {
        return Err(format!("t{t} backwards: {} records, wanted {}", back.len(), want.len()));
    }
    Ok(())
}

fn check_snapshot(
    db: &Db,
    snapshot: &Snapshot,
    then: &Model,
    born: &[u32; TABLES],
    now: &[u32; TABLES],
) -> Result<(), String> {
    for t in 0..TABLES {
        // A subtable that was dropped since is another one now.
        let (Some(want), true) = (&then[t], born[t] == now[t]) else { continue };
        let table = db.subtable(&name(t)).map_err(|e| e.to_string())?;
        let got: std::collections::BTreeMap<Vec<u8>, Vec<u8>> = table
            .range(ReadOptions::new().snapshot(snapshot))
            .and_then(|r| r.collect())
            .map_err(|e| e.to_string())?;
        if let Some(d) = difference(&vec![Some(got)], &vec![Some(want.clone())]) {
            return Err(format!("snapshot of t{t}: {d}"));
        }
    }
    Ok(())
}

/// Turns many changes of a step into range deletions that nest, slide and overlap.
fn delete_ranges(step: &mut Op, rng: &mut Rng) {
    let Op::Write { changes, by, .. } = step else { return };
    if *by == By::Ingest {
        return;
    }
    for c in changes {
        let (Change::Put { table, .. } | Change::Delete { table, .. }) = *c else { continue };
        if rng.below(3) == 0 {
            let (a, b) = (rng.below(400), rng.below(400));
            let (a, b) = match rng.below(3) {
                0 => (0, a),
                1 => (a, a + 20),
                _ => (a.min(b), a.max(b)),
            };
            let [start, end] = [a, b].map(|n| format!("k{n:04}").into_bytes());
            *c = Change::DeleteRange { table, start, end };
        }
    }
}

fn history(seed: u64, ops: u64) -> Result<u64, String> {
    let err = |e: terrane::Error| e.to_string();
    let mut rng = Rng(seed);
    let mut options = tiny().background_threads(1 + (seed / 4 % 4) as usize);
    if seed % 2 == 1 {
        options = options.row_cache_bytes(64 << 10);
    }
    if seed % 4 == 2 {
        options = options.compaction_mode(terrane::CompactionMode::Check);
    }
    let (media, db) = fresh(seed, &options).map_err(err)?;
    let mut db = Some(db);
    let mut model = empty_model();
    let mut born = [0u32; TABLES];
    let mut snapshots: Vec<(Snapshot, Model, [u32; TABLES])> = Vec::new();
    for i in 0..ops {
        let mut step = op(&mut rng, 400);
        if seed % 3 == 1 {
            delete_ranges(&mut step, &mut rng);
        }
        let d = db.as_ref().ok_or("closed")?;
        run(d, &media, &step).map_err(|e| format!("op {i} {step:?}: {e}"))?;
        if let Op::Recreate(t) = &step {
            born[*t] += 1;
        }
        apply(&mut model, &step);
        match rng.below(40) {
            0..=3 => check_reads(d, &model, &mut rng).map_err(|e| format!("after op {i} {step:?}: {e}"))?,
            4 => snapshots.push((d.snapshot(), model.clone(), born)),
            5 if !snapshots.is_empty() => {
                let n = rng.below(snapshots.len() as u64) as usize;
                let (s, then, b) = snapshots.swap_remove(n);
                check_snapshot(d, &s, &then, &b, &born).map_err(|e| format!("after op {i}: {e}"))?;
            }
            6 if rng.below(8) == 0 => {
                snapshots.clear();
                if rng.below(2) == 0 {
                    db.take().ok_or("closed")?.close().map_err(err)?;
                } else {
                    drop(db.take());
                }
                media.run_all();
                let again = open(&media, &options).map_err(|e| format!("reopen after op {i}: {e}"))?;
                if let Some(d) = difference(&contents(&again).map_err(err)?, &model) {
                    return Err(format!("reopened after op {i}: {d}"));
                }
                db = Some(again);
            }
            _ => {}
        }
    }
    let d = db.as_ref().ok_or("closed")?;
    for (s, then, b) in &snapshots {
        check_snapshot(d, s, then, b, &born)?;
    }
    drop(snapshots);
    if let Some(diff) = difference(&contents(d).map_err(err)?, &model) {
        return Err(format!("at the end: {diff}"));
    }
    let report = d.check(|_| true).map_err(err)?;
    if !report.is_clean() {
        return Err(format!("check: {:?}", report.damage));
    }
    let stats = d.stats();
    Ok(stats.flushes + stats.compactions)
}

#[test]
fn random_histories_agree_with_a_model() {
    let ops = env("TERRANE_OPS", 1500);
    let mut background = 0;
    for seed in seeds(12) {
        match history(seed, ops) {
            Ok(n) => background += n,
            Err(e) => panic!("seed {seed}: {e}"),
        }
    }
    assert!(background > 10, "the histories hardly flush or compact: {background}");
}

#[test]
fn a_closed_database_opens_with_what_it_had() {
    let options = tiny();
    let (media, db) = fresh(7, &options).unwrap();
    db.subtable("t0").unwrap().put(b"", b"the empty key").unwrap();
    db.close().unwrap();
    let db = open(&media, &options).unwrap();
    assert_eq!(db.subtables(), (0..TABLES).map(name).collect::<Vec<_>>());
    assert_eq!(db.subtable("t0").unwrap().get(b"").unwrap().unwrap(), b"the empty key");
    let _: &Arc<_> = &media;
}
