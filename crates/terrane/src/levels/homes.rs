//! Where in the cache the frames of a subtable's extents are kept.

/// The parts of the cache that have the frames of a subtable's extents, as they were owned at one moment: by an extent's first key. The
/// default is the common part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Homes(Vec<(Box<[u8]>, u16)>);

impl Homes {
    /// Each part has what begins from its key on, up to the next one's; the keys ascend from the empty one.
    pub(crate) fn new(parts: impl IntoIterator<Item = (Box<[u8]>, u16)>) -> Self {
        Homes(parts.into_iter().collect())
    }

    /// The part for an extent whose first key that is.
    pub(crate) fn of(&self, key: &[u8]) -> u16 {
        let behind = self.0.partition_point(|(start, _)| **start <= *key);
        behind.checked_sub(1).and_then(|at| self.0.get(at)).map_or(0, |(_, part)| *part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_is_where_its_first_key_lies() {
        let homes =
            Homes::new([(Box::from(&b""[..]), 3), (Box::from(&b"f"[..]), 0), (Box::from(&b"m"[..]), 4)]);
        assert_eq!([&b""[..], b"e", b"f", b"lz", b"m", b"z"].map(|key| homes.of(key)), [3, 3, 0, 0, 4, 4]);
        assert_eq!(Homes::default().of(b"a"), 0);
    }
}
