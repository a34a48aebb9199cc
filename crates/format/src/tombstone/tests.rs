use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::codec::Reader;

type Range = (Vec<u8>, Vec<u8>, Seq);

fn keys() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![Just(0u8), Just(b'a'), Just(b'b'), Just(0xff)], 0..3)
}

fn ranges() -> impl Strategy<Value = Vec<Range>> {
    vec((keys(), keys(), 0..8u64), 0..12)
}

fn set(ranges: &[Range]) -> RangeTombstones {
    RangeTombstones::from_ranges(ranges.iter().map(|(s, e, seq)| (s, e, *seq)))
}

fn covering(ranges: &[Range], key: &[u8], snapshot: Seq) -> Seq {
    let covers = |(s, e, seq): &&Range| s.as_slice() <= key && key < e.as_slice() && *seq <= snapshot;
    ranges.iter().filter(covers).map(|r| r.2).max().unwrap_or(0)
}

fn encoded(t: &RangeTombstones) -> Vec<u8> {
    let mut out = Vec::new();
    t.encode(&mut out);
    out
}

fn well_formed(t: &RangeTombstones) {
    for f in t.fragments() {
        assert!(f.start < f.end, "{f:?}");
        assert!(!f.seqs.is_empty() && f.seqs.is_sorted_by(|a, b| a > b), "{f:?}");
    }
    for pair in t.fragments().windows(2) {
        assert!(pair[0].end <= pair[1].start, "{pair:?}");
        assert!(pair[0].end != pair[1].start || pair[0].seqs != pair[1].seqs, "could be joined: {pair:?}");
    }
}

proptest! {
    #[test]
    fn fragments_cover_what_the_ranges_covered(ranges in ranges(), probes in vec((keys(), 0..9u64), 20)) {
        let t = set(&ranges);
        well_formed(&t);
        for (key, snapshot) in &probes {
            prop_assert_eq!(t.covering(key, *snapshot), covering(&ranges, key, *snapshot), "{:?}", key);
        }
    }

    #[test]
    fn the_order_of_the_ranges_does_not_matter(mut ranges in ranges()) {
        let t = set(&ranges);
        ranges.reverse();
        prop_assert_eq!(t, set(&ranges));
    }

    #[test]
    fn merging_covers_what_either_covered(a in ranges(), b in ranges()) {
        let merged = RangeTombstones::merge(&[&set(&a), &set(&b)]);
        well_formed(&merged);
        prop_assert_eq!(merged, set(&[a, b].concat()));
    }

    #[test]
    fn clipping_keeps_what_is_inside(
        ranges in ranges(), lo in keys(), hi in proptest::option::of(keys()), probes in vec(keys(), 20),
    ) {
        let t = set(&ranges).clip(&lo, hi.as_deref());
        well_formed(&t);
        for key in &probes {
            let inside = *key >= lo && hi.as_ref().is_none_or(|hi| key < hi);
            let want = if inside { covering(&ranges, key, 9) } else { 0 };
            prop_assert_eq!(t.covering(key, 9), want, "{:?}", key);
        }
    }

    #[test]
    fn dropped_sequences_no_longer_cover(ranges in ranges(), at_most in 0..8u64) {
        let mut t = set(&ranges);
        t.retain_seqs(|s| s <= at_most);
        well_formed(&t);
        let kept: Vec<_> = ranges.into_iter().filter(|r| r.2 <= at_most).collect();
        prop_assert_eq!(t, set(&kept));
    }

    #[test]
    fn neighbours_of_a_key_are_found(ranges in ranges(), key in keys()) {
        let t = set(&ranges);
        prop_assert_eq!(t.next_covered(&key), t.fragments().iter().find(|f| f.end > key));
        prop_assert_eq!(t.prev_covered(&key), t.fragments().iter().rfind(|f| f.start <= key));
    }

    #[test]
    fn sets_round_trip(ranges in ranges()) {
        let t = set(&ranges);
        let bytes = encoded(&t);
        let mut r = Reader::new(&bytes);
        prop_assert_eq!(RangeTombstones::decode(&mut r).unwrap(), t);
        prop_assert!(r.is_at_end());
    }

    #[test]
    fn whatever_decodes_is_well_formed(
        ranges in ranges(), damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), noise in vec(any::<u8>(), 0..30),
    ) {
        let mut bytes = encoded(&set(&ranges));
        for (i, byte) in damage {
            let i = i.index(bytes.len());
            bytes[i] = byte;
        }
        for bytes in [bytes, noise] {
            if let Ok(t) = RangeTombstones::decode(&mut Reader::new(&bytes)) {
                well_formed(&t);
            }
        }
    }
}

#[test]
fn golden_tombstones() {
    let t = RangeTombstones::from_ranges([("a", "m", 300), ("f", "z", 7), ("z", "zz", 7)]);
    assert_eq!(encoded(&t), include_bytes!("../../tests/golden/tombstones.bin"));
}

#[test]
fn overlaps_are_cut_and_equal_neighbours_joined() {
    let t = RangeTombstones::from_ranges([("a", "c", 5), ("c", "e", 5), ("b", "d", 9)]);
    let got: Vec<_> =
        t.fragments().iter().map(|f| (f.start.as_slice(), f.end.as_slice(), f.seqs.as_slice())).collect();
    let want: [(&[u8], &[u8], &[Seq]); 3] = [(b"a", b"b", &[5]), (b"b", b"d", &[9, 5]), (b"d", b"e", &[5])];
    assert_eq!(got, want);
    assert_eq!(t.bounds(), Some((b"a".as_slice(), b"e".as_slice())));
    assert_eq!(t.seq_range(), Some((5, 9)));
}

#[test]
fn a_set_that_announces_more_than_it_holds_is_refused_without_reserving_room() {
    let mut bytes = Vec::new();
    crate::codec::put_varint(&mut bytes, u64::MAX);
    assert!(RangeTombstones::decode(&mut Reader::new(&bytes)).is_err());
}
