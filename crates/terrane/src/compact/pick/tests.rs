use std::sync::atomic::Ordering;

use terrane_format::extent::ExtentMeta;
use terrane_format::manifest::PartSize;

use super::l0::L0_URGENCY;
use super::*;
use crate::compact::plan::{MoveRules, Stretch, stretches};
use crate::levels::testkit::{extent, meta};
use crate::levels::{Reclaimer, VersionEdit};

#[test]
fn levels_appear_as_the_data_grows_and_never_before() {
    let mem = 128 << 20;
    assert_eq!(targets(0, mem), vec![8 * mem, u64::MAX], "small data has one level");
    assert_eq!(targets(8 * mem, mem), vec![8 * mem, u64::MAX]);
    assert_eq!(targets(10 * mem, mem), vec![6 * mem, u64::MAX]);
    assert_eq!(targets(5 << 30, mem), vec![4 * mem, u64::MAX]);
    let t = targets(40 << 30, mem);
    assert_eq!(t.len(), 2);
    assert_eq!(t[0], (40 << 30) / 11);
    let t = targets(111 * 4 * mem, mem);
    assert_eq!(t, vec![4 * mem, 40 * mem, u64::MAX]);
    assert!(targets(u64::MAX / 2, mem).len() <= MAX_LEVELS);
}

/// A part of an extent that holds 1000 bytes in 100 rows, and spans more than the part.
fn part(id: u64, lo: &str, hi: &str, shown: u32) -> ExtentRef {
    let m = ExtentMeta {
        data_bytes: 1000,
        raw_bytes: 1000,
        rows: 100,
        deletes: 0,
        ..(*meta(id, lo, &format!("{hi}~"))).clone()
    };
    let hi = if shown == 1000 { format!("{hi}~") } else { hi.to_owned() };
    let whole = ExtentRef::whole(extent(Arc::new(m), &Reclaimer::new(|| {})));
    let mut part = whole.trim(lo.as_bytes(), Some(hi.as_bytes())).unwrap();
    part.size = PartSize { bytes: shown, rows: u64::from(shown / 10), deletes: 0 };
    part
}

fn version(parts: impl IntoIterator<Item = (u8, u64, ExtentRef)>) -> Version {
    let edit = VersionEdit { removed: Vec::new(), added: parts.into_iter().collect() };
    Version::empty(Reclaimer::new(|| {})).apply(&edit).unwrap().version
}

fn with<T>(version: &Version, busy: &BusyRanges, f: impl FnOnce(&Picture<'_>) -> T) -> T {
    let cursors = Cursors::default();
    let (memtable_bytes, piece_bytes) = (250, 2000);
    let cursors = &cursors;
    f(&Picture {
        version,
        busy,
        cursors,
        memtable_bytes,
        l0_due: READ_L0_RUNS,
        piece_bytes,
        oldest_snapshot: 0,
        compresses: false,
        met: None,
        paid: PaidFor::Nothing,
    })
}

#[test]
fn slivers_are_charged_for_what_they_show() {
    // Twenty extents of 1000 bytes, of which L1 shows 100 each: as much as it may have.
    let v = version((0..20).map(|i| (1, 0, part(i, &format!("a{i:02}"), &format!("a{i:02}5"), 100))));
    let idle = BusyRanges::default();
    assert_eq!(targets(2000, 250)[0], 2000);
    assert!(with(&v, &idle, pick_size).is_none());
    assert_eq!(debt(&v, 250), 0.0);
    // Whole they are nine times too much.
    let v = version((0..10).map(|i| (1, 0, part(i, &format!("a{i}"), &format!("a{i}5"), 1000))));
    assert_eq!(with(&v, &idle, pick_size).unwrap().reason, Reason::Size);
    assert_eq!(debt(&v, 250), 4.5);
}

/// 50 whole extents in L2, and in L1 two neighbours that show `shown` bytes each.
fn trimmed(shown: u32) -> Version {
    let whole = (0..50).map(|i| (2, 0, part(i, &format!("a{i:02}"), &format!("a{i:02}5"), 1000)));
    let slivers = [
        part(60, "a03", "a035", 900),
        part(61, "a10", "a105", shown),
        part(62, "a11", "a115", shown),
        part(63, "a12", "a125", 1000),
    ];
    version(whole.chain(slivers.map(|p| (1, 0, p))))
}

#[test]
fn dead_space_is_reclaimed_in_place_in_a_rest_and_urgently_when_there_is_much() {
    let idle = BusyRanges::default();
    let picked = |v: &Version| with(v, &idle, pick);
    assert!(picked(&trimmed(950)).is_none(), "200 of 53800 bytes are not worth it");
    let some = picked(&trimmed(100)).unwrap();
    assert_eq!((some.reason, some.from, some.to), (Reason::Space, 1, 1));
    let whole = KeyRange { lo: b"a10".to_vec(), hi: Some(b"a115".to_vec()) };
    assert_eq!(some.range, whole, "neighbours together; neither what is nearly whole nor what is whole");
    assert!(some.urgency < 1.0);
    // Parts of an extent that together show all of it hide nothing, however small they are.
    let (left, right) = (part(60, "b", "b2", 400), part(60, "b", "b2", 400));
    let right = ExtentRef {
        lo: b"b2"[..].into(),
        hi: b"b2~"[..].into(),
        size: PartSize { bytes: 600, ..right.size },
        ..left.clone()
    };
    assert_eq!(Dead::of(&version([(1, 0, left), (2, 0, right)])).bytes(), 0);

    let many = (0..20).map(|i| (2, 0, part(i, &format!("a{i:02}"), &format!("a{i:02}5"), 700)));
    let urgent = picked(&version(many)).unwrap();
    assert_eq!(urgent.reason, Reason::Space);
    assert!(urgent.urgency > 2.0, "300 of 700 bytes: {}", urgent.urgency);

    let mut busy = BusyRanges::default();
    busy.enter(Claim::of_extents(1..=2, &[meta(1, "a10", "a11")]));
    let other = with(&trimmed(100), &busy, pick).unwrap();
    assert_eq!(other.range.lo, b"a11", "nobody else works there");
}

#[test]
fn a_mostly_dead_extent_is_not_moved_but_rewritten() {
    let (sliver, rest) = (part(1, "a", "b", 100), part(2, "c", "d", 900));
    let v = version([(1, 0, sliver.clone()), (1, 0, rest.clone())]);
    let dead = Dead::of(&v);
    let rules = MoveRules { compressed_below: false, bottom: true, in_place: false, dead: &dead };
    let out = stretches(&[vec![sliver, rest], vec![]], rules);
    assert!(matches!(out[..], [Stretch::Merge { .. }, Stretch::Move { .. }]), "{out:?}");
}

#[test]
fn in_a_rest_what_may_be_superseded_goes_down_until_it_is_a_tenth() {
    let idle = BusyRanges::default();
    let below = |n: u64| (0..n).map(|i| (2, 0, part(i, &format!("a{i:02}"), &format!("a{i:02}5"), 1000)));
    let above =
        |n: u64| (0..n).map(|i| (1, 0, part(100 + i, &format!("a{i:02}"), &format!("a{i:02}5"), 1000)));
    let picked = |v: &Version| with(v, &idle, pick);
    // L1 may have 1000 by its target, but that is as much as L2 has.
    let all = picked(&version(below(1).chain(above(1)))).unwrap();
    assert_eq!((all.reason, all.from, all.to), (Reason::Rest, 1, 2));
    assert!(all.urgency < 0.5);
    assert!(picked(&version(below(10).chain(above(1)))).is_none(), "a tenth may stay");
    assert!(picked(&version(above(1))).is_none(), "there is nothing below");
    let compressing = |v: &Version| with(v, &idle, |p| pick(&Picture { compresses: true, ..*p }));
    let sinks = compressing(&version(above(1))).unwrap();
    assert_eq!((sinks.reason, sinks.from, sinks.to), (Reason::Rest, 1, 2), "below it would be compressed");
    assert!(compressing(&version(below(10).chain(above(1)))).is_none(), "a tenth may stay");
    assert!(compressing(&version(below(10))).is_none());
    let run = |id, lo: &str| (0, 7, part(id, lo, &format!("{lo}5"), 1000));
    let l0 = picked(&version(below(8).chain([run(90, "a01")]))).unwrap();
    assert_eq!((l0.reason, l0.from), (Reason::L0, 0));
    let little =
        version(
            (0..40)
                .map(|i| (1, 0, part(100 + i, &format!("a{i:02}"), &format!("a{i:02}5"), 1000)))
                .chain([(0, 7, part(90, "a00", "a40", 1000))]),
        );
    let large = |paid| with(&little, &idle, |p| pick(&Picture { memtable_bytes: 50_000, paid, ..*p }));
    for unpaid in [PaidFor::Nothing, PaidFor::Join] {
        assert!(large(unpaid).is_none(), "a fortieth may stay, and meets much");
    }
    let paid = large(PaidFor::Pass).unwrap();
    assert_eq!((paid.reason, paid.from, paid.urgency < 1.0), (Reason::L0, 0, false));
}

#[test]
fn deletions_go_at_once_where_they_are_dense_and_else_when_a_seek_has_met_them() {
    let idle = BusyRanges::default();
    let of = |rows: u64, deletes: u64, part: ExtentRef| ExtentRef {
        size: PartSize { rows, deletes, ..part.size },
        ..part
    };
    let l0 = |deletes| (0, 7, of(1000, deletes, part(90, "a", "b", 1000)));
    let below = |rows| (1, 0, of(rows, 0, part(1, "a", "b", 1000)));
    let at_once = |p: Option<Pick>| p.map(|p| (p.from, p.urgency >= 1.0));
    let picked = |v: &Version| at_once(with(v, &idle, pick_deletes));
    assert_eq!(picked(&version([l0(600), below(2000)])), Some((0, true)), "three of ten");
    assert_eq!(picked(&version([l0(600), below(2400)])), Some((0, false)), "a scan does not mind a fourth");
    assert_eq!(picked(&version([l0(400), below(100)])), None, "most are no deletions");
    assert_eq!(picked(&version([l0(600)])), Some((0, true)), "with nothing below they are all that is there");
    // What is elsewhere in the key space is not in between.
    let elsewhere = (1, 0, of(9000, 0, part(2, "c", "d", 1000)));
    assert_eq!(picked(&version([l0(600), elsewhere])), Some((0, true)));
    let met = |lo: &str, hi: Option<&str>, seq, v: &Version| {
        let met = Met { lo: lo.into(), hi: hi.map(Into::into), seq };
        let pick = with(v, &idle, |p| pick_deletes(&Picture { met: Some(&met), ..*p }));
        assert_eq!(met.are_in(v), pick.as_ref().is_some_and(|p| p.urgency >= 1.0));
        at_once(pick)
    };
    let v = version([l0(600), below(2400)]);
    let seq = v.l0[0].refs()[0].extent.meta.min_seq;
    assert_eq!(met("a", None, seq, &v), Some((0, true)));
    assert_eq!(met("", Some("a0"), seq, &v), Some((0, true)));
    assert_eq!(met("", Some("a"), seq, &v), Some((0, false)), "they were met below it");
    assert_eq!(met("c", None, seq, &v), Some((0, false)), "above it");
    assert_eq!(met("a", None, seq - 1, &v), Some((0, false)), "it has come since");
    assert_eq!(met("a", None, seq, &version([l0(400), below(2400)])), None);
}

#[test]
fn a_pass_goes_on_until_runs_leave_one_by_one() {
    let due = |left: &[f64]| pass_is_due(left.iter().copied(), 4);
    assert!(!due(&[]) && !due(&[1.0]), "one alone waits for company");
    assert!(due(&[1.0, 1.0]) && due(&[1.0, 0.5]) && due(&[0.75, 0.6]));
    assert!(!due(&[0.75, 0.5]) && !due(&[0.5, 0.25, 0.75]));
    assert!(due(&[0.0; 4]) && due(&[0.1, 0.2, 0.3, 0.4, 0.5]), "as many as are due");
    let due = |left: &[f64]| pass_is_due(left.iter().copied(), 8);
    assert!(
        !due(&[0.8, 0.7, 0.6, 0.5, 0.35]) && due(&[0.9, 0.7]) && due(&[0.8, 0.7, 0.65]) && due(&[0.1; 8])
    );
}

/// L1 of 20 extents of 1000 bytes each.
fn twenty() -> Vec<(u8, u64, ExtentRef)> {
    (0..20).map(|i| (1, 0, part(i, &format!("a{i:02}"), &format!("a{i:02}5"), 1000))).collect()
}

/// A run of L0: four extents that reach over twenty, 1000 bytes each.
fn run_of_four(id: u64) -> impl Iterator<Item = (u8, u64, ExtentRef)> {
    (0..4).map(move |i| {
        let of = part(id * 100 + i, &format!("a{:02}2", 5 * i), &format!("a{:02}3", 5 * i + 4), 1000);
        (0, id, of)
    })
}

/// The pieces of a pass, by their ends, if a piece may have so many bytes. Behind each, L0's extents are trimmed and L1 is as it was.
fn pieces_of_pass(mut parts: Vec<(u8, u64, ExtentRef)>, piece_bytes: u64) -> Vec<Option<Vec<u8>>> {
    let idle = BusyRanges::default();
    let mut cursors = Cursors { l0: Some(Vec::new()) };
    let mut ends = Vec::new();
    while cursors.l0.is_some() {
        let picture =
            |p: &Picture<'_>| next_of_pass(&Picture { piece_bytes, cursors: &cursors, ..*p }, 1.0).unwrap();
        let pick = with(&version(parts.clone()), &idle, picture);
        assert_eq!((pick.from, pick.to, pick.reason), (0, 1, Reason::L0));
        let takes_of_l0 = parts
            .iter()
            .any(|(level, _, of)| *level == 0 && pick.range.hi.as_ref().is_none_or(|hi| *of.lo < **hi));
        assert!(takes_of_l0, "{:?}", pick.range);
        if let Some(cut) = &pick.range.hi {
            parts = parts
                .into_iter()
                .filter_map(|(level, id, of)| behind(cut, level, of).map(|of| (level, id, of)))
                .collect();
        }
        ends.push(pick.range.hi.clone());
        cursors.l0 = pick.range.hi;
    }
    ends
}

/// What is left of an extent when a piece of the pass that ends at `cut` is installed. Those of [`run_of_four`] have 200 bytes over each of L1.
fn behind(cut: &[u8], level: u8, of: ExtentRef) -> Option<ExtentRef> {
    if level != 0 || *of.lo >= *cut {
        return Some(of);
    }
    let number = |key: &[u8]| std::str::from_utf8(&key[1..3]).unwrap().parse::<u32>().unwrap();
    let mut left = of.trim(cut, None)?;
    left.size.bytes = 200 * (number(&left.hi) + 1 - number(cut));
    Some(left)
}

#[test]
fn a_pass_takes_many_pieces_however_little_it_goes_through() {
    let ends = |extents: &[u32]| -> Vec<_> {
        extents.iter().map(|n| Some(format!("a{n:02}").into_bytes())).chain([None]).collect()
    };
    let one_run = || twenty().into_iter().chain(run_of_four(7)).collect();
    let two_runs = || twenty().into_iter().chain(run_of_four(7)).chain(run_of_four(8)).collect();
    // An eighth of 24,000 bytes, and of less as L0 goes: two or three extents of L1 with what begins and ends there of L0. What begins in
    // front of L0 is not counted.
    assert_eq!(pieces_of_pass(one_run(), 20_000), ends(&[4, 7, 10, 14, 16, 19]));
    assert_eq!(pieces_of_pass(two_runs(), 20_000), ends(&[4, 6, 9, 11, 14, 16, 18]));
    // None is smaller than an eighth of what it may be, nor larger than that.
    assert_eq!(pieces_of_pass(one_run(), 200_000).len(), 1);
    assert_eq!(pieces_of_pass(one_run(), 64_000).len(), 3);
    assert_eq!(pieces_of_pass(one_run(), 1000).len(), 16);
    // With nothing in L1 an extent of L0 is the least.
    assert_eq!(pieces_of_pass(run_of_four(7).collect(), 2000).len(), 4);
}

#[test]
fn a_piece_of_a_pass_takes_something_of_l0_wherever_its_runs_begin() {
    let at = |run, id, lo: &str, hi: &str| (u8::from(run == 0), run, part(id, lo, hi, 1000));
    // Two runs, and an extent of L1, that begin at one key, and more L1 in front.
    let v = version([
        at(0, 1, "a", "b"),
        at(0, 2, "k", "l"),
        at(0, 3, "m", "n"),
        at(7, 7, "k", "o"),
        at(8, 8, "k", "o"),
    ]);
    let piece =
        |start: &[u8], about| with(&v, &BusyRanges::default(), |p| l0_piece(p, start, about)).unwrap();
    for start in [&b""[..], b"a", b"k"] {
        assert_eq!(
            piece(start, 1).hi.as_deref(),
            Some(&b"m"[..]),
            "a piece has to end behind where L0 begins"
        );
    }
    assert_eq!(
        piece(b"", 2000).hi.as_deref(),
        Some(&b"m"[..]),
        "halves of the runs, and what begins with them of L1"
    );
    assert_eq!(piece(b"", 2001).hi, None, "what is in front of L0 does not count");
}

#[test]
fn runs_of_an_l0_that_is_little_become_one() {
    let idle = BusyRanges::default();
    let below: Vec<_> =
        (0..90).map(|i| (1, 0, part(i, &format!("a{i:02}"), &format!("a{i:02}5"), 1000))).collect();
    let with_runs = |sizes: &[u32]| {
        let run = |(id, shown): (u64, &u32)| (0, id, part(100 + id, "a03", "a74", *shown));
        version(below.iter().cloned().chain((1..).zip(sizes).map(run)))
    };
    let look = |v: &Version, busy: &BusyRanges, memtable_bytes| {
        with(v, busy, |p| pick_l0(&Picture { memtable_bytes, ..*p }))
    };
    let picked = |sizes: &[u32], memtable_bytes| look(&with_runs(sizes), &idle, memtable_bytes);
    let joined = picked(&[900, 800], 6800).unwrap();
    assert_eq!((joined.reason, joined.from, joined.to, joined.urgency), (Reason::Join, 0, 0, 1.0));
    assert_eq!(joined.range, KeyRange { lo: b"a03".to_vec(), hi: Some(b"a74".to_vec()) });
    assert!(picked(&[900], 6800).is_none(), "there is one");
    assert!(picked(&[900, 200, 200], 6800).is_none(), "what came since is not half as much");
    let bought = |paid, sizes: &[u32], memtable_bytes| {
        with(&with_runs(sizes), &idle, |p| pick_l0(&Picture { memtable_bytes, paid, ..*p }))
            .map(|p| (p.reason, p.to))
    };
    assert_eq!(bought(PaidFor::Join, &[900, 200, 200], 6800), Some((Reason::Join, 0)));
    assert_eq!(bought(PaidFor::Join, &[900], 6800), None, "there is one");
    assert_eq!(bought(PaidFor::Join, &[900, 200, 200], 2000), Some((Reason::L0, 1)), "it is not little");
    assert_eq!(bought(PaidFor::Pass, &[900, 200, 200], 6800), Some((Reason::L0, 1)));
    // Nor do writers wait for what nobody does.
    let due = |sizes: &[u32]| l0_is_due(&with_runs(sizes), 6800, 4);
    assert!(!l0_is_due(&with_runs(&[900, 200, 100, 100]), 6800, 8));
    assert!(!due(&[900, 200, 200]) && due(&[900, 200, 100, 100]) && due(&[1000, 1000]));
    let full = picked(&[900, 200, 100, 100], 6800).unwrap();
    assert_eq!((full.reason, full.urgency), (Reason::Join, L0_URGENCY));
    // An account of reads ends where L0 goes down anyway, which what is little does not.
    let goes_down = |sizes: &[u32], memtable_bytes| l0_goes_down(&with_runs(sizes), memtable_bytes, 4);
    assert!(!goes_down(&[900, 200, 100, 100], 6800) && !goes_down(&[1000, 700], 6800));
    assert!(goes_down(&[900, 800], 6796) && goes_down(&[900; 5], 40_000) && !goes_down(&[4000], 6796));
    // As much as a memtable may be, or as much as there is below: a pass.
    assert_eq!(picked(&[900, 800], 6796).unwrap().reason, Reason::L0);
    assert_eq!(picked(&[900; 5], 40_000).unwrap().reason, Reason::L0);

    let mut busy = BusyRanges::default();
    busy.enter(Claim::of_extents(0..=0, &[meta(1, "a10", "a11")]));
    assert!(look(&with_runs(&[900, 800]), &busy, 6800).is_none(), "somebody works there");
}

#[test]
fn what_was_met_grows_to_hold_all() {
    let of = |lo: &str, hi: Option<&str>, seq| Met { lo: lo.into(), hi: hi.map(Into::into), seq };
    let mut met = of("b", Some("d"), 5);
    met.extend(of("a", Some("c"), 7));
    assert_eq!(met, of("a", Some("d"), 7));
    met.extend(of("x", None, 6));
    assert_eq!(met, of("a", None, 7));
}

#[test]
fn readers_have_somebody_look_once_in_a_while() {
    let met = |seq| Met { lo: b"a".to_vec(), hi: None, seq };
    let ms = Duration::from_millis;
    let mut c = Clearing::default();
    assert!(c.add(met(1), ms(0)));
    assert!(!c.add(met(2), ms(50)));
    // Nothing could be done about it.
    c.met = None;
    assert!(!c.add(met(3), ms(99)));
    assert_eq!(c.met, Some(met(3)));
    assert!(c.add(met(4), ms(100)));
    assert!(!c.add(met(5), ms(199)));
}

/// Five extents of L1 and fifty of L2, with so much heat.
fn heated(l1: [u32; 5], l2: impl Fn(u64) -> u32) -> Version {
    let hot = |r: ExtentRef, heat| {
        r.extent.heat.store(heat, Ordering::Relaxed);
        r
    };
    let above = (0..5).map(|i| {
        let name = format!("a{:02}", 10 * i + 5);
        (1, 0, hot(part(100 + i, &name, &format!("{name}5"), 100), l1[i as usize]))
    });
    let below = (0..50).map(|i| {
        let whole = part(i, &format!("a{i:02}"), &format!("a{i:02}5"), 1000);
        (2, 0, hot(whole, l2(i)))
    });
    version(above.collect::<Vec<_>>().into_iter().chain(below))
}

#[test]
fn what_is_hot_below_comes_up() {
    let idle = BusyRanges::default();
    let picked = |v: &Version| with(v, &idle, pick_heat);
    let p = picked(&heated([10; 5], |i| if i == 20 { 100 } else { 3 })).unwrap();
    assert_eq!((p.from, p.to, p.reason), (2, 1, Reason::Heat));
    assert_eq!((&p.range.lo[..], p.range.hi.as_deref()), (&b"a20"[..], Some(&b"a205~"[..])));
    assert!(picked(&heated([30; 5], |i| if i == 20 { 100 } else { 30 })).is_none(), "all are nearly as hot");
    assert!(picked(&heated([0; 5], |i| if i == 20 { 20 } else { 0 })).is_none(), "hardly anybody read it");
    assert!(picked(&heated([0; 5], |_| 0)).is_none());
    // What is due comes first; but nothing is.
    let v = heated([10; 5], |i| if i == 20 { 100 } else { 3 });
    assert_eq!(with(&v, &idle, pick).unwrap().reason, Reason::Heat);
}

#[test]
fn what_comes_up_does_not_drive_out_what_is_as_hot() {
    // Fifteen extents of L1, of which L1 may have five.
    let hot = |n: u64| {
        let above = (0..15).map(move |i| {
            let r = part(100 + i, &format!("b{i:02}"), &format!("b{i:02}5"), 1000);
            r.extent.heat.store(if i < n { 400 } else { 0 }, Ordering::Relaxed);
            (1, 0, r)
        });
        let below = (0..50).map(|i| {
            let r = part(i, &format!("a{i:02}"), &format!("a{i:02}5"), 1000);
            r.extent.heat.store(if i == 20 { 500 } else { 0 }, Ordering::Relaxed);
            (2, 0, r)
        });
        version(above.chain(below).collect::<Vec<_>>())
    };
    let target = targets(65_000, 250)[0];
    assert!((5000..7000).contains(&target), "{target}");
    let idle = BusyRanges::default();
    assert!(with(&hot(1), &idle, pick_heat).is_some());
    assert!(with(&hot(2), &idle, pick_heat).is_none());
}

#[test]
fn nothing_comes_up_from_where_somebody_works() {
    let v = heated([10; 5], |i| if i == 20 { 100 } else { 3 });
    let mut busy = BusyRanges::default();
    busy.enter(Claim::of_merge(&v, 1, 2, b"a2", Some(b"a21")));
    assert!(with(&v, &busy, pick_heat).is_none());
}

#[test]
fn what_is_hot_leaves_after_all_else_wherever_it_lies() {
    // Every fourth extent of L1 is hot and meets nothing below; the others meet much.
    let hot = |i: u64| i % 4 == 1;
    let above = (0..40).map(|i| {
        let name = format!("a{i:02}");
        let r = part(100 + i, &name, &format!("{name}5"), 1000);
        r.extent.heat.store(if hot(i) { 1000 } else { 1 }, Ordering::Relaxed);
        (1, 0, r)
    });
    let below = (0..40)
        .filter(|i| !hot(*i))
        .map(|i| (2, 0, part(i, &format!("a{i:02}"), &format!("a{i:02}5"), 1000)));
    let v = version(above.collect::<Vec<_>>().into_iter().chain(below));
    let range = with(&v, &BusyRanges::default(), |p| leaving(p, 1, 40_000)).unwrap();
    let leaves =
        |i: &u64| (&range.lo[..]..range.hi.as_deref().unwrap()).contains(&format!("a{i:02}").as_bytes());
    assert!((0..40).any(|i| leaves(&i)));
    assert!(!(0..40).filter(|i| hot(*i)).any(|i| leaves(&i)), "{range:?}");
}
