use proptest::collection::vec;
use proptest::prelude::*;
use terrane_base::{ErrorKind, ExtentId, MAX_SEQ, Seq};

use super::*;
use crate::Kind;
use crate::block::{
    self, Block, BlockBuilder, BlockCursor, BlockForm, Compression, DirectoryKind, FinishedBlock,
    set_sequence,
};
use crate::checksum::{crc, key_hash};
use crate::codec::Reader;
use crate::filter;
use crate::tombstone::RangeTombstones;

type Rec = (Vec<u8>, Seq, Vec<u8>);

fn form(compression: Compression, filter_bits_per_key: usize) -> ExtentForm {
    ExtentForm { compression, filter_bits_per_key, ..ExtentForm::default() }
}

fn blocks(records: &[Rec], per_block: usize) -> Vec<FinishedBlock> {
    blocks_with(DirectoryKind::TwoLayer, records, per_block)
}

fn blocks_with(directory: DirectoryKind, records: &[Rec], per_block: usize) -> Vec<FinishedBlock> {
    let mut b = BlockBuilder::new(BlockForm { leaf_records: 3, ..BlockForm::with(directory) });
    let build = |chunk: &[Rec]| {
        chunk.iter().for_each(|(key, seq, value)| b.add(key, *seq, Kind::Put, value));
        b.finish()
    };
    records.chunks(per_block).map(build).collect()
}

fn extent(records: &[Rec], per_block: usize, form: ExtentForm) -> FinishedExtent {
    let mut b = ExtentBuilder::new(form).unwrap();
    blocks(records, per_block).into_iter().for_each(|block| b.add_block(block, None).unwrap());
    b.finish(ExtentId(7)).unwrap()
}

/// A section of an extent, its checksum verified.
fn part(x: &FinishedExtent, s: Section) -> &[u8] {
    let bytes = &x.bytes[s.offset as usize..s.end() as usize];
    assert_eq!(crc(bytes), s.crc);
    bytes
}

fn raw(x: &FinishedExtent, h: &BlockHandle) -> Vec<u8> {
    h.open(&x.bytes[h.offset as usize..][..h.stored_len as usize]).unwrap()
}

/// A lookup as the read path does it.
fn lookup(x: &FinishedExtent, key: &[u8], seq: Seq) -> Option<(Seq, Vec<u8>)> {
    let found = Index::parse(part(x, x.meta.index)).unwrap().find(key, seq).unwrap()?;
    for h in [Some(found.handle), found.then].into_iter().flatten() {
        if !filter::may_contain(h.filter(part(x, x.meta.filter)).unwrap(), key_hash(key)) {
            continue;
        }
        let bytes = raw(x, &h);
        if let Some((seq, _, value)) = block::get(Block::parse(&bytes).unwrap(), key, seq).unwrap() {
            return Some((seq, value.to_vec()));
        }
    }
    None
}

fn all_records(x: &FinishedExtent) -> Vec<Rec> {
    let index = Index::parse(part(x, x.meta.index)).unwrap();
    let mut entry = IndexCursor::new();
    let mut out = Vec::new();
    entry.seek_first(index).unwrap();
    while let Some(h) = entry.handle() {
        let bytes = raw(x, h);
        let b = Block::parse(&bytes).unwrap();
        b.verify().unwrap();
        let mut c = BlockCursor::new();
        c.seek_first(b).unwrap();
        assert_eq!((c.key(), c.seq()), (entry.key(), entry.seq()));
        while c.valid() {
            out.push((c.key().to_vec(), c.seq(), c.value(b).to_vec()));
            c.next(b).unwrap();
        }
        entry.next(index).unwrap();
    }
    out
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![Just(0u8), Just(b'a'), Just(b'b')], 0..4)
}

/// Few keys with many versions each, so that versions straddle blocks.
fn records() -> impl Strategy<Value = Vec<Rec>> {
    vec((keys(), 0..20u64, vec(any::<u8>(), 0..8)), 1..120).prop_map(|mut records| {
        records.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        records.dedup_by(|a, b| (&a.0, a.1) == (&b.0, b.1));
        records
    })
}

fn forms() -> impl Strategy<Value = ExtentForm> {
    (prop_oneof![Just(Compression::None), Just(Compression::Zstd)], prop_oneof![Just(0), Just(10usize)])
        .prop_map(|(compression, bits)| form(compression, bits))
}

proptest! {
    #[test]
    fn lookups_find_the_newest_version_at_or_below_the_snapshot(
        records in records(), per_block in 1..9usize, form in forms(), probes in vec((keys(), 0..22u64), 20),
    ) {
        let x = extent(&records, per_block, form);
        let own = records.iter().flat_map(|r| [(r.0.clone(), r.1), (r.0.clone(), MAX_SEQ)]);
        for (key, seq) in probes.into_iter().chain(own) {
            let want = records.iter().find(|r| r.0 == key && r.1 <= seq).map(|r| (r.1, r.2.clone()));
            prop_assert_eq!(lookup(&x, &key, seq), want, "{:?} at {}", key, seq);
        }
    }

    #[test]
    fn an_extent_gives_back_its_records_and_totals(records in records(), per_block in 1..9usize, form in forms()) {
        let x = extent(&records, per_block, form);
        prop_assert_eq!(&all_records(&x), &records);
        let m = &x.meta;
        Index::parse(part(&x, m.index)).unwrap().verify(m).unwrap();
        prop_assert_eq!(m.rows as usize, records.len());
        prop_assert_eq!(m.blocks as usize, records.len().div_ceil(per_block));
        prop_assert_eq!(&m.lo, &records[0].0);
        prop_assert_eq!(&m.hi[..m.hi.len() - 1], &records[records.len() - 1].0);
        prop_assert_eq!(Some(m.min_seq), records.iter().map(|r| r.1).min());
        prop_assert_eq!(Some(m.max_seq), records.iter().map(|r| r.1).max());
        prop_assert_eq!(x.bytes.len() % PAD_BYTES, 0);
        prop_assert_eq!(m.units, 1);
        let p = Footer::decode(part(&x, m.footer)).unwrap().properties;
        prop_assert_eq!((p.id, p.rows, p.blocks, p.raw_bytes), (m.id, m.rows, m.blocks, m.raw_bytes));
    }

    #[test]
    fn an_index_cursor_stands_where_find_finds(
        records in records(), per_block in 1..5usize, key in keys(), seq in 0..22u64, moves in vec(any::<bool>(), 20),
    ) {
        let x = extent(&records, per_block, form(Compression::None, 10));
        let index = Index::parse(part(&x, x.meta.index)).unwrap();
        let firsts: Vec<_> = records.chunks(per_block).map(|c| (c[0].0.clone(), c[0].1)).collect();
        let found = index.find(&key, seq).unwrap().unwrap();
        let want = firsts.partition_point(|f| f.0.cmp(&key).then(seq.cmp(&f.1)).is_le()).saturating_sub(1);
        prop_assert_eq!(found.position as usize, want);
        let next_same = firsts.get(want + 1).is_some_and(|f| f.0 == key);
        let before_all = firsts[want].0.cmp(&key).then(seq.cmp(&firsts[want].1)).is_gt();
        prop_assert_eq!(found.then.is_some(), next_same && !before_all);

        let mut c = IndexCursor::new();
        c.seek(index, &key, seq).unwrap();
        prop_assert_eq!(c.handle(), Some(&found.handle));
        let mut place = IndexPlace::new();
        place.seek(index, &key, seq).unwrap();
        let mut model = Some(want);
        for forward in moves {
            prop_assert_eq!(place.handle(index).unwrap(), c.handle().copied());
            let span = c.handle().map(|h| BlockSpan { offset: h.offset, raw_len: h.raw_len });
            prop_assert_eq!(place.span(index).unwrap(), span);
            if forward { c.next(index).unwrap() } else { c.prev(index).unwrap() }
            if forward { place.next(index).unwrap() } else { place.prev(index).unwrap() }
            model = model.and_then(|i| if forward { Some(i + 1) } else { i.checked_sub(1) });
            model = model.filter(|i| *i < firsts.len());
            prop_assert_eq!(c.valid(), model.is_some());
            if let Some(i) = model {
                prop_assert_eq!((c.key(), c.seq(), c.position() as usize), (firsts[i].0.as_slice(), firsts[i].1, i));
            }
        }
        place.seek_last(index).unwrap();
        c.seek_last(index).unwrap();
        prop_assert_eq!(place.handle(index).unwrap(), c.handle().copied());
    }

    #[test]
    fn blocks_copied_as_bytes_read_as_before(records in records(), per_block in 1..9usize, form in forms()) {
        let x = extent(&records, per_block, form);
        let index = Index::parse(part(&x, x.meta.index)).unwrap();
        let mut copy = ExtentBuilder::new(form).unwrap();
        let mut entry = IndexCursor::new();
        entry.seek_first(index).unwrap();
        while let Some(h) = entry.handle() {
            let stored = &x.bytes[h.offset as usize..][..h.stored_len as usize];
            let own_filter = h.filter(part(&x, x.meta.filter)).unwrap();
            let last = &records[(entry.position() as usize * per_block + per_block).min(records.len()) - 1].0;
            copy.add_stored_block((entry.key(), entry.seq()), last, h, stored, own_filter).unwrap();
            entry.next(index).unwrap();
        }
        let copied = copy.finish(x.meta.id).unwrap();
        prop_assert_eq!(copied.meta, x.meta);
        prop_assert_eq!(&*copied.bytes, &*x.bytes);
    }

    #[test]
    fn metas_round_trip(
        (lo, hi) in (keys(), keys()), seqs in (0..1000u64, 0..1000u64), n in any::<u32>(), bits in any::<(bool, bool)>(),
    ) {
        let (lo, mut hi) = (lo.clone().min(hi.clone()), lo.max(hi));
        hi.push(0);
        let s = |offset| Section { offset, len: 77, crc: n };
        let meta = ExtentMeta {
            id: ExtentId(n.into()), file: n, unit: n / 2, units: 3, index: s(1000), filter: s(0), footer: s(5),
            rows: u64::from(n) + 1, deletes: n.into(), blocks: 1, data_bytes: 999, raw_bytes: n.into(),
            min_seq: seqs.0.min(seqs.1), max_seq: seqs.0.max(seqs.1), global_seq: None,
            lo, hi, has_tombstones: bits.0, value_refs: bits.1,
        };
        for meta in [meta.attached(n.into()), meta] {
            let mut bytes = Vec::new();
            meta.encode(&mut bytes);
            let mut r = Reader::new(&bytes);
            prop_assert_eq!(ExtentMeta::decode(&mut r).unwrap(), meta);
            prop_assert!(r.is_at_end());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = BlockHandle::decode(&bytes);
        let _ = Footer::decode(&bytes);
        let _ = ExtentMeta::decode(&mut Reader::new(&bytes));
    }

    #[test]
    fn damaged_extents_never_panic(
        records in records(), per_block in 1..9usize, key in keys(), seq in 0..22u64,
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let x = extent(&records, per_block, form(Compression::None, 10));
        let mut bytes = x.bytes.to_vec();
        let hurt = |bytes: &mut [u8]| damage.iter().for_each(|(i, byte)| bytes[i.index(bytes.len())] = *byte);
        let (start, end) = (x.meta.index.offset as usize, x.meta.footer.end() as usize);
        hurt(&mut bytes[start..end]);
        let section = |s: Section| &bytes[s.offset as usize..s.end() as usize];
        let _ = Footer::decode(section(x.meta.footer));
        if let Ok(index) = Index::parse(section(x.meta.index)) {
            let _ = index.verify(&x.meta);
            if let Ok(Some(found)) = index.find(&key, seq) {
                let _ = found.handle.filter(section(x.meta.filter));
            }
            let mut c = IndexCursor::new();
            let _ = c.seek(index, &key, seq);
            while c.valid() {
                let _ = c.next(index);
            }
            let _ = c.seek_last(index);
            while c.valid() {
                let _ = c.prev(index);
            }
            let mut place = IndexPlace::new();
            let _ = place.seek(index, &key, seq);
            while place.valid() {
                let _ = (place.handle(index), place.span(index), place.next(index));
            }
            let _ = place.seek_last(index);
            while place.valid() {
                let _ = place.prev(index);
            }
        }
        let mut meta = Vec::new();
        x.meta.encode(&mut meta);
        hurt(&mut meta);
        if let Ok(meta) = ExtentMeta::decode(&mut Reader::new(&meta)) {
            assert!(meta.lo < meta.hi && meta.stored_len() <= u64::from(meta.units) * UNIT_BYTES as u64);
        }
    }
}

fn numbered(n: u32, value: usize) -> Vec<Rec> {
    (0..n).map(|i| (format!("key{i:07}").into_bytes(), u64::from(i) + 1, vec![i as u8; value])).collect()
}

#[test]
fn golden_extent_and_meta() {
    let records = numbered(10, 3);
    let restart = DirectoryKind::RestartArray;
    let form = ExtentForm { block: BlockForm::with(restart), ..form(Compression::None, 10) };
    let mut b = ExtentBuilder::new(form).unwrap();
    blocks_with(restart, &records, 5).into_iter().for_each(|block| b.add_block(block, None).unwrap());
    b.set_tombstones(&RangeTombstones::from_ranges([("a", "z", 40)]));
    let x = b.finish(ExtentId(300)).unwrap();
    assert_eq!(x.bytes[..x.meta.footer.end() as usize], *include_bytes!("../../tests/golden/extent.bin"));
    assert!(x.bytes[x.meta.footer.end() as usize..].iter().all(|b| *b == 0));
    let mut meta = Vec::new();
    x.meta.encode(&mut meta);
    assert_eq!(meta, include_bytes!("../../tests/golden/extent-meta.bin"));
}

#[test]
fn an_index_has_a_directory_of_two_layers_however_many_blocks_there_are() {
    for (rows, leaf_records) in [(1, 1), (128, 1), (129, 2), (1000, 8)] {
        let mut own = 0;
        let records = numbered(rows, 3);
        let x = extent(&records, 1, form(Compression::None, 10));
        let index = Index::parse(part(&x, x.meta.index)).unwrap();
        index.verify(&x.meta).unwrap();
        assert!(index.block().has_nodes());
        assert_eq!((index.len(), index.block().leaf_records()), (rows, leaf_records));
        let handles = index.handles().unwrap();
        assert_eq!(handles.len(), rows as usize);
        for (key, seq, value) in &records {
            assert_eq!(lookup(&x, key, MAX_SEQ).as_ref(), Some(&(*seq, value.clone())));
            for (key, seq) in
                [(&key[..], *seq), (key, MAX_SEQ), (&key[..9], 0), (&[&key[..], b"x"].concat(), 7)]
            {
                let found = index.find(key, seq).unwrap().unwrap();
                let position = Some((found.position, found.then.is_some()));
                assert_eq!(index.position(key, seq).unwrap(), position);
                if key.starts_with(&records[0].0[..index.block().shape().prefix()]) {
                    let approach = index.approach(key);
                    assert_eq!(index.own_position_from(&approach, key, seq).unwrap(), position);
                    own += 1;
                }
                assert_eq!(handles[found.position as usize], found.handle);
            }
        }
        assert!(own >= 3 * rows, "{own}");
    }
}

#[test]
fn extents_close_at_their_size_and_count() {
    let form = ExtentForm { max_bytes: 256 << 10, max_blocks: 20, ..form(Compression::None, 10) };
    for value in [0, 10, 100, 900, 5000] {
        let mut b = ExtentBuilder::new(form).unwrap();
        let mut block = BlockBuilder::new(BlockForm::default());
        let mut extents = Vec::new();
        for (key, seq, value) in numbered(6000, value) {
            if !block.fits(key.len(), value.len(), seq) {
                let done = block.finish();
                if b.would_overflow(done.bytes.len() + done.first_key.len()) {
                    let bound = b.stored_len();
                    let x = b.finish(ExtentId(extents.len() as u64 + 1)).unwrap();
                    assert!(x.meta.stored_len() as usize <= bound);
                    extents.push(x);
                }
                b.add_block(done, None).unwrap();
            }
            block.add(&key, seq, Kind::Put, &value);
        }
        for x in &extents {
            assert!(x.bytes.len() <= form.max_bytes && x.meta.blocks <= 20, "{} bytes", x.bytes.len());
            assert!(x.meta.blocks == 20 || x.bytes.len() > form.max_bytes * 7 / 8, "{} bytes", x.bytes.len());
        }
    }
}

#[test]
fn bounds_reach_as_far_as_the_range_tombstones() {
    let mut b = ExtentBuilder::new(form(Compression::None, 10)).unwrap();
    blocks(&[(b"m".to_vec(), 5, vec![])], 1).into_iter().for_each(|block| b.add_block(block, None).unwrap());
    b.set_tombstones(&RangeTombstones::from_ranges([("c", "d", 9), ("k", "x", 2)]));
    let x = b.finish(ExtentId(1)).unwrap();
    assert_eq!((x.meta.lo.as_slice(), x.meta.hi.as_slice()), (b"c".as_slice(), b"x".as_slice()));
    assert_eq!((x.meta.min_seq, x.meta.max_seq, x.meta.has_tombstones), (2, 9, true));

    // The next extent of the same builder knows nothing of them.
    blocks(&[(b"y".to_vec(), 5, vec![])], 1).into_iter().for_each(|block| b.add_block(block, None).unwrap());
    let x = b.finish(ExtentId(2)).unwrap();
    assert_eq!((x.meta.lo.as_slice(), x.meta.hi.as_slice()), (b"y".as_slice(), b"y\0".as_slice()));
    assert_eq!((x.meta.min_seq, x.meta.max_seq, x.meta.has_tombstones), (5, 5, false));
}

#[test]
fn an_extent_may_hold_range_tombstones_alone_but_not_nothing() {
    let mut b = ExtentBuilder::new(ExtentForm::default()).unwrap();
    assert!(b.is_empty());
    assert_eq!(b.finish(ExtentId(1)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let tombstones = RangeTombstones::from_ranges([("c", "d", 9)]);
    b.set_tombstones(&tombstones);
    assert!(!b.is_empty());
    let x = b.finish(ExtentId(1)).unwrap();
    let index = Index::parse(part(&x, x.meta.index)).unwrap();
    index.verify(&x.meta).unwrap();
    assert!(index.is_empty());
    assert_eq!(index.find(b"c", 1).unwrap(), None);
    assert_eq!(Footer::decode(part(&x, x.meta.footer)).unwrap().tombstones, tombstones);
    assert_eq!((x.meta.rows, x.meta.min_seq, x.meta.max_seq), (0, 9, 9));
    let mut meta = Vec::new();
    x.meta.encode(&mut meta);
    assert_eq!(ExtentMeta::decode(&mut Reader::new(&meta)).unwrap(), x.meta);
}

#[test]
fn a_stored_block_that_differs_from_its_handle_is_refused() {
    let x = extent(&numbered(3, 5), 3, form(Compression::None, 10));
    let found = Index::parse(part(&x, x.meta.index)).unwrap().find(b"", 0).unwrap().unwrap();
    let mut stored = x.bytes[..found.handle.stored_len as usize].to_vec();
    let mut b = ExtentBuilder::new(ExtentForm::default()).unwrap();
    assert!(b.add_stored_block((b"a", 1), b"b", &found.handle, &stored[1..], &[]).is_err());
    stored[3] ^= 1;
    assert_eq!(found.handle.open(&stored).unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(found.handle.open(&stored[1..]).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn unknown_footer_sections_are_skipped_unless_they_are_required() {
    let mut plain = Vec::new();
    let footer =
        Footer { properties: Properties { id: ExtentId(5), ..Properties::default() }, ..Footer::default() };
    footer.encode(&mut plain);
    assert_eq!(Footer::decode(&plain).unwrap(), footer);
    let with_tag = |tag: u16| {
        let mut bytes = plain[..4].to_vec();
        bytes.extend(2u16.to_le_bytes());
        let body = &plain[20..];
        for (tag, offset, part) in [(tag, 34, b"??".as_slice()), (2, 36, body)] {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(u32::to_le_bytes(offset));
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(crc(part).to_le_bytes());
        }
        bytes.extend(b"??");
        bytes.extend(body);
        Footer::decode(&bytes)
    };
    assert_eq!(with_tag(99).unwrap(), footer);
    assert_eq!(with_tag(0x8000 | 99).unwrap_err().kind(), ErrorKind::NewerFormat);
}

#[test]
fn a_footer_verifies_each_section() {
    let mut good = Vec::new();
    let tombstones = RangeTombstones::from_ranges([("a", "b", 3)]);
    Footer { tombstones, properties: Properties::default() }.encode(&mut good);
    for i in 34..good.len() {
        let mut bytes = good.clone();
        bytes[i] ^= 4;
        assert_eq!(Footer::decode(&bytes).unwrap_err().kind(), ErrorKind::Corruption, "byte {i}");
    }
}

#[test]
fn what_later_versions_write_is_recognised_as_newer() {
    let x = extent(&numbered(3, 5), 3, form(Compression::None, 10));
    let found = Index::parse(part(&x, x.meta.index)).unwrap().find(b"", 0).unwrap().unwrap();
    let mut handle = Vec::new();
    BlockHandle { offset: 0, stored_len: 1, raw_len: 1, ..found.handle }.encode(&mut handle);
    assert!(BlockHandle::decode(&handle).is_ok());
    for (at, what) in [(7, "compression"), (8, "flags")] {
        let mut bytes = handle.clone();
        bytes[at] = 2;
        assert_eq!(BlockHandle::decode(&bytes).unwrap_err().kind(), ErrorKind::NewerFormat, "{what}");
    }
    let mut meta = Vec::new();
    x.meta.encode(&mut meta);
    meta[0] |= 8;
    assert_eq!(ExtentMeta::decode(&mut Reader::new(&meta)).unwrap_err().kind(), ErrorKind::NewerFormat);
}

#[test]
fn a_staged_extent_takes_its_sequence_when_it_is_attached() {
    let mut b = BlockBuilder::new(form(Compression::None, 10).block);
    for key in [b"a", b"b"] {
        b.add(key, STAGED_SEQ, Kind::Put, b"v");
    }
    let mut builder = ExtentBuilder::new(form(Compression::None, 10)).unwrap();
    builder.add_block(b.finish(), None).unwrap();
    let x = builder.finish(ExtentId(1)).unwrap();
    let meta = x.meta.attached(77);
    let mut index = part(&x, x.meta.index).to_vec();
    Index::parse(&index).unwrap().verify(&meta).unwrap();
    set_sequence(&mut index, 77).unwrap();
    let found = Index::parse(&index).unwrap().find(b"a", 77).unwrap().unwrap();
    let mut block = x.bytes[..found.handle.stored_len as usize].to_vec();
    set_sequence(&mut block, 77).unwrap();
    let at = |seq| crate::block::get(Block::parse(&block).unwrap(), b"b", seq).unwrap().map(|(seq, ..)| seq);
    assert_eq!((at(76), at(77)), (None, Some(77)));
    // One whose records differ has none to set.
    let mut other = BlockBuilder::new(form(Compression::None, 10).block);
    other.add(b"a", 5, Kind::Put, b"v");
    other.add(b"b", 6, Kind::Put, b"v");
    let mut bytes = other.finish().bytes;
    assert_eq!(set_sequence(&mut bytes, 77).unwrap_err().kind(), ErrorKind::Corruption);
    let mut wrong = Vec::new();
    ExtentMeta { min_seq: 3, ..meta }.encode(&mut wrong);
    assert_eq!(ExtentMeta::decode(&mut Reader::new(&wrong)).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn an_index_that_is_not_the_metas_is_seen() {
    let x = extent(&numbered(30, 5), 3, form(Compression::None, 10));
    let index = Index::parse(part(&x, x.meta.index)).unwrap();
    index.verify(&x.meta).unwrap();
    let m = &x.meta;
    for meta in [
        ExtentMeta { rows: 31, ..m.clone() },
        ExtentMeta { data_bytes: m.data_bytes + 1, ..m.clone() },
        ExtentMeta { hi: b"key0000020".to_vec(), ..m.clone() },
        ExtentMeta { min_seq: 2, ..m.clone() },
    ] {
        assert_eq!(index.verify(&meta).unwrap_err().kind(), ErrorKind::Corruption);
    }
}
