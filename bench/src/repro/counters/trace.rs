//! What lookups touch in memory, thread by thread, from the trace of valgrind's lackey: which lines of 64 bytes are written
//! that other threads touch too.
//!
//! The trace lists instructions and what they load and store; valgrind runs one thread after the other, and its scheduler
//! says between the lines which one goes on. A lookup is taken from its function's entry to the return to its caller. Each
//! thread's first ones do not count: they set up what it keeps for itself.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Failure;
use crate::repro::counters::tool;

/// Lookups at the beginning of each thread that do not count.
const FIRST: u64 = 32;
/// Most threads that are told apart.
const MOST_THREADS: usize = 64;
const LINE_BYTES: u64 = 64;

/// What threads' lookups share.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    /// Lookups looked at.
    pub(super) lookups: u64,
    pub(super) threads: usize,
    /// All stores.
    pub(super) stores: u64,
    /// Stores to lines that more than one thread writes, by the address of the instruction.
    pub(super) written_by_many: BTreeMap<u64, u64>,
    /// Stores to lines that one thread writes and others read, by instruction.
    pub(super) read_by_others: BTreeMap<u64, u64>,
    /// Loads of such lines by others than their writer.
    pub(super) loads_by_others: u64,
}

/// What was done to a line of memory.
#[derive(Clone, Debug, Default)]
struct Line {
    /// Threads, a bit each.
    writers: u64,
    readers: u64,
    /// Stores, by instruction.
    stores: Vec<(u64, u64)>,
    /// Loads, by thread.
    loads: Vec<(u32, u64)>,
}

/// A lookup that is under way.
struct Lookup {
    /// Where it returns to.
    back: u64,
    /// Instruction, address, whether it stores.
    touched: Vec<(u64, u64, bool)>,
}

/// A thread, as far as the trace has come.
#[derive(Default)]
struct Thread {
    /// The last instruction, and where the next one stands behind it.
    at: u64,
    next: u64,
    now: Option<Lookup>,
    lookups: u64,
}

/// See the module's head.
#[derive(Default)]
pub(super) struct Trace {
    /// Which thread goes on, from 0.
    running: usize,
    threads: Vec<Thread>,
    lines: HashMap<u64, Line>,
    lookups: u64,
}

impl Trace {
    /// Follows lookups that begin at the address `entry`, whatever that is at the time, to the end of the trace.
    pub(super) fn read(from: impl Read, entry: &AtomicU64) -> Result<Trace, Failure> {
        let mut trace = Trace::default();
        let mut outcome = Ok(());
        tool::each_line(from, &mut |line| {
            if outcome.is_ok() {
                outcome = trace.see(line, entry.load(Ordering::Relaxed));
            }
        })?;
        outcome.map(|()| trace)
    }

    /// One line: `I  ADDRESS,SIZE`, or ` L`, ` S`, ` M` (both) and the same, or what the scheduler says. Anything else is no part
    /// of the trace.
    fn see(&mut self, line: &str, entry: u64) -> Result<(), Failure> {
        if line.starts_with("--") {
            return resumed(line).map_or(Ok(()), |thread| self.resume(thread));
        }
        let Some((kind, place)) = line.split_at_checked(3) else { return Ok(()) };
        let Some((address, size)) = place.split_once(',') else { return Ok(()) };
        let (Ok(address), Ok(size)) = (u64::from_str_radix(address, 16), size.parse::<u64>()) else {
            return Ok(());
        };
        match kind {
            "I  " => self.step(address, size, entry),
            " L " => self.touch(address, false),
            " S " => self.touch(address, true),
            " M " => {
                self.touch(address, false);
                self.touch(address, true);
            }
            _ => {}
        }
        Ok(())
    }

    /// Thread `number`, of those from 1 on, goes on.
    fn resume(&mut self, number: usize) -> Result<(), Failure> {
        if !(1..=MOST_THREADS).contains(&number) {
            return Err(format!("thread {number}: {MOST_THREADS} can be told apart").into());
        }
        self.running = number - 1;
        if self.threads.len() < number {
            self.threads.resize_with(number, Thread::default);
        }
        Ok(())
    }

    fn step(&mut self, address: u64, size: u64, entry: u64) {
        let Some(thread) = self.threads.get_mut(self.running) else { return };
        let next = std::mem::replace(&mut thread.next, address + size);
        thread.at = address;
        if address == entry {
            thread.now = Some(Lookup { back: next, touched: Vec::new() });
        } else if let Some(lookup) = thread.now.take_if(|l| l.back == address) {
            thread.lookups += 1;
            if thread.lookups > FIRST {
                self.over(lookup);
            }
        }
    }

    fn touch(&mut self, address: u64, store: bool) {
        if let Some(thread) = self.threads.get_mut(self.running)
            && let Some(lookup) = &mut thread.now
        {
            lookup.touched.push((thread.at, address, store));
        }
    }

    fn over(&mut self, lookup: Lookup) {
        let thread = self.running;
        self.lookups += 1;
        for (at, address, store) in lookup.touched {
            let line = self.lines.entry(address / LINE_BYTES).or_default();
            if store {
                line.writers |= 1 << thread;
                add(&mut line.stores, at);
            } else {
                line.readers |= 1 << thread;
                add(&mut line.loads, thread as u32);
            }
        }
    }

    /// What is shared.
    pub(super) fn finish(self) -> Shared {
        let mut shared = Shared {
            lookups: self.lookups,
            threads: self.threads.iter().filter(|t| t.lookups > FIRST).count(),
            ..Shared::default()
        };
        for line in self.lines.values() {
            shared.stores += line.stores.iter().map(|(_, n)| n).sum::<u64>();
            let sites = if line.writers.count_ones() > 1 {
                &mut shared.written_by_many
            } else if line.writers != 0 && line.readers & !line.writers != 0 {
                let others = line.loads.iter().filter(|(t, _)| line.writers & 1 << t == 0);
                shared.loads_by_others += others.map(|(_, n)| n).sum::<u64>();
                &mut shared.read_by_others
            } else {
                continue;
            };
            for &(at, times) in &line.stores {
                *sites.entry(at).or_default() += times;
            }
        }
        shared
    }
}

/// The thread that has become the one to run, if this line of the scheduler's says so: `--PID--   SCHED[3]:  acquired lock (...)`.
fn resumed(line: &str) -> Option<usize> {
    let (number, what) = line.split_once("SCHED[")?.1.split_once("]:")?;
    what.trim_start().starts_with("acquired lock").then(|| number.parse().ok())?
}

fn add<K: PartialEq>(counts: &mut Vec<(K, u64)>, key: K) {
    match counts.iter_mut().find(|(k, _)| *k == key) {
        Some((_, n)) => *n += 1,
        None => counts.push((key, 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(thread: usize, text: &str) -> String {
        format!(
            "--7--   SCHED[{thread}]:  acquired lock (VG_(scheduler))\n{text}--7--   SCHED[{thread}]: releasing lock (x)\n"
        )
    }

    /// A lookup that does `inside`, called from 0x9000.
    fn lookup(thread: usize, inside: &str) -> String {
        on(thread, &format!("{BEGUN}{inside}{ENDED}"))
    }

    const BEGUN: &str = "I  9000,5\n S a000,8\nI  1000,4\n";
    const ENDED: &str = "I  1004,1\n L a000,8\nI  9005,3\n";

    fn shared(text: &str) -> Shared {
        Trace::read(text.as_bytes(), &AtomicU64::new(0x1000)).unwrap().finish()
    }

    /// Past the lookups that do not count.
    fn first() -> String {
        (lookup(1, "") + &lookup(2, "")).repeat(FIRST as usize)
    }

    #[test]
    fn a_line_that_two_threads_write_is_told_with_its_instruction() {
        let inside = "I  1010,3\n M 5000,8\n";
        let text = format!("==7== lackey\n{}{}{}", first(), lookup(1, inside), lookup(2, inside));
        let s = shared(&text);
        assert_eq!((s.lookups, s.threads, s.stores), (2, 2, 2));
        assert_eq!(s.written_by_many, BTreeMap::from([(0x1010, 2)]));
        assert!(s.read_by_others.is_empty());
    }

    #[test]
    fn lines_of_one_thread_are_its_own_until_another_reads_them() {
        let own = format!("{}{}", first(), lookup(1, "I  1010,3\n S 5000,8\n"));
        let s = shared(&own);
        assert!(s.written_by_many.is_empty() && s.read_by_others.is_empty());
        let s = shared(&(own + &lookup(2, "I  1020,3\n L 5020,8\n")));
        assert!(s.written_by_many.is_empty());
        assert_eq!((s.read_by_others, s.loads_by_others), (BTreeMap::from([(0x1010, 1)]), 1));
    }

    #[test]
    fn what_other_threads_do_meanwhile_is_theirs() {
        let own = "I  1010,3\n S 5000,8\n";
        // The second one's lookup, and what a third does outside of any, lie within the first one's.
        let within = lookup(2, "I  1020,3\n S 6000,8\n") + &on(3, "I  2000,3\n S 5008,8\nI  9005,3\n");
        let s = shared(&(first() + &on(1, &format!("{BEGUN}{own}")) + &within + &on(1, ENDED)));
        assert_eq!((s.lookups, s.threads, s.stores), (2, 2, 2));
        assert!(s.written_by_many.is_empty());
    }

    #[test]
    fn the_first_lookups_of_a_thread_do_not_count() {
        let s = shared(&lookup(1, "I  1010,3\n S 5000,8\n"));
        assert_eq!((s.lookups, s.stores), (0, 0));
    }

    #[test]
    fn more_threads_than_can_be_told_apart_are_an_error() {
        let text = on(MOST_THREADS + 1, "");
        assert!(Trace::read(text.as_bytes(), &AtomicU64::new(0)).is_err());
    }
}
