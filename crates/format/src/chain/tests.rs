use proptest::collection::vec;
use proptest::prelude::*;
use terrane_base::{ErrorKind, MAX_SEQ};

use super::*;
use crate::Kind;

fn position() -> impl Strategy<Value = Position> {
    (0..MAX_SLOTS, (ZONE_HEADER as u64 / UNIT)..MAX_ZONE_BYTES / UNIT)
        .prop_map(|(slot, at)| Position::new(slot, at * UNIT).unwrap())
}

#[test]
fn what_lies_in_memory_is_pinned() {
    let at = Position::new(5, 4096).unwrap();
    let gidx = Gidx { previous: Position::new(5, 64), current: Some(at) };
    assert_eq!(gidx.encode(), 0x0050_0008_0050_0200);
    let memtable = ChainMemtable { subtable: 3, generation: 9, from_lsn: 0x1_0000_0001 }.encode();
    let zone = ZoneHeader { memtable: 7, slot: 5, before: 8192 }.encode();
    let salt = ChainMemtable { subtable: 3, generation: 9, from_lsn: 0x1_0000_0001 }.salt(7);
    let item = ItemHeader { lsn: 0x0102_0304_0506, len: 40, items: 2, units: 4 }.encode(salt, at);
    let mut records = Vec::new();
    let put = ChainRecord { key: b"key", seq: 0x0a0b, kind: Kind::Put, value: b"value" };
    write_record(&mut records, &put);
    write_record(&mut records, &ChainRecord { key: &[b'k'; 255], kind: Kind::Delete, value: b"", ..put });
    let all = [&memtable[..], &zone, &item, &records].concat();
    assert_eq!(all, include_bytes!("../../tests/golden/chain.bin"));
    assert_eq!(record_len(3, 5), 24);
}

#[test]
fn no_item_lies_in_a_zones_header_or_between_units() {
    assert_eq!(Position::new(0, 56), None);
    assert_eq!(Position::new(0, 68), None);
    assert_eq!(Position::new(0, MAX_ZONE_BYTES), None);
    assert_eq!(Position::new(MAX_SLOTS, 64), None);
    for word in [1, 7, 1 << 32, 0x0050_0200_0050_0008, 0x0050_0008_0000_0000, 0x0050_0008_0050_0008] {
        assert_eq!(Gidx::decode(word).unwrap_err().kind(), ErrorKind::Corruption, "{word:#x}");
    }
}

#[test]
fn a_memtable_from_beyond_all_commits_is_damage_whatever_its_checksum_says() {
    let good = ChainMemtable { subtable: 1, generation: MAX_GENERATION, from_lsn: MAX_SEQ };
    assert_eq!(ChainMemtable::decode(&good.encode()).unwrap(), good);
    for bad in [
        ChainMemtable { generation: MAX_GENERATION + 1, ..good },
        ChainMemtable { generation: u64::MAX, ..good },
        ChainMemtable { from_lsn: MAX_SEQ + 1, ..good },
        ChainMemtable { from_lsn: u64::MAX - 2, ..good },
    ] {
        assert_eq!(
            ChainMemtable::decode(&bad.encode()).unwrap_err().kind(),
            ErrorKind::Corruption,
            "{bad:?}"
        );
    }
}

#[test]
fn an_item_elsewhere_is_not_taken_for_this_one() {
    let [here, there] = [64, 72].map(|at| Position::new(0, at).unwrap());
    let bytes = ItemHeader { lsn: 9, len: 8, items: 1, units: 4 }.encode(3, here);
    assert!(ItemHeader::decode(&bytes, 3, here).is_ok());
    for (salt, position) in [(4, here), (3, there)] {
        assert_eq!(ItemHeader::decode(&bytes, salt, position).unwrap_err().kind(), ErrorKind::Corruption);
    }
    let of = ChainMemtable { subtable: 1, generation: 2, from_lsn: 3 };
    let others = [ChainMemtable { generation: 3, ..of }, ChainMemtable { from_lsn: 4, ..of }];
    assert!(others.iter().all(|other| other.salt(5) != of.salt(5)) && of.salt(5) != of.salt(6));
}

#[test]
fn what_no_item_can_be_is_refused_before_it_is_written() {
    let good = ItemHeader { lsn: 1, len: 8, items: 1, units: 1 };
    assert!(good.check().is_ok());
    let bad = [
        ItemHeader { items: 0, ..good },
        ItemHeader { items: MAX_ITEMS + 1, ..good },
        ItemHeader { units: 0, ..good },
        ItemHeader { lsn: u64::MAX, ..good },
        ItemHeader { lsn: MAX_SEQ, ..good },
        ItemHeader { len: 4, ..good },
    ];
    for item in bad {
        assert_eq!(item.check().unwrap_err().kind(), ErrorKind::InvalidArgument, "{item:?}");
    }
}

#[test]
fn every_flipped_bit_of_a_description_is_corruption() {
    let memtable = ChainMemtable { subtable: 1, generation: 2, from_lsn: 3 }.encode();
    for bit in 0..memtable.len() * 8 {
        let mut bytes = memtable;
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(ChainMemtable::decode(&bytes).unwrap_err().kind(), ErrorKind::Corruption, "{bit}");
    }
    let zone = ZoneHeader { memtable: 1, slot: 2, before: 640 }.encode();
    for bit in 0..16 * 8 {
        let mut bytes = zone;
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(ZoneHeader::decode(&bytes).unwrap_err().kind(), ErrorKind::Corruption, "{bit}");
    }
    let at = Position::new(1, 128).unwrap();
    let item = ItemHeader { lsn: 1, len: 16, items: 3, units: 4 }.encode(1, at);
    for bit in 0..item.len() * 8 {
        let mut bytes = item;
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(ItemHeader::decode(&bytes, 1, at).is_err(), "{bit}");
    }
}

proptest! {
    #[test]
    fn words_come_back_and_go_one_step_back(first in position(), second in position()) {
        prop_assume!(first < second);
        let one = Gidx { previous: None, current: Some(first) };
        let two = Gidx { previous: Some(first), current: Some(second) };
        prop_assert_eq!(Gidx::advance(Gidx::default().encode(), first), Some(one.encode()));
        prop_assert_eq!(Gidx::advance(one.encode(), second), Some(two.encode()));
        for (word, behind) in [(one, first), (two, first), (two, second)] {
            prop_assert_eq!(Gidx::advance(word.encode(), behind), None);
        }
        for gidx in [Gidx::default(), one, two] {
            prop_assert_eq!(Gidx::decode(gidx.encode()).unwrap(), gidx);
        }
        prop_assert_eq!(two.undone().current, one.current);
        prop_assert_eq!(two.undone().encode(), two.encode() >> 32);
        prop_assert_eq!(one.undone(), Gidx::default());
        prop_assert_eq!((second.slot(), second.offset()), (second.0 >> 20, u64::from(second.0 & 0xf_ffff) * 8));
    }

    #[test]
    fn records_come_back_and_damaged_ones_do_not(
        records in vec((vec(any::<u8>(), 0..300), 0..=MAX_SEQ, vec(any::<u8>(), 0..90), any::<bool>()), 1..6),
        flip: prop::sample::Index,
    ) {
        let kind = |put| if put { Kind::Put } else { Kind::Delete };
        let all = records.iter().map(|(key, seq, value, put)| ChainRecord { key, seq: *seq, kind: kind(*put), value });
        let mut bytes = Vec::new();
        for r in all.clone() {
            let from = bytes.len();
            write_record(&mut bytes, &r);
            prop_assert_eq!(bytes.len() - from, record_len(r.key.len(), r.value.len()));
        }
        let mut rest = &bytes[..];
        for want in all {
            let (got, len) = read_record(rest).unwrap();
            prop_assert_eq!(got, want);
            rest = &rest[len..];
        }
        prop_assert!(rest.is_empty());
        let (_, first) = read_record(&bytes).unwrap();
        let bit = flip.index(first * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(read_record(&bytes).is_err());
    }

    #[test]
    fn a_record_of_many_bytes_comes_back(key in 250..260usize, value in 65_530..65_540usize) {
        let (key, value) = (vec![1; key], vec![2; value]);
        let mut bytes = Vec::new();
        let record = ChainRecord { key: &key, seq: MAX_SEQ, kind: Kind::ValueRef, value: &value };
        write_record(&mut bytes, &record);
        prop_assert_eq!(read_record(&bytes).unwrap(), (record, bytes.len()));
        prop_assert!(read_record(&bytes[..bytes.len() - 8]).is_err());
    }
}
