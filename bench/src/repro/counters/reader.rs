//! Reads what was counted: which of it is an atomic read-modify-write, and where in the source that is.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::rc::Rc;

use crate::Failure;
use crate::repro::counters::code::Code;
use crate::repro::counters::place::Places;
use crate::repro::counters::profile::{Misses, Profile, Site};

/// Times per operation from which on a note names a place, and those where it names misses, which are spread over many more.
const NAMED: f64 = 0.005;
const NAMED_MISSES: f64 = 0.1;

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
                rmws.push((site.clone(), runs.function.clone(), runs.times));
            }
        }
        self.found(rmws)
    }

    /// Where a profile's loads and stores are that a level of cache did not have, which `of` names, and how many per operation.
    pub(super) fn misses(
        &mut self,
        profile: &Profile,
        ops: u64,
        of: impl Fn(Misses) -> u64,
    ) -> Result<String, Failure> {
        let all = profile.sites.iter().map(|(site, runs)| (site, runs, of(runs.missed)));
        let missed =
            all.filter(|(.., n)| *n > 0).map(|(site, runs, n)| (site.clone(), runs.function.clone(), n));
        Ok(self.found(missed.collect())?.named(ops, NAMED_MISSES))
    }

    /// Gathers by place what happened so often at these instructions, which are in these functions.
    pub(super) fn found(&mut self, all: Vec<(Site, Rc<str>, u64)>) -> Result<Found, Failure> {
        self.places.learn(all.iter().map(|(site, ..)| site).filter(|s| s.address > 0))?;
        let mut by_place = BTreeMap::<String, u64>::new();
        for (site, function, times) in all {
            let place = self.places.get(&site).unwrap_or(&function);
            let place = library_of(&function).unwrap_or(place).to_owned();
            *by_place.entry(place).or_default() += times;
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
        self.named(ops, NAMED)
    }

    /// As [`Found::says`], by name those that come so often or more.
    fn named(&self, ops: u64, least: f64) -> String {
        let per_op = |n: u64| n as f64 / ops as f64;
        let (named, rest) = self.0.split_at(self.0.partition_point(|&(_, n)| per_op(n) >= least));
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
        // Addresses of nothing: names are those of the functions.
        let ran =
            |function: &str, times| (Site { object: "/nowhere".into(), address: 0 }, function.into(), times);
        let mut reader = Reader::default();
        let all = vec![ran("ring::reserve", 10), ran("_int_free", 5), ran("ring::reserve", 10)];
        let found = reader.found(all).unwrap();
        assert_eq!(found.total(), 25);
        assert_eq!(found.says(10), "2.000 ring::reserve, 0.500 malloc and free");
        assert_eq!(found.named(10, 1.0), "2.000 ring::reserve, 0.500 in 1 other places");
    }
}
