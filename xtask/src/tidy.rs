//! `tidy`: house rules that neither compiler nor clippy know.
//!
//! * A source file has at most [`MAX_LINES`] lines, tests apart.
//! * Nothing is left to do, and nothing is unwrapped, outside tests.
//! * `unsafe` only in the rooms that are allowed to, each use with its argument.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::command::root;
use crate::{Failure, Outcome};

const MAX_LINES: usize = 600;
/// Where `unsafe` is allowed: the rooms that need it, or one file of them, and peers of the bench that want it.
const UNSAFE_PLACES: [&str; 9] = [
    "crates/media/",
    "crates/memindex/",
    "crates/commit/",
    "crates/cache/",
    "crates/chainlog/src/index.rs",
    "crates/chainlog/src/volatile.rs",
    "crates/format/src/block/simd.rs",
    "bench/src/engine/lmdb.rs",
    "bench/src/repro/pm/peers.rs",
];
const BANNED: [&str; 6] = ["todo!(", "unimplemented!(", "dbg!(", "panic!(", ".unwrap()", ".expect("];
/// A SAFETY argument stands at most so many lines above what it argues for.
const ARGUMENT_LINES: usize = 12;

pub(crate) fn run() -> Outcome {
    let mut findings = Vec::new();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root().join("crates"))? {
        sources(&entry?.path().join("src"), &mut files)?;
    }
    for program in ["xtask", "soak", "bench"] {
        sources(&root().join(program).join("src"), &mut files)?;
    }
    files.sort();
    let texts: Vec<(PathBuf, String)> = files
        .into_iter()
        .map(|f| {
            std::fs::read_to_string(&f).map(|t| (f.clone(), t)).map_err(|e| format!("{}: {e}", f.display()))
        })
        .collect::<Result<_, _>>()?;
    let test_modules: BTreeSet<PathBuf> =
        texts.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    for (path, text) in &texts {
        let is_test = test_modules.iter().any(|m| path.starts_with(m) || *path == m.with_extension("rs"));
        if !is_test {
            check(path, text, &mut findings);
        }
    }
    for f in &findings {
        eprintln!("{f}");
    }
    match findings.len() {
        0 => Ok(()),
        n => Err(format!("{n} house rules broken").into()),
    }
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) -> Result<(), Failure> {
    if !dir.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, out)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
    Ok(())
}

/// Models under loom count as tests.
fn is_test_attribute(line: &str) -> bool {
    let line = line.trim_start();
    ["#[cfg(test)]", "#[cfg(loom)]", "#[cfg(all(test", "#[cfg(any(test"].iter().any(|a| line.starts_with(a))
}

/// Where the modules lie that `text` declares for tests only: their path without `.rs`.
fn test_modules(path: &Path, text: &str) -> Vec<PathBuf> {
    let stem = path.file_stem().unwrap_or_default();
    let parent = path.parent().unwrap_or(path);
    let dir = if ["mod", "lib", "main"].iter().any(|s| stem == *s) {
        parent.to_path_buf()
    } else {
        parent.join(stem)
    };
    let mut pending = false;
    let mut found = Vec::new();
    for line in text.lines() {
        let t = line.trim();
        if is_test_attribute(t) {
            pending = true;
        } else if pending && !t.starts_with("#[") {
            pending = false;
            if let Some(name) = t.strip_suffix(';').and_then(|t| t.split("mod ").nth(1)) {
                found.push(dir.join(name));
            }
        }
    }
    found
}

/// The numbered lines of `text` that are neither comments nor in an item for tests only.
fn code(text: &str) -> Vec<(usize, &str)> {
    let mut out = Vec::new();
    // The indentation of the item to skip, once its attribute was seen; whether its body is open.
    let mut skipping: Option<(usize, bool)> = None;
    for (i, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let t = line.trim();
        match skipping {
            Some((at, false)) if !t.starts_with("#[") => {
                let one_line = t.ends_with(';') || t.ends_with('}') || t.ends_with(',');
                skipping = if one_line { None } else { Some((at, true)) };
            }
            Some((at, true)) if indent == at && (t.starts_with('}') || t == ");") => skipping = None,
            Some(_) => {}
            None if is_test_attribute(line) => skipping = Some((indent, false)),
            None if t.starts_with("//") => {}
            None => out.push((i, line)),
        }
    }
    out
}

fn check(path: &Path, text: &str, findings: &mut Vec<String>) {
    let name = path.strip_prefix(root()).unwrap_or(path).display().to_string();
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > MAX_LINES {
        findings.push(format!("{name}: {} lines, at most {MAX_LINES} are allowed", lines.len()));
    }
    let unsafe_allowed = UNSAFE_PLACES.iter().any(|p| name.starts_with(p));
    // The lists above name what they forbid.
    let is_this_file = name.ends_with("xtask/src/tidy.rs");
    for (i, line) in code(text) {
        if is_this_file {
            continue;
        }
        let code = line.split(" // ").next().unwrap_or(line);
        for banned in BANNED {
            if code.contains(banned) {
                findings.push(format!("{name}:{}: {banned} outside tests", i + 1));
            }
        }
        let unsafe_use = ["unsafe {", "unsafe impl"].iter().any(|u| code.contains(u));
        if unsafe_use && !unsafe_allowed {
            findings.push(format!("{name}:{}: unsafe in a room that forbids it", i + 1));
        }
        let argued = lines[i.saturating_sub(ARGUMENT_LINES)..=i].iter().any(|l| l.contains("SAFETY"));
        if unsafe_use && !argued {
            findings.push(format!("{name}:{}: unsafe without its SAFETY argument", i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let mut out = Vec::new();
        check(&root().join("crates/format/src/x.rs"), text, &mut out);
        out
    }

    #[test]
    fn what_is_unwrapped_is_found_outside_tests_only() {
        let text = "fn a() {\n    b().unwrap();\n}\n\n#[cfg(test)]\nmod tests {\n    fn c() {\n        d().unwrap();\n    }\n}\n";
        let found = findings(text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("x.rs:2"), "{found:?}");
        assert_eq!(findings("#[cfg(test)]\nmod tests;\nfn a() {\n    b().unwrap();\n}\n").len(), 1);
        assert!(findings("/// `x.unwrap()`\nfn a() {}\n").is_empty());
    }

    #[test]
    fn unsafe_needs_a_room_and_an_argument() {
        assert_eq!(findings("fn a() { unsafe { b() } }\n").len(), 2);
        let mut out = Vec::new();
        check(
            &root().join("crates/media/src/x.rs"),
            "// SAFETY: b asks nothing.\nunsafe { b() }\n",
            &mut out,
        );
        assert!(out.is_empty(), "{out:?}");
    }

    #[test]
    fn long_files_are_found() {
        assert_eq!(findings(&"\n".repeat(MAX_LINES + 1)).len(), 1);
        assert!(findings(&"\n".repeat(MAX_LINES)).is_empty());
    }

    #[test]
    fn modules_for_tests_are_recognised() {
        let found =
            test_modules(Path::new("src/ring.rs"), "#[cfg(all(test, loom))]\nmod model;\nmod other;\n");
        assert_eq!(found, [PathBuf::from("src/ring/model")]);
        let found = test_modules(Path::new("src/art/mod.rs"), "#[cfg(test)]\npub(crate) mod tests;\n");
        assert_eq!(found, [PathBuf::from("src/art/tests")]);
    }
}
