//! What callgrind counted of one thread: how often each instruction ran.
//!
//! The format is callgrind's own, with names and positions written out (`--compress-strings=no --compress-pos=no`) and
//! instructions as the only position (`--dump-instr=yes --dump-line=no`).

use std::collections::HashMap;
use std::rc::Rc;

use crate::Failure;

/// An instruction: the object that it is in, and its address there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Site {
    pub(super) object: Rc<str>,
    pub(super) address: u64,
}

/// How often an instruction ran, and in which function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Runs {
    pub(super) function: Rc<str>,
    pub(super) times: u64,
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

    /// Adds what the file `text` says; returns its thread's number, from 1 on in the order of their beginning.
    pub(super) fn add(&mut self, text: &str) -> Result<u64, Failure> {
        let mut thread = 1;
        let (mut object, mut function): (Rc<str>, Rc<str>) = ("".into(), "".into());
        // The line behind a call repeats what its callee cost, which is counted where it arose.
        let mut callee = false;
        for line in text.lines() {
            if let Some(position) = line.strip_prefix("0x") {
                if std::mem::take(&mut callee) {
                    continue;
                }
                let counted = position.split_once(' ').and_then(|(at, times)| {
                    Some((u64::from_str_radix(at, 16).ok()?, times.trim().parse::<u64>().ok()?))
                });
                let (address, times) = counted.ok_or_else(|| format!("callgrind: what is {line:?}?"))?;
                let site = Site { object: object.clone(), address };
                self.sites
                    .entry(site)
                    .or_insert_with(|| Runs { function: function.clone(), times: 0 })
                    .times += times;
            } else if let Some(name) = line.strip_prefix("ob=") {
                object = name.into();
            } else if let Some(name) = line.strip_prefix("fn=") {
                function = name.into();
            } else if line.starts_with("calls=") {
                callee = true;
            } else if let Some(n) = line.strip_prefix("thread: ") {
                thread = n.trim().parse()?;
            }
        }
        Ok(thread)
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
        assert_eq!(at("/opt/bench", 0x1230), &Runs { function: "engine::put".into(), times: 1000 });
        assert_eq!(at("/lib/libc.so.6", 0x98930), &Runs { function: "malloc".into(), times: 1000 });
    }

    #[test]
    fn threads_add_up() {
        let mut p = Profile::default();
        p.add(SAMPLE).unwrap();
        p.add(SAMPLE).unwrap();
        assert_eq!(p.instructions(), 6020);
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        assert!(Profile::default().add("0x1200 many").is_err());
    }
}
