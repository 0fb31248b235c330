//! Status numbers: the only place that maps error kinds to numbers, and numbers to text.

use super::types::*;
use crate::base::error::ErrorKind;
use std::ffi::CStr;

/// Returns the status of an error kind. The match has no wildcard, so a new kind without a number
/// does not compile.
pub(super) fn status_of(kind: ErrorKind) -> dist_status_t {
    match kind {
        ErrorKind::InvalidArgument => DIST_ERR_INVALID_ARGUMENT,
        ErrorKind::InvalidHandle => DIST_ERR_INVALID_HANDLE,
        ErrorKind::NotInitialized => DIST_ERR_NOT_INITIALIZED,
        ErrorKind::AlreadyInitialized => DIST_ERR_ALREADY_INITIALIZED,
        ErrorKind::Unsupported => DIST_ERR_UNSUPPORTED,
        ErrorKind::NotFound => DIST_ERR_NOT_FOUND,
        ErrorKind::QueueEmpty => DIST_ERR_QUEUE_EMPTY,
        ErrorKind::NotANumber => DIST_ERR_NOT_A_NUMBER,
        ErrorKind::Timeout => DIST_ERR_TIMEOUT,
        ErrorKind::PeerFailed => DIST_ERR_PEER_FAILED,
        ErrorKind::Mismatch => DIST_ERR_MISMATCH,
        ErrorKind::Deadlock => DIST_ERR_DEADLOCK,
        ErrorKind::Aborted => DIST_ERR_ABORTED,
        ErrorKind::Connection => DIST_ERR_CONNECTION,
        ErrorKind::Auth => DIST_ERR_AUTH,
        ErrorKind::OutOfMemory => DIST_ERR_OUT_OF_MEMORY,
        ErrorKind::System => DIST_ERR_SYSTEM,
        ErrorKind::Backend => DIST_ERR_BACKEND,
        ErrorKind::Internal => DIST_ERR_INTERNAL,
    }
}

/// Returns the error kind of a status that a caller's function returned (a custom store). An
/// unknown status is `Backend`.
pub(super) fn kind_of(status: dist_status_t) -> ErrorKind {
    let is = |kind: &&ErrorKind| status_of(**kind) == status;
    ErrorKind::ALL.iter().find(is).copied().unwrap_or(ErrorKind::Backend)
}

/// Returns the text of a status.
pub(super) fn status_text(status: dist_status_t) -> &'static CStr {
    match status {
        DIST_OK => c"success",
        DIST_IN_PROGRESS => c"in progress",
        DIST_ERR_INVALID_ARGUMENT => c"invalid argument",
        DIST_ERR_INVALID_HANDLE => c"invalid handle",
        DIST_ERR_NOT_INITIALIZED => c"not initialized",
        DIST_ERR_ALREADY_INITIALIZED => c"already initialized",
        DIST_ERR_UNSUPPORTED => c"unsupported",
        DIST_ERR_NOT_FOUND => c"not found",
        DIST_ERR_QUEUE_EMPTY => c"queue empty",
        DIST_ERR_NOT_A_NUMBER => c"not a number",
        DIST_ERR_TIMEOUT => c"timed out",
        DIST_ERR_PEER_FAILED => c"a peer has failed",
        DIST_ERR_MISMATCH => c"ranks called different operations",
        DIST_ERR_ABORTED => c"aborted",
        DIST_ERR_CONNECTION => c"connection failed",
        DIST_ERR_AUTH => c"authentication failed",
        DIST_ERR_DEADLOCK => c"deadlock",
        DIST_ERR_OUT_OF_MEMORY => c"out of memory",
        DIST_ERR_SYSTEM => c"system error",
        DIST_ERR_BACKEND => c"back end error",
        DIST_ERR_INTERNAL => c"internal error",
        _ => c"unknown status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_are_unique_and_have_texts() {
        let mut numbers = HashSet::new();
        for kind in ErrorKind::ALL {
            let number = status_of(kind);
            assert!(number < 0 && numbers.insert(number));
            assert_ne!(status_text(number), c"unknown status");
            assert_eq!(kind_of(number), kind);
        }
        assert_eq!(status_text(12_345), c"unknown status");
    }
}
