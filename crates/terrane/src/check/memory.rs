//! Records that lie in persistent memory: each is as it was written, and stands where its index's order has it.
//!
//! The walk does not go by what a record says that its checksum refuses. Where it is the newest of its key, the rest of its memtable is not
//! looked at, for the way there may lead by its key. (The index itself compares keys where they lie, as each lookup does.)
//!
//! Writers go on meanwhile; what they add behind the walk is not looked at. A walk must come by as many records as the index had before:
//! damage can lead past some, in a skiplist above all.

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
        // Twice: what another thread has counted just before may not be seen yet.
        let least = memtable.index().len() as u64;
        for again in [false, true] {
            let (seen, bytes) = (self.report.memory_records, self.report.bytes);
            if !self.walk(memtable, records) || self.report.memory_records - seen >= least {
                return;
            }
            match again {
                false => (self.report.memory_records, self.report.bytes) = (seen, bytes),
                true => self.damage(missing(records)),
            }
        }
    }

    /// Whether it came to the end of the memtable, and found no damage.
    fn walk(&mut self, memtable: &Memtable, records: &ChainRecords) -> bool {
        let (index, found) = (memtable.index(), self.report.damage.len());
        let (mut cursor, mut before) = (Cursor::new(), None::<Vec<u8>>);
        cursor.seek_first(index);
        for number in 1.. {
            if !cursor.valid() {
                break;
            }
            let mut newer = MAX_SEQ + 1;
            for record in cursor.versions(index) {
                if let Err(e) = memtable.verify(&record) {
                    self.damage(e);
                    if newer > MAX_SEQ {
                        self.damage(unseen(records));
                        return false;
                    }
                    break;
                }
                if newer > MAX_SEQ {
                    if before.as_deref().is_some_and(|before| before >= record.key) {
                        self.damage(out_of_order(records, "keys"));
                        return false;
                    }
                    let key = before.get_or_insert_default();
                    key.clear();
                    key.extend_from_slice(record.key);
                }
                if record.seq >= newer || before.as_deref() != Some(record.key) {
                    self.damage(out_of_order(records, "versions of a key"));
                    break;
                }
                newer = record.seq;
                self.report.memory_records += 1;
                self.report.bytes += (record.key.len() + record.value.len()) as u64;
            }
            if number % KEYS == 0 && !self.go_on() {
                return false;
            }
            cursor.next(index);
        }
        self.go_on() && self.report.damage.len() == found
    }
}

fn out_of_order(records: &ChainRecords, what: &str) -> Error {
    let e = Error::corruption(format!("the index of a memtable has {what} out of order"));
    e.with_file(records.path())
}

fn missing(records: &ChainRecords) -> Error {
    Error::corruption("the index of a memtable does not lead to all of its records").with_file(records.path())
}

fn unseen(records: &ChainRecords) -> Error {
    Error::corruption("what comes behind a damaged record in the index of a memtable was not looked at")
        .with_file(records.path())
}
