//! Every interleaving of threads that take from a freelist and give back:
//! `RUSTFLAGS="--cfg loom" cargo test -p terrane-halloc --lib --release`.
//!
//! An object's owner stores to a cell of its own, so loom fails a model in which two threads have one object. That the models can fail
//! was tried by breaking the code: without the count of changes `taken_by_one_at_a_time` fails.

use terrane_base::Result;
use terrane_base::sync::atomic::{AtomicU64, Ordering};
use terrane_base::sync::{Arc, UnsafeCell, bounded, thread};

use terrane_format::pm::PmWord;

use crate::freelist::{FreeList, Words, link};

struct Objects {
    words: Vec<AtomicU64>,
    content: Vec<UnsafeCell<u32>>,
    list: FreeList,
}

impl Words for Vec<AtomicU64> {
    fn load(&self, number: u32) -> Result<u64> {
        Ok(self[number as usize].load(Ordering::Acquire))
    }

    fn store(&self, number: u32, word: u64) -> Result<()> {
        self[number as usize].store(word, Ordering::Release);
        Ok(())
    }
}

impl Objects {
    /// So many objects, all free, the lowest on top.
    fn new(count: u32) -> Arc<Self> {
        let below = |n| (n + 1 < count).then_some(n + 1);
        Arc::new(Objects {
            words: (0..count).map(|n| AtomicU64::new(PmWord::Free(link(below(n))).encode(n))).collect(),
            content: (0..count).map(|_| UnsafeCell::new(0)).collect(),
            list: FreeList::new(Some(0)),
        })
    }

    /// Takes one, if there is one, has it and changes its content and word.
    fn take(&self) -> Option<u32> {
        let number = self.list.pop(&self.words).unwrap()?;
        // Whoever else has it is in there too, which loom sees.
        self.content[number as usize].with_mut(|_| ());
        self.words.store(number, PmWord::Taken(77).encode(number)).unwrap();
        Some(number)
    }

    fn give(&self, number: u32) {
        self.content[number as usize].with_mut(|_| ());
        self.list.push(&self.words, number).unwrap();
    }
}

#[test]
fn taken_by_one_at_a_time() {
    bounded(3).check(|| {
        let objects = Objects::new(3);
        let other = objects.clone();
        let beside = thread::spawn(move || {
            let (a, b) = (other.take(), other.take());
            a.into_iter().for_each(|n| other.give(n));
            b.into_iter().for_each(|n| other.give(n));
        });
        let a = objects.take();
        let b = objects.take();
        a.into_iter().chain(b).for_each(|n| objects.give(n));
        beside.join().unwrap();
        let mut all: Vec<_> = std::iter::from_fn(|| objects.take()).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2], "none is lost");
    });
}

#[test]
fn what_is_given_back_is_there_for_the_next() {
    loom::model(|| {
        let objects = Objects::new(1);
        let other = objects.clone();
        let mine = objects.take().unwrap();
        let beside = thread::spawn(move || other.take().inspect(|n| other.give(*n)));
        objects.give(mine);
        beside.join().unwrap();
        assert_eq!(objects.take(), Some(0));
    });
}
