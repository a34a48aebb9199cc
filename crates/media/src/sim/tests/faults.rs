use std::collections::BTreeSet;

use terrane_base::ErrorKind;

use super::*;

/// A little history that makes each kind of call.
fn history(m: &SimMedia) -> Result<()> {
    m.create_dir_all(Path::new("/db/sub"))?;
    m.sync_dir(Path::new("/db"))?;
    let f = m.open(&path("sub/a"), CREATE)?;
    f.allocate(0, 8192)?;
    f.write_at(&[1; 4096], 0)?;
    f.sync()?;
    f.read_at(&mut [0; 16], 0)?;
    f.punch(0, 4096)?;
    f.set_len(f.len()? - 1)?;
    m.rename(&path("sub/a"), &path("b"))?;
    m.list(Path::new("/db"))?;
    let _lock = m.lock(&path("LOCK"))?;
    let r = m.map(&path("tail"), 4096)?;
    r.store(0, &[1; 8])?;
    r.sync()?;
    m.remove_file(&path("b"))?;
    m.remove_dir(&path("sub"))?;
    m.free_space(Path::new("/db")).map(|_| ())
}

#[test]
fn each_call_of_a_history_can_be_made_to_fail_and_says_so() {
    for (fault, kind) in
        [(Fault::Io, ErrorKind::Io), (Fault::NoSpace, ErrorKind::OutOfSpace), (Fault::Short, ErrorKind::Io)]
    {
        let mut calls = 0;
        loop {
            let m = machine(1);
            m.set_fault(Some(FaultPlan::nth(calls, fault)));
            let outcome = history(&m);
            if m.faults_hit() == 0 {
                outcome.unwrap();
                break;
            }
            assert_eq!(outcome.unwrap_err().kind(), kind, "call {calls}");
            calls += 1;
        }
        assert!(calls > 20, "{calls}");
    }
}

#[test]
fn plans_pick_kinds_and_files_and_a_dead_device_stays_dead() {
    let m = machine(1);
    let log = create(&m, "log-000001", b"");
    let data = create(&m, "data-000001", b"");
    m.set_fault(Some(FaultPlan::nth(1, Fault::Io).only(&[OpKind::Write]).files("log-").sticky()));
    data.write_at(b"x", 0).unwrap();
    log.write_at(b"x", 0).unwrap();
    log.write_at(b"x", 1).unwrap_err();
    log.write_at(b"x", 2).unwrap_err();
    log.sync().unwrap();
    data.write_at(b"x", 1).unwrap();
    assert_eq!(m.faults_hit(), 2);
    m.set_fault(None);
    log.write_at(b"x", 1).unwrap();
}

#[test]
fn random_faults_follow_their_seed() {
    let hits = |seed| {
        let m = machine(1);
        let f = create(&m, "a", b"");
        m.set_fault(Some(FaultPlan::random(0.3, seed, Fault::Io)));
        (0..50u64).map(|i| f.write_at(b"x", i).is_err()).collect::<Vec<_>>()
    };
    assert_eq!(hits(4), hits(4));
    assert_ne!(hits(4), hits(5));
    let n = hits(4).iter().filter(|e| **e).count();
    assert!((1..50).contains(&n), "{n}");
}

#[test]
fn a_short_write_has_written_a_part() {
    let lens: BTreeSet<u64> = (0..50)
        .map(|seed| {
            let m = machine(seed);
            let f = create(&m, "a", b"");
            m.set_fault(Some(FaultPlan::nth(0, Fault::Short)));
            f.write_at(&[1; 2048], 0).unwrap_err();
            f.len().unwrap()
        })
        .collect();
    assert_eq!(lens, BTreeSet::from([0, 512, 1024, 1536]));
}

#[test]
fn what_a_failed_sync_lost_stays_lost_though_it_reads_back_and_later_syncs_succeed() {
    let mut lost = false;
    for seed in 0..50 {
        let m = machine(seed);
        let f = create_durably(&m, "a", &[b'o'; 512]);
        f.write_at(&[b'n'; 512], 0).unwrap();
        m.set_fault(Some(FaultPlan::nth(0, Fault::Io)));
        f.sync().unwrap_err();
        f.sync().unwrap();
        assert_eq!(content(&m, "a").unwrap()[0], b'n', "the page cache still has it");
        lost |= content(&m.image().crash(CrashKind::PowerKept, 0), "a").unwrap()[0] == b'o';
    }
    assert!(lost);
}

#[test]
fn a_full_device_takes_what_fits_and_recovers_when_there_is_room() {
    let m = machine(1);
    m.set_capacity(Some(4 * 4096));
    let f = create(&m, "a", &[1; 3 * 4096]);
    assert_eq!(m.free_space(Path::new("/db")).unwrap(), 4096);
    let e = f.write_at(&[1; 8192], 3 * 4096).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfSpace);
    assert_eq!(f.len().unwrap(), 4 * 4096);
    f.write_at(&[2; 4096], 0).unwrap();
    let g = create(&m, "b", b"");
    assert_eq!(g.allocate(0, 1).unwrap_err().kind(), ErrorKind::OutOfSpace);
    m.remove_file(&path("a")).unwrap();
    drop(f);
    g.allocate(0, 4 * 4096).unwrap();
    g.write_at(&[1; 4 * 4096], 0).unwrap();
}

#[test]
fn a_flipped_bit_reads_back_flipped_and_survives_crashes() {
    let m = machine(1);
    create_durably(&m, "a", &[0; 10]);
    m.flip_bit(&path("a"), 8 * 3 + 2).unwrap();
    assert_eq!(content(&m, "a").unwrap()[3], 4);
    assert_eq!(content(&m.image().crash(CrashKind::PowerLost, 0), "a").unwrap()[3], 4);
    assert!(m.flip_bit(&path("a"), 80).is_err());
    assert!(m.flip_bit(&path("b"), 0).is_err());
}

#[test]
fn one_bit_may_go_wrong_in_a_read_or_a_write_that_succeeds() {
    let ones = |bytes: &[u8]| bytes.iter().map(|b| b.count_ones()).sum::<u32>();
    let m = machine(1);
    let f = create_durably(&m, "a", &[0; 1000]);
    m.set_fault(Some(FaultPlan::nth(0, Fault::BitFlip)));
    f.sync().unwrap();
    let mut buf = [0; 1000];
    f.read_at(&mut buf, 0).unwrap();
    assert_eq!(ones(&buf), 1);
    assert_eq!(ones(&content(&m, "a").unwrap()), 0, "only that read was wrong");

    m.set_fault(Some(FaultPlan::nth(0, Fault::BitFlip)));
    f.write_at(&[0; 500], 100).unwrap();
    f.sync().unwrap();
    let after = m.image().crash(CrashKind::PowerLost, 0);
    let stored = content(&after, "a").unwrap();
    assert_eq!((ones(&stored), ones(&stored[100..600])), (1, 1));
}
