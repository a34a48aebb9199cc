//! A damaged extent of one subtable: its own writers are refused in the end, with the reason; everybody else goes on; and
//! mending or dropping it lets all go on.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use support::*;
use terrane::media::sim::SimMedia;
use terrane::media::{Media, OpenMode};
use terrane::{Compression, Db, Error, ErrorKind, Options, ReadOptions, Subtable};

const MARK: &[u8] = b"the byte that goes bad";
/// Key whose block is damaged.
const BAD: u64 = 300;
const KEYS: u64 = 600;

fn key(i: u64) -> Vec<u8> {
    format!("key{i:06}").into_bytes()
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Two subtables; "ill" has [`KEYS`] keys in levels below L0, and one bit of them is wrong.
struct Ward {
    media: Arc<SimMedia>,
    db: Db,
    ill: Subtable,
    well: Subtable,
    rows: Rows,
    /// The damaged file and bit.
    at: (String, u64),
    n: u64,
}

fn find(media: &SimMedia, what: &[u8]) -> (String, u64) {
    for entry in media.list(dir()).unwrap().into_iter().filter(|e| e.name.starts_with("data-")) {
        let file = media.open(&dir().join(&entry.name), OpenMode::READ).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        if let Some(at) = bytes.windows(what.len()).position(|w| w == what) {
            return (entry.name, at as u64 * 8);
        }
    }
    panic!("the mark is in no data file");
}

impl Ward {
    fn new(options: &Options) -> Ward {
        let Ward { media, db, ill, well, rows, at, n } = Ward::before(options);
        drop((ill, well));
        db.close().unwrap();
        // What was written is cached, and merges would take it from there.
        let db = open(&media, options).unwrap();
        let [ill, well] = ["ill", "well"].map(|name| db.subtable(name).unwrap());
        let ward = Ward { media, db, ill, well, rows, at, n };
        ward.flip();
        ward
    }

    /// Nothing is damaged yet, and all of it is cached.
    fn before(options: &Options) -> Ward {
        let (media, db) = fresh(7, options).unwrap();
        let plain = tiny_table().compression(Compression::None);
        let ill = db.create_subtable("ill", plain.clone()).unwrap();
        let well = db.create_subtable("well", plain).unwrap();
        let mut rows = Rows::new();
        for i in 0..KEYS {
            let value = if i == BAD { MARK.to_vec() } else { vec![i as u8; 200] };
            ill.put(&key(i), &value).unwrap();
            rows.insert(key(i), value);
        }
        ill.compact().unwrap();
        db.wait_idle().unwrap();
        let at = find(&media, MARK);
        Ward { media, db, ill, well, rows, at, n: 0 }
    }

    fn flip(&self) {
        self.media.flip_bit(&dir().join(&self.at.0), self.at.1).unwrap();
    }

    /// One write to "ill", anywhere.
    fn touch(&mut self) -> terrane::Result<()> {
        self.n += 1;
        let (k, v) = (key(self.n * 7919 % KEYS), vec![self.n as u8; 300]);
        self.ill.put(&k, &v)?;
        self.rows.insert(k, v);
        if self.n.is_multiple_of(5) {
            self.media.step();
        }
        Ok(())
    }

    fn until_refused(&mut self) -> Error {
        for _ in 0..200_000 {
            if let Err(e) = self.touch() {
                return e;
            }
        }
        panic!("writes to damaged data were never refused: {:?}", self.db.stats());
    }

    /// Writes to "well", `times` the memory and the log there is.
    fn others_go_on(&self, times: u64) {
        let budget = self.db.stats().memtable_budget;
        let mut rng = Rng(3);
        for i in 0..times * budget / 500 {
            self.well.put(&key(rng.below(4000)), &[i as u8; 500]).unwrap();
            if i % 7 == 0 {
                self.media.step();
            }
        }
        let s = self.db.stats();
        assert!(s.memtable_bytes <= s.memtable_budget + (64 << 10), "memory is kept: {s:?}");
        assert!(s.log_bytes < 4 << 20, "the log is kept: {} bytes", s.log_bytes);
    }

    fn all_is_right(&self) {
        let found: Rows =
            self.ill.range(ReadOptions::new()).unwrap().collect::<terrane::Result<_>>().unwrap();
        assert!(found == self.rows, "{} rows, wanted {}", found.len(), self.rows.len());
        let report = self.db.check(|_| true).unwrap();
        assert!(report.is_clean(), "{:?}", report.damage);
    }
}

#[track_caller]
fn is_its_own(e: &Error, file: &str) {
    assert_eq!((e.kind(), e.subtable()), (ErrorKind::Corruption, Some("ill")), "{e}");
    let at = e.file().and_then(|f| f.to_str()).unwrap_or_default();
    assert!(at.ends_with(file) && e.offset().is_some(), "{e}");
    let told = e.to_string();
    assert!(["takes no writes", "restore", "drop the subtable"].iter().all(|w| told.contains(w)), "{told}");
}

#[test]
fn a_block_that_is_damaged_while_it_is_cached_is_written_anew_from_there() {
    let mut w = Ward::before(&tiny());
    w.flip();
    assert!(!w.db.check(|_| true).unwrap().is_clean());
    (0..2 * KEYS).for_each(|_| w.touch().unwrap());
    w.ill.compact().unwrap();
    w.all_is_right();
}

#[test]
fn a_damaged_extent_refuses_its_own_writers_alone_until_it_is_mended() {
    let mut w = Ward::new(&tiny());
    let e = w.until_refused();
    is_its_own(&e, &w.at.0);
    w.others_go_on(20);
    is_its_own(&w.touch().unwrap_err(), &w.at.0);
    // What it holds can be read, but for the damage.
    let bad = w.rows.keys().filter(|k| w.ill.get(k).is_err()).count();
    assert!(bad < 40, "{bad} keys cannot be read for one block");
    for (k, v) in w.rows.iter().filter(|(k, _)| **k < key(200)) {
        assert_eq!(w.ill.get(k).unwrap().as_ref(), Some(v));
    }
    let s = w.db.stats();
    assert!(s.trouble.is_some());
    assert!(s.subtables.iter().all(|t| t.trouble.is_some() == (t.name == "ill")), "{s:?}");

    w.flip();
    w.media.sleep(Duration::from_secs(2));
    w.touch().unwrap();
    for _ in 0..20_000 {
        w.touch().unwrap();
    }
    w.others_go_on(2);
    w.ill.compact().unwrap();
    w.all_is_right();
    assert_eq!(w.db.stats().trouble, None);
    w.db.close().unwrap();
}

#[test]
fn refused_writers_do_not_make_the_damaged_piece_be_read_over_and_over() {
    let mut w = Ward::new(&tiny());
    w.until_refused();
    w.media.run_all();
    // No time passes: damage was just met.
    let before = w.media.read_count();
    for _ in 0..1000 {
        w.touch().unwrap_err();
        w.media.run_all();
    }
    assert!(w.media.read_count() - before < 100, "{} reads", w.media.read_count() - before);
    w.media.sleep(Duration::from_secs(2));
    let before = w.media.read_count();
    w.touch().unwrap_err();
    assert!(w.media.read_count() > before, "was not tried again in due time");
    // What is queued still holds the machine that it is queued in.
    w.media.shutdown();
}

#[test]
fn dropping_the_damaged_subtable_lets_all_go_on() {
    let mut w = Ward::new(&tiny());
    w.until_refused();
    w.others_go_on(2);
    w.db.drop_subtable("ill").unwrap();
    w.db.wait_idle().unwrap();
    let s = w.db.stats();
    assert_eq!(s.trouble, None);
    w.ill = w.db.create_subtable("ill", tiny_table()).unwrap();
    w.rows.clear();
    for _ in 0..5000 {
        w.touch().unwrap();
    }
    w.others_go_on(5);
    w.all_is_right();
}

#[test]
fn damage_outlives_a_restart_and_still_hurts_its_subtable_alone() {
    let mut w = Ward::new(&tiny());
    w.until_refused();
    w.others_go_on(1);
    let Ward { media, db, rows, at, ill, well, .. } = w;
    drop((ill, well));
    db.close().unwrap();
    let db = open(&media, &tiny()).unwrap();
    let (ill, well) = (db.subtable("ill").unwrap(), db.subtable("well").unwrap());
    let mut w = Ward { media, db, ill, well, rows, at, n: 0 };
    w.others_go_on(10);
    is_its_own(&w.until_refused(), &w.at.0);
    w.others_go_on(10);
    w.flip();
    w.ill.compact().unwrap();
    w.all_is_right();
    w.touch().unwrap();
}
