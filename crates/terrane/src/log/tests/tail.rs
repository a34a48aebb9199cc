//! What the tail's ring has of an entry, however it is put together.

use terrane_media::Media;
use terrane_media::sim::SimMedia;

use super::super::tail::Tail;
use super::rig::{DIR, options};

#[test]
fn entries_lie_whole_and_what_pads_them_is_zero() {
    let media = SimMedia::new(0);
    media.create_dir_all(DIR.as_ref()).unwrap();
    let options = options();
    let tail = Tail::start(&*media, &options, 1, 0).unwrap();
    let bytes: Vec<u8> = (0..5000).map(|n| n as u8 | 1).collect();
    // Of small ones, of some that are gathered more than once, of some that are not gathered, and of some of which a part is.
    for len in (0..400).chain(1000..1060).chain(2030..2070).chain(4090..4110) {
        for (front, head) in [(0, 0), (0, 3), (0, 40), (0, 1021), (32, 0), (32, 3), (32, 40)] {
            let (front, rest) = bytes[..len].split_at(front.min(len));
            let (head, body) = rest.split_at(head.min(rest.len()));
            let padded = len.next_multiple_of(8);
            // Around the ring's end, with something else there before.
            let lsn = (options.tail_bytes - padded / 16 * 8) as u64;
            tail.store(lsn, &[&vec![0xee; padded + 8]]).unwrap();
            tail.store(lsn, &[front, head, body]).unwrap();
            let mut found = vec![0; padded + 8];
            tail.load(lsn, &mut found).unwrap();
            assert_eq!(found[..len], bytes[..len], "{len} bytes");
            assert!(found[len..padded].iter().all(|b| *b == 0), "what pads {len} bytes");
            assert_eq!(found[padded..], [0xee; 8], "behind {len} bytes");
        }
    }
}
