use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::levels::testkit::{T, add, create, meta, remove};

fn state(edits: &[Edit]) -> DbState {
    let mut s = DbState::default();
    s.apply(edits).unwrap();
    s
}

fn kind(s: &DbState, edits: &[Edit]) -> ErrorKind {
    s.clone().apply(edits).unwrap_err().kind()
}

fn trimmed(level: u8, meta: &Arc<ExtentMeta>, lo: &str, hi: &str) -> Edit {
    let size = PartSize { bytes: 5, rows: 4, deletes: 0 };
    Edit::AddRef { subtable: T, level, run: 0, lo: lo.into(), hi: hi.into(), size, extent: meta.clone() }
}

fn value(id: u64) -> ValueRef {
    ValueRef { id, len: 0, pieces: Vec::new() }
}

#[test]
fn what_breaks_an_invariant_is_refused() {
    let (a, b) = (meta(5, "c", "f"), meta(6, "e", "h"));
    let s = state(&[create(1, "one"), add(1, 0, &a)]);
    assert_eq!(kind(&s, &[create(2, "one")]), ErrorKind::AlreadyExists);
    assert_eq!(kind(&s, &[create(1, "two")]), ErrorKind::Corruption);
    assert_eq!(kind(&s, &[create(2, &"x".repeat(256))]), ErrorKind::LimitExceeded);
    assert_eq!(kind(&s, &[Edit::DropSubtable { id: SubtableId(2), lsn: 1 }]), ErrorKind::SubtableDropped);
    for edit in [
        add(1, 0, &b),
        add(1, 0, &a),
        add(2, 1, &b),
        add(32, 0, &b),
        trimmed(2, &b, "d", "h"),
        trimmed(2, &b, "e", "i"),
        trimmed(2, &b, "f", "f"),
        Edit::AddRef {
            subtable: T,
            level: 2,
            run: 0,
            lo: b"f".to_vec(),
            hi: b"g".to_vec(),
            size: PartSize { bytes: 11, rows: 4, deletes: 0 },
            extent: b.clone(),
        },
        add(2, 0, &meta(5, "a", "b")),
        remove(2, 0, &a),
        remove(1, 0, &meta(6, "c", "f")),
        Edit::RemoveValue { subtable: T, id: 1 },
    ] {
        assert_eq!(kind(&s, std::slice::from_ref(&edit)), ErrorKind::Corruption, "{edit:?}");
    }
    let mut twice = s.clone();
    twice.apply(&[create(2, "two")]).unwrap();
    let elsewhere = Edit::AddRef {
        subtable: SubtableId(2),
        level: 1,
        run: 0,
        lo: a.lo.clone(),
        hi: a.hi.clone(),
        size: PartSize::whole(&a),
        extent: a.clone(),
    };
    assert_eq!(kind(&twice, &[elsewhere]), ErrorKind::Corruption, "an extent belongs to one subtable");
}

#[test]
fn an_extent_is_held_as_long_as_any_part_of_it_is() {
    let a = meta(5, "a", "z");
    let mut s = state(&[create(1, "t"), add(1, 0, &a)]);
    s.apply(&[remove(1, 0, &a), trimmed(1, &a, "a", "f"), trimmed(1, &a, "k", "z")]).unwrap();
    assert_eq!(s.extents().map(|(_, m)| m.id.0).collect::<Vec<_>>(), [5]);
    s.apply(&[remove(1, 0, &a)]).unwrap();
    assert_eq!(s.extents().count(), 1);
    s.apply(&[Edit::RemoveRef { subtable: T, level: 1, run: 0, extent: a.id, lo: b"k".to_vec() }]).unwrap();
    assert_eq!(s.extents().count(), 0);
    assert!(s.subtables[&T].runs.is_empty());
}

#[test]
fn a_dropped_name_can_be_given_again_and_its_id_is_used_up() {
    let mut s = state(&[create(1, "t"), add(1, 0, &meta(5, "a", "b"))]);
    s.apply(&[Edit::DropSubtable { id: T, lsn: 9 }, create(2, "t")]).unwrap();
    assert_eq!(s.names["t"], SubtableId(2));
    assert_eq!((s.extents().count(), s.next.subtable, s.next.extent), (0, 3, 6));
    let ids = Ids::new(&s.next);
    assert_eq!((ids.subtable(), ids.extent()), (SubtableId(3), ExtentId(6)));
    ids.saw_value(100);
    assert_eq!(ids.value(), 101);
}

#[test]
fn late_positions_do_not_go_back() {
    let mut s = state(&[create(1, "t"), Edit::Persisted { subtable: T, lsn: 9000 }]);
    s.apply(&[Edit::Persisted { subtable: T, lsn: 5000 }]).unwrap();
    assert_eq!(s.subtables[&T].persisted_lsn, 9000);
    let at = |durable_lsn, clean| Edit::Log(LogPosition { generation: 1, first_lsn: 5, durable_lsn, clean });
    s.apply(&[at(10, true), at(8, false)]).unwrap();
    assert_eq!((s.log.durable_lsn, s.log.clean), (10, false));
}

/// Any edits over a small world, legal or not.
fn any_edit() -> impl Strategy<Value = Edit> {
    let id = || (1u32..4).prop_map(SubtableId);
    let part = (0u8..3, 0u64..3, 1u64..8, 0u8..9, 1u8..9);
    prop_oneof![
        (1u32..4, 0u8..3).prop_map(|(i, n)| create(i, &format!("name {n}"))),
        id().prop_map(|id| Edit::DropSubtable { id, lsn: 1 }),
        id().prop_map(|id| Edit::SetOptions { id, options: vec![2] }),
        (id(), 1u64..9999).prop_map(|(subtable, lsn)| Edit::Persisted { subtable, lsn }),
        (id(), part.clone()).prop_map(|(subtable, (level, run, x, lo, len))| Edit::AddRef {
            subtable,
            level,
            run: if level == 0 { run } else { 0 },
            lo: vec![lo],
            hi: vec![lo + len],
            size: PartSize { bytes: len.into(), rows: 1, deletes: 0 },
            extent: Arc::new(ExtentMeta { lo: vec![0], hi: vec![20], ..(*meta(x, "", "")).clone() }),
        }),
        (id(), part).prop_map(|(subtable, (level, run, x, lo, _))| Edit::RemoveRef {
            subtable,
            level,
            run: if level == 0 { run } else { 0 },
            extent: ExtentId(x),
            lo: vec![lo],
        }),
        (id(), 0u64..4).prop_map(|(subtable, id)| Edit::AddValue { subtable, value: value(id) }),
        (id(), 0u64..4).prop_map(|(subtable, id)| Edit::RemoveValue { subtable, id }),
    ]
}

proptest! {
    #[test]
    fn groups_are_applied_whole_or_not_at_all(groups in vec(vec(any_edit(), 1..4), 1..60)) {
        let mut s = DbState::default();
        for group in groups {
            let before = s.clone();
            match s.apply_undoable(&group) {
                Err(_) => prop_assert_eq!(&s, &before),
                Ok(applied) => {
                    let after = s.clone();
                    s.undo(applied);
                    prop_assert_eq!(&s, &before, "{:?}", group);
                    s = after;
                }
            }
            let rebuilt: Vec<Edit> = s.to_edits().collect();
            prop_assert_eq!(&state(&rebuilt), &s);
        }
    }
}
