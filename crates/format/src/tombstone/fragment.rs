//! Cutting overlapping ranges into fragments: a sweep over all ends that keeps the set of open tombstones.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use terrane_base::Seq;

use super::Fragment;

/// The fragments of these ranges, which may overlap and come in any order.
pub(super) fn fragment<'a>(ranges: impl Iterator<Item = (&'a [u8], &'a [u8], Seq)>) -> Vec<Fragment> {
    // (key, opens, seq); closing before opening at the same key, so that `open` stays small.
    let mut ends: Vec<(&[u8], bool, Seq)> = Vec::new();
    for (start, end, seq) in ranges {
        if start < end && seq > 0 {
            ends.push((start, true, seq));
            ends.push((end, false, seq));
        }
    }
    ends.sort_unstable();

    let mut open: BTreeMap<Reverse<Seq>, usize> = BTreeMap::new();
    let mut fragments = Vec::new();
    let mut from: &[u8] = &[];
    for (key, opens, seq) in ends {
        if from < key && !open.is_empty() {
            let seqs = open.keys().map(|Reverse(s)| *s).collect();
            push(&mut fragments, Fragment { start: from.to_vec(), end: key.to_vec(), seqs });
        }
        from = key;
        let count = open.entry(Reverse(seq)).or_insert(0);
        if opens {
            *count += 1;
        } else {
            *count -= 1;
            if *count == 0 {
                open.remove(&Reverse(seq));
            }
        }
    }
    fragments
}

/// Appends a fragment, joining it with the last one where they touch and are equal.
pub(super) fn push(fragments: &mut Vec<Fragment>, next: Fragment) {
    match fragments.last_mut() {
        Some(last) if last.end == next.start && last.seqs == next.seqs => last.end = next.end,
        _ => fragments.push(next),
    }
}
