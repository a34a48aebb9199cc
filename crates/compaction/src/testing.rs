//! Histories, the tasks they become, and a model to compare with.

use std::collections::BTreeMap;

use proptest::prelude::*;
use terrane_base::Seq;
use terrane_format::Kind;
use terrane_format::block::{BlockBuilder, BlockForm};
use terrane_format::tombstone::RangeTombstones;
use terrane_format::value_ref::ValueRef;

use crate::compare::Records;
use crate::{InputBlock, Output, Task, Way};

/// Small blocks and leaves, so that little data makes many of them.
pub(crate) const SMALL: BlockForm = BlockForm {
    target_bytes: 256,
    leaf_records: 4,
    directory: terrane_format::block::DirectoryKind::RestartArray,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rec {
    pub key: Vec<u8>,
    pub seq: Seq,
    pub kind: Kind,
    pub value: Vec<u8>,
}

pub(crate) fn put(key: &str, seq: Seq, value: &str) -> Rec {
    Rec { key: key.into(), seq, kind: Kind::Put, value: value.into() }
}

pub(crate) fn delete(key: &str, seq: Seq) -> Rec {
    Rec { key: key.into(), seq, kind: Kind::Delete, value: Vec::new() }
}

pub(crate) fn large(key: &str, seq: Seq, id: u64) -> Rec {
    let mut value = Vec::new();
    ValueRef { id, len: 0, pieces: Vec::new() }.encode(&mut value);
    Rec { key: key.into(), seq, kind: Kind::ValueRef, value }
}

/// A way of these records, which are sorted first.
pub(crate) fn way(records: &[Rec], form: BlockForm) -> Way {
    let mut sorted: Vec<&Rec> = records.iter().collect();
    sorted.sort_by(|a, b| (&a.key, b.seq).cmp(&(&b.key, a.seq)));
    let mut builder = BlockBuilder::new(form);
    let mut blocks = Vec::new();
    for r in sorted {
        if !builder.fits(r.key.len(), r.value.len(), r.seq) {
            blocks.push(InputBlock::new(builder.finish().bytes));
        }
        builder.add(&r.key, r.seq, r.kind, &r.value);
    }
    if !builder.is_empty() {
        blocks.push(InputBlock::new(builder.finish().bytes));
    }
    Way::new(blocks)
}

/// A task over everything, not at the bottom, without snapshots.
pub(crate) fn task(ways: &[Vec<Rec>]) -> Task {
    Task {
        id: 7,
        lo: Vec::new(),
        hi: None,
        ways: ways.iter().map(|w| way(w, SMALL)).collect(),
        tombstones: RangeTombstones::default(),
        snapshots: Vec::new(),
        bottom: false,
        form: SMALL,
    }
}

/// Two ways of many records that interleave, with a range tombstone, snapshots and a large value: offers a place to
/// every fault. Different `salt`s give different tasks.
pub(crate) fn rich_task(salt: u64) -> Task {
    let newer: Vec<Rec> = (0..120u64)
        .map(|i| match i % 10 {
            3 => delete(&format!("k{:04}", i * 2), 1000 + i),
            7 => large(&format!("k{:04}", i * 2), 1000 + i, salt * 1000 + i),
            _ => put(&format!("k{:04}", i * 2), 1000 + i, &format!("new {salt} {i}")),
        })
        .collect();
    let older: Vec<Rec> =
        (0..160u64).map(|i| put(&format!("k{:04}", i * 3 / 2), 1 + i, &format!("old {salt} {i}"))).collect();
    let mut task = task(&[newer, older]);
    task.id = 100 + salt;
    task.lo = b"k0010".to_vec();
    task.hi = Some(b"k0200".to_vec());
    task.snapshots = vec![40, 1050];
    task.tombstones = RangeTombstones::from_ranges([("k0030", "k0050", 500u64), ("k0100", "k0101", 1090)]);
    task
}

pub(crate) fn records(output: &Output) -> Vec<Rec> {
    let mut records = Vec::new();
    let mut at = Records::open(output).unwrap();
    while let Some((key, seq, kind, value)) = at.get() {
        let kind = Kind::from_u8(kind).unwrap();
        records.push(Rec { key: key.to_vec(), seq, kind, value: value.to_vec() });
        at.advance().unwrap();
    }
    records
}

/// One operation of a history; its place in the history is its sequence, from 1.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Put(Vec<u8>, Vec<u8>),
    Large(Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// A history, and how a compaction sees it.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub ops: Vec<Op>,
    /// Where one way ends and the next, newer one begins; the part before the first cut lies below, in no way.
    pub cuts: Vec<usize>,
    pub snapshots: Vec<Seq>,
    pub lo: Vec<u8>,
    pub hi: Option<Vec<u8>>,
    pub bottom: bool,
}

type Layer = (Vec<Rec>, RangeTombstones);

impl History {
    /// The records and tombstones of one part of the history.
    fn layer(&self, from: usize, to: usize) -> Layer {
        let mut records = Vec::new();
        let mut ranges = Vec::new();
        for (i, op) in self.ops.iter().enumerate().take(to).skip(from) {
            let seq = 1 + i as Seq;
            match op {
                Op::Put(k, v) => {
                    records.push(Rec { key: k.clone(), seq, kind: Kind::Put, value: v.clone() });
                }
                Op::Large(k) => records.push(Rec { key: k.clone(), ..large("", seq, seq) }),
                Op::Delete(k) => {
                    records.push(Rec { key: k.clone(), seq, kind: Kind::Delete, value: Vec::new() });
                }
                Op::DeleteRange(a, b) => ranges.push((a.clone(), b.clone(), seq)),
            }
        }
        (records, RangeTombstones::from_ranges(ranges))
    }

    /// What lies below the task.
    fn below(&self) -> Layer {
        self.layer(0, if self.bottom { 0 } else { self.cuts[0] })
    }

    pub(crate) fn task(&self, form: BlockForm) -> Task {
        let mut bounds = self.cuts.clone();
        if self.bottom {
            bounds[0] = 0;
        }
        bounds.push(self.ops.len());
        let layers: Vec<Layer> = bounds.windows(2).rev().map(|w| self.layer(w[0], w[1])).collect();
        let tombstones: Vec<&RangeTombstones> = layers.iter().map(|l| &l.1).collect();
        Task {
            id: 1,
            lo: self.lo.clone(),
            hi: self.hi.clone(),
            ways: layers.iter().map(|l| way(&l.0, form)).collect(),
            tombstones: RangeTombstones::merge(&tombstones),
            snapshots: self.snapshots.clone(),
            bottom: self.bottom,
            form,
        }
    }

    /// The state that a reader at `snapshot` must see: the history done to a plain map.
    fn expected(&self, snapshot: Seq) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut map = BTreeMap::new();
        for (i, op) in self.ops.iter().enumerate() {
            let seq = 1 + i as Seq;
            if seq > snapshot {
                break;
            }
            match op {
                Op::Put(k, v) => drop(map.insert(k.clone(), v.clone())),
                Op::Large(k) => drop(map.insert(k.clone(), large("", seq, seq).value)),
                Op::Delete(k) => drop(map.remove(k)),
                Op::DeleteRange(a, b) => map.retain(|k, _| k < a || k >= b),
            }
        }
        map.retain(|k, _| *k >= self.lo && self.hi.as_ref().is_none_or(|hi| k < hi));
        map
    }

    /// The state that a reader at `snapshot` sees in `output` over what lies below.
    fn seen(&self, output: &Layer, snapshot: Seq) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let below = self.below();
        let mut map = BTreeMap::new();
        let mut found = std::collections::BTreeSet::new();
        for (depth, (layer, _)) in [output, &below].into_iter().enumerate() {
            for r in layer {
                let in_range = r.key >= self.lo && self.hi.as_ref().is_none_or(|hi| r.key < *hi);
                if r.seq > snapshot || !in_range {
                    continue;
                }
                // In a layer the newest counts; the output lies over the layer below.
                let newest =
                    layer.iter().filter(|o| o.key == r.key && o.seq <= snapshot).all(|o| o.seq <= r.seq);
                if !newest || !found.insert(r.key.clone()) {
                    continue;
                }
                let mut covering = output.1.covering(&r.key, snapshot);
                if depth == 1 {
                    covering = covering.max(below.1.covering(&r.key, snapshot));
                }
                if covering <= r.seq && !r.kind.is_delete() {
                    map.insert(r.key.clone(), r.value.clone());
                }
            }
        }
        map
    }

    /// Whether every snapshot, and whoever comes later, reads the same as before.
    pub(crate) fn check_reads(&self, output: &Layer) -> Result<(), TestCaseError> {
        for &snapshot in self.snapshots.iter().chain(&[self.ops.len() as Seq]) {
            prop_assert_eq!(self.seen(output, snapshot), self.expected(snapshot), "at {}", snapshot);
        }
        Ok(())
    }
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), Just(0), Just(255)], 0..3),
        (0u32..60).prop_map(|n| format!("key{n:03}").into_bytes()),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (key(), proptest::collection::vec(any::<u8>(), 0..40)).prop_map(|(k, v)| Op::Put(k, v)),
        1 => key().prop_map(Op::Large),
        2 => key().prop_map(Op::Delete),
        1 => (key(), key()).prop_map(|(a, b)| Op::DeleteRange(a, b)),
    ]
}

/// Any history, cut into up to six ways.
pub(crate) fn history() -> impl Strategy<Value = History> {
    proptest::collection::vec(op(), 1..300).prop_flat_map(|ops| {
        let n = ops.len();
        (
            Just(ops),
            proptest::collection::vec(0..=n, 1..=6),
            proptest::collection::btree_set(0..=n as Seq + 1, 0..4),
            prop_oneof![2 => Just(Vec::new()), 1 => key()],
            proptest::option::of(key()),
            any::<bool>(),
        )
            .prop_map(|(ops, mut cuts, snapshots, lo, hi, bottom)| {
                cuts.sort_unstable();
                let hi = hi.filter(|hi| *hi > lo);
                History { ops, cuts, snapshots: snapshots.into_iter().collect(), lo, hi, bottom }
            })
    })
}
