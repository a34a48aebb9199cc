//! Commits to persistent memory where a file system maps it, and to the page cache in its place elsewhere.
//!
//! `cargo run -p terrane --example persistent_memory [FILE]`: a file to be made on a file system mounted with `-o dax`.

use std::path::Path;

use terrane::{
    Db, Durability, ErrorKind, Medium, Options, PmemMode, PmemOptions, Result, SubtableOptions, WriteBatch,
};

/// Makes a database whose memory has 64 MiB; at `file`, if one is named.
fn create(dir: &Path, file: Option<&Path>) -> Result<Db> {
    let memory = match file {
        Some(file) => PmemOptions::new(64 << 20).path(file),
        None => PmemOptions::new(64 << 20),
    };
    let options = |memory| Options::new().error_if_exists(true).medium(Medium::Pmem(memory));
    match Db::open(dir, options(memory.clone())) {
        // No persistent memory: the same on an ordinary file, with a log behind it that power failures do not take.
        Err(e) if e.kind() == ErrorKind::Unsupported => {
            eprintln!("{e}");
            Db::open(dir, options(memory.mode(PmemMode::PageCache)))
        }
        opened => opened,
    }
}

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("terrane-pm-{}", std::process::id()));
    let file = std::env::args_os().nth(1).map(std::path::PathBuf::from);
    let db = create(&dir, file.as_deref())?;
    let users = db.create_subtable("users", SubtableOptions::new())?;
    // On persistent memory this survives a power failure, in the page cache the death of the process.
    users.put(b"ada", b"Ada Lovelace")?;
    // And this a power failure in either case.
    let mut batch = WriteBatch::new();
    batch.put(&users, b"charles", b"Charles Babbage")?;
    db.write(batch, Durability::Sync)?;
    let stats = db.stats();
    println!("{:?}, {} of {} bytes used", stats.pmem_mode, stats.pmem_used, stats.pmem_bytes);
    drop(users);
    db.close()?;

    // Whoever opens it later need not say where commits go.
    let db = Db::open(&dir, Options::new())?;
    assert_eq!(db.subtable("users")?.get(b"ada")?.as_deref(), Some(&b"Ada Lovelace"[..]));
    db.close()?;
    // A memory that lies elsewhere is the caller's to remove.
    Db::destroy(&dir)
}

#[test]
fn runs() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let db = create(&dir.path().join("db"), None)?;
    assert!(matches!(db.stats().pmem_mode, Some(PmemMode::PageCache | PmemMode::Dax)));
    db.close()
}
