//! `terrane get`, `put` and `del`.

use std::io::{Read, Write};

use serde_json::json;
use terrane::{Durability, SubtableOptions, WriteBatch};

use crate::args::{DelArgs, GetArgs, PutArgs};
use crate::text::{argument, escape};
use crate::{Failure, Outcome};

pub(crate) fn get(a: &GetArgs) -> Result<Outcome, Failure> {
    let key = argument(&a.key, a.raw)?;
    let db = a.db.open_existing()?;
    let value = db.subtable(&a.table)?.get(&key)?;
    db.close()?;
    let mut out = std::io::stdout().lock();
    match &value {
        _ if a.json => {
            let value = value.as_deref().map(escape);
            writeln!(out, "{}", json!({ "key": escape(&key), "found": value.is_some(), "value": value }))?;
        }
        Some(v) if a.raw => out.write_all(v)?,
        Some(v) => writeln!(out, "{}", escape(v))?,
        None => eprintln!("terrane: no such key"),
    }
    out.flush()?;
    Ok(if value.is_some() { Outcome::Done } else { Outcome::Negative })
}

pub(crate) fn put(a: &PutArgs) -> Result<Outcome, Failure> {
    let key = argument(&a.key, a.raw)?;
    let value = if a.value == "-" {
        let mut v = Vec::new();
        std::io::stdin().lock().read_to_end(&mut v)?;
        v
    } else {
        argument(&a.value, a.raw)?
    };
    let db = a.medium.open(&a.db)?;
    let table = db.subtable_or_create(&a.table, SubtableOptions::new())?;
    let mut batch = WriteBatch::new();
    batch.put(&table, &key, &value)?;
    db.write(batch, Durability::Sync)?;
    db.close()?;
    Ok(Outcome::Done)
}

pub(crate) fn del(a: &DelArgs) -> Result<Outcome, Failure> {
    let key = argument(&a.key, a.raw)?;
    let db = a.db.open_existing()?;
    let table = db.subtable(&a.table)?;
    let mut batch = WriteBatch::new();
    match &a.to {
        Some(to) => batch.delete_range(&table, &key, &argument(to, a.raw)?)?,
        None => batch.delete(&table, &key)?,
    }
    db.write(batch, Durability::Sync)?;
    db.close()?;
    Ok(Outcome::Done)
}
