//! The error type of the library: a kind, which determines the status number, and a message. The
//! message states what failed, for which rank, file or variable, and what to do.
//!
//! Each layer adds its context with [`Error::context`]. No code parses the text.

use super::ids::Rank;
use std::fmt;
use std::sync::Arc;

/// The kind of an error, in the terms of the C API's status numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is out of range, NULL where that is not allowed, or contradicts another.
    InvalidArgument,
    /// The handle was never created, was released, or belongs to another kind of object.
    InvalidHandle,
    /// The call needs `dist_init` (or comes after `dist_finalize`, or after a fork).
    NotInitialized,
    /// `dist_init` was called twice.
    AlreadyInitialized,
    /// The requested combination does not exist; the message names it.
    Unsupported,
    /// The key or name does not exist.
    NotFound,
    /// A queue was empty and the caller did not want to wait.
    QueueEmpty,
    /// A counter operation met a value that is not a number.
    NotANumber,
    /// The deadline of the operation passed.
    Timeout,
    /// Another rank died, left, or stopped responding.
    PeerFailed,
    /// Ranks called different operations, or with different arguments.
    Mismatch,
    /// Ranks wait for each other in a cycle.
    Deadlock,
    /// A rank aborted the group.
    Aborted,
    /// The store or a peer cannot be reached, or broke the connection.
    Connection,
    /// The peer could not prove that it belongs to this job.
    Auth,
    /// Memory, or another limited resource of the host, is exhausted.
    OutOfMemory,
    /// A system call failed.
    System,
    /// A back end (NCCL, MPI, a plug-in) reported an error.
    Backend,
    /// A defect of the library: a caught panic or a broken invariant.
    Internal,
}

impl ErrorKind {
    /// All kinds, in the order of their wire codes.
    pub const ALL: [Self; 19] = [
        Self::InvalidArgument,
        Self::InvalidHandle,
        Self::NotInitialized,
        Self::AlreadyInitialized,
        Self::Unsupported,
        Self::NotFound,
        Self::QueueEmpty,
        Self::NotANumber,
        Self::Timeout,
        Self::PeerFailed,
        Self::Mismatch,
        Self::Deadlock,
        Self::Aborted,
        Self::Connection,
        Self::Auth,
        Self::OutOfMemory,
        Self::System,
        Self::Backend,
        Self::Internal,
    ];

    /// Returns the number of the kind in messages between processes with the same version of the
    /// library.
    pub fn code(self) -> u8 {
        let position = Self::ALL.iter().position(|&kind| kind == self);
        u8::try_from(position.unwrap_or(Self::ALL.len() - 1)).unwrap_or(u8::MAX)
    }

    /// Returns the kind for a number of [`ErrorKind::code`]; an unknown number is `Internal`.
    pub fn from_code(code: u8) -> Self {
        Self::ALL.get(usize::from(code)).copied().unwrap_or(Self::Internal)
    }
}

/// The fault of the rank that an error names, as far as the detecting rank can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RankFault {
    /// The rank failed in a way that no other variant names. The error message describes the
    /// failure.
    Other,
    /// The rank's process ended without leaving the group.
    Died,
    /// The rank left the group normally.
    Left,
    /// The connection to the rank ended or broke. The rank may have died, or the network may be
    /// partitioned.
    Unreachable,
    /// The rank sent no heartbeat for the heartbeat limit. It may have died or be delayed, or the
    /// network may be partitioned.
    Silent,
    /// The kernel reports that the rank's process is stopped.
    Stopped,
    /// The rank did not arrive before the deadline.
    Late,
    /// The rank called a different operation from the detecting rank.
    Mismatch,
    /// The rank aborted the group.
    Aborted,
}

impl RankFault {
    const ALL: [Self; 9] = [
        Self::Other,
        Self::Died,
        Self::Left,
        Self::Unreachable,
        Self::Silent,
        Self::Stopped,
        Self::Late,
        Self::Mismatch,
        Self::Aborted,
    ];

    /// Returns the number of the fault in messages between processes with the same version of the
    /// library; never 0.
    fn code(self) -> u8 {
        let position = Self::ALL.iter().position(|&fault| fault == self);
        position.and_then(|it| u8::try_from(it + 1).ok()).unwrap_or(1)
    }

    /// Returns the fault for a number of [`RankFault::code`], or `None` for 0 and for unknown
    /// numbers.
    fn from_code(code: u8) -> Option<Self> {
        usize::from(code).checked_sub(1).and_then(|position| Self::ALL.get(position).copied())
    }

    /// Returns the fault that an error of this kind implies for its culprit.
    fn implied_by(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Timeout => Self::Late,
            ErrorKind::Mismatch => Self::Mismatch,
            ErrorKind::Aborted => Self::Aborted,
            ErrorKind::Connection => Self::Unreachable,
            _ => Self::Other,
        }
    }
}

/// The rank that an error names, its fault and its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// The culprit's number in the group of the failed operation.
    pub rank: Rank,
    /// The fault of the culprit.
    pub fault: RankFault,
    /// The process ID and host of the culprit. `None` until a group adds them to its errors.
    pub process: Option<(u32, Arc<str>)>,
}

/// Linux's number of the error EMFILE.
const EMFILE: i32 = 24;

/// An error: a kind, a message, an optional culprit and an optional source. It has the size of a
/// pointer, so that the result of a successful call fits in a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<ErrorDetails>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct ErrorDetails {
    kind: ErrorKind,
    message: String,
    culprit: Option<Rank>,
    /// The fault; `None` if the kind implies the fault ([`RankFault::implied_by`]).
    fault: Option<RankFault>,
    process: Option<(u32, Arc<str>)>,
    source: ErrorSource,
}

/// The error that caused another error. The text of the source is a part of the message, so the
/// comparison of two errors ignores the source.
#[derive(Clone, Debug, Default)]
struct ErrorSource(Option<Arc<dyn std::error::Error + Send + Sync>>);

impl PartialEq for ErrorSource {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ErrorSource {}

/// The result type of the library.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns an error of `kind` with its message.
    #[cold]
    #[inline(never)]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorDetails {
            kind,
            message: message.into(),
            culprit: None,
            fault: None,
            process: None,
            source: ErrorSource::default(),
        }))
    }

    /// Returns an `InvalidArgument` error, the most common caller mistake.
    #[cold]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// Returns an `Internal` error, for a broken invariant of the library.
    #[cold]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// Returns the error of a failed system call. `operation` describes the purpose of the call.
    pub fn system(operation: impl fmt::Display, cause: std::io::Error) -> Self {
        Self::of_system_call(&operation, cause)
    }

    /// The code of [`Error::system`], which all types of texts share.
    #[cold]
    #[inline(never)]
    fn of_system_call(operation: &dyn fmt::Display, cause: std::io::Error) -> Self {
        let kind = match cause.kind() {
            std::io::ErrorKind::OutOfMemory | std::io::ErrorKind::StorageFull => {
                ErrorKind::OutOfMemory
            }
            _ => ErrorKind::System,
        };
        let hint = match cause.raw_os_error() {
            Some(EMFILE) => {
                "; this process has reached its limit of open descriptors: raise the limit (ulimit -n), or release \
                 groups"
            }
            _ => "",
        };
        Self::new(kind, format!("{operation}: {cause}{hint}")).with_source(cause)
    }

    /// Returns the error of a connection that failed or broke. The kind is `Connection`, a fault of
    /// the peer or the network, unless this process has no free descriptors: then the error is that
    /// of [`Error::system`].
    pub fn connection(operation: impl fmt::Display, cause: std::io::Error) -> Self {
        Self::of_connection(&operation, cause)
    }

    /// The code of [`Error::connection`], which all types of texts share.
    #[cold]
    #[inline(never)]
    fn of_connection(operation: &dyn fmt::Display, cause: std::io::Error) -> Self {
        match cause.raw_os_error() {
            Some(EMFILE) => Self::of_system_call(operation, cause),
            _ => {
                Self::new(ErrorKind::Connection, format!("{operation}: {cause}")).with_source(cause)
            }
        }
    }

    /// Creates the error for data of another rank that this rank cannot decode. `what` names the
    /// data.
    pub fn malformed_peer_data(rank: Rank, what: &str) -> Self {
        let message = format!(
            "{what} of rank {rank} cannot be decoded: rank {rank} has another build of libdist, or \
             another process has changed the data in the store"
        );
        Self::new(ErrorKind::Mismatch, message).with_culprit(rank)
    }

    /// Sets the culprit.
    #[must_use]
    pub fn with_culprit(mut self, rank: Rank) -> Self {
        self.0.culprit = Some(rank);
        self
    }

    /// Sets the culprit's fault, if the kind alone does not imply it.
    #[must_use]
    pub fn with_fault(mut self, fault: RankFault) -> Self {
        self.0.fault = Some(fault);
        self
    }

    /// Adds the process of the culprit.
    #[must_use]
    pub fn with_process(mut self, pid: u32, host: Arc<str>) -> Self {
        self.0.process = Some((pid, host));
        self
    }

    /// Replaces the rank of the culprit by the result of `renumber`: the number of the same rank in
    /// another group. If the result is `None`, the error has no culprit afterwards.
    #[must_use]
    pub fn renumber_culprit(mut self, renumber: impl FnOnce(Rank) -> Option<Rank>) -> Self {
        self.0.culprit = self.0.culprit.and_then(renumber);
        if self.0.culprit.is_none() {
            (self.0.fault, self.0.process) = (None, None);
        }
        self
    }

    /// Sets the error that caused this error. The message of this error must contain the text of
    /// `source`.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = ErrorSource(Some(Arc::new(source)));
        self
    }

    /// Prepends context to the message: "`context`: message".
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Self {
        self.with_dyn_context(&context)
    }

    /// The code of [`Error::context`], which all types of texts share.
    #[cold]
    #[inline(never)]
    fn with_dyn_context(mut self, context: &dyn fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// Removes a prefix from the message, if the message begins with it.
    #[must_use]
    pub fn without_prefix(mut self, prefix: &str) -> Self {
        if let Some(rest) = self.0.message.strip_prefix(prefix) {
            self.0.message = rest.to_owned();
        }
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the message.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the error of the system that caused this error, if there is one.
    pub fn io_cause(&self) -> Option<&std::io::Error> {
        std::error::Error::source(self)?.downcast_ref::<std::io::Error>()
    }

    /// Returns the culprit, if there is one.
    pub fn culprit(&self) -> Option<Rank> {
        self.0.culprit
    }

    /// Returns the culprit with its fault and its process.
    pub fn culprit_details(&self) -> Option<Culprit> {
        let fault = self.0.fault.unwrap_or_else(|| RankFault::implied_by(self.0.kind));
        let process = self.0.process.clone();
        self.0.culprit.map(|rank| Culprit { rank, fault, process })
    }

    /// Returns true if the error was given this fault of its culprit.
    pub fn has_fault(&self, fault: RankFault) -> bool {
        self.0.fault == Some(fault)
    }

    /// Returns the fault as a number for messages between processes with the same version of the
    /// library; 0 if the kind implies the fault.
    pub fn fault_code(&self) -> u8 {
        self.0.fault.map_or(0, RankFault::code)
    }

    /// Sets the fault from a number of [`Error::fault_code`].
    #[must_use]
    pub fn with_fault_code(mut self, code: u8) -> Self {
        self.0.fault = RankFault::from_code(code);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.0.as_deref().map(|source| source as _)
    }
}

/// An extension of results that adds context to the error.
pub trait ErrorContext<T> {
    /// Adds context as [`Error::context`] does. The text is built only for an error.
    ///
    /// # Errors
    /// The error of `self`, with the context before its message.
    fn context<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Result<T>;
}

impl<T> ErrorContext<T> for Result<T> {
    fn context<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Self {
        self.map_err(|error| error.context(what()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_codes_round_trip() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.code()), kind);
        }
        assert_eq!(ErrorKind::from_code(250), ErrorKind::Internal);
    }

    #[test]
    fn prefix_is_removed_only_from_the_beginning() {
        let error = Error::invalid("barrier #1 of rank 0 timed out: barrier #1 of rank 0");
        let shorter = error.clone().without_prefix("barrier #1 of rank 0 ");
        assert_eq!(shorter.message(), "timed out: barrier #1 of rank 0");
        assert_eq!(shorter.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.clone().without_prefix("timed out").message(), error.message());
    }

    #[test]
    fn descriptor_exhaustion_error_suggests_ulimit() {
        let full = || std::io::Error::from_raw_os_error(EMFILE);
        for error in [Error::system("opening", full()), Error::connection("connecting", full())] {
            assert_eq!(error.kind(), ErrorKind::System);
            assert!(error.message().contains("ulimit -n"), "{error}");
        }
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let error = Error::connection("reading", broken);
        assert_eq!(error.kind(), ErrorKind::Connection);
        assert!(!error.message().contains("ulimit"), "{error}");
    }

    #[test]
    fn system_error_has_the_cause_as_its_source() {
        let error = Error::system("opening", std::io::Error::from_raw_os_error(EMFILE));
        let (error, copy) = (error.clone(), error.context("dist_init"));
        assert!(std::error::Error::source(&copy).is_some());
        let source = std::error::Error::source(&error).and_then(|it| it.downcast_ref());
        let code = source.and_then(std::io::Error::raw_os_error);
        assert_eq!(code, Some(EMFILE));
        assert!(std::error::Error::source(&Error::invalid("rank is -1")).is_none());
        fn is_send_and_sync<T: Send + Sync>(_: &T) {}
        is_send_and_sync(&error);
    }

    #[test]
    fn fault_codes_round_trip() {
        let error = Error::new(ErrorKind::Timeout, "late").with_culprit(1);
        assert_eq!(error.fault_code(), 0);
        assert_eq!(error.culprit_details().map(|it| it.fault), Some(RankFault::Late));
        for fault in RankFault::ALL {
            let with_fault = error.clone().with_fault(fault);
            assert_ne!(with_fault.fault_code(), 0);
            assert_eq!(error.clone().with_fault_code(with_fault.fault_code()), with_fault);
            assert_eq!(with_fault.culprit_details().map(|it| it.fault), Some(fault));
        }
        assert_eq!(error.clone().with_fault_code(200), error);
        let no_culprit = Error::new(ErrorKind::Timeout, "late").with_fault(RankFault::Late);
        assert_eq!(no_culprit.culprit_details(), None);
    }

    #[test]
    fn culprit_is_renumbered_or_removed() {
        let error = Error::new(ErrorKind::PeerFailed, "gone").with_culprit(1);
        let error = error.with_fault(RankFault::Died);
        let moved = error.clone().renumber_culprit(|rank| Some(rank + 4));
        assert_eq!(
            moved.culprit_details().map(|it| (it.rank, it.fault)),
            Some((5, RankFault::Died))
        );
        let removed = error.renumber_culprit(|_| None);
        assert_eq!((removed.culprit(), removed.fault_code()), (None, 0));
    }

    #[test]
    fn context_comes_before_the_message() {
        let error = Error::invalid("rank is -1").context("dist_init").with_culprit(3);
        assert_eq!(error.to_string(), "dist_init: rank is -1");
        assert_eq!(error.culprit(), Some(3));
    }
}
