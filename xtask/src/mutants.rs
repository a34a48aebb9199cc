//! `mutants`: rules of transactions, switched off one by one in a copy of the sources, and whether tests see it.
//!
//! Each mutant is one replacement in one file. The tests named beside it must pass without it, and fail with it; that it still
//! compiles is made sure of first. Randomised tests may miss a mutant that is rarely felt, so each has a test that cannot, where
//! there is one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use crate::command::{root, timed};
use crate::{Failure, Outcome};

#[derive(Debug, Args)]
pub(crate) struct MutantsArgs {
    /// Only those with one of these words in their name
    names: Vec<String>,
    /// List them and stop
    #[arg(long)]
    list: bool,
}

/// Stands in the name of a module whose tests are meant: see [`Mutant::tests`].
const UNIT: &str = "::";

/// A rule switched off.
struct Mutant {
    name: &'static str,
    file: &'static str,
    /// Stands there once.
    old: &'static str,
    new: &'static str,
    /// Tests of the package terrane, each of which must fail: of a file, or of a module.
    tests: &'static [&'static str],
}

const TRANSACTION: &str = "crates/terrane/src/txn/transaction.rs";
const CLAIMS: &str = "crates/terrane/src/txn/claims.rs";
const SAVEPOINT: &str = "crates/terrane/src/txn/savepoint.rs";
const WALK: &str = "crates/terrane/src/txn/cursor/walk.rs";
const ROWS: &str = "crates/terrane/src/txn/cursor/rows.rs";
const VALIDATE: &str = "crates/terrane/src/txn/validate.rs";
const COMMIT: &str = "crates/terrane/src/db/commit.rs";
const ATTACH: &str = "crates/terrane/src/txn/attach.rs";
const INGEST: &str = "crates/terrane/src/txn/big/ingest.rs";
const PREPARED: &str = "crates/terrane/src/txn/prepared.rs";

const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a large transaction is attached beneath older memtables",
        file: ATTACH,
        old: "match self.flush_table(table) {",
        new: "match table.check_alive() {",
        tests: &["big"],
    },
    Mutant {
        name: "the end of a staged transaction overtakes what came before",
        file: PREPARED,
        old: "                self.sync_settled()?;\n                self.append_edits(&[Edit::Unstage",
        new: "                self.append_edits(&[Edit::Unstage",
        tests: &["two_phase"],
    },
    Mutant {
        name: "sorted data is taken in before it is durable",
        file: INGEST,
        old: "            run.sync(&self.space)?;",
        new: "            let _ = &self.space;",
        tests: &["random_crashes"],
    },
    Mutant {
        name: "what is staged is not made durable",
        file: PREPARED,
        old: "            run.sync(&self.space)?;",
        new: "            let _ = &self.space;",
        tests: &["random_crashes"],
    },
    Mutant {
        name: "the first updater of a key does not win",
        file: CLAIMS,
        old: "self.snapshot_seq().filter(|_| !looked)",
        new: "self.snapshot_seq().filter(|_| looked && !looked)",
        tests: &["anomalies", "isolation"],
    },
    Mutant {
        name: "the first updater in a range does not win",
        file: CLAIMS,
        old: "if let Some(seq) = txn.snapshot_seq()\n",
        new: "if let Some(seq) = txn.snapshot_seq().filter(|_| false)\n",
        tests: &["anomalies", "isolation"],
    },
    Mutant {
        name: "a conflict is forgotten when tried again",
        file: CLAIMS,
        old: "if outcome.is_err() {",
        new: "if false {",
        tests: &["anomalies"],
    },
    Mutant {
        name: "a lock that covers more than was asked for hides a conflict",
        file: CLAIMS,
        old: "self.locks.asked_for(table.id, key)",
        new: "self.locks.holds(table.id, key, Mode::Shared)",
        tests: &["anomalies"],
    },
    Mutant {
        name: "snapshot reads the latest",
        file: TRANSACTION,
        old: "self.engine.get(&table, key, self.snapshot_seq(), <[u8]>::to_vec)",
        new: "self.engine.get(&table, key, None, <[u8]>::to_vec)",
        tests: &["anomalies", "isolation"],
    },
    Mutant {
        name: "a serializable scan locks nothing",
        file: CLAIMS,
        old: "self.lock_range(table, &start, end.as_deref(), mode)",
        new: "Ok(())",
        tests: &["anomalies", "isolation"],
    },
    Mutant {
        name: "a serializable scan locks keys and no gaps",
        file: CLAIMS,
        old: "self.lock_range(table, &start, end.as_deref(), mode)",
        new: "self.lock(table, &start, mode)",
        tests: &["anomalies", "isolation"],
    },
    Mutant {
        name: "a serializable scan shows what it saw before its lock",
        file: WALK,
        old: "self.window = window;\n        self.renew_base()",
        new: "self.window = window;\n        Ok(())",
        tests: &["isolation"],
    },
    Mutant {
        name: "a serializable get locks nothing",
        file: TRANSACTION,
        old: "self.lock(&table, key, Mode::Shared)?;",
        new: "",
        tests: &["anomalies", "isolation"],
    },
    Mutant {
        name: "a savepoint gives back what a serializable transaction has read",
        file: SAVEPOINT,
        old: "(self.isolation != Isolation::Serializable).then(",
        new: "true.then(",
        tests: &["anomalies", "isolation"],
    },
    Mutant {
        name: "a rollback to a savepoint restores nothing",
        file: SAVEPOINT,
        old: "self.writes.back_to(moment)",
        new: "Ok(())",
        tests: &["anomalies", "isolation"],
    },
    Mutant {
        name: "a cursor ignores ranges that its transaction deleted",
        file: WALK,
        old: "Some(cut) => way.seek(base, Some(&cut))?,",
        new: "Some(_) => break,",
        tests: &["isolation"],
    },
    Mutant {
        name: "a cursor ignores keys that its transaction deleted",
        file: WALK,
        old: "if in_base == Some(o) {",
        new: "if shown && in_base == Some(o) {",
        tests: &["isolation"],
    },
    Mutant {
        name: "what an optimistic transaction has read is not validated",
        file: VALIDATE,
        old: "reads.iter().map(",
        new: "reads.iter().take(0).map(",
        tests: &["anomalies", "isolation"],
    },
    Mutant {
        name: "what an optimistic transaction that wrote nothing has read is not validated at its prepare",
        file: TRANSACTION,
        old: "        self.validate()?;\n        self.engine.prepare(",
        new: "        self.settle()?;\n        self.engine.prepare(",
        tests: &["optimistic"],
    },
    Mutant {
        name: "a cursor shows a row as it was before its lock",
        file: ROWS,
        old: "Ok(()) => self.is_there_still(way, stands),",
        new: "Ok(()) => Ok(true),",
        tests: &["locking_cursors", "isolation"],
    },
    Mutant {
        name: "a cursor keeps the lock of a row that is gone",
        file: ROWS,
        old: "self.txn.locks.release_to(mark);",
        new: "",
        tests: &["locking_cursors"],
    },
    Mutant {
        name: "what an optimistic transaction has written is not validated",
        file: VALIDATE,
        old: "let changed = match c.range {",
        new: "let changed = c.mode == Mode::Shared && match c.range {",
        tests: &["anomalies", "isolation"],
    },
    Mutant {
        name: "plain writes lock nothing",
        file: "crates/terrane/src/txn/shared.rs",
        old: "self.guarded.load(Ordering::Acquire)",
        new: "self.guarded.load(Ordering::Acquire) && false",
        tests: &["anomalies", "isolation"],
    },
    Mutant {
        name: "the first transaction does not wait for writes that began before",
        file: "crates/terrane/src/txn/plain.rs",
        old: "if let Err(e) = self.barrier() {",
        new: "if let Err(e) = Result::<()>::Ok(()) {",
        tests: &["published"],
    },
    Mutant {
        name: "a commit is published before it is durable",
        file: COMMIT,
        old: "failed = self.journal.advance(group, end).err();\n        }",
        new: "failed = self.journal.advance(group, end).err();\n            self.visible.store(end - 1, Ordering::SeqCst);\n        }",
        tests: &["published"],
    },
    Mutant {
        name: "a memory in the page cache that has more than its log goes on",
        file: "crates/terrane/src/recovery/memory.rs",
        old: "if is_short && in_page_cache {",
        new: "if false {",
        tests: &["page_cache"],
    },
    Mutant {
        name: "a memtable that comes free at opening says that it has what is beside it",
        file: "crates/terrane/src/db/freeze.rs",
        old: "let chain = chains.create(table.id, self.settled())?;",
        new: "let chain = chains.create(table.id, 0)?;",
        tests: &["trailing_log"],
    },
    Mutant {
        name: "a log with a gap is taken for all there was",
        file: "crates/terrane/src/recovery/renew.rs",
        old: "if gap.is_empty() {",
        new: "if true {",
        tests: &["trailing_log"],
    },
    Mutant {
        name: "what a log lacks stays in memory",
        file: "crates/terrane/src/recovery/memory.rs",
        old: "let exposed = end < self.end || !self.gap.is_empty();",
        new: "let exposed = false;",
        tests: &["trailing_log"],
    },
    Mutant {
        name: "a log is needed from within a gap on",
        file: "crates/terrane/src/db/journal.rs",
        old: "if gap.range.contains(&lsn) => gap.range.start,",
        new: "if gap.range.contains(&lsn) => lsn,",
        tests: &["trailing_log"],
    },
    Mutant {
        name: "large values of a device with a log may be lost with the power",
        file: "crates/terrane/src/db/commit.rs",
        old: "if self.journal.is_durable_at_once() {",
        new: "if self.journal.log().is_none() {",
        tests: &["trailing_log"],
    },
    Mutant {
        name: "zones of indexes go back to a memory that was closed",
        file: "crates/chainlog/src/space.rs",
        old: "*self.lock_sealed() = true;",
        new: "*self.lock_sealed() = false;",
        tests: &["index_in_pmem"],
    },
    Mutant {
        name: "a lookup of many does not go on in the block behind",
        file: "crates/terrane/src/read/turns.rs",
        old: "std::mem::swap(blocks, next_blocks);",
        new: "next_blocks.clear();",
        tests: &["multi_get"],
    },
    Mutant {
        name: "a commit that closing overtakes is a failure",
        file: "crates/terrane/src/chains/commit/lone.rs",
        old: "turn = Outcome::Closing;",
        new: "(turn, place) = (Outcome::Closing, Err(closing()));",
        tests: &["page_cache"],
    },
    Mutant {
        name: "the log has what got no place for want of zones",
        file: "crates/terrane/src/chains/commit.rs",
        old: "!is_late && !is_closing && !is_short",
        new: "!is_late && !is_closing",
        tests: &["db::commit"],
    },
    Mutant {
        name: "commits go on behind one that its thread left half way",
        file: COMMIT,
        old: "self.0.journal.poison(&Error::new(ErrorKind::Poisoned, \"a thread died while it settled commits\"));",
        new: "",
        tests: &["db::commit"],
    },
    Mutant {
        name: "who comes again waits for zones though there is room",
        file: "crates/terrane/src/chains/commit/again.rs",
        old: "let has_room = self.seems_to_have_room(&r);",
        new: "let has_room = false;",
        tests: &["db::commit"],
    },
    Mutant {
        name: "a check passes over the checksums of records in memory",
        file: "crates/terrane/src/check/memory.rs",
        old: "if let Err(e) = memtable.verify(&record) {",
        new: "if let (Err(e), false) = (memtable.verify(&record), true) {",
        tests: &["memory"],
    },
    Mutant {
        name: "a memory is taken wherever it stands",
        file: "crates/halloc/src/halloc.rs",
        old: "if known.opening == 0 ||",
        new: "if true || known.opening == 0 ||",
        tests: &["memory", "page_cache"],
    },
    Mutant {
        name: "where a memory will stand is not noted before it stands there",
        file: "crates/terrane/src/recovery/renew.rs",
        old: "Some(had) if place.known.opening > 0 => {",
        new: "Some(had) if place.known.opening > u64::MAX - 1 => {",
        tests: &["trailing_log"],
    },
    Mutant {
        name: "a chain is said to have all behind its beginning",
        file: "crates/terrane/src/recovery/memory.rs",
        old: "chain.of().from_lsn..chain.end_lsn().max(chain.of().from_lsn)",
        new: "chain.of().from_lsn..Lsn::MAX",
        tests: &["page_cache"],
    },
    Mutant {
        name: "a transaction lets go of its locks before it is published",
        file: TRANSACTION,
        old: "let committed = ",
        new: "self.locks.release_all();\n        let committed = ",
        tests: &["published", "isolation"],
    },
    Mutant {
        name: "a batch lets go of its locks before it is published",
        file: "crates/terrane/src/db/request.rs",
        old: "Locks::Held(locks) => locks.take(),",
        new: "Locks::Held(locks) => {\n                drop(locks.take());\n                None\n            }",
        tests: &["published"],
    },
];

/// A mutant may keep a test from ending.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) fn run(args: &MutantsArgs) -> Outcome {
    let named = |m: &&Mutant| args.names.is_empty() || args.names.iter().any(|n| m.name.contains(&**n));
    let chosen: Vec<&Mutant> = MUTANTS.iter().filter(named).collect();
    if args.list {
        chosen.iter().for_each(|m| println!("{}: {} ({})", m.name, m.file, m.tests.join(", ")));
        return Ok(());
    }
    let copy = Copy::make()?;
    let mut tests: Vec<&str> = chosen.iter().flat_map(|m| m.tests).copied().collect();
    tests.sort_unstable();
    tests.dedup();
    timed("without mutants", || {
        copy.builds(&tests)?;
        tests.iter().try_for_each(|test| match copy.verdict(test)? {
            Verdict::Passed => Ok(()),
            Verdict::Failed | Verdict::Hung => Err(format!("{test} fails by itself").into()),
        })
    })?;
    let mut survivors = 0;
    let mut table = String::new();
    for m in &chosen {
        timed(m.name, || {
            for (test, verdict) in copy.with(m, || {
                copy.builds(m.tests)?;
                m.tests.iter().map(|test| Ok((*test, copy.verdict(test)?))).collect::<Result<Vec<_>, _>>()
            })? {
                let word = match verdict {
                    Verdict::Failed => "caught",
                    Verdict::Hung => "caught: the test does not end",
                    Verdict::Passed => "SURVIVED",
                };
                survivors += usize::from(verdict == Verdict::Passed);
                table += &format!("{:<72} {test:<14} {word}\n", m.name);
            }
            Ok(())
        })?;
    }
    print!("{table}");
    match survivors {
        0 => Ok(()),
        n => Err(format!("{n} times a test did not see a mutant").into()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Hung,
}

/// The sources, elsewhere.
struct Copy {
    at: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Copies what git knows, or would. What is there already is left as it is, and so need not be built anew.
    fn make() -> Result<Copy, Failure> {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
        let at = target.join("mutants");
        // Not where the sources themselves are built: cargo takes one workspace for the other.
        let target = target.join("mutants-target");
        let mut list = Command::new("git");
        list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root());
        let list = list.output().map_err(|e| format!("cannot start {list:?}: {e}"))?;
        if !list.status.success() {
            return Err("git does not list the sources".into());
        }
        let names = String::from_utf8(list.stdout)?;
        let names: BTreeSet<&str> = names.split_terminator('\0').collect();
        for (path, name) in files(&at, &at)? {
            // It is gone from the sources.
            if !names.contains(&*name) {
                std::fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            }
        }
        for name in names {
            let (from, to) = (root().join(name), at.join(name));
            // One that is deleted, but not yet in the index.
            let Ok(content) = std::fs::read(&from) else { continue };
            if std::fs::read(&to).is_ok_and(|there| there == content) {
                continue;
            }
            std::fs::create_dir_all(to.parent().unwrap_or(&at))?;
            write(&to, &content)?;
        }
        Ok(Copy { at, target })
    }

    /// Runs `work` while the mutant is in place.
    fn with<T>(&self, m: &Mutant, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let file = self.at.join(m.file);
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let found = text.matches(m.old).count();
        if found != 1 {
            return Err(
                format!("\"{}\" does not apply: {} has its text {found} times", m.name, m.file).into()
            );
        }
        write(&file, text.replace(m.old, m.new).as_bytes())?;
        let done = work();
        write(&file, text.as_bytes())?;
        done
    }

    fn cargo(&self, tests: &[&str]) -> Command {
        let mut c = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        c.args(["test", "--quiet", "-p", "terrane"]).current_dir(&self.at);
        for test in tests {
            match *test {
                unit if unit.contains(UNIT) => c.arg("--lib"),
                test => c.args(["--test", test]),
            };
        }
        c.env("CARGO_TARGET_DIR", &self.target);
        // It is enough to know that it fails.
        c.env("PROPTEST_MAX_SHRINK_ITERS", "0");
        c
    }

    fn builds(&self, tests: &[&str]) -> Outcome {
        // Of rules that are off, variables are left over: warnings are not shown.
        let built = self.cargo(tests).arg("--no-run").output()?;
        match built.status.success() {
            true => Ok(()),
            false => Err(format!("does not build:\n{}", String::from_utf8_lossy(&built.stderr)).into()),
        }
    }

    /// What becomes of a test, which is built.
    fn verdict(&self, test: &str) -> Result<Verdict, Failure> {
        let mut run = self.cargo(&[test]);
        if test.contains(UNIT) {
            run.arg(test);
        }
        let mut child = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let began = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(if ExitStatus::success(&status) { Verdict::Passed } else { Verdict::Failed });
            }
            if began.elapsed() > PATIENCE {
                child.kill()?;
                child.wait()?;
                return Ok(Verdict::Hung);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// All files below a folder, with their names as seen from `root`; none where there is no folder.
fn files(root: &Path, folder: &Path) -> Result<Vec<(PathBuf, String)>, Failure> {
    let mut all = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(all) };
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            all.extend(files(root, &path)?);
        } else {
            let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
            all.push((path, name));
        }
    }
    Ok(all)
}

fn write(path: &Path, content: &[u8]) -> Outcome {
    std::fs::write(path, content).map_err(|e| format!("{}: {e}", path.display()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_applies() {
        for m in MUTANTS {
            let text = std::fs::read_to_string(root().join(m.file)).unwrap();
            assert_eq!(text.matches(m.old).count(), 1, "{}: {}", m.name, m.old);
        }
    }
}
