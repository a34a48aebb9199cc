//! One bit of a closed database is flipped: every read is right or a typed error, and `check` sees whatever a read sees.
//!
//! `TERRANE_FLIPS` sets at how many random positions (default 300, the long form is 10000), `TERRANE_SEED` from which
//! seed on.

mod support;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use support::*;
use terrane::media::sim::{CrashKind, Image, SimMedia};
use terrane::media::{Media, OpenMode, SECTOR};
use terrane::{Db, ErrorKind, ReadOptions};

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// A closed database with something of everything: levels, range deletes, large values, and records that only the log
/// holds.
fn closed(seed: u64) -> (Image, Model) {
    let mut rng = Rng(seed);
    let (media, db) = fresh(seed, &tiny()).unwrap();
    let mut model = empty_model();
    for _ in 0..600 {
        let step = op(&mut rng, 300);
        run(&db, &media, &step).unwrap();
        apply(&mut model, &step);
    }
    for step in [Op::Compact(0), Op::Flush(1)] {
        run(&db, &media, &step).unwrap();
    }
    for _ in 0..30 {
        let step = op(&mut rng, 300);
        if let Op::Write { .. } = step {
            run(&db, &media, &step).unwrap();
            apply(&mut model, &step);
        }
    }
    db.close().unwrap();
    (media.image(), model)
}

/// A file of the database.
struct File {
    name: String,
    len: u64,
    /// Offsets of the sectors in which there is anything but zeros.
    used: Vec<u64>,
}

/// All of them that have any length.
fn files(media: &SimMedia) -> Vec<File> {
    let all = media.list(dir()).unwrap().into_iter().filter(|e| e.len > 0);
    let read = |name: String, len: u64| {
        let mut bytes = vec![0; len as usize];
        media.open(&dir().join(&name), OpenMode::READ).unwrap().read_at(&mut bytes, 0).unwrap();
        let sectors = bytes.chunks(SECTOR).enumerate();
        let used = sectors.filter(|(_, s)| s.iter().any(|b| *b != 0)).map(|(n, _)| (n * SECTOR) as u64);
        File { name, len, used: used.collect() }
    };
    all.map(|e| read(e.name, e.len)).collect()
}

/// What came of one flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Harmless,
    RefusedToOpen,
    ReadFailed,
    /// Only `check` saw it.
    CheckFailed,
}

fn typed(e: &terrane::Error, what: &str) -> Result<(), String> {
    match e.kind() {
        ErrorKind::Corruption | ErrorKind::NewerFormat => Ok(()),
        ErrorKind::NotFound if what == "open" => Ok(()),
        _ => Err(format!("{what}: an error of the wrong kind: {e}")),
    }
}

/// Reads everything in every way and compares; says whether a read failed.
fn read_all(db: &Db, model: &Model) -> Result<bool, String> {
    let mut failed = false;
    let mut fail = |e: terrane::Error, what: &str| {
        failed = true;
        typed(&e, what)
    };
    for (t, want) in model.iter().enumerate() {
        let Some(want) = want else { continue };
        let table = match db.subtable(&name(t)) {
            Ok(t) => t,
            Err(e) => return Err(format!("t{t} is gone: {e}")),
        };
        for n in 0..300 {
            let k = format!("k{n:04}").into_bytes();
            match table.get(&k) {
                Ok(v) if v.as_ref() == want.get(&k) => {}
                Ok(v) => return Err(format!("get t{t} k{n:04}: {:?} bytes", v.map(|v| v.len()))),
                Err(e) => fail(e, "get")?,
            }
        }
        for backwards in [false, true] {
            let range = table.range(ReadOptions::new()).map_err(|e| e.to_string())?;
            let walked: terrane::Result<BTreeMap<_, _>> =
                if backwards { range.rev().collect() } else { range.collect() };
            match walked {
                Ok(got) if got == *want => {}
                Ok(got) => {
                    let d = difference(&vec![Some(got)], &vec![Some(want.clone())]);
                    return Err(format!("scan t{t} (backwards: {backwards}): {d:?}"));
                }
                Err(e) => fail(e, "scan")?,
            }
        }
    }
    Ok(failed)
}

fn flip(image: &Image, model: &Model, file: &str, bit: u64) -> Result<Outcome, String> {
    let media = image.crash(CrashKind::Process, 1);
    media.flip_bit(&dir().join(file), bit).map_err(|e| e.to_string())?;
    let db = match open(&media, &tiny().create_if_missing(true)) {
        Ok(db) => db,
        Err(e) => return typed(&e, "open").map(|()| Outcome::RefusedToOpen),
    };
    let failed = read_all(&db, model)?;
    let report = db.check(|_| true).map_err(|e| format!("check: {e}"))?;
    for e in &report.damage {
        typed(e, "check")?;
    }
    match (failed, report.is_clean()) {
        (true, true) => Err("a read failed, but check found nothing".into()),
        (true, false) => Ok(Outcome::ReadFailed),
        (false, false) => Ok(Outcome::CheckFailed),
        (false, true) => Ok(Outcome::Harmless),
    }
}

#[test]
fn a_flipped_bit_never_gives_a_wrong_answer() {
    let flips = env("TERRANE_FLIPS", 300);
    let seed = env("TERRANE_SEED", 1);
    let mut counts: BTreeMap<(String, Outcome), u64> = BTreeMap::new();
    let mut failures = Vec::new();
    for round in 0..flips.div_ceil(2000).max(1) {
        let (image, model) = closed(seed + round);
        let files = files(&image.crash(CrashKind::Process, 0));
        let total: u64 = files.iter().map(|f| f.len).sum();
        let mut rng = Rng(seed + round);
        for i in 0..flips.min(2000).min(flips - round * 2000) {
            // Half of them anywhere, a quarter where something was written to data files, which are mostly room, and a quarter in a file chosen
            // first, so that small files are not forgotten.
            let (file, byte) = if i % 2 == 0 {
                let mut at = rng.below(total);
                let file = files.iter().find(|f| {
                    let here = at < f.len;
                    at -= if here { 0 } else { f.len };
                    here
                });
                (file.unwrap(), at)
            } else {
                let is_wanted = |f: &&File| i % 4 == 3 || f.name.starts_with("data-");
                let wanted: Vec<&File> = files.iter().filter(is_wanted).collect();
                let file = wanted[rng.below(wanted.len() as u64) as usize];
                let byte = match i % 4 {
                    3 => rng.below(file.len.min(16 << 10)),
                    _ => file.used[rng.below(file.used.len() as u64) as usize] + rng.below(SECTOR as u64),
                };
                (file, byte)
            };
            let bit = byte * 8 + rng.below(8);
            let outcome = catch_unwind(AssertUnwindSafe(|| flip(&image, &model, &file.name, bit)))
                .unwrap_or_else(|_| Err("panic".into()));
            match outcome {
                Ok(o) => {
                    let kind = file.name.split('-').next().unwrap_or_default().to_owned();
                    *counts.entry((kind, o)).or_default() += 1;
                }
                Err(e) => failures.push(format!("seed {}: {} bit {bit}: {e}", seed + round, file.name)),
            }
        }
    }
    println!("{flips} flips: {counts:?}");
    assert!(
        failures.is_empty(),
        "{} of {flips}:\n{}",
        failures.len(),
        failures[..failures.len().min(20)].join("\n")
    );
    assert!(counts.keys().any(|(_, o)| *o == Outcome::ReadFailed), "the flips hit no data");
}

/// A flip of a bit that nothing covers would show here first: a third of the bits of the superblock.
#[test]
fn every_bit_of_the_superblock_is_covered() {
    let (image, model) = closed(7);
    let media = image.crash(CrashKind::Process, 0);
    let len = files(&media).iter().find(|f| f.name == "SUPER").map(|f| f.len).unwrap();
    let mut refused = 0;
    for bit in (0..len * 8).filter(|b| b % 3 == 0) {
        match flip(&image, &model, "SUPER", bit) {
            Ok(Outcome::RefusedToOpen) => refused += 1,
            Ok(other) => panic!("bit {bit}: {other:?}"),
            Err(e) => panic!("bit {bit}: {e}"),
        }
    }
    assert_eq!(refused, (len * 8).div_ceil(3));
}

#[test]
fn damage_in_one_subtable_leaves_the_others_readable() {
    let (image, model) = closed(11);
    let mut hits = 0;
    let files = files(&image.crash(CrashKind::Process, 0));
    let File { name: data, len, .. } = files.iter().find(|f| f.name.starts_with("data-")).unwrap();
    let mut rng = Rng(3);
    // Most of the file is room.
    for _ in 0..600 {
        if hits == 5 {
            break;
        }
        let media = image.crash(CrashKind::Process, 1);
        let bit = (64 << 13) + rng.below(len * 8 - (64 << 13));
        media.flip_bit(&dir().join(data), bit).unwrap();
        let Ok(db) = open(&media, &tiny()) else { continue };
        let readable = |t: usize| {
            let table = db.subtable(&name(t)).unwrap();
            let all: terrane::Result<BTreeMap<_, _>> = table.range(ReadOptions::new()).unwrap().collect();
            match all {
                Ok(all) => {
                    assert_eq!(Some(all), model[t]);
                    true
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
                    assert!(e.file().is_some() && e.offset().is_some(), "no place: {e}");
                    assert_eq!(e.subtable(), Some(&*name(t)), "{e}");
                    false
                }
            }
        };
        let bad = (0..TABLES).filter(|t| !readable(*t)).count();
        assert!(bad <= 1, "one bit spoiled {bad} subtables");
        hits += bad;
        let _: Arc<SimMedia> = media;
    }
    assert_eq!(hits, 5, "too few flips hit a record");
}
