//! What persistent memory costs, added to memory that costs less: for measuring where there is no device.
//!
//! Blocks of [`PM_BLOCK`] bytes take their time to write, one after the other, whoever writes them, and a fence waits for those of its
//! thread; and blocks take their time to come when they are read. Writes that follow one another within a block are one, for a thread: the
//! device has a small buffer in which they meet. Words that are loaded or exchanged one by one take no time: they are few, and lie in lines that
//! the processor mostly has. Whatever such a memory takes part in is *simulated*, and whoever reports it says so.
//!
//! The figures are those of one module of Optane DCPMM: J. Izraelevitz et al., "Basic Performance Measurements of the Intel Optane DC
//! Persistent Memory Module", 2019.
//!
//! # Concurrency
//! The moment at which the device has written all that it was given is one atomic number. A block moves it on by a compare-exchange.

use std::cell::Cell;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use terrane_base::Result;

use super::{LINE, PM_BLOCK, Pmem, PmemMode};

/// What a device takes, beside what the memory does that it is simulated on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PmemCost {
    /// Until the first block comes that is read.
    pub read: Duration,
    /// Until each further one comes.
    pub read_next: Duration,
    /// For a block to be written.
    pub write: Duration,
}

impl PmemCost {
    /// One module of Optane DCPMM: 305 ns for a load at random, of which 80 are ordinary memory's; 6.6 GB/s of reading, 2.3 of writing.
    pub const OPTANE: PmemCost = PmemCost {
        read: Duration::from_nanos(225),
        read_next: Duration::from_nanos(39),
        write: Duration::from_nanos(111),
    };
}

/// A device's queue of blocks to write, in nanoseconds of a clock that begins somewhere.
#[derive(Debug, Default)]
struct Queue {
    written_at: AtomicU64,
}

impl Queue {
    /// Adds what takes `nanos`, at the moment `now`; when it will have been written.
    fn add(&self, now: u64, nanos: u64) -> u64 {
        let end = |before: u64| before.max(now) + nanos;
        let before =
            self.written_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, |before| Some(end(before)));
        end(before.unwrap_or_else(|now| now))
    }
}

thread_local! {
    /// Of the memory that this thread wrote last: its number, the last block, and when that will have been written.
    static LAST: Cell<(u64, u64, u64)> = const { Cell::new((0, 0, 0)) };
}

/// The number of the next memory. None has 0.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A memory that costs more than the one it is made of.
#[derive(Debug)]
pub struct CostlyPmem {
    inner: Arc<dyn Pmem>,
    /// Which one it is of this process. (Addresses come again.)
    number: u64,
    cost: PmemCost,
    start: Instant,
    queue: Queue,
}

impl CostlyPmem {
    /// `inner`, at this cost beside its own.
    pub fn new(inner: Arc<dyn Pmem>, cost: PmemCost) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        CostlyPmem { inner, number, cost, start: Instant::now(), queue: Queue::default() }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// What this thread wrote last here: the block, and when it will have been written.
    fn last(&self) -> Option<(u64, u64)> {
        let (memory, block, end) = LAST.get();
        (memory == self.number).then_some((block, end))
    }

    /// Lines of a range are on their way to the device.
    fn wrote(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        let (first, last) = (offset / LINE * LINE / PM_BLOCK, (offset + len - 1) / PM_BLOCK);
        let begun = self.last().is_some_and(|(block, _)| block == first as u64);
        let blocks = (last - first) as u64 + u64::from(!begun);
        if blocks > 0 {
            let end = self.queue.add(self.now(), blocks * self.cost.write.as_nanos() as u64);
            LAST.set((self.number, last as u64, end));
        }
    }

    /// Nanoseconds until a range has come.
    fn read_nanos(&self, offset: usize, len: usize) -> u64 {
        if len == 0 {
            return 0;
        }
        let more = ((offset + len - 1) / PM_BLOCK - offset / PM_BLOCK) as u64;
        self.cost.read.as_nanos() as u64 + self.cost.read_next.as_nanos() as u64 * more
    }

    fn wait_until(&self, moment: u64) {
        while self.now() < moment {
            std::hint::spin_loop();
        }
    }
}

impl Pmem for CostlyPmem {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn mode(&self) -> PmemMode {
        self.inner.mode()
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn base(&self) -> NonNull<u8> {
        self.inner.base()
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.inner.write(offset, bytes)?;
        self.wrote(offset, bytes.len());
        Ok(())
    }

    fn store_word(&self, offset: usize, word: u64) -> Result<()> {
        self.inner.store_word(offset, word)
    }

    fn compare_exchange_word(&self, offset: usize, from: u64, to: u64) -> Result<bool> {
        self.inner.compare_exchange_word(offset, from, to)
    }

    fn load_word(&self, offset: usize) -> Result<u64> {
        self.inner.load_word(offset)
    }

    fn load(&self, offset: usize, buf: &mut [u8]) -> Result<()> {
        self.inner.load(offset, buf)?;
        self.touch(offset, buf.len());
        Ok(())
    }

    fn is_costly(&self) -> bool {
        true
    }

    fn touch(&self, offset: usize, len: usize) {
        match self.read_nanos(offset, len) {
            0 => {}
            nanos => self.wait_until(self.now() + nanos),
        }
    }

    fn flush(&self, offset: usize, len: usize) -> Result<()> {
        self.inner.flush(offset, len)?;
        self.wrote(offset, len);
        Ok(())
    }

    fn fence(&self) {
        self.inner.fence();
        if let Some((_, end)) = self.last() {
            self.wait_until(end);
        }
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
}

#[cfg(test)]
mod tests {
    use crate::sim::SimMedia;
    use crate::{Media, create_pmem};

    use super::*;

    #[test]
    fn blocks_are_written_one_after_the_other() {
        let queue = Queue::default();
        assert_eq!(queue.add(1000, 100), 1100);
        assert_eq!(queue.add(1010, 100), 1200, "behind the one before");
        assert_eq!(queue.add(5000, 100), 5100, "at once");
    }

    #[test]
    fn the_first_block_takes_longer_to_come_than_those_behind_it() {
        let media = SimMedia::new(1);
        create_pmem(&*media, Path::new("/pm"), 4096, &[]).unwrap();
        let inner = media.map_pmem(Path::new("/pm"), PmemMode::Dax).unwrap();
        let cost = PmemCost {
            read: Duration::from_nanos(1000),
            read_next: Duration::from_nanos(10),
            write: Duration::ZERO,
        };
        let pm = CostlyPmem::new(inner, cost);
        assert_eq!(pm.read_nanos(100, 0), 0);
        assert_eq!((pm.read_nanos(0, 1), pm.read_nanos(0, 256), pm.read_nanos(255, 1)), (1000, 1000, 1000));
        assert_eq!((pm.read_nanos(255, 2), pm.read_nanos(0, 1024)), (1010, 1030));
    }

    #[test]
    fn a_costly_memory_is_the_same_memory_and_small_writes_within_a_block_are_one() {
        let media = SimMedia::new(1);
        create_pmem(&*media, Path::new("/pm"), 4096, &[]).unwrap();
        let inner = media.map_pmem(Path::new("/pm"), PmemMode::Dax).unwrap();
        // Writing takes so long that nobody waits for it here.
        let day = Duration::from_secs(86_400);
        let cost = PmemCost { read: Duration::ZERO, read_next: Duration::ZERO, write: day };
        let pm = CostlyPmem::new(inner.clone(), cost);
        let day = day.as_nanos() as u64;
        let days = || pm.queue.written_at.load(Ordering::Relaxed) / day;
        pm.write(0, &[1; 8]).unwrap();
        assert_eq!(days(), 1);
        pm.write(8, &[2; 200]).unwrap();
        pm.flush(192, 64).unwrap();
        assert_eq!(days(), 1, "within the block");
        pm.write(248, &[3; 16]).unwrap();
        assert_eq!(days(), 2, "into the next");
        pm.write(1024, &[4; 1024]).unwrap();
        assert_eq!(days(), 6);
        pm.write(0, &[5; 8]).unwrap();
        assert_eq!(days(), 7, "back to the first");
        let mut bytes = [0; 2048];
        pm.load(0, &mut bytes).unwrap();
        let mut direct = [0; 2048];
        inner.load(0, &mut direct).unwrap();
        assert_eq!(bytes, direct);
        assert_eq!((bytes[0], bytes[8], bytes[250], bytes[2000]), (5, 2, 3, 4));
        pm.store_word(64, 9).unwrap();
        assert!(
            pm.compare_exchange_word(64, 9, 10).unwrap() && !pm.compare_exchange_word(64, 9, 11).unwrap()
        );
        assert_eq!((pm.load_word(64).unwrap(), pm.len(), pm.mode()), (10, 4096, PmemMode::Dax));
    }
}
