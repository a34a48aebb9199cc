use proptest::collection::btree_set;
use proptest::prelude::*;
use terrane_base::ErrorKind;
use terrane_format::manifest::PartSize;

use super::*;
use crate::levels::Reclaimer;
use crate::levels::testkit::{extent, meta};

fn part(id: u64, lo: &[u8], hi: &[u8]) -> Arc<ExtentRef> {
    let wide = meta(id, "", "\u{10ffff}");
    let whole = ExtentRef::whole(extent(wide, &Reclaimer::new(|| {})));
    Arc::new(ExtentRef { lo: lo.into(), hi: hi.into(), ..whole })
}

/// Keys that share prefixes, are prefixes of one another, or hold zero bytes.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let tail = prop::collection::vec(prop::sample::select(vec![0u8, 1, b'a', 255]), 0..4);
    (prop::sample::select(vec!["", "shared", "shared prefix, long", "shared prefix, longer"]), tail)
        .prop_map(|(front, tail)| [front.as_bytes(), &tail].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn searching_agrees_with_looking_at_every_part(
        bounds in btree_set(key(), 2..24),
        gap in any::<bool>(),
        keys in prop::collection::vec(key(), 1..40),
    ) {
        let bounds: Vec<_> = bounds.into_iter().collect();
        let step = if gap { 2 } else { 1 };
        let refs: Vec<_> = bounds.windows(2).step_by(step).enumerate().map(|(i, w)| part(i as u64, &w[0], &w[1])).collect();
        let run = Run::new(3, refs.clone()).unwrap();
        for k in keys.iter().chain(&bounds) {
            let found = run.find(k).map(|r| r.lo.to_vec());
            prop_assert_eq!(found, refs.iter().find(|r| r.contains(k)).map(|r| r.lo.to_vec()));
            prop_assert_eq!(run.position(k), refs.iter().filter(|r| *r.hi <= **k).count());
            for hi in keys.iter().map(Some).chain([None]) {
                let hi = hi.map(Vec::as_slice);
                let meets = |r: &&Arc<ExtentRef>| *k.as_slice() < *r.hi && hi.is_none_or(|h| *r.lo < *h && k.as_slice() < h);
                let want: Vec<_> = refs.iter().filter(meets).map(|r| r.lo.clone()).collect();
                let got: Vec<_> = run.overlapping(k, hi).iter().map(|r| r.lo.clone()).collect();
                prop_assert_eq!(got, want);
            }
        }
    }
}

#[test]
fn overlap_and_disorder_are_corruption() {
    for refs in
        [vec![part(1, b"a", b"c"), part(2, b"b", b"d")], vec![part(1, b"c", b"d"), part(2, b"a", b"b")]]
    {
        assert_eq!(Run::new(1, refs).unwrap_err().kind(), ErrorKind::Corruption);
    }
    assert!(Run::new(1, vec![part(1, b"a", b"c"), part(2, b"c", b"d")]).is_ok());
}

#[test]
fn an_empty_run_finds_nothing() {
    let run = Run::new(1, Vec::new()).unwrap();
    assert!(run.find(b"a").is_none() && run.is_empty());
    assert_eq!((run.position(b""), run.overlapping(b"", None).len(), run.bytes()), (0, 0, 0));
}

#[test]
fn a_run_counts_what_its_parts_show() {
    let whole = ExtentRef::whole(extent(meta(1, "a", "z"), &Reclaimer::new(|| {})));
    let mut left = whole.trim(b"", Some(b"f")).unwrap();
    assert_eq!(left.bytes(), 10, "not measured yet");
    left.size = PartSize { bytes: 3, rows: 2, deletes: 0 };
    let right = whole.trim(b"k", None).unwrap();
    assert_eq!((&*left.lo, &*left.hi, &*right.lo, &*right.hi), (&b"a"[..], &b"f"[..], &b"k"[..], &b"z"[..]));
    assert!(left.is_trimmed() && !whole.is_trimmed());
    assert!(whole.trim(b"z", None).is_none() && whole.trim(b"c", Some(b"c")).is_none());
    let run = Run::new(0, vec![Arc::new(left), Arc::new(right)]).unwrap();
    assert_eq!((run.rows(), run.deletes(), run.bytes()), (12, 1, 13));
    assert_eq!(run.trimmed().count(), 2);
}
