//! The processor's caches as callgrind has them.
//!
//! A model: the same two levels on every machine, those of a current server processor, so that counts can be compared. It fetches a line when
//! an instruction needs it. What the program or the processor asked for ahead is missed all the same, so misses say how many lines
//! come from further away, not how often somebody waits for one.

use crate::repro::counters::profile::Misses;

/// One level: bytes and ways.
struct Level {
    bytes: u64,
    ways: u64,
}

const LINE_BYTES: u64 = 64;
/// Of data; there is as much for instructions.
const FIRST: Level = Level { bytes: 32 << 10, ways: 8 };
/// Of both.
const LAST: Level = Level { bytes: 32 << 20, ways: 16 };

/// What callgrind is told of them. (Left alone it takes what the processor says, which in virtual machines may be anything.)
pub(super) fn arguments() -> [String; 4] {
    let level = |name: &str, Level { bytes, ways }: &Level| format!("--{name}={bytes},{ways},{LINE_BYTES}");
    ["--cache-sim=yes".to_owned(), level("I1", &FIRST), level("D1", &FIRST), level("LL", &LAST)]
}

/// What is counted of them: a name, how many there were, and what assumed them.
pub(super) fn rows(misses: Misses) -> [(&'static str, u64, String); 2] {
    let model = |Level { bytes, ways }: &Level| {
        let size =
            if *bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) };
        format!("valgrind's model of {size} in {ways} ways")
    };
    [("L1d misses", misses.first, model(&FIRST)), ("last-level data misses", misses.last, model(&LAST))]
}

/// What is to be known of all such rows.
pub(super) const ABOUT: &str = "cache misses are those of valgrind's model of a first and a last level, lines of 64 bytes, where one that was \
                                asked for ahead is missed all the same; instructions are those of AVX2, for it knows no AVX-512";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_said_to_callgrind_and_in_rows() {
        let told = arguments();
        assert_eq!(told, ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=33554432,16,64"]);
        let [first, last] = rows(Misses { first: 3, last: 2 });
        assert_eq!(first, ("L1d misses", 3, "valgrind's model of 32 KiB in 8 ways".to_owned()));
        assert_eq!((last.1, &*last.2), (2, "valgrind's model of 32 MiB in 16 ways"));
    }
}
