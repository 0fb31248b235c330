//! A flag for event loops outside of the library: an event descriptor that is readable while the
//! flag is raised.

use crate::base::error::Result;
use crate::sys::eventfd::EventFd;
use std::os::fd::{AsFd as _, AsRawFd as _};

/// The flag. Its descriptor number is above those of the standard streams, and it is closed when
/// the flag is dropped.
#[derive(Debug)]
pub struct PollableFlag(EventFd);

impl PollableFlag {
    /// Creates a flag that is not raised.
    ///
    /// # Errors
    /// `System`.
    pub fn new() -> Result<Self> {
        EventFd::new().map(Self)
    }

    /// Returns the descriptor number.
    pub fn descriptor(&self) -> i32 {
        self.0.as_fd().as_raw_fd()
    }

    /// Makes the descriptor readable.
    pub fn raise(&self) {
        self.0.raise();
    }

    /// Makes the descriptor unreadable.
    pub fn clear(&self) {
        self.0.clear();
    }
}
