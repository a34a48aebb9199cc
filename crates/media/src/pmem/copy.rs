//! Copying to and from persistent memory, and other mapped files, in whole words: relaxed atomic ones, or stores that are as good.
//!
//! Short pieces are stored as usual and their lines written back: the line is mostly in the cache, for what was written before lies in
//! it too. Of long ones the whole lines go around the caches, which saves reading them first.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::LINE;
use super::writeback::WriteBack;

const WORD: usize = size_of::<u64>();

/// From so many bytes on whole lines go around the caches. With fewer the two ways cost the same.
const STREAM_FROM: usize = 512;

/// How far behind the beginning of a short piece lines are asked for, that the next ones will be written to. Stores wait behind one whose
/// line has to come from memory, and the next atomic operation waits for all of them.
const AHEAD: usize = 512;

/// Which of `len` bytes at `at` go around the caches, if any do: whole lines.
pub(crate) fn streamed(at: usize, len: usize) -> Range<usize> {
    if len < STREAM_FROM {
        return 0..0;
    }
    let head = at.next_multiple_of(LINE) - at;
    head..head + (len - head) / LINE * LINE
}

/// Copies `bytes` to `at` and has them written back. A last partial word is padded with zeros.
///
/// # Safety
/// The bytes at `at`, and those that pad the last word, are mapped for writing, and `at` is a multiple of eight.
pub(crate) unsafe fn copy_in(at: *mut u8, bytes: &[u8], back: WriteBack) {
    if back == WriteBack::Nothing {
        // SAFETY: per contract.
        return unsafe { store(at, bytes) };
    }
    let streamed = streamed(at.addr(), bytes.len());
    let (head, body, tail) = (&bytes[..streamed.start], &bytes[streamed.clone()], &bytes[streamed.end..]);
    // SAFETY: the three lie one behind the other in the range that the contract is about; `head` and `body` are of whole words.
    unsafe {
        store(at, head);
        lines(at, head.len(), back);
        stream(at.add(streamed.start), body);
        let at = at.add(streamed.end);
        store(at, tail);
        lines(at, tail.len(), back);
    }
}

/// Asks for the lines that are next if pieces are stored one behind the other, as nearly all are: `len` bytes at `at` were. Of a long one
/// the processor finds out itself.
#[inline]
pub(crate) fn ask_ahead(at: *const u8, len: usize) {
    if len >= STREAM_FROM {
        return;
    }
    let from = at.wrapping_add(AHEAD);
    // Of each line that begins within.
    let mut line = from.addr().wrapping_neg() % LINE;
    while line < len {
        prefetch(from.wrapping_add(line));
        line += LINE;
    }
}

/// Asks the processor to load the line at `address`, which may be any. Never waits.
#[inline]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing as far as the program can tell, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Copies from `at` into `out`.
///
/// # Safety
/// The words that the bytes lie in are mapped, and `at` is a multiple of eight.
pub(crate) unsafe fn copy_out(at: *mut u8, out: &mut [u8]) {
    let load = |i: usize| {
        // SAFETY: per contract, the word is mapped and aligned.
        unsafe { AtomicU64::from_ptr(at.add(i * WORD).cast()) }.load(Ordering::Relaxed).to_ne_bytes()
    };
    let (words, rest) = out.as_chunks_mut::<WORD>();
    for (i, word) in words.iter_mut().enumerate() {
        *word = load(i);
    }
    if !rest.is_empty() {
        rest.copy_from_slice(&load(words.len())[..rest.len()]);
    }
}

/// # Safety
/// As [`copy_in`].
unsafe fn store(at: *mut u8, bytes: &[u8]) {
    let (words, rest) = bytes.as_chunks::<WORD>();
    for (i, word) in words.iter().enumerate() {
        // SAFETY: per contract, the word is mapped and aligned.
        unsafe { AtomicU64::from_ptr(at.add(i * WORD).cast()) }
            .store(u64::from_ne_bytes(*word), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        let mut last = [0; WORD];
        last[..rest.len()].copy_from_slice(rest);
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(at.add(words.len() * WORD).cast()) }
            .store(u64::from_ne_bytes(last), Ordering::Relaxed);
    }
}

/// Has all lines of a range written back.
///
/// # Safety
/// As [`copy_in`].
unsafe fn lines(at: *mut u8, len: usize, back: WriteBack) {
    if len == 0 {
        return;
    }
    let into = at.addr() % LINE;
    for line in (0..into + len).step_by(LINE) {
        // SAFETY: mappings are made of whole lines, so the one that a mapped byte lies in is mapped.
        unsafe { back.line(at.sub(into).add(line)) };
    }
}

/// Stores whole lines around the caches: a line with one store where the processor can, which takes it less than eight do.
///
/// # Safety
/// As [`copy_in`]; `at` and the length are multiples of [`LINE`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream(at: *mut u8, bytes: &[u8]) {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: per contract; the processor has the instructions.
        return unsafe { stream_lines(at, bytes) };
    }
    // SAFETY: per contract.
    unsafe { stream_words(at, bytes) }
}

/// # Safety
/// As [`stream`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream_words(at: *mut u8, bytes: &[u8]) {
    let (words, _) = bytes.as_chunks::<WORD>();
    for (i, word) in words.iter().enumerate() {
        // SAFETY: per contract the word is mapped and aligned. It is stored by an instruction that the compiler knows nothing of, so
        // it assumes that any memory may have changed; this thread's own loads see the store, as on x86 always.
        unsafe {
            std::arch::asm!(
                "movnti [{at}], {word}",
                at = in(reg) at.add(i * WORD),
                word = in(reg) u64::from_ne_bytes(*word),
                options(nostack, preserves_flags)
            );
        }
    }
}

/// # Safety
/// As [`stream`], and the processor has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn stream_lines(at: *mut u8, bytes: &[u8]) {
    const { assert!(LINE == 64, "what a register holds") };
    let (lines, _) = bytes.as_chunks::<LINE>();
    for (i, line) in lines.iter().enumerate() {
        // SAFETY: per contract the line is mapped and aligned, and `line` may be read at any alignment; further as in `stream_words`.
        unsafe {
            std::arch::asm!(
                "vmovdqu64 zmm16, [{from}]",
                "vmovntdq [{at}], zmm16",
                // One that SSE has no part of: it does not slow that down afterwards.
                out("zmm16") _,
                from = in(reg) line.as_ptr(),
                at = in(reg) at.add(i * LINE),
                options(nostack, preserves_flags)
            );
        }
    }
}

/// Elsewhere nothing gets here: there is no [`WriteBack`] but `Nothing`.
///
/// # Safety
/// As [`copy_in`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(at: *mut u8, bytes: &[u8]) {
    // SAFETY: per contract.
    unsafe { store(at, bytes) }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Lines([u8; 4 * LINE]);

    #[test]
    fn what_goes_around_the_caches_is_the_same_by_words_and_by_lines() {
        // From anywhere, to whole lines.
        let bytes: Vec<u8> = (0..=3 * LINE as u8).collect();
        let bytes = &bytes[1..];
        let mut streams: Vec<unsafe fn(*mut u8, &[u8])> = vec![stream, stream_words];
        if is_x86_feature_detected!("avx512f") {
            streams.push(stream_lines);
        }
        for stream in streams {
            let mut lines = Lines([255; 4 * LINE]);
            // SAFETY: three of these four lines, and nobody else has them.
            unsafe { stream(lines.0.as_mut_ptr(), bytes) };
            WriteBack::Clwb.fence();
            assert!(lines.0[..3 * LINE] == *bytes && lines.0[3 * LINE..] == [255; LINE]);
        }
    }
}
