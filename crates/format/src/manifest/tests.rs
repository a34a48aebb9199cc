use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use terrane_base::{ErrorKind, ExtentId, SubtableId};

use super::*;
use crate::codec::Reader;
use crate::extent::{ExtentMeta, Section};
use crate::limits;
use crate::pm::Known;
use crate::value_ref::{ValuePiece, ValueRef};

fn meta(id: u64) -> ExtentMeta {
    ExtentMeta {
        id: ExtentId(id),
        file: 3,
        unit: 70,
        units: 32,
        index: Section { offset: 5000, len: 300, crc: 1 },
        filter: Section { offset: 4096, len: 904, crc: 2 },
        footer: Section { offset: 5300, len: 60, crc: 3 },
        rows: 900,
        deletes: 7,
        blocks: 4,
        data_bytes: 4096,
        raw_bytes: 9000,
        min_seq: 10,
        max_seq: 4000,
        global_seq: None,
        lo: b"b".to_vec(),
        hi: b"m\0".to_vec(),
        has_tombstones: true,
        value_refs: false,
    }
}

fn edits() -> Vec<Edit> {
    let t = SubtableId(9);
    let add = |lo: &[u8], hi: &[u8], size| Edit::AddRef {
        subtable: t,
        level: 1,
        run: 0,
        lo: lo.to_vec(),
        hi: hi.to_vec(),
        size,
        extent: Arc::new(meta(77)),
    };
    let piece = ValuePiece { file: 1, unit: 2, units: 3, crc: 4 };
    vec![
        Edit::CreateSubtable { id: t, name: "größe".into(), options: vec![1, 2, 3], lsn: 4096 },
        Edit::SetOptions { id: t, options: vec![] },
        add(b"b", b"m\0", PartSize::whole(&meta(77))),
        add(b"c", b"d", PartSize { bytes: 1000, rows: 200, deletes: 3 }),
        add(b"b", b"c", PartSize::default()),
        Edit::RemoveRef { subtable: t, level: 0, run: 1 << 40, extent: ExtentId(5), lo: vec![0; 300] },
        Edit::Persisted { subtable: t, lsn: 1 << 50 },
        Edit::AddValue { subtable: t, value: ValueRef { id: 8, len: 150_000, pieces: vec![piece] } },
        Edit::RemoveValue { subtable: t, id: 8 },
        Edit::Log(LogPosition { generation: 2, first_lsn: 3, durable_lsn: 4, clean: true }),
        Edit::NextIds(NextIds { extent: 1, file: 2, subtable: 3, value: 4, run: 5 }),
        Edit::DropSubtable { id: t, lsn: 1 },
        Edit::CheckpointEnd,
        Edit::Stage { xid: b"x".to_vec(), front: vec![1; 300] },
        Edit::StageExtent { xid: b"x".to_vec(), subtable: t, extent: Arc::new(meta(78).attached(5)) },
        Edit::StageValue {
            xid: b"x".to_vec(),
            subtable: t,
            value: ValueRef {
                id: 8,
                len: 150_000,
                pieces: vec![ValuePiece { file: 1, unit: 2, units: 3, crc: 4 }],
            },
        },
        Edit::Unstage { xid: b"x".to_vec() },
        Edit::Memory(MemoryPlace {
            path: b"/pm/0".to_vec(),
            mode: MemoryMode::StandIn,
            bytes: 1 << 30,
            zone_bytes: 4 << 20,
            number: 3,
            has_log: true,
            known: Known { opening: 0, before: None },
        }),
        Edit::Memory(MemoryPlace {
            path: b"pm".to_vec(),
            mode: MemoryMode::Device,
            bytes: 1 << 20,
            zone_bytes: 0,
            number: 0,
            has_log: false,
            known: Known { opening: 1 << 40, before: None },
        }),
        Edit::Memory(MemoryPlace {
            path: b"pm".to_vec(),
            mode: MemoryMode::PageCache,
            bytes: 1 << 20,
            zone_bytes: 0,
            number: 0,
            has_log: true,
            known: Known { opening: 1 << 40, before: Some(1 << 39) },
        }),
    ]
}

fn decode(salt: u64, bytes: &[u8]) -> Option<(u64, Vec<Edit>, usize)> {
    match read_frame(salt, bytes).unwrap()? {
        Frame::Group { number, edits, len } => Some((number, edits.decode().unwrap(), len)),
        Frame::Seal { number } => Some((number, Vec::new(), PAGE)),
    }
}

#[test]
fn bounds_that_would_be_refused_later_are_refused_now() {
    let with = |len: usize| {
        let bound = vec![b'c'; len];
        let extent = Arc::new(ExtentMeta { lo: bound.clone(), hi: [&bound[..], b"d"].concat(), ..meta(77) });
        let short = Arc::new(ExtentMeta { lo: b"a".to_vec(), hi: b"z".to_vec(), ..meta(77) });
        let (subtable, level, run, size) = (SubtableId(9), 1, 0, PartSize::default());
        let add = |lo: &[u8], hi: &[u8]| Edit::AddRef {
            subtable,
            level,
            run,
            lo: lo.to_vec(),
            hi: hi.to_vec(),
            size,
            extent: short.clone(),
        };
        [
            add(&bound, b"z"),
            add(b"a", &bound),
            Edit::RemoveRef { subtable, level, run, extent: ExtentId(5), lo: bound },
            Edit::StageExtent { xid: vec![1], subtable, extent },
        ]
    };
    let taken = |edit: &Edit| {
        let mut out = Vec::new();
        edit.encode(&mut out);
        Edit::decode(&mut Reader::new(&out)).is_ok()
    };
    for edit in with(limits::MAX_BOUND).into_iter().take(3).chain(with(limits::MAX_BOUND - 1)) {
        edit.check_bounds().unwrap();
        assert!(taken(&edit), "{edit:?}");
    }
    for edit in with(limits::MAX_BOUND + 1).iter().chain(&with(limits::MAX_BOUND)[3..]) {
        assert_eq!(edit.check_bounds().unwrap_err().kind(), ErrorKind::LimitExceeded);
        assert!(!taken(edit));
    }
}

#[test]
fn a_group_of_every_edit_round_trips() {
    let frame = encode_group(5, 42, &edits()).unwrap();
    assert_eq!(frame.len() % PAGE, 0);
    assert_eq!(frame_span(&frame), Some(frame.len()));
    assert_eq!(decode(5, &frame), Some((42, edits(), frame.len())));
    let seal = encode_seal(5, 43);
    assert_eq!(decode(5, &seal), Some((43, Vec::new(), PAGE)));
}

#[test]
fn the_first_version_is_pinned() {
    let frame = encode_group(
        0x1122_3344_5566_7788,
        3,
        &[
            Edit::CreateSubtable { id: SubtableId(1), name: "t".into(), options: vec![9], lsn: 300 },
            Edit::Log(LogPosition { generation: 1, first_lsn: 2, durable_lsn: 3, clean: true }),
            Edit::NextIds(NextIds { extent: 1, file: 2, subtable: 3, value: 4, run: 5 }),
            Edit::RemoveValue { subtable: SubtableId(1), id: 7 },
            Edit::CheckpointEnd,
        ],
    )
    .unwrap();
    let payload = [
        1, 7, 1, 1, b't', 1, 9, 0xac, 2, // create subtable
        9, 4, 1, 2, 3, 1, // log
        10, 5, 1, 2, 3, 4, 5, // next ids
        8, 2, 1, 7, // remove value
        11, 0, // end of checkpoint
    ];
    assert_eq!(frame[..4], *b"TMFG");
    assert_eq!(frame[4..8], [1, 0, 0, 0]);
    assert_eq!(frame[8..16], 3u64.to_le_bytes());
    assert_eq!(frame[16..20], (payload.len() as u32).to_le_bytes());
    assert_eq!(frame[20..24], 5u32.to_le_bytes());
    assert_eq!(frame[28..28 + payload.len()], payload);
    let mut covered = 0x1122_3344_5566_7788u64.to_le_bytes().to_vec();
    covered.extend_from_slice(&frame[..24]);
    covered.extend_from_slice(&payload);
    assert_eq!(frame[24..28], crate::checksum::crc(&covered).to_le_bytes());

    let header = ManifestHeader { uuid: [7; 16], number: 2, salt: 3 };
    let page = header.encode();
    assert_eq!(page[..12], *b"TRNMANI\0\x01\0\0\0");
    assert_eq!(page[12..28], [7; 16]);
    assert_eq!(page[28..44], [2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ManifestHeader::decode(&page).unwrap(), header);
}

#[test]
fn frames_of_other_files_and_damaged_ones_are_none() {
    let frame = encode_group(5, 42, &edits()).unwrap();
    assert_eq!(decode(6, &frame), None, "another file's salt");
    let used = 28 + u32::from_le_bytes(frame[16..20].try_into().unwrap()) as usize;
    for bit in 0..used * 8 {
        let mut b = frame.clone();
        b[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(decode(5, &b), None, "bit {bit}");
    }
    for len in 0..used {
        assert_eq!(decode(5, &frame[..len]), None, "cut at {len}");
    }
    let header = ManifestHeader { uuid: [7; 16], number: 2, salt: 3 }.encode();
    for bit in 0..48 * 8 {
        let mut b = header.clone();
        b[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(ManifestHeader::decode(&b).unwrap_err().kind(), ErrorKind::Corruption, "bit {bit}");
    }
}

#[test]
fn an_unknown_edit_is_newer_and_surplus_bytes_are_corruption() {
    let kind = |bytes: &[u8]| Edit::decode(&mut crate::codec::Reader::new(bytes)).unwrap_err().kind();
    assert_eq!(kind(&[200, 0]), ErrorKind::NewerFormat);
    assert_eq!(kind(&[11, 1, 0]), ErrorKind::Corruption);
    assert_eq!(kind(&[3, 2, 1, 0x80]), ErrorKind::Corruption);
    assert_eq!(kind(&[9, 4, 1, 2, 3, 2]), ErrorKind::Corruption, "2 is not a flag");
}

#[test]
fn the_size_of_a_part_follows_the_extent_and_never_exceeds_it() {
    let part = |lo: &[u8], size| {
        let extent = Arc::new(meta(77));
        let (lo, hi) = (lo.to_vec(), b"m\0".to_vec());
        let mut out = Vec::new();
        Edit::AddRef { subtable: SubtableId(9), level: 1, run: 0, lo, hi, size, extent }.encode(&mut out);
        out
    };
    let whole = PartSize::whole(&meta(77));
    assert_eq!(whole, PartSize { bytes: 4096, rows: 900, deletes: 7 });
    let pinned = part(b"c", whole);
    assert_eq!(pinned[pinned.len() - 5..], [0x80, 0x20, 0x84, 0x07, 7], "bytes, rows, deletions");
    let decode = |bytes: &[u8]| Edit::decode(&mut crate::codec::Reader::new(bytes));
    assert!(decode(&pinned).is_ok());
    for absurd in [
        PartSize { bytes: 4097, ..whole },
        PartSize { rows: 901, ..whole },
        PartSize { deletes: 8, ..whole },
        PartSize { rows: 6, ..whole },
        PartSize { rows: u64::MAX, deletes: u64::MAX, ..whole },
    ] {
        assert_eq!(decode(&part(b"c", absurd)).unwrap_err().kind(), ErrorKind::Corruption, "{absurd:?}");
    }
    assert!(part(b"b", whole).len() + 3 < pinned.len(), "a whole extent's is not stored");
}

proptest! {
    #[test]
    fn decoders_survive_any_bytes(tag in 0u8..14, body in vec(any::<u8>(), 0..200)) {
        let mut edit = vec![tag];
        crate::codec::put_bytes(&mut edit, &body);
        if let Ok(e) = Edit::decode(&mut crate::codec::Reader::new(&edit)) {
            let mut again = Vec::new();
            e.encode(&mut again);
            prop_assert_eq!(Edit::decode(&mut crate::codec::Reader::new(&again)).unwrap(), e);
        }
        let _ = Edit::decode(&mut crate::codec::Reader::new(&body));
        let _ = read_frame(0, &body);
        let _ = ManifestHeader::decode(&body);
        let _ = frame_span(&body);
        let _ = crate::superblock::Superblock::decode(&body);
        let _ = crate::options::SubtableOptionsRecord::decode(&body);
        let _ = crate::data_file::DataFileHeader::decode(&body);
    }
}
