use proptest::collection::vec;
use proptest::prelude::*;
use terrane_base::{ErrorKind, MAX_SEQ, Seq};

use super::DirectoryKind::{RestartArray, TwoLayer};
use super::*;
use crate::Kind;
use crate::checksum::key_hash;

/// A record of the model, ordered as blocks are.
#[derive(Clone, Debug, PartialEq)]
struct Rec {
    key: Vec<u8>,
    seq: Seq,
    kind: Kind,
    value: Vec<u8>,
}

fn rec(key: &[u8], seq: Seq, value: &[u8]) -> Rec {
    Rec { key: key.to_vec(), seq, kind: Kind::Put, value: value.to_vec() }
}

fn sorted(mut records: Vec<Rec>) -> Vec<Rec> {
    records.sort_by(|a, b| order(a, &b.key, b.seq));
    records.dedup_by(|a, b| a.key == b.key && a.seq == b.seq);
    records
}

fn order(a: &Rec, key: &[u8], seq: Seq) -> std::cmp::Ordering {
    a.key.as_slice().cmp(key).then(seq.cmp(&a.seq))
}

fn form(directory: DirectoryKind, leaf_records: usize) -> BlockForm {
    BlockForm { leaf_records, directory, ..BlockForm::default() }
}

fn directories() -> impl Strategy<Value = DirectoryKind> {
    prop_oneof![Just(RestartArray), Just(TwoLayer)]
}

fn build(records: &[Rec], directory: DirectoryKind, leaf_records: usize) -> FinishedBlock {
    let mut b = BlockBuilder::new(form(directory, leaf_records));
    for r in records {
        b.add(&r.key, r.seq, r.kind, &r.value);
    }
    b.finish()
}

/// A block without the flag that no leaf begins between versions, which none needs to have.
fn says_nothing_of_versions(mut bytes: Vec<u8>) -> Vec<u8> {
    let flags = bytes.len() - 24 + 20;
    bytes[flags] &= !2;
    bytes
}

fn at(c: &BlockCursor, b: Block<'_>) -> Option<Rec> {
    c.valid().then(|| Rec { key: c.key().to_vec(), seq: c.seq(), kind: c.kind(), value: c.value(b).to_vec() })
}

/// Keys over a tiny alphabet, so that prefixes, duplicates and empty keys are frequent.
fn keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(prop_oneof![Just(0u8), Just(1), Just(b'a'), Just(0xff)], 0..6),
        1 => vec(Just(b'x'), 0..300),
        1 => vec(any::<u8>(), 0..20),
    ]
}

fn seqs() -> impl Strategy<Value = Seq> {
    prop_oneof![3 => 0..5u64, 1 => 0..=MAX_SEQ, 2 => Just(0u64)]
}

fn records(n: usize) -> impl Strategy<Value = Vec<Rec>> {
    let kind = prop_oneof![Just(Kind::Put), Just(Kind::Delete), Just(Kind::ValueRef)];
    let value = prop_oneof![4 => vec(any::<u8>(), 0..10), 1 => vec(Just(7u8), 100..300)];
    let one = (keys(), seqs(), kind, value).prop_map(|(key, seq, kind, value)| Rec { key, seq, kind, value });
    vec(one, 0..n).prop_map(sorted)
}

proptest! {
    #[test]
    fn a_cursor_moves_like_a_sorted_vector(
        records in records(80),
        (directory, leaf, silent) in (directories(), 1..20usize, any::<bool>()),
        targets in vec((keys(), seqs()), 10),
        moves in vec(any::<bool>(), 60),
    ) {
        let built = build(&records, directory, leaf);
        let bytes = if silent { says_nothing_of_versions(built.bytes) } else { built.bytes };
        let b = Block::parse(&bytes).unwrap();
        b.verify().unwrap();
        prop_assert_eq!(b.rows() as usize, records.len());
        let mut c = BlockCursor::new();
        let own = records.iter().map(|r| (r.key.clone(), r.seq));
        for (key, seq) in targets.into_iter().chain(own) {
            let split = records.partition_point(|r| order(r, &key, seq).is_lt());
            let after = records.partition_point(|r| order(r, &key, seq).is_le());
            c.seek(b, &key, seq).unwrap();
            prop_assert_eq!(at(&c, b), records.get(split).cloned());
            let mut model = Some(split).filter(|i| *i < records.len());
            for forward in &moves {
                if *forward { c.next(b).unwrap() } else { c.prev(b).unwrap() }
                model = model.and_then(|i| if *forward { Some(i + 1) } else { i.checked_sub(1) })
                    .filter(|i| *i < records.len());
                prop_assert_eq!(at(&c, b), model.map(|i| records[i].clone()));
                prop_assert!(!c.valid() || c.position() as usize == model.unwrap());
            }
            c.seek_for_prev(b, &key, seq).unwrap();
            prop_assert_eq!(at(&c, b), after.checked_sub(1).map(|i| records[i].clone()));
            c.prev(b).unwrap();
            prop_assert_eq!(at(&c, b), after.checked_sub(2).map(|i| records[i].clone()));
        }
        c.seek_last(b).unwrap();
        for r in records.iter().rev() {
            prop_assert_eq!(at(&c, b), Some(r.clone()));
            c.prev(b).unwrap();
        }
        prop_assert!(!c.valid());
        c.seek_first(b).unwrap();
        for (i, r) in records.iter().enumerate() {
            prop_assert_eq!(at(&c, b), Some(r.clone()));
            let next = records.get(i + 1);
            let repeats = next.is_some_and(|next| next.key == r.key);
            // Every other step by itself, as far as that goes: up to the key after next, and for all that is not newer.
            let (end, newest) = (records.get(i + 2).unwrap_or(r), next.unwrap_or(r).seq.saturating_sub(i as Seq % 3 / 2));
            let mut below = Below::default();
            below.set_key(Some(&end.key));
            let most = records.iter().map(|r| r.seq).max().unwrap_or(0);
            below.begin(c.key(), newest, most);
            let goes = next.is_some_and(|n| {
                n.seq <= newest && !n.kind.is_delete() && !repeats && n.key < end.key
            });
            if i % 2 == 0 && r.key < end.key {
                prop_assert_eq!(c.next_below(&bytes, &b.shape(), &mut below).unwrap(), goes);
                c.read_seq(b).unwrap();
                if goes {
                    continue;
                }
                prop_assert_eq!(at(&c, b), Some(r.clone()));
            }
            c.next(b).unwrap();
            prop_assert!(!c.valid() || c.repeats() == repeats);
        }
        prop_assert!(!c.valid());
    }

    #[test]
    fn common_prefixes_are_as_long_as_they_are(a in keys(), b in keys(), n in 0..24usize) {
        let both = [&a[..a.len().min(n)], &b].concat();
        for (x, y) in [(&a, &b), (&a, &both), (&both, &both)] {
            let want = x.iter().zip(y).take_while(|(x, y)| x == y).count();
            prop_assert_eq!(common_prefix(x, y), want);
            prop_assert_eq!((super::order(x, y), super::order(y, x)), (x.cmp(y), y.cmp(x)));
        }
    }

    #[test]
    fn a_lookup_finds_the_newest_version_at_or_below_the_snapshot(
        records in records(120),
        (directory, leaf, silent) in (directories(), 1..20usize, any::<bool>()),
        targets in vec((keys(), seqs()), 20),
    ) {
        let built = build(&records, directory, leaf);
        let bytes = if silent { says_nothing_of_versions(built.bytes) } else { built.bytes };
        let b = Block::parse(&bytes).unwrap();
        let near = records.iter().flat_map(|r| [(r.key.clone(), r.seq), (r.key.clone(), MAX_SEQ), (r.key.clone(), r.seq.saturating_sub(1))]);
        for (key, seq) in targets.into_iter().chain(near) {
            let want = records.iter().find(|r| r.key == key && r.seq <= seq);
            let got = get(b, &key, seq).unwrap();
            prop_assert_eq!(got, want.map(|r| (r.seq, r.kind, r.value.as_slice())));
        }
    }

    #[test]
    fn a_finished_block_tells_the_truth_about_itself(records in records(60), directory in directories(), leaf in 1..20usize) {
        prop_assume!(!records.is_empty());
        let f = build(&records, directory, leaf);
        let first = &records[0];
        prop_assert_eq!((&f.first_key, f.first_seq), (&first.key, first.seq));
        prop_assert_eq!(&f.last_key, &records[records.len() - 1].key);
        prop_assert_eq!(f.rows as usize, records.len());
        prop_assert_eq!(f.deletes as usize, records.iter().filter(|r| r.kind.is_delete()).count());
        prop_assert_eq!(Some(f.min_seq), records.iter().map(|r| r.seq).min());
        prop_assert_eq!(Some(f.max_seq), records.iter().map(|r| r.seq).max());
        prop_assert_eq!(f.value_refs, records.iter().any(|r| r.kind == Kind::ValueRef));
        let mut distinct: Vec<_> = records.iter().map(|r| key_hash(&r.key)).collect();
        distinct.dedup();
        prop_assert_eq!(f.hashes, distinct);
    }

    #[test]
    fn blocks_close_at_their_size(
        lens in vec((0..40usize, prop_oneof![8 => 0..200usize, 1 => 3000..9000usize], seqs()), 1..400),
        directory in directories(),
        leaf in prop_oneof![Just(1), Just(2), Just(16)],
    ) {
        let form = BlockForm { target_bytes: 4096, leaf_records: leaf, directory };
        let mut b = BlockBuilder::new(form);
        let mut blocks = Vec::new();
        for (i, (key_len, value_len, seq)) in lens.iter().enumerate() {
            let mut key = format!("{i:08}").into_bytes();
            key.resize(8 + key_len, b'k');
            if !b.fits(key.len(), *value_len, *seq) {
                blocks.push(b.finish());
            }
            b.add(&key, *seq, Kind::Put, &vec![1; *value_len]);
        }
        let len = b.len();
        blocks.push(b.finish());
        prop_assert!(b.is_empty());
        let last = blocks.last().unwrap().bytes.len();
        prop_assert!(last <= len && len < last + 64, "{last} bytes, {len} foretold");
        prop_assert!(last == len || directory == TwoLayer);
        prop_assert_eq!(blocks.iter().map(|f| f.rows as usize).sum::<usize>(), lens.len());
        for f in &blocks {
            let parsed = Block::parse(&f.bytes).unwrap();
            parsed.verify().unwrap();
            prop_assert!(f.bytes.len() <= 4096 || f.rows == 1, "{} bytes, {} rows", f.bytes.len(), f.rows);
            prop_assert!(parsed.leaves() as usize <= MAX_LEAVES);
            prop_assert_eq!(parsed.has_nodes(), directory == TwoLayer);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300), key in keys(), seq in seqs()) {
        exercise(&bytes, &key, seq);
    }

    #[test]
    fn damaged_blocks_never_panic(
        records in records(40),
        (directory, leaf) in (directories(), prop_oneof![Just(1), 1..20usize]),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in 0..3usize,
        key in keys(),
        seq in seqs(),
    ) {
        let mut bytes = build(&records, directory, leaf).bytes;
        bytes.drain(..cut.min(bytes.len()));
        for (i, byte) in damage {
            let i = i.index(bytes.len());
            bytes[i] = byte;
        }
        exercise(&bytes, &key, seq);
    }

    #[test]
    fn compressed_blocks_come_back_and_damaged_ones_never_panic(
        raw in vec(prop_oneof![9 => Just(3u8), 1 => any::<u8>()], 0..3000),
        damage in (any::<prop::sample::Index>(), any::<u8>()),
        wrong_len in 0..4000usize,
    ) {
        let mut c = Compressor::new(Compression::Zstd, 3).unwrap();
        if let Some(mut stored) = c.compress(&raw) {
            prop_assert!(stored.len() <= raw.len() - raw.len() / 8);
            prop_assert_eq!(&decompress(Compression::Zstd, &stored, raw.len()).unwrap(), &raw);
            prop_assert!(wrong_len == raw.len() || decompress(Compression::Zstd, &stored, wrong_len).is_err());
            let i = damage.0.index(stored.len());
            stored[i] = damage.1;
            if let Ok(out) = decompress(Compression::Zstd, &stored, raw.len()) {
                prop_assert_eq!(out.len(), raw.len());
            }
        }
        prop_assert_eq!(&decompress(Compression::None, &raw, raw.len()).unwrap(), &raw);
        prop_assert!(decompress(Compression::None, &raw, raw.len() + 1).is_err());
    }
}

/// Calls everything there is on bytes that may be anything; only panics and endless loops are failures.
fn exercise(bytes: &[u8], key: &[u8], seq: Seq) {
    let Ok(b) = Block::parse(bytes) else { return };
    let _ = b.verify();
    let _ = get(b, key, seq);
    let _ = Foresight::of(b);
    for leaf in [0, b.leaves() / 2, b.leaves(), u32::MAX - 1] {
        let _ = b.share(&b.approach(key), leaf);
    }
    let mut c = BlockCursor::new();
    let (mut steps, mut steps_below) = (0, 0);
    let _ = c.seek_first(b);
    while c.valid() {
        let _ = get(b, c.key(), c.seq());
        let mut below = Below::default();
        below.set_key(Some(key).filter(|_| !seq.is_multiple_of(3)));
        below.begin(c.key(), seq, seq % 7);
        let mut walk = c.clone();
        while walk.next_below(bytes, &b.shape(), &mut below).is_ok_and(|went| went) {
            let _ = (walk.value(b), walk.read_seq(b));
            steps_below += 1;
            assert!(steps_below <= b.rows());
        }
        steps_below = 0;
        let _ = (c.value(b), c.next(b));
        steps += 1;
    }
    let _ = c.seek_last(b);
    while c.valid() {
        let _ = (c.value_range(), c.prev(b));
        steps += 1;
    }
    assert!(steps <= 2 * b.rows());
    let _ = (c.seek(b, key, seq), c.prev(b));
    let _ = (c.seek_for_prev(b, key, seq), c.next(b));
}

#[test]
fn golden_block() {
    let records = [rec(b"", 9, b"e"), rec(b"ab", 300, b"1"), rec(b"ab", 8, b""), rec(b"abc", 7, b"22")];
    let built = build(&records, RestartArray, 3);
    assert_eq!(built.bytes, include_bytes!("../../tests/golden/block-restart-array.bin"));
    let zeros = [rec(b"k1", 0, b"v"), rec(b"k2", 0, b"w")];
    let built = build(&zeros, RestartArray, 16);
    assert_eq!(built.bytes, include_bytes!("../../tests/golden/block-no-seqs.bin"));
    // Keys with a prefix in common, of which some differ behind the numbers in the nodes; two inner nodes and a third in part.
    let key = |i: u32| format!("common {:02}-------{}", i / 3, i % 3);
    let many: Vec<_> = (0..20).map(|i| rec(key(i).as_bytes(), 5, b"v")).collect();
    let built = build(&many, TwoLayer, 1);
    assert_eq!(built.bytes, include_bytes!("../../tests/golden/block-two-layer.bin"));
}

#[test]
fn a_block_of_equal_sequences_stores_none() {
    let with = |seq: Seq| {
        let all: Vec<_> = (0..100u32).map(|i| rec(format!("{i:03}").as_bytes(), seq, b"v")).collect();
        build(&all, RestartArray, 16).bytes.len()
    };
    assert_eq!(with(0), with(MAX_SEQ));
    let mixed: Vec<_> = (0..100u32).map(|i| rec(format!("{i:03}").as_bytes(), i.into(), b"v")).collect();
    assert_eq!(build(&mixed, RestartArray, 16).bytes.len(), with(0) + 100);
}

#[test]
fn blocks_beyond_64_kib_get_wide_offsets() {
    let all: Vec<_> = (0..1000u32).map(|i| rec(format!("{i:04}").as_bytes(), 5, &[1; 100])).collect();
    for (directory, leaf, nodes) in [(RestartArray, 4, false), (TwoLayer, 4, false), (TwoLayer, 8, true)] {
        let built = build(&all, directory, leaf);
        assert!(built.bytes.len() > 64 << 10);
        let b = Block::parse(&built.bytes).unwrap();
        assert_eq!(b.has_nodes(), nodes, "of more than 128 leaves there are none");
        b.verify().unwrap();
        assert_eq!(get(b, b"0999", MAX_SEQ).unwrap().unwrap().2, [1; 100]);
    }
}

#[test]
fn a_block_takes_no_more_memory_than_it_may_fill() {
    let target = BlockForm::default().target_bytes;
    for value in [0, target - 100, target - 50, target, 3 * target, 100_000] {
        for (directory, spare) in [(RestartArray, 0), (TwoLayer, 64)] {
            let block = build(&[rec(b"a key of 16 byte", 7, &vec![b'v'; value])], directory, 16);
            let (len, capacity) = (block.bytes.len(), block.bytes.capacity());
            let most = if len < target / 2 { len } else { target.max(len + spare) };
            assert!(capacity <= most, "{value}: {capacity} of {most}");
        }
    }
}

#[test]
fn a_block_without_records_is_valid_and_holds_nothing() {
    let built = BlockBuilder::new(BlockForm::default()).finish();
    let b = Block::parse(&built.bytes).unwrap();
    b.verify().unwrap();
    assert_eq!(get(b, b"", MAX_SEQ).unwrap(), None);
    let mut c = BlockCursor::new();
    c.seek_last(b).unwrap();
    assert!(!c.valid());
    c.seek(b, b"a", 0).unwrap();
    assert!(!c.valid());
}

#[test]
fn a_builder_starts_afresh_after_each_block() {
    let mut b = BlockBuilder::new(BlockForm::default());
    let mut once = |key: &[u8], seq, kind| {
        b.add(key, seq, kind, b"");
        b.finish()
    };
    once(b"zz", 77, Kind::Delete);
    let mut divided = BlockBuilder::new(form(TwoLayer, 1));
    for block in [&[rec(b"a", 9, b""), rec(b"a", 8, b"")][..], &[rec(b"a", 7, b"")]] {
        block.iter().for_each(|r| divided.add(&r.key, r.seq, r.kind, &r.value));
        let built = divided.finish().bytes;
        assert_eq!(Block::parse(&built).unwrap().is_undivided(), block.len() == 1);
    }
    let second = once(b"a", 3, Kind::Put);
    assert_eq!(
        second,
        build(&[rec(b"a", 3, b"")], BlockForm::default().directory, BlockForm::default().leaf_records)
    );
}

#[test]
fn leaves_are_as_large_as_records_allow() {
    // Most records of a leaf, lengths of values and of what keys begin with, and records of a leaf, but for the first block.
    for (most, value, begin, expected) in [
        (8, 32, 0, 8),
        (8, 100, 0, 4),
        (8, 200, 0, 2),
        (8, 600, 0, 2),
        (8, 1500, 0, 1),
        (4, 8, 0, 6),
        (4, 32, 0, 4),
        (1, 100, 0, 2),
        // What each leaf repeats of keys is not to take much of the block.
        (8, 100, 300, 8),
        (8, 8, 2000, 8),
        (8, 1500, 2000, 8),
        (8, 300, 60, 4),
    ] {
        let form = BlockForm { leaf_records: most, ..BlockForm::with(TwoLayer) };
        let (mut b, mut blocks) = (BlockBuilder::new(form), Vec::new());
        for n in 0..8000_u64 {
            let key = [&vec![7; begin][..], &n.to_be_bytes(), b"00000000"].concat();
            if !b.fits(key.len(), value, 7) {
                blocks.push(b.finish());
            }
            b.add(&key, 7, Kind::Put, &vec![1; value]);
        }
        for block in &blocks[1..] {
            let leaf = Block::parse(&block.bytes).unwrap().leaf_records();
            assert_eq!(leaf, expected, "{most}, {value}, {begin}");
        }
        assert!(blocks.len() > 2);
    }
}

#[test]
fn a_block_of_one_record_says_nothing_of_the_next_ones() {
    let mut b = BlockBuilder::new(BlockForm::with(TwoLayer));
    b.add(b"a", 7, Kind::Put, &[1; 20_000]);
    assert_eq!(b.finish().rows, 1);
    assert_eq!(b.finish().rows, 0);
    (0..300_u32).for_each(|n| b.add(&n.to_be_bytes(), 7, Kind::Put, &[1; 24]));
    assert_eq!(Block::parse(&b.finish().bytes).unwrap().leaf_records(), 8);
}

#[test]
fn what_later_versions_write_is_recognised_as_newer() {
    let built = build(&[rec(b"k", 1, b"v")], RestartArray, 16).bytes;
    let trailer = built.len() - 24;
    for (field, value) in [(19, 3), (20, 2), (20, 4), (21, 1), (22, 1), (23, 1)] {
        let mut bytes = built.clone();
        bytes[trailer + field] = value;
        assert_eq!(Block::parse(&bytes).unwrap_err().kind(), ErrorKind::NewerFormat, "byte {field}");
    }
    let mut bytes = built.clone();
    bytes[0] = Kind::Merge as u8;
    let b = Block::parse(&bytes).unwrap();
    assert_eq!(get(b, b"k", 1).unwrap_err().kind(), ErrorKind::NewerFormat);
    assert_eq!(BlockCursor::new().seek_first(b).unwrap_err().kind(), ErrorKind::NewerFormat);
    assert_eq!(Compression::from_u8(2).unwrap_err().kind(), ErrorKind::NewerFormat);
}

#[test]
fn verify_sees_what_lookups_must_not_trust() {
    let all: Vec<_> =
        (0..40u32).map(|i| rec(format!("key{i:03}").as_bytes(), u64::from(i) * 3, b"v")).collect();
    for (directory, leaf) in [(RestartArray, 8), (TwoLayer, 8), (TwoLayer, 2)] {
        let good = build(&all, directory, leaf).bytes;
        Block::parse(&good).unwrap().verify().unwrap();
        let mut unseen = Vec::new();
        for i in 0..good.len() - 24 {
            for bit in 0..8 {
                let mut bytes = good.clone();
                bytes[i] ^= 1 << bit;
                let same_records = Block::parse(&bytes).and_then(|b| b.verify()).is_ok();
                if same_records {
                    unseen.push((i, bit));
                }
            }
        }
        // A changed value, a changed key that keeps its place, a changed sequence: only a checksum can see those. Nothing
        // that steers a search may go unseen.
        let b = Block::parse(&good).unwrap();
        for (i, _) in unseen {
            let i = i as u32;
            let steers = (0..b.leaves()).any(|l| {
                let (record, _) = b.leaf_head(l).unwrap();
                (record.suffix - 3..record.suffix).contains(&i)
            });
            assert!(!steers, "byte {i}");
            assert!(i < b.directory(), "directory byte {i}");
        }
    }
}

#[test]
fn a_block_says_so_where_a_leaf_begins_between_versions() {
    let records = |divided| {
        let seqs: &[Seq] = if divided { &[9, 7, 5, 3] } else { &[9, 7] };
        let versions = seqs.iter().map(|seq| rec(b"b", *seq, b"v"));
        let all: Vec<_> =
            [rec(b"a", 4, b"")].into_iter().chain(versions).chain([rec(b"c", 1, b"")]).collect();
        all
    };
    for (divided, leaf) in [(false, 3), (true, 3), (true, 5), (false, 1)] {
        let all = records(divided);
        let mut bytes = build(&all, TwoLayer, leaf).bytes;
        let crosses = (leaf..all.len()).step_by(leaf).any(|at| all[at].key == all[at - 1].key);
        let block = Block::parse(&bytes).unwrap();
        assert_eq!(block.is_undivided(), !crosses, "{divided} {leaf}");
        block.verify().unwrap();
        // The other answer is one that lookups could not rely upon.
        let flags = bytes.len() - 24 + 20;
        bytes[flags] |= 2;
        assert_eq!(Block::parse(&bytes).unwrap().verify().is_err(), crosses, "{divided} {leaf}");
    }
}

#[test]
fn a_shape_refuses_other_bytes() {
    let built = build(&[rec(b"k", 1, b"v")], TwoLayer, 16).bytes;
    let shape = Block::parse(&built).unwrap().shape();
    assert_eq!(get(shape.over(&built).unwrap(), b"k", 1).unwrap().unwrap().2, b"v");
    assert!(shape.over(&built[1..]).is_err());
}

#[test]
fn leaves_are_walked_alike_whatever_lengths_records_have() {
    // Around the lengths at which a length takes another byte, of keys as of values.
    for lens in [[0, 1, 126], [127, 128, 129], [126, 16_383, 16_384], [0, 128, 16_385]] {
        for stem in [0, 1, 120, 127, 128] {
            let key = |n: usize| [&vec![b'k'; stem][..], &[n as u8 / 3, b'x', n as u8 % 3][..n % 4]].concat();
            let mut keys: Vec<_> = (0..60).map(key).collect();
            keys.sort();
            keys.dedup();
            let value = |n: usize| vec![n as u8; lens[n % 3]];
            let values: Vec<_> = (0..keys.len()).map(value).collect();
            let records: Vec<_> = keys.iter().zip(&values).map(|(k, v)| rec(k, 5, v)).collect();
            let bytes = build(&records, TwoLayer, 16).bytes;
            let block = Block::parse(&bytes).unwrap();
            for (k, v) in keys.iter().zip(&values) {
                assert_eq!(get(block, k, 5).unwrap().unwrap().2, v, "{stem} {lens:?}");
                assert_eq!(get(block, k, 4).unwrap(), None);
                let beside = [&k[..], b"\0"].concat();
                assert_eq!(get(block, &beside, 5).unwrap().is_some(), keys.contains(&beside));
            }
        }
    }
}

#[test]
fn forms_out_of_range_are_refused() {
    assert!(BlockForm::default().check().is_ok());
    assert!(BlockForm { target_bytes: 1000, ..BlockForm::default() }.check().is_err());
    assert!(BlockForm { target_bytes: 1 << 20, ..BlockForm::default() }.check().is_err());
    assert!(form(TwoLayer, 0).check().is_err());
    assert!(form(TwoLayer, 129).check().is_err());
}

#[test]
fn incompressible_blocks_stay_raw() {
    let mut state = 1u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    })
    .take(4096)
    .collect();
    assert_eq!(Compressor::new(Compression::Zstd, 3).unwrap().compress(&noise), None);
    assert_eq!(Compressor::new(Compression::None, 3).unwrap().compress(&[0; 4096]), None);
    assert!(Compressor::new(Compression::Zstd, 1000).unwrap().compress(&[0; 4096]).is_some());
}
