//! The registration of a plug-in, which is a back end of another library.

use super::bootstrap::{Plugin, create_group};
use crate::backend::host_factory::BackendFactory;
use crate::backend::{Backend, BootstrapExchange, GroupContext, registry};
use crate::base::error::Result;
use std::sync::Arc;

#[derive(Debug)]
struct RegisteredPlugin {
    name: &'static str,
    plugin: Arc<dyn Plugin>,
}

impl BackendFactory for RegisteredPlugin {
    fn create(
        &self,
        context: &GroupContext<'_>,
        exchange: &dyn BootstrapExchange,
    ) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(create_group(self.name, self.plugin.as_ref(), context, exchange)?))
    }
}

/// Registers a plug-in as a back end. `make` receives the normalized name and returns the plug-in.
///
/// # Errors
/// The errors of [`registry::register`].
pub fn register(
    name: &str,
    make: impl FnOnce(&'static str) -> Arc<dyn Plugin>,
) -> Result<&'static str> {
    registry::register(name, |name| Arc::new(RegisteredPlugin { name, plugin: make(name) }))
}
