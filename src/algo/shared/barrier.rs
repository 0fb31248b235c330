//! Barrier inside a host: everybody publishes, everybody reads all.

use super::steps::Steps;
use crate::algo::Operation;
use crate::base::error::Result;

/// One step, one hop.
///
/// # Errors
/// As [`Steps::await_all`].
pub fn flags(steps: &mut Steps<'_>, _operation: &Operation<'_>) -> Result<()> {
    steps.publish(&[])?;
    steps.await_all()
}
