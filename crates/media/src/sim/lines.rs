//! What stores to persistent memory leave behind when power fails.
//!
//! A store is certain once a thread has flushed its line and fenced; one that goes around the caches once the thread that made it has
//! fenced. Until then
//! * ordinary stores to a line survive as a prefix, in the order in which they were made: the processor may write the line back at
//!   any moment, and what it writes is the line as it is then;
//! * stores that go around the caches survive each on its own;
//! * lines know nothing of each other.
//!
//! When a process dies, what its threads sent around the caches is no more certain, but it is in its place: a store to the same word by
//! whoever comes later is behind it.
//!
//! That is what the manuals promise (Intel, "Persistent Memory Programming", and volume 2 of the processors' manual: CLWB, MOVNTI), and
//! words of eight bytes are whole. The other model ([`PmModel::Words`]) is that of the Tair contest of 2020: of each word that is not
//! certain, either what was stored last survives or what was certain, by the toss of a coin.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::thread::ThreadId;

use super::crash::PmModel;
use super::inode::Mood;
use super::pages::Pages;
use super::rng::Rng;
use crate::LINE;

const WORD: usize = 8;

/// One word stored.
#[derive(Clone, Debug)]
struct Store {
    /// Counts all stores to the file.
    at: u64,
    word: u64,
    value: [u8; WORD],
    way: Way,
}

/// How a store goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Cached,
    /// Around the caches, by that thread.
    Streamed(ThreadId),
    /// Around the caches, by a thread that is gone.
    Left,
}

/// What became of the stores that were not certain.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// None of them survived.
    Lost,
    /// All of them did.
    Kept,
    /// By seed, line by line.
    Torn(Mood, u64),
    /// By seed, word by word.
    Words(Mood, u64),
    /// One of the [`Lines::states`] of a model, by its number, where these can be counted.
    Chosen(PmModel, u64),
}

/// The stores to one file of persistent memory that are not certain.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    lines: BTreeMap<u64, Vec<Store>>,
    /// By thread: lines on their way, each up to the store before which it was flushed.
    flushed: HashMap<ThreadId, Vec<(u64, u64)>>,
    stores: u64,
}

impl Lines {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.lines.clear();
        self.flushed.clear();
    }

    /// The threads are gone, and what they had on its way is as uncertain as all else.
    pub(super) fn forget_threads(&mut self) {
        self.flushed.clear();
        for store in self.lines.values_mut().flatten() {
            if matches!(store.way, Way::Streamed(_)) {
                store.way = Way::Left;
            }
        }
    }

    /// Whole words, of which those in `streamed` go around the caches.
    pub(super) fn store(&mut self, offset: u64, bytes: &[u8], streamed: &Range<usize>, thread: ThreadId) {
        let (words, _) = bytes.as_chunks::<WORD>();
        for (i, value) in words.iter().enumerate() {
            let word = offset / WORD as u64 + i as u64;
            let way = if streamed.contains(&(i * WORD)) { Way::Streamed(thread) } else { Way::Cached };
            let line = word / (LINE / WORD) as u64;
            let store = Store { at: self.stores, word, value: *value, way };
            self.lines.entry(line).or_default().push(store);
            self.stores += 1;
            if way != Way::Cached {
                self.flushed.entry(thread).or_default().push((line, self.stores));
            }
        }
    }

    pub(super) fn flush(&mut self, offset: u64, len: u64, thread: ThreadId) {
        if len == 0 {
            return;
        }
        let (first, last) = (offset / LINE as u64, (offset + len - 1) / LINE as u64);
        let on_their_way = self.flushed.entry(thread).or_default();
        on_their_way.extend(self.lines.range(first..=last).map(|(line, _)| (*line, self.stores)));
    }

    /// What `thread` has flushed is certain.
    pub(super) fn fence(&mut self, thread: ThreadId, durable: &mut Pages) {
        for (line, upto) in self.flushed.remove(&thread).unwrap_or_default() {
            let Some(stores) = self.lines.get_mut(&line) else { continue };
            let mut words = Vec::new();
            stores.retain(|s| {
                let certain = s.at < upto && [Way::Cached, Way::Streamed(thread)].contains(&s.way);
                if certain {
                    s.put(durable);
                    words.push((s.word, s.at));
                }
                !certain
            });
            let is_over = |s: &Store| words.iter().any(|(word, at)| *word == s.word && s.at < *at);
            stores.retain(|s| s.way != Way::Left || !is_over(s));
            if stores.is_empty() {
                self.lines.remove(&line);
            }
        }
    }

    /// How many different contents a power failure may leave by a model (as far as a `u64` counts).
    pub(super) fn states(&self, model: PmModel) -> u64 {
        self.lines.values().fold(1, |all, stores| all.saturating_mul(states(stores, model)))
    }

    /// Applies what survives.
    pub(super) fn survive(&self, pages: &mut Pages, fate: Fate) {
        let mut left = if let Fate::Chosen(_, number) = fate { number } else { 0 };
        for (line, stores) in &self.lines {
            match fate {
                Fate::Lost => {}
                Fate::Kept => stores.iter().for_each(|s| s.put(pages)),
                Fate::Torn(mood, id) => {
                    let mut rng = Rng::of(mood.seed, &[id, *line, 0x6c69_6e65]);
                    let ordinary = stores.iter().filter(|s| s.way == Way::Cached).count() as u64;
                    let keep = rng.chance(mood.keep);
                    let prefix = if keep { ordinary } else { rng.below(ordinary + 1) };
                    put_some(stores, prefix, pages, || keep || rng.chance(0.5));
                }
                Fate::Words(mood, id) => {
                    let kept = |s: &&Store| Rng::of(mood.seed, &[id, s.word, 0x776f_7264]).chance(0.5);
                    stores.iter().filter(kept).for_each(|s| s.put(pages));
                }
                Fate::Chosen(model, _) => {
                    choose(stores, model, left % states(stores, model), pages);
                    left /= states(stores, model);
                }
            }
        }
    }
}

impl Store {
    fn put(&self, pages: &mut Pages) {
        pages.write(self.word * WORD as u64, &self.value);
    }
}

/// How many contents one line may have: prefixes of the ordinary stores, times subsets of the others; or subsets of the words. The last one has all
/// stores.
fn states(stores: &[Store], model: PmModel) -> u64 {
    let (prefixes, of_subsets) = match model {
        PmModel::Lines => {
            let streamed = stores.iter().filter(|s| s.way != Way::Cached).count();
            ((stores.len() - streamed) as u64 + 1, streamed)
        }
        PmModel::Words => (1, words(stores).count_ones() as usize),
    };
    1u64.checked_shl(of_subsets as u32).map_or(u64::MAX, |subsets| prefixes.saturating_mul(subsets))
}

/// Which words of a line there are stores to, a bit for each.
fn words(stores: &[Store]) -> u64 {
    stores.iter().fold(0, |words, s| words | word_bit(s))
}

fn word_bit(s: &Store) -> u64 {
    1 << (s.word % (LINE / WORD) as u64)
}

fn choose(stores: &[Store], model: PmModel, number: u64, pages: &mut Pages) {
    if model == PmModel::Words {
        let all = words(stores);
        // The number's bits are those of the words that there are stores to, from the lowest one.
        let kept = |s: &&Store| number >> (all & (word_bit(s) - 1)).count_ones() & 1 == 1;
        return stores.iter().filter(kept).for_each(|s| s.put(pages));
    }
    let prefixes = stores.iter().filter(|s| s.way == Way::Cached).count() as u64 + 1;
    let mut subset = number / prefixes;
    put_some(stores, number % prefixes, pages, || {
        let bit = subset & 1 == 1;
        subset >>= 1;
        bit
    });
}

/// Puts the first `prefix` of the ordinary stores, and those of the others that `pick` wants.
fn put_some(stores: &[Store], mut prefix: u64, pages: &mut Pages, mut pick: impl FnMut() -> bool) {
    for s in stores {
        let survives = if s.way != Way::Cached {
            pick()
        } else {
            let within = prefix > 0;
            prefix = prefix.saturating_sub(1);
            within
        };
        if survives {
            s.put(pages);
        }
    }
}
