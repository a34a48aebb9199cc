//! Lookups that have to wait for the medium: background tasks carry them out and send the answers to the core. They see what was there when
//! the core came to them.

use std::sync::Arc;

use terrane_base::{Error, ErrorKind, Result};
use terrane_media::Pool;

use crate::db::snapshot::SnapshotGuard;
use crate::exec::request::{Answer, Request};
use crate::exec::shared::{Arrival, Shared};
use crate::read::multi::multi_get_registered;

/// Lookups of one core, with the numbers of their lanes. Whatever happens to them, they are answered.
struct Late {
    shared: Arc<Shared>,
    core: usize,
    requests: Vec<(u64, Request)>,
    snapshot: SnapshotGuard,
}

/// Has these looked up; the answers arrive at `core`, all at once.
pub(super) fn look_up(shared: &Arc<Shared>, core: usize, requests: Vec<(u64, Request)>) {
    let engine = &shared.engine;
    let snapshot = engine.register_owned();
    let late = Late { shared: shared.clone(), core, requests, snapshot };
    engine.media.spawn(Pool::Read, "lookups", Box::new(move || late.carry_out()));
}

impl Late {
    fn carry_out(mut self) {
        self.requests.sort_by_key(|(_, r)| r.table);
        let mut outcomes = Vec::with_capacity(self.requests.len());
        for group in self.requests.chunk_by(|(_, a), (_, b)| a.table == b.table) {
            outcomes.extend(self.values(group));
        }
        // Not before: should that panic, they are answered all the same.
        let requests = std::mem::take(&mut self.requests);
        self.send(requests.into_iter().zip(outcomes));
    }

    /// What the keys of one subtable have.
    fn values(&self, group: &[(u64, Request)]) -> Vec<Result<Option<Vec<u8>>>> {
        let engine = &self.shared.engine;
        let Some((_, first)) = group.first() else { return Vec::new() };
        let tables = engine.tables.load();
        let table = match tables.alive(first.table) {
            Ok(table) => table,
            Err(gone) => return group.iter().map(|_| Err(gone.clone())).collect(),
        };
        let keys: Vec<&[u8]> = group.iter().map(|(_, r)| &r.key[..]).collect();
        let seq = self.snapshot.seq;
        match multi_get_registered(engine, table, &keys, seq) {
            Ok(values) => values.into_iter().map(Ok).collect(),
            // What is wrong with one is no reason to refuse the others.
            Err(_) => keys.iter().map(|key| engine.get(table, key, Some(seq), <[u8]>::to_vec)).collect(),
        }
    }

    fn send(&self, outcomes: impl Iterator<Item = ((u64, Request), Result<Option<Vec<u8>>>)>) {
        let answers: Vec<_> = outcomes
            .map(|((lane, request), outcome)| (lane, Answer::new(request.token, request.key, outcome)))
            .collect();
        // A core that has left by then has told its lanes.
        let _left = self.shared.arrive(self.core, Arrival::Late(answers));
    }
}

impl Drop for Late {
    /// Of a task that never ran, or that panicked before it had answered.
    fn drop(&mut self) {
        let requests = std::mem::take(&mut self.requests);
        if !requests.is_empty() {
            let closed = Error::new(
                ErrorKind::Closed,
                "the block was not read: the database was closed, or reading it panicked",
            );
            self.send(requests.into_iter().map(|r| (r, Err(closed.clone()))));
        }
    }
}
