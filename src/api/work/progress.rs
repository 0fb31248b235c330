//! The result of a wait that has a time limit.

/// The result of a wait for a work, or for the end of the callbacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkProgress {
    /// The work is done, or all callbacks have ended.
    Done,
    /// The time limit has passed, and the work is still pending or callbacks have not ended.
    Pending,
}
