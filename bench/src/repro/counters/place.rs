//! Names for instructions: the place in the source, or else the function.

use std::collections::HashMap;
use std::process::Command;

use crate::Failure;
use crate::repro::counters::profile::Site;
use crate::repro::counters::tool;

/// Names that were looked up.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(HashMap<Site, String>);

/// A function, and the line in it. Of code that was inlined there are several, from the innermost on.
type Frame = (String, String);

impl Places {
    /// Looks all of `sites` up, an object at a time.
    pub(super) fn learn<'a>(&mut self, sites: impl Iterator<Item = &'a Site>) -> Result<(), Failure> {
        let mut objects: HashMap<&str, Vec<&Site>> = HashMap::new();
        for site in sites.filter(|s| !self.0.contains_key(s)) {
            objects.entry(&site.object).or_default().push(site);
        }
        for (object, sites) in objects {
            let mut addr2line = Command::new("addr2line");
            addr2line.args(["-a", "-i", "-f", "-C", "-e", object]);
            addr2line.args(sites.iter().map(|s| format!("{:#x}", s.address)));
            let mut said = Vec::new();
            tool::lines(&mut addr2line, &mut |line| said.push(line.to_owned()))
                .map_err(|e| format!("{object}: {e}"))?;
            for (address, frames) in frames(&said) {
                if let Some(name) = name(&frames) {
                    self.0.insert(Site { object: object.into(), address }, name);
                }
            }
        }
        Ok(())
    }

    /// The name of `site`, if anything is known of it.
    pub(super) fn get(&self, site: &Site) -> Option<&str> {
        self.0.get(site).map(String::as_str)
    }
}

/// What addr2line said of each address.
fn frames(said: &[String]) -> Vec<(u64, Vec<Frame>)> {
    let mut all: Vec<(u64, Vec<Frame>)> = Vec::new();
    let mut said = said.iter();
    while let Some(line) = said.next() {
        if let Some(address) = line.strip_prefix("0x").and_then(|a| u64::from_str_radix(a, 16).ok()) {
            all.push((address, Vec::new()));
        } else if let (Some((_, frames)), Some(at)) = (all.last_mut(), said.next()) {
            frames.push((line.clone(), at.clone()));
        }
    }
    all
}

/// The innermost frame that is no wrapper of the instruction itself, and where that is in somebody else's code, on whose
/// behalf.
fn name(frames: &[Frame]) -> Option<String> {
    let known: Vec<&Frame> = frames.iter().filter(|(_, at)| !at.starts_with("??")).collect();
    let inner = known.iter().position(|(_, at)| !is_wrapper(at)).unwrap_or(0);
    let (function, at) = known.get(inner)?;
    if is_own(at) {
        return Some(short(at));
    }
    let caller = known[inner..].iter().find(|(_, at)| is_own(at));
    let function = plain(function);
    Some(match caller {
        Some((_, own)) => format!("{function} ({}) for {}", short(at), short(own)),
        None => format!("{function} ({})", short(at)),
    })
}

/// The last part of a function's name, without what it is generic over.
fn plain(function: &str) -> &str {
    let method = function.rsplit(">::").next().unwrap_or(function);
    let path = method.split(['<', '(']).next().unwrap_or(method);
    path.trim_end_matches("::").rsplit("::").next().unwrap_or(path)
}

fn is_wrapper(at: &str) -> bool {
    let of_atomics = ["/core/src/sync/atomic.rs", "atomic_base.h", "bits/atomic"];
    of_atomics.into_iter().any(|file| at.contains(file)) || is_intrinsic(at)
}

/// Whether the line is Terrane's.
fn is_own(at: &str) -> bool {
    at.contains("crates/") && !at.contains("/registry/") && !is_intrinsic(at)
}

/// Whether the line is one of the processor's instructions, as the standard library has them. (In a folder of the name of ours.)
fn is_intrinsic(at: &str) -> bool {
    at.contains("/core_arch/src/")
}

/// A line without what differs from machine to machine.
fn short(at: &str) -> String {
    let at = at.split(" (").next().unwrap_or(at);
    if let Some((_, rest)) = at.split_once("/registry/src/") {
        return rest.split_once('/').map_or(rest, |(_, path)| path).to_owned();
    }
    for root in ["crates/", "library/", "bench/src/"] {
        if let Some(i) = at.find(root) {
            return at[i..].to_owned();
        }
    }
    at.rsplit('/').next().unwrap_or(at).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shortened() {
        assert_eq!(plain("<std::sync::Condvar>::notify_all"), "notify_all");
        assert_eq!(plain("arc_swap::debt::pay<alloc::sync::Arc<u8, alloc::Global>>"), "pay");
        assert_eq!(plain("rocksdb::DB::Get(rocksdb::Slice const&)"), "Get");
    }

    fn said(text: &str) -> Vec<(u64, Vec<Frame>)> {
        frames(&text.lines().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn an_instruction_is_named_by_who_uses_it() {
        let all = said(
            "\
0x0000000000001200
core::sync::atomic::atomic_add
/rustc/abc/library/core/src/sync/atomic.rs:4000
fetch_add
/rustc/abc/library/core/src/sync/atomic.rs:3200
terrane_commit::ring::Ring::reserve
/home/me/terrane/crates/commit/src/ring.rs:88 (discriminator 2)
0x0000000000001300
core::sync::atomic::atomic_swap
/rustc/abc/library/core/src/sync/atomic.rs:3900
arc_swap::debt::fast::Slots::get_debt<T>
/home/me/.cargo/registry/src/index.crates.io-1949/arc-swap-1.9.0/src/debt/fast.rs:48
terrane_base::current::Current<T>::load
/home/me/terrane/crates/base/src/current.rs:60
0x0000000000001400
free
??:0
0x0000000000001500
core::core_arch::x86::avx2::_mm256_loadu_si256
/rustc/abc/library/core/src/../../stdarch/crates/core_arch/src/x86/avx2.rs:3783
terrane_format::block::simd::avx2
/home/me/terrane/crates/format/src/block/simd.rs:142
",
        );
        let names: Vec<_> = all.iter().map(|(at, f)| (*at, name(f))).collect();
        let slots = "get_debt (arc-swap-1.9.0/src/debt/fast.rs:48) for crates/base/src/current.rs:60";
        assert_eq!(
            names,
            [
                (0x1200, Some("crates/commit/src/ring.rs:88".to_owned())),
                (0x1300, Some(slots.to_owned())),
                (0x1400, None),
                (0x1500, Some("crates/format/src/block/simd.rs:142".to_owned()))
            ]
        );
    }
}
