//! Threads that lock at random and get in each other's way.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const THREADS: u64 = 6;
const CELLS: u64 = 12;

/// What the locks guard. Read and written apart: who is in at the same time as another loses what that did.
struct Guarded([AtomicU64; CELLS as usize]);

impl Guarded {
    fn add(&self, cell: u64, more: u64) {
        let before = self.0[cell as usize].load(Ordering::Relaxed);
        yield_now();
        self.0[cell as usize].store(before + more, Ordering::Relaxed);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }
}

fn key(cell: u64) -> [u8; 1] {
    [cell as u8]
}

/// One transaction: locks a few things, then adds to what it locked exclusively. What it added to.
fn transact(
    owner: &mut Owner,
    random: &mut Random,
    guarded: &Guarded,
    patience: Patience,
) -> Result<Vec<u64>, Refusal> {
    let mut mine = Vec::new();
    for _ in 0..1 + random.below(4) {
        let cell = random.below(CELLS);
        match random.below(10) {
            0 => {
                let end = (cell + 1 + random.below(4)).min(CELLS);
                owner.lock_range(T, &key(cell), Some(&key(end)), Exclusive, patience)?;
                mine.extend(cell..end);
            }
            1 => owner.lock_range(T, &key(cell), None, Shared, patience)?,
            2 => {
                let mark = owner.mark();
                owner.lock_key(T, &key(cell), Exclusive, patience)?;
                owner.release_to(mark);
            }
            3..6 => {
                owner.lock_key(T, &key(cell), Shared, patience)?;
                let seen = guarded.0[cell as usize].load(Ordering::Relaxed);
                yield_now();
                assert_eq!(
                    guarded.0[cell as usize].load(Ordering::Relaxed),
                    seen,
                    "nobody writes what is shared"
                );
            }
            _ => {
                owner.lock_key(T, &key(cell), Exclusive, patience)?;
                mine.push(cell);
            }
        }
    }
    mine.iter().for_each(|&cell| guarded.add(cell, 1));
    Ok(mine)
}

/// Each thread does so many rounds, and begins a round anew until it gets through.
fn stress(shards: usize, escalate_at: usize, patience: Patience, rounds: u64) {
    let table = LockTable::new(LockOptions { shards, escalate_at });
    let guarded = Arc::new(Guarded(Default::default()));
    let numbers = Arc::new(AtomicU64::new(1));
    let threads: Vec<_> = (0..THREADS)
        .map(|seed| {
            let (table, guarded, numbers) = (table.clone(), guarded.clone(), numbers.clone());
            spawn(move || {
                let mut random = Random(seed);
                let mut added = [0; CELLS as usize];
                let mut done = 0;
                while done < rounds {
                    // Who is a victim keeps its number, and so becomes the oldest at last.
                    let mut owner = table.owner(numbers.fetch_add(1, Ordering::Relaxed));
                    loop {
                        match transact(&mut owner, &mut random, &guarded, patience) {
                            Ok(mine) => break mine.into_iter().for_each(|cell| added[cell as usize] += 1),
                            Err(Refusal::Busy { .. }) => panic!("refused at once"),
                            Err(Refusal::Deadlock { cycle }) => {
                                assert_eq!(cycle[0].owner, owner.number());
                                assert!(cycle.iter().all(|step| step.owner <= owner.number()));
                                owner.release_all();
                            }
                            Err(Refusal::TimedOut { .. }) => owner.release_all(),
                        }
                    }
                    done += 1;
                }
                (done, added)
            })
        })
        .collect();
    let mut all = [0; CELLS as usize];
    let mut done = 0;
    for thread in threads {
        let (of_thread, added) = thread.join().unwrap();
        done += of_thread;
        all.iter_mut().zip(added).for_each(|(all, added)| *all += added);
    }
    assert_eq!(done, THREADS * rounds);
    assert_eq!(guarded.0.each_ref().map(|cell| cell.load(Ordering::Relaxed)), all);
    quiet(&table, 0, 0);
}

#[test]
fn threads_exclude_each_other_and_all_get_through() {
    for shards in [1, 2, 8] {
        stress(shards, usize::MAX, Forever, 1500);
    }
}

#[test]
fn so_they_do_with_little_patience() {
    stress(3, usize::MAX, For(Duration::from_micros(50)), 1000);
}

#[test]
fn so_they_do_with_escalation() {
    stress(3, 2, Forever, 1000);
}
