//! What memtables may take: memory for their records, and for all that finds records.
//!
//! Where both are in one memory they share what it has. Where records are in persistent memory and their indexes in ordinary memory, each has
//! a budget of its own, of the same size: a record's place in the index takes nothing that another record could have, and yet the
//! indexes of tiny records, or of many range tombstones, do not grow without bounds. The fuller one is what counts then: memtables are
//! compared, and added up, by what they have of that one.

use terrane_base::MemoryBudget;

/// See the module's head. Cloning shares both.
#[derive(Clone, Debug)]
pub(crate) struct MemtableBudget {
    records: MemoryBudget,
    /// That of indexes, where it is not the same.
    indexes: Option<MemoryBudget>,
}

/// Of which memory bytes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// There is but one.
    Both,
    Records,
    Indexes,
}

impl MemtableBudget {
    /// One memory for both.
    pub(crate) fn shared(limit: usize) -> Self {
        MemtableBudget { records: MemoryBudget::new(limit), indexes: None }
    }

    /// A memory for each.
    pub(crate) fn apart(limit: usize) -> Self {
        MemtableBudget { records: MemoryBudget::new(limit), indexes: Some(MemoryBudget::new(limit)) }
    }

    /// Whether there are two memories.
    pub(crate) fn is_apart(&self) -> bool {
        self.indexes.is_some()
    }

    /// What zones of persistent memory are charged to.
    pub(crate) fn records(&self) -> &MemoryBudget {
        &self.records
    }

    /// What all is charged to that lies in ordinary memory: indexes, and records that are not in persistent memory.
    pub(crate) fn indexes(&self) -> &MemoryBudget {
        self.indexes.as_ref().unwrap_or(&self.records)
    }

    /// The memory that counts now.
    pub(crate) fn fuller(&self) -> Of {
        self.counting().0
    }

    fn counting(&self) -> (Of, &MemoryBudget) {
        match &self.indexes {
            None => (Of::Both, &self.records),
            Some(indexes) if indexes.used() > self.records.used() => (Of::Indexes, indexes),
            Some(_) => (Of::Records, &self.records),
        }
    }

    /// Bytes charged now, of the fuller memory.
    pub(crate) fn used(&self) -> usize {
        self.counting().1.used()
    }

    /// Bytes charged now to the memory that indexes have for themselves.
    pub(crate) fn beside_records(&self) -> usize {
        self.indexes.as_ref().map_or(0, MemoryBudget::used)
    }

    /// The most bytes that each should have.
    pub(crate) fn limit(&self) -> usize {
        self.records.limit()
    }

    /// Whether more than so many hundredths of the limit are used.
    pub(crate) fn is_over(&self, percent: usize) -> bool {
        self.counting().1.is_over(percent)
    }

    /// Used over limit: 1.0 means exhausted.
    pub(crate) fn fullness(&self) -> f64 {
        self.counting().1.fullness()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuller_memory_counts() {
        let (shared, apart) = (MemtableBudget::shared(100), MemtableBudget::apart(100));
        for budget in [&shared, &apart] {
            budget.records().charge(60);
            budget.indexes().charge(30);
            assert_eq!(budget.limit(), 100);
        }
        assert_eq!((shared.used(), apart.used()), (90, 60));
        assert_eq!(apart.fuller(), Of::Records);
        assert_eq!((shared.beside_records(), apart.beside_records()), (0, 30));
        assert!((shared.fullness() - 0.9).abs() < 1e-9 && (apart.fullness() - 0.6).abs() < 1e-9);
        apart.clone().indexes().charge(80);
        assert_eq!(apart.used(), 110);
        assert_eq!((shared.fuller(), apart.fuller()), (Of::Both, Of::Indexes));
        assert!(apart.fullness() > 1.0 && apart.is_apart() && !shared.is_apart());
    }
}
