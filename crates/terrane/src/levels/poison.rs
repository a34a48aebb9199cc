//! Poison: after a failed flush nobody knows what is on the device, so writing stops until the database is reopened.

use std::sync::OnceLock;

use terrane_base::{Error, ErrorKind, Result};

/// Shared by everything that writes. Once set, it stays.
#[derive(Debug, Default)]
pub(crate) struct Poison(OnceLock<Error>);

impl Poison {
    /// Not poisoned.
    pub(crate) fn new() -> Self {
        Poison::default()
    }

    /// Fails if poisoned.
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`], with the first failure in the message.
    pub(crate) fn check(&self) -> Result<()> {
        match self.0.get() {
            None => Ok(()),
            Some(e) => Err(e.clone()),
        }
    }

    /// Whether it is set.
    pub(crate) fn is_set(&self) -> bool {
        self.0.get().is_some()
    }

    /// Sets it because of `cause`, unless it is set already, and gives the error to return.
    pub(crate) fn set(&self, cause: &Error) -> Error {
        self.0
            .get_or_init(|| {
                Error::new(
                    ErrorKind::Poisoned,
                    format!("an earlier failure leaves the device in doubt: {cause}"),
                )
                .with_hint("reads go on; reopen the database to write again")
            })
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_stays() {
        let p = Poison::new();
        assert!(p.check().is_ok() && !p.is_set());
        p.set(&Error::corruption("first"));
        p.set(&Error::corruption("second"));
        let e = p.check().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Poisoned);
        assert!(e.message().contains("first") && p.is_set());
    }
}
