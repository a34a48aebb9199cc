//! What locks cost: `cargo test --release -p terrane-locks measures -- --ignored --nocapture`.

use std::time::Instant;

use super::*;

#[test]
#[ignore = "a measurement"]
fn how_long_a_lock_takes() {
    for (shards, per_owner) in [(64, 10), (64, 1), (64, 1000)] {
        let table = LockTable::new(LockOptions { shards, ..LockOptions::default() });
        let keys: Vec<[u8; 16]> = (0..per_owner as u128).map(u128::to_be_bytes).collect();
        let rounds = 4_000_000 / per_owner as u64;
        let start = Instant::now();
        for round in 0..rounds {
            let mut owner = table.owner(round);
            keys.iter().for_each(|key| owner.lock_key(T, key, Exclusive, Forever).unwrap());
        }
        let each = start.elapsed().as_nanos() as f64 / (rounds * per_owner as u64) as f64;
        println!("{per_owner} keys an owner: {each:.0} ns for lock and release");
    }
}

#[test]
#[ignore = "a measurement"]
fn how_long_a_range_takes() {
    for windows in [1, 10] {
        let table = LockTable::new(LockOptions::default());
        let rounds = 200_000 / windows;
        let start = Instant::now();
        for round in 0..u64::from(rounds) {
            let mut owner = table.owner(round);
            (0..windows).for_each(|i| {
                owner.lock_range(T, &number(i), Some(&number(i + 1)), Shared, Forever).unwrap()
            });
        }
        let each = start.elapsed().as_nanos() as f64 / f64::from(rounds * windows);
        println!("{windows} windows an owner: {each:.0} ns for lock and release");
    }
}

/// The windows of a scan, one after the other or with gaps between, and keys locked beside them: by the owner of the windows, and by
/// another one. What each costs is to be the same however many there are, or nearly so.
#[test]
#[ignore = "a measurement"]
fn what_many_windows_cost() {
    let limit = LockOptions::default().escalate_at;
    for (gap, escalate_at) in [(0, usize::MAX), (1, usize::MAX), (1, limit)] {
        println!(
            "{}, ranges {}:",
            ["one after the other", "apart"][gap as usize],
            match escalate_at {
                usize::MAX => "stay",
                _ => "become few",
            }
        );
        for many in [12_500, 25_000, 50_000, 100_000] {
            what_windows_cost(many, gap, escalate_at);
        }
    }
}

fn what_windows_cost(many: u32, gap: u32, escalate_at: usize) {
    let table = LockTable::new(LockOptions { escalate_at, ..LockOptions::default() });
    let (mut a, mut b) = (table.owner(1), table.owner(2));
    let each = |f: &mut dyn FnMut(u32)| {
        let start = Instant::now();
        (0..many).for_each(f);
        start.elapsed().as_nanos() as f64 / f64::from(many)
    };
    let windows = each(&mut |i| {
        a.lock_range(T, &number(4 * i), Some(&number(4 * i + 4 - gap)), Shared, Forever).unwrap();
    });
    let own = each(&mut |i| a.lock_key(T, &number(4 * i), Exclusive, Forever).unwrap());
    let others = each(&mut |i| b.lock_key(T, &number(4 * many + i), Exclusive, Forever).unwrap());
    let start = Instant::now();
    a.release_all();
    let release = start.elapsed().as_nanos() as f64 / f64::from(many);
    println!(
        "{many} windows: {windows:.0} ns each, {own:.0} ns a key in them, {others:.0} ns another's key, {release:.0} ns to release"
    );
}
