//! Reads what was counted: which of it is an atomic read-modify-write, and where in the source that is.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::rc::Rc;

use crate::Failure;
use crate::repro::counters::code::Code;
use crate::repro::counters::place::Places;
use crate::repro::counters::profile::{Profile, Runs, Site};

/// Times per operation from which on a note names a place.
const NAMED: f64 = 0.005;

/// Knows the code that was counted.
#[derive(Default)]
pub(super) struct Reader {
    code: HashMap<Rc<str>, Code>,
    places: Places,
}

impl Reader {
    pub(super) fn code(&mut self, object: &Rc<str>) -> Result<&Code, Failure> {
        if !self.code.contains_key(object) {
            // What valgrind knows no file of has another name: `???`.
            let code = if Path::new(&**object).is_file() { Code::of(object)? } else { Code::default() };
            self.code.insert(object.clone(), code);
        }
        self.code.get(object).ok_or_else(|| format!("{object}: not read").into())
    }

    /// The atomic read-modify-writes of a profile.
    pub(super) fn rmws(&mut self, profile: &Profile) -> Result<Found, Failure> {
        let mut rmws = Vec::new();
        for (site, runs) in &profile.sites {
            if self.code(&site.object)?.is_rmw(site.address) {
                rmws.push((site.clone(), runs.clone()));
            }
        }
        self.found(rmws)
    }

    /// Gathers what ran by place.
    pub(super) fn found(&mut self, all: Vec<(Site, Runs)>) -> Result<Found, Failure> {
        self.places.learn(all.iter().map(|(site, _)| site).filter(|s| s.address > 0))?;
        let mut by_place = BTreeMap::<String, u64>::new();
        for (site, runs) in all {
            let place = self.places.get(&site).unwrap_or(&runs.function);
            let place = library_of(&runs.function).unwrap_or(place).to_owned();
            *by_place.entry(place).or_default() += runs.times;
        }
        let mut places: Vec<_> = by_place.into_iter().collect();
        places.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
        Ok(Found(places))
    }
}

/// What a function of the C library belongs to, where its place says less than that.
fn library_of(function: &str) -> Option<&'static str> {
    const ALLOCATOR: [&str; 13] = [
        "malloc",
        "free",
        "calloc",
        "realloc",
        "posix_memalign",
        "aligned_alloc",
        "memalign",
        "_mid_memalign",
        "_int_",
        "arena_get",
        "tcache_",
        "sysmalloc",
        "__libc_",
    ];
    const THREADS: [&str; 6] = ["pthread_", "__pthread_", "___pthread_", "__lll_", "__new_sem", "sem_"];
    let of = |names: &[&str]| names.iter().any(|n| function.starts_with(n));
    if of(&ALLOCATOR) {
        Some("malloc and free")
    } else if of(&THREADS) {
        Some("pthread")
    } else {
        None
    }
}

/// Places and how often something ran there, the most frequent first.
#[derive(Clone, Debug)]
pub(super) struct Found(Vec<(String, u64)>);

impl Found {
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|(_, n)| n).sum()
    }

    /// The places with their times per operation.
    pub(super) fn says(&self, ops: u64) -> String {
        let per_op = |n: u64| n as f64 / ops as f64;
        let (named, rest) = self.0.split_at(self.0.partition_point(|&(_, n)| per_op(n) >= NAMED));
        let mut all: Vec<String> =
            named.iter().map(|(place, n)| format!("{:.3} {place}", per_op(*n))).collect();
        if !rest.is_empty() {
            let n = rest.iter().map(|(_, n)| n).sum();
            all.push(format!("{:.3} in {} other places", per_op(n), rest.len()));
        }
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_per_operation_and_the_allocator_as_one() {
        let runs = |function: &str, times| Runs { function: function.into(), times };
        let site = |address| Site { object: "/nowhere".into(), address };
        let mut reader = Reader::default();
        // Addresses of nothing: names are those of the functions.
        let found = reader
            .found(vec![
                (site(0), runs("ring::reserve", 10)),
                (site(0), runs("_int_free", 5)),
                (site(0), runs("ring::reserve", 10)),
            ])
            .unwrap();
        assert_eq!(found.total(), 25);
        assert_eq!(found.says(10), "2.000 ring::reserve, 0.500 malloc and free");
    }
}
