//! Which keys a memtable may have.
//!
//! Most lookups find their key below the memtables, and a search of an index in vain takes several loads of memory, each of which waits
//! for the one before. A Bloom filter tells mostly with one, of a line that is a fiftieth of the size. A key's bits lie in one word
//! (F. Putze, P. Sanders, J. Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", WEA 2007), so a record costs one
//! read-modify-write at most.
//!
//! How many keys there will be is not known. So there are several *stages*, each eight times as large as the one before: keys go to the
//! newest, which is followed by another when it is full, and a lookup asks all. Memory is taken as words are written to: a thousand small
//! memtables take a KiB each, and no insert sets up more than [`PIECE`] words.
//!
//! # Concurrency
//! Any number of writers and readers; all is relaxed but what sets pieces up. A record's bits are set before its sequence is published,
//! and whoever looks for it has read that sequence, or a later one: in between lie the filling of the commit's place in the ring (Release),
//! the orderer that sees it (Acquire) and publishes (Release), and the reader that loads what is published (Acquire). Of what is not
//! published yet a reader may see any part, and is to see nothing. A writer that has not heard of a newer stage adds to the one before,
//! where readers look too.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use terrane_base::MemoryBudget;
use terrane_cache::bring_near;

/// Words of the first stage, and of each further one beside the one before.
const FIRST: usize = 128;
const GROWTH: usize = 8;
const STAGES: usize = 6;
/// Keys for each word: above that a further stage begins. (About one in a hundred absent keys passes a stage that is full.)
const KEYS_PER_WORD: usize = 4;
/// Words that are set up together.
const PIECE: usize = 1 << 10;
/// One key in so many is counted.
const COUNTED: u64 = 64;

type Piece = OnceLock<Box<[AtomicU64]>>;

/// See the module's head. Its memory is charged to a budget until it is dropped.
pub(crate) struct KeyFilter {
    stages: [OnceLock<Box<[Piece]>>; STAGES],
    /// The newest stage.
    newest: AtomicUsize,
    /// Keys that it has, about.
    keys: AtomicUsize,
    bytes: AtomicUsize,
    budget: MemoryBudget,
}

/// Words of each stage.
const WORDS: [usize; STAGES] = {
    let mut words = [FIRST; STAGES];
    let mut stage = 1;
    while stage < STAGES {
        words[stage] = words[stage - 1] * GROWTH;
        stage += 1;
    }
    words
};

/// Words of each piece of a stage.
fn piece_words(stage: usize) -> usize {
    WORDS[stage].min(PIECE)
}

/// Where in a stage the bits of a hash lie, by piece and word.
#[inline]
fn place(hash: u64, stage: usize) -> (usize, usize) {
    let word = ((hash >> 32) as usize * WORDS[stage]) >> 32;
    // Powers of two, which the compiler does not know.
    const { assert!(FIRST.is_power_of_two() && GROWTH.is_power_of_two() && PIECE.is_power_of_two()) };
    let size = piece_words(stage);
    (word >> size.trailing_zeros(), word & (size - 1))
}

/// The bits of a hash, the same in each stage.
#[inline]
fn bits_of(hash: u64) -> u64 {
    (0..4).map(|n| 1u64 << (hash >> (n * 6) & 63)).fold(0, |all, bit| all | bit)
}

/// The word of a hash, if it is set up.
#[inline]
fn word_of(stage: usize, pieces: &[Piece], hash: u64) -> Option<&AtomicU64> {
    let (piece, word) = place(hash, stage);
    pieces.get(piece).and_then(OnceLock::get).and_then(|piece| piece.get(word))
}

/// Whether a stage has all of `bits`, those of the hash.
#[inline]
fn has_bits_in(stage: usize, pieces: &[Piece], hash: u64, bits: u64) -> bool {
    word_of(stage, pieces, hash).is_some_and(|word| word.load(Relaxed) & bits == bits)
}

impl KeyFilter {
    pub(crate) fn new(budget: MemoryBudget) -> Self {
        KeyFilter {
            stages: [const { OnceLock::new() }; STAGES],
            newest: AtomicUsize::new(0),
            keys: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            budget,
        }
    }

    /// Adds the key of this hash.
    pub(crate) fn add(&self, hash: u64) {
        let stage = self.newest.load(Relaxed);
        let ((piece, word), size) = (place(hash, stage), piece_words(stage));
        let pieces = self.pieces_of(stage);
        let piece = pieces[piece].get_or_init(|| {
            let bytes = size * size_of::<u64>();
            self.budget.charge(bytes);
            self.bytes.fetch_add(bytes, Relaxed);
            (0..size).map(|_| AtomicU64::new(0)).collect()
        });
        let (word, bits) = (&piece[word], bits_of(hash));
        if word.load(Relaxed) & bits == bits {
            return;
        }
        word.fetch_or(bits, Relaxed);
        if (hash >> 24).is_multiple_of(COUNTED) {
            self.count(stage);
        }
    }

    /// Those of a stage. Whoever sees them sees those of all stages before it: another thread may have set these up.
    #[inline]
    fn pieces_of(&self, stage: usize) -> &[Piece] {
        self.stages[stage].get_or_init(|| {
            if let Some(before) = stage.checked_sub(1) {
                self.pieces_of(before);
            }
            (0..WORDS[stage] / piece_words(stage)).map(|_| OnceLock::new()).collect()
        })
    }

    #[cold]
    fn count(&self, stage: usize) {
        let before = self.keys.fetch_add(COUNTED as usize, Relaxed);
        let full = WORDS[stage] * KEYS_PER_WORD;
        if before >= full
            && stage + 1 < STAGES
            && self.newest.compare_exchange(stage, stage + 1, Relaxed, Relaxed).is_ok()
        {
            self.keys.store(0, Relaxed);
        }
    }

    /// Whether there may be a record with the key whose hash that is. Asks for it only if there is any.
    #[inline]
    pub(crate) fn may_have(&self, hash: impl FnOnce() -> u64) -> bool {
        self.stages[0].get().is_some() && self.has_bits(hash())
    }

    #[inline]
    fn has_bits(&self, hash: u64) -> bool {
        let mut stages =
            self.stages.iter().enumerate().map_while(|(stage, pieces)| Some((stage, pieces.get()?)));
        let bits = bits_of(hash);
        stages.any(|(stage, pieces)| has_bits_in(stage, pieces, hash, bits))
    }

    /// Has what [`KeyFilter::add`] will look at brought near.
    #[inline]
    pub(crate) fn announce(&self, hash: u64) {
        self.announce_in(self.newest.load(Relaxed), hash);
    }

    /// Has most of what [`KeyFilter::may_have`] will look at brought near: of the stages the two largest.
    #[inline]
    pub(crate) fn announce_lookup(&self, hash: u64) {
        let newest = self.newest.load(Relaxed);
        self.announce_in(newest, hash);
        if newest > 0 {
            self.announce_in(newest - 1, hash);
        }
    }

    #[inline]
    fn announce_in(&self, stage: usize, hash: u64) {
        if let Some(word) = self.stages[stage].get().and_then(|pieces| word_of(stage, pieces, hash)) {
            bring_near(word);
        }
    }

    /// Memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }
}

impl Drop for KeyFilter {
    fn drop(&mut self) {
        self.budget.release(self.bytes());
    }
}

#[cfg(test)]
mod tests {
    use terrane_format::checksum::key_hash;

    use super::*;

    fn hash(n: u64) -> u64 {
        key_hash(&n.to_be_bytes())
    }

    #[test]
    fn what_was_added_is_there_and_little_else_at_every_size() {
        let budget = MemoryBudget::new(1 << 30);
        let filter = KeyFilter::new(budget.clone());
        assert!(!filter.may_have(|| unreachable!("there is nothing")));
        let mut n = 0;
        for size in [1, 600, 5_000, 50_000, 400_000] {
            (n..size).for_each(|n| filter.add(hash(n)));
            n = size;
            assert!((0..size).all(|n| filter.may_have(|| hash(n))), "{size}");
            let wrong = (1 << 40..(1 << 40) + 20_000).filter(|&n| filter.may_have(|| hash(n))).count();
            assert!(wrong < 20_000 / 20, "{wrong} of 20000 with {size}");
            // A stage is set up before its keys are there.
            assert!(filter.bytes() < 2048 + size as usize * 16, "{} bytes for {size}", filter.bytes());
        }
        assert_eq!(budget.used(), filter.bytes());
        drop(filter);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn writers_at_the_same_time_lose_nothing() {
        let filter = KeyFilter::new(MemoryBudget::new(1 << 30));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let filter = &filter;
                scope.spawn(move || {
                    for n in (thread..60_000).step_by(4) {
                        filter.add(hash(n));
                        assert!(filter.may_have(|| hash(n)));
                    }
                });
            }
        });
        assert!((0..60_000).all(|n| filter.may_have(|| hash(n))));
    }
}
