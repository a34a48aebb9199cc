//! What callgrind counted of one thread: how often each instruction ran, and the data that it found in no cache.
//!
//! The format is callgrind's own, with names and positions written out (`--compress-strings=no --compress-pos=no`) and
//! instructions as the only position (`--dump-instr=yes --dump-line=no`). A line names its events once; of the numbers behind a position
//! those at the end may be left out, where they are 0.

use std::collections::HashMap;
use std::ops::AddAssign;
use std::rc::Rc;

use crate::Failure;

/// An instruction: the object that it is in, and its address there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Site {
    pub(super) object: Rc<str>,
    pub(super) address: u64,
}

/// How often an instruction ran, in which function, and what it missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Runs {
    pub(super) function: Rc<str>,
    pub(super) times: u64,
    pub(super) missed: Misses,
}

/// Loads and stores of data that a level of cache did not have; 0 where no caches were modelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Misses {
    pub(super) first: u64,
    /// Those of them that the last level did not have either.
    pub(super) last: u64,
}

impl AddAssign for Misses {
    fn add_assign(&mut self, other: Misses) {
        self.first += other.first;
        self.last += other.last;
    }
}

/// All that was counted of some threads.
#[derive(Clone, Debug, Default)]
pub(super) struct Profile {
    pub(super) sites: HashMap<Site, Runs>,
}

impl Profile {
    /// Instructions that ran.
    pub(super) fn instructions(&self) -> u64 {
        self.sites.values().map(|r| r.times).sum()
    }

    /// Data that was missed.
    pub(super) fn misses(&self) -> Misses {
        let mut all = Misses::default();
        self.sites.values().for_each(|r| all += r.missed);
        all
    }

    /// Adds what the file `text` says; returns its thread's number, from 1 on in the order of their beginning.
    pub(super) fn add(&mut self, text: &str) -> Result<u64, Failure> {
        let (mut thread, mut events) = (1, Events::of("Ir"));
        let (mut object, mut function): (Rc<str>, Rc<str>) = ("".into(), "".into());
        // The line behind a call repeats what its callee cost, which is counted where it arose.
        let mut callee = false;
        for line in text.lines() {
            if let Some(position) = line.strip_prefix("0x") {
                if std::mem::take(&mut callee) {
                    continue;
                }
                let counted = position.split_once(' ').and_then(|(at, numbers)| {
                    Some((u64::from_str_radix(at, 16).ok()?, events.counted(numbers)?))
                });
                let (address, (times, missed)) =
                    counted.ok_or_else(|| format!("callgrind: what is {line:?}?"))?;
                let none = || Runs { function: function.clone(), times: 0, missed: Misses::default() };
                let site = Site { object: object.clone(), address };
                let runs = self.sites.entry(site).or_insert_with(none);
                runs.times += times;
                runs.missed += missed;
            } else if let Some(name) = line.strip_prefix("ob=") {
                object = name.into();
            } else if let Some(name) = line.strip_prefix("fn=") {
                function = name.into();
            } else if line.starts_with("calls=") {
                callee = true;
            } else if let Some(n) = line.strip_prefix("thread: ") {
                thread = n.trim().parse()?;
            } else if let Some(names) = line.strip_prefix("events: ") {
                events = Events::of(names);
            }
        }
        Ok(thread)
    }
}

/// Which number stands for what: callgrind's names, one after the other.
struct Events<'a>(Vec<&'a str>);

impl<'a> Events<'a> {
    fn of(names: &'a str) -> Self {
        Events(names.split_whitespace().collect())
    }

    /// How often an instruction ran, and what it missed.
    fn counted(&self, numbers: &str) -> Option<(u64, Misses)> {
        let (mut times, mut missed) = (0, Misses::default());
        let mut names = self.0.iter();
        for number in numbers.split_whitespace() {
            let number = number.parse::<u64>().ok()?;
            match *names.next()? {
                "Ir" => times = number,
                "D1mr" | "D1mw" => missed.first += number,
                "DLmr" | "DLmw" => missed.last += number,
                _ => {}
            }
        }
        Some((times, missed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
# callgrind format
version: 1
pid: 7888
part: 1
thread: 2

desc: Trigger: Program termination

positions: instr
events: Ir
summary: 162531


ob=/opt/bench
fl=/src/a.rs
fn=engine::put
0x1200 1000
0x1207 7
cob=/lib/libc.so.6
cfi=./malloc/malloc.c
cfn=malloc
calls=1000 0x98930 
0x1230 42531
0x1230 1000

ob=/lib/libc.so.6
fl=./malloc/malloc.c
fn=malloc
0x98930 1000

ob=/opt/bench
fl=/src/a.rs
fn=engine::put'2
0x1207 3
totals: 3010
";

    #[test]
    fn own_instructions_count_and_those_of_callees_where_they_are() {
        let mut p = Profile::default();
        assert_eq!(p.add(SAMPLE).unwrap(), 2);
        assert_eq!(p.instructions(), 3010);
        let at = |object: &str, address| &p.sites[&Site { object: object.into(), address }];
        assert_eq!(at("/opt/bench", 0x1207).times, 10);
        let runs =
            |function: &str| Runs { function: function.into(), times: 1000, missed: Misses::default() };
        assert_eq!(at("/opt/bench", 0x1230), &runs("engine::put"));
        assert_eq!(at("/lib/libc.so.6", 0x98930), &runs("malloc"));
    }

    #[test]
    fn threads_add_up() {
        let mut p = Profile::default();
        p.add(SAMPLE).unwrap();
        p.add(SAMPLE).unwrap();
        assert_eq!(p.instructions(), 6020);
    }

    #[test]
    fn misses_of_data_are_told_by_level_and_those_of_instructions_are_not_among_them() {
        let text = "events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\nfn=get\n0x10 9 5 4 3 2 1 3 1 1\n0x14 9 9 0 0 7\n\
                    0x18 9\ncalls=1 0x90\n0x18 8 8 8 8 8 8 8 8 8\n0x10 1 1 0 0 1\n";
        let mut p = Profile::default();
        p.add(text).unwrap();
        assert_eq!((p.instructions(), p.misses()), (28, Misses { first: 11, last: 2 }));
        let site = Site { object: "".into(), address: 0x10 };
        assert_eq!(p.sites[&site].missed, Misses { first: 4, last: 2 });
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for text in ["0x1200 many", "0x1200", "events: Ir Dr\n0x1200 1 2 3"] {
            assert!(Profile::default().add(text).is_err(), "{text}");
        }
    }
}
