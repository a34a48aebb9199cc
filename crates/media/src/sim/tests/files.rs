use terrane_base::ErrorKind;

use super::*;

#[test]
fn direct_files_refuse_what_a_device_would_refuse() {
    let m = machine(1);
    let f = m.open(&path("a"), OpenMode::CREATE_DIRECT).unwrap();
    let buf = AlignedBuf::zeroed(8192);
    f.write_at(&buf, 4096).unwrap();
    let kind = |r: Result<()>| r.unwrap_err().kind();
    assert_eq!(kind(f.write_at(&buf, 512)), ErrorKind::InvalidArgument);
    assert_eq!(kind(f.write_at(&buf[..100], 0)), ErrorKind::InvalidArgument);
    assert_eq!(kind(f.write_at(&buf[512..4608], 0)), ErrorKind::InvalidArgument);
    assert_eq!(f.len().unwrap(), 12288);
}

#[test]
fn a_read_beyond_the_end_names_file_and_offset() {
    let m = machine(1);
    let f = create(&m, "a", &[1; 100]);
    let e = f.read_at(&mut [0; 8], 96).unwrap_err();
    assert_eq!(
        (e.kind(), e.offset(), e.file()),
        (ErrorKind::Corruption, Some(96), Some(path("a").as_path()))
    );
    assert!(f.read_at(&mut [0; 8], u64::MAX - 2).is_err());
}

#[test]
fn names_that_are_missing_or_taken_are_typed_errors() {
    let m = machine(1);
    create(&m, "a", b"");
    let open = |name: &str, mode| m.open(&path(name), mode).unwrap_err().kind();
    assert_eq!(open("b", OpenMode::READ), ErrorKind::NotFound);
    assert_eq!(open("a", CREATE), ErrorKind::AlreadyExists);
    assert_eq!(m.remove_file(&path("b")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(m.rename(&path("b"), &path("a")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(m.list(Path::new("/none")).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(m.remove_dir(Path::new("/db")).is_err(), "it is not empty");
    assert!(m.open(&path("a"), OpenMode::READ).unwrap().write_at(b"x", 0).is_err());
}

#[test]
fn a_listing_has_names_in_order_with_lengths() {
    let m = machine(1);
    create(&m, "b", &[0; 7]);
    create(&m, "a", b"");
    m.create_dir_all(&path("c")).unwrap();
    let entries: Vec<_> =
        m.list(Path::new("/db")).unwrap().into_iter().map(|e| (e.name, e.len, e.is_dir)).collect();
    assert_eq!(entries, [("a".into(), 0, false), ("b".into(), 7, false), ("c".into(), 0, true)]);
}

#[test]
fn a_removed_file_lives_on_for_those_who_have_it_open() {
    let m = machine(1);
    let f = create(&m, "a", &[3; 10_000]);
    m.remove_file(&path("a")).unwrap();
    m.sync_dir(Path::new("/db")).unwrap();
    let mut buf = [0; 10];
    f.read_at(&mut buf, 9_990).unwrap();
    assert_eq!(buf, [3; 10]);
    assert_eq!(m.used_bytes(), 3 * 4096);
    drop(f);
    assert_eq!(m.used_bytes(), 0);
}

#[test]
fn punched_and_truncated_space_is_free_again_and_reads_as_zero() {
    let m = machine(1);
    let f = create(&m, "a", &[3; 4 * 4096]);
    f.punch(4096, 2 * 4096).unwrap();
    assert_eq!(m.used_bytes(), 2 * 4096);
    let c = content(&m, "a").unwrap();
    assert!(c[4096..3 * 4096].iter().all(|b| *b == 0) && c[0] == 3 && c[3 * 4096] == 3);
    f.set_len(4096).unwrap();
    f.set_len(8192).unwrap();
    assert_eq!(m.used_bytes(), 4096);
    assert_eq!(content(&m, "a").unwrap()[4096..], [0; 4096]);
    f.punch(0, 1 << 40).unwrap();
    assert_eq!((f.len().unwrap(), m.used_bytes()), (8192, 0));
}

#[test]
fn a_file_and_its_mapping_show_the_same_bytes() {
    let m = machine(1);
    let r = m.map(&path("tail"), 1 << 16).unwrap();
    r.store(4096, b"12345678abc").unwrap();
    let mut buf = [0; 16];
    m.open(&path("tail"), OpenMode::READ).unwrap().read_at(&mut buf, 4096).unwrap();
    assert_eq!(&buf, b"12345678abc\0\0\0\0\0");
    let mut word = [0; 8];
    m.map(&path("tail"), 1 << 16).unwrap().load(4096, &mut word).unwrap();
    assert_eq!(&word, b"12345678");
    assert!(r.store((1 << 16) - 8, &[0; 9]).is_err());
    assert!(r.store(4, &[0; 8]).is_err());
}

#[test]
fn mapping_with_another_length_starts_from_zeros_again() {
    let m = machine(1);
    m.map(&path("tail"), 4096).unwrap().store(0, &[1; 8]).unwrap();
    m.map(&path("tail"), 8192).unwrap();
    assert_eq!(content(&m, "tail").unwrap(), vec![0; 8192]);
    assert_eq!(m.used_bytes(), 8192, "prewritten, so that no store lacks space");
}

#[test]
fn a_lock_is_held_once_and_until_dropped_or_the_process_dies() {
    let m = machine(1);
    let guard = m.lock(&path("LOCK")).unwrap();
    assert_eq!(m.lock(&path("LOCK")).unwrap_err().kind(), ErrorKind::Locked);
    assert!(m.image().crash(CrashKind::Process, 0).lock(&path("LOCK")).is_ok());
    drop(guard);
    assert!(m.lock(&path("LOCK")).is_ok());
}

#[test]
fn time_passes_only_when_someone_sleeps_or_calls_take_time() {
    let m = machine(1);
    let start = m.now();
    create(&m, "a", b"x");
    assert_eq!(m.now(), start);
    m.sleep(Duration::from_secs(5));
    m.set_op_time(Duration::from_millis(2));
    content(&m, "a");
    assert!(m.now() >= start + Duration::from_secs(5) + Duration::from_millis(4));
    assert!(m.image().crash(CrashKind::PowerLost, 0).now() >= m.now(), "no clock goes back");
}
