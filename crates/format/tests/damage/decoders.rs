//! Every decoder of the format, each as a function over arbitrary bytes. It must not panic, and what it accepts must be
//! consistent: it encodes to something that decodes to the same. The quick test and the fuzz targets share these.
//!
//! Checksums would keep random bytes from getting far; where one guards a decoder, its input is also tried with the
//! checksums put right.

use terrane_base::{ExtentId, MAX_SEQ, SubtableId};
use terrane_format::batch::{self, EntryHeader, EntryKind, Op, Ops};
use terrane_format::block::{
    self, Block, BlockBuilder, BlockCursor, BlockForm, Compression, DirectoryKind, decompress,
};
use terrane_format::chain::{
    ChainMemtable, ChainRecord, Gidx, ITEM_HEADER, ItemHeader, MEMTABLE_BYTES, Position, ZONE_HEADER,
    ZoneHeader, read_record, write_record,
};
use terrane_format::checksum::{crc, crc_append, key_hash, salted_crc};
use terrane_format::codec::Reader;
use terrane_format::data_file::DataFileHeader;
use terrane_format::extent::{
    BlockHandle, ExtentBuilder, ExtentForm, ExtentMeta, Footer, Index, IndexCursor,
};
use terrane_format::log::{FRAME_HEADER, FrameHeader, LOG_SECTOR, SegmentHeader, TailHeader, Watermark};
use terrane_format::manifest::{
    Edit, Frame, LogPosition, ManifestHeader, PartSize, encode_group, frame_span, read_frame,
};
use terrane_format::options::SubtableOptionsRecord;
use terrane_format::pm::{PmHeader, PmState, PmWord, PoolKind, PoolShape, STATE_BYTES};
use terrane_format::prepared::{self, Lock, Span};
use terrane_format::superblock::{Features, Superblock};
use terrane_format::tombstone::RangeTombstones;
use terrane_format::tuple::{self, Direction, Element};
use terrane_format::value_ref::{ValuePiece, ValueRef};
use terrane_format::{Kind, filter};

/// A decoder over arbitrary bytes.
pub type Decoder = fn(&[u8]);

/// All of them, by name.
pub const ALL: [(&str, Decoder); 18] = [
    ("batch", batch),
    ("block", block),
    ("compression", compression),
    ("data_file", data_file),
    ("extent_footer", extent_footer),
    ("extent_index", extent_index),
    ("extent_meta", extent_meta),
    ("filter", filter),
    ("chain", chain),
    ("log", log),
    ("manifest", manifest),
    ("options", options),
    ("pm", pm),
    ("superblock", superblock),
    ("tombstone", tombstone),
    ("tuple", tuple),
    ("prepared", prepared),
    ("value_ref", value_ref),
];

/// Salt of everything salted here.
const SALT: u64 = 0x1234_5678_9abc_def0;

/// Up to `n` bytes from the front, and the rest.
fn split(data: &[u8], n: usize) -> (&[u8], &[u8]) {
    data.split_at(n.min(data.len()))
}

/// A number from up to eight bytes.
fn number(data: &[u8]) -> u64 {
    data.iter().take(8).fold(0, |n, b| n << 8 | u64::from(*b))
}

fn put_crc(bytes: &mut [u8], at: usize, sum: u32) {
    if let Some(to) = bytes.get_mut(at..at + 4) {
        to.copy_from_slice(&sum.to_le_bytes());
    }
}

/// With the length of all at byte 8, and the checksum of all before at the end, if there is room for them.
fn with_length_and_crc(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    if data.len() >= 16 {
        let len = data.len();
        put_crc(&mut data, 8, len as u32);
        let sum = crc(&data[..len - 4]);
        put_crc(&mut data, len - 4, sum);
    }
    data
}

pub fn batch(data: &[u8]) {
    let _ = batch::decode_header(data);
    let ops: Vec<_> = Ops::new(data).map_while(Result::ok).collect();
    let mut again = Vec::new();
    for op in &ops {
        batch::put_op(&mut again, op);
    }
    let decoded: Result<Vec<_>, _> = Ops::new(&again).collect();
    assert_eq!(decoded.unwrap(), ops);
    let (head, body) = split(data, 20);
    let header = EntryHeader {
        kind: if head.first().is_some_and(|b| b & 1 == 1) { EntryKind::NoOp } else { EntryKind::Batch },
        body_len: body.len() as u32,
        count: number(head) as u32,
        lsn: number(head.get(4..).unwrap_or_default()),
        generation: number(head.get(12..).unwrap_or_default()) as u32,
        body_crc: batch::body_crc(&[body]),
    };
    assert_eq!(batch::decode_header(&header.encode()).unwrap(), header);
    header.check_body(body).unwrap();
}

pub fn block(data: &[u8]) {
    let Ok(b) = Block::parse(data) else { return };
    let sound = b.verify().is_ok();
    let mut c = BlockCursor::new();
    let mut seen: Vec<(Vec<u8>, u64)> = Vec::new();
    let mut go = c.seek_first(b);
    while go.is_ok() && c.valid() {
        assert!(seen.len() < data.len(), "a block has at most a record a byte");
        let range = c.value_range();
        assert!(range.end <= data.len());
        let _ = (c.value(b), c.kind(), c.position());
        seen.push((c.key().to_vec(), c.seq()));
        go = c.next(b);
    }
    assert!(!sound || (go.is_ok() && seen.len() == b.rows() as usize));
    let mut back = 0;
    go = c.seek_last(b);
    while go.is_ok() && c.valid() {
        back += 1;
        if sound {
            let (key, seq) = &seen[seen.len() - back];
            assert_eq!((c.key(), c.seq()), (key.as_slice(), *seq));
        }
        assert!(back <= data.len());
        go = c.prev(b);
    }
    assert!(!sound || back == seen.len());
    for (key, seq) in seen.iter().step_by(1 + seen.len() / 16) {
        let found = block::get(b, key, *seq);
        let here = c.seek(b, key, *seq);
        let before = BlockCursor::new().seek_for_prev(b, key, *seq);
        if sound {
            assert_eq!(found.unwrap().map(|f| f.0), Some(*seq));
            here.unwrap();
            assert_eq!((c.key(), c.seq()), (key.as_slice(), *seq));
            before.unwrap();
        }
    }
    let probe = split(data, 5).0;
    let _ = (block::get(b, probe, MAX_SEQ), c.seek(b, probe, 7), c.seek_for_prev(b, probe, 7));
}

pub fn compression(data: &[u8]) {
    let (head, stored) = split(data, 3);
    let raw_len = number(head) as usize & 0x1_ffff;
    for form in [Compression::None, Compression::Zstd] {
        if let Ok(raw) = decompress(form, stored, raw_len) {
            assert_eq!(raw.len(), raw_len);
        }
    }
    let _ = Compression::from_u8(stored.first().copied().unwrap_or_default());
}

pub fn data_file(data: &[u8]) {
    let mut data = data.to_vec();
    if data.len() >= 40 {
        let sum = crc(&data[..36]);
        put_crc(&mut data, 36, sum);
    }
    if let Ok(header) = DataFileHeader::decode(&data) {
        assert_eq!(DataFileHeader::decode(&header.encode()).unwrap(), header);
    }
}

pub fn extent_footer(data: &[u8]) {
    let _ = Footer::decode(data);
    let mut data = data.to_vec();
    // Each entry of the table: tag, offset, length, checksum.
    for entry in (6..data.len()).step_by(14).take(64) {
        let field =
            |at: usize| data.get(at..at + 4).map(|b| b.iter().rev().fold(0, |n, b| n << 8 | *b as usize));
        let (Some(offset), Some(len)) = (field(entry + 2), field(entry + 6)) else { break };
        if let Some(section) = data.get(offset..).and_then(|b| b.get(..len)) {
            let sum = crc(section);
            put_crc(&mut data, entry + 10, sum);
        }
    }
    if let Ok(footer) = Footer::decode(&data) {
        let mut again = Vec::new();
        footer.encode(&mut again);
        assert_eq!(Footer::decode(&again).unwrap(), footer);
    }
}

pub fn extent_index(data: &[u8]) {
    let (head, rest) = split(data, 2);
    let (meta, index) = split(rest, number(head) as usize & 0xff);
    let _ = BlockHandle::decode(rest);
    let Ok(index) = Index::parse(index) else { return };
    if let Ok(meta) = ExtentMeta::decode(&mut Reader::new(meta)) {
        let _ = index.verify(&meta);
    }
    let probe = split(data, 4).0;
    let _ = index.find(probe, 3);
    let mut c = IndexCursor::new();
    let mut steps = 0;
    let mut go = c.seek_first(index);
    while go.is_ok() && c.valid() {
        let _ = (c.key(), c.seq(), c.position(), c.handle().map(|h| h.open(data)));
        assert!(steps <= rest.len());
        steps += 1;
        go = c.next(index);
    }
    go = c.seek_last(index);
    while go.is_ok() && c.valid() {
        assert!(steps <= 2 * rest.len());
        steps += 1;
        go = c.prev(index);
    }
    let _ = c.seek(index, probe, 3);
}

pub fn extent_meta(data: &[u8]) {
    let Ok(meta) = ExtentMeta::decode(&mut Reader::new(data)) else { return };
    let mut again = Vec::new();
    meta.encode(&mut again);
    assert_eq!(ExtentMeta::decode(&mut Reader::new(&again)).unwrap(), meta);
    let _ = meta.stored_len();
}

pub fn filter(data: &[u8]) {
    let (head, rest) = split(data, 8);
    let _ = filter::may_contain(rest, number(head));
    let hashes: Vec<u64> = rest.chunks(5).map(key_hash).collect();
    let built = filter::build(&hashes, number(head) as usize & 31);
    assert!(hashes.iter().all(|h| filter::may_contain(&built, *h)));
}

pub fn log(data: &[u8]) {
    let _ = TailHeader::decode(data);
    let _ = Watermark::decode(data);
    let _ = SegmentHeader::decode_sector(data);
    let mut frame = data.to_vec();
    if frame.len() >= FRAME_HEADER {
        let sum = salted_crc(SALT, &frame[..FRAME_HEADER - 4]);
        put_crc(&mut frame, FRAME_HEADER - 4, sum);
    }
    if let Ok(header) = FrameHeader::decode(&frame, SALT) {
        assert_eq!(FrameHeader::decode(&header.encode(SALT), SALT).unwrap(), header);
        let _ = (header.end(), header.frame_len(), header.verifies(SALT, data));
    }
    let mut tail = data.to_vec();
    if tail.len() >= 128 {
        let sum = crc(&tail[..124]);
        put_crc(&mut tail, 124, sum);
    }
    if let Ok(header) = TailHeader::decode(&tail) {
        assert_eq!(TailHeader::decode(&header.encode()).unwrap(), header);
    }
    let mut segment = [0; LOG_SECTOR];
    let n = tail.len().min(LOG_SECTOR);
    segment[..n].copy_from_slice(&tail[..n]);
    if let Ok(header) = SegmentHeader::decode_sector(&segment) {
        assert_eq!(SegmentHeader::decode_sector(&header.encode_sector()).unwrap(), header);
    }
    let mut mark = split(data, 12).0.to_vec();
    mark.resize(12, 0);
    let sum = crc(&mark);
    mark.extend_from_slice(&sum.to_le_bytes());
    let decoded = Watermark::decode(&mark).unwrap();
    assert_eq!(Watermark::decode(&decoded.encode()), Some(decoded));
}

pub fn manifest(data: &[u8]) {
    let _ = (ManifestHeader::decode(data), frame_span(data), read_frame(SALT, data).map(|f| f.is_some()));
    let mut header = data.to_vec();
    if header.len() >= 48 {
        let sum = crc(&header[..44]);
        put_crc(&mut header, 44, sum);
    }
    if let Ok(decoded) = ManifestHeader::decode(&header) {
        assert_eq!(ManifestHeader::decode(&decoded.encode()).unwrap(), decoded);
    }
    let mut r = Reader::new(data);
    let mut edits = Vec::new();
    while !r.is_at_end()
        && let Ok(edit) = Edit::decode(&mut r)
    {
        edits.push(edit);
    }
    let frame = encode_group(SALT, 9, &edits).unwrap();
    assert_eq!(frame_span(&frame), Some(frame.len()));
    match read_frame(SALT, &frame).unwrap() {
        Some(Frame::Group { edits: again, number: 9, len }) => {
            assert_eq!((again.decode().unwrap(), len), (edits, frame.len()));
        }
        other => panic!("a group became {other:?}"),
    }
    let mut frame = data.to_vec();
    if frame.len() >= 28 {
        let len = frame[16..20].iter().rev().fold(0, |n, b| n << 8 | *b as usize);
        if let Some(payload) = frame.get(28..).and_then(|b| b.get(..len)) {
            let sum = crc_append(salted_crc(SALT, &frame[..24]), payload);
            put_crc(&mut frame, 24, sum);
        }
    }
    if let Ok(Some(Frame::Group { edits, .. })) = read_frame(SALT, &frame) {
        let _ = edits.decode();
    }
}

pub fn options(data: &[u8]) {
    let Ok(options) = SubtableOptionsRecord::decode(data) else { return };
    let _ = options.validate();
    assert_eq!(SubtableOptionsRecord::decode(&options.encode()).unwrap(), options);
}

pub fn chain(data: &[u8]) {
    if let Some(bytes) = data.first_chunk::<MEMTABLE_BYTES>() {
        let mut bytes = *bytes;
        let sum = crc(&bytes[..24]);
        put_crc(&mut bytes, 24, sum);
        if let Ok(memtable) = ChainMemtable::decode(&bytes) {
            assert_eq!(memtable.encode(), bytes);
        }
    }
    if let Some(bytes) = data.first_chunk::<ZONE_HEADER>() {
        let mut bytes = *bytes;
        let sum = crc(&bytes[..12]);
        put_crc(&mut bytes, 12, sum);
        if let Ok(zone) = ZoneHeader::decode(&bytes) {
            assert_eq!(zone.encode()[..16], bytes[..16]);
        }
    }
    if let Some(word) = data.first_chunk::<8>() {
        let word = u64::from_le_bytes(*word);
        if let Ok(gidx) = Gidx::decode(word) {
            assert_eq!(gidx.encode(), word);
            assert_eq!(gidx.undone().encode(), word >> 32);
            if let (Some(at), Some(bytes)) = (gidx.current, data[8..].first_chunk::<ITEM_HEADER>())
                && let Ok(item) = ItemHeader::decode(bytes, 3, at)
            {
                assert_eq!(item.encode(3, at), *bytes);
            }
        }
    }
    let mut rest = data;
    while let Ok((record, len)) = read_record(rest) {
        let mut again = Vec::new();
        write_record(&mut again, &record);
        assert_eq!(again, rest[..len]);
        rest = &rest[len..];
    }
}

pub fn pm(data: &[u8]) {
    if let Some(slot) = data.first_chunk::<STATE_BYTES>() {
        let mut slot = *slot;
        let sum = crc(&slot[..STATE_BYTES - 4]);
        put_crc(&mut slot, STATE_BYTES - 4, sum);
        if let Some(state) = PmState::decode(&slot) {
            assert_eq!(state.encode(), slot);
        }
    }
    if let Some(word) = data.first_chunk::<8>() {
        let (number, word) = (data.len() as u32, u64::from_le_bytes(*word));
        if let Ok(said) = PmWord::decode(number, word) {
            assert_eq!(said.encode(number), word);
        }
    }
    let _ = PmHeader::decode(data);
    let data = with_length_and_crc(data);
    if let Ok(header) = PmHeader::decode(&data) {
        assert_eq!(PmHeader::decode(&header.encode()).unwrap(), header);
        let ends = header.pools.iter().map(|p| (p.words_at, p.end().unwrap()));
        assert!(ends.clone().zip(ends.skip(1)).all(|((_, end), (next, _))| end <= next));
    }
}

pub fn superblock(data: &[u8]) {
    let _ = Superblock::decode(data);
    let data = with_length_and_crc(data);
    if let Ok(superblock) = Superblock::decode(&data) {
        let _ = superblock.check_writable();
        assert_eq!(Superblock::decode(&superblock.encode()).unwrap(), superblock);
    }
}

pub fn tombstone(data: &[u8]) {
    let mut r = Reader::new(data);
    let Ok(t) = RangeTombstones::decode(&mut r) else { return };
    let mut again = Vec::new();
    t.encode(&mut again);
    assert_eq!(RangeTombstones::decode(&mut Reader::new(&again)).unwrap(), t);
    let (probe, snapshot) = (split(data, 3).0, number(data));
    let covering = t.covering(probe, snapshot);
    assert!(covering <= snapshot);
    let _ = (t.next_covered(probe), t.prev_covered(probe), t.bounds(), t.seq_range());
    let clipped = t.clip(probe, None);
    assert_eq!(clipped.covering(probe, snapshot), covering);
    assert_eq!(RangeTombstones::merge(&[&t, &clipped]).covering(probe, snapshot), covering);
}

pub fn tuple(data: &[u8]) {
    let Ok(elements) = tuple::decode(data) else { return };
    let mut again = Vec::new();
    for (element, direction) in &elements {
        tuple::put_element(&mut again, element, *direction);
    }
    assert_eq!(again, data, "a tuple has one encoding");
}

pub fn prepared(data: &[u8]) {
    for kind in [EntryKind::Prepare, EntryKind::Commit, EntryKind::Rollback] {
        let Ok(stage) = prepared::decode(kind, data) else { continue };
        let mut again = match kind {
            EntryKind::Prepare => prepared::prepare_head(stage.xid, stage.locks.iter().cloned()),
            _ => prepared::head(stage.xid),
        };
        again.extend_from_slice(stage.ops);
        assert_eq!(prepared::decode(kind, &again).unwrap(), stage);
    }
}

pub fn value_ref(data: &[u8]) {
    let Ok(value) = ValueRef::decode(data) else { return };
    let mut again = Vec::new();
    value.encode(&mut again);
    assert_eq!(ValueRef::decode(&again).unwrap(), value);
}

/// Well-formed input for the decoder of this name, to be damaged.
pub fn samples(name: &str) -> Vec<Vec<u8>> {
    let encoded = |f: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        f(&mut out);
        out
    };
    let tombstones = RangeTombstones::from_ranges([("a", "m", 9), ("c", "x", 4), ("cc", "cd", 70)]);
    let value = ValueRef {
        id: 77,
        len: (2 << 20) + 5,
        pieces: vec![
            ValuePiece { file: 1, unit: 9, units: 32, crc: 4 },
            ValuePiece { file: 1, unit: 41, units: 1, crc: 5 },
        ],
    };
    let form = ExtentForm { compression: Compression::Zstd, ..ExtentForm::default() };
    let mut extent = ExtentBuilder::new(form).unwrap();
    let mut blocks = Vec::new();
    for b in 0..3 {
        let mut builder = BlockBuilder::new(BlockForm { leaf_records: 4, ..BlockForm::default() });
        for i in 0..40u64 {
            let kind = if i % 7 == 3 { Kind::Delete } else { Kind::Put };
            let key = format!("key{b}{:04}", i / 2);
            builder.add(key.as_bytes(), 1000 - i, kind, if kind == Kind::Put { b"some value" } else { b"" });
        }
        let block = builder.finish();
        blocks.push(block.bytes.clone());
        extent.add_block(block, None).unwrap();
    }
    extent.set_tombstones(&tombstones);
    let extent = extent.finish(ExtentId(5)).unwrap();
    let part = |s: terrane_format::extent::Section| {
        extent.bytes[s.offset as usize..(s.offset + s.len) as usize].to_vec()
    };
    let meta = encoded(&|out| extent.meta.encode(out));
    match name {
        "batch" => vec![encoded(&|out| {
            for (kind, value) in [(Kind::Put, &b"value"[..]), (Kind::Delete, b""), (Kind::RangeDelete, b"zz")]
            {
                batch::put_op(out, &Op { kind, subtable: SubtableId(3), key: b"key", value });
            }
        })],
        "block" => {
            let mut restart = BlockBuilder::new(BlockForm::with(DirectoryKind::RestartArray));
            (0..40u64)
                .for_each(|i| restart.add(format!("key{i:04}").as_bytes(), i, Kind::Put, b"some value"));
            vec![blocks[0].clone(), restart.finish().bytes, part(extent.meta.index)]
        }
        "compression" => {
            let raw = &blocks[1];
            let stored = terrane_format::block::Compressor::new(Compression::Zstd, 1)
                .map(|mut c| c.compress(raw).unwrap_or_default())
                .unwrap();
            vec![[&(raw.len() as u32).to_be_bytes()[1..], &stored].concat()]
        }
        "data_file" => vec![DataFileHeader { uuid: [7; 16], number: 3 }.encode()[..64].to_vec()],
        "extent_footer" => vec![part(extent.meta.footer)],
        "extent_index" => {
            vec![[&(meta.len() as u16).to_be_bytes()[..], &meta, &part(extent.meta.index)].concat()]
        }
        "extent_meta" => vec![meta],
        "filter" => vec![part(extent.meta.filter)],
        "log" => {
            let segment = SegmentHeader {
                uuid: [1; 16],
                number: 4,
                salt: SALT,
                generation: 2,
                first_lsn: 8192,
                durable_lsn: 8192,
                segment_bytes: 1 << 20,
                generation_start: 4096,
            };
            let tail = TailHeader {
                uuid: [1; 16],
                boot_id: [2; 16],
                generation: 2,
                ring_bytes: 1 << 16,
                base_lsn: 9000,
            };
            let frame = FrameHeader::new(SALT, 2, 8192, 8000, b"payload");
            vec![segment.encode_sector().to_vec(), tail.encode().to_vec(), frame.encode(SALT).to_vec()]
        }
        "manifest" => {
            let edits = [
                Edit::CreateSubtable {
                    id: SubtableId(1),
                    name: "users".into(),
                    options: SubtableOptionsRecord::default().encode(),
                    lsn: 4096,
                },
                Edit::AddValue { subtable: SubtableId(1), value: value.clone() },
                Edit::AddRef {
                    subtable: SubtableId(1),
                    level: 1,
                    run: 0,
                    lo: b"a".to_vec(),
                    hi: b"x".to_vec(),
                    size: PartSize { bytes: 100, rows: 3, deletes: 0 },
                    extent: std::sync::Arc::new(extent.meta.clone()),
                },
                Edit::Log(LogPosition { generation: 1, first_lsn: 4096, durable_lsn: 5000, clean: true }),
                Edit::CheckpointEnd,
            ];
            let group = encode_group(SALT, 9, &edits).unwrap();
            let header = ManifestHeader { uuid: [1; 16], number: 2, salt: SALT }.encode();
            vec![encoded(&|out| edits.iter().for_each(|e| e.encode(out))), group, header[..64].to_vec()]
        }
        "options" => vec![SubtableOptionsRecord::default().encode()],
        "chain" => {
            let at = Position::new(2, 640).unwrap();
            let gidx = Gidx { previous: Position::new(1, 64), current: Some(at) };
            let item = ItemHeader { lsn: 70, len: 48, items: 2, units: 3 }.encode(3, at);
            let record = encoded(&|out| {
                for (key, value) in [(&b"key"[..], &b"value"[..]), (&[7; 300], b"")] {
                    write_record(out, &ChainRecord { key, seq: 71, kind: Kind::Put, value });
                }
            });
            let memtable = ChainMemtable { subtable: 1, generation: 2, from_lsn: 3 }.encode().to_vec();
            let zone = ZoneHeader { memtable: 3, slot: 2, before: 4096 }.encode().to_vec();
            vec![memtable, zone, [&gidx.encode().to_le_bytes()[..], &item].concat(), record]
        }
        "pm" => {
            let pool = |kind, object_bytes, objects, words_at, objects_at| PoolShape {
                kind,
                object_bytes,
                objects,
                words_at,
                objects_at,
            };
            let pools = vec![
                pool(PoolKind::Subtables, 256, 16, 12288, 16384),
                pool(PoolKind::Memtables, 2048, 8, 20480, 24576),
                pool(PoolKind::Zones, 65536, 14, 40960, 45056),
            ];
            let header = PmHeader { uuid: [3; 16], device: 1, file_bytes: 1 << 20, pools };
            let state = PmState { opening: 7, boot_id: [9; 16], clean: true, lost: true, on_device: false };
            vec![header.encode(), state.encode().to_vec()]
        }
        "superblock" => vec![
            Superblock {
                features: Features::default(),
                uuid: [3; 16],
                manifest: 1,
                created: 1_700_000_000,
                later: vec![1, 2, 3],
            }
            .encode(),
        ],
        "tombstone" => vec![encoded(&|out| tombstones.encode(out))],
        "tuple" => {
            let mut key = tuple::encode([
                Element::Int(-5_000_000),
                Element::Float(2.5),
                Element::Str("a\0b".into()),
                Element::Null,
                Element::Bool(true),
            ]);
            tuple::put_element(&mut key, &Element::Bytes(b"x\0\xff"[..].into()), Direction::Descending);
            tuple::put_element(&mut key, &Element::Int(1 << 90), Direction::Descending);
            vec![key]
        }
        "prepared" => {
            let lock = |exclusive, span| Lock { subtable: SubtableId(3), exclusive, span };
            let locks = [
                lock(true, Span::Key(b"key")),
                lock(false, Span::Range(b"a", Some(b"b"))),
                lock(true, Span::Range(b"", None)),
            ];
            let mut whole = prepared::prepare_head(b"xid", locks.into_iter());
            batch::put_op(
                &mut whole,
                &Op { kind: Kind::Put, subtable: SubtableId(3), key: b"key", value: b"value" },
            );
            vec![whole, prepared::head(b"xid")]
        }
        "value_ref" => vec![encoded(&|out| value.encode(out))],
        other => panic!("no sample for {other}"),
    }
}
