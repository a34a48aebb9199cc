//! Arbitrary and damaged bytes against every decoder: the quick form of what `fuzz/` does for hours.
//!
//! `TERRANE_CASES` sets the number of inputs for each decoder, `TERRANE_SEED` where they start. With `TERRANE_CORPUS`,
//! a directory, the well-formed inputs are written there for the fuzzer to start from.

mod decoders;

use std::panic::catch_unwind;

use decoders::{ALL, Decoder, samples};

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Bytes out of nothing, mostly small ones: they are lengths and tags more often.
fn random(rng: &mut Rng) -> Vec<u8> {
    let len = rng.below(300);
    (0..len).map(|_| if rng.below(3) == 0 { rng.next() as u8 } else { rng.below(12) as u8 }).collect()
}

/// A sample with a few changes.
fn damaged(rng: &mut Rng, sample: &[u8]) -> Vec<u8> {
    let mut data = sample.to_vec();
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(data.len());
        match rng.below(7) {
            0 => data.truncate(at),
            1 => data.insert(at, rng.next() as u8),
            2 if !data.is_empty() => {
                data.remove(at);
            }
            3 => {
                let end = (at + rng.below(16)).min(data.len());
                let piece = data[at.min(end)..end].to_vec();
                let to = rng.below(data.len());
                data.splice(to..to, piece);
            }
            4 if data.len() >= at + 4 => {
                let edge = [0, 1, 0x7fff_ffff, u32::MAX, data.len() as u32][rng.below(5)];
                data[at..at + 4].copy_from_slice(&edge.to_le_bytes());
            }
            5 if !data.is_empty() => data[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5)],
            _ if !data.is_empty() => data[at] ^= 1 << rng.below(8),
            _ => {}
        }
    }
    data
}

fn survives(name: &str, decoder: Decoder, seed: u64, data: &[u8]) {
    if catch_unwind(|| decoder(data)).is_err() {
        panic!("decoder {name}, seed {seed}, input {data:02x?}");
    }
}

#[test]
fn no_decoder_panics_and_what_one_accepts_is_consistent() {
    let (cases, first) = (env("TERRANE_CASES", 3000), env("TERRANE_SEED", 1));
    for (name, decoder) in ALL {
        let samples = samples(name);
        survives(name, decoder, 0, &[]);
        for sample in &samples {
            survives(name, decoder, 0, sample);
        }
        for seed in first..first + cases {
            let mut rng = Rng(seed);
            let data = match rng.below(4) {
                0 => random(&mut rng),
                _ => {
                    let sample = rng.below(samples.len());
                    damaged(&mut rng, &samples[sample])
                }
            };
            survives(name, decoder, seed, &data);
        }
    }
}

#[test]
fn every_prefix_of_a_sample_is_survived() {
    for (name, decoder) in ALL {
        for sample in samples(name) {
            for end in 0..sample.len().min(600) {
                survives(name, decoder, 0, &sample[..end]);
            }
        }
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "writes files for the fuzzer")]
fn samples_can_be_written_for_the_fuzzer() {
    let Some(dir) = std::env::var_os("TERRANE_CORPUS") else { return };
    for (name, _) in ALL {
        let dir = std::path::Path::new(&dir).join(name);
        std::fs::create_dir_all(&dir).unwrap();
        for (i, sample) in samples(name).into_iter().enumerate() {
            std::fs::write(dir.join(format!("sample-{i}")), sample).unwrap();
        }
    }
}
