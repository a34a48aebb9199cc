//! Which I/O calls of a simulated machine fail, and how.

use std::path::Path;

use super::OpKind;
use super::rng::Rng;

/// How an injected fault shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The call fails with `EIO` and does nothing. A failed sync has made a seeded part of the changes durable; the
    /// rest never will be, even if a later sync succeeds.
    Io,
    /// The call fails with `ENOSPC` and does nothing.
    NoSpace,
    /// A read or write does a seeded part of its work, then fails with `EIO`. As [`Fault::Io`] for other calls.
    Short,
    /// A read or write succeeds with one seeded bit the wrong way round. Other calls are not concerned.
    BitFlip,
}

/// Which calls fail.
///
/// Calls are counted from 0 at [`super::SimMedia::set_fault`], over all calls that can fail, reads included; stores to and
/// loads from regions cannot.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    when: When,
    fault: Fault,
    kinds: Option<Vec<OpKind>>,
    files: Option<String>,
    sticky: bool,
    calls: u64,
    hits: u64,
}

#[derive(Clone, Debug)]
enum When {
    Nth(u64),
    Random(f64, Rng),
}

impl FaultPlan {
    /// The call of this number fails.
    pub fn nth(call: u64, fault: Fault) -> Self {
        FaultPlan::new(When::Nth(call), fault)
    }

    /// Each call fails with this probability, by seed.
    pub fn random(probability: f64, seed: u64, fault: Fault) -> Self {
        FaultPlan::new(When::Random(probability, Rng::new(seed)), fault)
    }

    fn new(when: When, fault: Fault) -> Self {
        FaultPlan { when, fault, kinds: None, files: None, sticky: false, calls: 0, hits: 0 }
    }

    /// After the first hit every call that the plan concerns fails, as on a device that died.
    #[must_use]
    pub fn sticky(mut self) -> Self {
        self.sticky = true;
        self
    }

    /// Only calls of these kinds count and fail.
    #[must_use]
    pub fn only(mut self, kinds: &[OpKind]) -> Self {
        self.kinds = Some(kinds.to_vec());
        self
    }

    /// Only calls on files (or directories) whose name starts with `prefix` count and fail.
    #[must_use]
    pub fn files(mut self, prefix: &str) -> Self {
        self.files = Some(prefix.to_owned());
        self
    }

    /// How many calls have failed.
    pub(super) fn hits(&self) -> u64 {
        self.hits
    }

    /// Counts a call in; says whether and how it fails.
    pub(super) fn check(&mut self, kind: OpKind, path: &Path) -> Option<Fault> {
        let concerned = (self.fault != Fault::BitFlip || matches!(kind, OpKind::Read | OpKind::Write))
            && self.kinds.as_ref().is_none_or(|k| k.contains(&kind))
            && self.files.as_ref().is_none_or(|prefix| {
                path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(prefix.as_str()))
            });
        if !concerned {
            return None;
        }
        let call = self.calls;
        self.calls += 1;
        let hit = match &mut self.when {
            When::Nth(n) => call == *n,
            When::Random(p, rng) => rng.chance(*p),
        };
        if hit || (self.sticky && self.hits > 0) {
            self.hits += 1;
            return Some(self.fault);
        }
        None
    }
}
