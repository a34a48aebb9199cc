use super::*;

fn sample() -> PmHeader {
    let pool = |kind, object_bytes, objects, words_at, objects_at| PoolShape {
        kind,
        object_bytes,
        objects,
        words_at,
        objects_at,
    };
    PmHeader {
        uuid: *b"0123456789abcdef",
        device: 2,
        file_bytes: 1 << 20,
        pools: vec![
            pool(PoolKind::Subtables, 256, 16, 12288, 16384),
            pool(PoolKind::Memtables, 512, 8, 20480, 24576),
            pool(PoolKind::Zones, 65536, 14, 28672, 32768),
        ],
    }
}

/// The bytes with a field changed and the checksum made to fit.
fn with(at: usize, field: &[u8]) -> Vec<u8> {
    let mut bytes = sample().encode();
    bytes[at..at + field.len()].copy_from_slice(field);
    let end = bytes.len() - 4;
    let crc = checksum::crc(&bytes[..end]);
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn what_is_encoded_is_decoded_whatever_lies_behind_it() {
    let mut bytes = sample().encode();
    assert_eq!(PmHeader::decode(&bytes).unwrap(), sample());
    bytes.resize(MAX_HEADER, 7);
    assert_eq!(PmHeader::decode(&bytes).unwrap(), sample());
}

#[test]
fn the_first_version_is_pinned() {
    let one = PmHeader { pools: sample().pools[..1].to_vec(), ..sample() };
    let golden: Vec<u8> = [
        b"TERRAPM\0".as_slice(),
        &[100, 0, 0, 0, 1, 0, 0, 0],
        &[0; 8],
        b"0123456789abcdef",
        &[2, 0, 0, 0, 1, 0, 0, 0],
        &[0, 0, 16, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[0, 1, 0, 0, 0, 0, 0, 0],
        &[16, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0x30, 0, 0, 0, 0, 0, 0],
        &[0, 0x40, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    let bytes = one.encode();
    assert_eq!(bytes[..bytes.len() - 4], golden);
    assert_eq!(bytes[bytes.len() - 4..], checksum::crc(&golden).to_le_bytes());

    let state =
        PmState { opening: 3, boot_id: *b"fedcba9876543210", clean: true, lost: false, on_device: true };
    let golden = [[3, 0, 0, 0, 0, 0, 0, 0].as_slice(), b"fedcba9876543210", &[5, 0, 0, 0]].concat();
    assert_eq!(state.encode()[..28], golden);
    assert_eq!(state.encode()[28..], checksum::crc(&golden).to_le_bytes());
}

#[test]
fn every_flipped_bit_and_every_cut_is_corruption() {
    let bytes = sample().encode();
    for bit in 0..bytes.len() * 8 {
        let mut b = bytes.clone();
        b[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(PmHeader::decode(&b).unwrap_err().kind(), ErrorKind::Corruption, "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert_eq!(PmHeader::decode(&bytes[..len]).unwrap_err().kind(), ErrorKind::Corruption);
    }
    let slot = PmState { opening: 1, boot_id: [7; 16], clean: false, lost: true, on_device: false }.encode();
    for bit in 0..slot.len() * 8 {
        let mut b = slot;
        b[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(PmState::decode(&b), None, "bit {bit}");
    }
    assert_eq!(PmState::decode(&[0; STATE_BYTES]), None);
}

#[test]
fn words_say_what_was_written_and_every_flipped_bit_of_a_taken_ones_is_seen() {
    for number in [0, 7, u32::MAX] {
        for word in [
            PmWord::Free(0),
            PmWord::Free(u32::MAX),
            PmWord::Taken(0),
            PmWord::Taken(5),
            PmWord::Taken(MAX_TAG),
        ] {
            let bits = word.encode(number);
            assert_eq!(PmWord::decode(number, bits).unwrap(), word);
            for bit in 0..64 {
                match (word, PmWord::decode(number, bits ^ 1 << bit)) {
                    (_, Err(e)) => assert_eq!(e.kind(), ErrorKind::Corruption),
                    // What a free one's link says is nobody's but the open allocator's.
                    (PmWord::Free(_), Ok(PmWord::Free(_))) if bit < 32 => {}
                    (_, Ok(other)) => panic!("{word:?} of {number} with bit {bit} flipped is {other:?}"),
                }
            }
        }
    }
    assert!(PmWord::decode(1, PmWord::Taken(5).encode(2)).is_err(), "of another object");
    let golden = 3 << 62 | 5 << 16 | u64::from(checksum::crc(&[7, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0])) & 0xffff;
    assert_eq!(PmWord::Taken(5).encode(7), golden);
}

#[test]
fn newer_memories_are_told_from_damaged_ones() {
    for bytes in [with(12, &[2]), with(16, &[1]), with(56, &[9])] {
        assert_eq!(PmHeader::decode(&bytes).unwrap_err().kind(), ErrorKind::NewerFormat);
    }
}

#[test]
fn shapes_that_cannot_be_are_corruption() {
    let max = u64::MAX.to_le_bytes();
    let (bytes, objects, words_at, objects_at) = (64, 72, 80, 88);
    let wrong = [
        with(44, &[4]),
        with(48, &[0, 0, 1]),
        with(bytes, &[0; 8]),
        with(bytes, &[1, 1]),
        with(bytes, &max),
        with(objects, &[0; 8]),
        with(objects, &max),
        with(objects, &[0, 0, 0, 0, 1]),
        with(words_at, &[0; 8]),
        with(words_at, &[8]),
        with(words_at, &[0, 0x40, 1]),
        with(objects_at, &[8]),
        with(objects_at, &max),
        // The second pool within the first.
        with(words_at + POOL, &[0, 0x40]),
    ];
    for (i, bytes) in wrong.into_iter().enumerate() {
        assert_eq!(PmHeader::decode(&bytes).unwrap_err().kind(), ErrorKind::Corruption, "{i}");
    }
}
