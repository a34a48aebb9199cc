//! Names of the files that this room owns.

/// The superblock.
pub(super) const SUPER: &str = "SUPER";
/// The next superblock, while it is written.
pub(super) const SUPER_NEXT: &str = "SUPER.tmp";

const MANIFEST: &str = "manifest-";
const DATA: &str = "data-";

/// The name of a manifest file.
pub(super) fn manifest(number: u64) -> String {
    format!("{MANIFEST}{number:06}")
}

/// The number in a manifest file's name.
pub(super) fn manifest_number(name: &str) -> Option<u64> {
    number(name, MANIFEST)
}

/// The name of a data file.
pub(super) fn data(number: u32) -> String {
    format!("{DATA}{number:06}")
}

/// The number in a data file's name.
pub(super) fn data_number(name: &str) -> Option<u32> {
    number(name, DATA)?.try_into().ok()
}

/// Only names that we would give ourselves count: anything else is not ours to touch.
fn number(name: &str, prefix: &str) -> Option<u64> {
    let n = name.strip_prefix(prefix)?.parse().ok()?;
    (name == format!("{prefix}{n:06}")).then_some(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_we_give_are_ours() {
        for n in [0, 7, 999_999, 1_000_000, u32::MAX] {
            assert_eq!(data_number(&data(n)), Some(n));
            assert_eq!(manifest_number(&manifest(n.into())), Some(n.into()));
        }
        for name in
            ["data-1", "data-+00001", "data-000001.bak", "data-", "manifest-000001", "data-99999999999"]
        {
            assert_eq!(data_number(name), None, "{name}");
        }
    }
}
