//! What lookups touch in memory, thread by thread, from the trace of valgrind's lackey: which lines of 64 bytes are written
//! that other threads touch too.
//!
//! The trace lists instructions and what they load and store, of one thread after the other, and does not name the thread. So a
//! lookup is taken from its function's entry to the return to its caller, and belongs to the stack that the return address
//! was put on: threads of one workload call from the same depth. Lookups in which threads took turns (another one begins, or
//! returns, before the first does) are left out, and so are each thread's first ones, which set up what it keeps for itself.

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
    thread: usize,
    /// Where it returns to.
    back: u64,
    /// Instruction, address, whether it stores.
    touched: Vec<(u64, u64, bool)>,
}

/// See the module's head.
pub(super) struct Trace {
    /// The last instruction, and where the next one stands behind it.
    at: u64,
    next: u64,
    /// The last store, and the last load.
    stored: u64,
    loaded: u64,
    now: Option<Lookup>,
    /// Stacks seen, and the lookups of each.
    threads: Vec<(u64, u64)>,
    lines: HashMap<u64, Line>,
    lookups: u64,
}

impl Trace {
    fn new() -> Trace {
        Trace {
            at: 0,
            next: 0,
            stored: 0,
            loaded: 0,
            now: None,
            threads: Vec::new(),
            lines: HashMap::new(),
            lookups: 0,
        }
    }

    /// Follows lookups that begin at the address `entry`, whatever that is at the time, to the end of the trace.
    pub(super) fn read(from: impl Read, entry: &AtomicU64) -> Result<Trace, Failure> {
        let mut trace = Trace::new();
        let mut outcome = Ok(());
        tool::each_line(from, &mut |line| {
            if outcome.is_ok() {
                outcome = trace.see(line, entry.load(Ordering::Relaxed));
            }
        })?;
        outcome.map(|()| trace)
    }

    /// One line: `I  ADDRESS,SIZE`, or ` L`, ` S`, ` M` (both) and the same. Anything else is no part of the trace.
    fn see(&mut self, line: &str, entry: u64) -> Result<(), Failure> {
        let Some((kind, place)) = line.split_at_checked(3) else { return Ok(()) };
        let Some((address, size)) = place.split_once(',') else { return Ok(()) };
        let (Ok(address), Ok(size)) = (u64::from_str_radix(address, 16), size.parse::<u64>()) else {
            return Ok(());
        };
        match kind {
            "I  " => self.step(address, size, entry)?,
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

    fn step(&mut self, address: u64, size: u64, entry: u64) -> Result<(), Failure> {
        if address == entry {
            let thread = self.thread(self.stored)?;
            // One that did not return is lost: another thread began meanwhile.
            self.now = Some(Lookup { thread, back: self.next, touched: Vec::new() });
        } else if let Some(lookup) = self.now.take_if(|l| l.back == address)
            // Else another thread returns, from a lookup that was lost.
            && self.threads[lookup.thread].0 == self.loaded
        {
            self.over(lookup);
        }
        (self.at, self.next) = (address, address + size);
        Ok(())
    }

    fn thread(&mut self, stack: u64) -> Result<usize, Failure> {
        if let Some(known) = self.threads.iter().position(|&(s, _)| s == stack) {
            return Ok(known);
        }
        if self.threads.len() == MOST_THREADS {
            return Err(format!("more than {MOST_THREADS} threads look up").into());
        }
        self.threads.push((stack, 0));
        Ok(self.threads.len() - 1)
    }

    fn touch(&mut self, address: u64, store: bool) {
        *(if store { &mut self.stored } else { &mut self.loaded }) = address;
        let at = self.at;
        if let Some(l) = &mut self.now {
            l.touched.push((at, address, store));
        }
    }

    fn over(&mut self, lookup: Lookup) {
        let thread = lookup.thread;
        self.threads[thread].1 += 1;
        if self.threads[thread].1 <= FIRST {
            return;
        }
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
            threads: self.threads.iter().filter(|(_, n)| *n > FIRST).count(),
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

fn add<K: PartialEq>(counts: &mut Vec<(K, u64)>, key: K) {
    match counts.iter_mut().find(|(k, _)| *k == key) {
        Some((_, n)) => *n += 1,
        None => counts.push((key, 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lookup of the thread with `stack` that does `inside`, called from 0x9000.
    fn lookup(stack: u64, inside: &str) -> String {
        format!("I  9000,5\n S {stack:x},8\nI  1000,4\n{inside}I  1004,1\n L {stack:x},8\nI  9005,3\n")
    }

    fn shared(text: &str) -> Shared {
        Trace::read(text.as_bytes(), &AtomicU64::new(0x1000)).unwrap().finish()
    }

    /// Past the lookups that do not count.
    fn first() -> String {
        (lookup(0xa000, "") + &lookup(0xb000, "")).repeat(FIRST as usize)
    }

    #[test]
    fn a_line_that_two_threads_write_is_told_with_its_instruction() {
        let inside = "I  1010,3\n M 5000,8\n";
        let text = format!("==1== lackey\n{}{}{}", first(), lookup(0xa000, inside), lookup(0xb000, inside));
        let s = shared(&text);
        assert_eq!((s.lookups, s.threads, s.stores), (2, 2, 2));
        assert_eq!(s.written_by_many, BTreeMap::from([(0x1010, 2)]));
        assert!(s.read_by_others.is_empty());
    }

    #[test]
    fn lines_of_one_thread_are_its_own_until_another_reads_them() {
        let own = format!("{}{}", first(), lookup(0xa000, "I  1010,3\n S 5000,8\n"));
        let s = shared(&own);
        assert!(s.written_by_many.is_empty() && s.read_by_others.is_empty());
        let s = shared(&(own + &lookup(0xb000, "I  1020,3\n L 5020,8\n")));
        assert!(s.written_by_many.is_empty());
        assert_eq!((s.read_by_others, s.loads_by_others), (BTreeMap::from([(0x1010, 1)]), 1));
    }

    #[test]
    fn lookups_between_which_threads_took_turns_do_not_count() {
        let begun = "I  9000,5\n S a000,8\nI  1000,4\n S 5000,8\n";
        let s = shared(&format!("{}{begun}{}", first(), lookup(0xb000, "I  1010,3\n S 5000,8\n")));
        assert_eq!((s.lookups, s.stores), (1, 1));
        assert!(s.written_by_many.is_empty());
        // One that had begun before the first goes on to its end within it.
        let s = shared(&format!("{}{begun}I  1010,3\n S 5000,8\nI  1004,1\n L b000,8\nI  9005,3\n", first()));
        assert_eq!((s.lookups, s.stores), (0, 0));
    }

    #[test]
    fn the_first_lookups_of_a_thread_do_not_count() {
        let s = shared(&lookup(0xa000, "I  1010,3\n S 5000,8\n"));
        assert_eq!((s.lookups, s.stores), (0, 0));
    }
}
