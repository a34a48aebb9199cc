use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;
use terrane_base::ErrorKind;

use super::mapped::{Mapped, PART, has_all_space, unreadable};
use super::*;
use crate::sim::SimMedia;
use crate::{AlignedBuf, SECTOR, Signal};

fn machine() -> (TempDir, Arc<RealMedia>) {
    (tempfile::tempdir().unwrap(), RealMedia::new(RealOptions::default()).unwrap())
}

const CREATE: OpenMode = OpenMode { write: true, create_new: true, direct: false };

/// What happened, without the words: the systems' own texts differ.
fn say<T: std::fmt::Debug>(outcome: Result<T>) -> String {
    match outcome {
        Ok(v) => format!("{v:?}"),
        Err(e) => format!("{:?} at {:?}", e.kind(), e.offset()),
    }
}

/// Makes every kind of call, right and wrong ones, and writes down what came back.
fn transcript(m: &dyn Media, root: &Path) -> Vec<String> {
    let p = |name: &str| root.join(name);
    let mut log = Vec::new();
    let mut note = |what: &str, outcome: String| log.push(format!("{what}: {outcome}"));
    note("mkdir", say(m.create_dir_all(&p("x/y"))));
    note("mkdir again", say(m.create_dir_all(&p("x/y"))));
    note("sync dir", say(m.sync_dir(&p("x"))));
    note("sync no dir", say(m.sync_dir(&p("none"))));
    note("open none", say(m.open(&p("a"), OpenMode::READ).map(drop)));

    let a = m.open(&p("a"), OpenMode::CREATE_DIRECT).unwrap();
    note("create twice", say(m.open(&p("a"), CREATE).map(drop)));
    note("align", format!("{}", a.align()));
    let mut buf = AlignedBuf::zeroed(2 * SECTOR);
    buf.fill(7);
    note("write", say(a.write_at(&buf, SECTOR as u64)));
    note("unaligned offset", say(a.write_at(&buf, 512)));
    note("unaligned length", say(a.write_at(&buf[..10], 0)));
    note("unaligned address", say(a.read_at(&mut buf[8..SECTOR + 8], 0)));
    note("len", say(a.len()));
    note("write nothing", say(a.write_at(&AlignedBuf::new(), 0)));
    note("sync", say(a.sync()));
    note("read hole", say(a.read_at(&mut buf, 0)));
    note("is", format!("{:?}", (buf[0], buf[SECTOR - 1], buf[SECTOR])));
    note("read over the end", say(a.read_at(&mut buf, 2 * SECTOR as u64)));
    note("read behind the end", say(a.read_at(&mut buf, 1 << 30)));

    let b = m.open(&p("x/b"), CREATE).unwrap();
    note("write bytes", say(b.write_at(b"hello world", 3)));
    note("set len", say(b.set_len(9)));
    note("set len", say(b.set_len(20)));
    let mut text = [9; 20];
    note("read", say(b.read_at(&mut text, 0)));
    note("is", format!("{text:?}"));
    note("read over the end", say(b.read_at(&mut text, 1)));
    note("allocate", say(b.allocate(10, 90)));
    note("allocate nothing back", say(b.allocate(0, 10)));
    note("len", say(b.len()));
    note("punch", say(b.punch(4, 2)));
    note("punch far", say(b.punch(8, 1 << 50)));
    note("punch behind", say(b.punch(1 << 40, 1)));
    note("read", say(b.read_at(&mut text, 0)));
    note("is", format!("{text:?}"));
    note("len", say(b.len()));
    note("write nothing", say(b.write_at(&[], 500)));
    note("len", say(b.len()));
    let read_only = m.open(&p("x/b"), OpenMode::READ).unwrap();
    note("write read-only", format!("{}", read_only.write_at(b"x", 0).is_err()));

    note("list", say(m.list(root)));
    note("list x", say(m.list(&p("x"))));
    note("list none", say(m.list(&p("none"))));
    note("rename none", say(m.rename(&p("none"), &p("c"))));
    note("rename", say(m.rename(&p("x/b"), &p("c"))));
    note("rename over", say(m.rename(&p("c"), &p("a"))));
    note("old handle", say(a.len()));
    note("exists below a file", say(m.exists(&p("a/b"))));
    note("exists", format!("{:?}", ["a", "c", "x", "x/b"].map(|n| m.exists(&p(n)).unwrap())));
    note("remove", say(m.remove_file(&p("a"))));
    note("remove again", say(m.remove_file(&p("a"))));
    note("removed file", say(b.read_at(&mut text, 0)));
    note("remove full dir", format!("{}", m.remove_dir(&p("x")).is_err()));
    note("remove dir", say(m.remove_dir(&p("x/y"))));
    note("remove dir", say(m.remove_dir(&p("x"))));

    note("map nothing", say(m.map(&p("m"), 0).map(drop)));
    note("map odd", say(m.map(&p("m"), 12).map(drop)));
    let r = m.map(&p("m"), 3 * SECTOR + 8).unwrap();
    note("store", say(r.store(8, b"0123456789")));
    note("store odd", say(r.store(4, b"0123456789")));
    note("store last", say(r.store(3 * SECTOR, &[1; 8])));
    note("store over", say(r.store(3 * SECTOR, &[1; 9])));
    note("store far", say(r.store(usize::MAX - 7, &[1; 9])));
    let mut part = [9; 21];
    note("load", say(r.load(0, &mut part)));
    note("is", format!("{part:?}"));
    note("sync", say(r.sync()));
    let m_file = m.open(&p("m"), OpenMode::READ).unwrap();
    note("read mapped", say(m_file.read_at(&mut part, 5)));
    note("is", format!("{part:?}"));
    drop(r);
    note("map again", say(m.map(&p("m"), 3 * SECTOR + 8).map(|r| r.load(8, &mut part).map(|()| part[0]))));
    note("map longer", say(m.map(&p("m"), 4 * SECTOR).map(|r| r.load(8, &mut part).map(|()| part[0]))));

    let lock = m.lock(&p("LOCK")).unwrap();
    note("lock twice", say(m.lock(&p("LOCK")).map(drop)));
    drop(lock);
    note("lock again", say(m.lock(&p("LOCK")).map(drop)));

    let f = m.open(&p("m"), OpenMode::READ).unwrap();
    let (mut one, mut two, mut three) = ([1; 8], [2; 8], [3; 8]);
    let far = 1 << 40;
    let mut requests = [
        ReadRequest { file: &*f, offset: 0, buf: &mut one },
        ReadRequest { file: &*f, offset: far, buf: &mut two },
        ReadRequest { file: &*f, offset: 16, buf: &mut three },
    ];
    note("read many", say(m.read_many(&mut requests)));
    note("is", format!("{one:?} {three:?}"));
    log
}

#[test]
fn the_real_and_the_simulated_machine_behave_alike() {
    let (dir, real) = machine();
    let sim = SimMedia::new(1);
    sim.create_dir_all(Path::new("/root")).unwrap();
    let (on_real, on_sim) = (transcript(&*real, dir.path()), transcript(&*sim, Path::new("/root")));
    for (r, s) in on_real.iter().zip(&on_sim) {
        assert_eq!(r, s);
    }
    assert_eq!(on_real.len(), on_sim.len());
}

#[test]
fn many_reads_fill_every_buffer_with_and_without_rings() {
    let (dir, m) = machine();
    let f = m.open(&dir.path().join("a"), OpenMode::CREATE_DIRECT).unwrap();
    let mut all = AlignedBuf::zeroed(300 * SECTOR);
    for (i, sector) in all.chunks_mut(SECTOR).enumerate() {
        sector.fill(i as u8);
    }
    f.write_at(&all, 0).unwrap();
    for refused in [false, true] {
        m.rings.refused.store(refused, Ordering::Relaxed);
        let mut bufs: Vec<AlignedBuf> = (0..200).map(|_| AlignedBuf::zeroed(SECTOR)).collect();
        let mut requests: Vec<ReadRequest<'_>> = bufs
            .iter_mut()
            .enumerate()
            .map(|(i, buf)| ReadRequest { file: &*f, offset: (299 - i) as u64 * SECTOR as u64, buf })
            .collect();
        m.read_many(&mut requests).unwrap();
        assert!(bufs.iter().enumerate().all(|(i, b)| b.iter().all(|x| *x == (299 - i) as u8)));
    }
}

#[test]
fn many_reads_may_be_made_by_many_threads() {
    let (dir, m) = machine();
    let f = m.open(&dir.path().join("a"), CREATE).unwrap();
    let content: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    f.write_at(&content, 0).unwrap();
    thread::scope(|s| {
        for t in 0..4u64 {
            let (m, f, content) = (&m, &f, &content);
            s.spawn(move || {
                for round in 0..50 {
                    let mut bufs = vec![[0; 100]; 10];
                    let offset = |i: usize| (t * 7919 + round * 613 + i as u64 * 9001) % 99_900;
                    let mut requests: Vec<_> = bufs
                        .iter_mut()
                        .enumerate()
                        .map(|(i, buf)| ReadRequest { file: &**f, offset: offset(i), buf })
                        .collect();
                    m.read_many(&mut requests).unwrap();
                    for (i, b) in bufs.iter().enumerate() {
                        assert_eq!(b[..], content[offset(i) as usize..][..100]);
                    }
                }
            });
        }
    });
}

#[test]
fn a_mapped_file_is_prewritten_and_an_interrupted_preparation_starts_again() {
    let (dir, m) = machine();
    let path = dir.path().join("tail");
    fs::write(&path, [7; 5000]).unwrap();
    let r = m.map(&path, 1 << 20).unwrap();
    let mut word = [1; 8];
    r.load(0, &mut word).unwrap();
    assert_eq!(word, [0; 8]);
    assert!(fs::metadata(&path).unwrap().blocks() * 512 >= 1 << 20);
}

#[test]
fn a_file_gets_the_space_of_its_holes_before_it_is_mapped() {
    const LEN: u64 = 1 << 20;
    let (dir, m) = machine();
    let path = dir.path().join("tail");
    for data_at in [0, LEN / 2, LEN - 4096] {
        // The second time as much space as the file is long lies behind its end.
        for beyond in [0, LEN] {
            let file = fs::File::create(&path).unwrap();
            file.set_len(LEN).unwrap();
            file.write_all_at(&[7; 4096], data_at).unwrap();
            if beyond > 0 {
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, LEN, beyond).unwrap();
            }
            let space = || file.metadata().unwrap().blocks() * 512;
            assert!(space() < LEN + beyond && !has_all_space(&file, LEN));
            let r = m.map(&path, LEN as usize).unwrap();
            let mut word = [1; 8];
            r.load(data_at as usize, &mut word).unwrap();
            assert_eq!(word, [7; 8]);
            assert!(space() >= LEN + beyond);
        }
    }
}

/// A file of `len` bytes, of which `mapped` are mapped.
fn map_new(len: usize, mapped: usize) -> Result<Mapped> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory");
    let file = fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(len as u64).unwrap();
    Mapped::new(&file, &path, mapped, 0, false)
}

#[test]
fn a_large_file_is_brought_in_whole() {
    let len = 3 * PART + PART / 2;
    let mapped = map_new(len, len).unwrap();
    // What the process has of the mapping, which nobody has touched.
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let begins = format!("{:x}-{:x} ", mapped.base().addr(), mapped.base().addr().get() + len);
    let of_it = maps.lines().skip_while(|line| !line.starts_with(&begins));
    let resident = of_it.skip(1).find_map(|line| line.strip_prefix("Rss:")).unwrap();
    let resident: usize = resident.trim().trim_end_matches(" kB").parse().unwrap();
    // The kernel may have taken a page of it back by now, but not half a part.
    assert!(resident.abs_diff(len / 1024) < PART / 1024 / 8, "{resident} of {} kB", len / 1024);
}

#[test]
fn a_file_that_is_shorter_than_its_mapping_is_an_error_and_no_fault() {
    let e = map_new(PART + 4096, 2 * PART).unwrap_err();
    assert_eq!((e.kind(), e.offset()), (ErrorKind::Io, Some(PART as u64)), "{e}");
}

#[test]
fn a_page_of_a_device_that_cannot_be_read_is_damage() {
    use rustix::io::Errno;
    let kinds =
        [(Errno::FAULT, true), (Errno::HWPOISON, true), (Errno::HWPOISON, false), (Errno::FAULT, false)];
    let found = kinds.map(|(e, synced)| unreadable(e, synced));
    assert_eq!(found, [ErrorKind::Corruption, ErrorKind::Corruption, ErrorKind::Corruption, ErrorKind::Io]);
}

#[test]
fn a_file_that_was_written_to_its_end_is_known_to_have_its_space() {
    let (dir, m) = machine();
    let path = dir.path().join("tail");
    drop(m.map(&path, 1 << 20).unwrap());
    let file = fs::File::open(&path).unwrap();
    assert!(has_all_space(&file, 1 << 20) && !has_all_space(&file, 1 << 21));
}

#[test]
fn threads_may_store_and_load_overlapping_ranges() {
    let (dir, m) = machine();
    let r = m.map(&dir.path().join("tail"), 1 << 16).unwrap();
    thread::scope(|s| {
        for byte in 1..4u8 {
            let r = &r;
            s.spawn(move || {
                for i in 0..500 {
                    r.store(i * 8, &[byte; 256]).unwrap();
                }
            });
        }
        let mut buf = [0; 256];
        for i in 0..500 {
            r.load(i * 8, &mut buf).unwrap();
            for word in buf.as_chunks::<8>().0 {
                assert!(word[0] < 4 && *word == [word[0]; 8], "words are whole");
            }
        }
    });
}

#[test]
fn a_lock_that_another_process_holds_is_refused() {
    let (dir, m) = machine();
    let path = dir.path().join("LOCK");
    // A descriptor of its own stands for another process: the kernel does not tell them apart.
    let other = fs::File::create(&path).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let e = m.lock(&path).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Locked);
    assert!(e.to_string().contains("another process"), "{e}");
    drop(other);
    m.lock(&path).unwrap();
}

#[test]
fn two_machines_of_one_process_share_the_locks_and_the_boot_id() {
    let (dir, m) = machine();
    let (_, other) = machine();
    let path = dir.path().join("LOCK");
    let guard = m.lock(&path).unwrap();
    assert_eq!(other.lock(&path).unwrap_err().kind(), ErrorKind::Locked);
    drop(guard);
    other.lock(&path).unwrap();
    assert_eq!(m.boot_id(), other.boot_id());
    assert_ne!(m.boot_id(), [0; 16]);
    assert_ne!(m.entropy(), other.entropy());
}

#[test]
fn boot_ids_are_parsed_strictly() {
    let id = parse_boot_id("3f0a1b2c-0000-4000-8000-0123456789ab\n").unwrap();
    assert_eq!(id[..4], [0x3f, 0x0a, 0x1b, 0x2c]);
    assert_eq!(id[15], 0xab);
    assert_eq!(parse_boot_id(""), None);
    assert_eq!(parse_boot_id("+f0a1b2c-0000-4000-8000-0123456789a"), None);
}

#[test]
fn each_pool_runs_its_tasks_in_order_and_waiters_are_woken() {
    let (_dir, m) = machine();
    let (signal, done) = (Arc::new(Signal::new()), Arc::new(AtomicUsize::new(0)));
    for i in 0..200 {
        let (signal, done) = (signal.clone(), done.clone());
        let job = move || {
            // The log pool has one thread, so tasks run, and not only start, in order.
            let before = done.fetch_add(1, Ordering::Relaxed);
            assert_eq!(before, i);
            signal.notify_all();
        };
        m.spawn(Pool::Log, "test", Box::new(job));
    }
    signal.wait_until(&*m, || done.load(Ordering::Relaxed) == 200).unwrap();
}

#[test]
fn a_task_that_panics_takes_no_other_task_with_it() {
    let (_dir, m) = machine();
    let (signal, done) = (Arc::new(Signal::new()), Arc::new(AtomicUsize::new(0)));
    // `resume_unwind` panics without a message on the terminal.
    m.spawn(Pool::Log, "test", Box::new(|| std::panic::resume_unwind(Box::new(()))));
    let (s, d) = (signal.clone(), done.clone());
    let job = move || {
        d.store(1, Ordering::Relaxed);
        s.notify_all();
    };
    m.spawn(Pool::Log, "test", Box::new(job));
    signal.wait_until(&*m, || done.load(Ordering::Relaxed) == 1).unwrap();
}

#[test]
fn shutdown_waits_for_running_tasks_and_drops_the_queued_ones() {
    let (_dir, m) = machine();
    let (signal, stage) = (Arc::new(Signal::new()), Arc::new(AtomicUsize::new(0)));
    let (s, at, machine) = (signal.clone(), stage.clone(), m.clone());
    let job = move || {
        at.store(1, Ordering::Relaxed);
        s.notify_all();
        s.wait_until(&*machine, || at.load(Ordering::Relaxed) == 2).unwrap();
        at.store(3, Ordering::Relaxed);
    };
    m.spawn(Pool::Log, "test", Box::new(job));
    signal.wait_until(&*m, || stage.load(Ordering::Relaxed) == 1).unwrap();
    let queued = Arc::new(());
    let held = queued.clone();
    m.spawn(Pool::Log, "test", Box::new(move || drop(held)));
    assert_eq!(m.pools.pending(), 1);
    stage.store(2, Ordering::Relaxed);
    signal.notify_all();
    m.shutdown();
    assert_eq!(stage.load(Ordering::Relaxed), 3, "the running task has ended");
    assert_eq!(Arc::strong_count(&queued), 1, "the queued one has run or was dropped");
    m.spawn(Pool::Log, "test", Box::new(|| unreachable!()));
    assert_eq!(m.pools.pending(), 0);
}

#[test]
fn a_task_for_later_runs_when_it_is_due_whatever_else_is_at_work() {
    let (_dir, m) = machine();
    let (signal, done) = (Arc::new(Signal::new()), Arc::new(AtomicUsize::new(0)));
    let count = |by: usize| {
        let (s, d) = (signal.clone(), done.clone());
        move || {
            d.fetch_add(by, Ordering::Relaxed);
            s.notify_all();
        }
    };
    let delay = std::time::Duration::from_millis(30);
    let began = m.now();
    m.spawn_after(Pool::Flush, delay * 2, "test", Box::new(count(100)));
    m.spawn_after(Pool::Flush, delay, "test", Box::new(count(10)));
    m.spawn(Pool::Flush, "test", Box::new(count(1)));
    signal.wait_until(&*m, || done.load(Ordering::Relaxed) == 1).unwrap();
    signal.wait_until(&*m, || done.load(Ordering::Relaxed) == 11).unwrap();
    assert!(m.now() - began >= delay);
    // One thread is busy until the other has done what is due meanwhile.
    let (s, d, machine) = (signal.clone(), done.clone(), m.clone());
    let busy = move || s.wait_until(&*machine, || d.load(Ordering::Relaxed) == 111).unwrap();
    m.spawn(Pool::Flush, "test", Box::new(busy));
    signal.wait_until(&*m, || done.load(Ordering::Relaxed) == 111).unwrap();
    assert!(m.now() - began >= delay * 2);
}

#[test]
fn shutdown_drops_tasks_for_later() {
    let (_dir, m) = machine();
    let held = Arc::new(());
    let job = held.clone();
    m.spawn_after(Pool::Log, std::time::Duration::from_secs(3600), "test", Box::new(move || drop(job)));
    assert_eq!(Arc::strong_count(&held), 2);
    m.shutdown();
    assert_eq!(Arc::strong_count(&held), 1);
    let job = held.clone();
    m.spawn_after(Pool::Log, std::time::Duration::ZERO, "test", Box::new(move || drop(job)));
    assert_eq!(Arc::strong_count(&held), 1, "no task is taken any more");
}

#[test]
fn a_task_may_drop_the_last_handle_of_its_machine() {
    let (_dir, m) = machine();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let (ended, end) = std::sync::mpsc::channel();
    let mine = m.clone();
    let job = move || {
        gate.recv().unwrap();
        drop(mine);
        ended.send(()).unwrap();
    };
    m.spawn(Pool::Flush, "test", Box::new(job));
    drop(m);
    go.send(()).unwrap();
    end.recv().unwrap();
}
