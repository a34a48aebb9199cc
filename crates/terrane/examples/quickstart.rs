//! Opens a database, writes a batch over two subtables, reads it back, and closes.
//!
//! `cargo run -p terrane --example quickstart`

use terrane::{Db, Durability, Options, ReadOptions, SubtableOptions, WriteBatch};

fn main() -> terrane::Result<()> {
    let dir = std::env::temp_dir().join(format!("terrane-quickstart-{}", std::process::id()));
    let db = Db::open(&dir, Options::new().memtable_bytes(32 << 20).cache_bytes(64 << 20))?;

    let users = db.subtable_or_create("users", SubtableOptions::new())?;
    let mails = db.subtable_or_create("mails", SubtableOptions::new())?;

    // One commit over two subtables: both or neither, and safe from a power failure when `write` returns.
    let mut batch = WriteBatch::new();
    batch.put(&users, b"ada", b"Ada Lovelace")?;
    batch.put(&mails, b"ada/1", b"The engine might compose music.")?;
    batch.put(&mails, b"ada/2", b"See note G.")?;
    db.write(batch, Durability::Sync)?;

    // One operation at a time is a batch of one; it survives the death of the process.
    users.put(b"charles", b"Charles Babbage")?;
    users.delete(b"charles")?;

    assert_eq!(users.get(b"ada")?.as_deref(), Some(&b"Ada Lovelace"[..]));
    assert_eq!(users.get(b"charles")?, None);
    // Without copying the value:
    assert_eq!(users.get_with(b"ada", <[u8]>::len)?, Some(12));

    for record in mails.range(ReadOptions::new().prefix(b"ada/"))? {
        let (key, value) = record?;
        println!("{}: {}", String::from_utf8_lossy(&key), String::from_utf8_lossy(&value));
    }

    // Closing is optional; whoever calls it learns how the last flush went.
    drop((users, mails));
    db.close()?;
    Db::destroy(&dir)
}

#[test]
fn runs() -> terrane::Result<()> {
    main()
}
