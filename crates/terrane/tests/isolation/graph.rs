//! Who must come before whom, and circles in it.

use std::collections::VecDeque;

use crate::history::Key;

/// Why one comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It wrote the version before.
    Wrote(Key),
    /// The other one read what it wrote, or what came after.
    WasRead(Key),
    /// It did not see what the other one wrote.
    Missed {
        key: Key,
        /// By its level, the other one cannot have committed before it.
        strong: bool,
        /// It looked at a range.
        scan: bool,
    },
    /// It had ended when the other one began.
    Ended,
}

impl Why {
    pub fn is_miss(self) -> bool {
        matches!(self, Why::Missed { .. })
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Edge {
    pub to: usize,
    pub why: Why,
}

#[derive(Clone, Debug, Default)]
pub struct Graph {
    out: Vec<Vec<Edge>>,
}

/// Nodes, each with the edge to the next; the last one's leads to the first.
pub type Circle = Vec<(usize, Edge)>;

impl Graph {
    pub fn new(nodes: usize) -> Graph {
        Graph { out: vec![Vec::new(); nodes] }
    }

    pub fn add(&mut self, from: usize, to: usize, why: Why) {
        let known = |e: &Edge| e.to == to && e.why == why;
        if from != to && !self.out[from].iter().any(known) {
            self.out[from].push(Edge { to, why });
        }
    }

    /// A shortest circle of edges of these kinds.
    pub fn circle(&self, allowed: impl Fn(Why) -> bool) -> Option<Circle> {
        let out = self.out.iter().map(|edges| edges.iter().copied().filter(|e| allowed(e.why)).collect());
        shortest(&out.collect::<Vec<_>>())
    }

    /// A shortest circle in which no two misses follow each other. The graph is looked at twice over: in the second half are those
    /// that were reached by a miss, from which no miss leads on.
    pub fn circle_without_two_misses_in_a_row(&self) -> Option<Circle> {
        let n = self.out.len();
        let mut twice: Vec<Vec<Edge>> = vec![Vec::new(); 2 * n];
        for (from, edges) in self.out.iter().enumerate() {
            for &Edge { to, why } in edges {
                if why.is_miss() {
                    twice[from].push(Edge { to: to + n, why });
                } else {
                    twice[from].push(Edge { to, why });
                    twice[from + n].push(Edge { to, why });
                }
            }
        }
        let circle = shortest(&twice)?;
        Some(circle.into_iter().map(|(at, e)| (at % n, Edge { to: e.to % n, ..e })).collect())
    }
}

/// A shortest circle. Circles lie within strongly connected components, so only those are searched.
fn shortest(out: &[Vec<Edge>]) -> Option<Circle> {
    let component = components(out);
    let mut best: Option<Circle> = None;
    for start in 0..out.len() {
        let inside = |e: &&Edge| component[e.to] == component[start];
        if !out[start].iter().any(|e| inside(&e)) {
            continue;
        }
        // From the start on, breadth first, until an edge leads back to it.
        let mut from: Vec<Option<(usize, Edge)>> = vec![None; out.len()];
        let mut queue = VecDeque::from([start]);
        'search: while let Some(at) = queue.pop_front() {
            for e in out[at].iter().filter(inside) {
                if e.to == start {
                    let mut circle = vec![(at, *e)];
                    let mut here = at;
                    while let Some((before, edge)) = from[here].filter(|_| here != start) {
                        circle.push((before, edge));
                        here = before;
                    }
                    circle.reverse();
                    if best.as_ref().is_none_or(|b| circle.len() < b.len()) {
                        best = Some(circle);
                    }
                    break 'search;
                }
                if from[e.to].is_none() {
                    from[e.to] = Some((at, *e));
                    queue.push_back(e.to);
                }
            }
        }
        if best.as_ref().is_some_and(|b| b.len() == 2) {
            break;
        }
    }
    best
}

/// The strongly connected component of each node, as a number: R. Tarjan, "Depth-First Search and Linear Graph Algorithms" (SIAM J.
/// Comput. 1972), without recursion.
fn components(out: &[Vec<Edge>]) -> Vec<usize> {
    const NONE: usize = usize::MAX;
    let n = out.len();
    let (mut index, mut low, mut component) = (vec![NONE; n], vec![0; n], vec![NONE; n]);
    let (mut next, mut count) = (0, 0);
    let mut open = Vec::new();
    for root in 0..n {
        if index[root] != NONE {
            continue;
        }
        let mut path = vec![(root, 0)];
        while let Some(&mut (at, ref mut child)) = path.last_mut() {
            if *child == 0 {
                index[at] = next;
                low[at] = next;
                next += 1;
                open.push(at);
            }
            if let Some(e) = out[at].get(*child) {
                *child += 1;
                if index[e.to] == NONE {
                    path.push((e.to, 0));
                } else if component[e.to] == NONE {
                    low[at] = low[at].min(index[e.to]);
                }
                continue;
            }
            if low[at] == index[at] {
                while let Some(member) = open.pop() {
                    component[member] = count;
                    if member == at {
                        break;
                    }
                }
                count += 1;
            }
            path.pop();
            if let Some(&(parent, _)) = path.last() {
                low[parent] = low[parent].min(low[at]);
            }
        }
    }
    component
}
