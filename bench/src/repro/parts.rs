//! What a core keeps in the cache beside one that reads much: with parts of the cache for each core, and without.
//!
//! Two subtables, each owned by a core of an executor. One is read at random and is much larger than the cache, the other one
//! is small and would fit several times. One client reads them in turns, so that what the cache lacks can be told apart.

use std::time::{Duration, Instant};

use terrane::{Db, Durability, ExecutorOptions, Lane, Options, Subtable, SubtableOptions, Taken, WriteBatch};

use crate::args::ReproArgs;
use crate::choice::Random;
use crate::data::Data;
use crate::report::median;
use crate::repro::Line;
use crate::scratch::Scratch;
use crate::{Failure, machine};

const FIGURE: &str = "parts";
const CACHE_BYTES: usize = 64 << 20;
/// Records of 16 and 100 bytes: 8 MiB, and 230 MiB.
const HOT: u64 = 70_000;
const LARGE: u64 = 2_000_000;
/// Lookups of the one and of the other in a turn, and how many of them are under way at a time.
const HOT_TURN: u64 = 500;
const LARGE_TURN: u64 = 2_000;
const DEPTH: u64 = 16;
const ROUNDS: usize = 3;
const SECONDS: f64 = 8.0;

/// What reads of a subtable came to.
#[derive(Default)]
struct Reads {
    seconds: f64,
    micros: Vec<f64>,
    missed: u64,
}

impl Reads {
    fn speed(&self) -> f64 {
        self.micros.len() as f64 / self.seconds
    }

    fn p99(&mut self) -> f64 {
        self.micros.sort_unstable_by(f64::total_cmp);
        self.micros.get(self.micros.len() * 99 / 100).copied().unwrap_or_default()
    }

    fn missed(&self) -> f64 {
        1e3 * self.missed as f64 / self.micros.len() as f64
    }
}

/// Measures; `see` gets each line as it comes.
pub(super) fn measure(
    a: &ReproArgs,
    see: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let processors = machine::processors()?;
    let &[first, second, ..] = &processors[..] else {
        return Err(format!("{FIGURE}: it wants two processors").into());
    };
    let dir = Scratch::new(a.dir.as_deref())?;
    let db = Db::open(dir.path(), Options::new().cache_bytes(CACHE_BYTES))?;
    let data = Data::new(16, 100);
    let large_records = ((LARGE as f64 * a.scale) as u64).max(1);
    let (hot, large) = (load(&db, "hot", &data, HOT)?, load(&db, "large", &data, large_records)?);
    let mut found = [(); 2].map(|()| Vec::new());
    for _ in 0..ROUNDS {
        for (apart, found) in [true, false].into_iter().zip(&mut found) {
            let options = ExecutorOptions::new().cores([first, second]).balance(false).cache_parts(apart);
            let executor = db.executor(options)?;
            executor.assign(&hot, 0)?;
            executor.assign(&large, 1)?;
            db.wait_idle()?;
            let mut lane = executor.lane(DEPTH as usize)?;
            let mut random = Random::new(1);
            // Until the cache has what it keeps.
            turns(
                &db,
                &mut lane,
                &data,
                [&hot, &large],
                large_records,
                a.seconds(SECONDS) / 4.0,
                &mut random,
            )?;
            let seconds = a.seconds(SECONDS);
            found.push(turns(&db, &mut lane, &data, [&hot, &large], large_records, seconds, &mut random)?);
        }
    }
    for (whose, mut rounds) in ["with parts", "without"].into_iter().zip(found) {
        let mut say = |what: &str, unit: &str, of: &dyn Fn(&mut [Reads; 2]) -> f64| {
            let measured = median(rounds.iter_mut().map(of).collect());
            see(Line {
                figure: FIGURE,
                row: format!("{whose}: {what}"),
                claimed: None,
                measured,
                unit: unit.to_owned(),
                note: String::new(),
                holds: true,
            })
        };
        say("lookups of what is hot", "per s", &|[hot, _]| hot.speed())?;
        say("p99 of these", "us", &|[hot, _]| hot.p99())?;
        say("blocks not cached of these", "per 1000", &|[hot, _]| hot.missed())?;
        say("lookups of what is large", "per s", &|[_, large]| large.speed())?;
    }
    Ok(())
}

fn load(db: &Db, name: &str, data: &Data, records: u64) -> Result<Subtable, Failure> {
    let table = db.create_subtable(name, SubtableOptions::new())?;
    let mut key = Vec::new();
    for from in (0..records).step_by(100) {
        let mut batch = WriteBatch::new();
        for n in from..(from + 100).min(records) {
            data.key(n, &mut key);
            batch.put(&table, &key, data.value(n, 0))?;
        }
        db.write(batch, Durability::Buffered)?;
    }
    table.compact()?;
    Ok(table)
}

/// Reads both subtables in turns.
fn turns(
    db: &Db,
    lane: &mut Lane,
    data: &Data,
    tables: [&Subtable; 2],
    large: u64,
    seconds: f64,
    random: &mut Random,
) -> Result<[Reads; 2], Failure> {
    let mut reads = [Reads::default(), Reads::default()];
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs_f64(seconds) {
        for ((table, of), (records, lookups)) in
            tables.into_iter().zip(&mut reads).zip([(HOT, HOT_TURN), (large, LARGE_TURN)])
        {
            let keys = (0..lookups).map(|_| random.below(records));
            let missed = db.stats().cache_misses;
            let began = Instant::now();
            turn(lane, table, data, keys, &mut of.micros)?;
            of.seconds += began.elapsed().as_secs_f64();
            of.missed += db.stats().cache_misses - missed;
        }
    }
    Ok(reads)
}

/// Asks for records, and notes how long each answer took.
fn turn(
    lane: &mut Lane,
    table: &Subtable,
    data: &Data,
    records: impl Iterator<Item = u64>,
    micros: &mut Vec<f64>,
) -> Result<(), Failure> {
    let (mut asked, mut key, mut failed) = (Vec::new(), Vec::new(), None);
    let mut take = |lane: &mut Lane, asked: &[Instant]| -> Result<(), Failure> {
        lane.wait()?;
        lane.answers(|token, value| match value {
            Ok(_) => micros.push(asked[token as usize].elapsed().as_secs_f64() * 1e6),
            Err(e) => failed = Some(e),
        });
        failed.take().map_or(Ok(()), |e| Err(e.into()))
    };
    for record in records {
        data.key(record, &mut key);
        asked.push(Instant::now());
        while lane.get(table, &key, asked.len() as u64 - 1)? == Taken::Full {
            take(lane, &asked)?;
        }
    }
    while lane.under_way() > 0 {
        take(lane, &asked)?;
    }
    Ok(())
}
