use terrane_base::MAX_SEQ;
use terrane_cache::{Cache, CacheOptions, FrameKey, Priority};
use terrane_format::block::{BlockBuilder, BlockForm};

use super::*;

/// Key, sequence, kind.
type Row = (&'static str, Seq, Kind);

fn opened(rows: &[Row]) -> Opened {
    let mut b = BlockBuilder::new(BlockForm { leaf_records: 4, ..BlockForm::default() });
    for (key, seq, kind) in rows {
        b.add(key.as_bytes(), *seq, *kind, key.as_bytes());
    }
    let cache = Cache::new(CacheOptions::for_processors(1 << 20, 2));
    Opened::new(cache.insert(FrameKey::new(1, 0), b.finish().bytes, Priority::Data)).unwrap()
}

fn text(key: &[u8]) -> String {
    String::from_utf8(key.to_vec()).unwrap()
}

/// A lead that begins at the first of `rows`.
fn begun(rows: &[Row], end: &str, stop: u32, snapshot: Seq) -> Lead {
    let opened = opened(rows);
    let mut record = BlockCursor::new();
    record.seek_first(opened.block().unwrap()).unwrap();
    let mut block = Some(opened);
    let mut lead = Lead::new();
    lead.set_end(Some(end.as_bytes()).filter(|e| !e.is_empty()));
    let newest = rows.iter().map(|r| r.1).max().unwrap_or(0);
    lead.begin(&mut block, &mut record, stop, (snapshot, newest));
    assert!(block.is_none() && !record.valid() && lead.is_on());
    lead
}

/// The keys of which a lead tells before it is broken off, if it is, after so many.
fn told(lead: &mut Lead, most: usize) -> Vec<String> {
    let mut told = Vec::new();
    let walked = lead.walk(&mut |key: &[u8], value: &[u8]| {
        assert_eq!(key, value);
        told.push(text(key));
        if told.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(told.len()) }
    });
    match walked.unwrap() {
        Walked::Broken(n) => assert_eq!((n, told.len()), (most, most)),
        Walked::AllTold => assert!(told.len() < most),
        Walked::Untold => assert!(told.len() < most && lead.kind() == Kind::ValueRef),
    }
    told
}

/// The keys that a lead shows which begins at the first of `rows`, and the key that it gives back.
fn walked(rows: &[Row], end: &str, stop: u32, snapshot: Seq) -> (Vec<String>, String) {
    let mut lead = begun(rows, end, stop, snapshot);
    let (mut block, mut record) = (None, BlockCursor::new());
    let mut seen = vec![text(lead.key())];
    while lead.step().unwrap() {
        assert_eq!((lead.value(), lead.kind()), (lead.key(), Kind::Put));
        seen.push(text(lead.key()));
    }
    assert_eq!(lead.has_paid(), seen.len() > PAYS as usize);
    for broken in 1..=seen.len() {
        let mut lead = begun(rows, end, stop, snapshot);
        assert_eq!(told(&mut lead, broken), seen[..broken]);
        // It stands on what it told last.
        assert_eq!(told(&mut lead, usize::MAX), seen[broken - 1..]);
        assert_eq!(lead.has_paid(), seen.len() > PAYS as usize);
    }
    lead.give_back(&mut block, &mut record).unwrap();
    let at = rows.iter().position(|r| r.0.as_bytes() == record.key());
    assert_eq!(Some(record.seq()), at.map(|at| rows[at].1));
    assert!(block.is_some() && !lead.is_on());
    (seen, text(record.key()))
}

fn puts(keys: &[&'static str]) -> Vec<Row> {
    keys.iter().map(|k| (*k, 5, Kind::Put)).collect()
}

#[test]
fn a_lead_ends_before_its_end_wherever_keys_differ() {
    let keys = ["", "a", "ab", "aba", "abb", "abbbbbbbbb", "ac", "b", "ba", "bb", "bbbbbbbbbbbbb", "c", "cc"];
    let rows = puts(&keys);
    // Every key, and those right before and behind them.
    let around =
        keys.iter().flat_map(|k| [k.to_string(), format!("{k}\0"), format!("{k}a"), format!("{k}zz")]);
    for end in around.filter(|e| !e.is_empty()) {
        let want: Vec<_> = keys.iter().take_while(|k| **k < end.as_str()).map(ToString::to_string).collect();
        let (seen, left_at) = walked(&rows, &end, 100, MAX_SEQ);
        assert_eq!(seen, want, "up to {end}");
        assert_eq!(Some(&left_at), want.last());
    }
}

#[test]
fn a_lead_leaves_what_is_out_of_the_ordinary_to_the_merge() {
    let upto = |rows: &[Row], stop, snapshot| {
        let open = walked(rows, "", stop, snapshot).0.concat();
        assert_eq!(walked(rows, "z", stop, snapshot).0.concat(), open);
        open
    };
    assert_eq!(upto(&puts(&["a", "b", "c", "d", "e"]), 3, MAX_SEQ), "abc");
    let mut rows = puts(&["a", "b", "c", "d", "e", "f"]);
    // At a leaf's head and within a leaf.
    for at in [4, 2] {
        rows[at].2 = Kind::Delete;
        assert_eq!(upto(&rows, 100, MAX_SEQ).len(), at);
        rows[at].2 = Kind::Put;
        rows[at].1 = 9;
        assert_eq!(upto(&rows, 100, 8).len(), at);
        assert_eq!(upto(&rows, 100, 9).len(), rows.len());
        rows[at].1 = 5;
        // The one before has an older version.
        rows.insert(at, (rows[at - 1].0, 4, Kind::Put));
        assert_eq!(upto(&rows, 100, MAX_SEQ).len(), at);
        rows.remove(at);
    }
}

#[test]
fn a_lead_does_not_tell_of_what_lies_elsewhere() {
    let mut rows = puts(&["a", "b", "c", "d", "e", "f"]);
    for at in [5, 4, 2, 0] {
        rows[at].2 = Kind::ValueRef;
        let mut lead = begun(&rows, "", 100, MAX_SEQ);
        assert_eq!(told(&mut lead, usize::MAX).len(), at);
        assert_eq!(lead.key(), rows[at].0.as_bytes());
    }
}

#[test]
fn a_lead_that_is_ended_holds_nothing() {
    let opened = opened(&puts(&["a", "b"]));
    let mut record = BlockCursor::new();
    record.seek_first(opened.block().unwrap()).unwrap();
    let mut lead = Lead::new();
    lead.set_end(Some(b"z"));
    lead.begin(&mut Some(opened), &mut record, 2, (MAX_SEQ, MAX_SEQ));
    lead.end();
    assert!(!lead.is_on() && !lead.step().unwrap());
    assert!(matches!(lead.walk(&mut |_, _| ControlFlow::Break(())), Ok(Walked::Untold)));
    assert_eq!(lead.value(), b"");
}
