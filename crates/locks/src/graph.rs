//! Who waits for whom.
//!
//! # Concurrency
//! One mutex, taken after that of a shard. It is touched by those who have to wait, and by those who change a shard in which somebody
//! waits.
//!
//! *Edges are true.* An owner waits in one shard at a time, and what it waits for changes only with that shard. Whoever changes the
//! shard draws the edges of all who wait there anew, before it lets go of the shard's mutex.
//!
//! *No cycle stays.* Edges are mostly taken away, but not always: who is granted a lock in front of others may stand in their way,
//! and when a request in the middle goes, another may take its place. A cycle comes to be when its last edge is drawn, and whoever
//! draws an edge to an owner that waits looks for cycles through it.
//!
//! *Who is no victim goes on.* A victim is taken out of the graph at once, and out of the shard by its own thread when that wakes. Its
//! request stands in the way of others until then, and then they are looked at again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::cell::{Cell, Verdict};
use crate::refusal::Step;
use crate::wish::Wish;

/// Owners, in no order, each once.
pub(crate) type Owners = SmallVec<[u64; 4]>;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    waiting: BTreeMap<u64, Node>,
    /// Requests that ever waited, were chosen as victims, or ran out of patience.
    pub(crate) waits: u64,
    pub(crate) deadlocks: u64,
    pub(crate) timeouts: u64,
}

#[derive(Debug)]
struct Node {
    wish: Arc<Wish>,
    cell: Arc<Cell>,
    blockers: Owners,
}

impl Graph {
    /// Somebody begins to wait. If that closes a cycle, somebody gets its verdict, perhaps the one who begins.
    pub(crate) fn enter(&mut self, wish: &Arc<Wish>, cell: &Arc<Cell>, blockers: Owners) {
        self.waits += 1;
        self.waiting.insert(wish.owner, Node { wish: wish.clone(), cell: cell.clone(), blockers });
        self.resolve(wish.owner);
    }

    /// Grants the request of a node, unless there was another verdict.
    pub(crate) fn grant(&mut self, owner: u64, cell: &Cell) -> bool {
        let granted = cell.decide(Verdict::Granted);
        if granted {
            self.waiting.remove(&owner);
        }
        granted
    }

    /// Somebody's patience is over. For whom it waited.
    pub(crate) fn give_up(&mut self, owner: u64) -> Owners {
        self.timeouts += 1;
        self.waiting.remove(&owner).map(|node| node.blockers).unwrap_or_default()
    }

    /// Draws the edges of `owner` anew. Whether it now waits for somebody new who waits as well, so that [`Graph::resolve`] is due.
    pub(crate) fn redraw(&mut self, owner: u64, blockers: Owners) -> bool {
        let Some(node) = self.waiting.get_mut(&owner) else {
            // A victim that has not yet gone.
            return false;
        };
        let before = std::mem::replace(&mut node.blockers, blockers.clone());
        blockers.iter().any(|blocker| !before.contains(blocker) && self.waiting.contains_key(blocker))
    }

    /// Looks for cycles through `owner` until there is none.
    pub(crate) fn resolve(&mut self, owner: u64) {
        while let Some(mut cycle) = self.cycle_through(owner) {
            self.deadlocks += 1;
            let youngest = (0..cycle.len()).max_by_key(|&i| cycle[i]).unwrap_or(0);
            cycle.rotate_left(youngest);
            let steps = cycle.iter().enumerate().filter_map(|(i, owner)| {
                Some(Step::new(&self.waiting.get(owner)?.wish, cycle[(i + 1) % cycle.len()]))
            });
            let verdict = Verdict::Victim(steps.collect());
            if let Some(victim) = self.waiting.remove(&cycle[0]) {
                victim.cell.decide(verdict);
            }
        }
    }

    /// Owners that wait each for the next, and the last for the first, which is `owner`.
    fn cycle_through(&self, owner: u64) -> Option<Vec<u64>> {
        let mut path = vec![(owner, self.waiting.get(&owner)?.blockers.iter())];
        let mut seen = BTreeSet::new();
        while let Some((_, blockers)) = path.last_mut() {
            let Some(&blocker) = blockers.next() else {
                path.pop();
                continue;
            };
            if blocker == owner {
                return Some(path.into_iter().map(|(owner, _)| owner).collect());
            }
            if let Some(node) = self.waiting.get(&blocker).filter(|_| seen.insert(blocker)) {
                path.push((blocker, node.blockers.iter()));
            }
        }
        None
    }
}
