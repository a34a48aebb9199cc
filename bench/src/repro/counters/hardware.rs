//! The processor's own counters, where there are some: virtual machines mostly have none. `perf` reads them.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use crate::Failure;

/// How long a worker is watched, and what is left of its time to be sure that it works all the while.
const SECONDS: u64 = 2;
pub(super) const WORK_SECONDS: f64 = SECONDS as f64 + 1.0;

const EVENTS: &str = "instructions:u,cycles:u,L1-dcache-load-misses:u";

/// What a process did meanwhile, the bench's part of it included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Counted {
    pub(super) per_cycle: f64,
    /// Loads that the first level of cache did not have, per thousand instructions. Not every processor says.
    pub(super) missed: Option<f64>,
}

/// Why nothing can be counted, or nothing if something can. Tried out once.
pub(super) fn lacks() -> Option<&'static str> {
    static LACKS: LazyLock<Option<String>> = LazyLock::new(|| match perf(&["true"]).output() {
        Err(e) => Some(format!("IPC needs hardware counters, and `perf` to read them: {e}")),
        Ok(said) => match counted(&String::from_utf8_lossy(&said.stderr)) {
            Some(_) => None,
            None => Some("IPC needs hardware counters, which this machine lacks".to_owned()),
        },
    });
    LACKS.as_deref()
}

/// A process that is watched.
pub(super) struct Watch(Child);

impl Watch {
    /// Watches `pid` from now on.
    pub(super) fn begin(pid: u32) -> Result<Watch, Failure> {
        let (pid, seconds) = (pid.to_string(), SECONDS.to_string());
        let mut perf = perf(&["-p", &pid, "--", "sleep", &seconds]);
        Ok(Watch(perf.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?))
    }

    /// What it did until then.
    pub(super) fn end(mut self) -> Result<Counted, Failure> {
        let mut said = String::new();
        if let Some(mut from) = self.0.stderr.take() {
            from.read_to_string(&mut said)?;
        }
        self.0.wait()?;
        counted(&said).ok_or_else(|| format!("perf: what is {said:?}?").into())
    }
}

/// Separated by commas: a number, its unit, the event.
fn perf(args: &[&str]) -> Command {
    let mut command = Command::new("perf");
    command.args(["stat", "-x", ",", "-e", EVENTS]).args(args).env("LC_ALL", "C");
    command
}

fn counted(said: &str) -> Option<Counted> {
    let of = |event: &str| {
        let mut numbers = said.lines().filter_map(|line| {
            let mut fields = line.split(',');
            let number = fields.next()?.parse::<f64>().ok()?;
            fields.nth(1)?.starts_with(event).then_some(number)
        });
        numbers.next().filter(|n| *n > 0.0)
    };
    let instructions = of("instructions")?;
    Some(Counted {
        per_cycle: instructions / of("cycles")?,
        missed: of("L1-dcache-load-misses").map(|n| 1e3 * n / instructions),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perf_says_is_read() {
        let said = "3000000,,instructions:u,1,100.00,1.5,insn per cycle\n2000000,,cycles:u,1,100.00,,\n\
                    6000,,L1-dcache-load-misses:u,1,100.00,,\n";
        assert_eq!(counted(said), Some(Counted { per_cycle: 1.5, missed: Some(2.0) }));
        let none = "<not supported>,,L1-dcache-load-misses:u,0,100.00,,\n";
        let some = said.lines().take(2).chain([none]).collect::<Vec<_>>().join("\n");
        assert_eq!(counted(&some), Some(Counted { per_cycle: 1.5, missed: None }));
    }

    #[test]
    fn a_machine_without_counters_says_so() {
        let said = "<not supported>,,instructions:u,0,100.00,,\n<not supported>,,cycles:u,0,100.00,,\n";
        assert_eq!(counted(said), None);
        assert_eq!(counted("<not counted>,,instructions:u,0,100.00,,\n5,,cycles:u,1,100.00,,\n"), None);
        assert_eq!(counted(""), None);
    }
}
