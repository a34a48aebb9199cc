//! Records that lie in persistent memory: each is as it was written, and stands where its index's order has it.
//!
//! The walk does not go by what a record says that its checksum refuses. Where it is the newest of its key, the rest of its memtable is not
//! looked at, for the way there may lead by its key. (The index itself compares keys where they lie, as each lookup does.)
//!
//! Writers go on meanwhile; what they add behind the walk is not looked at. A walk must come by as many records as the index had before:
//! damage can lead past some, in a skiplist above all.

use terrane_base::Error;
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
                true => self.damage(in_index(records, "does not lead to all of its records")),
            }
        }
    }

    /// Whether it came to the end of the memtable, and found no damage.
    fn walk(&mut self, memtable: &Memtable, records: &ChainRecords) -> bool {
        let (index, found) = (memtable.index(), self.report.damage.len());
        let (mut cursor, mut before) = (Cursor::new(), None::<Vec<u8>>);
        cursor.seek_first(index);
        let mut keys = 0;
        while cursor.valid() {
            let mut newer = None;
            for record in cursor.versions(index) {
                if let Err(e) = memtable.verify(&record) {
                    self.damage(e);
                    if newer.is_none() {
                        self.damage(in_index(records, "was not looked at behind a damaged record"));
                        return false;
                    }
                    break;
                }
                if newer.is_none() {
                    if before.as_deref().is_some_and(|before| before >= record.key) {
                        self.damage(in_index(records, "has keys out of order"));
                        return false;
                    }
                    let key = before.get_or_insert_default();
                    key.clear();
                    key.extend_from_slice(record.key);
                }
                if newer.is_some_and(|newer| record.seq >= newer) || before.as_deref() != Some(record.key) {
                    self.damage(in_index(records, "has versions of a key out of order"));
                    break;
                }
                newer = Some(record.seq);
                self.report.memory_records += 1;
                self.report.bytes += (record.key.len() + record.value.len()) as u64;
            }
            keys += 1;
            if keys % KEYS == 0 && !self.go_on() {
                return false;
            }
            cursor.next(index);
        }
        self.go_on() && self.report.damage.len() == found
    }
}

fn in_index(records: &ChainRecords, what: &str) -> Error {
    Error::corruption(format!("the index of a memtable {what}")).with_file(records.path())
}
