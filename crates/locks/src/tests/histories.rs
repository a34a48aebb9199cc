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
    Forget(usize),
    ReleaseAll(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let mode = || prop_oneof![Just(Shared), Just(Exclusive)];
    let range = (0..OWNERS, 1..3u32, 0..KEYS, proptest::option::of(0..=KEYS), mode());
    prop_oneof![
        6 => (0..OWNERS, 1..3u32, 0..KEYS, mode()).prop_map(|(o, t, k, m)| Op::Key(o, t, k, m)),
        6 => range.prop_map(|(o, t, s, e, m)| Op::Range(o, t, s, e, m)),
        2 => (0..OWNERS).prop_map(Op::Mark),
        1 => (0..OWNERS).prop_map(Op::ReleaseTo),
        1 => (0..OWNERS).prop_map(Op::Forget),
        1 => (0..OWNERS).prop_map(Op::ReleaseAll),
    ]
}

/// Locks of an owner, each from a key to before another: what was asked for, in order.
type Locks = Vec<(u32, u8, u8, Mode)>;

struct Rig {
    table: Arc<LockTable>,
    owners: Vec<Owner>,
    model: Model,
    /// And how many locks there were in the model.
    marks: [Vec<(Mark, usize)>; OWNERS],
}

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

impl Rig {
    fn new(shards: usize, escalate_at: usize) -> Rig {
        let table = LockTable::new(LockOptions { shards, escalate_at });
        let owners = (0..OWNERS as u64).map(|number| table.owner(number)).collect();
        Rig { table, owners, model: Model::default(), marks: Default::default() }
    }

    /// Does the same to the owners and to the model. The outcome, and who stands against it in the
    /// model.
    fn step(&mut self, op: &Op) -> Option<(Result<(), Refusal>, Vec<u64>)> {
        let Rig { owners, model, marks, .. } = self;
        let mut outcome = None;
        match *op {
            Op::Key(o, t, key, mode) => {
                let against = model.against(o, t, key, key + 1, mode);
                let locked = owners[o].lock_key(SubtableId(t), &[key], mode, Never);
                if locked.is_ok() {
                    model.locks[o].push((t, key, key + 1, mode));
                }
                outcome = Some((locked, against));
            }
            Op::Range(o, t, start, end, mode) => {
                let upto = end.unwrap_or(u8::MAX);
                let against = if start < upto { model.against(o, t, start, upto, mode) } else { Vec::new() };
                let end = end.map(|end| [end]);
                let end = end.as_ref().map(|end| &end[..]);
                let locked = owners[o].lock_range(SubtableId(t), &[start], end, mode, Never);
                if locked.is_ok() && start < upto {
                    model.locks[o].push((t, start, upto, mode));
                }
                outcome = Some((locked, against));
            }
            Op::Mark(o) => marks[o].push((owners[o].mark(), model.locks[o].len())),
            // The mark stays good.
            Op::ReleaseTo(o) => {
                if let Some(&(mark, len)) = marks[o].last() {
                    owners[o].release_to(mark);
                    model.locks[o].truncate(len);
                }
            }
            Op::Forget(o) => {
                if let Some((mark, _)) = marks[o].pop() {
                    owners[o].forget(mark);
                }
            }
            Op::ReleaseAll(o) => {
                owners[o].release_all();
                model.locks[o].clear();
                marks[o].clear();
            }
        }
        outcome
    }

    /// Each key, in each mode.
    fn everything() -> impl Iterator<Item = (u32, u8, Mode)> {
        (1..3).flat_map(|t| (0..KEYS).flat_map(move |key| [Shared, Exclusive].map(|mode| (t, key, mode))))
    }
}

/// Whoever refuses names some who stand against it, all for a key.
fn is_as_expected(op: &Op, outcome: Result<(), Refusal>, against: &[u64]) -> Result<(), TestCaseError> {
    match (outcome, op) {
        (outcome, _) if against.is_empty() => prop_assert_eq!(outcome, Ok(())),
        (outcome, Op::Key(..)) => prop_assert_eq!(outcome, busy(against)),
        (Err(Refusal::Busy { holders }), _) => {
            // The first shard that refuses names those who are there.
            prop_assert!(!holders.is_empty() && holders.iter().all(|holder| against.contains(holder)));
        }
        (outcome, _) => prop_assert!(false, "{outcome:?} against {against:?}: {op:?}"),
    }
    Ok(())
}

fn run(ops: &[Op], shards: usize) -> Result<(), TestCaseError> {
    let mut rig = Rig::new(shards, usize::MAX);
    for op in ops {
        if let Some((outcome, against)) = rig.step(op) {
            is_as_expected(op, outcome, &against)?;
        }
        let Rig { table, owners, model, marks } = &rig;
        for (t, key, mode) in Rig::everything() {
            for (o, owner) in owners.iter().enumerate() {
                prop_assert_eq!(owner.holds(SubtableId(t), &[key], mode), model.holds(o, t, key, mode));
                let asked = model.holds(o, t, key, Shared);
                prop_assert_eq!(owner.asked_for(SubtableId(t), &[key]), asked);
            }
            // What the shards know is the same.
            let against = model.against(OWNERS, t, key, key + 1, mode);
            let outcome = table.owner(OWNERS as u64).lock_key(SubtableId(t), &[key], mode, Never);
            prop_assert_eq!(outcome, if against.is_empty() { Ok(()) } else { busy(&against) });
        }
        let mut ranges = 0;
        for (owner, marks) in owners.iter().zip(marks) {
            let mut last: Option<(SubtableId, Mode, Option<Vec<u8>>)> = None;
            let mut touch = false;
            owner.for_each(&mut |held| {
                if held.is_key {
                    return;
                }
                ranges += 1;
                let here = (held.subtable, held.mode);
                touch |= last.as_ref().is_some_and(|(subtable, mode, end)| {
                    (*subtable, *mode) == here && end.as_ref().is_none_or(|end| **end >= *held.start)
                });
                last = Some((held.subtable, held.mode, held.end.map(<[u8]>::to_vec)));
            });
            prop_assert!(!touch || !marks.is_empty(), "ranges touch that nothing keeps apart");
        }
        let keys: usize = owners.iter().map(Owner::len).sum();
        quiet(table, (keys - ranges) as u64, ranges as u64);
    }
    let table = rig.table.clone();
    drop(rig);
    quiet(&table, 0, 0);
    Ok(())
}

/// With escalation owners hold more than the model says, and never less, and each what no other may.
fn run_with_escalation(ops: &[Op], shards: usize, limit: usize) -> Result<(), TestCaseError> {
    let mut rig = Rig::new(shards, limit);
    for op in ops {
        if let Some((outcome, against)) = rig.step(op) {
            prop_assert!(against.is_empty() || outcome.is_err(), "granted against {against:?}: {op:?}");
        }
        let Rig { table, owners, model, .. } = &rig;
        for (t, key, mode) in Rig::everything() {
            let id = SubtableId(t);
            let holders: Vec<usize> = (0..OWNERS).filter(|&o| owners[o].holds(id, &[key], mode)).collect();
            for (o, owner) in owners.iter().enumerate() {
                prop_assert!(!model.holds(o, t, key, mode) || holders.contains(&o), "{o} has lost {key}");
                let others = (0..OWNERS).any(|other| other != o && owners[other].holds(id, &[key], Shared));
                prop_assert!(!others || !owner.holds(id, &[key], Exclusive));
            }
            let refused = table.owner(OWNERS as u64).lock_key(id, &[key], Exclusive, Never).is_err();
            prop_assert!(mode == Exclusive || refused != holders.is_empty());
        }
    }
    let table = rig.table.clone();
    drop(rig);
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
    fn no_history_with_escalation_loses_a_lock(
        ops in proptest::collection::vec(op(), 1..80),
        shards in 1..4usize,
        limit in 1..6usize,
    ) {
        run_with_escalation(&ops, shards, limit)?;
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
