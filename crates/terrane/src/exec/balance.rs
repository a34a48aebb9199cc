//! Who owns what, by what there is to do: a core with much more of it than another one hands a subtable over, or a part of one that is hot
//! by itself, cut where the keys lie that are asked for.

use std::time::Duration;

use parking_lot::Mutex;
use terrane_base::{Current, SubtableId};

use crate::exec::placement::Placement;

/// One key in so many is noted, to know where to cut.
const STRIDE: u64 = 64;
/// Keys noted of a subtable in each period.
const NOTED: usize = 64;
/// Longest key that is noted whole; of a longer one this much.
const NOTED_BYTES: usize = 64;
/// Below so many requests of the busiest core in a period nothing is moved: there is time enough.
const BUSY: u64 = 1000;

/// Requests of a core, counted.
#[derive(Default)]
pub(super) struct Load {
    requests: u64,
    since: Duration,
}

impl Load {
    #[inline]
    pub(super) fn count(&mut self) {
        self.requests += 1;
    }

    /// The count, and begins anew, if the last time was long enough ago.
    pub(super) fn take(&mut self, now: Duration, period: Duration) -> Option<u64> {
        if now.saturating_sub(self.since) < period {
            return None;
        }
        self.since = now;
        Some(std::mem::take(&mut self.requests))
    }
}

/// Requests for one subtable at one core.
#[derive(Clone, Debug, Default)]
pub(super) struct Served {
    requests: u64,
    /// Some of their keys.
    keys: Vec<Box<[u8]>>,
}

impl Served {
    #[inline]
    pub(super) fn count(&mut self, key: &[u8]) {
        self.requests += 1;
        if self.requests.is_multiple_of(STRIDE) {
            self.note(key);
        }
    }

    #[cold]
    fn note(&mut self, key: &[u8]) {
        let key = key[..key.len().min(NOTED_BYTES)].into();
        if self.keys.len() < NOTED {
            self.keys.push(key);
        } else {
            // The oldest makes room.
            let at = (self.requests / STRIDE) as usize % NOTED;
            self.keys[at] = key;
        }
    }

    pub(super) fn take(&mut self) -> Served {
        std::mem::take(self)
    }

    /// A key in front of which about `part` of the requests' keys lie. `None` if they all lie at one.
    fn cut(&self, part: f64) -> Option<Box<[u8]>> {
        let mut keys = self.keys.clone();
        keys.sort_unstable();
        let first = keys.first()?.clone();
        let at = (keys.len() as f64 * part) as usize;
        keys.into_iter().skip(at).find(|key| *key > first)
    }
}

/// What a core did in a period.
#[derive(Clone, Debug, Default)]
struct Report {
    total: u64,
    tables: Vec<(SubtableId, Served)>,
}

/// See the module's head.
pub(super) struct Balance {
    enabled: bool,
    reports: Mutex<Vec<Option<Report>>>,
}

impl Balance {
    pub(super) fn new(cores: usize, enabled: bool) -> Self {
        Balance { enabled: enabled && cores > 1, reports: Mutex::new(vec![None; cores]) }
    }

    /// Takes what a core did, and moves something if that is worth it; says whether it did.
    pub(super) fn report(
        &self,
        core: usize,
        total: u64,
        tables: Vec<(SubtableId, Served)>,
        placement: &Current<Placement>,
    ) -> bool {
        if !self.enabled {
            return false;
        }
        let before = placement.epoch();
        let mut reports = self.reports.lock();
        // A core that sleeps reports nothing: when another one reports for the second time, the period is over for all.
        if reports[core].is_some() {
            decide(&taken(&mut reports), placement);
        }
        reports[core] = Some(Report { total, tables });
        if reports.iter().all(Option::is_some) {
            decide(&taken(&mut reports), placement);
        }
        placement.epoch() != before
    }
}

/// What there is, to begin anew.
fn taken(reports: &mut [Option<Report>]) -> Vec<Report> {
    reports.iter_mut().map(|r| r.take().unwrap_or_default()).collect()
}

/// Moves what evens out the busiest core and the idlest one.
fn decide(reports: &[Report], placement: &Current<Placement>) {
    let cores = || reports.iter().enumerate();
    let (Some((busy, most)), Some((idle, least))) =
        (cores().max_by_key(|(_, r)| r.total), cores().min_by_key(|(_, r)| r.total))
    else {
        return;
    };
    let gap = most.total - least.total;
    // A quarter more is not worth cold caches.
    if most.total < BUSY || gap * 4 <= most.total {
        return;
    }
    // A whole subtable that takes at least half of what is too much, and at most as much again.
    let whole = most
        .tables
        .iter()
        .filter(|(_, s)| s.requests * 4 >= gap && s.requests * 4 <= gap * 3)
        .min_by_key(|(_, s)| (s.requests * 2).abs_diff(gap));
    if let Some((table, _)) = whole {
        placement.replace(|p| {
            let own = p.pieces(*table).into_iter().filter(|piece| piece.core == busy);
            own.fold(p.clone(), |p, piece| p.hand_over(*table, &piece.start, idle))
        });
        return;
    }
    // Else a part of the hottest.
    let Some((table, served)) = most.tables.iter().max_by_key(|(_, s)| s.requests) else { return };
    if served.requests * 4 < gap {
        return;
    }
    let stays = 1.0 - (gap as f64 / 2.0 / served.requests as f64).min(0.9);
    if let Some(cut) = served.cut(stays) {
        placement.replace(|p| p.split(*table, &cut, idle).unwrap_or_else(|| p.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOT: SubtableId = SubtableId(4);

    fn served(keys: std::ops::Range<u16>, times: u64) -> Served {
        let mut served = Served::default();
        for n in 0..times {
            let span = u64::from(keys.end - keys.start);
            served.count(&(keys.start + (n * 7919 % span) as u16).to_be_bytes());
        }
        served
    }

    fn decided(reports: &[Report]) -> Placement {
        let placement = Current::new(Placement::new(reports.len()));
        decide(reports, &placement);
        (*placement.load_full()).clone()
    }

    fn report(tables: &[(SubtableId, Served)]) -> Report {
        Report { total: tables.iter().map(|(_, s)| s.requests).sum(), tables: tables.to_vec() }
    }

    #[test]
    fn what_is_even_stays() {
        let (a, b) =
            (report(&[(HOT, served(0..100, 5000))]), report(&[(SubtableId(5), served(0..100, 4000))]));
        let p = decided(&[a, b]);
        assert_eq!((p.owner(HOT, b"x"), p.owner(SubtableId(5), b"x")), (0, 1));
    }

    #[test]
    fn a_subtable_moves_from_who_has_many() {
        let (cool, warm) = (served(0..100, 2000), served(0..100, 3000));
        let p = decided(&[
            report(&[(HOT, warm), (SubtableId(6), cool.clone()), (SubtableId(8), cool)]),
            report(&[]),
        ]);
        assert_eq!(p.owner(HOT, b"x"), 1);
        assert_eq!((p.owner(SubtableId(6), b"x"), p.owner(SubtableId(8), b"x")), (0, 0));
    }

    #[test]
    fn a_hot_subtable_is_cut_where_its_keys_lie() {
        let p = decided(&[report(&[(HOT, served(1000..2000, 60_000))]), report(&[])]);
        let pieces = p.pieces(HOT);
        assert_eq!(pieces.iter().map(|piece| piece.core).collect::<Vec<_>>(), [0, 1]);
        let cut = u16::from_be_bytes(pieces[1].start[..].try_into().unwrap());
        assert!((1300..1700).contains(&cut), "{cut}");
    }

    #[test]
    fn a_single_hot_key_stays_where_it_is() {
        let p = decided(&[report(&[(HOT, served(7..8, 60_000))]), report(&[])]);
        assert_eq!(p.pieces(HOT).len(), 1);
    }

    #[test]
    fn who_sleeps_counts_as_idle_after_a_period() {
        let (balance, placement) = (Balance::new(2, true), Current::new(Placement::new(2)));
        let hot = || vec![(HOT, served(0..1000, 60_000))];
        balance.report(0, 60_000, hot(), &placement);
        assert_eq!(placement.load_full().pieces(HOT).len(), 1, "the other one may report yet");
        balance.report(0, 60_000, hot(), &placement);
        assert_eq!(placement.load_full().pieces(HOT).len(), 2);
    }
}
