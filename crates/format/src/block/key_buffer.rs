//! The key of a cursor, whose end each step replaces.

/// Suffixes up to this length are put in place by one copy of this many bytes: most are shorter, and a copy of any length takes longer.
pub(super) const WIDE: usize = 16;

/// A key, and room behind it that is written over and never shown. Reused: once warm, it does not allocate.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyBuffer {
    bytes: Vec<u8>,
    len: usize,
}

impl KeyBuffer {
    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Empties it, and gives back memory above `bytes`.
    pub(super) fn rest(&mut self, bytes: usize) {
        self.len = 0;
        self.bytes.truncate(bytes);
        self.bytes.shrink_to(bytes);
    }

    /// Replaces what follows the first `keep` bytes, of which there are as many.
    #[inline]
    pub(super) fn replace(&mut self, keep: usize, suffix: &[u8]) {
        self.len = self.len.min(keep) + suffix.len();
        let from = self.len - suffix.len();
        if self.bytes.len() < self.len {
            self.grow();
        }
        if let Some(room) = self.bytes.get_mut(from..self.len) {
            room.copy_from_slice(suffix);
        }
    }

    /// As [`KeyBuffer::replace`], by the first `len` of these bytes. False, and nothing is done, if there are not as many to keep, or not
    /// as many of these, or there is no room.
    #[inline]
    pub(super) fn replace_by_some(&mut self, keep: usize, suffix: &[u8; WIDE], len: usize) -> bool {
        match self.bytes.get_mut(keep..).and_then(|room| room.first_chunk_mut()) {
            Some(room) if keep <= self.len && len <= WIDE => {
                *room = *suffix;
                self.len = keep + len;
                true
            }
            _ => false,
        }
    }

    /// To hold the key, and a suffix behind it that is put there by one copy.
    #[cold]
    fn grow(&mut self) {
        self.bytes.resize((self.len + WIDE).next_power_of_two(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_key_is_replaced_whatever_was_there() {
        let wide: [u8; WIDE] = std::array::from_fn(|i| b'A' + i as u8);
        let mut buffer = KeyBuffer::default();
        let (mut want, mut short) = (Vec::new(), 0);
        for step in 0..5000_usize {
            let keep = (step * 7 + step / 11) % (want.len() + 1);
            let len = step * 5 % (WIDE + 1);
            want.truncate(keep);
            match step % 4 {
                0 => {
                    buffer.replace(keep, &wide.repeat(step % 23));
                    want.extend(wide.repeat(step % 23));
                }
                _ => {
                    if !buffer.replace_by_some(keep, &wide, len) {
                        buffer.replace(keep, &wide[..len]);
                    }
                    want.extend(&wide[..len]);
                }
            }
            assert_eq!((buffer.as_slice(), buffer.len()), (&*want, want.len()));
            assert!(!buffer.replace_by_some(want.len() + 1, &wide, len));
            assert!(!buffer.replace_by_some(keep, &wide, WIDE + 1));
            assert_eq!(buffer.as_slice(), want);
            short += usize::from(buffer.replace_by_some(want.len(), &wide, 0));
            if step % 97 == 0 {
                buffer.rest(step % 64);
                want.clear();
            }
            if step % 101 == 0 {
                buffer.clear();
                want.clear();
            }
        }
        assert!(short > 4000, "there is mostly room for {WIDE} bytes more: {short}");
    }
}
