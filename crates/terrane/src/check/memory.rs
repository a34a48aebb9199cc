//! Records that lie in persistent memory: each is as it was written, and stands where its index's order has it.
//!
//! Writers go on meanwhile; what they add behind the walk is not looked at. A record that an index has lost is not missed here: opening
//! reads chains from end to end.

use terrane_base::{Error, MAX_SEQ};
use terrane_memindex::Cursor;

use crate::chains::records::ChainRecords;
use crate::check::{Check, Progress};
use crate::db::table::Table;
use crate::memtable::Memtable;

/// After so many keys it is told how far the check is.
const KEYS: usize = 1024;

/// Bytes that a subtable's memtables have in persistent memory.
pub(super) fn bytes(table: &Table) -> u64 {
    table.state().memtables.iter().filter_map(|m| m.chain()).map(|records| records.bytes() as u64).sum()
}

impl<P: FnMut(Progress) -> bool> Check<'_, P> {
    /// Verifies what a memtable has in persistent memory, if it has its records there.
    pub(super) fn memtable(&mut self, memtable: &Memtable) {
        let Some(records) = memtable.chain() else { return };
        let index = memtable.index();
        let (mut cursor, mut before) = (Cursor::new(), None::<Vec<u8>>);
        cursor.seek_first(index);
        for number in 1.. {
            if !cursor.valid() {
                break;
            }
            let key = cursor.key(index);
            if before.as_deref().is_some_and(|before| before >= key) {
                self.damage(out_of_order(records, "keys"));
            }
            let mut newer = MAX_SEQ + 1;
            for record in cursor.versions(index) {
                if let Err(e) = memtable.verify(&record) {
                    self.damage(e);
                }
                if record.seq >= newer || record.key != key {
                    self.damage(out_of_order(records, "versions of a key"));
                }
                newer = record.seq;
                self.report.memory_records += 1;
                self.report.bytes += (record.key.len() + record.value.len()) as u64;
            }
            let last = before.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
            if number % KEYS == 0 && !self.go_on() {
                return;
            }
            cursor.next(index);
        }
    }
}

fn out_of_order(records: &ChainRecords, what: &str) -> Error {
    let e = Error::corruption(format!("the index of a memtable has {what} out of order"));
    e.with_file(records.path())
}
