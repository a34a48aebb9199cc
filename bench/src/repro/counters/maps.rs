//! Where a process has files in its memory, as `/proc/PID/maps` says.

use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use crate::Failure;
use crate::repro::counters::profile::Site;

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(super) struct Maps {
    /// Files, each with the address where it begins.
    files: Vec<(Rc<str>, u64)>,
    /// Parts of them, by number.
    parts: Vec<(Range<u64>, usize)>,
}

impl Maps {
    pub(super) fn of(pid: u32) -> Result<Maps, Failure> {
        Ok(Maps::parse(&std::fs::read_to_string(format!("/proc/{pid}/maps"))?))
    }

    fn parse(text: &str) -> Maps {
        let mut maps = Maps::default();
        for line in text.lines() {
            let mut fields = line.split_whitespace();
            let (Some(range), Some(offset), Some(path)) = (fields.next(), fields.nth(1), fields.nth(2))
            else {
                continue;
            };
            let hex = |text: &str| u64::from_str_radix(text, 16).ok();
            let Some((Some(from), Some(to))) = range.split_once('-').map(|(a, b)| (hex(a), hex(b))) else {
                continue;
            };
            let file = match maps.files.iter().position(|(p, _)| **p == *path) {
                Some(known) => known,
                // The first part of a program or library has its beginning.
                None if hex(offset) == Some(0) => {
                    maps.files.push((path.into(), from));
                    maps.files.len() - 1
                }
                None => continue,
            };
            maps.parts.push((from..to, file));
        }
        maps
    }

    /// Where `file` begins.
    pub(super) fn base(&self, file: &Path) -> Option<u64> {
        self.files.iter().find(|(p, _)| Path::new(&**p) == file).map(|&(_, at)| at)
    }

    /// What lies at `address`.
    pub(super) fn site(&self, address: u64) -> Option<Site> {
        let &(_, file) = self.parts.iter().find(|(r, _)| r.contains(&address))?;
        let (object, base) = &self.files[file];
        Some(Site { object: object.clone(), address: address - base })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_their_files() {
        let maps = Maps::parse(
            "\
00108000-00109000 r--p 00000000 fd:00 11 /opt/terrane-bench
00109000-00119000 r-xp 00001000 fd:00 11 /opt/terrane-bench
04000000-04001000 r--p 00000000 fd:00 12 /lib/libc.so.6
04001000-04009000 r-xp 00001000 fd:00 12 /lib/libc.so.6
1ffefff000-1fff001000 rw-p 00000000 00:00 0
1fff001000-1fff002000 rw-p 00000000 00:00 0 [stack]
",
        );
        assert_eq!(maps.base(Path::new("/opt/terrane-bench")), Some(0x0010_8000));
        assert_eq!(maps.base(Path::new("/opt/other")), None);
        assert_eq!(maps.site(0x0400_1010), Some(Site { object: "/lib/libc.so.6".into(), address: 0x1010 }));
        assert_eq!(maps.site(0x1f_ff00_0000), None);
    }
}
