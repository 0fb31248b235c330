//! Keeps the links of a process alive after its last group.

use super::listener_registry::ListenerRegistry;
use std::sync::Arc;

/// Keeps the links of this process alive, which otherwise end with its last group. If the
/// connection of a link breaks before its last bytes have arrived, it is replaced.
#[derive(Debug)]
pub struct LinkHold {
    _registry: Option<Arc<ListenerRegistry>>,
}

impl LinkHold {
    /// Holds the links, if there are any.
    pub fn of_this_process() -> Self {
        Self { _registry: ListenerRegistry::of_this_process() }
    }
}
