//! The result of a wait with a limit.

/// The result of a wait for a work, or for the end of the callbacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkProgress {
    /// The work is done.
    Done,
    /// The work is still pending.
    Pending,
}
