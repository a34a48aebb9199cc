//! The one error type. A caller acts on [`Error::kind`]; a person reads the text, which says what happened, where
//! (file, offset, subtable) and what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Result with Terrane's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Bytes of a key that the text of an error shows.
const SHOWN_KEY: usize = 64;

/// What a caller can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Stored bytes do not match their checksum or break an invariant. The data concerned is not returned; other data
    /// stays readable. Restore from a backup, or run `terrane check` to see the extent of the damage.
    Corruption,
    /// The operating system refused or failed an I/O call. The source holds its error.
    Io,
    /// The device is full. Reads go on; writes succeed again once there is room.
    OutOfSpace,
    /// Another process (or another handle of this one) has the database open.
    Locked,
    /// An earlier flush failed, so what is on the device is unknown. Reads go on; writes are refused until reopened.
    Poisoned,
    /// A documented limit was exceeded; the message names the limit and the value.
    LimitExceeded,
    /// What is there was in use when the machine stopped, and parts of it may be older than others; or it is a copy from before, or what names
    /// it is. It is not looked at. Fill it anew from what is kept elsewhere.
    Stale,
    /// An argument or option makes no sense; the message says which and what is allowed.
    InvalidArgument,
    /// The database, or something in it, was written by a newer version.
    NewerFormat,
    /// No database, file or subtable of this name.
    NotFound,
    /// A database or subtable of this name is there already.
    AlreadyExists,
    /// The subtable was dropped while the handle was in use.
    SubtableDropped,
    /// The operation is not available on this medium, layout or machine.
    Unsupported,
    /// The operation was cancelled, or the database is closing.
    Closed,
    /// Another transaction changed what this one was about to change, or had read, after its snapshot was taken. Roll back and
    /// try again.
    WriteConflict,
    /// Another transaction holds the lock, and the caller did not want to wait. Try again later.
    LockBusy,
    /// Another transaction held the lock for longer than the caller wanted to wait. Roll back, or try again.
    LockTimeout,
    /// Transactions waited for each other in a circle, and this one was chosen to give way. Roll back and try again.
    Deadlock,
}

impl ErrorKind {
    /// A short lower-case name, stable for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Corruption => "corruption",
            ErrorKind::Io => "io error",
            ErrorKind::OutOfSpace => "out of space",
            ErrorKind::Locked => "locked",
            ErrorKind::Poisoned => "poisoned",
            ErrorKind::LimitExceeded => "limit exceeded",
            ErrorKind::Stale => "stale",
            ErrorKind::InvalidArgument => "invalid argument",
            ErrorKind::NewerFormat => "newer format",
            ErrorKind::NotFound => "not found",
            ErrorKind::AlreadyExists => "already exists",
            ErrorKind::SubtableDropped => "subtable dropped",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Closed => "closed",
            ErrorKind::WriteConflict => "write conflict",
            ErrorKind::LockBusy => "lock busy",
            ErrorKind::LockTimeout => "lock timeout",
            ErrorKind::Deadlock => "deadlock",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error with its kind, its place and, where one helps, a hint. Cheap to clone: the members of a commit group all
/// receive the same one.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    file: Option<PathBuf>,
    offset: Option<u64>,
    subtable: Option<String>,
    key: Option<Vec<u8>>,
    hint: Option<String>,
    source: Option<Arc<io::Error>>,
}

impl Error {
    /// An error of `kind`; `message` says what happened, without the place.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Arc::new(Inner {
            kind,
            message: message.into(),
            file: None,
            offset: None,
            subtable: None,
            key: None,
            hint: None,
            source: None,
        }))
    }

    /// Stored bytes are wrong.
    pub fn corruption(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Corruption, message)
    }

    /// An argument makes no sense.
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::InvalidArgument, message)
    }

    /// `what` has size `got`, above the limit `limit` (all in the unit that `what` names).
    pub fn limit(what: &str, got: u64, limit: u64) -> Self {
        Error::new(ErrorKind::LimitExceeded, format!("{what} is {got}, the limit is {limit}"))
    }

    /// Wraps an I/O error; `doing` names the call ("write", "open"). A full device becomes [`ErrorKind::OutOfSpace`],
    /// a missing file [`ErrorKind::NotFound`].
    pub fn io(source: io::Error, doing: &str) -> Self {
        let (kind, hint) = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                (ErrorKind::OutOfSpace, Some("free space on the device; writing resumes by itself"))
            }
            io::ErrorKind::NotFound => (ErrorKind::NotFound, None),
            _ => (ErrorKind::Io, None),
        };
        let mut e = Error::new(kind, format!("{doing} failed: {source}"));
        let inner = e.inner_mut();
        inner.hint = hint.map(str::to_owned);
        inner.source = Some(Arc::new(source));
        e
    }

    /// Adds the file concerned, unless one is named already.
    #[must_use]
    pub fn with_file(mut self, file: impl AsRef<Path>) -> Self {
        let inner = self.inner_mut();
        if inner.file.is_none() {
            inner.file = Some(file.as_ref().to_owned());
        }
        self
    }

    /// Names this file, whichever one is named already: for what was found out with another one.
    #[must_use]
    pub fn about_file(mut self, file: impl AsRef<Path>) -> Self {
        self.inner_mut().file = Some(file.as_ref().to_owned());
        self
    }

    /// Adds the byte offset within the file, unless one is named already.
    #[must_use]
    pub fn with_offset(mut self, offset: u64) -> Self {
        self.inner_mut().offset.get_or_insert(offset);
        self
    }

    /// Adds the subtable's name, unless one is named already.
    #[must_use]
    pub fn with_subtable(mut self, name: impl Into<String>) -> Self {
        let inner = self.inner_mut();
        if inner.subtable.is_none() {
            inner.subtable = Some(name.into());
        }
        self
    }

    /// Adds the key concerned, unless one is named already.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        let inner = self.inner_mut();
        if inner.key.is_none() {
            inner.key = Some(key.into());
        }
        self
    }

    /// Adds what the user can do, unless a hint is there already.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        let inner = self.inner_mut();
        if inner.hint.is_none() {
            inner.hint = Some(hint.into());
        }
        self
    }

    /// Says what the user can do in place of the hint that is there: where it happened that one does not help.
    #[must_use]
    pub fn with_other_hint(mut self, hint: impl Into<String>) -> Self {
        self.inner_mut().hint = Some(hint.into());
        self
    }

    /// Puts `context` in front of the message ("reading the manifest: ...").
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        let inner = self.inner_mut();
        inner.message = format!("{context}: {}", inner.message);
        self
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What happened, without place and hint.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The file concerned.
    pub fn file(&self) -> Option<&Path> {
        self.0.file.as_deref()
    }

    /// The byte offset in that file.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// The subtable concerned.
    pub fn subtable(&self) -> Option<&str> {
        self.0.subtable.as_deref()
    }

    /// The key concerned.
    pub fn key(&self) -> Option<&[u8]> {
        self.0.key.as_deref()
    }

    /// Whether the same transaction, begun anew, may well succeed: others were in its way.
    pub fn should_retry(&self) -> bool {
        use ErrorKind::{Deadlock, LockBusy, LockTimeout, WriteConflict};
        matches!(self.kind(), WriteConflict | LockBusy | LockTimeout | Deadlock)
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    fn inner_mut(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let i = &*self.0;
        write!(f, "{}: {}", i.kind, i.message)?;
        let mut sep = " (";
        if let Some(s) = &i.subtable {
            write!(f, "{sep}subtable {s:?}")?;
            sep = ", ";
        }
        if let Some(k) = &i.key {
            write!(f, "{sep}key \"{}\"", k[..k.len().min(SHOWN_KEY)].escape_ascii())?;
            f.write_str(if k.len() > SHOWN_KEY { "..." } else { "" })?;
            sep = ", ";
        }
        if let Some(p) = &i.file {
            write!(f, "{sep}file {}", p.display())?;
            sep = ", ";
        }
        if let Some(o) = i.offset {
            write!(f, "{sep}offset {o}")?;
            sep = ", ";
        }
        if sep == ", " {
            f.write_str(")")?;
        }
        if let Some(h) = &i.hint {
            write!(f, "; hint: {h}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|e| e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_what_where_and_what_to_do() {
        let e = Error::corruption("block checksum mismatch")
            .with_file("data-000001")
            .with_offset(65536)
            .with_subtable("users")
            .with_hint("run `terrane check`");
        assert_eq!(
            e.to_string(),
            "corruption: block checksum mismatch (subtable \"users\", file data-000001, offset 65536); \
             hint: run `terrane check`"
        );
    }

    #[test]
    fn keys_are_shown_in_part_and_what_is_worth_a_retry_says_so() {
        let e = Error::new(ErrorKind::WriteConflict, "x").with_subtable("t").with_key([0, b'a']);
        assert_eq!(e.to_string(), "write conflict: x (subtable \"t\", key \"\\x00a\")");
        assert!(e.should_retry() && !Error::corruption("x").should_retry());
        assert!(e.clone().with_key("b").key() == Some(&[0, b'a']));
        assert!(Error::corruption("x").with_key([b'a'; 100]).to_string().ends_with("a\"...)"));
    }

    #[test]
    fn the_first_place_named_wins_because_it_is_the_most_precise() {
        let e = Error::corruption("x").with_offset(1).with_offset(2).with_file("a").with_file("b");
        assert_eq!((e.offset(), e.file()), (Some(1), Some(Path::new("a"))));
    }

    #[test]
    fn a_full_device_is_its_own_kind() {
        let e = Error::io(io::Error::from(io::ErrorKind::StorageFull), "write");
        assert_eq!(e.kind(), ErrorKind::OutOfSpace);
        assert!(e.hint().is_some());
        assert!(std::error::Error::source(&e).is_some());
    }
}
