//! The freelist: a stack of numbers, linked through the objects' own words.
//!
//! The word of an object that nobody has ([`PmWord::Free`]) has the number of the one below it in the stack, plus one. These links are
//! never flushed: whatever of them survives a crash, the word still says that nobody has the object, and the stack is built anew from
//! that when the memory is opened.
//!
//! # Concurrency
//! A Treiber stack. `top` is the number of the topmost object plus one, and beside it a count of all changes, so that a compare-exchange
//! by who has loaded it before others took that object and gave it back fails (2^32 changes would have to go by meanwhile). A link is
//! stored before `top` leads to it (release), and loaded after `top` was (acquire). Who loads the word of an object that another one
//! has taken meanwhile may read whatever its owner has stored there; `top` has changed then, so nothing is done with it. If it has not
//! changed, a word that is none of an object that nobody has is damage, and reported.

use crossbeam_utils::CachePadded;
use terrane_base::sync::atomic::{AtomicU64, Ordering};
use terrane_base::{Error, Result};
use terrane_format::pm::PmWord;

const CHANGE: u64 = 1 << 32;

/// The words of a pool's objects.
pub(crate) trait Words {
    fn load(&self, number: u32) -> Result<u64>;
    fn store(&self, number: u32, word: u64) -> Result<()>;
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct FreeList {
    top: CachePadded<AtomicU64>,
}

impl FreeList {
    /// A stack whose topmost is `top`, if there is one; the links below it stand already.
    pub(crate) fn new(top: Option<u32>) -> Self {
        FreeList { top: CachePadded::new(AtomicU64::new(link(top).into())) }
    }

    /// Takes the topmost.
    pub(crate) fn pop(&self, words: &impl Words) -> Result<Option<u32>> {
        let mut top = self.top.load(Ordering::Acquire);
        loop {
            let Some(number) = number(top) else { return Ok(None) };
            let below = match PmWord::decode(number, words.load(number)?) {
                Ok(PmWord::Free(below)) => below,
                other => {
                    let now = self.top.load(Ordering::Acquire);
                    if now == top {
                        return Err(other.err().unwrap_or_else(|| taken_and_free(number)));
                    }
                    top = now;
                    continue;
                }
            };
            let next = changed(top) | u64::from(below);
            match self.top.compare_exchange_weak(top, next, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Ok(Some(number)),
                Err(now) => top = now,
            }
        }
    }

    /// Puts one on top that the caller alone has.
    pub(crate) fn push(&self, words: &impl Words, number: u32) -> Result<()> {
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            words.store(number, PmWord::Free(top as u32).encode(number))?;
            let next = changed(top) | u64::from(link(Some(number)));
            match self.top.compare_exchange_weak(top, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => top = now,
            }
        }
    }
}

/// What stands for an object, or for none, in words and `top`.
pub(crate) fn link(number: Option<u32>) -> u32 {
    number.map_or(0, |n| n + 1)
}

fn number(top: u64) -> Option<u32> {
    (top as u32).checked_sub(1)
}

#[cold]
fn taken_and_free(number: u32) -> Error {
    Error::corruption(format!(
        "object {number} of persistent memory is in the freelist, and its word says that somebody has it"
    ))
}

/// The count of changes, one higher.
fn changed(top: u64) -> u64 {
    (top & !(CHANGE - 1)).wrapping_add(CHANGE)
}
