//! Where a number belongs in a sorted node of eight: one comparison of all of them at once, where the processor has it.
//!
//! Which instructions are used is chosen once, when the first node is searched: AVX-512, AVX2, or none in particular (on
//! other processors the compiler makes what it can of that). All of them give the same answers.

use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of a node: eight little-endian numbers.
pub(super) const NODE: usize = 64;

/// Bytes of a line of the processor's cache.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// The instructions that search nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Simd {
    /// None in particular.
    Scalar = 1,
    /// Four numbers at once.
    Avx2 = 2,
    /// A node at once.
    Avx512 = 3,
}

/// A [`Simd`], or 0 before the first search.
static CHOSEN: AtomicU8 = AtomicU8::new(0);

impl Simd {
    /// The best that this processor has.
    pub fn best() -> Simd {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return Simd::Avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return Simd::Avx2;
            }
        }
        Simd::Scalar
    }

    /// What is in use.
    #[inline]
    pub fn in_use() -> Simd {
        match CHOSEN.load(Ordering::Relaxed) {
            3 => Simd::Avx512,
            2 => Simd::Avx2,
            1 => Simd::Scalar,
            _ => Simd::best().use_at_most(),
        }
    }

    /// Has all searches of this process use these, or the best that there is if that is less; gives what that comes to. For
    /// measurements and comparisons: answers do not depend on it.
    pub fn use_at_most(self) -> Simd {
        let chosen = self.min(Simd::best());
        CHOSEN.store(chosen as u8, Ordering::Relaxed);
        chosen
    }
}

/// Asks the processor to load these bytes. Never waits.
#[inline]
pub(super) fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing as far as the program can tell.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// How many numbers of a node are less than a given one, and how many are not greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rank {
    pub(super) less: u32,
    pub(super) not_greater: u32,
}

/// The rank of `x` among the numbers of these nodes.
#[inline]
pub(super) fn rank<const N: usize>(nodes: &[[u8; NODE]; N], x: u64) -> Rank {
    match Simd::in_use() {
        // SAFETY: in use only where the processor has AVX-512.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { avx512(nodes, x) },
        // SAFETY: in use only where the processor has AVX2.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { avx2(nodes, x) },
        _ => scalar(nodes, x),
    }
}

/// Without a branch on what the numbers are.
fn scalar<const N: usize>(nodes: &[[u8; NODE]; N], x: u64) -> Rank {
    let numbers = nodes.iter().flat_map(|node| node.as_chunks::<8>().0).map(|n| u64::from_le_bytes(*n));
    numbers.fold(Rank { less: 0, not_greater: 0 }, |r, n| Rank {
        less: r.less + u32::from(n < x),
        not_greater: r.not_greater + u32::from(n <= x),
    })
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
fn avx512<const N: usize>(nodes: &[[u8; NODE]; N], x: u64) -> Rank {
    use std::arch::x86_64::{
        _mm512_cmple_epu64_mask, _mm512_cmplt_epu64_mask, _mm512_loadu_si512, _mm512_set1_epi64,
    };
    let x = _mm512_set1_epi64(x.cast_signed());
    let mut rank = Rank { less: 0, not_greater: 0 };
    for node in nodes {
        // SAFETY: reads the 64 bytes of the node; needs no alignment.
        let numbers = unsafe { _mm512_loadu_si512(node.as_ptr().cast()) };
        rank.less += _mm512_cmplt_epu64_mask(numbers, x).count_ones();
        rank.not_greater += _mm512_cmple_epu64_mask(numbers, x).count_ones();
    }
    rank
}

// (A loop and no closure: that would not have the feature, and each instruction would be a call.)
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn avx2<const N: usize>(nodes: &[[u8; NODE]; N], x: u64) -> Rank {
    use std::arch::x86_64::{
        _mm256_castsi256_pd, _mm256_cmpeq_epi64, _mm256_cmpgt_epi64, _mm256_loadu_si256, _mm256_movemask_pd,
        _mm256_or_si256, _mm256_set1_epi64x, _mm256_xor_si256,
    };
    // Its comparison is of signed numbers, whose order is that of unsigned ones with the top bit flipped.
    let top = _mm256_set1_epi64x(i64::MIN);
    let x = _mm256_xor_si256(_mm256_set1_epi64x(x.cast_signed()), top);
    let mut rank = Rank { less: 0, not_greater: 0 };
    for half in nodes.as_flattened().as_chunks::<{ NODE / 2 }>().0 {
        // SAFETY: reads the 32 bytes of the half; needs no alignment.
        let numbers = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
        let numbers = _mm256_xor_si256(numbers, top);
        let less = _mm256_cmpgt_epi64(x, numbers);
        let not_greater = _mm256_or_si256(less, _mm256_cmpeq_epi64(x, numbers));
        rank.less += _mm256_movemask_pd(_mm256_castsi256_pd(less)).count_ones();
        rank.not_greater += _mm256_movemask_pd(_mm256_castsi256_pd(not_greater)).count_ones();
    }
    rank
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(mut numbers: [u64; 8]) -> [u8; NODE] {
        numbers.sort_unstable();
        let mut bytes = [0; NODE];
        for (at, n) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
            *at = n.to_le_bytes();
        }
        bytes
    }

    /// Numbers that meet each other, and the edges of both orders.
    fn number() -> impl Strategy<Value = u64> {
        let edges = [0, 1, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX - 1, u64::MAX];
        prop_oneof![3 => prop::sample::select(edges.to_vec()), 2 => 0..4u64, 2 => any::<u64>()]
    }

    proptest! {
        #[test]
        fn all_instructions_give_the_same_answers(
            first in proptest::array::uniform8(number()),
            second in proptest::array::uniform8(number()),
            x in number(),
        ) {
            let want = |numbers: &[u64]| Rank {
                less: numbers.iter().filter(|n| **n < x).count() as u32,
                not_greater: numbers.iter().filter(|n| **n <= x).count() as u32,
            };
            let sum = |a: Rank, b: Rank| Rank {
                less: a.less + b.less,
                not_greater: a.not_greater + b.not_greater,
            };
            let both = [node(first), node(second)];
            let a = [both[0]];
            let of_both = sum(want(&first), want(&second));
            prop_assert_eq!((scalar(&a, x), scalar(&both, x)), (want(&first), of_both));
            prop_assert_eq!((rank(&a, x), rank(&both, x)), (want(&first), of_both));
            #[cfg(target_arch = "x86_64")]
            {
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has it.
                    prop_assert_eq!(unsafe { (avx2(&a, x), avx2(&both, x)) }, (want(&first), of_both));
                }
                if is_x86_feature_detected!("avx512f") {
                    // SAFETY: the processor has it.
                    prop_assert_eq!(unsafe { (avx512(&a, x), avx512(&both, x)) }, (want(&first), of_both));
                }
            }
        }
    }

    #[test]
    fn what_is_in_use_is_at_most_what_there_is() {
        assert!(Simd::in_use() <= Simd::best());
    }
}
