//! What objdump says of machine code: which instructions read and write memory in one atomic step, and where functions begin.

use std::collections::HashSet;
use std::process::Command;

use crate::Failure;
use crate::repro::counters::tool;

/// Prefixes that may stand before the one that makes an instruction atomic.
const PREFIXES: [&str; 12] =
    ["bnd", "cs", "data16", "ds", "es", "fs", "gs", "notrack", "rep", "repz", "xacquire", "xrelease"];

/// The code of one program or library.
#[derive(Clone, Debug, Default)]
pub(super) struct Code {
    /// Addresses of atomic read-modify-writes.
    rmws: HashSet<u64>,
    /// Functions, with their addresses.
    functions: Vec<(String, u64)>,
}

impl Code {
    pub(super) fn of(object: &str) -> Result<Code, Failure> {
        let mut code = Code::default();
        let mut objdump = Command::new("objdump");
        objdump.args(["-d", "-C", "--no-show-raw-insn"]).arg(object);
        tool::lines(&mut objdump, &mut |line| code.read(line)).map_err(|e| format!("{object}: {e}"))?;
        Ok(code)
    }

    fn read(&mut self, line: &str) {
        if let Some((address, text)) = line.split_once(":\t") {
            if is_rmw(text)
                && let Ok(address) = u64::from_str_radix(address.trim_start(), 16)
            {
                self.rmws.insert(address);
            }
        } else if let Some((address, name)) = line.split_once(" <")
            && let Some(name) = name.strip_suffix(">:")
            && let Ok(address) = u64::from_str_radix(address, 16)
        {
            self.functions.push((name.to_owned(), address));
        }
    }

    pub(super) fn is_rmw(&self, address: u64) -> bool {
        self.rmws.contains(&address)
    }

    /// Where the functions begin whose names `wanted` takes.
    pub(super) fn functions(&self, wanted: impl Fn(&str) -> bool) -> Vec<u64> {
        self.functions.iter().filter(|(name, _)| wanted(name)).map(|&(_, at)| at).collect()
    }
}

/// Whether an instruction, in the syntax of AT&T, reads and writes memory in one atomic step: it is locked, or an exchange with
/// memory, which always is.
fn is_rmw(text: &str) -> bool {
    let mut words = text.split_whitespace();
    let mut word = words.next();
    while let Some(w) = word
        && (PREFIXES.contains(&w) || w.starts_with("rex"))
    {
        word = words.next();
    }
    match word {
        Some("lock") => true,
        Some(w) if w.starts_with("xchg") => {
            // Registers alone: no memory is touched. What stands behind `#` or `<` is objdump's remark.
            let operands = words.next().unwrap_or_default();
            operands.contains('(') || operands.split(',').any(|o| !o.starts_with('%') || o.contains(':'))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_instructions_and_exchanges_with_memory_are_atomic() {
        let atomic = [
            "lock add %rax,0x2e31(%rip)        # 4040 <x>",
            "lock cmpxchg %rcx,(%rdi)",
            "lock xadd %eax,0x10(%rbx,%rcx,8)",
            "lock cmpxchg16b (%rdi)",
            "xacquire lock cmpxchg %edx,(%rdi)",
            "rex.W lock or %rax,(%rsp)",
            "xchg %rax,(%rdi)",
            "xchg %al,0x8(%rbx)",
            "xchg %eax,%fs:0x28",
            "xchg %rax,0x1234",
        ];
        for text in atomic {
            assert!(is_rmw(text), "{text}");
        }
    }

    #[test]
    fn plain_instructions_are_not() {
        let plain = [
            "mov %rax,(%rdi)",
            "xchg %ax,%ax",
            "xchg %rax,%rbx",
            "cmpxchg %rcx,(%rdi)",
            "mfence",
            "call 1200 <lock_it>",
            "rep stos %al,%es:(%rdi)",
            "",
        ];
        for text in plain {
            assert!(!is_rmw(text), "{text}");
        }
    }

    #[test]
    fn a_disassembly_is_read() {
        let sample = "
/opt/bench:     file format elf64-x86-64


Disassembly of section .text:

0000000000001200 <<bench::Handle as bench::Session>::get>:
    1200:\tpush   %rbp
    1207:\tlock add %rax,0x2e31(%rip)        # 4040 <x>
    120f:\tjmp    1200 <<bench::Handle as bench::Session>::get>

0000000000001220 <malloc>:
    1220:\txchg   %eax,(%rdi)
";
        let mut code = Code::default();
        sample.lines().for_each(|l| code.read(l));
        assert_eq!(code.rmws, HashSet::from([0x1207, 0x1220]));
        assert_eq!(code.functions(|n| n.ends_with("Session>::get")), [0x1200]);
    }
}
