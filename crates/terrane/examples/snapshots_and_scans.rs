//! Snapshots that never change, scans in both directions, typed keys that sort as their values do.
//!
//! `cargo run -p terrane --example snapshots_and_scans`

use terrane::tuple::{self, Element};
use terrane::{Db, Options, ReadOptions, SubtableOptions};

/// The key of a reading: sensor, then time.
fn key(sensor: &str, time: i64) -> Vec<u8> {
    tuple::encode([Element::from(sensor), Element::from(time)])
}

fn main() -> terrane::Result<()> {
    let dir = std::env::temp_dir().join(format!("terrane-scans-{}", std::process::id()));
    let db = Db::open(&dir, Options::new())?;
    let readings = db.create_subtable("readings", SubtableOptions::new())?;
    for time in -5..5 {
        readings.put(&key("attic", time), format!("{} degrees", 20 + time).as_bytes())?;
        readings.put(&key("cellar", time), b"12 degrees")?;
    }

    // All readings of one sensor: its tuple is a prefix of their keys.
    let attic = tuple::encode([Element::from("attic")]);
    let before = db.snapshot();
    readings.delete_range(&key("attic", i64::MIN), &key("attic", 0))?;

    let now = readings.range(ReadOptions::new().prefix(&attic))?.count();
    let then = readings.range(ReadOptions::new().prefix(&attic).snapshot(&before))?.count();
    assert_eq!((now, then), (5, 10), "the snapshot still sees what was deleted after it");

    // The newest three, from the end.
    for record in readings.range(ReadOptions::new().prefix(&attic))?.rev().take(3) {
        let (key, value) = record?;
        println!("{:?}: {}", tuple::decode(&key)?, String::from_utf8_lossy(&value));
    }

    // A cursor goes both ways from where it stands.
    let mut cursor = readings.cursor(ReadOptions::new().lower(key("attic", 0)).upper(key("cellar", 0)))?;
    cursor.seek(&key("attic", 3))?;
    assert!(cursor.valid() && cursor.key() == key("attic", 3));
    cursor.prev()?;
    assert_eq!(cursor.value()?.as_ref(), b"22 degrees");
    cursor.seek_to_last()?;
    assert_eq!(cursor.key(), key("cellar", -1));

    drop((cursor, before, readings));
    db.close()?;
    Db::destroy(&dir)
}

#[test]
fn runs() -> terrane::Result<()> {
    main()
}
