use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

type Typed = (Element<'static>, Direction);

fn element() -> impl Strategy<Value = Element<'static>> {
    let near_powers = (0..127u32, -1..=1i128, any::<bool>())
        .prop_map(|(shift, off, negative)| ((1i128 << shift) + off) * if negative { -1 } else { 1 });
    let special = prop_oneof![
        Just(f64::NAN),
        Just(-f64::NAN),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just(0.0),
        Just(-0.0),
        Just(f64::MIN_POSITIVE),
        Just(f64::MAX),
        Just(f64::from_bits(1)),
    ];
    let bytes = || {
        vec(prop_oneof![3 => prop_oneof![Just(0u8), Just(1), Just(0xfe), Just(0xff)], 1 => any::<u8>()], 0..6)
    };
    let text = vec(prop_oneof![Just('\0'), Just('\u{1}'), Just('a'), Just('ÿ'), Just('\u{10ffff}')], 0..5);
    prop_oneof![
        Just(Element::Null),
        any::<bool>().prop_map(Element::Bool),
        prop_oneof![any::<i128>(), -300..300i128, near_powers, Just(i128::MIN), Just(i128::MAX)]
            .prop_map(Element::Int),
        prop_oneof![any::<u64>().prop_map(f64::from_bits), special, (-5..5i8).prop_map(f64::from)]
            .prop_map(Element::Float),
        bytes().prop_map(Element::from),
        text.prop_map(|chars| Element::from(chars.into_iter().collect::<String>())),
    ]
}

fn key(tuple: &[Typed]) -> Vec<u8> {
    let mut key = Vec::new();
    tuple.iter().for_each(|(e, d)| put_element(&mut key, e, *d));
    key
}

fn directed(elements: &[Element<'static>], descending: &[bool]) -> Vec<Typed> {
    let direction = |d: &bool| if *d { Direction::Descending } else { Direction::Ascending };
    elements.iter().cloned().zip(descending.iter().map(direction)).collect()
}

/// The order that keys must have, from the elements alone.
fn order(a: &[Typed], b: &[Typed]) -> Ordering {
    for ((x, direction), (y, _)) in a.iter().zip(b) {
        let one = x.cmp(y);
        if one.is_ne() {
            return if *direction == Direction::Descending { one.reverse() } else { one };
        }
    }
    a.len().cmp(&b.len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn keys_sort_as_their_tuples_do(
        a in vec(element(), 0..4), b in vec(element(), 0..4), common in vec(element(), 0..2), descending in any::<[bool; 6]>(),
    ) {
        let a = directed(&[common.clone(), a].concat(), &descending);
        let b = directed(&[common, b].concat(), &descending);
        prop_assert_eq!(key(&a).cmp(&key(&b)), order(&a, &b), "{:?} {:?}", a, b);
    }

    #[test]
    fn similar_strings_sort_as_they_should(
        a in vec(0..3u8, 0..4), b in vec(0..3u8, 0..4), last in any::<bool>(), descending in any::<[bool; 2]>(),
    ) {
        // Zero bytes and prefixes, with another element behind them or none.
        let tuple = |s: Vec<u8>| {
            let mut t = vec![Element::from(s)];
            t.extend(last.then_some(Element::Bool(true)));
            directed(&t, &descending)
        };
        let (a, b) = (tuple(a), tuple(b));
        prop_assert_eq!(key(&a).cmp(&key(&b)), order(&a, &b));
    }

    #[test]
    fn tuples_come_back(a in vec(element(), 0..5), descending in any::<[bool; 5]>()) {
        let tuple = directed(&a, &descending);
        let bytes = key(&tuple);
        prop_assert_eq!(decode(&bytes).unwrap(), tuple);
    }

    #[test]
    fn whatever_decodes_has_one_form(
        start in vec(element(), 0..3), descending in any::<[bool; 3]>(), noise in vec(any::<u8>(), 0..12),
        damage in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut bytes = [key(&directed(&start, &descending)), noise].concat();
        if let Some((i, byte)) = damage && !bytes.is_empty() {
            let i = i.index(bytes.len());
            bytes[i] = byte;
        }
        if let Ok(tuple) = decode(&bytes) {
            let again: Vec<Typed> = tuple.iter().map(|(e, d)| (owned(e), *d)).collect();
            prop_assert_eq!(key(&again), bytes);
        }
    }
}

fn owned(e: &Element<'_>) -> Element<'static> {
    match e {
        Element::Null => Element::Null,
        Element::Bool(b) => Element::Bool(*b),
        Element::Int(v) => Element::Int(*v),
        Element::Float(v) => Element::Float(*v),
        Element::Bytes(b) => Element::from(b.to_vec()),
        Element::Str(s) => Element::from(s.to_string()),
    }
}

#[test]
fn golden_keys() {
    let ascending = encode([
        Element::Null,
        false.into(),
        true.into(),
        0.into(),
        1.into(),
        (-1).into(),
        256.into(),
        (-256).into(),
        u64::MAX.into(),
        i128::MIN.into(),
        1.5f64.into(),
        (-1.5f64).into(),
        b"a\0b".as_slice().into(),
        "né".into(),
        None::<i64>.into(),
    ]);
    let mut key = ascending.clone();
    decode(&ascending).unwrap().iter().for_each(|(e, _)| put_element(&mut key, e, Direction::Descending));
    assert_eq!(key, include_bytes!("../../tests/golden/tuple.bin"));
}

#[test]
fn a_tuple_is_a_prefix_of_the_tuples_that_begin_with_it_and_of_no_other() {
    let prefix = encode(["ab".into()]);
    assert!(encode(["ab".into(), 7.into()]).starts_with(&prefix));
    assert!(!encode(["abc".into(), 7.into()]).starts_with(&prefix));
    assert!(!encode(["ab\0".into()]).starts_with(&prefix));
}

#[test]
fn integers_in_another_form_are_refused() {
    for bad in [&[0x21, 0][..], &[0x22, 0, 1], &[0x1f, 0xff], &[0x1e, 0xff, 0], &[0x21], &[0x31]] {
        assert!(decode(bad).is_err(), "{bad:x?}");
    }
    let mut too_large = vec![0x30];
    too_large.extend([0xff; 16]);
    assert!(decode(&too_large).is_err());
}

#[test]
fn strings_are_borrowed_where_they_can_be() {
    let plain = encode(["plain".into()]);
    assert!(matches!(decode(&plain).unwrap()[0].0, Element::Str(Cow::Borrowed("plain"))));
}
