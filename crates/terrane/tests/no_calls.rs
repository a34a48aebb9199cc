//! A `Buffered` put makes no system call: where commits go to a log, to memory in the page cache, and to what stands for a device.
//!
//! Now and then one wakes a thread, or has memory made for an index (some fifty of a hundred thousand). So this is of puts in a row, in a process of
//! their own whose thread the kernel ends at its next call (and at its next look at the clock, which that takes from it too).

#![allow(clippy::disallowed_methods, reason = "a test starts processes and threads")]

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::thread::{SecureComputingMode, set_secure_computing_mode};
use terrane::{Db, Medium, Options, PmemMode, PmemOptions};

/// Says which medium a child is to use, how many puts go before, and where.
const CHILD: &str = "TERRANE_TEST_CALLS";
const PUTS: u64 = 100;
/// Children that may meet one of the few puts that do more.
const ATTEMPTS: u64 = 20;
/// Where the kernel refuses that: this process may be under a filter already, as in containers.
const REFUSED: u8 = 77;

fn options(medium: &str) -> Options {
    let memory = |mode| Options::new().medium(Medium::Pmem(PmemOptions::new(32 << 20).mode(mode)));
    match medium {
        "log" => Options::new(),
        "page-cache" => memory(PmemMode::PageCache),
        _ => memory(PmemMode::StandIn),
    }
}

/// What the child does: the thread says that it came to the end, if it did.
fn child(medium: &str, before: u64, dir: &str) -> ! {
    let db = Db::open(dir, options(medium)).unwrap();
    let table = db.create_subtable("t", terrane::SubtableOptions::new()).unwrap();
    let (mut ended, mut say) = std::io::pipe().unwrap();
    let (mut nothing, _kept) = std::io::pipe().unwrap();
    std::thread::spawn(move || {
        let put = |n: u64| table.put(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), &[7; 24]).unwrap();
        (0..before).for_each(put);
        let begins = b"b";
        say.write_all(begins).unwrap();
        let strict = set_secure_computing_mode(SecureComputingMode::Strict).is_ok();
        if strict {
            (before..before + PUTS).for_each(put);
        }
        say.write_all(&[u8::from(strict)]).unwrap();
        // It could not even end: the process does.
        let _ = nothing.read(&mut [0]);
    });
    let (told, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut said = [0];
        while ended.read(&mut said).unwrap() > 0 {
            told.send(said[0]).unwrap();
        }
    });
    // Until it begins it is as slow as the machine.
    end.recv().unwrap();
    let code = match end.recv_timeout(Duration::from_secs(2)) {
        Ok(1) => 0,
        Ok(_) => REFUSED.into(),
        Err(_) => 1,
    };
    // Not by way of closing, for which the thread would have to go on.
    std::process::exit(code)
}

#[test]
fn puts_make_no_system_call() {
    if let Ok(what) = std::env::var(CHILD) {
        let mut words = what.splitn(3, ' ');
        let mut next = || words.next().unwrap();
        child(next(), next().parse().unwrap(), next());
    }
    for medium in ["log", "page-cache", "stand-in"] {
        let attempt = |n: u64| {
            let dir = tempfile::tempdir().unwrap();
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "puts_make_no_system_call", "--nocapture"]);
            child.env(CHILD, format!("{medium} {} {}", 5000 + 2 * n * PUTS, dir.path().display()));
            child.stdout(Stdio::null()).status().unwrap().code()
        };
        let outcome = (0..ATTEMPTS).map(attempt).find(|code| *code != Some(1));
        if outcome == Some(Some(REFUSED.into())) {
            eprintln!(
                "the kernel does not end a thread at its next system call, or does not here: not looked at"
            );
            return;
        }
        assert_eq!(outcome, Some(Some(0)), "{medium}: {PUTS} puts in a row made a system call each time");
    }
}
