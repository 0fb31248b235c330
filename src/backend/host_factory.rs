//! The interface of the factories of back ends for host memory. [`super::registry`] finds them by
//! name.

use super::context::{BootstrapExchange, GroupContext};
use super::interface::Backend;
use crate::base::error::Result;
use std::sync::Arc;

/// A factory for the back ends of groups.
pub trait BackendFactory: Send + Sync {
    /// Checks that this process has what the back end needs, for example a library. Does not wait
    /// for other ranks.
    ///
    /// # Errors
    /// Any error that prevents the creation.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Creates the back end of this rank. All ranks must call this function, because it waits for
    /// all ranks.
    ///
    /// # Errors
    /// Any error that prevents the creation.
    fn create(
        &self,
        context: &GroupContext<'_>,
        exchange: &dyn BootstrapExchange,
    ) -> Result<Arc<dyn Backend>>;
}

crate::base::trait_object_debug::impl_debug_of_objects!(BackendFactory);
