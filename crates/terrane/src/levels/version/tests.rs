use std::sync::atomic::{AtomicUsize, Ordering};

use terrane_base::ErrorKind;
use terrane_format::value_ref::ValuePiece;

use super::*;
use crate::levels::state::DbState;
use crate::levels::testkit::{T, create, extent, meta};

fn whole(reclaimer: &Arc<Reclaimer>, id: u64, lo: &str, hi: &str) -> ExtentRef {
    ExtentRef::whole(extent(meta(id, lo, hi), reclaimer))
}

fn added(parts: Vec<(u8, u64, ExtentRef)>) -> VersionEdit {
    VersionEdit { removed: Vec::new(), added: parts }
}

fn value(id: u64) -> ValueRef {
    let piece = ValuePiece { file: 1, unit: id as u32, units: 1, crc: 0 };
    ValueRef { id, len: 1, pieces: vec![piece] }
}

fn ids(extents: &[Arc<Extent>]) -> Vec<u64> {
    extents.iter().map(|e| e.meta.id.0).collect()
}

#[test]
fn l0_runs_are_newest_first_and_levels_may_have_gaps() {
    let r = Reclaimer::new(|| {});
    let edit = added(vec![
        (0, 4, whole(&r, 1, "a", "c")),
        (0, 9, whole(&r, 2, "b", "d")),
        (0, 9, whole(&r, 3, "a", "b")),
        (3, 0, whole(&r, 4, "a", "z")),
    ]);
    let v = Version::empty(r.clone()).apply(&edit).unwrap().version;
    assert_eq!(v.l0.iter().map(|r| r.id).collect::<Vec<_>>(), [9, 4]);
    assert_eq!(v.levels.iter().map(|r| r.refs().len()).collect::<Vec<_>>(), [0, 0, 1]);
    assert_eq!(v.runs().map(|(level, _)| level).collect::<Vec<_>>(), [0, 0, 1, 2, 3]);
    assert_eq!(v.l0[0].find(b"a").unwrap().extent.meta.id.0, 3);
    let edit = VersionEdit { removed: vec![RefKey::of(3, 0, &edit.added[3].2)], added: Vec::new() };
    let next = v.apply(&edit).unwrap();
    assert!(next.version.levels.is_empty());
    assert_eq!((v.levels.len(), ids(&next.obsolete)), (3, vec![4]));
}

#[test]
fn a_moved_or_trimmed_extent_is_not_obsolete() {
    let r = Reclaimer::new(|| {});
    let part = whole(&r, 1, "a", "z");
    let v = Version::empty(r.clone()).apply(&added(vec![(0, 1, part.clone())])).unwrap().version;
    let moved = VersionEdit { removed: vec![RefKey::of(0, 1, &part)], added: vec![(1, 0, part.clone())] };
    let applied = v.apply(&moved).unwrap();
    assert!(applied.obsolete.is_empty() && applied.version.l0.is_empty());
    let (left, right) = (part.trim(b"a", Some(b"f")).unwrap(), part.trim(b"k", None).unwrap());
    let trimmed = VersionEdit {
        removed: vec![RefKey::of(1, 0, &part)],
        added: vec![(1, 0, left.clone()), (1, 0, right.clone()), (1, 0, whole(&r, 2, "f", "k"))],
    };
    let applied = applied.version.apply(&trimmed).unwrap();
    assert!(applied.obsolete.is_empty());
    let gone =
        VersionEdit { removed: vec![RefKey::of(1, 0, &left), RefKey::of(1, 0, &right)], added: vec![] };
    assert_eq!(ids(&applied.version.apply(&gone).unwrap().obsolete), [1]);
}

#[test]
fn edits_that_do_not_fit_are_corruption() {
    let r = Reclaimer::new(|| {});
    let part = whole(&r, 1, "c", "f");
    let v = Version::empty(r.clone()).apply(&added(vec![(1, 0, part.clone())])).unwrap().version;
    for edit in [
        added(vec![(1, 0, whole(&r, 2, "a", "d"))]),
        added(vec![(1, 7, whole(&r, 2, "x", "y"))]),
        added(vec![(200, 0, whole(&r, 2, "x", "y"))]),
        VersionEdit { removed: vec![RefKey::of(2, 0, &part)], added: vec![] },
        VersionEdit { removed: vec![RefKey::of(1, 0, &part), RefKey::of(1, 0, &part)], added: vec![] },
        VersionEdit { removed: vec![RefKey::of(1, 0, &whole(&r, 9, "c", "f"))], added: vec![] },
    ] {
        assert_eq!(v.apply(&edit).unwrap_err().kind(), ErrorKind::Corruption, "{edit:?}");
    }
}

#[test]
fn an_edit_made_before_a_part_was_trimmed_again_is_refused() {
    let r = Reclaimer::new(|| {});
    // Two merges side by side, [a, m) and [n, z), both made of a version in which one extent straddles the gap.
    let (left, right, below) = (whole(&r, 1, "a", "m"), whole(&r, 2, "n", "z"), whole(&r, 3, "k", "p"));
    let parts = vec![(1, 0, left.clone()), (1, 0, right.clone()), (2, 0, below.clone())];
    let v = Version::empty(r.clone()).apply(&added(parts)).unwrap().version;
    let merge = |from: &ExtentRef, rest: ExtentRef| VersionEdit {
        removed: vec![RefKey::of(1, 0, from), RefKey::of(2, 0, &below)],
        added: vec![(2, 0, rest)],
    };
    let first = merge(&left, below.trim(b"m", None).unwrap());
    let second = merge(&right, below.trim(b"", Some(b"n")).unwrap());
    for (one, other) in [(&first, &second), (&second, &first)] {
        let next = v.apply(one).unwrap().version;
        assert_eq!(next.apply(other).unwrap_err().kind(), ErrorKind::Corruption, "{other:?}");
    }
}

#[test]
fn versions_and_the_manifest_agree_on_every_edit() {
    let r = Reclaimer::new(|| {});
    let mut state = DbState::default();
    state.apply(&[create(1, "t")]).unwrap();
    let mut version = Version::empty(r.clone());
    let (a, b) = (whole(&r, 1, "a", "m"), whole(&r, 2, "m", "z"));
    let steps = [
        added(vec![(0, 1, a.clone()), (0, 2, b.clone())]),
        VersionEdit {
            removed: vec![RefKey::of(0, 1, &a)],
            added: vec![(1, 0, a.trim(b"b", Some(b"f")).unwrap())],
        },
        VersionEdit { removed: vec![RefKey::of(0, 2, &b)], added: vec![(1, 0, b.clone())] },
    ];
    for edit in steps {
        state.apply(&edit.to_edits(T)).unwrap();
        version = version.apply(&edit).unwrap().version;
        let mut opened = 0;
        let rebuilt = Version::from_state(&state.subtables[&T], r.clone(), |m| {
            opened += 1;
            Ok(extent(m.clone(), &r))
        })
        .unwrap();
        let picture = |v: &Version| -> Vec<_> {
            v.runs()
                .flat_map(|(level, run)| {
                    run.refs()
                        .iter()
                        .map(move |p| (level, run.id, p.extent.meta.id, p.lo.clone(), p.hi.clone()))
                })
                .collect()
        };
        assert_eq!(picture(&rebuilt), picture(&version));
        assert_eq!(opened, state.extents().count());
    }
}

#[test]
fn an_extents_space_is_queued_when_the_last_version_that_has_it_is_gone() {
    let r = Reclaimer::new(|| {});
    let part = whole(&r, 1, "a", "z");
    let v1 = Version::empty(r.clone()).apply(&added(vec![(1, 0, part.clone())])).unwrap().version;
    let edit = VersionEdit { removed: vec![RefKey::of(1, 0, &part)], added: vec![] };
    drop(part);
    let Applied { version: v2, obsolete } = v1.apply(&edit).unwrap();
    v1.retire(&v2, obsolete, Vec::new());
    drop(v2);
    assert!(r.take().is_empty(), "a reader still has the old version");
    drop(v1);
    let queued = r.take();
    assert_eq!(queued.len(), 1);
    assert_eq!(queued[0].extent.map(|e| e.0), Some(1));
    assert!(r.take().is_empty());
}

#[test]
fn an_edit_that_never_became_durable_frees_nothing() {
    let r = Reclaimer::new(|| {});
    let part = whole(&r, 1, "a", "z");
    let v1 = Version::empty(r.clone()).apply(&added(vec![(1, 0, part.clone())])).unwrap().version;
    let edit = VersionEdit { removed: vec![RefKey::of(1, 0, &part)], added: vec![] };
    drop((v1.apply(&edit).unwrap(), v1, part));
    assert!(r.take().is_empty());
}

#[test]
fn a_values_space_is_queued_when_every_version_up_to_its_last_is_gone() {
    let r = Reclaimer::new(|| {});
    let nothing = VersionEdit::default();
    let v: Vec<Version> =
        (0..4).map(|_| Version::empty(r.clone()).apply(&nothing).unwrap().version).collect();
    for i in 0..3u64 {
        v[i as usize].retire(&v[i as usize + 1], Vec::new(), vec![value(10 + i)]);
    }
    let queued = || r.take().iter().map(|q| q.space.unit).collect::<Vec<_>>();
    let mut v = v.into_iter().map(Some).collect::<Vec<_>>();
    v[1] = None;
    v[2] = None;
    assert_eq!(queued(), [], "version 0 may still meet records that refer to them");
    v[0] = None;
    assert_eq!(queued(), [10, 11, 12]);
    v[3].as_ref().unwrap().retire_all(vec![value(20)]);
    assert_eq!(queued(), []);
    v[3] = None;
    assert_eq!(queued(), [20]);
}

#[test]
fn a_reader_that_outlived_many_versions_ends_without_recursion() {
    let r = Reclaimer::new(|| {});
    let oldest = Arc::new(Version::empty(r.clone()));
    let mut current = oldest.clone();
    for i in 0..200_000u64 {
        let next = Arc::new(Version::empty(r.clone()));
        current.retire(&next, Vec::new(), if i % 50_000 == 0 { vec![value(i)] } else { Vec::new() });
        current = next;
    }
    assert!(r.take().is_empty());
    drop(oldest);
    assert_eq!(r.take().len(), 4);
}

#[test]
fn the_reclaimer_wakes_once_per_filling() {
    let wakes = Arc::new(AtomicUsize::new(0));
    let w = wakes.clone();
    let r = Reclaimer::new(move || {
        w.fetch_add(1, Ordering::Relaxed);
    });
    r.queue_value(&value(1));
    r.queue_value(&value(2));
    assert_eq!((wakes.load(Ordering::Relaxed), r.take().len()), (1, 2));
    r.queue_value(&value(3));
    assert_eq!(wakes.load(Ordering::Relaxed), 2);
    assert!(format!("{r:?}").contains("queued: 1"));
}
