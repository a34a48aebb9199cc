//! Histories of one thread against a naive model.

use proptest::prelude::*;

use super::*;

const OWNERS: usize = 3;
const KEYS: u8 = 8;

#[derive(Clone, Debug)]
enum Op {
    Key(usize, u32, u8, Mode),
    Range(usize, u32, u8, Option<u8>, Mode),
    Mark(usize),
    ReleaseTo(usize),
    ReleaseAll(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let mode = || prop_oneof![Just(Shared), Just(Exclusive)];
    let range = (0..OWNERS, 1..3u32, 0..KEYS, proptest::option::of(0..=KEYS), mode());
    prop_oneof![
        6 => (0..OWNERS, 1..3u32, 0..KEYS, mode()).prop_map(|(o, t, k, m)| Op::Key(o, t, k, m)),
        2 => range.prop_map(|(o, t, s, e, m)| Op::Range(o, t, s, e, m)),
        1 => (0..OWNERS).prop_map(Op::Mark),
        1 => (0..OWNERS).prop_map(Op::ReleaseTo),
        1 => (0..OWNERS).prop_map(Op::ReleaseAll),
    ]
}

/// Locks of an owner, each from a key to before another: what was asked for, in order.
type Locks = Vec<(u32, u8, u8, Mode)>;

#[derive(Default)]
struct Model {
    locks: [Locks; OWNERS],
}

impl Model {
    fn against(&self, owner: usize, t: u32, start: u8, end: u8, mode: Mode) -> Vec<u64> {
        let others = (0..OWNERS).filter(|&other| other != owner);
        let meets = |&(u, s, e, m): &(u32, u8, u8, Mode)| {
            t == u && start < e && s < end && (mode == Exclusive || m == Exclusive)
        };
        others.filter(|&other| self.locks[other].iter().any(meets)).map(|other| other as u64).collect()
    }

    fn holds(&self, owner: usize, t: u32, key: u8, mode: Mode) -> bool {
        let covers = |&(u, s, e, m): &(u32, u8, u8, Mode)| {
            t == u && s <= key && key < e && (m == Exclusive || mode == Shared)
        };
        self.locks[owner].iter().any(covers)
    }
}

fn run(ops: &[Op], shards: usize) -> Result<(), TestCaseError> {
    let table = LockTable::new(LockOptions { shards, escalate_at: usize::MAX });
    let mut owners: Vec<Owner> = (0..OWNERS as u64).map(|number| table.owner(number)).collect();
    let mut model = Model::default();
    let mut marks: [Vec<(Mark, usize)>; OWNERS] = Default::default();
    for op in ops {
        match *op {
            Op::Key(o, t, key, mode) => {
                let against = model.against(o, t, key, key + 1, mode);
                let outcome = owners[o].lock_key(SubtableId(t), &[key], mode, Never);
                if against.is_empty() {
                    prop_assert_eq!(outcome, Ok(()));
                    model.locks[o].push((t, key, key + 1, mode));
                } else {
                    prop_assert_eq!(outcome, busy(&against));
                }
            }
            Op::Range(o, t, start, end, mode) => {
                let upto = end.unwrap_or(u8::MAX);
                let against = if start < upto { model.against(o, t, start, upto, mode) } else { Vec::new() };
                let end = end.map(|end| [end]);
                let end = end.as_ref().map(|end| &end[..]);
                let outcome = owners[o].lock_range(SubtableId(t), &[start], end, mode, Never);
                if against.is_empty() {
                    prop_assert_eq!(outcome, Ok(()));
                    if start < upto {
                        model.locks[o].push((t, start, upto, mode));
                    }
                } else if let Err(Refusal::Busy { holders }) = outcome {
                    // The first shard that refuses names those who are there.
                    prop_assert!(
                        !holders.is_empty() && holders.iter().all(|holder| against.contains(holder))
                    );
                } else {
                    prop_assert!(false, "granted against {against:?}: {op:?}");
                }
            }
            Op::Mark(o) => marks[o].push((owners[o].mark(), model.locks[o].len())),
            Op::ReleaseTo(o) => {
                if let Some((mark, len)) = marks[o].pop() {
                    owners[o].release_to(mark);
                    model.locks[o].truncate(len);
                }
            }
            Op::ReleaseAll(o) => {
                owners[o].release_all();
                model.locks[o].clear();
                marks[o].clear();
            }
        }
        for (o, owner) in owners.iter().enumerate() {
            for (t, key) in (1..3).flat_map(|t| (0..KEYS).map(move |key| (t, key))) {
                for mode in [Shared, Exclusive] {
                    prop_assert_eq!(owner.holds(SubtableId(t), &[key], mode), model.holds(o, t, key, mode));
                }
            }
        }
    }
    drop(owners);
    quiet(&table, 0, 0);
    Ok(())
}

proptest! {
    #[test]
    fn who_has_no_patience_gets_what_the_model_says(
        ops in proptest::collection::vec(op(), 1..80),
        shards in 1..5usize,
    ) {
        run(&ops, shards)?;
    }

    #[test]
    fn escalation_loses_no_lock(
        keys in proptest::collection::vec((any::<bool>(), any::<u8>()), 1..120),
        limit in 1..20usize,
    ) {
        let table = LockTable::new(LockOptions { shards: 3, escalate_at: limit });
        let (mut a, mut b) = (table.owner(1), table.owner(2));
        let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
        for &(first, key) in &keys {
            let (owner, held) = if first { (&mut a, &mut of_a) } else { (&mut b, &mut of_b) };
            if owner.lock_key(T, &[key], Exclusive, Never).is_ok() {
                held.push(key);
            }
            prop_assert!(of_a.iter().all(|&key| a.holds(T, &[key], Exclusive) && !b.holds(T, &[key], Shared)));
            prop_assert!(of_b.iter().all(|&key| b.holds(T, &[key], Exclusive) && !a.holds(T, &[key], Shared)));
        }
        drop((a, b));
        quiet(&table, 0, 0);
    }
}
